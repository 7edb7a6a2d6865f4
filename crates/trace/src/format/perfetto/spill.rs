//! Keeps encoded arguments in a temporary file, which is written in row order and read in any
//! order.
//!
//! The arguments would take as much memory as the rest of the trace. The source file cannot provide
//! the arguments in another order, because it can only be read from front to back.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::file::create_anew;

/// Number of bytes that are buffered before a write.
const COLLECTED: usize = 256 << 10;
/// Number of bytes to read ahead if rows are requested in order.
const WINDOW: u64 = 64 << 10;

/// A temporary file while it is being written.
pub struct Filling {
    out: BufWriter<File>,
    temporary: Temporary,
    ends: Vec<u64>,
}

/// A completed temporary file from which rows can be read.
pub struct Spill {
    file: File,
    /// End offset of each row's bytes. Row 0 starts at offset 0.
    ends: Vec<u64>,
    window: Vec<u8>,
    start: u64,
    /// Deletes the file when the spill is dropped.
    _temporary: Temporary,
}

/// The path of a temporary file, which is deleted on drop.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // If the deletion fails, there is no way to recover.
        let _ = fs::remove_file(&self.0);
    }
}

impl Filling {
    /// Creates an empty file at `path`, which replaces an existing file.
    pub fn new(path: &Path) -> io::Result<Self> {
        let file = create_anew(path)?;
        let temporary = Temporary(path.to_path_buf());
        Ok(Self { out: BufWriter::with_capacity(COLLECTED, file), temporary, ends: Vec::new() })
    }

    /// Appends the bytes of the next row.
    pub fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        let before = self.ends.last().copied().unwrap_or(0);
        self.ends.push(before + bytes.len() as u64);
        self.out.write_all(bytes)
    }

    /// Completes the file, and opens it for reading.
    pub fn end(self) -> io::Result<Spill> {
        let file = self.out.into_inner().map_err(io::IntoInnerError::into_error)?;
        let (window, start) = (Vec::new(), 0);
        Ok(Spill { file, ends: self.ends, window, start, _temporary: self.temporary })
    }
}

impl Spill {
    /// Returns the bytes of a row.
    pub fn get(&mut self, row: u32) -> io::Result<&[u8]> {
        let at = row as usize;
        let first = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        let last = self.ends[at];
        let held = self.start..=self.start + self.window.len() as u64;
        if !(held.contains(&first) && held.contains(&last)) {
            // Tracks may visit rows out of file order. Bytes are read ahead only if access is
            // sequential.
            let ahead = if held.contains(&first) { WINDOW } else { 0 };
            self.file.seek(SeekFrom::Start(first))?;
            self.window.clear();
            (&mut self.file).take(ahead.max(last - first)).read_to_end(&mut self.window)?;
            self.start = first;
        }
        let (first, last) = ((first - self.start) as usize, (last - self.start) as usize);
        self.window.get(first..last).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

#[cfg(test)]
mod tests {
    use super::Filling;

    #[test]
    fn rows_can_be_read_in_any_order_and_the_file_is_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("spill");
        let mut filling = Filling::new(&path).unwrap();
        let rows = [vec![1; 10], Vec::new(), vec![2; 300 << 10], vec![3]];
        rows.iter().for_each(|row| filling.push(row).unwrap());
        let mut spill = filling.end().unwrap();
        for row in [2, 0, 3, 1, 2, 3] {
            assert_eq!(spill.get(row).unwrap(), rows[row as usize]);
        }
        drop(spill);
        assert!(!path.exists());
    }
}
