//! Facts about a recording that tables, graphs and findings share.
//!
//! - What is analyzed: `scope`, `window`, `classify`, `device_step`, `job`.
//! - Who caused what: `tree`, `frames`, `attribution`, `links`, `calls`, `named`.
//! - Time: `interval`, `distribution`, `clock`, `skew`, `back_pressure`.
//! - What to trust: `coverage`, `refuted`, `quality`, `disturbance`, `captures`, `writer`,
//!   `cpu_run`.
//! - Between ranks: `collectives`.

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
