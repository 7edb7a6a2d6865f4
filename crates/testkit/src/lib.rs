//! Helpers that the tests of several crates share. The crate is a development dependency only, so
//! products never use it. The crate depends on no other crate of the workspace, so no crate is
//! compiled twice for it.
//!
//! Helpers that know one crate, such as its jobs and traces, are in `tests/it/fixture.rs` of that
//! crate.

#![expect(clippy::unwrap_used, clippy::panic, reason = "test code fails by panicking")]

pub mod browser;
pub mod certificate;
pub mod compiler;
pub mod fixture;
mod folder;
pub mod mutate;
pub mod object_server;
mod process;
mod random;
mod skip;

pub use folder::Folder;
pub use process::{MPICH, OPEN_MPI, ProgramOutput, launch_test, rerun_test};
pub use random::Random;
pub use skip::{has_program, has_root, has_time, is_root, skip};
