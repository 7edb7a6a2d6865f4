//! Reads and unpacks one file in a thread of its own: blocks of text through a bounded channel.
//!
//! Compression and archives are recognised by content, one inside the other. Corruption is reported
//! after what could still be unpacked. Knows nothing of JSON.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};

use schema::file_form::{self as form, FileForm};

use super::gunzip::{Gunzip, Trailing};
use crate::store::Loss;

/// Bytes of a whole block: large enough that handing over costs nothing.
pub const BLOCK: usize = 4 << 20;
/// The first blocks are smaller, so that parsing begins early and small files stay cheap.
const FIRST_BLOCK: usize = 128 << 10;
/// Bytes read from the system at a time.
const READ: usize = 256 << 10;
/// Archives and compression inside each other that are opened.
const DEPTH: usize = 4;

/// What the pump hands over.
pub enum PumpMessage {
    /// A text begins: the member of the archive.
    Begin(Option<String>),
    /// The next part of the text.
    Block(Vec<u8>),
    /// The text ends, as it should or not.
    End(Option<EarlyEnd>),
    /// A member that was not unpacked, and why.
    Skipped(String, &'static str),
    /// A failure outside of all texts.
    Failed(EarlyEnd),
    Done,
}

/// Why a text or an archive ends early.
#[derive(Debug)]
pub enum EarlyEnd {
    System(io::Error),
    /// The compressed stream or the archive ends in the middle.
    Ended(String),
    /// The compressed stream or the archive is damaged.
    Damaged(String),
    /// Something else follows the compressed stream, which is whole.
    Trailing(String),
}

impl EarlyEnd {
    /// What it is counted as, and why it came about.
    pub fn loss(&self) -> (Loss, String) {
        match self {
            Self::System(error) => (Loss::Truncated, error.to_string()),
            Self::Ended(text) => (Loss::Truncated, format!("data that ends early: {text}")),
            Self::Damaged(text) => (Loss::Damaged, format!("damaged data: {text}")),
            Self::Trailing(text) => (Loss::Damaged, text.clone()),
        }
    }
}

/// What a pump shares with who waits for it.
#[derive(Clone, Debug, Default)]
pub struct PumpShared {
    /// Compressed bytes read of this file.
    pub bytes: Arc<AtomicU64>,
    /// Compressed bytes read of all files.
    pub all_bytes: Arc<AtomicU64>,
    /// Set when nobody waits any more.
    pub stopped: Arc<AtomicBool>,
}

/// The bytes of a file or of standard input, counted, until stopped.
pub struct Input {
    /// Bytes that were read, counted and looked at.
    head: io::Cursor<Vec<u8>>,
    inner: Box<dyn Read + Send>,
    shared: PumpShared,
}

impl Input {
    /// Opens a file; `-` is standard input.
    pub fn open(path: &Path, shared: PumpShared) -> io::Result<Self> {
        let inner: Box<dyn Read + Send> = if path == Path::new("-") {
            Box::new(io::stdin())
        } else {
            Box::new(File::open(path)?)
        };
        Ok(Self { head: io::Cursor::default(), inner, shared })
    }

    /// The first bytes, which stay to be read.
    pub fn head(&mut self) -> io::Result<&[u8]> {
        let mut head = Vec::new();
        fill(self, &mut head, form::HEAD)?;
        self.head = io::Cursor::new(head);
        Ok(self.head.get_ref())
    }
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.shared.stopped.load(Ordering::Relaxed) {
            return Err(io::Error::other("stopped"));
        }
        let again = self.head.read(buffer)?;
        if again > 0 {
            return Ok(again);
        }
        let read = self.inner.read(buffer)?;
        self.shared.bytes.fetch_add(read as u64, Ordering::Relaxed);
        self.shared.all_bytes.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// Nobody listens any more.
struct Gone;

/// The sending side.
pub struct Pump {
    pub out: SyncSender<PumpMessage>,
    /// Blocks to be used again.
    pub back: Receiver<Vec<u8>>,
    /// Which members of archives to unpack.
    pub wanted: fn(&str) -> bool,
    /// Compressed bytes read so far, for messages.
    pub shared: PumpShared,
}

impl Pump {
    /// Hands over everything in `input`.
    pub fn run(mut self, mut input: Input) {
        // An error means that nobody listens any more.
        let _ = self.deliver(&mut input, None, 0).and_then(|()| self.send(PumpMessage::Done));
    }

    fn send(&self, message: PumpMessage) -> Result<(), Gone> {
        self.out.send(message).map_err(|_| Gone)
    }

    /// Hands over what a stream holds, unpacking as far as it is packed.
    fn deliver(
        &mut self,
        input: &mut dyn Read,
        member: Option<String>,
        depth: usize,
    ) -> Result<(), Gone> {
        let mut input = Peeked::new(input);
        let form = if depth < DEPTH { form::recognise(&input.head) } else { FileForm::Plain };
        match form {
            FileForm::Gzip => {
                let packed = BufReader::with_capacity(READ, input);
                let mut plain = Gunzip::new(packed);
                self.deliver(&mut plain, member, depth + 1)
            }
            FileForm::Zstd => match zstd::stream::read::Decoder::new(input) {
                Ok(mut plain) => self.deliver(&mut plain, member, depth + 1),
                Err(error) => self.send(PumpMessage::Failed(EarlyEnd::System(error))),
            },
            FileForm::Tar => self.members(&mut input, member, depth),
            // Traces are not kept so: the reader of the text names the form.
            FileForm::Bzip2 | FileForm::Xz | FileForm::Zip | FileForm::Plain => {
                self.send(PumpMessage::Begin(member))?;
                self.text(&mut input, None)
            }
        }
    }

