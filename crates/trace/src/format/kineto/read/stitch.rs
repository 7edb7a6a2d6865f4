//! Joins chunks parsed by several workers in the order of the file.
//!
//! A worker assumes that its chunk starts between two events. That holds if the previous chunk
//! ended there, which is checked when chunks are joined; otherwise the chunk is read again from
//! that end. So every byte is parsed in the state left by all bytes before it, whatever was
//! guessed.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::document::{Document, NotKineto};
use super::events::{self, Scanner, State, Stretch};
use super::merge::Merge;
use super::part::{Part, Tables};
use super::row::Sink;
use super::source::{Chunk, Source};
use crate::format::kineto::mark;
use crate::store::Trace;

/// State of one worker across chunks.
struct Worker {
    index: usize,
    scanner: Scanner,
    tables: Tables,
    part: Part,
}

impl Worker {
    fn new(index: usize) -> Self {
        let (scanner, tables) = (Scanner::new(), Tables::new());
        Self { index, scanner, tables, part: Part::default() }
    }

    fn begin(&mut self) {
        self.tables.begin();
    }
}

/// The text read so far, and what of it waits for more.
struct Reading {
    document: Document,
    rest: Vec<u8>,
    /// Bytes of `rest` that were read in vain.
    tried: usize,
    /// Bytes of the file before `rest`.
    offset: u64,
}

impl Reading {
    fn new() -> Self {
        Self { document: Document::new(), rest: Vec::new(), tried: 0, offset: 0 }
    }

    fn is_between_events(&self) -> bool {
        self.rest.is_empty() && self.document.is_between_events()
    }

    /// Reads a chunk from where the one before it ended.
    fn take(&mut self, chunk: &Chunk, worker: &mut Worker) {
        self.take_text(&chunk.head, worker);
        self.take_text(chunk.body(), worker);
    }

    fn take_text(&mut self, text: &[u8], worker: &mut Worker) {
        if self.rest.is_empty() {
            let end = self.advance(text, worker);
            self.rest.extend_from_slice(&text[end..]);
            self.tried = self.rest.len();
            return;
        }
        self.rest.extend_from_slice(text);
        // What waits is read again from its start: only when it has doubled, so that a value of any
        // length costs time in proportion.
        if self.rest.len() >= 2 * self.tried {
            let mut rest = std::mem::take(&mut self.rest);
            let end = self.advance(&rest, worker);
            rest.drain(..end);
            self.tried = rest.len();
            self.rest = rest;
        }
    }

    fn advance(&mut self, text: &[u8], worker: &mut Worker) -> usize {
        let Worker { scanner, tables, part, .. } = worker;
        let stretch = Stretch { text, offset: self.offset };
        let end = self.document.advance(stretch, (scanner, &mut Sink { tables, part }));
        self.offset += end as u64;
        end
    }

    fn finish(&mut self, failure: Option<&str>, worker: &mut Worker) {
        let rest = std::mem::take(&mut self.rest);
        let end = self.advance(&rest, worker);
        let Worker { scanner, tables, part, .. } = worker;
        let stretch = Stretch { text: &rest[end..], offset: self.offset };
        self.document.finish(stretch, failure, (scanner, &mut Sink { tables, part }));
    }
}

/// Reads everything on one thread: one part, no guesses.
pub fn alone(mut source: Source<'_>) -> Result<Trace, NotKineto> {
    let mut worker = Worker::new(0);
    worker.begin();
    let mut reading = Reading::new();
    while let Some(chunk) = source.next() {
        reading.take(&chunk, &mut worker);
        if let Some(share) = chunk.share {
            worker.part.make_room(share);
        }
        source.recycle(chunk);
    }
    conclude(reading, Merge::new(1), &mut worker, &source)
}

fn conclude(
    mut reading: Reading,
    mut merge: Merge,
    worker: &mut Worker,
    source: &Source<'_>,
) -> Result<Trace, NotKineto> {
    reading.finish(source.failure(), worker);
    merge.append(worker.index, &mut worker.part);
    let cut = reading.document.take_cut();
    let mut part = Part::default();
    let header = reading.document.into_header(&mut part, merge.holds())?;
    merge.append(worker.index, &mut part);
    let mut trace = merge.finish(header);
    trace.origin.text_bytes = source.bytes();
    trace.cut = cut.or_else(|| mark::read(&trace.header));
    Ok(trace)
}

/// A chunk a worker has read on its guess.
struct Done {
    chunk: Chunk,
    worker: usize,
    part: Part,
    /// How far it came, in head and body together, and what is there.
    end: u64,
    state: State,
}

/// State shared by the workers.
struct Shared<'a> {
    source: Mutex<Source<'a>>,
    order: Mutex<Order>,
    progress: Condvar,
}

/// What has been put in its place, and what waits for that.
struct Order {
    next: u64,
    handed_out: u64,
    /// Whether a worker has left, at the source's end or in a panic: no more chunks are begun.
    closed: bool,
    waiting: BTreeMap<u64, Done>,
    reading: Reading,
    merge: Merge,
    /// Reads again what was guessed wrong.
    repairer: Worker,
    spare: Vec<Part>,
}

