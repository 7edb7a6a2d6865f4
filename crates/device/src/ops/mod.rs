//! The operations, with a folder for each. `mod.rs` has the contract, the checks and the
//! dispatch, `scalar.rs` the oracle, and `simd.rs` the vector code if it pays. `cuda.rs` and
//! `kernel.cu` implement the operation on a GPU. Forward and backward are separate functions, and
//! there is no autograd.

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
