//! Reads the texts of one file one after the other, each in blocks.
//!
//! The parser's thread reads an uncompressed file itself. A [`Pump`] unpacks a compressed file in a
//! separate thread, a few blocks ahead of the parser.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use schema::file_format::{self, FileFormat};

use super::pump::{self, EarlyEnd, Input, Pump, PumpMessage, PumpShared};
use crate::format::blocks::Blocks;

/// Block size for an uncompressed file in bytes. A block fits the processor's cache.
const PLAIN_BLOCK: usize = 1 << 20;
/// Largest number of unpacked blocks that wait for the parser.
const WAITING: usize = 2;
/// Interval at which a waiting parser checks for cancellation.
const CANCEL_POLL: Duration = Duration::from_millis(20);

/// The next part of a file, as [`TextStream::part`] returns it.
pub enum StreamPart {
    /// A text begins, and its blocks follow. The string is the name of the archive member that
    /// contains the text.
    Text(Option<String>),
    /// A member of an archive was not unpacked. The values are the member's name and the reason.
    Skipped(String, &'static str),
    Failed(EarlyEnd),
    /// The file has ended, or the reading was cancelled.
    Done,
}

/// The texts of one file, unpacked if the file is compressed or an archive.
pub struct TextStream<'a> {
    source: TextSource,
    shared: PumpShared,
    reader: StreamReader<'a>,
    /// A block that was examined by [`TextStream::head`] and is still to be returned.
    ahead: Option<Vec<u8>>,
    state: StreamState,
    failure: Option<EarlyEnd>,
    text_bytes: u64,
    /// Size of the file on disk in bytes, or `None` if the text is a member of an archive and so
    /// ends before the file.
    file_bytes: Option<u64>,
}

/// The position of a stream relative to the current text.
#[derive(Clone, Copy)]
enum StreamState {
    Before,
    Inside,
    After,
    Over,
}

/// The source of a stream: a file that is read directly, or an unpacking thread.
enum TextSource {
    Plain(Input),
    Pumped { messages: Receiver<PumpMessage>, back: Sender<Vec<u8>> },
}

/// The reader's side of a stream: selection of members, cancellation and progress.
#[derive(Clone, Copy)]
pub struct StreamReader<'a> {
    /// Whether an archive member with this name is unpacked.
    pub wanted: fn(&str) -> bool,
    /// If this flag is set, all streams end.
    pub cancelled: &'a AtomicBool,
    pub progress: &'a (dyn Fn() + Sync),
}

impl<'a> TextStream<'a> {
    /// Opens a file, or standard input if the path is `-`.
    pub fn open(path: &Path, shared: PumpShared, reader: StreamReader<'a>) -> io::Result<Self> {
        let mut input = Input::open(path, shared.clone())?;
        let regular = match path == Path::new("-") {
            true => None,
            false => Some(fs::metadata(path)?).filter(fs::Metadata::is_file),
        };
        // A parser that waits for a pipe could not be cancelled, so only regular files are read
        // directly.
        let source = if regular.is_some()
            && file_format::detect_format(input.head()?) == FileFormat::Plain
        {
            TextSource::Plain(input)
        } else {
            let (out, messages) = mpsc::sync_channel(WAITING);
            let (back, returned) = mpsc::channel();
            let pump = Pump { out, back: returned, wanted: reader.wanted, shared: shared.clone() };
            std::thread::Builder::new().name("unpack".to_owned()).spawn(move || pump.run(input))?;
            TextSource::Pumped { messages, back }
        };
        Ok(Self {
            source,
            shared,
            reader,
            ahead: None,
            state: StreamState::Before,
            failure: None,
            text_bytes: 0,
            file_bytes: regular.map(|file| file.len()),
        })
    }

