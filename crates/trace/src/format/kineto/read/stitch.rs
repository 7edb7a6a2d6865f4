//! Parses chunks on several workers, and joins the results in file order.
//!
//! A worker assumes that its chunk starts between two events. When chunks are joined, the previous
//! chunk must have ended where the worker started. If the previous chunk ended elsewhere, the chunk
//! is read again from the actual end. The result is therefore the same as that of a single worker.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::document::{Document, NotKineto};
use super::events::{self, ListState, Scanner, TextStretch};
use super::merge::Merge;
use super::part::{TextPart, WorkerTables};
use super::row::EventSink;
use super::source::{Chunk, ChunkSource};
use crate::format::kineto::mark;
use crate::store::Trace;

/// The state that one worker keeps across chunks.
struct ChunkWorker {
    index: usize,
    scanner: Scanner,
    tables: WorkerTables,
    part: TextPart,
}

impl ChunkWorker {
    fn new(index: usize) -> Self {
        let (scanner, tables) = (Scanner::new(), WorkerTables::new());
        Self { index, scanner, tables, part: TextPart::default() }
    }

    fn begin(&mut self) {
        self.tables.begin();
    }
}

/// The reading position in the document, and the text of an incomplete value that waits for its
/// continuation.
struct ChunkReading {
    document: Document,
    rest: Vec<u8>,
    /// Number of bytes of `rest` that were already read without completing the value.
    tried: usize,
    /// Offset of `rest` in the uncompressed file.
    offset: u64,
}

impl ChunkReading {
    fn new() -> Self {
        Self { document: Document::new(), rest: Vec::new(), tried: 0, offset: 0 }
    }

    fn is_between_events(&self) -> bool {
        self.rest.is_empty() && self.document.is_between_events()
    }

    /// Reads a chunk, starting where the previous chunk ended.
    fn take(&mut self, chunk: &Chunk, worker: &mut ChunkWorker) {
        self.take_text(&chunk.head, worker);
        self.take_text(chunk.body(), worker);
    }

    fn take_text(&mut self, text: &[u8], worker: &mut ChunkWorker) {
        // Usually the text is parsed in place, and only an incomplete value at its end is copied.
        if self.rest.is_empty() {
            let end = self.advance(text, worker);
            self.rest.extend_from_slice(&text[end..]);
            self.tried = self.rest.len();
            return;
        }
        self.rest.extend_from_slice(text);
        // The waiting text is read again from its start, but only once it has doubled. A value of
        // any length therefore costs linear time.
        if self.rest.len() >= 2 * self.tried {
            let mut rest = std::mem::take(&mut self.rest);
            let end = self.advance(&rest, worker);
            rest.drain(..end);
            self.tried = rest.len();
            self.rest = rest;
        }
    }

    fn advance(&mut self, text: &[u8], worker: &mut ChunkWorker) -> usize {
        let ChunkWorker { scanner, tables, part, .. } = worker;
        let stretch = TextStretch { text, offset: self.offset };
        let end = self.document.advance(stretch, scanner, &mut EventSink { tables, part });
        self.offset += end as u64;
        end
    }

    fn finish(&mut self, failure: Option<&str>, worker: &mut ChunkWorker) {
        let rest = std::mem::take(&mut self.rest);
        let end = self.advance(&rest, worker);
        let ChunkWorker { scanner, tables, part, .. } = worker;
        let stretch = TextStretch { text: &rest[end..], offset: self.offset };
        self.document.finish(stretch, failure, scanner, &mut EventSink { tables, part });
    }
}

/// Reads the whole file on one thread, as one part and without guesses.
pub fn alone(mut source: ChunkSource<'_>) -> Result<Trace, NotKineto> {
    let mut worker = ChunkWorker::new(0);
    worker.begin();
    let mut reading = ChunkReading::new();
    while let Some(chunk) = source.next() {
        reading.take(&chunk, &mut worker);
        if let Some(share) = chunk.share {
            worker.part.reserve(share);
        }
        source.recycle(chunk);
    }
    conclude(reading, Merge::new(1), &mut worker, &source)
}

fn conclude(
    mut reading: ChunkReading,
    mut merge: Merge,
    worker: &mut ChunkWorker,
    source: &ChunkSource<'_>,
) -> Result<Trace, NotKineto> {
    reading.finish(source.failure(), worker);
    merge.append(worker.index, &mut worker.part);
    let cut = reading.document.take_cut();
    let mut part = TextPart::default();
    let header = reading.document.into_header(&mut part, merge.holds())?;
    merge.append(worker.index, &mut part);
    let mut trace = merge.finish(header);
    trace.origin.text_bytes = source.bytes();
    // If this file is truncated itself, that truncation is reported. Otherwise, the truncation of
    // the recording from which the file was written is reported.
    trace.cut = cut.or_else(|| mark::read(&trace.header));
    Ok(trace)
}

