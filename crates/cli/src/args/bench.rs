//! `rowmill bench …` as typed.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Measure rowmill on this machine.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Reading and breaking down a trace: bytes per second, memory, critical path
    #[command(after_help = "\
Examples:
  rowmill bench trace
  rowmill bench trace trace.json.gz --megabytes 3000 --format json

The events of PATH are repeated, shifted in time, until the text has the size asked for.")]
    Trace(BenchTrace),
}

/// What to measure.
#[derive(Debug, Args)]
pub struct BenchTrace {
    /// The trace whose events are repeated [default: one made of typical events]
    pub path: Option<PathBuf>,
    /// Size of the text, in millions of bytes
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub megabytes: u64,
    /// Measurements of each kind; the median is reported
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub repeats: u64,
    /// Read this file once, print what it cost, and stop: one measurement in a process of its own
    #[arg(long, hide = true, value_name = "FILE")]
    pub once: Option<PathBuf>,
}
