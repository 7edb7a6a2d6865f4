//! Finds and reads the jobs of a recorded suite: folders that hold a timeline, the execution trace
//! of the same model, and sometimes the time of steps without the profiler. Their predictions are
//! in `suite_tables`.

use std::fs;
use std::path::{Path, PathBuf};

use predict::calibration::shipped::JobKind;
use predict::calibration::{Calibration, recording_cost};
use predict::program::Action;
use predict::recording::Step;
use schema::Topology;
use serde::Serialize;
use serde_json::Value;
use trace::execution_trace::ExecutionTrace;

use super::execution_step::read_execution_traces;
use setup::Session;
use setup::error::Error;
use setup::recorded_steps::{
    Steps, collect_samples, open_recordings, prepare_job, read_steps, recorded_machine,
    whole_scopes,
};

/// File with the times of steps without the profiler, as `bench/collect` writes it.
const TIMES: &str = "times.json";

/// The files of a job of a suite.
pub struct JobFiles {
    /// Folder of the job, relative to the suite.
    pub name: String,
    timeline: PathBuf,
    execution: PathBuf,
    times: Option<PathBuf>,
    /// Times of the same model at other batch sizes, of which no step was recorded.
    other_times: Vec<(String, PathBuf)>,
}

/// The measured step of a model at a batch size at which no step was recorded.
pub struct OtherBatch {
    /// Folder of the measurement, relative to the suite.
    pub name: String,
    pub batch: u64,
    pub unrecorded_ns: i64,
}

/// A recorded job of a suite.
pub struct SuiteJob {
    pub name: String,
    pub batch: Option<u64>,
    pub other_batches: Vec<OtherBatch>,
    /// Name of the device, or "CPU" for a job without one.
    pub device: String,
    pub topology: Option<Topology>,
    pub executions: Vec<ExecutionTrace>,
    pub steps: Vec<Step>,
    /// Median time of a step without the profiler.
    pub unrecorded_ns: Option<i64>,
    /// Time that the profiler needed for an event, if the times without it show it.
    pub event_ns: Option<f64>,
}

/// The predicted step of one rank of a job. Errors are in percent of the measured time, with their
/// sign.
#[derive(Clone, Debug, Serialize)]
pub struct JobErrorRow {
    pub job: String,
    pub device: String,
    pub batch: Option<u64>,
    pub rank: u32,
    pub is_recommender: bool,
    /// Number of outermost operators of a step.
    pub operators: usize,
    /// Time of a step without the profiler, or of a recorded step if no other was measured.
    pub measured_ns: f64,
    /// Error of the device's time, without exchanges between ranks.
    pub active_pct: Option<f64>,
    /// Error of the step with the overheads of the job's own recording.
    pub own_pct: f64,
    /// Error of the step with the overheads of other jobs.
    pub shared_pct: f64,
    pub shared_from: String,
    /// Error of the sum of the kernels' times.
    pub kernel_only_pct: Option<f64>,
    /// Error of the baseline that the step takes as long as with the profiler, or at the recorded
    /// batch size.
    pub unchanged_pct: Option<f64>,
    /// Error of a line through the device's other jobs, from the logarithm of the number of
    /// operators to that of the step.
    pub line_pct: Option<f64>,
    /// Error of the median of the device's other jobs, which is what gradient-boosted trees with
    /// at least 20 rows in a leaf learn from fewer than 40 jobs.
    pub trees_pct: Option<f64>,
}

/// Finds the jobs of a suite in a folder and the folders inside it.
///
/// # Errors
/// Returns an error if a folder cannot be read.
pub fn find_jobs(suite: &Path) -> Result<Vec<JobFiles>, Error> {
    let (mut open, mut jobs): (_, Vec<JobFiles>) = (vec![suite.to_owned()], Vec::new());
    let mut timed = Vec::new();
    while let Some(folder) = open.pop() {
        let entries = fs::read_dir(&folder).map_err(Error::io(&folder, "read"))?;
        let paths = entries.map(|entry| entry.map(|entry| entry.path()));
        let mut paths = paths.collect::<Result<Vec<_>, _>>().map_err(Error::io(&folder, "read"))?;
        // Of several timelines, the one with the shortest name is the job's main one.
        paths.sort_by_key(|path| (path.as_os_str().len(), path.clone()));
        let find = |is_wanted: &dyn Fn(&str) -> bool| {
            let has_name = |path: &Path| {
                path.file_name().and_then(|name| name.to_str()).is_some_and(is_wanted)
            };
            paths.iter().find(|path| path.is_file() && has_name(path)).cloned()
        };
        let execution = find(&|name| name.starts_with("execution.") || name.contains("_et."));
        // `linear_et` belongs to `linear_kineto`.
        let stem = execution.as_ref().and_then(|path| path.file_stem()?.to_str()).unwrap_or("");
        let prefix = stem.split_once('_').map_or("", |(prefix, _)| prefix);
        let timeline = find(&|name| name.starts_with(prefix) && name.contains("kineto"));
        let times = find(&|name| name == TIMES);
        let inside = folder.strip_prefix(suite).ok().filter(|path| *path != Path::new(""));
        let name = inside.or(suite.file_name().map(Path::new)).unwrap_or(suite);
        let name = name.display().to_string();
        match (timeline, execution, times) {
            (Some(timeline), Some(execution), times) => {
                let other_times = Vec::new();
                jobs.push(JobFiles { name, timeline, execution, times, other_times });
            }
            (_, _, Some(times)) => timed.push((name, times)),
            _ => {}
        }
        open.extend(paths.into_iter().filter(|path| path.is_dir()));
    }
    jobs.sort_by(|a, b| a.name.cmp(&b.name));
    timed.sort();
    for (name, times) in timed {
        if let Some(job) = jobs.iter_mut().find(|job| model(&job.name) == model(&name)) {
            job.other_times.push((name, times));
        }
    }
    Ok(jobs)
}

