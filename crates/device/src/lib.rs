//! Devices: threads, instruction sets and the kernels that run on them.
//!
//! This is the only crate with `unsafe` numeric code. The crate operates on slices, shapes and
//! update rules, and does not depend on files, traces, ranks or models. Every operation takes a
//! [`cpu::Cpu`] first. An operation computes the same bytes for any number of threads, because
//! the order of all sums depends only on the problem.

#![cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, reason = "the vector code is unused on machines other than x86-64")
)]

pub mod backend;
pub mod buffer;
pub mod cache;
pub mod cpu;
pub mod cuda;
pub mod error;
pub mod limits;
pub mod mapped;
pub mod matrix_shape;
pub mod ops;
pub mod optimizer;
pub mod real;
mod rounding;
pub mod weights;

pub use backend::Backend;
pub use cpu::{Cpu, Isa, Pool};
pub use error::Error;
pub use matrix_shape::MatrixShape;
pub use real::Real;
pub use weights::{Weights, WeightsMut, WeightsView};
