//! A bounded queue on disk, in which entries wait until the hub has stored them. A number is used
//! once, even if the agent is killed. If the queue is full, the oldest entries are dropped and
//! counted.
//!
//! A folder contains segment files, which are named by their first number, and the file `position`
//! with the hub's progress. A record consists of its length, a checksum, its number, the start of
//! its interval, and the bytes of the entry. A record truncated by a kill ends its segment. This
//! module does not use the network.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use fleet::proto::Entry;
use fleet::untrusted::{MissingFolder, OFlags, OwnFolder};
use prost::Message;
use xxhash_rust::xxh3::xxh3_64;

/// Largest number of seconds that an interval may be in the future. A later one was dated by a
/// wrong clock.
const AHEAD_MAX_S: u64 = 600;
/// Bytes of a record's header: length, checksum, number and interval.
const HEAD: usize = 24;
/// Largest number of bytes of a record. A larger length is treated as damage.
const RECORD_MAX: usize = 1 << 20;
/// Smallest number of segments of a full queue, so that dropping one segment loses few entries.
const SEGMENTS: u64 = 16;
/// Number of attempts to lock a queue that another agent still holds, with a pause between them.
const LOCK_TRIES: u32 = 50;
const LOCK_WAIT: Duration = Duration::from_millis(20);
/// The first bytes of every segment, followed by the id of the queue.
const MAGIC: [u8; 8] = *b"rowmillQ";
/// Bytes of a segment's header, which precedes the first record.
const OPENING: u64 = 24;

/// A queue of entries in files of a folder. Entries are numbered, survive restarts, and are dropped
/// oldest first when the queue is full.
#[derive(Debug)]
pub struct DiskQueue {
    folder: OwnFolder,
    /// Lock file, which stays locked for as long as the queue is open.
    _lock: File,
    id: [u8; 16],
    limit: u64,
    segments: VecDeque<QueueFile>,
    /// The last segment file of the queue, open for writing.
    tail: Option<File>,
    next: u64,
    gone_through: u64,
    last_start: u64,
    dropped: u64,
    /// Position of the reader: the first number of its segment, and the byte offset in that
    /// segment.
    reader: Option<(u64, u64)>,
}

/// One segment file of the queue, with the range of its numbers.
#[derive(Clone, Copy, Debug)]
struct QueueFile {
    first: u64,
    /// Offset in bytes of the end of the last record.
    bytes: u64,
    /// Number that follows the number of the last record.
    end: u64,
}

/// The state that must survive even when every segment has been delivered and deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    id: [u8; 16],
    gone_through: u64,
    last_start: u64,
}

/// A record of an entry, as read from a segment.
struct QueueRecord {
    sequence: u64,
    start: u64,
    body: Vec<u8>,
}

impl DiskQueue {
    /// Opens the queue of a folder, or creates one there that keeps at most `limit` bytes.
    ///
    /// # Errors
    /// If the folder cannot be written, or another agent has locked the queue.
    pub fn open(folder: &Path, limit: u64) -> io::Result<Self> {
        let folder = OwnFolder::open(folder, MissingFolder::Make(0o700))?;
        let lock = folder.open_file("lock", OFlags::RDWR | OFlags::CREATE)?;
        lock_soon(&lock)?;
        let saved_position = Position::read(&folder);
        let position = match saved_position {
            Some(position) => position,
            None => Position { id: random()?, gone_through: 0, last_start: 0 },
        };
        let mut queue = Self {
            folder,
            _lock: lock,
            id: position.id,
            // Even with a tiny limit, each segment must have room for a few records.
            limit: limit.max(SEGMENTS * 4096),
            segments: VecDeque::new(),
            tail: None,
            next: position.gone_through + 1,
            gone_through: position.gone_through,
            last_start: position.last_start,
            dropped: 0,
            reader: None,
        };
        queue.recover()?;
        // The new id must be on disk before the first entry is sent, or a restart would reuse
        // numbers under another id.
        queue.save()?;
        Ok(queue)
    }

    /// The random id of the queue, which the hub combines with the numbers of entries.
    pub fn id(&self) -> &[u8] {
        &self.id
    }

