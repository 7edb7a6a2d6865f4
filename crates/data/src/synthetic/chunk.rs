//! Rows in chunks, made by several threads.

use std::ops::Range;

use crate::Error;
use crate::ordered;

/// Rows drawn, rendered and handed over at a time; fixed, so the bytes do not depend on the
/// threads.
pub(super) const CHUNK_ROWS: u64 = 8192;

/// Makes chunks of rows on several threads and takes them in order.
pub(super) fn for_each_chunk<T: Send>(
    threads: usize,
    rows: Range<u64>,
    make: impl Fn(Range<u64>) -> T + Sync,
    take: impl FnMut(T) -> Result<(), Error>,
) -> Result<(), Error> {
    let produce = |send: ordered::SendItem<'_, Range<u64>>| {
        let mut starts = rows.clone().step_by(CHUNK_ROWS as usize);
        // Nobody takes any more once an error has ended the whole.
        while starts.next().is_some_and(|start| send(start..(start + CHUNK_ROWS).min(rows.end))) {}
        Ok(())
    };
    ordered::run(threads, produce, make, take)
}
