//! The hub of a fleet: takes rows from agents and stores them as Parquet files, and computes the
//! sums of a fleet from these files.
//!
//! [`server`] receives batches, [`batch`] checks them, and [`writer`] commits several batches at a
//! time to the [`store`]. [`problems`] adds events about faulty rows, and [`status`] lists hosts
//! with them. [`slurm`] asks the scheduler about jobs and nodes. [`columns`] converts rows to
//! Arrow. [`sums`] has the additive sums of a fleet, [`aggregate`] computes them from rows,
//! [`grouping`] adds them up by members of dimensions, and [`rollup`] keeps them per hour and
//! answers queries. [`faults`] lists what is wrong with GPUs. [`api`] answers viewers in JSON, and
//! [`table`] formats sums as text. [`simulate`] sends rows of a made-up fleet. `docs/hub.md`
//! describes the files.
//!
//! [`orders`] has the orders for traces, which [`runs`] finds the hosts of, and [`watch`] gives
//! orders by itself. [`findings`] adds up what traces say.

pub mod aggregate;
pub mod api;
pub mod batch;
pub mod columns;
pub mod config;
pub mod error;
pub mod faults;
pub mod findings;
pub mod grouping;
pub mod intervals;
pub mod kept;
pub mod log;
pub mod orders;
pub mod page;
pub mod pattern;
pub mod poll;
pub mod problems;
pub mod rollup;
pub mod runs;
pub mod server;
pub mod simulate;
pub mod slurm;
pub mod span;
pub mod status;
pub mod store;
pub mod sums;
pub mod table;
pub mod tls;
pub mod tokens;
pub mod watch;
pub mod weights;
pub mod writer;
