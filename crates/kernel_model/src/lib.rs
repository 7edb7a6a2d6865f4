//! Predicts the time of a kernel on a device from its sizes alone: the roofline times a learnt
//! residual.
//!
//! A measurement holds a floor, what the host needs to launch it. Models are learnt on `ln(latency
//! ÷ max(roofline, floor))` by boosted trees, one forest for each kind and device and one over all
//! devices for unmeasured ones. The result is the time of the *kernel*: without the floor, never
//! below physics, with an interval that covered nine of ten calibration rows, and with its training
//! domain.

mod baseline;
mod bins;
mod bit_stream;
mod boosting;
mod correction;
pub mod cpu;
mod device_rows;
pub mod embedding;
mod error;
mod error_interval;
pub mod error_metrics;
mod estimate;
pub mod evaluate;
mod feature;
pub mod few_shot;
mod file;
mod forest;
pub mod formula_kernels;
mod grid;
mod latency;
mod launch_overhead;
pub mod leave_out;
pub mod measured;
mod model;
mod parallel;
mod peaks;
pub mod published;
pub mod rank_load;
mod roofline_slack;
pub mod shipped;
mod split;
mod state_drift;
pub mod suite;
pub mod tile_use;
mod train;
mod train_forest;
mod work;

pub use error::Error;
pub use estimate::Estimate;
pub use feature::{physics_ns, roofline_ns};
pub use file::VERSION;
pub use grid::{MlpGrid, MlpSetting};
pub use measured::{Measured, Timed};
pub use model::{DeviceModel, Domain, KernelModel, Outside, Price, Source};
pub use peaks::MeasuredPeaks;
pub use split::Part;
pub use train::{MODEL_BYTES_MOST, train};
pub use work::{Element, Kind, Work};
