//! Identifies the content of inputs: which file on disk or which version of an object was read,
//! with a hash of its bytes. Later runs use this record to check whether a file still has the
//! content that was prepared.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3Default;

use crate::checksum::Fingerprint;
use crate::error::Error;
use crate::input::remote::{Object, is_remote};

/// Resolution of file timestamps. Two changes within this time may leave a file with the same
/// timestamps, because the coarsest file systems count in steps of two seconds.
const TICK_NS: i128 = 2_000_000_000;
/// Block size for reading a file that is only hashed.
const PIECE: usize = 1 << 20;

/// Identity and hash of one input file at the time it was read. This record is saved with a
/// preparation and in checkpoints, so that later runs can recognize the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputOrigin {
    /// The path or URL as the user gave it.
    pub path: String,
    identity: FileIdentity,
    /// Time at which `identity` was recorded, in nanoseconds since 1970, which is before the first
    /// byte was read.
    seen_ns: i128,
    /// XXH3-128 of the bytes on disk; `None` unless the whole file was read in order.
    fingerprint: Option<Fingerprint>,
    /// Length and hash of the bytes before an interruption, if reading was interrupted.
    start: Option<HashedPrefix>,
}

/// Metadata of a file that changes with its content. For an object, only length and version are
/// set; the other numbers are 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FileIdentity {
    device: u64,
    inode: u64,
    bytes: u64,
    modified_ns: i128,
    changed_ns: i128,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<String>,
}

/// Length and hash of the bytes at the start of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct HashedPrefix {
    bytes: u64,
    fingerprint: Fingerprint,
}

impl FileIdentity {
    /// Reads the identity from a file's metadata. Returns `None` for anything but a regular file,
    /// because pipes and devices cannot be read twice.
    fn from_metadata(about: &Metadata) -> Option<Self> {
        let ns = |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
        about.is_file().then(|| Self {
            device: about.dev(),
            inode: about.ino(),
            bytes: about.len(),
            modified_ns: ns(about.mtime(), about.mtime_nsec()),
            changed_ns: ns(about.ctime(), about.ctime_nsec()),
            version: None,
        })
    }

    /// Reads the identity of an object. Returns `None` if the server reports no length or no
    /// version.
    fn from_object(object: &Object) -> Option<Self> {
        let (bytes, version) = (object.bytes()?, Some(object.version()?.to_owned()));
        let (device, inode, modified_ns, changed_ns) = Default::default();
        Some(Self { device, inode, bytes, modified_ns, changed_ns, version })
    }
}

/// Reader of a file or object from its start.
type ContentReader = Box<dyn Read + Send>;

impl InputOrigin {
    /// Opens `path` and records its identity. Returns `None` for anything but regular files and
    /// objects with a version.
    fn open(path: &str) -> Result<Option<(ContentReader, Self)>, Error> {
        let failed = || Error::open(Path::new(path));
        if is_remote(path) {
            let object = Object::open(path).map_err(failed())?;
            return Ok(Self::from_object(path, &object).map(|origin| (object.read_from(0), origin)));
        }
        let file = File::open(path).map_err(failed())?;
        Ok(Self::record_file(path, &file)?.map(|origin| (Box::new(file) as _, origin)))
    }

    fn record_file(path: &str, file: &File) -> Result<Option<Self>, Error> {
        let about = file.metadata().map_err(Error::open(Path::new(path)))?;
        Ok(FileIdentity::from_metadata(&about).map(|identity| Self::with_identity(path, identity)))
    }

    fn from_object(path: &str, object: &Object) -> Option<Self> {
        FileIdentity::from_object(object).map(|identity| Self::with_identity(path, identity))
    }

    fn with_identity(path: &str, identity: FileIdentity) -> Self {
        let (path, seen_ns) = (path.to_owned(), now_ns());
        Self { path, identity, seen_ns, fingerprint: None, start: None }
    }

