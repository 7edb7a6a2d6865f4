//! Joins the processes of a job that a launcher started, over MPI and before any file is touched.
//! Rank 0 runs the command as a single process would, and sends orders to the other ranks. If a
//! rank fails, one error is printed and the whole job ends.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use comm::mpi::{Launcher, LauncherKind, Mpi, MpiLibrary, PIECE_BYTES, launcher};
use comm::{Communicator, SharedTransport};
use schema::{HostLayout, Rank};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::Session;
use crate::args::{self, Collectives, TransportChoice};
use crate::error::{EXIT_INTERRUPTED, Error, RunError, UsageError};
use crate::machine;

/// Time limit of everything up to the end of the first step, such as preparing data and reading a
/// checkpoint.
const FIRST_STEP: Duration = Duration::from_secs(1800);
/// Time for which a rank that aborts the job waits for the launcher to end it.
const ABORT_WAIT: Duration = Duration::from_secs(2);
/// Time that the launcher gets to pass on a message that a rank printed.
const OUTPUT_WAIT: Duration = Duration::from_millis(200);
/// Time for which a rank waits for the rank that reports the error, before it ends the job itself.
const REPORT_WAIT: Duration = Duration::from_secs(1);

/// Name of the file in the run folder that records the error which ended the run.
const FAILED: &str = "failed.txt";

/// The role of this process in the job.
pub enum Participation {
    Alone,
    /// The process ends with this code, because rank 0 reports an error that all ranks have.
    Refused(ExitCode),
    World(Box<World>),
}

impl Participation {
    /// Joins the processes that a launcher started, unless the command runs `alone`.
    pub fn join(args: &args::Processes, alone: bool) -> Result<Self, Error> {
        if alone {
            return Ok(Self::Alone);
        }
        let launcher = launcher::detect(|name| std::env::var(name).ok());
        match World::join(args, launcher) {
            Ok(world) => Ok(world.map_or(Self::Alone, |world| Self::World(Box::new(world)))),
            // Without MPI the processes cannot communicate. All processes have this error, so only
            // the first process reports it.
            Err(
                error
                @ Error::Usage(UsageError::Torchrun { .. } | UsageError::OtherLauncher { .. }),
            ) if launcher.is_some_and(|launcher| launcher.rank > 0) => {
                Ok(Self::Refused(ExitCode::from(error.exit_code())))
            }
            Err(error) => Err(error),
        }
    }

    /// Runs a command. The only process and rank 0 call `lead`, and rank 0 sends orders to the
    /// other ranks. Every rank other than 0 calls `follow`.
    pub fn run<T: DeserializeOwned>(
        self,
        session: &Session,
        lead: impl FnOnce(Option<&mut World>) -> Result<ExitCode, Error>,
        follow: impl FnOnce(&mut World, T) -> Result<(), Error>,
    ) -> Result<ExitCode, Error> {
        match self {
            Self::Refused(code) => Ok(code),
            Self::Alone => lead(None),
            Self::World(mut world) if world.is_leader() => {
                let result = lead(Some(&mut world));
                world.end(result, session)
            }
            Self::World(world) => {
                world.follow(session, |world, order| follow(world, order).map(|()| false))
            }
        }
    }
}

/// This process as one of the ranks of a job.
pub struct World {
    mpi: Arc<Mpi>,
    /// The kind of MPI library, for messages.
    library: &'static str,
    /// The host name of each rank, for messages.
    hosts: Vec<String>,
    /// The hosts of the ranks, as the MPI library names them.
    layout: HostLayout,
    launcher: Option<LauncherKind>,
    /// Number of ranks on this host that may use the same CPUs as this rank, including itself.
    sharers: usize,
    /// The folder of the file that records the error which ended the run. The folder is `None`
    /// until the run folder is known.
    run_folder: Option<PathBuf>,
    /// Communicator of all ranks. The field is `None` once the run has taken the communicator.
    comm: Option<Communicator>,
    /// Communicator for the barrier before MPI ends. The barrier is needed because `MPI_Finalize`
    /// hangs if a rank is lost.
    farewell: Communicator,
    timeout: Duration,
    collectives: Collectives,
    /// Whether rank 0 has sent the other ranks their order.
    order_sent: bool,
}