    /// Hands over one text; `expected` bytes, where the archive says so.
    fn text(&mut self, input: &mut dyn Read, expected: Option<u64>) -> Result<(), Gone> {
        let (mut size, mut got) = (FIRST_BLOCK, 0);
        loop {
            let mut block = self.back.try_recv().unwrap_or_default();
            let error = fill(input, &mut block, size).err();
            got += block.len() as u64;
            let is_last = block.len() < size;
            if !block.is_empty() {
                self.send(PumpMessage::Block(block))?;
            }
            if let Some(error) = error {
                return self.send(PumpMessage::End(Some(self.failure(error))));
            }
            if is_last {
                let missing = expected.filter(|expected| got < *expected);
                let short =
                    |expected| EarlyEnd::Ended(format!("expected {expected} bytes, got {got}"));
                return self.send(PumpMessage::End(missing.map(short)));
            }
            size = (2 * size).min(BLOCK);
        }
    }

    /// Hands over the members of an archive.
    fn members(
        &mut self,
        input: &mut dyn Read,
        outer: Option<String>,
        depth: usize,
    ) -> Result<(), Gone> {
        let mut archive = tar::Archive::new(input);
        let entries = match archive.entries() {
            Ok(entries) => entries,
            Err(error) => return self.send(PumpMessage::Failed(self.failure(error))),
        };
        for entry in entries {
            let mut entry = match entry {
                Ok(entry) => entry,
                // What follows cannot be found either.
                Err(error) => return self.send(PumpMessage::Failed(self.failure(error))),
            };
            if !entry.header().entry_type().is_file() {
                continue;
            }
            let inner = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            // Old archives have folders that only their names tell from files.
            if is_hidden(&inner) || inner.ends_with('/') {
                continue;
            }
            let name = match &outer {
                Some(outer) => format!("{outer}/{inner}"),
                None => inner,
            };
            if !(self.wanted)(&name) {
                self.send(PumpMessage::Skipped(name, "another name than traces have"))?;
                continue;
            }
            self.entry(&mut entry, name, depth)?;
        }
        Ok(())
    }

    fn entry(
        &mut self,
        entry: &mut tar::Entry<'_, &mut dyn Read>,
        name: String,
        depth: usize,
    ) -> Result<(), Gone> {
        let size = entry.size();
        let mut entry = Peeked::new(entry);
        if form::recognise(&entry.head) == FileForm::Plain {
            self.send(PumpMessage::Begin(Some(name)))?;
            return self.text(&mut entry, Some(size));
        }
        self.deliver(&mut entry, Some(name), depth + 1)
    }

    fn failure(&self, error: io::Error) -> EarlyEnd {
        let at = self.shared.bytes.load(Ordering::Relaxed);
        // The decoders' errors have no number of the system's.
        if error.raw_os_error().is_some() {
            return EarlyEnd::System(error);
        }
        let text = format!("{error}, having read {at} bytes of the file");
        if error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<Trailing>) {
            return EarlyEnd::Trailing(text);
        }
        let ended = error.kind() == io::ErrorKind::UnexpectedEof
            || error.to_string().contains("failed to read entire block");
        if ended { EarlyEnd::Ended(text) } else { EarlyEnd::Damaged(text) }
    }
}

/// Whether a path is hidden, as the companions are that macOS packs (`._x`).
pub fn is_hidden(path: &str) -> bool {
    path.split('/').any(|part| part.starts_with('.') && part != "." && part != "..")
}

/// Makes `block` the next `size` bytes, fewer only at the end or before an error.
pub fn fill(input: &mut dyn Read, block: &mut Vec<u8>, size: usize) -> io::Result<()> {
    // A block that comes back is as long as it was filled, so little is set to zero twice.
    block.resize(size, 0);
    let mut filled = 0;
    let result = loop {
        match input.read(&mut block[filled..]) {
            Ok(0) => break Ok(()),
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => break Err(error),
        }
        if filled == size {
            break Ok(());
        }
    };
    block.truncate(filled);
    result
}

/// A stream whose first bytes are known.
struct Peeked<'a> {
    head: Vec<u8>,
    taken: usize,
    error: Option<io::Error>,
    rest: &'a mut dyn Read,
}

impl<'a> Peeked<'a> {
    fn new(rest: &'a mut dyn Read) -> Self {
        let mut head = Vec::new();
        let error = fill(rest, &mut head, form::HEAD).err();
        Self { head, taken: 0, error, rest }
    }
}

impl Read for Peeked<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = &self.head[self.taken..];
        if !left.is_empty() {
            let count = left.len().min(buffer.len());
            buffer[..count].copy_from_slice(&left[..count]);
            self.taken += count;
            return Ok(count);
        }
        match self.error.take() {
            Some(error) => Err(error),
            None => self.rest.read(buffer),
        }
    }
}
