//! Readers of an object: in parts that threads prefetch, or as one stream if the server does not
//! support ranges.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};

use super::client::TryFailure;
use super::object::Object;

/// Size of the first part of an object that is fetched. Parts double in size, so that reading only
/// the start of an object is cheap.
const FIRST_PART: u64 = 256 << 10;
/// Largest size of a part, which takes about 0.1 s at a gigabit per second.
const PART: u64 = 8 << 20;
/// Number of parts that are fetched at the same time. A store delivers only about 50 MB/s per
/// connection.
const AHEAD: usize = 6;

impl Object {
    /// Returns a reader of the object from byte `start` on, which prefetches if the server allows
    /// it.
    pub(crate) fn read_from(&self, start: u64) -> Box<dyn Read + Send> {
        match self.bytes() {
            Some(bytes) if self.has_ranges() => Box::new(self.range(start..bytes)),
            _ => Box::new(ObjectStream::new(self.clone(), start)),
        }
    }

    /// Returns a prefetching reader of the bytes `range`.
    pub(crate) fn range(&self, range: Range<u64>) -> Prefetch {
        Prefetch::new(self.clone(), range)
    }
}

/// Reads a range of an object while threads fetch the parts that follow.
pub(crate) struct Prefetch {
    object: Object,
    /// The part of the range that no thread has started to fetch.
    rest: Range<u64>,
    part: u64,
    ahead: usize,
    pending: VecDeque<Receiver<io::Result<Vec<u8>>>>,
    /// Bytes of the part being read, and the position within them.
    current: (Vec<u8>, usize),
    is_wanted: Arc<AtomicBool>,
}

impl Prefetch {
    pub(super) fn new(object: Object, rest: Range<u64>) -> Self {
        let (pending, current) = Default::default();
        let is_wanted = Arc::new(AtomicBool::new(true));
        Self { object, rest, part: FIRST_PART, ahead: 1, pending, current, is_wanted }
    }

    /// Starts threads that fetch further parts, up to the limit of parts in flight.
    fn start(&mut self) -> io::Result<()> {
        while self.pending.len() < self.ahead && !self.rest.is_empty() {
            let end = self.rest.end.min(self.rest.start.saturating_add(self.part));
            let range = self.rest.start..end;
            self.rest.start = end;
            self.part = (2 * self.part).min(PART);
            let (send, receive) = sync_channel(1);
            let (object, is_wanted) = (self.object.clone(), Arc::clone(&self.is_wanted));
            let fetch = move || {
                let mut bytes = Vec::with_capacity((range.end - range.start) as usize);
                let wanted = || is_wanted.load(Ordering::Relaxed);
                let fetched = object.fetch(range, &mut bytes, &wanted).map(|_| bytes);
                // The send fails if the reader was dropped.
                let _ = send.send(fetched);
            };
            std::thread::Builder::new().name("fetch".to_owned()).spawn(fetch)?;
            self.pending.push_back(receive);
        }
        Ok(())
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        self.is_wanted.store(false, Ordering::Relaxed);
    }
}

impl Read for Prefetch {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (bytes, at) = &self.current;
        if *at == bytes.len() && !buffer.is_empty() {
            self.start()?;
            let Some(next) = self.pending.pop_front() else { return Ok(0) };
            // The number of parts in flight grows as reading goes on, so that a short read stays
            // cheap.
            self.ahead = (self.ahead + 1).min(AHEAD);
            self.start()?;
            let bytes = next.recv().map_err(|_| io::Error::other("a fetching thread ended"))??;
            self.current = (bytes, 0);
        }
        let (bytes, at) = &mut self.current;
        let read = (&bytes[*at..]).read(buffer)?;
        *at += read;
        Ok(read)
    }
}

/// Reads an object as one stream, for servers without ranges. After a failure it starts over and
/// skips what it has delivered.
pub(super) struct ObjectStream {
    object: Object,
    at: u64,
    body: Option<Box<dyn Read + Send>>,
    /// Failures since the last byte arrived.
    failures: u32,
}

impl ObjectStream {
    pub(super) fn new(object: Object, at: u64) -> Self {
        Self { object, at, body: None, failures: 0 }
    }

    /// Requests the object and skips the bytes before `at`.
    fn open(&self) -> io::Result<Box<dyn Read + Send>> {
        self.object.retry(|_| {
            let mut body = self.object.stream()?;
            let passing = |error: io::Error| TryFailure::Passing(error.to_string());
            let passed = io::copy(&mut body.by_ref().take(self.at), &mut io::sink());
            if passed.map_err(passing)? < self.at {
                return Err(TryFailure::Passing(format!(
                    "the answer ended before byte {}",
                    self.at
                )));
            }
            Ok(Box::new(body) as Box<dyn Read + Send>)
        })
    }
}

impl Read for ObjectStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        /// Largest number of consecutive streams that may break off at the same byte.
        const MOST: u32 = 5;
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            let mut body = self.body.take().map_or_else(|| self.open(), Ok)?;
            // An end before the known length means that the connection broke off.
            let is_short = self.object.bytes().is_some_and(|bytes| self.at < bytes);
            match body.read(buffer) {
                Ok(0) if is_short => {}
                Ok(read) => {
                    self.at += read as u64;
                    self.failures = 0;
                    self.body = Some(body);
                    return Ok(read);
                }
                Err(error) if self.failures >= MOST => return Err(error),
                Err(_) => {}
            }
            if self.failures >= MOST {
                let problem = format!("the answer ended at byte {}", self.at);
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, problem));
            }
            self.failures += 1;
        }
    }
}