/// The order that rank 0 broadcasts to the other ranks.
#[derive(Serialize, Deserialize)]
enum WorldOrder<T> {
    /// The ranks have no work to do. All ranks end with this code, and rank 0 has reported the
    /// reason.
    Refused(u8),
    Do(T),
}

impl World {
    /// Joins the processes that a launcher started. Returns `None` if the ranks are threads of this
    /// process.
    fn join(args: &args::Processes, launcher: Option<Launcher>) -> Result<Option<Self>, Error> {
        let several = launcher.filter(|launcher| launcher.size > 1);
        match (args.transport, several) {
            (TransportChoice::InProcess, _) | (TransportChoice::Auto, None) => return Ok(None),
            (_, Some(Launcher { kind: LauncherKind::Torchrun, size, .. })) => {
                return Err(UsageError::Torchrun { size }.into());
            }
            _ => {}
        }
        let found = find(args.mpi_library.as_deref(), launcher)?;
        let refused = |problem| RunError::MpiStart { library: found.name().to_owned(), problem };
        let mpi = Arc::new(found.start(PIECE_BYTES).map_err(refused)?);
        let mut comm = Communicator::over(Arc::clone(&mpi) as _);
        let size = comm.world_size() as u32;
        if let Some(launcher) = launcher.filter(|launcher| launcher.size != size) {
            let library = format!("{} ({})", found.name(), found.interface().name());
            return Err(UsageError::OtherLauncher { launcher, library, size }.into());
        }
        let timeout = Duration::from_secs(args.timeout);
        comm.set_timeout(Some(FIRST_STEP.max(timeout)));
        // The text has two lines: the host, and the CPUs that this rank may use there.
        let own = format!("{}\n{}", train::run::host(), machine::allowed_cpus());
        let all = comm.all_gather(own.as_bytes()).map_err(train::Error::from)?;
        let sharers = all.iter().filter(|place| place.as_slice() == own.as_bytes()).count();
        let host = |place: &Vec<u8>| {
            String::from_utf8_lossy(place).lines().next().unwrap_or_default().to_owned()
        };
        let hosts = all.iter().map(host).collect();
        let layout = comm.gather_host_layout().map_err(train::Error::from)?;
        let mut farewell = comm.duplicate();
        if comm::Transport::rank(&*mpi) == 0 {
            // Rank 0 arrives last at the barrier, so the other ranks wait longer.
            farewell.set_timeout(Some(timeout));
        }
        let (comm, run_folder, order_sent) = (Some(comm), None, false);
        let (launcher, collectives) = (launcher.map(|launcher| launcher.kind), args.collectives);
        let library = found.interface().name();
        Ok(Some(Self {
            mpi,
            library,
            hosts,
            layout,
            launcher,
            sharers,
            run_folder,
            comm,
            farewell,
            timeout,
            collectives,
            order_sent,
        }))
    }

    /// Returns the launcher's command line for the same number of processes, to print before a
    /// command.
    pub fn start(&self) -> String {
        let program = match self.launcher {
            Some(LauncherKind::Slurm) => "srun --mpi=pmix",
            Some(LauncherKind::SlurmPmi2) => "srun --mpi=pmi2",
            _ => "mpirun",
        };
        format!("{program} -n {}", self.size())
    }

    /// Returns the number of threads of this rank, which is `--threads` or its share of the cores
    /// that it may use.
    pub fn threads(&self, session: &Session) -> usize {
        if session.has_own_threads {
            return session.threads;
        }
        (session.threads / self.sharers.max(1)).max(1)
    }

    /// Lists the ranks on the host of this rank, including itself.
    pub fn ranks_of_host(&self) -> Vec<Rank> {
        self.layout.ranks_of(self.layout.host(Rank(self.rank()))).to_vec()
    }

    /// Returns the hosts of all ranks.
    pub fn layout(&self) -> &HostLayout {
        &self.layout
    }

    /// Returns the number of ranks of the job.
    pub fn size(&self) -> u32 {
        comm::Transport::world_size(&*self.mpi) as u32
    }

    fn rank(&self) -> u32 {
        comm::Transport::rank(&*self.mpi) as u32
    }

    /// Returns whether this process is rank 0.
    pub fn is_leader(&self) -> bool {
        self.rank() == 0
    }

