//! Code that the command-line programs of rowmill share. This crate contains options of several
//! commands, errors with their hints, tables and progress, and the inputs of jobs: configurations,
//! rows, sharding plans, devices and recordings. Only this crate and the programs handle terminals
//! and signals. All results are computed by the library crates.

pub mod args;
pub mod auto_plan;
pub mod checkpoint;
pub mod config;
pub mod device;
pub mod device_cure;
pub mod error;
pub mod error_text;
pub mod feature_stats_file;
pub mod findings;
pub mod generated_rows;
pub mod hardware_file;
pub mod help_wrap;
pub mod input;
pub mod interrupt;
pub mod kernel_files;
pub mod machine;
pub mod memory_check;
pub mod memory_fix;
pub mod open_job;
pub mod output;
pub mod plan;
pub mod plan_search;
mod prepared;
pub mod process_group;
pub mod progress;
pub mod record;
pub mod recorded_steps;
pub mod render;
pub mod resized_step;
pub mod rows;
pub mod session;
pub mod shapes;
pub mod shell;
pub mod step_times;
pub mod suite;
pub mod synthetic;
pub mod table_output;
pub mod workload;

pub use session::Session;
