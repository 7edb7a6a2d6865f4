//! Files that are mapped into memory, so that a few rows of a large table can be read without
//! reading the rest. The mapping does not interpret the bytes; the caller checks them first.
//!
//! # Guarantees of a mapping
//! The bytes are the current contents of the file, so a process that writes to the file changes
//! them during a read. If a process truncates the file, or the disk cannot be read, the operating
//! system sends SIGBUS to a thread that accesses the lost part. Checkpoints are written under
//! another name, renamed and never changed, and a deleted file stays mapped. The bytes therefore
//! stay valid unless another process damages the file. [`Mapping::check_length`] turns most cases
//! of such damage into an error. All other cases end the program with a message instead of a core
//! dump.
#![expect(unsafe_code, reason = "maps files, and handles the signal that a truncated file raises")]

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::sync::Once;

use memmap2::Mmap;

/// All bytes of a file, read from disk when they are first accessed.
#[derive(Debug)]
pub struct Mapping {
    file: File,
    bytes: Mmap,
}

impl Mapping {
    /// Maps all of `file` for reading.
    ///
    /// # Errors
    /// Fails with the operating system's error if the file cannot be mapped.
    pub fn map(file: File) -> io::Result<Self> {
        catch_lost_pages();
        // SAFETY: the mapping is read-only and lives as long as this value. This program never
        // writes to a file under the name of a checkpoint. As a protection against other programs
        // that write to the file, callers copy the bytes out and compare checksums before they
        // use them.
        let bytes = unsafe { Mmap::map(&file)? };
        Ok(Self { file, bytes })
    }

    /// Checks that the file still has the length with which it was mapped, because accessing bytes
    /// beyond its end raises SIGBUS.
    ///
    /// # Errors
    /// The outer error is the operating system's. The inner error is the current length of the
    /// file, returned if the file has become shorter.
    pub fn check_length(&self) -> io::Result<Result<(), u64>> {
        let now = self.file.metadata()?.len();
        Ok(if now < self.bytes.len() as u64 { Err(now) } else { Ok(()) })
    }
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Message for a page of a mapped file that cannot be read.
const LOST: &[u8] =
    b"error: a file was cut off, or its disk could not be read, while it was mapped\n\
    hint: `rowmill checkpoint verify` says which file of a checkpoint is damaged\n";

/// Exit code of a command whose mapped file was lost, which is the code for any unreadable file.
const EXIT_FAILED: i32 = 1;

/// Installs a signal handler that ends the program with a message if a page of a mapped file
/// cannot be read. The program cannot continue, because the instruction that accessed the page
/// cannot complete.
fn catch_lost_pages() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let handler: extern "C" fn(libc::c_int) = on_lost_page;
        // SAFETY: the handler calls only async-signal-safe functions (`write`, `_exit`). The
        // handler replaces the default one, which would also have ended the program.
        unsafe {
            libc::signal(libc::SIGBUS, handler as libc::sighandler_t);
        }
    });
}

extern "C" fn on_lost_page(_signal: libc::c_int) {
    // SAFETY: `write` and `_exit` are async-signal-safe, and `LOST` is a constant.
    unsafe {
        libc::write(libc::STDERR_FILENO, LOST.as_ptr().cast(), LOST.len());
        libc::_exit(EXIT_FAILED);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::{EXIT_FAILED, LOST, Mapping};

    /// Environment variable that marks the child process of the test, whose mapped file is
    /// truncated.
    const CHILD: &str = "ROWMILL_TEST_LOST_PAGE";

    #[test]
    fn a_truncated_file_is_detected_and_access_ends_with_a_message() {
        if let Some(path) = std::env::var_os(CHILD) {
            let mapping = Mapping::map(File::open(&path).unwrap()).unwrap();
            assert_eq!(mapping[100_000], 7);
            assert!(mapping.check_length().unwrap().is_ok());
            File::options().write(true).open(&path).unwrap().set_len(10).unwrap();
            assert_eq!(mapping.check_length().unwrap(), Err(10));
            std::process::exit(i32::from(mapping[100_000] == 7) + 40);
        }
        let folder = testkit::Folder::new();
        let path = folder.write("lost", [7; 200_000]);
        let name = "mapped::tests::a_truncated_file_is_detected_and_access_ends_with_a_message";
        let child = testkit::rerun_test(name).env(CHILD, &path).output().unwrap();
        assert_eq!(child.status.code(), Some(EXIT_FAILED), "{child:?}");
        assert!(child.stderr.ends_with(LOST), "{child:?}");
    }
}
