//! Reads and decompresses one file in a separate thread, and sends blocks of text through a bounded
//! channel.
//!
//! Compressed streams and archives are detected by content, even inside each other. Corruption is
//! reported after everything that could be decompressed.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};

use schema::file_format::{self, FileFormat};

use super::gunzip::{Gunzip, Trailing};
use crate::store::Loss;

/// Size of a full block in bytes, which is large enough to make the cost of a channel message
/// negligible.
pub const BLOCK: usize = 4 << 20;
/// Size of the first block in bytes, which is smaller so that parsing starts early and small files
/// stay cheap.
const FIRST_BLOCK: usize = 128 << 10;
/// Number of compressed bytes that are read from the file at a time.
const READ: usize = 256 << 10;
/// Largest number of archives and compressed streams that may be nested in each other.
const DEPTH: usize = 4;

/// A message from the unpacking thread to the parser.
pub enum PumpMessage {
    /// A text begins. The string is the name of the archive member that contains the text.
    Begin(Option<String>),
    Block(Vec<u8>),
    /// The text ends. The value is the reason if the text ended too early.
    End(Option<EarlyEnd>),
    /// A member was not unpacked. The values are the member's name and the reason.
    Skipped(String, &'static str),
    Failed(EarlyEnd),
    Done,
}

/// The reason why a text or an archive ends too early.
#[derive(Debug)]
pub enum EarlyEnd {
    System(io::Error),
    /// The compressed stream or the archive is truncated.
    Ended(String),
    Damaged(String),
    /// Other data follows the end of the compressed stream.
    Trailing(String),
}

impl EarlyEnd {
    /// Returns the kind of loss and its description.
    pub fn loss(&self) -> (Loss, String) {
        match self {
            Self::System(error) => (Loss::Truncated, error.to_string()),
            Self::Ended(text) => (Loss::Truncated, format!("data that ends early: {text}")),
            Self::Damaged(text) => (Loss::Damaged, format!("damaged data: {text}")),
            Self::Trailing(text) => (Loss::Damaged, text.clone()),
        }
    }
}

/// State that the unpacking thread shares with the parser.
#[derive(Clone, Debug, Default)]
pub struct PumpShared {
    pub bytes: Arc<AtomicU64>,
    pub all_bytes: Arc<AtomicU64>,
    /// The parser sets this flag when it needs no more blocks.
    pub stopped: Arc<AtomicBool>,
}

/// Counts the bytes of a file or of standard input as they are read, and fails once the parser has
/// stopped.
pub struct Input {
    /// The first bytes, which were read to detect the format and are returned again.
    head: io::Cursor<Vec<u8>>,
    inner: Box<dyn Read + Send>,
    shared: PumpShared,
}

impl Input {
    /// Opens a file, or standard input if the path is `-`.
    pub fn open(path: &Path, shared: PumpShared) -> io::Result<Self> {
        let inner: Box<dyn Read + Send> = if path == Path::new("-") {
            Box::new(io::stdin())
        } else {
            Box::new(File::open(path)?)
        };
        Ok(Self { head: io::Cursor::default(), inner, shared })
    }

    /// Returns the first bytes without consuming them.
    pub fn head(&mut self) -> io::Result<&[u8]> {
        let mut head = Vec::new();
        fill(self, &mut head, file_format::HEAD_BYTES)?;
        self.head = io::Cursor::new(head);
        Ok(self.head.get_ref())
    }
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // The decoders cannot be cancelled, so a read error is used to end them.
        if self.shared.stopped.load(Ordering::Relaxed) {
            return Err(io::Error::other("stopped"));
        }
        // The first bytes were taken from the input for detection, and they are returned before the
        // rest.
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

/// The error of sending a message after the receiver has disconnected.
struct Gone;

/// The unpacking thread's side of the channel.
pub struct Pump {
    pub out: SyncSender<PumpMessage>,
    /// Receives used blocks from the parser, so that their memory is reused.
    pub back: Receiver<Vec<u8>>,
    /// Whether an archive member with this name is unpacked.
    pub wanted: fn(&str) -> bool,
    /// The state shared with the parser. The byte count in it serves as the position in error
    /// messages.
    pub shared: PumpShared,
}

impl Pump {
    /// Unpacks the whole input and sends it to the parser.
    pub fn run(mut self, mut input: Input) {
        // The only possible error is that the receiver has disconnected, so it is ignored.
        let _ = self.deliver(&mut input, None, 0).and_then(|()| self.send(PumpMessage::Done));
    }

