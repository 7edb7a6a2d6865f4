//! The MPI transport, for ranks that are processes on any hosts.
//!
//! The library is opened at run time, and one thread makes all calls to it. MPI is not linked, so
//! all other parts of the program work without it.

use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use crate::element::Pool;
use crate::message::RankMessage;
use crate::transport::{Deadline, Transport, TransportFailure};

mod ffi;
pub mod launcher;
mod library;
mod progress;

pub use launcher::{Launcher, LauncherKind};
pub use library::{Interface, OpenError, candidates};

use ffi::{Initialized, MpiFunctions, MpiHandle};
use progress::{ProgressShared, ProgressTask};

/// Largest size of one MPI message in bytes. MPI counts bytes in a C `int`, so it must be below
/// 2³¹.
pub const PIECE_BYTES: usize = 1 << 30;

/// An opened MPI library that has the required functions. MPI itself is not started yet.
pub struct MpiLibrary {
    library: MpiHandle,
}

impl MpiLibrary {
    /// Opens one library by name or path.
    ///
    /// # Errors
    /// [`OpenError`] if the library is absent, unknown or lacks a function.
    pub fn open(name: &str) -> Result<Self, OpenError> {
        MpiHandle::open(name).map(|library| Self { library })
    }

    /// Opens the first of the [`candidates`] that can be used.
    ///
    /// # Errors
    /// Returns the reason for each candidate if none can be used.
    pub fn search(launcher: Option<LauncherKind>) -> Result<Self, Vec<OpenError>> {
        let mut errors = Vec::new();
        for name in candidates(launcher) {
            match Self::open(name) {
                Ok(found) => return Ok(found),
                Err(error) => errors.push(error),
            }
        }
        Err(errors)
    }

    /// Returns the name or path under which the library was opened.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.library.name
    }

    /// Returns the version text that the library reports.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.library.version
    }

    /// Returns the binary interface of the library.
    #[must_use]
    pub fn interface(&self) -> Interface {
        self.library.interface
    }

    /// Starts MPI on a new thread, at most once per process. Large payloads are sent in pieces of
    /// at most `piece_bytes`, which must not exceed [`PIECE_BYTES`].
    ///
    /// # Errors
    /// Returns the error text of MPI, or the function that the library lacks.
    pub fn start(&self, piece_bytes: usize) -> Result<Mpi, String> {
        let (told, hears) = mpsc::channel();
        let library = self.library.clone();
        let piece = piece_bytes.clamp(1, PIECE_BYTES);
        let serve = move || {
            // Make the closure capture the whole `MpiHandle`. A closure that captured only its raw
            // pointer would not be `Send`.
            let library = library;
            match library.interface {
                Interface::Mpich => serve(library.integers(), piece, &told),
                Interface::OpenMpi | Interface::Standard => {
                    serve(library.addresses(), piece, &told);
                }
            }
        };
        let named = std::thread::Builder::new().name("mpi".to_owned());
        named.spawn(serve).map_err(|error| format!("cannot start a thread: {error}"))?;
        hears.recv().map_err(|_| "MPI ended the thread that started it".to_owned())?
    }
}

/// Channel on which the MPI thread reports that it has started, or why it failed.
type Told = mpsc::Sender<Result<Mpi, String>>;

fn serve<H: Copy>(table: Result<MpiFunctions<H>, OpenError>, piece: usize, told: &Told) {
    // The caller of `start` waits for the answer, so every answer is received.
    let started = table.map_err(|error| error.to_string());
    let started = started.and_then(|table| {
        let world = table.init()?;
        let host_name = table.processor_name()?;
        Ok((table, world, host_name))
    });
    let (table, world, host_name) = match started {
        Ok(started) => started,
        Err(problem) => return told.send(Err(problem)).unwrap_or_default(),
    };
    let shared = Arc::new(ProgressShared::new(world.size, piece));
    let mpi = Mpi { world, host_name, sums: table.sums(), shared: Arc::clone(&shared) };
    if told.send(Ok(mpi)).is_ok() {
        progress::serve(&table, &shared, world);
    }
}

/// The transport of this process over the ranks of `MPI_COMM_WORLD`.
pub struct Mpi {
    world: Initialized,
    host_name: String,
    sums: bool,
    shared: Arc<ProgressShared>,
}

impl Mpi {
    /// Returns the level of thread support that MPI grants: 0 single, 1 funneled, 2 serialized, 3
    /// multiple.
    #[must_use]
    pub fn thread_level(&self) -> i32 {
        self.world.thread_level
    }

    /// Shuts MPI down after all messages have been sent. Every rank must call it, and only after
    /// success, because after a failure of another rank it may never return.
    ///
    /// # Errors
    /// Returns the error text of MPI.
    pub fn finalize(&self) -> Result<(), String> {
        let (reply, hears) = mpsc::channel();
        self.shared.ask(ProgressTask::Finalize(reply));
        hears.recv().map_err(|_| "MPI has already ended".to_owned())?
    }

    /// Ends all ranks with exit code `code`. Returns after `patience` if this process is still
    /// running.
    pub fn abort(&self, code: i32, patience: Duration) {
        self.shared.ask(ProgressTask::Abort(code));
        std::thread::sleep(patience);
    }
}

impl Transport for Mpi {
    fn name(&self) -> &'static str {
        "mpi"
    }

    fn rank(&self) -> usize {
        self.world.rank
    }

    fn world_size(&self) -> usize {
        self.world.size
    }

    fn host_name(&self) -> &str {
        &self.host_name
    }

    fn send(&self, to: usize, message: RankMessage) -> Result<(), TransportFailure> {
        if to == self.world.rank {
            self.shared.mailbox.put(to, message);
        } else {
            self.shared.ask(ProgressTask::Send(to, message));
        }
        Ok(())
    }

    fn receive(
        &self,
        from: usize,
        channel: u32,
        deadline: Deadline,
    ) -> Result<RankMessage, TransportFailure> {
        self.shared.mailbox.take(from, channel, deadline)
    }

    fn probe(
        &self,
        from: usize,
        channel: u32,
        deadline: Deadline,
    ) -> Result<bool, TransportFailure> {
        self.shared.mailbox.look(from, channel, deadline)
    }

    fn sums(&self) -> bool {
        self.sums
    }

    fn sum(&self, values: Vec<f32>, deadline: Deadline) -> Result<Vec<f32>, TransportFailure> {
        let (reply, hears) = mpsc::channel();
        self.shared.ask(ProgressTask::Sum(values, reply));
        let broken = || TransportFailure::Broken("MPI_Iallreduce failed".to_owned());
        match deadline {
            Deadline::Never => hears.recv().map_err(|_| broken()),
            Deadline::At(at) => {
                let left = at.saturating_duration_since(Instant::now());
                hears.recv_timeout(left).map_err(|error| match error {
                    RecvTimeoutError::Timeout => TransportFailure::Late,
                    RecvTimeoutError::Disconnected => broken(),
                })
            }
        }
    }

    fn leave(&self) {
        // Peers hear of it from the launcher, which ends them.
        self.shared.mailbox.fail("this rank has left".to_owned());
    }

    fn pool(&self) -> &Pool {
        &self.shared.pool
    }
}
