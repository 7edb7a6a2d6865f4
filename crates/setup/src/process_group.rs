//! This process among those of a job that a launcher started: joined over MPI before a file is
//! touched. Rank 0 does what a command of one process does and says what the others do; who fails
//! says so once, and ends all.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use comm::mpi::{Launcher, LauncherKind, Mpi, MpiLibrary, PIECE_BYTES, launcher};
use comm::{Communicator, SharedTransport};
use schema::Rank;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::Session;
use crate::args::{self, Collectives, TransportChoice};
use crate::error::{EXIT_INTERRUPTED, Error, RunError, UsageError};
use crate::machine;

/// How long the first step may take, with all that comes before it: preparing data, reading a
/// checkpoint.
const FIRST_STEP: Duration = Duration::from_secs(1800);
/// How long a rank that ends the job waits to be ended.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long what was said takes to be passed on by the launcher, at most.
const PASSING_ON: Duration = Duration::from_millis(200);
/// How long a rank leaves it to the one that has said why.
const DEFERENCE: Duration = Duration::from_secs(1);

/// Name of the file in the run folder that records the error which ended the run.
const FAILED: &str = "failed.txt";

/// How this process takes part.
pub enum Participation {
    Alone,
    /// Not at all: rank 0 says why. It ends with this code.
    Said(ExitCode),
    World(Box<World>),
}

impl Participation {
    /// Joins the processes that a launcher started, unless this one is to be `alone`.
    pub fn join(args: &args::Processes, alone: bool) -> Result<Self, Error> {
        if alone {
            return Ok(Self::Alone);
        }
        let launcher = launcher::detect(|name| std::env::var(name).ok());
        match World::join(args, launcher) {
            Ok(world) => Ok(world.map_or(Self::Alone, |world| Self::World(Box::new(world)))),
            // They know nothing of each other, and all of them find the same.
            Err(
                error
                @ Error::Usage(UsageError::Torchrun { .. } | UsageError::OtherLauncher { .. }),
            ) if launcher.is_some_and(|launcher| launcher.rank > 0) => {
                Ok(Self::Said(ExitCode::from(error.exit_code())))
            }
            Err(error) => Err(error),
        }
    }

    /// Does a command as the only process or as rank 0, which tells the others what they need
    /// (`lead`), or as another rank (`follow`).
    pub fn run<T: DeserializeOwned>(
        self,
        session: &Session,
        lead: impl FnOnce(Option<&mut World>) -> Result<ExitCode, Error>,
        follow: impl FnOnce(&mut World, T) -> Result<(), Error>,
    ) -> Result<ExitCode, Error> {
        match self {
            Self::Said(code) => Ok(code),
            Self::Alone => lead(None),
            Self::World(mut world) if world.is_leader() => {
                let result = lead(Some(&mut world));
                world.end(result, session)
            }
            Self::World(world) => {
                world.follow(session, |world, told| follow(world, told).map(|()| false))
            }
        }
    }
}

/// This process among the ranks of a job.
pub struct World {
    mpi: Arc<Mpi>,
    /// The kind of library, for people.
    library: &'static str,
    /// Where each rank runs.
    hosts: Vec<String>,
    launcher: Option<LauncherKind>,
    /// Ranks of this host that may use the same CPUs as this one, itself included.
    sharers: usize,
    /// Where all ranks leave what ended the run, once it is known.
    run_folder: Option<PathBuf>,
    /// Taken by the run.
    comm: Option<Communicator>,
    /// What ranks meet on before they leave MPI, which cannot be left without one that is lost.
    farewell: Communicator,
    timeout: Duration,
    collectives: Collectives,
    /// Whether the other ranks know what to do.
    told: bool,
}

/// What rank 0 says once it knows.
#[derive(Serialize, Deserialize)]
enum WorldOrder<T> {
    /// Nothing: it ends with this code, and has said why.
    Refused(u8),
    Do(T),
}

