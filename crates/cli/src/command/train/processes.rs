//! A run whose ranks are processes: joins them over MPI before a file is touched; rank 0 does what
//! a run of one process does and tells the others what to train on.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use comm::Communicator;
use comm::mpi::{Found, Kind, Launcher, Mpi, PIECE_BYTES, launcher};
use data::Dataset;
use schema::{JobConfig, Rank};
use serde::{Deserialize, Serialize};
use train::run::{Event, Outcome, Processes, Reading, RunRequest, Start, TraceRequest, follow};

use crate::args::{self, Train, TransportChoice};
use crate::error::Error;
use crate::interrupt;
use crate::resolve::{Session, plan};

/// How long the first step may take, with all that comes before it: preparing data, reading a
/// checkpoint.
const FIRST_STEP: Duration = Duration::from_secs(1800);
/// How long a rank that ends the job waits to be ended.
const PATIENCE: Duration = Duration::from_secs(5);

/// This process among the ranks of a job.
pub struct World {
    mpi: Arc<Mpi>,
    /// Taken by the run.
    comm: Option<Communicator>,
    timeout: Duration,
    /// Whether the other ranks know what to train on.
    told: bool,
}

/// What rank 0 says once it knows.
#[derive(Serialize, Deserialize)]
enum Order {
    /// Nothing is trained: it ends with this code, and has said why.
    Refused(u8),
    /// Train this.
    Run(Box<Run>),
}

/// What a rank trains, whatever its own command line says.
#[derive(Serialize, Deserialize)]
struct Run {
    /// As TOML.
    config: String,
    /// As the JSON of a plan's file.
    plan: String,
    train: PathBuf,
    train_rows: Range<u64>,
    evaluation: Option<(PathBuf, Range<u64>)>,
    run_folder: PathBuf,
    checkpoint: Option<PathBuf>,
    trace: Option<(PathBuf, Range<u64>)>,
}

impl World {
    /// Joins the processes that a launcher started; none where ranks are threads.
    pub fn join(args: &args::Processes) -> Result<Option<Self>, Error> {
        let launcher = launcher::detect(|name| std::env::var(name).ok());
        let several = launcher.filter(|launcher| launcher.size > 1);
        match (args.transport, several) {
            (TransportChoice::InProcess, _) | (TransportChoice::Auto, None) => return Ok(None),
            (_, Some(Launcher { kind: Kind::Torchrun, size })) => {
                return Err(Error::Torchrun { size });
            }
            _ => {}
        }
        let found = find(args.mpi_library.as_deref(), launcher)?;
        let refused = |problem| Error::MpiStart { library: found.name().to_owned(), problem };
        let mpi = Arc::new(found.start(PIECE_BYTES).map_err(refused)?);
        let mut comm = Communicator::over(Arc::clone(&mpi) as _);
        let size = comm.world_size() as u32;
        if let Some(launcher) = launcher.filter(|launcher| launcher.size != size) {
            let library = format!("{} ({})", found.name(), found.interface().name());
            return Err(Error::OtherLauncher { launcher, library, size });
        }
        let timeout = Duration::from_secs(args.timeout);
        comm.set_timeout(Some(FIRST_STEP.max(timeout)));
        Ok(Some(Self { mpi, comm: Some(comm), timeout, told: false }))
    }

    /// Number of ranks.
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

