//! All integration tests of the trainer, in one binary.
#![expect(clippy::panic, clippy::unwrap_used, reason = "test code fails by panicking")]

mod against_oracle;
mod allocation;
mod checkpoint;
mod damage;
mod golden;
mod groups;
mod hosts;
mod input_distribution;
mod metric;
mod oracle;
mod pipeline;
mod pipeline_faults;
mod planted;
mod precision;
mod process_matrix;
mod processes;
mod rank_steps;
mod ranks;
mod regression;
mod row_scope;
mod run;
mod samples;
mod sequence;
mod state_dict;
mod stopped;
mod storage;
mod stub;
mod table_use;
