//! Copies an untrusted file in steps of bounded time, so that the caller can do other work in
//! between.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{OwnFolder, UntrustedError, UntrustedFile};

/// Number of bytes that are copied between two checks of the time.
const BLOCK: usize = 1 << 20;
/// Number of bytes between two syncs to the disk. Regular syncs keep the last one short.
const SYNCED: u64 = 64 << 20;

/// A copy of an untrusted file that is in progress. Dropping it before its end removes the partial
/// file.
#[derive(Debug)]
pub struct Copying {
    from: UntrustedFile,
    to: fs::File,
    folder: Arc<OwnFolder>,
    partial: String,
    name: String,
    target: PathBuf,
    copied: u64,
    synced: u64,
    block: Vec<u8>,
    insertion: Option<Insertion>,
}

/// Text that is inserted into the copy but is not part of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Insertion {
    /// Offset in the source before which the text is inserted.
    pub at: u64,
    pub text: String,
}

impl Copying {
    /// Starts to copy `from` to the file `name` in `folder`. The copy has a temporary name until it
    /// is complete.
    ///
    /// # Errors
    /// Fails if the file cannot be created.
    pub fn begin(
        from: UntrustedFile,
        folder: &Arc<OwnFolder>,
        name: &str,
        insertion: Option<Insertion>,
    ) -> Result<Self, UntrustedError> {
        let partial = format!("{name}.{}.partial", std::process::id());
        let to = folder.create(&partial)?;
        Ok(Self {
            from,
            to,
            partial,
            target: folder.path().join(name),
            name: name.to_owned(),
            folder: Arc::clone(folder),
            copied: 0,
            synced: 0,
            block: vec![0; BLOCK],
            insertion,
        })
    }

    /// Continues the copy for about the time `budget`. Returns the size of the copy if it is
    /// complete.
    ///
    /// If the file grows meanwhile, only the size that it had when it was opened is copied.
    ///
    /// # Errors
    /// Fails if the file changed since it was opened, if it cannot be read, or if the copy cannot
    /// be written.
    pub fn step(&mut self, budget: Duration) -> Result<Option<u64>, UntrustedError> {
        let began = Instant::now();
        while self.copied < self.from.size {
            self.copy_block()?;
            if began.elapsed() >= budget {
                return Ok(None);
            }
        }
        // If the process wrote to the file meanwhile, the copy may mix two versions of it.
        if !self.from.is_unchanged() {
            return Err(UntrustedError::Changed { path: self.from.path.clone() });
        }
        self.to.sync_all().map_err(UntrustedError::io(&self.target, "write"))?;
        self.folder.rename(&self.partial, &self.folder, &self.name)?;
        self.folder.sync();
        let length = self.to.metadata().map_or(self.copied, |found| found.len());
        Ok(Some(length))
    }

    fn copy_block(&mut self) -> Result<(), UntrustedError> {
        let mut left = usize::try_from(self.from.size - self.copied).unwrap_or(BLOCK);
        if let Some(insertion) = &self.insertion {
            let before = insertion.at.saturating_sub(self.copied);
            if before == 0 {
                let text = insertion.text.as_bytes();
                self.to.write_all(text).map_err(UntrustedError::io(&self.target, "write"))?;
                self.insertion = None;
            } else {
                left = left.min(usize::try_from(before).unwrap_or(BLOCK));
            }
        }
        let block = &mut self.block[..left.min(BLOCK)];
        let read = match self.from.file.read_at(block, self.copied) {
            // Nothing is left to read before the expected end, so the file was truncated since it
            // was opened.
            Ok(0) => return Err(UntrustedError::Changed { path: self.from.path.clone() }),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(UntrustedError::io(&self.from.path, "read")(error)),
        };
        self.to.write_all(&block[..read]).map_err(UntrustedError::io(&self.target, "write"))?;
        self.copied += read as u64;
        if self.copied - self.synced >= SYNCED {
            self.synced = self.copied;
            self.to.sync_data().map_err(UntrustedError::io(&self.target, "write"))?;
        }
        Ok(())
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        // A complete copy was renamed, so in that case there is no file of this name to remove.
        self.folder.remove_file(&self.partial);
    }
}
