//! Predicts the execution time of a kernel on a device from the kernel's sizes.
//!
//! The latency of a call includes its launch overhead, the host time that hides shorter kernels.
//! Boosted trees learn the residual `ln(latency ÷ baseline)`, one forest for each kind of kernel
//! and measured device. Times on other devices are transferred from the measured ones by a formula
//! that grows with the sizes and falls with the rates of the device. The result is the time of the
//! *kernel* without launch overhead, and it is never below the physical limit. A prediction has an
//! interval that covered nine of ten calibration rows, and it states whether the sizes lie within
//! the training data.

mod adaptation;
mod baseline;
mod bins;
mod boosting;
pub mod cpu;
mod device_rows;
pub mod embedding;
mod error;
mod error_interval;
pub mod error_metrics;
mod estimate;
pub mod evaluate;
pub mod exchanges;
mod feature;
pub mod few_shot;
mod file;
mod forest;
mod formula;
pub mod formula_kernels;
pub mod host_costs;
mod latency;
mod launch_overhead;
pub mod measured;
mod model;
mod model_shapes;
pub mod parallel;
pub mod products;
pub mod rank_load;
mod roofline_slack;
pub mod shipped;
mod split;
mod state_drift;
pub mod tile_use;
mod train;
mod transfer;
mod trees;
mod work;

pub use bins::BINS_MOST;
pub use boosting::BoostingParams;
pub use error::Error;
pub use estimate::Estimate;
pub use feature::{physics_ns, roofline_ns};
pub use file::VERSION;
pub use measured::{Measured, Timed};
pub use model::{DeviceModel, Domain, KernelModel, Outside, Price, Source};
pub use model_shapes::resembles_layers;
pub use split::{Part, hash};
pub use train::{MODEL_BYTES_MOST, train};
pub use trees::{TreeExample, Trees, TreesParams};
pub use work::{Element, Kind, Work};