    /// Reads and hashes the whole file `path`, reporting the bytes read to `progress`. Returns
    /// `None` for anything but a regular file.
    ///
    /// # Errors
    /// Returns [`Error::Open`] or [`Error::Read`].
    pub fn read(path: &str, progress: &mut dyn FnMut(u64)) -> Result<Option<Self>, Error> {
        let Some((mut file, mut origin)) = Self::open(path)? else { return Ok(None) };
        let hashed =
            hash_reader(&mut file, u64::MAX, progress).map_err(Error::read(Path::new(path)))?;
        origin.fingerprint = Some(Fingerprint(hashed.hash.digest128()));
        Ok(Some(origin))
    }

    /// Returns the length of the file in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.identity.bytes
    }

    /// Whether the content is certainly unchanged, which is determined without reading the file.
    /// The path must still lead to the same file with the same length and timestamps. The
    /// timestamps must have been so old when they were recorded that any later change has altered
    /// them. For an object, the server must report the same version.
    #[must_use]
    pub fn is_untouched(&self) -> bool {
        if is_remote(&self.path) {
            let now = Object::open(&self.path).ok().as_ref().and_then(FileIdentity::from_object);
            return now.as_ref() == Some(&self.identity);
        }
        let identity =
            std::fs::metadata(&self.path).ok().as_ref().and_then(FileIdentity::from_metadata);
        identity.as_ref() == Some(&self.identity) && self.is_settled()
    }

    fn is_settled(&self) -> bool {
        self.identity.changed_ns + TICK_NS < self.seen_ns
    }

    /// Tells whether both files were hashed as a whole and have the same bytes.
    #[must_use]
    pub fn has_content_of(&self, other: &Self) -> bool {
        self.identity.bytes == other.identity.bytes
            && self.fingerprint.is_some()
            && self.fingerprint == other.fingerprint
    }
}

fn now_ns() -> i128 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_nanos().cast_signed()
}

/// A running hash of a file's bytes from its start.
#[derive(Clone)]
struct RunningHash {
    hash: Xxh3Default,
    bytes: u64,
    /// Position of the next byte to be read, which is at most `bytes`.
    at: u64,
}

impl RunningHash {
    fn new() -> Self {
        Self { hash: Xxh3Default::new(), bytes: 0, at: 0 }
    }

    /// Hashes the bytes that were read next, except those that were hashed before.
    fn take(&mut self, read: &[u8]) {
        let hashed_before = (self.bytes - self.at).min(read.len() as u64);
        self.hash.update(&read[hashed_before as usize..]);
        self.at += read.len() as u64;
        self.bytes = self.bytes.max(self.at);
    }
}

