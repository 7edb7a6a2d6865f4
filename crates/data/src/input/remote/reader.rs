//! Readers of an object: parts fetched ahead by threads of their own, or one stream where a server
//! serves no ranges.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};

use super::client::TryFailure;
use super::object::Object;

/// Bytes of the first part; each is twice the one before, so that a look at the beginning is cheap.
const FIRST_PART: u64 = 256 << 10;
/// Bytes of a part at most: some 0.1 s of a gigabit per second.
const PART: u64 = 8 << 20;
/// Parts fetched at once at most. A store gives some 50 MB/s per connection.
const AHEAD: usize = 6;

impl Object {
    /// Its bytes from `start` on, some of them fetched before they are read.
    pub(crate) fn read_from(&self, start: u64) -> Box<dyn Read + Send> {
        match self.bytes() {
            Some(bytes) if self.has_ranges() => Box::new(self.range(start..bytes)),
            _ => Box::new(ObjectStream::new(self.clone(), start)),
        }
    }

    /// The bytes of `range`, some of them fetched before they are read.
    pub(crate) fn range(&self, range: Range<u64>) -> Prefetch {
        Prefetch::new(self.clone(), range)
    }
}

/// Reads a range; the parts that follow are being fetched meanwhile.
pub(crate) struct Prefetch {
    object: Object,
    /// What no thread fetches yet.
    rest: Range<u64>,
    part: u64,
    ahead: usize,
    pending: VecDeque<Receiver<io::Result<Vec<u8>>>>,
    /// The part that is being read, and how far.
    current: (Vec<u8>, usize),
    is_wanted: Arc<AtomicBool>,
}

impl Prefetch {
    pub(super) fn new(object: Object, rest: Range<u64>) -> Self {
        let (pending, current) = Default::default();
        let is_wanted = Arc::new(AtomicBool::new(true));
        Self { object, rest, part: FIRST_PART, ahead: 1, pending, current, is_wanted }
    }

    /// Starts threads for the parts that may be fetched now.
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
                // Nobody waits for it where the reader is gone.
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
            self.ahead = (self.ahead + 1).min(AHEAD);
            self.start()?;
            let bytes =
                next.recv().map_err(|_| io::Error::other("a thread that fetches ended"))??;
            self.current = (bytes, 0);
        }
        let (bytes, at) = &mut self.current;
        let read = (&bytes[*at..]).read(buffer)?;
        *at += read;
        Ok(read)
    }
}

/// Reads an object from `at` on without ranges: after a failure once more from its beginning.
pub(super) struct ObjectStream {
    object: Object,
    at: u64,
    body: Option<Box<dyn Read + Send>>,
    /// Since the last byte that has come.
    failures: u32,
}

impl ObjectStream {
    pub(super) fn new(object: Object, at: u64) -> Self {
        Self { object, at, body: None, failures: 0 }
    }

    /// The body behind the bytes that were read before.
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
        /// Streams that break off at the same byte in a row.
        const MOST: u32 = 5;
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            let mut body = self.body.take().map_or_else(|| self.open(), Ok)?;
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
