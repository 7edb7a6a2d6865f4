//! Tests of the program `rowmill-hub`.

#![expect(clippy::unwrap_used, reason = "test code fails by panicking")]

mod access;
mod agent;
#[cfg(feature = "s3")]
mod bucket;
mod chain;
mod demo;
mod disk;
mod fixture;
mod kill;
mod load;
mod notices;
mod orders;
mod outward;
mod requests;
mod simulate;
mod slurm;
mod speed;
mod sql;
mod view;
