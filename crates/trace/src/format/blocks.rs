//! A source of text in blocks, which hides whether the text comes from a file, an archive or
//! memory.

use std::io;

/// A text that arrives in consecutive blocks.
pub trait Blocks: Send {
    /// Replaces the content of `block` by the next block, which may have any size. Returns `false`
    /// and an empty block at the end.
    ///
    /// # Errors
    /// Any error that ends the text early. The blocks before it are still valid.
    fn next(&mut self, block: &mut Vec<u8>) -> io::Result<bool>;

    /// Returns approximately which share of the text has been read, if known. It serves to reserve
    /// memory for the whole trace at once, and changes no result.
    fn share(&self) -> Option<f64> {
        None
    }
}