    /// Start of the newest interval of which rows were queued, including rows queued before a
    /// restart.
    pub fn last_start(&self) -> u64 {
        self.last_start
    }

    /// Largest number whose entry has been delivered or dropped.
    pub fn gone_through(&self) -> u64 {
        self.gone_through
    }

    /// The number of entries that wait in the queue.
    pub fn len(&self) -> u64 {
        self.next - 1 - self.gone_through
    }

    /// The bytes that the queue occupies on disk.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    /// The number of entries that were lost, because they did not fit or could not be written.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Assigns numbers to the entries of one interval (0 for none) and writes all of them to disk,
    /// or none of them.
    ///
    /// # Errors
    /// If the disk is full or broken. The entries are then counted as dropped.
    pub fn append(&mut self, start: u64, entries: Vec<Entry>) -> io::Result<()> {
        let count = entries.len() as u64;
        let mut block = Vec::new();
        let mut is_small = true;
        for (at, mut entry) in (self.next..).zip(entries) {
            entry.sequence = at;
            let body = entry.encode_to_vec();
            is_small &= body.len() <= RECORD_MAX;
            block.extend_from_slice(&record(at, start, &body));
        }
        // Writing a block larger than half of the queue would drop nearly all waiting entries.
        let written = if is_small && block.len() as u64 <= self.limit / 2 {
            self.write(&block)
        } else {
            Err(io::Error::new(io::ErrorKind::FileTooLarge, "entries larger than the queue"))
        };
        if written.is_err() {
            self.dropped += count;
            return written;
        }
        self.next += count;
        self.last_start = newest(self.last_start, start);
        if let Some(tail) = self.segments.back_mut() {
            (tail.end, tail.bytes) = (self.next, tail.bytes + block.len() as u64);
        }
        Ok(())
    }

    /// Reads the oldest queued entries, limited by number and bytes. At least one entry is
    /// returned.
    ///
    /// # Errors
    /// If the disk cannot be read.
    pub fn peek(&mut self, entries_max: usize, bytes_max: usize) -> io::Result<Vec<Entry>> {
        let (mut found, mut bytes) = (Vec::new(), 0);
        let wanted = self.gone_through + 1;
        let Some(first) = self.segments.iter().position(|segment| segment.end > wanted) else {
            return Ok(found);
        };
        for at in first..self.segments.len() {
            let segment = self.segments[at];
            let file = self.folder.open_file(name(segment.first), OFlags::RDONLY)?;
            let last_reader = self.reader.filter(|(first, _)| *first == segment.first);
            let mut offset = last_reader.map_or(OPENING, |(_, offset)| offset);
            while let Some((record, behind)) = read(&file, offset, segment.bytes)? {
                if record.sequence < wanted {
                    self.reader = Some((segment.first, behind));
                // At least one entry is returned even if it is larger than `bytes_max`; otherwise
                // delivery would stall forever.
                } else if found.len() == entries_max
                    || (bytes > 0 && bytes + record.body.len() > bytes_max)
                {
                    return Ok(found);
                } else {
                    bytes += record.body.len();
                    match Entry::decode(record.body.as_slice()) {
                        Ok(entry) => found.push(entry),
                        // The checksum is valid, so another version of the agent wrote this entry.
                        // The entry is passed on without a body.
                        Err(_) => found.push(Entry { sequence: record.sequence, body: None }),
                    }
                }
                offset = behind;
            }
        }
        Ok(found)
    }

    /// Removes all entries up to the number `through`, because the hub has stored them.
    ///
    /// # Errors
    /// If the position cannot be written. The entries are then sent again after a restart.
    pub fn forget(&mut self, through: u64) -> io::Result<()> {
        // A faulty hub could acknowledge numbers that were never assigned.
        let through = through.min(self.next - 1);
        if through <= self.gone_through {
            return Ok(());
        }
        self.gone_through = through;
        // The last segment is kept because the next entry is appended to it.
        while self.segments.len() > 1 && self.segments[0].end <= through + 1 {
            self.remove_first();
        }
        self.save()
    }

