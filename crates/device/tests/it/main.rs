//! The conformance tests of `device`: every kernel against its scalar oracle, every thread count
//! against one thread.
#![expect(clippy::unwrap_used, clippy::panic, reason = "test code fails by panicking")]

mod backend;
mod cache;
mod cuda;
mod dense;
mod embedding;
mod exchange;
mod ids;
mod optimizer;
mod pool;