/// Returns the name of a job without its batch size, such as `dlrm-ddp` of `dlrm-ddp-b512`.
pub fn model(job: &str) -> &str {
    let is_batch = |text: &str| !text.is_empty() && text.bytes().all(|one| one.is_ascii_digit());
    job.rsplit_once("-b").filter(|parts| is_batch(parts.1)).map_or(job, |parts| parts.0)
}

/// Reads the batch size and the median time of steps without the profiler.
fn read_times(path: &Path) -> Result<(Option<u64>, Option<i64>), Error> {
    let text = fs::read(path).map_err(Error::io(path, "read"))?;
    let times: Value =
        serde_json::from_slice(&text).map_err(|error| predict::Error::Unrecorded {
            expected: format!("JSON with step_us.median in {}", path.display()),
            got: error.to_string(),
        })?;
    let us = times["step_us"]["median"].as_f64();
    Ok((times["batch"].as_u64(), us.map(|us| (1e3 * us).round() as i64)))
}

/// Reads a job. Returns `None`, with a warning, for a job of a device that is not in the table of
/// hardware.
///
/// # Errors
/// Returns an error if a file of the job cannot be read.
pub fn read_job(files: JobFiles, session: &Session) -> Result<Option<SuiteJob>, Error> {
    let traces = open_recordings(std::slice::from_ref(&files.timeline), session)?;
    let device = recorded_machine(&traces).devices.into_iter().next();
    let mut topology = match device.as_deref().map(Topology::parse).transpose() {
        Ok(topology) => topology,
        Err(error) => {
            session.console.warn(format_args!("{} is left out: {error}", files.name));
            return Ok(None);
        }
    };
    if let Some(topology) = &mut topology {
        topology.ranks_per_host = topology.ranks_per_host.max(traces.len() as u32);
    }
    let scopes = whole_scopes(&traces);
    let steps = read_steps(&prepare_job(&scopes, session), &Steps::find(&scopes)?)?;
    let (batch, unrecorded_ns) = match &files.times {
        Some(path) => read_times(path)?,
        None => (None, None),
    };
    let mut other_batches = Vec::new();
    for (name, path) in files.other_times {
        if let (Some(batch), Some(unrecorded_ns)) = read_times(&path)? {
            other_batches.push(OtherBatch { name, batch, unrecorded_ns });
        }
    }
    let calibrate = |event_ns| collect_samples(&steps, traces.len(), event_ns);
    // A job whose device binds shows nothing of the host, and is refused by the function.
    let event_ns =
        unrecorded_ns.and_then(|ns| recording_cost::event_ns(&steps, ns, calibrate).ok());
    Ok(Some(SuiteJob {
        name: files.name,
        batch,
        other_batches,
        device: device.unwrap_or_else(|| "CPU".to_owned()),
        topology,
        executions: read_execution_traces(&[files.execution], session)?,
        steps,
        unrecorded_ns,
        event_ns,
    }))
}

impl SuiteJob {
    /// Returns the kind of the job.
    pub fn kind(&self) -> JobKind {
        JobKind::from_traces(&self.executions)
    }

    /// Returns whether the model looks up embeddings, as recommendation models do.
    pub fn is_recommender(&self) -> bool {
        self.kind() == JobKind::Recommendation
    }

    /// Collects the samples of all ranks, without the time that the profiler needed.
    pub fn samples(&self) -> Calibration {
        collect_samples(&self.steps, self.ranks(), self.event_ns.unwrap_or_default())
    }

    /// Returns the number of recorded ranks.
    pub fn ranks(&self) -> usize {
        self.steps.first().map_or(0, |step| step.program.ranks.len())
    }

    /// Returns the mean recorded time of a rank's steps.
    pub fn recorded_ns(&self, rank: usize) -> f64 {
        let times = self.steps.iter().map(|step| step.recorded.ranks[rank].step_ns as f64);
        times.sum::<f64>() / self.steps.len().max(1) as f64
    }

    /// Returns the number of outermost operators of a rank's first step.
    pub fn operators(&self, rank: usize) -> usize {
        let threads = self.steps.first().map_or(&[][..], |step| &step.program.ranks[rank].threads);
        let actions = threads.iter().flat_map(|thread| &thread.actions);
        actions.filter(|action| matches!(action, Action::Begin(_))).count()
    }
}