    /// Returns the name of the library that carries the messages.
    pub fn library(&self) -> String {
        format!("mpi ({})", self.library)
    }

    /// Returns whether the MPI library sums gradients, with a line that reports it.
    pub fn sums(&self) -> (bool, String) {
        let of = self.library;
        match (self.collectives, self.transport().sums()) {
            (Collectives::Own, _) => (false, "gradients: summed in rank order".to_owned()),
            (Collectives::Native, true) => (true, format!("gradients: MPI_Iallreduce of {of}")),
            (Collectives::Native, false) => {
                (false, format!("gradients: summed in rank order; no MPI_SUM is known of {of}"))
            }
        }
    }

    /// Returns the transport of this rank's messages. Communicators over it must be created on all
    /// ranks in the same order.
    pub fn transport(&self) -> SharedTransport {
        Arc::clone(&self.mpi) as _
    }

    /// Returns the time limit of a message after the first step.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Takes the communicator of all ranks, which can be taken only once.
    ///
    /// # Errors
    /// [`RunError::NoProcesses`] if it is called a second time.
    pub fn take_comm(&mut self) -> Result<Communicator, Error> {
        self.comm.take().ok_or(RunError::NoProcesses.into())
    }

    /// Duplicates the communicator of all ranks. All ranks must call this equally often.
    ///
    /// # Errors
    /// [`RunError::NoProcesses`] if the communicator was already taken.
    pub fn stream(&self) -> Result<Communicator, Error> {
        self.comm.as_ref().map(Communicator::duplicate).ok_or(RunError::NoProcesses.into())
    }

    /// Makes the first rank that fails record its error in `folder`, which all ranks must share.
    pub fn fail_into(&mut self, folder: &Path) {
        if self.is_leader() {
            // The record of an earlier run is removed before any rank can write a new one.
            drop(fs::remove_file(folder.join(FAILED)));
        }
        self.run_folder = Some(folder.to_owned());
    }

    /// Broadcasts from rank 0 the order that every rank executes. This function is called once in a
    /// run.
    pub fn broadcast_order<T: Serialize>(&mut self, what: T) -> Result<(), Error> {
        self.send_order(&WorldOrder::Do(what))
    }

    /// Ends the job as rank 0, after success or failure.
    pub fn end(
        mut self,
        result: Result<ExitCode, Error>,
        session: &Session,
    ) -> Result<ExitCode, Error> {
        match result {
            Ok(code) => {
                if !self.order_sent {
                    self.send_order(&WorldOrder::<()>::Refused(0))?;
                }
                Ok(self.leave(code, session))
            }
            Err(error) if self.order_sent => Ok(self.fail(error, session)),
            Err(error) => {
                // The error is reported before any rank ends, because the launcher may then end
                // this rank too.
                let code = error.exit_code();
                session.console.fail(&error);
                self.send_order(&WorldOrder::<()>::Refused(code))?;
                Ok(match self.finalize() {
                    Ok(()) => ExitCode::from(code),
                    Err(_) => self.abort(code),
                })
            }
        }
    }

    /// Runs `body` with the order of rank 0, on another rank. `body` returns whether it was
    /// interrupted. An error is reported only if rank 0 does not have the same error.
    pub fn follow<T: DeserializeOwned>(
        mut self,
        session: &Session,
        body: impl FnOnce(&mut Self, T) -> Result<bool, Error>,
    ) -> Result<ExitCode, Error> {
        let done = match self.receive_order() {
            Err(error) => return Ok(self.fail(error, session)),
            Ok(WorldOrder::Refused(code)) => return Ok(self.leave(ExitCode::from(code), session)),
            Ok(WorldOrder::Do(what)) => body(&mut self, what),
        };
        match done {
            Ok(interrupted) => {
                let code = if interrupted { EXIT_INTERRUPTED } else { 0 };
                Ok(self.leave(ExitCode::from(code), session))
            }
            Err(error) => Ok(self.fail(error, session)),
        }
    }

