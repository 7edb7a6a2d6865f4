//! The hub of a fleet: takes rows from agents and stores them as Parquet files, and computes the
//! sums of a fleet from these files. [`doctor`] finds in them what is wrong with a run or a host.
//!
//! [`server`] receives requests, [`access`] decides what their callers may do, and [`audit`]
//! records it. [`batch`] checks batches, and [`writer`] commits several batches at a
//! time to the [`store`]. [`bucket`] has copies of its files. [`problems`]
//! adds events about faulty rows, and [`status`] lists hosts
//! with them. [`slurm`] asks the scheduler about jobs and nodes, and [`accounting`] about jobs
//! that have ended. [`columns`] converts rows to
//! Arrow. [`sums`] has the additive sums of a fleet, [`aggregate`] computes them from rows,
//! [`grouping`] adds them up by members of dimensions, and [`rollup`] keeps them per hour and
//! answers queries. [`faults`] lists what is wrong with GPUs, [`host_faults`] describes it by host,
//! and [`nodes`] tells on which hosts jobs may start. [`run_reports`] reads what hosts report about
//! runs, [`runs`] tells which of them failed and were repeated, and [`steps`] has their step rates.
//! [`lookup`] finds one run or host by its name, and [`similar`] the names that an unknown one may
//! stand for. [`api`] answers viewers in JSON, and [`table`] formats sums as text. [`outward`]
//! sends sums to other systems, and [`metrics`] are those of the hub itself. [`simulate`] sends
//! rows of a made-up fleet, and [`demo`] shows all parts with one command. `docs/hub.md` describes
//! the files.
//!
//! [`log_links`] links runs to their logs, and [`opportunity`] finds what is worth mending first.
//! [`orders`] has the orders for traces, [`active_runs`] finds the hosts of runs, and [`watch`]
//! gives orders by itself. [`findings`] adds up what traces say. [`notices`] tells owners of idle
//! GPUs, and [`program`] runs other programs.

pub mod access;
pub mod accounting;
pub mod active_runs;
pub mod aggregate;
pub mod api;
pub mod attempts;
pub mod audit;
pub mod batch;
pub mod bucket;
pub mod columns;
pub mod config;
pub mod demo;
pub mod doctor;
pub mod error;
pub mod events;
pub mod faults;
pub mod findings;
pub mod grouping;
pub mod host_faults;
pub mod intervals;
pub mod kept;
pub mod log;
pub mod log_links;
pub mod lookup;
pub mod metrics;
pub mod mode_sums;
pub mod nodes;
pub mod notices;
pub mod opportunity;
pub mod orders;
pub mod outward;
pub mod page;
pub mod pattern;
pub mod poll;
pub mod problems;
pub mod program;
pub mod rollup;
pub mod run_hours;
pub mod run_reports;
pub mod runs;
pub mod server;
pub mod similar;
pub mod simulate;
pub mod slurm;
pub mod status;
pub mod steps;
pub mod store;
pub mod sums;
pub mod table;
pub mod time;
pub mod tls;
pub mod token_file;
pub mod tokens;
pub mod trees;
pub mod watch;
pub mod weights;
pub mod writer;
