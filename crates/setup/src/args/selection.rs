//! Options that select traces: the files, the ranks, the part of each trace, and the rule that
//! classifies device work.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Options that select traces, a part of each, and the place where the result is written.
#[derive(Clone, Debug, Args)]
pub struct Selection {
    /// Traces: files, archives, folders, or `-` for standard input
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// The part of each trace to analyze [default: steps]
    #[arg(long, value_enum)]
    pub window: Option<WindowChoice>,
    /// How device work is classified [default: category]
    #[arg(long, value_enum)]
    pub classify: Option<ClassifyChoice>,
    /// Classify kernels by name: compute, communication, memory or other, such as
    /// communication=my_all_to_all (a regular expression; repeatable, the first match wins)
    #[arg(long = "class", value_name = "CLASS=PATTERN")]
    pub classes: Vec<String>,
    /// Analyze only these ranks
    #[arg(long = "rank", value_name = "N")]
    pub ranks: Vec<u32>,
    /// Most rows of a table [default: 20; machine-readable output has all]
    #[arg(long, value_name = "N")]
    pub top: Option<usize>,
    /// Write to FILE instead of stdout
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// The part of a trace to analyze.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WindowChoice {
    /// Everything that was recorded
    All,
    /// Whole steps: a first or last step that the recording cut off is dropped; `all` if fewer than
    /// two remain
    Steps,
    /// The window of Holistic Trace Analysis: the span of device work launched before the last step
    Hta,
}

/// The rule that classifies device work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ClassifyChoice {
    /// Use the category, then arguments of collectives, then known names
    Category,
    /// Use the name alone, as Holistic Trace Analysis does
    Hta,
}
