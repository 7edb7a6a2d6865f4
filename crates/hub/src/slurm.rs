//! Asks Slurm about jobs and nodes, once per cluster, and turns the answers into reports of runs
//! and events.
//!
//! The programs `squeue` and `sinfo` answer in JSON, so that names that users choose cannot imitate
//! other fields. Their format differs between versions of Slurm: numbers and states are plain or
//! wrapped. `squeue` still lists jobs that ended some minutes ago, with their exit codes.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use fleet::proto::{Body, GpuRun, HostEvent, RunReport};
use serde::Deserialize;
use serde_json::json;

use crate::program;

/// Seconds after which something unchanged is reported again.
const AGAIN_S: u64 = 3600;
/// States of jobs that have ended.
const ENDED: [&str; 9] = [
    "boot_fail",
    "cancelled",
    "completed",
    "deadline",
    "failed",
    "node_fail",
    "out_of_memory",
    "preempted",
    "timeout",
];

/// The jobs and nodes of a cluster at one moment.
#[derive(Clone, Debug, Default)]
pub struct ClusterState {
    jobs: Vec<SlurmJob>,
    nodes: Vec<SlurmNode>,
}

/// An entry for the store, with the host or cluster that it describes.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterEntry {
    pub host: String,
    pub body: Body,
}

/// A job that runs, as Slurm knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningJob {
    /// The name that means this job only. The number of an array's last task means the whole array.
    pub name: String,
    pub user: String,
    /// Number of GPUs that the job asked for.
    pub gpus: u64,
}

/// The entries that were reported before, from which changes are found.
#[derive(Clone, Debug, Default)]
pub struct ClusterHistory {
    reported: BTreeMap<String, ReportedEntry>,
}

/// An entry that was reported, with the time of the report.
#[derive(Clone, Debug)]
struct ReportedEntry {
    /// The entry without its time.
    entry: ClusterEntry,
    reported_unix_s: u64,
}

/// The answer of `squeue --json`.
#[derive(Deserialize)]
struct JobsAnswer {
    jobs: Vec<SlurmJob>,
}

/// The answer of `sinfo --json`.
#[derive(Deserialize)]
struct NodesAnswer {
    nodes: Vec<SlurmNode>,
}

/// A job as `squeue --json` describes it.
#[derive(Clone, Debug, Deserialize)]
struct SlurmJob {
    job_id: u64,
    job_state: OneOrMany,
    #[serde(default)]
    name: String,
    #[serde(default)]
    user_name: String,
    #[serde(default)]
    account: String,
    #[serde(default)]
    partition: String,
    array_job_id: Option<SlurmNumber>,
    array_task_id: Option<SlurmNumber>,
    start_time: Option<SlurmNumber>,
    end_time: Option<SlurmNumber>,
    tasks: Option<SlurmNumber>,
    node_count: Option<SlurmNumber>,
    exit_code: Option<ExitCode>,
    #[serde(default)]
    tres_req_str: String,
    #[serde(default)]
    tres_per_node: String,
    #[serde(default)]
    tres_per_job: String,
}

/// A node as `sinfo --json` describes it.
#[derive(Clone, Debug, Deserialize)]
struct SlurmNode {
    name: String,
    state: OneOrMany,
    #[serde(default)]
    state_flags: Vec<String>,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    gres: String,
    #[serde(default)]
    gres_used: String,
}

/// A number, which newer versions wrap.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged)]
enum SlurmNumber {
    Plain(u64),
    Wrapped { set: bool, number: u64 },
}

/// A word, or several words in newer versions.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

/// How a job ended: the status of `wait` in older versions.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum ExitCode {
    Status(u64),
    Parts { return_code: SlurmNumber, signal: Option<ExitSignal> },
}

/// The signal that ended a job.
#[derive(Clone, Debug, Deserialize)]
struct ExitSignal {
    #[serde(alias = "signal_id")]
    id: Option<SlurmNumber>,
}

impl SlurmNumber {
    fn value(self) -> Option<u64> {
        match self {
            Self::Plain(number) => Some(number),
            Self::Wrapped { set, number } => set.then_some(number),
        }
    }
}

impl OneOrMany {
    /// Returns the words in lowercase.
    fn words(&self) -> Vec<String> {
        match self {
            Self::One(word) => vec![word.to_lowercase()],
            Self::Many(words) => words.iter().map(|word| word.to_lowercase()).collect(),
        }
    }
}