    fn send(&self, message: PumpMessage) -> Result<(), Gone> {
        self.out.send(message).map_err(|_| Gone)
    }

    /// Sends the content of a stream, and unpacks nested streams and archives recursively.
    fn deliver(
        &mut self,
        input: &mut dyn Read,
        member: Option<String>,
        depth: usize,
    ) -> Result<(), Gone> {
        let mut input = Peeked::new(input);
        // The depth limit stops the unpacking of files that contain themselves.
        let form =
            if depth < DEPTH { file_format::detect_format(&input.head) } else { FileFormat::Plain };
        match form {
            FileFormat::Gzip => {
                let packed = BufReader::with_capacity(READ, input);
                let mut plain = Gunzip::new(packed);
                self.deliver(&mut plain, member, depth + 1)
            }
            FileFormat::Zstd => match zstd::stream::read::Decoder::new(input) {
                Ok(mut plain) => self.deliver(&mut plain, member, depth + 1),
                Err(error) => self.send(PumpMessage::Failed(EarlyEnd::System(error))),
            },
            FileFormat::Tar => self.members(&mut input, member, depth),
            // PyTorch traces are not compressed in these formats. The text is passed on unchanged,
            // and its reader reports the format.
            FileFormat::Bzip2 | FileFormat::Xz | FileFormat::Zip | FileFormat::Plain => {
                self.send(PumpMessage::Begin(member))?;
                self.text(&mut input, None)
            }
        }
    }

    /// Sends one text in blocks. `expected` is the length of the text according to the archive.
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
                // The `tar` crate ends a member of a truncated archive without an error, so the
                // length must be checked here.
                let missing = expected.filter(|expected| got < *expected);
                let short =
                    |expected| EarlyEnd::Ended(format!("expected {expected} bytes, got {got}"));
                return self.send(PumpMessage::End(missing.map(short)));
            }
            size = (2 * size).min(BLOCK);
        }
    }

    /// Sends the members of an archive one after the other.
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
                // After a damaged header, the positions of later members are unknown.
                Err(error) => return self.send(PumpMessage::Failed(self.failure(error))),
            };
            if !entry.header().entry_type().is_file() {
                continue;
            }
            let inner = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            // In old archives, only the trailing slash of the name marks a folder.
            if is_hidden(&inner) || inner.ends_with('/') {
                continue;
            }
            let name = match &outer {
                Some(outer) => format!("{outer}/{inner}"),
                None => inner,
            };
            if !(self.wanted)(&name) {
                self.send(PumpMessage::Skipped(name, "not a trace by its name"))?;
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
        if file_format::detect_format(&entry.head) == FileFormat::Plain {
            self.send(PumpMessage::Begin(Some(name)))?;
            return self.text(&mut entry, Some(size));
        }
        self.deliver(&mut entry, Some(name), depth + 1)
    }

    fn failure(&self, error: io::Error) -> EarlyEnd {
        let at = self.shared.bytes.load(Ordering::Relaxed);
        // Errors of the decoders have no error number of the operating system.
        if error.raw_os_error().is_some() {
            return EarlyEnd::System(error);
        }
        let text = format!("{error}, having read {at} bytes of the file");
        if error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<Trailing>) {
            return EarlyEnd::Trailing(text);
        }
        let ended = error.kind() == io::ErrorKind::UnexpectedEof
            // The `tar` crate reports a truncated header by this text, and the error kind does not
            // tell it apart from other errors.
            || error.to_string().contains("failed to read entire block");
        if ended { EarlyEnd::Ended(text) } else { EarlyEnd::Damaged(text) }
    }
}

/// Whether a path has a hidden component, such as the companion files of macOS (`._x`).
pub fn is_hidden(path: &str) -> bool {
    path.split('/').any(|part| part.starts_with('.') && part != "." && part != "..")
}

/// Fills `block` with the next `size` bytes. The block is shorter only at the end of the input or
/// before an error.
pub fn fill(input: &mut dyn Read, block: &mut Vec<u8>, size: usize) -> io::Result<()> {
    // A reused block still has its old length, so only few bytes must be set to zero again.
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

/// A stream whose first bytes were read ahead to detect its format.
struct Peeked<'a> {
    head: Vec<u8>,
    taken: usize,
    error: Option<io::Error>,
    rest: &'a mut dyn Read,
}

impl<'a> Peeked<'a> {
    fn new(rest: &'a mut dyn Read) -> Self {
        let mut head = Vec::new();
        let error = fill(rest, &mut head, file_format::HEAD_BYTES).err();
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
