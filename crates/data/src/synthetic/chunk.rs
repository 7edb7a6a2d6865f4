//! Generates rows in chunks on several threads.

use std::ops::Range;

use crate::Error;
use crate::ordered;

/// Number of rows per chunk, which is fixed so that the bytes do not depend on the number of
/// threads.
pub(super) const CHUNK_ROWS: u64 = 8192;

/// Generates chunks of rows on several threads and consumes them in order.
pub(super) fn for_each_chunk<T: Send>(
    threads: usize,
    rows: Range<u64>,
    make: impl Fn(Range<u64>) -> T + Sync,
    take: impl FnMut(T) -> Result<(), Error>,
) -> Result<(), Error> {
    let produce = |send: ordered::SendItem<'_, Range<u64>>| {
        let mut starts = rows.clone().step_by(CHUNK_ROWS as usize);
        // The loop stops once an error has ended the pipeline.
        while starts.next().is_some_and(|start| send(start..(start + CHUNK_ROWS).min(rows.end))) {}
        Ok(())
    };
    ordered::run(threads, produce, make, take)
}
