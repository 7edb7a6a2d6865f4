//! Runs the real binary as a user does, and checks stdout, stderr, exit codes and files.
#![expect(clippy::unwrap_used, clippy::panic, reason = "test code fails by panicking")]

mod capture;
mod cases;
mod checkpoint;
mod configuration;
mod content;
mod cut;
mod data;
mod device;
mod fixture;
mod full_disk;
mod help;
mod ids;
mod init;
mod interrupt;
mod kernels;
mod kill;
mod learn;
mod links;
mod malformed;
mod memory;
mod output;
mod perfetto;
mod predict;
mod priced;
mod processes;
mod quickstart;
mod refusal;
mod remote;
mod report;
mod resume;
mod score;
mod trace;
mod train;
mod transforms;
mod written;
