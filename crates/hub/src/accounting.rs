//! Asks Slurm's accounting about jobs that have ended, by `sacct`. [`crate::slurm`] asks the
//! controller, which forgets ended jobs after some minutes, and shows a requeued job only once.
//!
//! The JSON of `sacct` 22.05 has the exit code 0 for jobs that failed, so the columns are read as
//! text. A random delimiter keeps names that users choose from imitating other columns.

use std::collections::BTreeMap;
use std::path::Path;

use fleet::proto::{Body, GpuRun, RunReport};
use serde_json::json;

use crate::program;
use crate::runs::RunState;
use crate::slurm::{self, ClusterEntry};
use crate::tokens::hexadecimal;

/// Columns of `sacct`. The name is last, because it may contain line breaks.
const COLUMNS: &str = "JobIDRaw,JobID,State,ExitCode,Start,End,User,Account,Partition,JobName";
/// States of attempts that have ended, as `sacct` names them.
const STATES: &str = "BOOT_FAIL,CANCELLED,COMPLETED,DEADLINE,FAILED,NODE_FAIL,OUT_OF_MEMORY,\
                      PREEMPTED,REQUEUED,TIMEOUT";
/// Seconds by which questions overlap. The controller delivers ends of jobs late if the database
/// was away.
pub const OVERLAP_S: u64 = 3600;

/// One attempt of a job, which has ended. A requeued job has several attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedAttempt {
    job: String,
    /// Name of a task of an array; empty for other jobs.
    alias: String,
    /// State in lowercase, such as `node_fail`.
    state: String,
    exit_code: Option<i32>,
    exit_signal: Option<u32>,
    started_unix_s: u64,
    ended_unix_s: u64,
    user: String,
    account: String,
    partition: String,
    name: String,
}

/// The ends that are in the store, so that each is stored once.
#[derive(Clone, Debug, Default)]
pub struct AccountingHistory {
    /// Time of the last answer in seconds since 1970; `None` before the first one.
    asked_unix_s: Option<u64>,
    /// The end of the last attempt that is stored as the end of its run, by job.
    ends: BTreeMap<String, u64>,
    /// Ends of stored requeues, by job and start of the attempt.
    requeues: BTreeMap<(String, u64), u64>,
}

impl EndedAttempt {
    /// Asks `sacct` for all attempts that ended in the last seconds.
    ///
    /// # Errors
    /// The reason if there is no accounting, or if the answer has another form.
    pub fn ask(folder: Option<&Path>, last_s: u64) -> Result<Vec<Self>, String> {
        let mut random = [0; 12];
        getrandom::fill(&mut random).map_err(|error| error.to_string())?;
        let delimiter = hexadecimal(&random);
        let mut command = slurm::command(folder, "sacct");
        command.args(["--allusers", "--allocations", "--duplicates", "--noheader"]);
        command.args(["--parsable2", "--endtime=now"]);
        command.args([format!("--delimiter={delimiter}"), format!("--format={COLUMNS}")]);
        command.args([format!("--starttime=now-{last_s}seconds"), format!("--state={STATES}")]);
        command.env("SLURM_TIME_FORMAT", "%s");
        let answer = program::run(&mut command, "sacct", &[])?;
        parse(&String::from_utf8_lossy(&answer), &delimiter)
    }

    fn run(&self) -> GpuRun {
        GpuRun {
            scheduler: "slurm".to_owned(),
            job: self.job.clone(),
            name: self.name.clone(),
            user: self.user.clone(),
            account: self.account.clone(),
            partition: self.partition.clone(),
        }
    }

    /// Describes the end of the job. The report has the time of the end, so that it counts neither
    /// before this end nor after the begin of a later attempt.
    fn report(&self) -> RunReport {
        RunReport {
            seen_unix_s: self.ended_unix_s,
            run: Some(self.run()),
            alias: self.alias.clone(),
            workflow: self.name.clone(),
            started_unix_s: self.started_unix_s,
            ended_unix_s: Some(self.ended_unix_s),
            exit_code: self.exit_code,
            exit_signal: self.exit_signal,
            state: self.state.clone(),
            ..RunReport::default()
        }
    }

    /// Describes an attempt after which the job was started again.
    fn requeue(&self) -> Body {
        let Self { state, exit_code, exit_signal, name, .. } = self;
        let details = json!({
            "state": state,
            "exit_code": exit_code,
            "exit_signal": exit_signal,
            "workflow": name,
        });
        let mut event = slurm::event("requeue", details.to_string());
        event.start_unix_ms = self.started_unix_s * 1000;
        event.length_ms = self.ended_unix_s.saturating_sub(self.started_unix_s) * 1000;
        event.run = Some(self.run());
        Body::Event(Box::new(event))
    }
}