fn hash_reader(
    file: &mut impl Read,
    most: u64,
    progress: &mut dyn FnMut(u64),
) -> io::Result<RunningHash> {
    let mut running = RunningHash::new();
    let mut buffer = vec![0; PIECE];
    while running.bytes < most {
        let room = (most - running.bytes).min(PIECE as u64) as usize;
        match file.read(&mut buffer[..room]) {
            Ok(0) => break,
            Ok(read) => running.take(&buffer[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        progress(running.bytes);
    }
    Ok(running)
}

/// The input files of one preparation, which are hashed while they are read.
#[derive(Default)]
pub(crate) struct InputOrigins {
    files: Mutex<BTreeMap<String, NotedInput>>,
}

/// The record of one input, with its running hash while the input is being read.
struct NotedInput {
    origin: InputOrigin,
    running: Option<SharedHash>,
}

/// A running hash that the reader of a file shares with the record of the file.
type SharedHash = Arc<Mutex<RunningHash>>;

impl InputOrigins {
    /// Continues with the records of the files that an interrupted preparation has read.
    ///
    /// # Errors
    /// Returns [`Error::InputChanged`] for a file whose start has changed or that can no longer be
    /// compared.
    pub(crate) fn resumed(noted: &[InputOrigin], folder: &Path) -> Result<Self, Error> {
        let mut files = BTreeMap::new();
        for origin in noted {
            let noted = Self::find_unchanged(origin).transpose().unwrap_or_else(|| {
                let (folder, path) = (folder.to_owned(), origin.path.clone().into());
                Err(Error::InputChanged { folder, path })
            })?;
            files.insert(origin.path.clone(), noted);
        }
        Ok(Self { files: Mutex::new(files) })
    }

    /// Returns the file of `origin` if it still has the bytes that were read; `None` otherwise.
    fn find_unchanged(origin: &InputOrigin) -> Result<Option<NotedInput>, Error> {
        if origin.is_untouched() {
            // Only the rest of the file will be read, so it cannot be hashed as a whole.
            let origin = InputOrigin { start: None, ..origin.clone() };
            return Ok(Some(NotedInput { origin, running: None }));
        }
        let path = Path::new(&origin.path);
        let Some((mut file, now)) = InputOrigin::open(&origin.path)? else { return Ok(None) };
        let (length, expected) = match (origin.fingerprint, origin.start) {
            (Some(whole), _) => (u64::MAX, whole),
            (None, Some(start)) => (start.bytes, start.fingerprint),
            (None, None) => return Ok(None),
        };
        let running = hash_reader(&mut file, length, &mut |_| {}).map_err(Error::read(path))?;
        if Fingerprint(running.hash.digest128()) != expected {
            return Ok(None);
        }
        let running = origin.fingerprint.is_none().then(|| Arc::new(Mutex::new(running)));
        let origin = InputOrigin { fingerprint: origin.fingerprint, start: origin.start, ..now };
        Ok(Some(NotedInput { origin, running }))
    }

    /// Returns the records of all files opened so far.
    pub(crate) fn to_origins(&self) -> Vec<InputOrigin> {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let noted = |noted: &NotedInput| {
            let mut origin = noted.origin.clone();
            if let (Some(running), None) = (&noted.running, origin.fingerprint) {
                let running = running.lock().unwrap_or_else(PoisonError::into_inner);
                let fingerprint = Fingerprint(running.hash.digest128());
                origin.start = Some(HashedPrefix { bytes: running.bytes, fingerprint });
            }
            origin
        };
        files.values().map(noted).collect()
    }

    /// Records a file that is read from byte `at` on. Returns its running hash, or `None` if some
    /// bytes before `at` were never hashed.
    fn begin_file(&self, origin: Option<InputOrigin>, at: u64) -> Option<SharedHash> {
        let origin = origin?;
        let path = origin.path.clone();
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let running = match files.get_mut(&path) {
            // The bytes before `at` were never read, so the hash would not cover the whole file.
            None if at > 0 => return None,
            None => {
                let running = Arc::new(Mutex::new(RunningHash::new()));
                let noted = NotedInput { origin, running: Some(Arc::clone(&running)) };
                files.insert(path, noted);
                running
            }
            // The file is read again from its start, so both hashes are compared when it ends.
            Some(noted) if at == 0 => {
                Arc::clone(noted.running.insert(Arc::new(Mutex::new(RunningHash::new()))))
            }
            Some(noted) => {
                let shared = noted.running.take()?;
                let mut running = shared.lock().unwrap_or_else(PoisonError::into_inner);
                if at > running.bytes {
                    // A gap before `at` was never hashed.
                    noted.origin.start = None;
                    return None;
                }
                running.at = at;
                drop(running);
                Arc::clone(noted.running.insert(shared))
            }
        };
        Some(running)
    }

    /// Records an object that is read out of order and can be identified only by its version.
    fn note_object(&self, path: &str, object: &Object) {
        if let Some(origin) = InputOrigin::from_object(path, object) {
            let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
            files.insert(path.to_owned(), NotedInput { origin, running: None });
        }
    }

    /// Records that the end of a file was reached, and compares its hash with an earlier one.
    fn end_file(&self, path: &str, running: &RunningHash) -> io::Result<()> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(noted) = files.get_mut(path) else { return Ok(()) };
        let fingerprint = Fingerprint(running.hash.digest128());
        let before = noted.origin.fingerprint.replace(fingerprint);
        noted.origin.start = None;
        if before.is_some_and(|before| before != fingerprint) {
            let problem = "its content changed while it was being prepared";
            return Err(io::Error::other(problem));
        }
        Ok(())
    }
}

/// Counts the bytes read from inputs and, if `origins` is set, hashes them on the way. Clones share
/// the counts.
#[derive(Clone, Default)]
pub(crate) struct ReadObserver {
    pub bytes_done: Arc<std::sync::atomic::AtomicU64>,
    pub origins: Option<Arc<InputOrigins>>,
}

impl ReadObserver {
    /// Wraps `file`, which is the file `path` positioned at byte `at`.
    pub(crate) fn observe_file(
        &self,
        path: &str,
        file: File,
        at: u64,
    ) -> Result<ObservedReader<File>, Error> {
        let running = match &self.origins {
            Some(origins) => origins.begin_file(InputOrigin::record_file(path, &file)?, at),
            None => None,
        };
        Ok(ObservedReader { running, path: path.to_owned(), ..self.observe_stream(file) })
    }

    /// Wraps an object, to be read from byte `at` on.
    pub(crate) fn observe_object(
        &self,
        path: &str,
        object: &Object,
        at: u64,
    ) -> ObservedReader<Box<dyn Read + Send>> {
        let noted = || InputOrigin::from_object(path, object);
        let running = self.origins.as_ref().and_then(|origins| origins.begin_file(noted(), at));
        ObservedReader {
            running,
            path: path.to_owned(),
            ..self.observe_stream(object.read_from(at))
        }
    }

    /// Records an object whose bytes are read out of order.
    pub(crate) fn note_object(&self, path: &str, object: &Object) {
        if let Some(origins) = &self.origins {
            origins.note_object(path, object);
        }
    }

    /// Wraps a reader whose bytes are counted but not hashed.
    pub(crate) fn observe_stream<R>(&self, inner: R) -> ObservedReader<R> {
        ObservedReader { inner, path: String::new(), observer: self.clone(), running: None }
    }

    /// Hashes the whole file `path`, for readers that read it out of order.
    pub(crate) fn hash_file(&self, path: &str) -> Result<(), Error> {
        let Some(origins) = &self.origins else { return Ok(()) };
        let files = || origins.files.lock().unwrap_or_else(PoisonError::into_inner);
        let recorded = files().get(path).map(|noted| noted.origin.clone());
        // A second pass over an unchanged file does not hash it again.
        if recorded.is_some_and(|origin| origin.fingerprint.is_some() && origin.is_untouched()) {
            return Ok(());
        }
        let mut file = File::open(path).map_err(Error::open(Path::new(path)))?;
        if origins.begin_file(InputOrigin::record_file(path, &file)?, 0).is_none() {
            return Ok(());
        }
        let hashed = hash_reader(&mut file, u64::MAX, &mut |_| {});
        let ended = hashed.and_then(|running| origins.end_file(path, &running));
        ended.map_err(Error::read(Path::new(path)))
    }
}

/// A reader that reports its bytes to a [`ReadObserver`].
pub(crate) struct ObservedReader<R> {
    inner: R,
    path: String,
    observer: ReadObserver,
    running: Option<SharedHash>,
}

impl<R: Read> Read for ObservedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.observer.bytes_done.fetch_add(read as u64, std::sync::atomic::Ordering::Relaxed);
        let Some(running) = &self.running else { return Ok(read) };
        let mut running = running.lock().unwrap_or_else(PoisonError::into_inner);
        running.take(&buffer[..read]);
        // A read of 0 bytes is the end of the file, so the hash covers its whole content.
        if read == 0 && !buffer.is_empty() {
            let whole = running.clone();
            drop(running);
            self.running = None;
            if let Some(origins) = &self.observer.origins {
                origins.end_file(&self.path, &whole)?;
            }
        }
        Ok(read)
    }
}
