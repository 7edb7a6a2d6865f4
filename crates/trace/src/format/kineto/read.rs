//! Reads Kineto's Chrome JSON of any version and vendor, complete or damaged, with any number of
//! threads.
//!
//! ```text
//! Blocks → source: chunks between events → events, per worker → part → merge: one trace
//!                                          └ event ← layout, scan     ↑
//!                                            └ row               document: header, wrong guesses
//! ```
//!
//! The meaning of a position depends only on the text before it. Therefore the number of threads
//! and the size of blocks change the time, but never the result.

mod document;
mod event;
mod events;
pub(in crate::format) mod header;
mod intern;
pub(in crate::format) mod key;
mod lane;
mod layout;
mod lenient;
mod member;
mod merge;
mod number;
mod parse;
mod part;
mod row;
mod scan;
mod source;
mod stitch;
#[cfg(test)]
mod tests;
mod text;

use crate::format::blocks::Blocks;
use crate::store::Trace;
pub use document::NotKineto;

/// Bytes of text that a worker reads at a time. A chunk of this size stays in the processor's
/// cache.
const CHUNK: usize = 1 << 20;

/// Reads a trace from its text. The result depends neither on `threads` nor on the size of the
/// blocks.
///
/// Times are exact. Decimal microseconds become integer nanoseconds. Decimals beyond the third are
/// rounded to the nearest nanosecond, with halves away from zero. The file's base time is added to
/// all times. Times and durations of 2^61 ns (73 years) or more are counted as losses.
///
/// Process and thread ids that do not fit an `i64` are kept as texts. A flow id that is a text
/// becomes the decimal or hexadecimal number it spells, or else its hash. Non-finite numbers become
/// NaN.
///
/// # Cost
/// One pass over the text. Memory holds the trace and about two blocks per thread.
///
/// # Errors
/// [`NotKineto`] if there is no list of events. Any other defect is counted as a loss of the trace.
pub fn read(blocks: &mut dyn Blocks, threads: usize) -> Result<Trace, NotKineto> {
    read_in_chunks(blocks, threads, CHUNK)
}

/// Reads like [`read`], but in chunks of about `size` bytes, so that tests can choose the size.
fn read_in_chunks(
    blocks: &mut dyn Blocks,
    threads: usize,
    size: usize,
) -> Result<Trace, NotKineto> {
    let source = source::ChunkSource::new(blocks, size);
    if threads <= 1 { stitch::alone(source) } else { stitch::together(source, threads) }
}