/// Parses the output of `sacct`. A line without the delimiter continues the name of the line
/// before.
fn parse(text: &str, delimiter: &str) -> Result<Vec<EndedAttempt>, String> {
    let mut attempts: Vec<Option<EndedAttempt>> = Vec::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.splitn(10, delimiter).collect();
        if let ([rest], Some(last)) = (&fields[..], attempts.last_mut()) {
            if let Some(attempt) = last {
                attempt.name.push('\n');
                attempt.name.push_str(rest);
            }
            continue;
        }
        let [job, task, state, exit, started, ended, user, account, partition, name] = fields[..]
        else {
            return Err(format!("sacct: expected 10 columns, got {}", fields.len()));
        };
        let (code, signal) = exit.split_once(':').unwrap_or((exit, ""));
        let attempt = || {
            let (started_unix_s, ended_unix_s): (u64, u64) =
                (started.parse().ok()?, ended.parse().ok()?);
            // A job that never started is not a run. It has a word instead of a time, or was
            // cancelled in the second of its start.
            let is_run = started_unix_s != ended_unix_s || !state.starts_with("CANCELLED");
            is_run.then(|| EndedAttempt {
                job: job.to_owned(),
                alias: if task == job { String::new() } else { task.to_owned() },
                // Cancelled jobs have the user id of whoever cancelled them: `CANCELLED by 0`.
                state: state.split(' ').next().unwrap_or_default().to_lowercase(),
                exit_code: code.parse().ok(),
                exit_signal: signal.parse().ok().filter(|signal| *signal > 0),
                started_unix_s,
                ended_unix_s,
                user: user.to_owned(),
                account: account.to_owned(),
                partition: partition.to_owned(),
                name: name.to_owned(),
            })
        };
        attempts.push(attempt());
    }
    Ok(attempts.into_iter().flatten().collect())
}

impl AccountingHistory {
    /// Creates a history in which the ends of runs of the store are known.
    pub fn from_runs(runs: &BTreeMap<String, RunState>) -> Self {
        let end = |(run, state): (&String, &RunState)| {
            // Agents also see a run end, but not how. Slurm's state is what counts.
            let ended = state.ended_unix_s.filter(|_| !state.state.is_empty())?;
            Some((run.strip_prefix("slurm/")?.to_owned(), ended))
        };
        Self { ends: runs.iter().filter_map(end).collect(), ..Self::default() }
    }

    /// Returns the length in seconds of the time until now about which to ask. `first_s` is that of
    /// the first question.
    pub fn span_s(&self, now_unix_s: u64, first_s: u64) -> u64 {
        self.asked_unix_s.map_or(first_s, |asked| now_unix_s.saturating_sub(asked) + OVERLAP_S)
    }

    /// Adds the ends that the controller has reported.
    pub fn add_reported(&mut self, entries: &[ClusterEntry]) {
        for entry in entries {
            if let Body::Run(report) = &entry.body
                && let (Some(run), Some(ended)) = (&report.run, report.ended_unix_s)
            {
                self.ends.insert(run.job.clone(), ended);
            }
        }
    }

    /// Returns the entries about attempts that are not in the store yet: the end of each job, and
    /// an event for each attempt after which it was started again.
    pub fn report(
        &mut self,
        mut attempts: Vec<EndedAttempt>,
        cluster: &str,
        now_unix_s: u64,
    ) -> Vec<ClusterEntry> {
        self.asked_unix_s = Some(now_unix_s);
        attempts.sort_by(|a, b| (&a.job, a.started_unix_s).cmp(&(&b.job, b.started_unix_s)));
        let mut entries = Vec::new();
        let mut add = |body| entries.push(ClusterEntry { host: cluster.to_owned(), body });
        for (at, attempt) in attempts.iter().enumerate() {
            let has_later = attempts.get(at + 1).is_some_and(|next| next.job == attempt.job);
            if has_later || attempt.state == "requeued" {
                let key = (attempt.job.clone(), attempt.started_unix_s);
                if self.requeues.insert(key, attempt.ended_unix_s).is_none() {
                    add(attempt.requeue());
                }
            } else if self.ends.get(&attempt.job).is_none_or(|end| *end < attempt.ended_unix_s) {
                self.ends.insert(attempt.job.clone(), attempt.ended_unix_s);
                add(Body::Run(Box::new(attempt.report())));
            }
        }
        entries
    }

    /// Forgets what ended so long ago that no question is about it any more.
    pub fn forget_before(&mut self, unix_s: u64) {
        self.ends.retain(|_, ended| *ended >= unix_s);
        self.requeues.retain(|_, ended| *ended >= unix_s);
    }
}

#[cfg(test)]
mod tests;