    /// Trains on all ranks, as rank 0.
    pub fn lead(
        &mut self,
        reading: Reading,
        observe: &mut dyn FnMut(Event<'_>),
    ) -> Result<Outcome, Error> {
        self.tell(&Order::Run(Box::new(Run::of(reading.request())?)))?;
        let Some(comm) = self.comm.take() else { return Err(Error::NoProcesses) };
        let processes = Processes { comm, timeout: self.timeout };
        Ok(reading.lead(processes, observe)?)
    }

    /// Ends the job as rank 0, whatever came of it.
    pub fn end(
        mut self,
        result: Result<ExitCode, Error>,
        session: &Session,
    ) -> Result<ExitCode, Error> {
        match result {
            Ok(code) if self.told => self.finalize().map(|()| code),
            Ok(code) => {
                self.tell(&Order::Refused(0))?;
                self.finalize().map(|()| code)
            }
            Err(error) if self.told => {
                session.console.fail(&error);
                Ok(self.abort(error.exit_code()))
            }
            Err(error) => {
                self.tell(&Order::Refused(error.exit_code()))?;
                self.finalize()?;
                Err(error)
            }
        }
    }

    /// Takes part as another rank than 0. Says nothing unless it fails alone.
    pub fn follow(mut self, args: &Train, session: &Session) -> Result<ExitCode, Error> {
        let run = match self.hear()? {
            Order::Refused(code) => return self.finalize().map(|()| ExitCode::from(code)),
            Order::Run(run) => run,
        };
        match run.complete(args, session).and_then(|request| self.train(&request)) {
            Ok(()) => self.finalize().map(|()| ExitCode::SUCCESS),
            Err(error) => {
                if matches!(
                    &error,
                    Error::Train(
                        train::Error::OtherRequest { .. } | train::Error::NotShared { .. }
                    )
                ) {
                    // Every rank has found it; rank 0 says it and ends the job.
                    std::thread::sleep(PATIENCE);
                } else {
                    let (rank, host) = (self.rank(), train::run::host());
                    session.console.say(format_args!("rank {rank} on {host}:"));
                    session.console.fail(&error);
                }
                Ok(self.abort(error.exit_code()))
            }
        }
    }

    fn train(&mut self, request: &RunRequest) -> Result<(), Error> {
        let Some(comm) = self.comm.take() else { return Err(Error::NoProcesses) };
        Ok(follow(request, Processes { comm, timeout: self.timeout })?)
    }

    fn tell(&mut self, order: &Order) -> Result<(), Error> {
        let mut bytes = serde_json::to_vec(order).map_err(Error::Json)?;
        let Some(comm) = &mut self.comm else { return Err(Error::NoProcesses) };
        comm.broadcast(Rank(0), &mut bytes).map_err(train::Error::from)?;
        self.told = true;
        Ok(())
    }

    fn hear(&mut self) -> Result<Order, Error> {
        let mut bytes = Vec::<u8>::new();
        let Some(comm) = &mut self.comm else { return Err(Error::NoProcesses) };
        comm.broadcast(Rank(0), &mut bytes).map_err(train::Error::from)?;
        serde_json::from_slice(&bytes).map_err(Error::Json)
    }

    fn finalize(&self) -> Result<(), Error> {
        let ended = self.mpi.finalize();
        ended.map_err(|problem| Error::MpiStart { library: "MPI_Finalize".to_owned(), problem })
    }

    fn abort(&self, code: u8) -> ExitCode {
        self.mpi.abort(i32::from(code), PATIENCE);
        ExitCode::from(code)
    }
}

/// The library that was asked for, or the first that is there.
fn find(library: Option<&str>, launcher: Option<Launcher>) -> Result<Found, Error> {
    let tried = match library {
        Some(library) => Found::open(library).map_err(|error| vec![error]),
        None => Found::search(launcher.map(|launcher| launcher.kind)),
    };
    tried.map_err(|tried| Error::NoMpi { tried })
}

impl Run {
    fn of(request: &RunRequest) -> Result<Self, Error> {
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let evaluation = request.evaluation.as_ref();
        let checkpoint = match &request.start {
            Start::Fresh => None,
            Start::Checkpoint(folder) => Some(absolute(folder)),
        };
        let trace = request.trace.as_ref();
        let origin = || "the run of rank 0".to_owned();
        let config = request.config.to_toml();
        Ok(Self {
            config: config.map_err(|source| Error::Config { origin: origin(), source })?,
            plan: serde_json::to_string(&request.plan).map_err(Error::Json)?,
            train: absolute(request.train.dir()),
            train_rows: request.train_rows.clone(),
            evaluation: evaluation.map(|(data, rows)| (absolute(data.dir()), rows.clone())),
            run_folder: absolute(&request.run_folder),
            checkpoint,
            trace: trace.map(|trace| (absolute(&trace.folder), trace.steps.clone())),
        })
    }

    /// The run on this rank.
    fn complete(self, args: &Train, session: &Session) -> Result<RunRequest, Error> {
        let origin = "the run of rank 0";
        let config = JobConfig::parse(&self.config, &[])
            .map_err(|source| Error::Config { origin: origin.to_owned(), source })?;
        let plan = plan::parse(Path::new(origin), &self.plan, &config.model.tables)?;
        let train = Arc::new(Dataset::open(&self.train)?);
        let evaluation = match self.evaluation {
            None => None,
            Some((dir, rows)) if dir == self.train => Some((Arc::clone(&train), rows)),
            Some((dir, rows)) => Some((Arc::new(Dataset::open(&dir)?), rows)),
        };
        Ok(RunRequest {
            config,
            plan,
            train,
            train_rows: self.train_rows,
            evaluation,
            run_folder: self.run_folder,
            threads: session.threads,
            start: self.checkpoint.map_or(Start::Fresh, Start::Checkpoint),
            rule_change: args.rule_change.given(),
            trace: self.trace.map(|(folder, steps)| TraceRequest { folder, steps }),
            // Rank 0 says when the run ends; a signal to all must not end this rank before.
            stop: interrupt::stop_flag_unsaid(),
        })
    }
}