/// A chunk that a worker has read on the assumption that it starts between events.
struct ReadChunk {
    chunk: Chunk,
    worker: usize,
    part: TextPart,
    /// Position in the chunk at which the worker stopped, counted from the start of the head.
    end: u64,
    state: ListState,
}

/// The state that all workers share.
struct StitchShared<'a> {
    source: Mutex<ChunkSource<'a>>,
    order: Mutex<ChunkOrder>,
    progress: Condvar,
}

/// The position up to which chunks are joined, and the finished chunks that wait for their
/// predecessor.
struct ChunkOrder {
    next: u64,
    handed_out: u64,
    /// Whether a worker has left, either at the end of the source or by a panic. Once a worker has
    /// left, no more chunks are started.
    closed: bool,
    waiting: BTreeMap<u64, ReadChunk>,
    reading: ChunkReading,
    merge: Merge,
    /// The worker that reads chunks with a wrong guess again.
    repairer: ChunkWorker,
    spare: Vec<TextPart>,
}

impl<'a> StitchShared<'a> {
    fn new(source: ChunkSource<'a>, threads: usize) -> Self {
        // The repairer has its own ids, because other workers are still using theirs when a chunk
        // is read again.
        let mut repairer = ChunkWorker::new(threads);
        repairer.begin();
        let order = ChunkOrder {
            next: 0,
            handed_out: 0,
            closed: false,
            waiting: BTreeMap::new(),
            reading: ChunkReading::new(),
            merge: Merge::new(threads + 1),
            repairer,
            spare: Vec::new(),
        };
        Self { source: Mutex::new(source), order: Mutex::new(order), progress: Condvar::new() }
    }
}

