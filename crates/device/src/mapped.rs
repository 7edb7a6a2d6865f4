//! Files mapped into memory, to read a few rows of a large table without reading the rest. Does not
//! interpret the bytes; the caller checks them first.
//!
//! # What a mapping promises
//! The bytes are those of the file *now*: another process that writes to the file changes them
//! under the reader, and one that cuts the file off makes the operating system send SIGBUS to
//! whoever touches the lost part, as does a disk that cannot be read. Checkpoints are written under
//! another name, renamed and never changed, and a deleted file stays mapped, so neither happens
//! unless another process damages the file meanwhile. [`Mapping::check_length`] turns most of that
//! into an error; what remains ends the program with a message instead of a core dump.
#![expect(unsafe_code, reason = "maps files, and catches the signal of a file that was cut off")]

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::sync::Once;

use memmap2::Mmap;

/// All bytes of a file, read when they are first touched.
#[derive(Debug)]
pub struct Mapping {
    file: File,
    bytes: Mmap,
}

impl Mapping {
    /// Maps all of `file`, to be read only.
    ///
    /// # Errors
    /// What the operating system said.
    pub fn map(file: File) -> io::Result<Self> {
        catch_lost_pages();
        // SAFETY: the mapping is read only and lives as long as the value. Nothing in this program
        // writes to a file under the name of a checkpoint; a foreign writer is the caller's risk,
        // who compares checksums before using the bytes and copies them out.
        let bytes = unsafe { Mmap::map(&file)? };
        Ok(Self { file, bytes })
    }

    /// Whether the file still has the length it was mapped with: the bytes beyond its end cannot be
    /// touched.
    ///
    /// # Errors
    /// The bytes that the file has now, or what the operating system said.
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

/// What is said when a page of a mapped file cannot be read.
const LOST: &[u8] =
    b"error: a file was cut off, or its disk could not be read, while it was mapped\n\
    hint: `rowmill checkpoint verify` says which file of a checkpoint is damaged\n";

/// Exit code of a command whose file was lost: as of any file that cannot be read.
const EXIT_FAILED: i32 = 1;

/// Ends the program with a message where a page of a mapped file cannot be read. The program cannot
/// continue: the instruction that touched the page cannot finish.
fn catch_lost_pages() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let handler: extern "C" fn(libc::c_int) = on_lost_page;
        // SAFETY: the handler makes only calls that are allowed in one (write, _exit), and the
        // signal's former handler was the default, which would have ended the program too.
        unsafe {
            libc::signal(libc::SIGBUS, handler as libc::sighandler_t);
        }
    });
}

extern "C" fn on_lost_page(_signal: libc::c_int) {
    // SAFETY: both calls are safe in a signal handler and the text is constant.
    unsafe {
        libc::write(libc::STDERR_FILENO, LOST.as_ptr().cast(), LOST.len());
        libc::_exit(EXIT_FAILED);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::{EXIT_FAILED, LOST, Mapping};

    /// Set for the child process that loses its file.
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