    /// Reports the error of this rank, unless another rank has already reported one, and ends all
    /// ranks.
    fn fail(&self, error: Error, session: &Session) -> ExitCode {
        let code = error.exit_code();
        let is_common = matches!(&error, Error::Usage(UsageError::Train { .. }));
        if is_common && !self.is_leader() {
            // Every rank has this error, so only rank 0 reports it and ends the job.
            std::thread::sleep(REPORT_WAIT);
            return self.abort(code);
        }
        let is_own = self.is_leader() && communication(&error).is_none();
        let error = if is_own { error } else { self.on_rank(error) };
        if is_common || self.is_first(&error) {
            session.console.fail(&error);
            // MPICH's launcher drops output that it has not read when the job ends.
            std::thread::sleep(OUTPUT_WAIT);
        } else {
            std::thread::sleep(REPORT_WAIT);
        }
        self.abort(code)
    }

    /// Adds to an error the rank and the host that report it, and the host of the rank that it
    /// names.
    fn on_rank(&self, error: Error) -> Error {
        use comm::Error::{Length, Mismatch, PeerLeft, Timeout};
        let peer = match communication(&error) {
            Some(
                PeerLeft { rank, .. }
                | Timeout { rank, .. }
                | Length { rank, .. }
                | Mismatch { there: rank, .. },
            ) => self.hosts.get(*rank as usize).map(|host| (*rank, host)),
            _ => None,
        };
        let peer =
            peer.map_or_else(String::new, |(rank, host)| format!("; rank {rank} runs on {host}"));
        let (rank, host) = (self.rank(), train::run::host());
        Error::OnRank { rank, host, peer, source: Box::new(error) }
    }

    /// Returns whether this rank is the first to fail. The error of the first rank that fails is
    /// recorded in the run folder.
    fn is_first(&self, error: &Error) -> bool {
        let Some(folder) = &self.run_folder else { return true };
        let begun = File::create_new(folder.join(FAILED));
        match begun {
            // If the record cannot be written, the error is still reported.
            Ok(mut file) => {
                drop(writeln!(file, "{error}"));
                true
            }
            Err(error) => error.kind() != ErrorKind::AlreadyExists,
        }
    }

    fn send_order<T: Serialize>(&mut self, order: &WorldOrder<T>) -> Result<(), Error> {
        let mut bytes = serde_json::to_vec(order)?;
        let Some(comm) = &mut self.comm else { return Err(RunError::NoProcesses.into()) };
        comm.broadcast(Rank(0), &mut bytes).map_err(train::Error::from)?;
        self.order_sent = true;
        Ok(())
    }

    fn receive_order<T: DeserializeOwned>(&mut self) -> Result<WorldOrder<T>, Error> {
        let mut bytes = Vec::<u8>::new();
        let Some(comm) = &mut self.comm else { return Err(RunError::NoProcesses.into()) };
        comm.broadcast(Rank(0), &mut bytes).map_err(train::Error::from)?;
        serde_json::from_slice(&bytes).map_err(Error::from)
    }

    /// Ends MPI together with the other ranks, or aborts the job if a rank is lost.
    fn leave(&mut self, code: ExitCode, session: &Session) -> ExitCode {
        match self.finalize() {
            Ok(()) => code,
            Err(error) => self.fail(error, session),
        }
    }

    fn finalize(&mut self) -> Result<(), Error> {
        self.farewell.barrier().map_err(train::Error::from)?;
        let ended = self.mpi.finalize();
        let library = || "MPI_Finalize".to_owned();
        Ok(ended.map_err(|problem| RunError::MpiStart { library: library(), problem })?)
    }

    fn abort(&self, code: u8) -> ExitCode {
        self.mpi.abort(i32::from(code), ABORT_WAIT);
        ExitCode::from(code)
    }
}

/// Opens the requested MPI library, or the first one that is found.
fn find(library: Option<&str>, launcher: Option<Launcher>) -> Result<MpiLibrary, Error> {
    let tried = match library {
        Some(library) => MpiLibrary::open(library).map_err(|error| vec![error]),
        None => MpiLibrary::search(launcher.map(|launcher| launcher.kind)),
    };
    Ok(tried.map_err(|tried| UsageError::NoMpi { tried })?)
}

/// Returns the failed exchange that an error reports, if it is one.
fn communication(error: &Error) -> Option<&comm::Error> {
    let Error::Run(RunError::Train { source }) = error else { return None };
    match source.cause() {
        train::Error::Communication(error) => Some(error),
        _ => None,
    }
}