impl ExitCode {
    /// Returns the exit code and the signal of an ended job.
    fn parts(&self) -> (Option<i32>, Option<u32>) {
        let (code, signal) = match self {
            Self::Status(status) => (Some(status >> 8 & 0xff), Some(status & 0x7f)),
            Self::Parts { return_code, signal } => {
                let signal = signal.as_ref().and_then(|signal| signal.id?.value());
                (return_code.value(), signal)
            }
        };
        let signal = signal.filter(|signal| *signal > 0);
        let code = code.and_then(|code| i32::try_from(code).ok());
        (code, signal.and_then(|signal| u32::try_from(signal).ok()))
    }
}

impl ClusterState {
    /// Asks Slurm's programs, which lie in `folder` or are found by `PATH`.
    ///
    /// # Errors
    /// The reason if a program cannot be run, fails, or answers in an unknown format.
    pub fn ask(folder: Option<&Path>) -> Result<Self, String> {
        let jobs = run_program(folder, "squeue", &["--all", "--states=all", "--json"])?;
        let nodes = run_program(folder, "sinfo", &["--all", "--json"])?;
        Self::parse(&jobs, &nodes)
    }

    fn parse(jobs: &[u8], nodes: &[u8]) -> Result<Self, String> {
        let wrong = |program: &str, error| format!("{program}: expected Slurm's JSON: {error}");
        let jobs: JobsAnswer =
            serde_json::from_slice(jobs).map_err(|error| wrong("squeue", error))?;
        let nodes: NodesAnswer =
            serde_json::from_slice(nodes).map_err(|error| wrong("sinfo", error))?;
        Ok(Self { jobs: jobs.jobs, nodes: nodes.nodes })
    }

    /// Returns a job if it runs.
    pub fn running(&self, job: &str) -> Option<RunningJob> {
        let is_meant = |one: &&SlurmJob| one.job_id.to_string() == job && one.state() == "running";
        let job = self.jobs.iter().find(is_meant)?;
        let name = job.alias().unwrap_or_else(|| job.job_id.to_string());
        Some(RunningJob { name, user: job.user_name.clone(), gpus: job.gpus_wanted() })
    }

    /// Describes the cluster by reports of the runs that have started, the states of all nodes, and
    /// the demand of the jobs that wait. Times of events and reports are 0.
    fn describe(&self, cluster: &str) -> Vec<ClusterEntry> {
        let runs = self.jobs.iter().filter_map(SlurmJob::report);
        let runs = runs
            .map(|run| ClusterEntry { host: cluster.to_owned(), body: Body::Run(Box::new(run)) });
        let nodes = self.nodes.iter().map(|node| ClusterEntry {
            host: node.name.clone(),
            body: Body::Event(Box::new(node.event(cluster))),
        });
        let mut demand = BTreeMap::<&str, (u64, u64)>::new();
        for job in self.jobs.iter().filter(|job| job.state() == "pending") {
            let (jobs, gpus) = demand.entry(&job.partition).or_default();
            (*jobs, *gpus) = (*jobs + 1, *gpus + job.gpus_wanted());
        }
        let demand: BTreeMap<&str, _> = demand
            .into_iter()
            .map(|(partition, (jobs, gpus))| (partition, json!({ "jobs": jobs, "gpus": gpus })))
            .collect();
        let demand = event("demand", json!({ "pending": demand }).to_string());
        let demand = ClusterEntry { host: cluster.to_owned(), body: Body::Event(Box::new(demand)) };
        runs.chain(nodes).chain([demand]).collect()
    }
}

impl ClusterHistory {
    /// Returns the entries of a state that are new or changed, or were not reported for an hour.
    pub fn report(
        &mut self,
        state: &ClusterState,
        cluster: &str,
        now_unix_s: u64,
    ) -> Vec<ClusterEntry> {
        let mut reported = BTreeMap::new();
        let mut new = Vec::new();
        for entry in state.describe(cluster) {
            let key = match &entry.body {
                Body::Run(report) => {
                    format!("run {}", report.run.as_ref().map_or("", |run| &run.job))
                }
                Body::Event(event) => format!("{} {}", event.kind, entry.host),
                _ => continue,
            };
            let before = self.reported.get(&key).filter(|before| {
                before.entry == entry && now_unix_s.abs_diff(before.reported_unix_s) < AGAIN_S
            });
            if let Some(before) = before {
                reported.insert(key, before.clone());
                continue;
            }
            let reported_unix_s = now_unix_s;
            reported.insert(key, ReportedEntry { entry: entry.clone(), reported_unix_s });
            new.push(with_time(entry, now_unix_s));
        }
        self.reported = reported;
        new
    }
}

fn with_time(mut entry: ClusterEntry, now_unix_s: u64) -> ClusterEntry {
    match &mut entry.body {
        Body::Run(report) => report.seen_unix_s = now_unix_s,
        Body::Event(event) => event.start_unix_ms = now_unix_s * 1000,
        _ => {}
    }
    entry
}

