//! Tests of the program `rowmill-hub`.

#![expect(clippy::unwrap_used, reason = "test code fails by panicking")]

mod agent;
mod disk;
mod fixture;
mod kill;
mod load;
mod orders;
mod requests;
mod simulate;
mod slurm;
mod speed;
mod view;
