//! Facts about a recording that tables, graphs and findings share.
//!
//! - `scope`, `window`, `classify`, `device_step` and `job` define what is analyzed.
//! - `tree`, `frames`, `attribution`, `links`, `calls` and `named` find what caused what.
//! - `interval`, `distribution`, `clock`, `skew` and `back_pressure` deal with time.
//! - `coverage`, `refuted`, `quality`, `disturbance`, `captures`, `writer` and `cpu_run` judge what
//!   can be trusted.
//! - `collectives` matches communication between ranks.

pub mod attribution;
pub mod back_pressure;
pub mod calls;
pub(crate) mod captures;
pub mod classify;
pub mod clock;
pub mod collectives;
pub mod coverage;
pub mod cpu_run;
pub mod device_step;
pub mod distribution;
pub mod disturbance;
pub mod frames;
pub mod interval;
pub mod job;
pub mod links;
pub(crate) mod named;
pub mod quality;
pub mod refuted;
pub mod scope;
pub mod skew;
pub mod tree;
pub mod window;
pub mod writer;
