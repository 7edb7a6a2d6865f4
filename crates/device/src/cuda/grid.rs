//! The size of a launch.

/// How many threads a launch has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Blocks along x and y.
    pub blocks: [u32; 2],
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of a block's shared memory beyond what the kernel declares.
    pub shared_bytes: u32,
}

impl Grid {
    /// One-dimensional: so many blocks that every one of `items` has its own of `per_block`.
    #[must_use]
    pub fn over(items: usize, per_block: u32, threads: u32) -> Self {
        let blocks = items.div_ceil(per_block as usize) as u32;
        Self { blocks: [blocks, 1], threads, shared_bytes: 0 }
    }
}
