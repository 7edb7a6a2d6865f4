//! Reads Kineto's Chrome JSON, any era and vendor, whole or damaged, on any number of threads.
//!
//! ```text
//! Blocks → source: chunks between events → events, per worker → part → merge: one trace
//!                                          └ event ← layout, scan     ↑
//!                                            └ row               document: header, what was
//! guessed wrong
//! ```
//!
//! The meaning of any position depends only on the text before it: threads and blocks change the
//! time, never the result. Knows nothing of files and compression.

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

/// Bytes of text a worker reads at a time, if blocks allow: they stay in the processor's cache.
const CHUNK: usize = 1 << 20;

/// Reads a trace from its text. The result depends neither on `threads` nor on the size of the
/// blocks.
///
/// Times are exact: decimal microseconds become integer nanoseconds, decimals beyond the third
/// rounded to the nearest, halves away from zero; the file's base time is added. Times and
/// durations of 2^61 ns (73 years) or more are losses. Process and thread ids that fit no `i64` are
/// kept as texts. Flow ids that are texts become the number they spell, in decimal or hexadecimal,
/// else their hash. Numbers that are none (NaN, infinity) become NaN.
///
/// # Cost
/// One pass; memory for the trace and about two blocks per thread.
///
/// # Errors
/// [`NotKineto`] if no list of events is found. Everything else that is wrong is a loss of the
/// trace.
pub fn read(blocks: &mut dyn Blocks, threads: usize) -> Result<Trace, NotKineto> {
    read_in_chunks(blocks, threads, CHUNK)
}

/// As [`read`], in chunks of about `size` bytes.
fn read_in_chunks(
    blocks: &mut dyn Blocks,
    threads: usize,
    size: usize,
) -> Result<Trace, NotKineto> {
    let source = source::ChunkSource::new(blocks, size);
    if threads <= 1 { stitch::alone(source) } else { stitch::together(source, threads) }
}