    /// Drops an entry that the hub has refused, and all entries before it.
    ///
    /// # Errors
    /// The errors of [`DiskQueue::forget`].
    pub fn refuse(&mut self, sequence: u64) -> io::Result<()> {
        self.dropped += sequence.saturating_sub(self.gone_through);
        self.forget(sequence)
    }

    fn write(&mut self, block: &[u8]) -> io::Result<()> {
        let part = self.limit / SEGMENTS;
        let is_full = self
            .segments
            .back()
            .is_some_and(|tail| tail.bytes > OPENING && tail.bytes + block.len() as u64 > part);
        if self.tail.is_none() || is_full {
            self.begin_segment()?;
        }
        while self.segments.len() > 1 && self.bytes() + block.len() as u64 > self.limit {
            let behind = self.segments[0].end;
            self.dropped += behind.saturating_sub(self.gone_through + 1);
            self.gone_through = self.gone_through.max(behind - 1);
            self.remove_first();
        }
        let (Some(tail), Some(segment)) = (&mut self.tail, self.segments.back()) else {
            return Err(io::Error::other("no segment"));
        };
        let written = tail.write_all_at(block, segment.bytes).and_then(|()| tail.sync_data());
        if written.is_err() {
            // A partial write is truncated, because it could look like the beginning of a record.
            if tail.set_len(segment.bytes).is_err() {
                self.tail = None;
            }
        }
        written
    }

    fn begin_segment(&mut self) -> io::Result<()> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC;
        let mut file = self.folder.open_file(name(self.next), flags)?;
        file.write_all(&MAGIC)?;
        file.write_all(&self.id)?;
        file.sync_all()?;
        self.folder.sync();
        // A failed write may have left an empty segment with this name, which the new segment
        // replaces.
        self.segments.retain(|segment| segment.first != self.next);
        self.segments.push_back(QueueFile { first: self.next, bytes: OPENING, end: self.next });
        self.tail = Some(file);
        Ok(())
    }

    fn remove_first(&mut self) {
        if let Some(gone) = self.segments.pop_front() {
            // If a delivered segment cannot be removed, it is removed at the next start.
            self.folder.remove_file(name(gone.first));
        }
    }

    /// Reads the segments that an earlier agent left in the folder.
    fn recover(&mut self) -> io::Result<()> {
        let mut firsts: Vec<u64> = Vec::new();
        for name in self.folder.names()? {
            let first = name.to_str().and_then(|name| name.strip_suffix(".segment"));
            firsts.extend(first.and_then(|first| first.parse::<u64>().ok()));
        }
        firsts.sort_unstable();
        for first in firsts {
            let recovered = self.recover_segment(first)?;
            let Some(segment) = recovered.filter(|segment| segment.end > self.gone_through + 1)
            else {
                self.folder.remove_file(name(first));
                continue;
            };
            // A gap in the numbers before this segment means that entries were dropped by a full
            // queue, or damaged.
            let next_sequence = self.segments.back().map_or(self.gone_through + 1, |last| last.end);
            let lost = segment.first.saturating_sub(next_sequence);
            self.dropped += lost;
            if self.segments.is_empty() {
                self.gone_through += lost;
            }
            self.segments.push_back(segment);
        }
        Ok(())
    }

    /// Reads a segment up to its last undamaged record. Returns `None` if the segment belongs to
    /// another queue.
    fn recover_segment(&mut self, first: u64) -> io::Result<Option<QueueFile>> {
        let file = self.folder.open_file(name(first), OFlags::RDWR)?;
        let mut opening = [0; OPENING as usize];
        let is_ours = (&file).read_exact(&mut opening).is_ok()
            && opening[..8] == MAGIC
            && opening[8..] == self.id;
        if !is_ours {
            return Ok(None);
        }
        let size = (&file).seek(SeekFrom::End(0))?;
        let (mut bytes, mut end) = (OPENING, first);
        while let Some((record, behind)) = read(&file, bytes, size)? {
            if record.sequence != end {
                break;
            }
            (bytes, end) = (behind, end + 1);
            self.last_start = newest(self.last_start, record.start);
        }
        // Entries are sent only after they are on disk. A truncated record was thus never sent, and
        // its number can be reused.
        self.next = self.next.max(end);
        file.set_len(bytes)?;
        Ok(Some(QueueFile { first, bytes, end }))
    }

    fn save(&self) -> io::Result<()> {
        let (id, gone_through) = (self.id, self.gone_through);
        let position = Position { id, gone_through, last_start: self.last_start };
        position.write(&self.folder)
    }
}

