//! The thread of a rank that reads and writes rows of tables in files beside the computation. Which
//! rows are moved is decided by `stored_tile`, and how they lie in a file by `row_store`.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use device::Pool;

use super::row_store::RowStore;
use crate::Error;

/// Number of threads that wait for the disk at the same time. Their number has little to do with
/// that of the processors, because an SSD serves many reads at once.
const WAITING_THREADS: usize = 8;

/// Rows of a file and their values, `[rows, width]`.
#[derive(Debug, Default)]
pub struct RowValuesInFile {
    pub rows: Vec<u64>,
    pub values: Vec<f32>,
}

/// Rows that a batch brings into a cache, and changed rows that lose their slots to them.
pub struct RowTransfer {
    pub store: Arc<RowStore>,
    /// Rows to read. Their values have the right length and any content.
    pub loaded: RowValuesInFile,
    /// Rows to write after the others were read. A transfer does not read rows that it writes.
    pub written_back: RowValuesInFile,
}

/// Reads and writes rows in the order of its requests. Writes are not waited for, so an error of a
/// write is returned by a later call.
pub struct RowIo {
    /// Is `None` once the thread is to end.
    requests: Option<Sender<IoRequest>>,
    loaded: Mutex<Receiver<LoadResult>>,
    thread: Option<JoinHandle<()>>,
}

/// A request to the thread.
enum IoRequest {
    Transfer(RowTransfer),
    /// Asks for an answer when all requests before are complete.
    Flush(Sender<Result<(), Error>>),
}

/// The rows of a transfer with their values, or the error of the file.
type LoadResult = Result<RowValuesInFile, Error>;

impl RowIo {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`Error::Thread`] if the operating system refuses.
    pub fn start() -> Result<Self, Error> {
        let (requests, received) = channel();
        let (sender, loaded) = channel();
        let work = move || serve(&received, &sender);
        let thread = std::thread::Builder::new().name("row io".to_owned()).spawn(work);
        let thread = Some(thread.map_err(|source| Error::Thread { source })?);
        Ok(Self { requests: Some(requests), loaded: Mutex::new(loaded), thread })
    }

    /// Begins to move rows.
    pub fn submit(&self, transfer: RowTransfer) {
        // If the thread has panicked, waiting for the rows reports it.
        let requests = self.requests.as_ref();
        let _ = requests.map(|requests| requests.send(IoRequest::Transfer(transfer)).is_ok());
    }

    /// Waits for the rows of the oldest transfer that was not returned yet.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::StoredRows`] of the file, also those of earlier writes.
    pub fn wait_for_rows(&self) -> Result<RowValuesInFile, Error> {
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.recv().unwrap_or_else(|_| panicked())
    }

    /// Waits until all rows that were submitted so far are written to their files.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::StoredRows`] of earlier writes.
    pub fn flush(&self) -> Result<(), Error> {
        let (answer, done) = channel();
        let requests = self.requests.as_ref();
        let _ = requests.map(|requests| requests.send(IoRequest::Flush(answer)).is_ok());
        done.recv().unwrap_or_else(|_| panicked())
    }
}

impl Drop for RowIo {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            // The compute thread reports a panic of this one when it waits for it.
            let _ = thread.join();
        }
    }
}

/// Serves requests until there can be no more.
fn serve(requests: &Receiver<IoRequest>, loaded: &Sender<LoadResult>) {
    let pool = Pool::new(WAITING_THREADS);
    let mut failed: Option<Error> = None;
    for request in requests {
        match request {
            IoRequest::Transfer(RowTransfer { store, loaded: mut rows, written_back }) => {
                if let Some(error) = failed.take() {
                    // The receiver is gone if the run has ended.
                    let _ = loaded.send(Err(error));
                    continue;
                }
                // Reads come first, because a step waits for them.
                let result = store.read(&pool, &rows.rows, &mut rows.values);
                let _ = loaded.send(result.map(|()| rows));
                failed = store.write(&pool, &written_back.rows, &written_back.values).err();
            }
            IoRequest::Flush(answer) => {
                let _ = answer.send(failed.take().map_or(Ok(()), Err));
            }
        }
    }
}

fn panicked() -> ! {
    unreachable!("the thread that reads and writes rows ends after its requests")
}