impl World {
    /// Joins the processes that a launcher started; none where ranks are threads.
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
        // A line each: a host and the CPUs that a rank may use there.
        let own = format!("{}\n{}", train::run::host(), machine::allowed_cpus());
        let all = comm.all_gather(own.as_bytes()).map_err(train::Error::from)?;
        let sharers = all.iter().filter(|said| said.as_slice() == own.as_bytes()).count();
        let host = |said: &Vec<u8>| {
            String::from_utf8_lossy(said).lines().next().unwrap_or_default().to_owned()
        };
        let hosts = all.iter().map(host).collect();
        let mut farewell = comm.duplicate();
        if comm::Transport::rank(&*mpi) == 0 {
            // Rank 0 comes last, the others wait longer for it.
            farewell.set_timeout(Some(timeout));
        }
        let (comm, run_folder, told) = (Some(comm), None, false);
        let (launcher, collectives) = (launcher.map(|launcher| launcher.kind), args.collectives);
        let library = found.interface().name();
        Ok(Some(Self {
            mpi,
            library,
            hosts,
            launcher,
            sharers,
            run_folder,
            comm,
            farewell,
            timeout,
            collectives,
            told,
        }))
    }

    /// What starts as many processes again, ahead of the command.
    pub fn start(&self) -> String {
        let program = match self.launcher {
            Some(LauncherKind::Slurm) => "srun --mpi=pmix",
            Some(LauncherKind::SlurmPmi2) => "srun --mpi=pmi2",
            _ => "mpirun",
        };
        format!("{program} -n {}", self.size())
    }

    /// Threads that this rank computes with: those of the command line, else its share of the cores
    /// it may use.
    pub fn threads(&self, session: &Session) -> usize {
        if session.has_own_threads {
            return session.threads;
        }
        (session.threads / self.sharers.max(1)).max(1)
    }

    /// The ranks that run on the same host as this one, itself included.
    pub fn ranks_of_host(&self) -> Vec<Rank> {
        let own = self.hosts.get(self.rank() as usize);
        let of_host = (0..).zip(&self.hosts).filter(|(_, host)| Some(*host) == own);
        of_host.map(|(rank, _)| Rank(rank)).collect()
    }

    /// Number of ranks of the job.
    pub fn size(&self) -> u32 {
        comm::Transport::world_size(&*self.mpi) as u32
    }

    fn rank(&self) -> u32 {
        comm::Transport::rank(&*self.mpi) as u32
    }

    /// Whether this is rank 0.
    pub fn is_leader(&self) -> bool {
        self.rank() == 0
    }

    /// The library that carries the messages.
    pub fn library(&self) -> String {
        format!("mpi ({})", self.library)
    }

    /// Whether the library sums gradients, as requested; what the run reports of it.
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

    /// What carries this rank's messages. A communicator of its own over it is made on all ranks at
    /// the same point.
    pub fn transport(&self) -> SharedTransport {
        Arc::clone(&self.mpi) as _
    }

    /// How long a message is waited for after the first step.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// This rank's end of the communicator of all ranks, once.
    ///
    /// # Errors
    /// [`RunError::NoProcesses`] from the second time on.
    pub fn take_comm(&mut self) -> Result<Communicator, Error> {
        self.comm.take().ok_or(RunError::NoProcesses.into())
    }

    /// This rank's end of another communicator of all ranks. All of them ask as often.
    ///
    /// # Errors
    /// [`RunError::NoProcesses`] once the first has been taken.
    pub fn stream(&self) -> Result<Communicator, Error> {
        self.comm.as_ref().map(Communicator::duplicate).ok_or(RunError::NoProcesses.into())
    }

    /// From now on the rank that fails leaves what ended the job in `folder`, which all ranks see.
    pub fn fail_into(&mut self, folder: &Path) {
        if self.is_leader() {
            // Of an earlier run. Before any rank may leave another one there.
            drop(fs::remove_file(folder.join(FAILED)));
        }
        self.run_folder = Some(folder.to_owned());
    }

    /// Says what every rank does, as rank 0, once.
    pub fn tell<T: Serialize>(&mut self, what: T) -> Result<(), Error> {
        self.send(&WorldOrder::Do(what))
    }

    /// Ends the job as rank 0, whatever came of it.
    pub fn end(
        mut self,
        result: Result<ExitCode, Error>,
        session: &Session,
    ) -> Result<ExitCode, Error> {
        match result {
            Ok(code) => {
                if !self.told {
                    self.send(&WorldOrder::<()>::Refused(0))?;
                }
                Ok(self.leave(code, session))
            }
            Err(error) if self.told => Ok(self.fail(error, session)),
            Err(error) => {
                // Said before any rank ends: the launcher may then end this one too.
                let code = error.exit_code();
                session.console.fail(&error);
                self.send(&WorldOrder::<()>::Refused(code))?;
                Ok(match self.finalize() {
                    Ok(()) => ExitCode::from(code),
                    Err(_) => self.abort(code),
                })
            }
        }
    }

    /// Does, as another rank than 0, what rank 0 says, with `body`; whether that was interrupted.
    /// Says nothing unless it fails alone.
    pub fn follow<T: DeserializeOwned>(
        mut self,
        session: &Session,
        body: impl FnOnce(&mut Self, T) -> Result<bool, Error>,
    ) -> Result<ExitCode, Error> {
        let done = match self.hear() {
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

    /// Says what this rank met, unless another one has said what ended the run, and ends all ranks.
    fn fail(&self, error: Error, session: &Session) -> ExitCode {
        let code = error.exit_code();
        let is_common = matches!(&error, Error::Usage(UsageError::Train { .. }));
        if is_common && !self.is_leader() {
            // Every rank has found it; rank 0 says it and ends the job.
            std::thread::sleep(DEFERENCE);
            return self.abort(code);
        }
        let is_own = self.is_leader()
            && !matches!(
                &error,
                Error::Run(RunError::Train { source: train::Error::Communication(_) })
            );
        let error = if is_own { error } else { self.on_rank(error) };
        if is_common || self.is_first(&error) {
            session.console.fail(&error);
            // MPICH's launcher ends without passing on what it has not read by then.
            std::thread::sleep(PASSING_ON);
        } else {
            std::thread::sleep(DEFERENCE);
        }
        self.abort(code)
    }

    /// The error with where it was met, and where the rank runs that it names.
    fn on_rank(&self, error: Error) -> Error {
        use comm::Error::{Length, Mismatch, PeerLeft, Timeout};
        let peer = match &error {
            Error::Run(RunError::Train {
                source:
                    train::Error::Communication(
                        PeerLeft { rank, .. }
                        | Timeout { rank, .. }
                        | Length { rank, .. }
                        | Mismatch { there: rank, .. },
                    ),
            }) => self.hosts.get(*rank as usize).map(|host| (*rank, host)),
            _ => None,
        };
        let peer =
            peer.map_or_else(String::new, |(rank, host)| format!("; rank {rank} runs on {host}"));
        let (rank, host) = (self.rank(), train::run::host());
        Error::OnRank { rank, host, peer, source: Box::new(error) }
    }

    /// Whether no other rank has left what ended the run. Leaves it.
    fn is_first(&self, error: &Error) -> bool {
        let Some(folder) = &self.run_folder else { return true };
        let begun = File::create_new(folder.join(FAILED));
        match begun {
            // What cannot be written is said all the same.
            Ok(mut file) => {
                drop(writeln!(file, "{error}"));
                true
            }
            Err(error) => error.kind() != ErrorKind::AlreadyExists,
        }
    }

    fn send<T: Serialize>(&mut self, order: &WorldOrder<T>) -> Result<(), Error> {
        let mut bytes = serde_json::to_vec(order)?;
        let Some(comm) = &mut self.comm else { return Err(RunError::NoProcesses.into()) };
        comm.broadcast(Rank(0), &mut bytes).map_err(train::Error::from)?;
        self.told = true;
        Ok(())
    }

    fn hear<T: DeserializeOwned>(&mut self) -> Result<WorldOrder<T>, Error> {
        let mut bytes = Vec::<u8>::new();
        let Some(comm) = &mut self.comm else { return Err(RunError::NoProcesses.into()) };
        comm.broadcast(Rank(0), &mut bytes).map_err(train::Error::from)?;
        serde_json::from_slice(&bytes).map_err(Error::from)
    }

    /// Ends MPI with the other ranks, or all of them where one is lost.
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
        self.mpi.abort(i32::from(code), PATIENCE);
        ExitCode::from(code)
    }
}

/// The requested library, or the first one found.
fn find(library: Option<&str>, launcher: Option<Launcher>) -> Result<MpiLibrary, Error> {
    let tried = match library {
        Some(library) => MpiLibrary::open(library).map_err(|error| vec![error]),
        None => MpiLibrary::search(launcher.map(|launcher| launcher.kind)),
    };
    Ok(tried.map_err(|tried| UsageError::NoMpi { tried })?)
}
