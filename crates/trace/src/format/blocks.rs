//! A text handed out block by block. Knows neither where it comes from nor what it says.

use std::io;

/// Blocks of text in order.
pub trait Blocks: Send {
    /// Replaces the content of `block` by the next block of any size; `false`, and none, at the
    /// end.
    ///
    /// # Errors
    /// Whatever ends the text early: what came before is still read.
    fn next(&mut self, block: &mut Vec<u8>) -> io::Result<bool>;

    /// About which share of the text has been handed out, if that can be told: memory is then taken
    /// for the whole at once rather than in steps. Changes no result.
    fn share(&self) -> Option<f64> {
        None
    }
}