/// Creates an event that is over, without its time.
pub fn event(kind: &str, details: String) -> HostEvent {
    HostEvent { kind: kind.to_owned(), is_over: true, details, ..HostEvent::default() }
}

impl SlurmJob {
    /// Returns the state in lowercase, without flags such as `completing`.
    fn state(&self) -> String {
        self.job_state.words().into_iter().next().unwrap_or_default()
    }

    /// Returns the report of the run, or `None` if the job has not started.
    fn report(&self) -> Option<RunReport> {
        let value = |number: Option<SlurmNumber>| number.and_then(SlurmNumber::value);
        let state = self.state();
        let started_unix_s = value(self.start_time).filter(|second| *second > 0)?;
        if state == "pending" {
            // The start of a job that waits is an estimate.
            return None;
        }
        let is_over = ENDED.contains(&state.as_str());
        let exit = self.exit_code.as_ref().filter(|_| is_over);
        let (exit_code, exit_signal) = exit.map_or((None, None), ExitCode::parts);
        Some(RunReport {
            run: Some(GpuRun {
                scheduler: "slurm".to_owned(),
                job: self.job_id.to_string(),
                name: self.name.clone(),
                user: self.user_name.clone(),
                account: self.account.clone(),
                partition: self.partition.clone(),
            }),
            alias: self.alias().unwrap_or_default(),
            workflow: self.name.clone(),
            started_unix_s,
            ended_unix_s: value(self.end_time).filter(|_| is_over),
            exit_code,
            exit_signal,
            ranks: value(self.tasks).and_then(|tasks| u32::try_from(tasks).ok()),
            state,
            ..RunReport::default()
        })
    }

    /// Returns the name of a task of an array.
    fn alias(&self) -> Option<String> {
        let array = self.array_job_id.and_then(SlurmNumber::value).filter(|job| *job > 0)?;
        let task = self.array_task_id.and_then(SlurmNumber::value)?;
        Some(format!("{array}_{task}"))
    }

    /// Returns the number of GPUs that the job asks for on all its nodes.
    fn gpus_wanted(&self) -> u64 {
        let all = self.tres_req_str.split(',').find_map(|part| part.strip_prefix("gres/gpu="));
        if let Some(all) = all.and_then(|number| number.parse().ok()) {
            return all;
        }
        let nodes = self.node_count.and_then(SlurmNumber::value).unwrap_or(1);
        gpus_in(&self.tres_per_job).max(gpus_in(&self.tres_per_node).saturating_mul(nodes))
    }
}

impl SlurmNode {
    fn event(&self, cluster: &str) -> HostEvent {
        let mut states = self.state.words();
        states.extend(self.state_flags.iter().map(|flag| flag.to_lowercase()));
        let details = json!({
            "cluster": cluster,
            "state": states,
            "reason": self.reason,
            "gpus": gpus_in(&self.gres),
            "gpus_used": gpus_in(&self.gres_used),
        });
        event("node", details.to_string())
    }
}

/// Adds up the GPUs of a list such as `gpu:h100:4(S:0-1),gpu:a100:2,shard:8` or `gres:gpu:2`.
fn gpus_in(list: &str) -> u64 {
    let mut depth = 0_u32;
    // Commas within parentheses separate sockets or indexes.
    let is_outside = |letter: &char| {
        match letter {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => return depth == 0,
        }
        false
    };
    let plain: String = list.chars().filter(is_outside).collect();
    let count = |part: &str| {
        let part = part.trim_start_matches("gres:").trim_start_matches("gres/");
        let mut words = part.split([':', '=']);
        let is_gpu = words.next() == Some("gpu");
        // A request without a number is for one GPU.
        is_gpu.then(|| words.next_back().and_then(|word| word.parse().ok()).unwrap_or(1))
    };
    plain.split(',').filter_map(count).fold(0, u64::saturating_add)
}

/// Cancels a job by its name.
///
/// # Errors
/// The reason if Slurm refuses.
pub fn cancel_job(folder: Option<&Path>, name: &str) -> Result<(), String> {
    run_program(folder, "scancel", &[name]).map(drop)
}

/// Runs a program of Slurm and returns its output.
fn run_program(folder: Option<&Path>, name: &str, arguments: &[&str]) -> Result<Vec<u8>, String> {
    program::run(command(folder, name).args(arguments), name, &[])
}

/// Creates the command of a program of Slurm, which lies in `folder` or is found by `PATH`.
pub fn command(folder: Option<&Path>, name: &str) -> Command {
    Command::new(folder.map_or_else(|| name.into(), |folder| folder.join(name)))
}

#[cfg(test)]
mod tests;
