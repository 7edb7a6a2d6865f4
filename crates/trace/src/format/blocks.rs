//! Defines a source of text in blocks, which hides whether the text comes from a file, an archive
//! or memory.

use std::io;

/// A text that arrives in consecutive blocks.
pub trait Blocks: Send {
    /// Replaces the content of `block` by the next block, which may have any size. At the end of
    /// the text, `block` is empty and `false` is returned.
    ///
    /// # Errors
    /// Any error that ends the text early. The blocks before the error are still valid.
    fn next(&mut self, block: &mut Vec<u8>) -> io::Result<bool>;

    /// Returns approximately which share of the text has been read, if known. The share is used to
    /// reserve memory for the whole trace at once, and it does not change any result.
    fn share(&self) -> Option<f64> {
        None
    }
}
