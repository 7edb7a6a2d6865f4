//! The operations, one folder each: `mod.rs` (contract, checks, dispatch), `scalar.rs` (the
//! oracle), `simd.rs` if vectors pay, `cuda.rs` and `kernel.cu` for a GPU. Forward and backward are
//! separate functions, and there is no autograd.

pub mod activation;
pub mod cross;
pub mod dense_update;
pub mod embedding_backward;
pub mod embedding_forward;
pub mod exchange;
pub(crate) mod extent;
pub mod gemm;
pub mod interaction;
pub mod jagged;
pub mod loss;
pub mod prefix_sum;
pub(crate) mod slot;
mod transpose;

pub use slot::{Slot, SlotOutput};
