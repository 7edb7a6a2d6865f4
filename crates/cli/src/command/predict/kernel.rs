//! Commands for kernels without a trace: `rowmill predict kernels`, `evaluate --kernels` and
//! `learn --kernels`.

pub mod evaluate;
pub mod hardware;
pub mod price;
pub mod train;
