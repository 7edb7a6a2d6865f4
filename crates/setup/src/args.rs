//! Options that several commands of both programs share, in the form that clap parses.

mod device;
mod output_path;
mod selection;
mod size;
mod step;

use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use schema::Share;
use serde::{Deserialize, Serialize};

pub use device::{DeviceName, OnDevice};
pub use output_path::OutputPath;
pub use selection::{ClassifyChoice, Selection, WindowChoice};
pub use size::size;
pub use step::NeverRunStep;

/// Largest accepted number of threads. This number exceeds the cores of any machine, and still
/// allows all threads to start.
const THREADS_MAX: usize = 1024;

/// Largest accepted number of ranks of one process. Each rank is at least one thread.
pub const RANKS_MAX: u32 = 1024;

/// The options that every command accepts.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Options of every command")]
pub struct Global {
    /// Output: table or json; for traces also csv, md, parquet, sarif
    #[arg(long, value_enum, default_value_t = OutputFormat::Table, global = true,
          hide_possible_values = true, hide_default_value = true)]
    pub format: OutputFormat,
    /// Number of threads; results are identical for any value [default: all cores]
    #[arg(long, value_name = "N", global = true, value_parser = thread_count)]
    pub threads: Option<usize>,
    /// Color on stderr: auto, always, never
    #[arg(long, value_enum, default_value_t = Color::Auto, global = true,
          hide_possible_values = true, hide_default_value = true)]
    pub color: Color,
    /// Verbose output: resolved settings, file locations
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub verbose: u8,
}

/// The format in which results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// Aligned columns for people
    Table,
    /// One JSON value per line, for programs
    Json,
    /// Comma-separated values with a header, for tables only
    Csv,
    /// A Markdown table, for tables only
    Md,
    /// Parquet, for tables only and with --output FILE
    Parquet,
    /// SARIF 2.1.0 for code hosts, only of `rowmill trace findings`
    Sarif,
}

/// The condition under which messages are colored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// Use color on a terminal, unless NO_COLOR is set
    Auto,
    /// Always use color
    Always,
    /// Never use color
    Never,
}

/// Options of commands whose ranks may be processes.
#[derive(Clone, Debug, Args)]
pub struct Processes {
    /// How ranks communicate: as threads of this process, or over MPI as processes started by
    /// mpirun or srun. `auto` selects MPI under such a launcher
    #[arg(long, value_enum, default_value_t = TransportChoice::Auto)]
    pub transport: TransportChoice,
    /// The MPI library to open [default: libmpi.so.40, libmpi.so.12, libmpich.so.12 or
    /// libmpi_abi.so.0, the launcher's first]
    #[arg(long, value_name = "FILE")]
    pub mpi_library: Option<String>,
    /// Seconds to wait for another process before ending the job; at least 1800 until the first
    /// step is done
    #[arg(long, value_name = "SECONDS", default_value_t = 300,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub timeout: u64,
    /// What sums dense gradients: rowmill, in rank order as between threads, or MPI_Iallreduce, in
    /// the order of the library
    #[arg(long, value_enum, default_value_t = Collectives::Own)]
    pub collectives: Collectives,
}

/// The software that sums values over processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Collectives {
    /// Rowmill itself, in rank order
    Own,
    /// The MPI library, in its own order
    Native,
}

/// The layer that carries messages between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TransportChoice {
    /// Use MPI under a launcher, and threads otherwise
    Auto,
    /// Use threads of this process
    #[value(name = "in_process")]
    InProcess,
    /// Use the processes that a launcher started
    Mpi,
}

/// Options that set how malformed rows are treated.
#[derive(Clone, Copy, Debug, Args)]
pub struct Malformed {
    /// Fail if a larger share of rows is malformed, such as 1% or 0.01. A single malformed row is
    /// always skipped, unless this is 0
    #[arg(long, value_name = "SHARE", conflicts_with = "strict", default_value = "1%",
          value_parser = str::parse::<Share>)]
    pub malformed_max: Share,
    /// Stop at the first malformed row instead of skipping it
    #[arg(long)]
    pub strict: bool,
}

/// A way of dividing tables among ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sharding {
    /// Keep each table whole on one rank
    Table,
    /// Split every table into blocks of rows
    Row,
    /// Split every table into blocks of columns
    Column,
    /// Divide tables in four ways in turn: whole, rows, columns, grid
    Mixed,
    /// Keep every table whole on every rank
    Replicated,
    /// Keep each table on one host, and split its rows over the ranks of that host
    TableRow,
    /// Split the columns of every table over hosts, and the rows over the ranks of each host
    Grid,
}

/// The value of `--sharding` of a training run: a rule, or a search for a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardingChoice {
    Auto,
    Rule(Sharding),
}

impl ValueEnum for ShardingChoice {
    fn value_variants<'a>() -> &'a [Self] {
        use Sharding::{Column, Grid, Mixed, Replicated, Row, Table, TableRow};
        const RULES: [Sharding; 7] = [Table, Row, Column, Mixed, Replicated, TableRow, Grid];
        const ALL: [ShardingChoice; 8] = {
            let mut all = [ShardingChoice::Auto; 8];
            let mut at = 0;
            while at < RULES.len() {
                all[at + 1] = ShardingChoice::Rule(RULES[at]);
                at += 1;
            }
            all
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Self::Auto => Some(
                PossibleValue::new("auto")
                    .help("Search for the plan that is predicted to be fastest"),
            ),
            Self::Rule(rule) => rule.to_possible_value(),
        }
    }
}

/// Finds the subcommand that the arguments of this process select, with its options. `verb` is the
/// definition of the whole command line of the program.
pub fn command_in_use(mut verb: clap::Command) -> clap::Command {
    let matches = verb.clone().try_get_matches_from(std::env::args_os()).ok();
    let mut matches = matches.as_ref();
    verb.build();
    while let Some((name, below)) = matches.and_then(clap::ArgMatches::subcommand) {
        let Some(found) = verb.find_subcommand(name) else { break };
        (verb, matches) = (found.clone(), Some(below));
    }
    verb
}

/// Parses `KEY=VALUE`, which overrides a key of the configuration.
pub fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE, such as batch_size=4096")?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

/// Parses a number of ranks from 1 to [`RANKS_MAX`].
pub fn rank_count() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(RANKS_MAX))
}

/// Parses a number of threads from 1 to 1,024.
pub fn thread_count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=THREADS_MAX) => Ok(count),
        _ => Err(format!("expected a number in 1..={THREADS_MAX}")),
    }
}

#[cfg(test)]
mod tests {
    use super::thread_count;

    #[test]
    fn threads_are_counted_within_reason() {
        assert_eq!(thread_count("7"), Ok(7));
        assert!(["0", "100000", "-1", "x"].iter().all(|text| thread_count(text).is_err()));
    }
}