/// Reads the whole file on several threads.
pub fn together(source: ChunkSource<'_>, threads: usize) -> Result<Trace, NotKineto> {
    let shared = StitchShared::new(source, threads);
    std::thread::scope(|scope| {
        for index in 1..threads {
            let shared = &shared;
            scope.spawn(move || work(shared, ChunkWorker::new(index), threads));
        }
        work(&shared, ChunkWorker::new(0), threads);
    });
    let ChunkOrder { reading, merge, mut repairer, .. } =
        shared.order.into_inner().unwrap_or_else(PoisonError::into_inner);
    let source = shared.source.into_inner().unwrap_or_else(PoisonError::into_inner);
    conclude(reading, merge, &mut repairer, &source)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notifies the other workers when a worker leaves, even by a panic. The other workers may be
/// waiting for space that its chunk would have freed.
struct Presence<'a, 'b>(&'a StitchShared<'b>);

impl Drop for Presence<'_, '_> {
    fn drop(&mut self) {
        lock(&self.0.order).closed = true;
        self.0.progress.notify_all();
    }
}

fn work(shared: &StitchShared<'_>, mut worker: ChunkWorker, threads: usize) {
    // `_presence` is dropped at the end of the function, even if the function panics.
    let _presence = Presence(shared);
    while may_start(shared, threads) {
        let Some(chunk) = lock(&shared.source).next() else { break };
        // No lock is held here, so that parsing runs in parallel.
        let done = guess(chunk, &mut worker);
        let finished = put(&mut lock(&shared.order), done);
        shared.progress.notify_all();
        worker.part = finished.1;
        let mut source = lock(&shared.source);
        finished.0.into_iter().for_each(|chunk| source.recycle(chunk));
    }
}

/// Waits until a chunk may be started, and returns `false` if no more chunks may be. Finished
/// chunks wait in memory for their predecessors, so at most two chunks per thread are in progress.
fn may_start(shared: &StitchShared<'_>, threads: usize) -> bool {
    let mut order = lock(&shared.order);
    while !order.closed && order.handed_out >= order.next + 2 * threads as u64 {
        order = shared.progress.wait(order).unwrap_or_else(PoisonError::into_inner);
    }
    order.handed_out += 1;
    !order.closed
}

/// Reads a chunk on the assumption that it starts between two events.
fn guess(chunk: Chunk, worker: &mut ChunkWorker) -> ReadChunk {
    worker.begin();
    let ChunkWorker { index, scanner, tables, part } = worker;
    let mut sink = EventSink { tables, part };
    let (mut end, mut state) = (0, ListState::Between);
    // The first chunk contains the header, so it cannot start between events.
    if chunk.index > 0 {
        let head = TextStretch { text: &chunk.head, offset: chunk.offset };
        (end, state) = events::read(head, 0, state, scanner, &mut sink);
        if end == chunk.head.len() && state == ListState::Between {
            let offset = chunk.offset + end as u64;
            let body = TextStretch { text: chunk.body(), offset };
            let (more, there) = events::read(body, 0, state, scanner, &mut sink);
            (end, state) = (end + more, there);
        }
    }
    ReadChunk { worker: *index, part: std::mem::take(part), end: end as u64, state, chunk }
}

/// Joins all chunks whose predecessors are complete, and returns memory for reuse.
fn put(order: &mut ChunkOrder, done: ReadChunk) -> (Vec<Chunk>, TextPart) {
    order.waiting.insert(done.chunk.index, done);
    let mut chunks = Vec::new();
    while let Some(mut done) = order.waiting.remove(&order.next) {
        order.next += 1;
        place(order, &mut done);
        if let Some(share) = done.chunk.share {
            order.merge.reserve(share);
        }
        order.spare.push(done.part);
        chunks.push(done.chunk);
    }
    (chunks, order.spare.pop().unwrap_or_default())
}

fn place(order: &mut ChunkOrder, done: &mut ReadChunk) {
    let ChunkOrder { reading, merge, repairer, .. } = order;
    let chunk = &done.chunk;
    // The guess was wrong: the previous chunk ended inside a value or outside the list of events.
    if chunk.index == 0 || !reading.is_between_events() {
        merge.discard(done.worker, &mut done.part);
        reading.take(chunk, repairer);
        merge.append(repairer.index, &mut repairer.part);
        repairer.begin();
        return;
    }
    merge.append(done.worker, &mut done.part);
    reading.document.move_to(done.state);
    reading.offset = chunk.offset + done.end;
    let in_head = (done.end as usize).min(chunk.head.len());
    let in_body = done.end as usize - in_head;
    let rest = [&chunk.head[in_head..], &chunk.body()[in_body..]].concat();
    if rest.is_empty() {
        return;
    }
    reading.take_text(&rest, repairer);
    merge.append(repairer.index, &mut repairer.part);
    repairer.begin();
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::{
        Chunk, ChunkReading, ChunkSource, ChunkWorker, Presence, StitchShared, lock, may_start,
    };
    use crate::format::blocks::Blocks;

    fn chunk(text: &str) -> Chunk {
        let block = text.as_bytes().to_vec();
        Chunk { body: (0, block.len()), block, ..Chunk::default() }
    }

    struct None;

    impl Blocks for None {
        fn next(&mut self, _: &mut Vec<u8>) -> std::io::Result<bool> {
            Ok(false)
        }
    }

    #[test]
    fn panicking_worker_does_not_block_the_others() {
        let mut blocks = None;
        let shared = StitchShared::new(ChunkSource::new(&mut blocks, 1), 2);
        for _ in 0..4 {
            assert!(may_start(&shared, 2));
        }
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| may_start(&shared, 2));
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                let _presence = Presence(&shared);
                let _order = lock(&shared.order);
                panic!("a worker's mistake");
            }));
            assert!(panicked.is_err() && !waiting.join().unwrap());
        });
    }

    #[test]
    fn events_after_a_long_value_are_read_incrementally() {
        let (mut reading, mut worker) = (ChunkReading::new(), ChunkWorker::new(0));
        worker.begin();
        let event = r#"{"ph": "X", "name": "a", "pid": 1, "tid": 2, "ts": 1, "dur": 1},"#;
        let events = event.repeat(1000 / event.len());
        let start =
            r#"{"traceEvents": [{"ph": "X", "name": "l", "ts": 1, "dur": 1, "args": {"x": ""#;
        let value = "x".repeat(1000);
        let end = format!(r#""}}}},{event}"#);
        let pieces = [start, &value, &value, &value, &value[..500], &end];
        for piece in pieces.into_iter().chain([events.as_str(); 80]) {
            reading.take(&chunk(piece), &mut worker);
            assert!(reading.rest.len() < 8000, "{} bytes wait", reading.rest.len());
        }
        assert!(reading.rest.is_empty());
        assert_eq!(worker.part.event_count(), 2 + 80 * (1000 / event.len()) as u64);
    }
}
