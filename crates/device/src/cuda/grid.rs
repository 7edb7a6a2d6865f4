//! The size of a launch, and the check that a device can launch it.

use super::error::DriverError;

/// Largest number of blocks of a launch along x and along y, on every GPU.
const BLOCKS_LIMIT: [usize; 2] = [i32::MAX as usize, 65_535];

/// The number of blocks and threads of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Number of blocks along x and along y.
    pub blocks: [usize; 2],
    /// Number of threads in a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory per block, in addition to the memory that the kernel
    /// declares.
    pub shared_bytes: usize,
}

/// A grid that the device can launch, in the driver's types.
#[derive(Clone, Copy, Debug)]
pub(super) struct CheckedGrid {
    pub blocks: [u32; 2],
    pub threads: u32,
    pub shared_bytes: u32,
}

impl Grid {
    /// Creates a one-dimensional grid with enough blocks for `items` items, `per_block` items per
    /// block.
    #[must_use]
    pub fn over(items: usize, per_block: u32, threads: u32) -> Self {
        Self { blocks: [items.div_ceil(per_block as usize), 1], threads, shared_bytes: 0 }
    }

    /// Returns an error if a grid has more blocks than any GPU can launch, or if a block needs more
    /// shared memory than `shared_limit`.
    pub(super) fn checked(
        self,
        kernel: &str,
        shared_limit: usize,
    ) -> Result<CheckedGrid, DriverError> {
        let fit = |what, expected, got: usize| match u32::try_from(got) {
            Ok(fitting) if got <= expected => Ok(fitting),
            _ => Err(DriverError::Extent { of: format!("kernel {kernel}"), what, expected, got }),
        };
        let x = fit("blocks along x, at most", BLOCKS_LIMIT[0], self.blocks[0])?;
        let y = fit("blocks along y, at most", BLOCKS_LIMIT[1], self.blocks[1])?;
        let what = "bytes of shared memory of a block, at most";
        let shared_bytes = fit(what, shared_limit, self.shared_bytes)?;
        Ok(CheckedGrid { blocks: [x, y], threads: self.threads, shared_bytes })
    }
}