/// Whether an interval was dated by a wrong clock, because it is too far in the future.
pub fn is_wrong_clock(last_unix_s: u64, now_unix_s: u64) -> bool {
    last_unix_s > now_unix_s.saturating_add(AHEAD_MAX_S)
}

/// Returns the newer of two intervals, unless the last one was dated by a wrong clock.
fn newest(last: u64, start: u64) -> u64 {
    // States of orders belong to no interval and have a start of 0.
    if start > 0 && is_wrong_clock(last, start) { start } else { last.max(start) }
}

impl Position {
    /// Reads the position file. Returns `None` if it is missing or damaged; a new queue is started
    /// then.
    fn read(folder: &OwnFolder) -> Option<Self> {
        let bytes: [u8; 40] = folder.read("position", 41).ok()??.try_into().ok()?;
        let long = |at: usize| bytes[at..].first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
        if xxh3_64(&bytes[..32]) != long(32) {
            return None;
        }
        let id = *bytes.first_chunk()?;
        Some(Self { id, gone_through: long(16), last_start: long(24) })
    }

    fn write(self, folder: &OwnFolder) -> io::Result<()> {
        let mut bytes = self.id.to_vec();
        bytes.extend_from_slice(&self.gone_through.to_le_bytes());
        bytes.extend_from_slice(&self.last_start.to_le_bytes());
        bytes.extend_from_slice(&xxh3_64(&bytes).to_le_bytes());
        Ok(folder.replace("position", &bytes)?)
    }
}

/// Locks the queue. Retries for a while, because an ending agent releases its queue a moment later
/// than its sockets.
fn lock_soon(lock: &File) -> io::Result<()> {
    for _ in 0..LOCK_TRIES {
        if lock.try_lock().is_ok() {
            return Ok(());
        }
        std::thread::sleep(LOCK_WAIT);
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, "another agent uses this queue"))
}

fn name(first: u64) -> String {
    format!("{first:020}.segment")
}

fn random() -> io::Result<[u8; 16]> {
    let mut id = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut id)?;
    Ok(id)
}

fn record(sequence: u64, start: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD + body.len());
    bytes.extend_from_slice(&u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&sequence.to_le_bytes());
    bytes.extend_from_slice(&start.to_le_bytes());
    bytes.extend_from_slice(body);
    let sum = checksum(&bytes[8..]);
    bytes[4..8].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn checksum(bytes: &[u8]) -> u32 {
    let sum = xxh3_64(bytes).to_le_bytes();
    sum.first_chunk().map_or(0, |part| u32::from_le_bytes(*part))
}

/// Reads the record at `offset`, and returns it with the offset of its end. Returns `None` at the
/// end of the segment, or if the record is incomplete.
fn read(file: &File, offset: u64, size: u64) -> io::Result<Option<(QueueRecord, u64)>> {
    if offset + HEAD as u64 > size {
        return Ok(None);
    }
    let mut head = [0; HEAD];
    file.read_exact_at(&mut head, offset)?;
    let word = |at: usize| head[at..].first_chunk().map_or(0, |b| u32::from_le_bytes(*b));
    let long = |at: usize| head[at..].first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
    let length = word(0) as usize;
    let behind = offset + (HEAD + length) as u64;
    if length > RECORD_MAX || behind > size {
        return Ok(None);
    }
    let mut bytes = vec![0; 16 + length];
    file.read_exact_at(&mut bytes, offset + 8)?;
    if checksum(&bytes) != word(4) {
        return Ok(None);
    }
    let body = bytes.split_off(16);
    Ok(Some((QueueRecord { sequence: long(8), start: long(16), body }, behind)))
}

#[cfg(test)]
mod tests;