impl<'a> Shared<'a> {
    fn new(source: Source<'a>, threads: usize) -> Self {
        let mut repairer = Worker::new(threads);
        repairer.begin();
        let order = Order {
            next: 0,
            handed_out: 0,
            closed: false,
            waiting: BTreeMap::new(),
            reading: Reading::new(),
            merge: Merge::new(threads + 1),
            repairer,
            spare: Vec::new(),
        };
        Self { source: Mutex::new(source), order: Mutex::new(order), progress: Condvar::new() }
    }
}

/// Reads everything on several threads.
pub fn together(source: Source<'_>, threads: usize) -> Result<Trace, NotKineto> {
    let shared = Shared::new(source, threads);
    std::thread::scope(|scope| {
        for index in 1..threads {
            let shared = &shared;
            scope.spawn(move || work(shared, Worker::new(index), threads));
        }
        work(&shared, Worker::new(0), threads);
    });
    let Order { reading, merge, mut repairer, .. } =
        shared.order.into_inner().unwrap_or_else(PoisonError::into_inner);
    let source = shared.source.into_inner().unwrap_or_else(PoisonError::into_inner);
    conclude(reading, merge, &mut repairer, &source)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells the other workers when one leaves, be it in a panic: they may wait for room that its chunk
/// will never make.
struct Presence<'a, 'b>(&'a Shared<'b>);

impl Drop for Presence<'_, '_> {
    fn drop(&mut self) {
        lock(&self.0.order).closed = true;
        self.0.progress.notify_all();
    }
}

fn work(shared: &Shared<'_>, mut worker: Worker, threads: usize) {
    let _presence = Presence(shared);
    while has_room(shared, threads) {
        let Some(chunk) = lock(&shared.source).next() else { break };
        let done = guess(chunk, &mut worker);
        let finished = put(&mut lock(&shared.order), done);
        shared.progress.notify_all();
        worker.part = finished.1;
        let mut source = lock(&shared.source);
        finished.0.into_iter().for_each(|chunk| source.recycle(chunk));
    }
}

/// Waits until a chunk may be begun; `false` if none will. Chunks wait in memory for those before
/// them: no more than two per thread are under way.
fn has_room(shared: &Shared<'_>, threads: usize) -> bool {
    let mut order = lock(&shared.order);
    while !order.closed && order.handed_out >= order.next + 2 * threads as u64 {
        order = shared.progress.wait(order).unwrap_or_else(PoisonError::into_inner);
    }
    order.handed_out += 1;
    !order.closed
}

/// Reads a chunk as if it started between two events.
fn guess(chunk: Chunk, worker: &mut Worker) -> Done {
    worker.begin();
    let Worker { index, scanner, tables, part } = worker;
    let mut sink = Sink { tables, part };
    let (mut end, mut state) = (0, State::Between);
    if chunk.index > 0 {
        let head = Stretch { text: &chunk.head, offset: chunk.offset };
        (end, state) = events::read(head, 0, state, (scanner, &mut sink));
        if end == chunk.head.len() && state == State::Between {
            let offset = chunk.offset + end as u64;
            let body = Stretch { text: chunk.body(), offset };
            let (more, there) = events::read(body, 0, state, (scanner, &mut sink));
            (end, state) = (end + more, there);
        }
    }
    Done { worker: *index, part: std::mem::take(part), end: end as u64, state, chunk }
}

/// Puts chunks in their places, as far as none is missing. Gives back memory.
fn put(order: &mut Order, done: Done) -> (Vec<Chunk>, Part) {
    order.waiting.insert(done.chunk.index, done);
    let mut chunks = Vec::new();
    while let Some(mut done) = order.waiting.remove(&order.next) {
        order.next += 1;
        place(order, &mut done);
        if let Some(share) = done.chunk.share {
            order.merge.make_room(share);
        }
        order.spare.push(done.part);
        chunks.push(done.chunk);
    }
    (chunks, order.spare.pop().unwrap_or_default())
}

fn place(order: &mut Order, done: &mut Done) {
    let Order { reading, merge, repairer, .. } = order;
    let chunk = &done.chunk;
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

    use super::{Chunk, Presence, Reading, Shared, Source, Worker, has_room, lock};
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
    fn no_worker_waits_for_one_that_panicked() {
        let mut blocks = None;
        let shared = Shared::new(Source::new(&mut blocks, 1), 2);
        for _ in 0..4 {
            assert!(has_room(&shared, 2));
        }
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| has_room(&shared, 2));
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                let _presence = Presence(&shared);
                let _order = lock(&shared.order);
                panic!("a worker's mistake");
            }));
            assert!(panicked.is_err() && !waiting.join().unwrap());
        });
    }

    #[test]
    fn events_behind_a_long_value_are_read_as_they_come() {
        let (mut reading, mut worker) = (Reading::new(), Worker::new(0));
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
