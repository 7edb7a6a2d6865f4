//! Integration tests of the crate: from files on disk to batches, through the public interface
//! only.
#![expect(clippy::unwrap_used, reason = "test code fails by panicking")]

mod adult;
mod checksum;
mod columns;
mod criteo;
mod damage;
mod fixture;
mod formats;
mod ids;
mod loading;
mod npy;
mod profile;
mod remote;
mod resume;
mod scoring;
mod sharing;
mod stats;
mod synthetic;
