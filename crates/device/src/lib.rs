//! Devices: threads, instruction sets and the kernels that run on them.
//!
//! The only crate with numeric `unsafe`. It operates on slices, shapes and update rules,
//! independent of files, traces, ranks and models. Every operation takes a [`cpu::Cpu`] first and
//! gives the same bytes for any number of threads, because the order of all sums depends only on
//! the problem.

#![cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, reason = "the vector forms have no instruction set on this machine")
)]

pub mod backend;
pub mod buffer;
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
