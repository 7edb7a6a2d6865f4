//! Describes a kernel of the analyzed window by its owner and launch shape.

use trace::store::LaunchShape;

use crate::facts::classify::WorkClass;

/// A kernel in the analyzed window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowKernel {
    pub row: u32,
    pub class: WorkClass,
    pub duration: i64,
    /// Row of the operator or annotation that owns the kernel.
    pub owner: Option<u32>,
    pub shape: Option<LaunchShape>,
    pub device: i32,
}

impl WindowKernel {
    /// Returns the number of blocks per multiprocessor, if the trace has the launch shape.
    pub fn blocks_per_sm(&self) -> Option<f64> {
        let blocks = self.shape.map(|shape| f64::from(shape.blocks_per_sm))?;
        blocks.is_finite().then_some(blocks)
    }

    /// Returns the number of threads per block, or 0 if the trace lacks the launch shape.
    pub fn threads_per_block(&self) -> u64 {
        self.shape.map_or(0, |shape| shape.block.iter().map(|n| u64::from(*n)).product())
    }

    /// Returns the number of blocks of the launch, or 0 if the trace lacks the launch shape.
    pub fn blocks(&self) -> u64 {
        self.shape.map_or(0, |shape| shape.grid.iter().map(|n| u64::from(*n)).product())
    }
}
