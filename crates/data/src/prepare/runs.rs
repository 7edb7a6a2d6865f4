//! External sorting: sorted runs of records on disk, and their merge. The caller defines the
//! meaning of the records.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use crate::error::Error;

/// A record of three numbers, ordered by the first number and then by the others.
pub(crate) type SortRecord = [u64; 3];
pub(crate) const RECORD_BYTES: usize = 24;
/// Smallest and largest buffer for reading a run.
const BUFFER: std::ops::RangeInclusive<usize> = 4 << 10..=1 << 20;

/// A folder for runs, which is removed with its content when dropped.
pub(crate) struct Scratch {
    folder: PathBuf,
    files: usize,
}

impl Scratch {
    /// Creates the folder, replacing one that a killed process left behind.
    pub(crate) fn create(folder: PathBuf) -> Result<Self, Error> {
        if folder.exists() {
            std::fs::remove_dir_all(&folder).map_err(Error::write(&folder))?;
        }
        std::fs::create_dir_all(&folder).map_err(Error::write(&folder))?;
        Ok(Self { folder, files: 0 })
    }

    fn next_file(&mut self) -> PathBuf {
        self.files += 1;
        self.folder.join(format!("run-{:06}", self.files))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A folder that cannot be removed is left behind, and its name shows that it is temporary.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A set of sorted runs that are merged together.
#[derive(Default)]
pub(crate) struct Runs {
    files: Vec<PathBuf>,
}

impl Runs {
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Sorts `records`, writes them as one run and clears them.
    pub(crate) fn spill(
        &mut self,
        records: &mut Vec<SortRecord>,
        scratch: &mut Scratch,
    ) -> Result<(), Error> {
        if records.is_empty() {
            return Ok(());
        }
        // The vector is taken, so that its memory is free once the run is written.
        let mut records = std::mem::take(records);
        records.sort_unstable();
        let path = scratch.next_file();
        let write = || {
            let mut file = BufWriter::with_capacity(*BUFFER.end(), File::create_new(&path)?);
            for record in records {
                for number in record {
                    file.write_all(&number.to_le_bytes())?;
                }
            }
            file.flush()
        };
        write().map_err(Error::write(&path))?;
        self.files.push(path);
        Ok(())
    }

    /// Passes all records to `take` in sorted order, with buffers of about `memory` bytes in total,
    /// and removes the files.
    pub(crate) fn merge(
        self,
        memory: u64,
        mut take: impl FnMut(SortRecord) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let share = usize::try_from(memory).unwrap_or(usize::MAX) / self.files.len().max(1);
        let buffer = share.clamp(*BUFFER.start(), *BUFFER.end());
        let mut runs = Vec::with_capacity(self.files.len());
        for path in &self.files {
            let file = File::open(path).map_err(Error::open(path))?;
            runs.push(BufReader::with_capacity(buffer, file));
        }
        let mut heads = BinaryHeap::with_capacity(runs.len());
        for (index, run) in runs.iter_mut().enumerate() {
            heads.extend(
                read_record(run, &self.files[index])?.map(|record| Reverse((record, index))),
            );
        }
        // The head is replaced in place, which sifts the heap once instead of twice.
        while let Some(mut head) = heads.peek_mut() {
            let Reverse((record, index)) = *head;
            match read_record(&mut runs[index], &self.files[index])? {
                Some(following) => *head = Reverse((following, index)),
                None => {
                    std::collections::binary_heap::PeekMut::pop(head);
                }
            }
            take(record)?;
        }
        for path in &self.files {
            std::fs::remove_file(path).map_err(Error::write(path))?;
        }
        Ok(())
    }
}

/// Reads the next record of a run; `None` at its end.
fn read_record(run: &mut impl Read, path: &Path) -> Result<Option<SortRecord>, Error> {
    let mut bytes = [0; RECORD_BYTES];
    match run.read_exact(&mut bytes) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(Error::read(path)(error)),
    }
    let mut record = [0; 3];
    for (number, bytes) in record.iter_mut().zip(bytes.as_chunks().0) {
        *number = u64::from_le_bytes(*bytes);
    }
    Ok(Some(record))
}

#[cfg(test)]
mod tests {
    use super::{Runs, Scratch};

    #[test]
    fn merged_runs_are_sorted_and_leave_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut scratch = Scratch::create(folder.path().join("runs")).unwrap();
        let mut runs = Runs::default();
        let mut all = Vec::new();
        for run in 0..5u64 {
            let key = |i: u64| (i * 7919 + run * 31) % 1000;
            let mut records: Vec<_> = (0..run * 100).map(|i| [key(i), run, i]).collect();
            all.extend_from_slice(&records);
            runs.spill(&mut records, &mut scratch).unwrap();
            assert!(records.is_empty());
        }
        all.sort_unstable();
        let mut merged = Vec::new();
        runs.merge(1, |record| {
            merged.push(record);
            Ok(())
        })
        .unwrap();
        assert_eq!(merged, all);
        assert_eq!(std::fs::read_dir(folder.path().join("runs")).unwrap().count(), 0);
        drop(scratch);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