    /// Skips the rest of the current text, and returns the next part of the file.
    pub fn part(&mut self) -> StreamPart {
        self.drain();
        if let (TextSource::Plain(_), StreamState::Before) = (&self.source, self.state) {
            self.begin();
            return StreamPart::Text(None);
        }
        loop {
            match self.message() {
                Some(PumpMessage::Begin(member)) => {
                    self.begin();
                    // The size of an archive says nothing about the size of one of its members.
                    if member.is_some() {
                        self.file_bytes = None;
                    }
                    return StreamPart::Text(member);
                }
                Some(PumpMessage::Skipped(member, reason)) => {
                    return StreamPart::Skipped(member, reason);
                }
                Some(PumpMessage::Failed(failure)) => return StreamPart::Failed(failure),
                Some(PumpMessage::Block(_) | PumpMessage::End(_)) => {}
                Some(PumpMessage::Done) | None => {
                    self.state = StreamState::Over;
                    return StreamPart::Done;
                }
            }
        }
    }

    fn begin(&mut self) {
        self.state = StreamState::Inside;
        self.text_bytes = 0;
    }

    /// Returns how many bytes of the current text were returned so far.
    pub fn text_bytes(&self) -> u64 {
        self.text_bytes
    }

    /// Returns the first block of the current text without consuming it.
    pub fn head(&mut self) -> &[u8] {
        if self.ahead.is_none() {
            let mut block = Vec::new();
            self.pull(&mut block);
            self.ahead = Some(block);
        }
        self.ahead.as_deref().unwrap_or_default()
    }

    /// Skips the rest of the current text. If the text ended too early, the reason for that is
    /// returned.
    pub fn finish(&mut self) -> Option<EarlyEnd> {
        self.drain();
        self.failure.take()
    }

    fn drain(&mut self) {
        self.ahead = None;
        let mut block = Vec::new();
        while self.pull(&mut block) {}
    }

    /// Replaces `block` by the next part of the current text. Returns `false` at the end of the
    /// text.
    fn pull(&mut self, block: &mut Vec<u8>) -> bool {
        block.clear();
        if !matches!(self.state, StreamState::Inside)
            || self.reader.cancelled.load(Ordering::Relaxed)
        {
            return false;
        }
        if let TextSource::Plain(input) = &mut self.source {
            if let Err(error) = pump::fill(input, block, PLAIN_BLOCK) {
                self.failure = Some(EarlyEnd::System(error));
            }
        } else {
            match self.message() {
                Some(PumpMessage::Block(full)) => {
                    let empty = std::mem::replace(block, full);
                    if let TextSource::Pumped { back, .. } = &self.source {
                        // Sending fails if the unpacking thread has already ended, which does no
                        // harm.
                        let _ = back.send(empty);
                    }
                }
                Some(PumpMessage::End(failure)) => self.failure = failure,
                _ => {}
            }
        }
        self.text_bytes += block.len() as u64;
        (self.reader.progress)();
        if block.is_empty() {
            self.state = StreamState::After;
        }
        !block.is_empty()
    }

    /// Waits for the next message of the unpacking thread. Returns `None` if there is no such
    /// thread, if it is done, or if the reading was cancelled.
    fn message(&self) -> Option<PumpMessage> {
        let TextSource::Pumped { messages, .. } = &self.source else { return None };
        if matches!(self.state, StreamState::Over) {
            return None;
        }
        while !self.reader.cancelled.load(Ordering::Relaxed) {
            match messages.recv_timeout(CANCEL_POLL) {
                Ok(message) => return Some(message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let is_cancelled = self.reader.cancelled.load(Ordering::Relaxed);
        assert!(is_cancelled, "the unpacking thread ended without a message");
        None
    }
}

impl Blocks for TextStream<'_> {
    fn next(&mut self, block: &mut Vec<u8>) -> io::Result<bool> {
        if let Some(ahead) = self.ahead.take() {
            *block = ahead;
            return Ok(!block.is_empty());
        }
        Ok(self.pull(block))
    }

    fn share(&self) -> Option<f64> {
        // A compressed file is read a few blocks ahead of the parser, so its share is too large at
        // first.
        let read = match self.source {
            TextSource::Plain(_) => self.text_bytes,
            TextSource::Pumped { .. } => self.shared.bytes.load(Ordering::Relaxed),
        };
        Some(read as f64 / self.file_bytes? as f64)
    }
}

impl Drop for TextStream<'_> {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
    }
}
