//! Splits the blocks of a file into chunks that start and end between events.
//!
//! The boundaries are guessed from the layout of the first events. The reader of a chunk verifies
//! its boundaries, so a wrong guess only costs time.

use super::key;
use super::lenient;
use super::scan;
use crate::format::blocks::Blocks;

/// Number of bytes at either end of a block in which a boundary between events is searched for.
const NEAR: usize = 1 << 18;

/// A contiguous piece of the file: the bytes `head`, followed by the range `body` of `block`.
#[derive(Debug, Default)]
pub struct Chunk {
    pub index: u64,
    /// Offset of `head` in the uncompressed file.
    pub offset: u64,
    /// End of the previous block and start of this one, which together hold the event that lies
    /// across the border of the blocks.
    pub head: Vec<u8>,
    /// A block of the file, of which only the range `body` belongs to this chunk.
    pub block: Vec<u8>,
    /// Start and end of the range of `block` that belongs to this chunk.
    pub body: (usize, usize),
    /// Approximate share of the text up to the end of this chunk, from [`Blocks::share`].
    pub share: Option<f64>,
}

impl Chunk {
    /// Returns the part of the block that belongs to the chunk.
    pub fn body(&self) -> &[u8] {
        &self.block[self.body.0..self.body.1]
    }
}

/// Splits the blocks of a file into chunks.
pub struct ChunkSource<'a> {
    blocks: &'a mut dyn Blocks,
    /// Preferred size of a chunk in bytes.
    size: usize,
    /// A large block that is returned in pieces, and the position reached in it.
    large: (Vec<u8>, usize),
    spare: Vec<Vec<u8>>,
    tail: Vec<u8>,
    index: u64,
    offset: u64,
    spacing: Option<Spacing>,
    ended: bool,
    failure: Option<String>,
}

/// The blanks before and after the opening bracket of an event.
#[derive(Clone, Debug)]
struct Spacing {
    before: Vec<u8>,
    behind: Vec<u8>,
}

impl<'a> ChunkSource<'a> {
    /// Creates a source whose chunks have about `size` bytes.
    pub fn new(blocks: &'a mut dyn Blocks, size: usize) -> Self {
        Self {
            blocks,
            size,
            large: (Vec::new(), 0),
            spare: Vec::new(),
            tail: Vec::new(),
            index: 0,
            offset: 0,
            spacing: None,
            ended: false,
            failure: None,
        }
    }

    /// Returns the reason for a premature end of the text.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Returns the number of bytes in the chunks that were returned so far.
    pub fn bytes(&self) -> u64 {
        self.offset
    }

    /// Takes back a processed chunk, whose memory is reused.
    pub fn recycle(&mut self, chunk: Chunk) {
        self.spare.push(chunk.block);
    }

    /// Returns the next chunk. The last chunk may be empty.
    pub fn next(&mut self) -> Option<Chunk> {
        if self.ended {
            return None;
        }
        let mut block = self.spare.pop().unwrap_or_default();
        self.fill(&mut block);
        if self.spacing.is_none() {
            self.spacing = Spacing::find(&block);
        }
        let start = if self.index == 0 { 0 } else { self.first_boundary(&block) };
        let end = if self.ended { block.len() } else { self.last_boundary(&block, start) };
        let mut head = std::mem::take(&mut self.tail);
        head.extend_from_slice(&block[..start]);
        // An event that continues in the next block goes to the next chunk as a whole.
        self.tail.extend_from_slice(&block[end..]);
        let (index, offset, share) = (self.index, self.offset, self.blocks.share());
        let chunk = Chunk { index, offset, head, block, body: (start, end), share };
        self.index += 1;
        self.offset += (chunk.head.len() + end - start) as u64;
        Some(chunk)
    }

    fn fill(&mut self, block: &mut Vec<u8>) {
        block.clear();
        if self.large.1 == self.large.0.len() && self.pull(block) && block.len() > 8 * self.size {
            std::mem::swap(block, &mut self.large.0);
            self.large.1 = 0;
            block.clear();
        }
        let (large, done) = &mut self.large;
        if *done < large.len() {
            let end = large.len().min(*done + self.size);
            block.extend_from_slice(&large[*done..end]);
            *done = end;
            return;
        }
        let mut more = Vec::new();
        // Small blocks are joined, because each chunk costs a lock and a copy of the event across
        // its border.
        while !self.ended && block.len() < self.size / 2 {
            if self.pull(&mut more) {
                block.extend_from_slice(&more);
            }
        }
    }

    /// Reads the next block. Returns whether there was one.
    fn pull(&mut self, block: &mut Vec<u8>) -> bool {
        match self.blocks.next(block) {
            Ok(true) => return true,
            Ok(false) => {}
            Err(error) => self.failure = Some(error.to_string()),
        }
        block.clear();
        self.ended = true;
        false
    }

    fn first_boundary(&mut self, block: &[u8]) -> usize {
        let near = &block[..block.len().min(NEAR)];
        let mut brackets = memchr::memchr_iter(b'{', near);
        brackets.find(|at| self.is_boundary(block, *at)).unwrap_or_else(|| {
            // Later events may be spaced differently from the first ones, so the spacing is learned
            // again.
            self.spacing = None;
            block.len()
        })
    }

    fn last_boundary(&self, block: &[u8], start: usize) -> usize {
        let from = start.max(block.len().saturating_sub(NEAR));
        let mut brackets = memchr::memrchr_iter(b'{', &block[from..]).map(|at| from + at);
        brackets.find(|at| self.is_boundary(block, *at)).unwrap_or(start)
    }

    fn is_boundary(&self, block: &[u8], bracket: usize) -> bool {
        let Some((before, behind)) = around(block, bracket) else { return false };
        let learned = self.spacing.as_ref();
        learned.is_none_or(|learned| learned.before == before && learned.behind == behind)
    }
}

impl Spacing {
    /// Learns the spacing at the first position that looks like a border between events. The search
    /// starts at the list of events, because lists of devices look similar.
    fn find(block: &[u8]) -> Option<Self> {
        let listed = memchr::memmem::find(block, b"\"traceEvents\"").unwrap_or(0);
        let mut brackets = memchr::memchr_iter(b'{', &block[listed..]).map(|at| listed + at);
        let (before, behind) = brackets.find_map(|at| around(block, at))?;
        Some(Self { before: before.to_vec(), behind: behind.to_vec() })
    }
}

/// Returns the blanks around a bracket that looks like the opening bracket of an event after
/// another event.
fn around(block: &[u8], bracket: usize) -> Option<(&[u8], &[u8])> {
    let blanks = |bytes: &[u8]| bytes.iter().rev().take_while(|b| scan::is_blank(**b)).count();
    let comma = bracket - blanks(&block[..bracket]);
    let rest = block[..comma].strip_suffix(b",")?;
    if rest[..rest.len() - blanks(rest)].last() != Some(&b'}') {
        return None;
    }
    let quote = scan::skip_blank(block, bracket + 1);
    let key = lenient::key_at(block, quote).ok()??;
    let is_event = block[quote] == b'"' && key::is_event_key(key);
    is_event.then(|| (&block[comma..bracket], &block[bracket + 1..quote]))
}
