//! A text handed out block by block. Knows neither where it comes from nor what it says.

use std::io;

/// A text in blocks of any size, in order.
pub trait Blocks: Send {
    /// Replaces what `block` holds by the next part of the text; `false` at its end.
    ///
    /// # Errors
    /// What the system answers.
    fn next(&mut self, block: &mut Vec<u8>) -> io::Result<bool>;
}
