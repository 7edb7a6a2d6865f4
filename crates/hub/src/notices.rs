//! Tells owners that their runs hold GPUs without work, and later cancels such runs of Slurm, if
//! the configuration wants it.
//!
//! [`idle`] finds the runs, [`rules`] has the configuration, and [`send`] delivers. Each notice is
//! on disk before it is sent, so that it is sent at most once, also if the hub is killed.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::audit::{AuditLine, AuditLog};
use crate::error::Error;
use crate::log::say;
use crate::slurm::{ClusterState, cancel_job};
use crate::store::StoreFolder;
use crate::time::DAY_S;

pub mod idle;
pub mod rules;
pub mod send;

use idle::{IdleGpus, IdleRun};
use rules::NoticeRules;
use send::NoticeSender;

/// For how long notices are kept, in seconds, and how many at most.
const KEPT_S: u64 = 30 * DAY_S;
const KEPT_MAX: usize = 10_000;
/// Number of times that a run is tried to be cancelled.
const CANCELS_MAX: u32 = 3;
/// Name of the hub in the audit log.
const HUB: &str = "rowmill-hub";
/// Interval at which the thread checks whether the hub is ending.
const TICK: Duration = Duration::from_millis(200);

/// A notice to the owner of a run, and what became of it and of the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OwnerNotice {
    /// When the notice was decided, in seconds since 1970.
    pub time_unix_s: u64,
    #[serde(flatten)]
    pub run: IdleRun,
    pub is_dry_run: bool,
    /// What the owner reads.
    pub text: String,
    /// The ways on which the notice was sent: `webhook` and `command`. None in a dry run.
    pub sent: Vec<String>,
    pub problems: Vec<String>,
    /// What became of the run afterwards; `None` if nothing was to be done.
    pub cancel: Option<RunCancel>,
}

/// Whether a run was cancelled, or would be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunCancel {
    /// Time of the last attempt in seconds since 1970.
    pub time_unix_s: u64,
    pub is_done: bool,
    pub attempts: u32,
    pub why: String,
}

/// A run with idle GPUs whose owner is not told now.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HeldNotice {
    #[serde(flatten)]
    pub run: IdleRun,
    pub why: String,
}

/// All notices of a time, and the runs that have idle GPUs now.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NoticeAnswer {
    pub since_unix_s: u64,
    pub until_unix_s: u64,
    /// Whether the hub looks for idle GPUs.
    pub is_on: bool,
    pub is_dry_run: bool,
    /// Time of the last look in seconds since 1970; `None` before the first.
    pub looked_unix_s: Option<u64>,
    pub notices: Vec<OwnerNotice>,
    /// What the last look found besides.
    pub held_back: Vec<HeldNotice>,
}

/// The notices of a store.
pub struct NoticeBoard {
    folder: Arc<StoreFolder>,
    rules: Option<NoticeRules>,
    state: Mutex<BoardState>,
}

/// What is known about notices.
#[derive(Debug, Default)]
struct BoardState {
    /// In the order of time.
    notices: Vec<OwnerNotice>,
    held_back: Vec<HeldNotice>,
    looked_unix_s: Option<u64>,
}

/// The thread that looks for idle GPUs.
pub struct NoticeWatch {
    board: Arc<NoticeBoard>,
    rules: NoticeRules,
    sender: NoticeSender,
    audit: Arc<AuditLog>,
    /// Whether Slurm is asked, and the folder of its programs.
    slurm: Option<Option<PathBuf>>,
    idle: IdleGpus,
    stop: Arc<AtomicBool>,
}

impl NoticeBoard {
    /// Reads the notices of a store.
    ///
    /// # Errors
    /// If the file is damaged or cannot be read.
    pub fn open(folder: Arc<StoreFolder>, rules: Option<NoticeRules>) -> Result<Self, Error> {
        let path = folder.notices_path();
        let notices = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|error| Error::io(&path, "read")(error.into()))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(Error::io(&path, "read")(error)),
        };
        let state = Mutex::new(BoardState { notices, ..BoardState::default() });
        Ok(Self { folder, rules, state })
    }

    /// Lists the notices of a time in seconds since 1970, newest first, about the runs that
    /// `is_wanted` chooses.
    pub fn list(
        &self,
        [since_unix_s, until_unix_s]: [u64; 2],
        is_wanted: impl Fn(&IdleRun) -> bool,
    ) -> NoticeAnswer {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_within =
            |notice: &&OwnerNotice| (since_unix_s..until_unix_s).contains(&notice.time_unix_s);
        let notices = state.notices.iter().rev().filter(is_within);
        let held_back = state.held_back.iter().filter(|held| is_wanted(&held.run));
        NoticeAnswer {
            since_unix_s,
            until_unix_s,
            is_on: self.rules.is_some(),
            is_dry_run: self.rules.as_ref().is_none_or(|rules| rules.dry_run),
            looked_unix_s: state.looked_unix_s,
            notices: notices.filter(|notice| is_wanted(&notice.run)).cloned().collect(),
            held_back: held_back.cloned().collect(),
        }
    }

    /// Changes the notices, and writes them if they are changed.
    fn change(&self, change: impl FnOnce(&mut Vec<OwnerNotice>)) -> Result<(), Error> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = state.notices.clone();
        change(&mut state.notices);
        if state.notices == before {
            return Ok(());
        }
        let bytes = serde_json::to_vec(&state.notices).unwrap_or_default();
        let written = self.folder.replace(&self.folder.notices_path(), &bytes);
        if written.is_err() {
            state.notices = before;
        }
        written
    }
}

impl NoticeWatch {
    /// Prepares the thread. `slurm` is the folder of Slurm's programs, if Slurm is asked.
    ///
    /// # Errors
    /// If a file of the webhook cannot be used.
    pub fn new(
        board: Arc<NoticeBoard>,
        audit: Arc<AuditLog>,
        slurm: Option<Option<PathBuf>>,
        stop: Arc<AtomicBool>,
    ) -> Result<Option<Self>, Error> {
        let Some(rules) = board.rules.clone() else { return Ok(None) };
        let sender = NoticeSender::new(&rules)?;
        let idle = IdleGpus::default();
        Ok(Some(Self { board, rules, sender, audit, slurm, idle, stop }))
    }

    /// Starts the thread, which ends when the hub does.
    ///
    /// # Errors
    /// If the operating system cannot start a thread.
    pub fn start(mut self) -> std::io::Result<JoinHandle<()>> {
        thread::Builder::new().name("notices".to_owned()).spawn(move || {
            while !self.is_ending() {
                let until = Instant::now() + Duration::from_secs(self.rules.interval_s);
                if let Err(error) = self.look(unix_s()) {
                    say(&format!("note: owners of idle GPUs are not told: {error}"));
                }
                while !self.is_ending() && Instant::now() < until {
                    thread::sleep(TICK);
                }
            }
        })
    }

    fn is_ending(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Looks once for idle GPUs, and does what follows.
    fn look(&mut self, now_s: u64) -> Result<(), Error> {
        let after_s = self.rules.after.as_secs_f64();
        let runs = self.idle.look(&self.board.folder, after_s, now_s)?;
        let mut held_back = Vec::new();
        let mut is_away = false;
        for run in runs {
            if self.is_ending() {
                return Ok(());
            }
            let why = if is_away {
                Some("the webhook does not answer; tried again at the next look".to_owned())
            } else {
                self.reason_against(&run, now_s)
            };
            match why {
                None => is_away = self.tell(run.clone(), now_s)?,
                Some(why) => held_back.push(HeldNotice { run: run.clone(), why }),
            }
            self.cancel_if_due(&run, now_s)?;
        }
        let oldest = now_s.saturating_sub(KEPT_S);
        self.board.change(|notices| {
            notices.retain(|notice| notice.time_unix_s >= oldest);
            notices.drain(..notices.len().saturating_sub(KEPT_MAX));
        })?;
        let mut state = self.board.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state.held_back, state.looked_unix_s) = (held_back, Some(now_s));
        Ok(())
    }

    /// Returns why the owner of a run is not told now, if there is a reason.
    fn reason_against(&self, run: &IdleRun, now_s: u64) -> Option<String> {
        if let Some(exception) = self.rules.exception(run) {
            return Some(exception);
        }
        let state = self.board.state.lock().unwrap_or_else(PoisonError::into_inner);
        // What a dry run would have sent does not count when notices are sent.
        let mode = state.notices.iter().filter(|one| one.is_dry_run == self.rules.dry_run);
        let again_s = self.rules.again.as_secs();
        let is_same = |one: &&OwnerNotice| one.run.run == run.run && one.run.user == run.user;
        if let Some(last) = mode.clone().rfind(is_same)
            && last.time_unix_s + again_s > now_s
        {
            let minutes = now_s.saturating_sub(last.time_unix_s) / 60;
            return Some(format!("the owner was told {minutes} minutes ago"));
        }
        let today = mode.filter(|one| one.time_unix_s + DAY_S > now_s);
        let of_user = today.clone().filter(|one| one.run.user == run.user).count();
        if of_user >= self.rules.per_user {
            return Some(format!("{of_user} notices to this user in 24 hours (per_user)"));
        }
        let all = today.count();
        (all >= self.rules.per_day).then(|| format!("{all} notices in 24 hours (per_day)"))
    }

    /// Tells the owner of a run, or says what would be sent. Returns whether the webhook is away.
    fn tell(&self, run: IdleRun, now_s: u64) -> Result<bool, Error> {
        let text = self.describe(&run);
        let is_dry_run = self.rules.dry_run;
        let (time_unix_s, name) = (now_s, run.run.clone());
        let notice = OwnerNotice { time_unix_s, run, is_dry_run, text, ..OwnerNotice::default() };
        self.board.change(|notices| notices.push(notice.clone()))?;
        let user = &notice.run.user;
        if is_dry_run {
            say(&format!("dry run: {user} would be told: {}", notice.text));
            self.record("NOTICE", &name, 200, &format!("dry run, to {user}: {}", notice.text));
            return Ok(false);
        }
        let message = json!({
            "kind": "idle_gpus",
            "text": notice.text,
            "time_unix_s": now_s,
            "idle_gpu_hours": notice.run.idle_gpu_s / 3600.0,
            "cancel_after_s": self.warning(&notice.run).map(|after| after.as_secs()),
            "run": notice.run,
        });
        let outcome =
            self.sender.send(user, &notice.text, message.to_string().as_bytes(), &self.stop);
        let (sent, problems) = (outcome.sent.join(", "), outcome.problems.join("; "));
        let note = match (sent.is_empty(), problems.is_empty()) {
            (false, true) => format!("to {user} by {sent}"),
            (false, false) => format!("to {user} by {sent}; {problems}"),
            _ => format!("not sent to {user}: {problems}"),
        };
        say(&format!("notice about {name} {note}"));
        self.record("NOTICE", &name, if sent.is_empty() { 502 } else { 200 }, &note);
        self.board.change(|notices| {
            if let Some(last) = notices.last_mut() {
                (last.sent, last.problems) = (outcome.sent, outcome.problems);
            }
        })?;
        Ok(outcome.is_away)
    }

    /// Returns after which time a run will be cancelled, if it will be.
    fn warning(&self, run: &IdleRun) -> Option<Duration> {
        let can_be = run.run.starts_with("slurm/") && run.idle_gpus == run.gpus;
        self.rules.cancel_after.filter(|_| self.rules.cancel && can_be)
    }

    /// Writes the text of a notice.
    fn describe(&self, run: &IdleRun) -> String {
        let since = i64::try_from(run.since_unix_s).unwrap_or(0);
        let since = DateTime::<Utc>::from_timestamp(since, 0).unwrap_or_default();
        let hosts: Vec<&str> = run.hosts.iter().map(String::as_str).collect();
        let what = if run.idle_gpus == run.gpus {
            format!("{} GPUs, which have run nothing", run.gpus)
        } else {
            format!("{} GPUs, of which {} have run nothing", run.gpus, run.idle_gpus)
        };
        let cancel = self.warning(run).map_or(String::new(), |after| {
            let minutes = after.as_secs().div_ceil(60);
            format!(" It will be cancelled if they run nothing for {minutes} minutes more.")
        });
        let text = format!(
            "Job {} ({}) of {} holds {what} since {} UTC at the earliest: {:.1} GPU hours. Hosts: {}. \
             Please end it, or ask for fewer GPUs.{cancel}",
            run.run,
            run.workflow,
            run.user,
            since.format("%Y-%m-%d %H:%M"),
            run.idle_gpu_s / 3600.0,
            hosts.join(", "),
        );
        fleet::plain::without_controls(&text)
    }

    /// Cancels a run whose owner was warned and which has not worked since, or says that it would.
    fn cancel_if_due(&self, run: &IdleRun, now_s: u64) -> Result<(), Error> {
        let Some(after) = self.rules.cancel_after else { return Ok(()) };
        let (dry_run, exception) = (self.rules.dry_run, self.rules.exception(run));
        let is_really = !dry_run && self.rules.cancel;
        let last = {
            let state = self.board.state.lock().unwrap_or_else(PoisonError::into_inner);
            let is_same = |one: &&OwnerNotice| one.run.run == run.run && one.run.user == run.user;
            state.notices.iter().rfind(is_same).cloned()
        };
        let Some(last) = last.filter(|last| last.is_dry_run == dry_run) else { return Ok(()) };
        let was_told = dry_run || !last.sent.is_empty();
        if !was_told || exception.is_some() || !is_due(&last, run, after, now_s) {
            return Ok(());
        }
        let before = last.cancel.clone().unwrap_or_default();
        if before.is_done || before.attempts >= if is_really { CANCELS_MAX } else { 1 } {
            return Ok(());
        }
        let result = if is_really { self.cancel(run) } else { Ok(()) };
        let why = match &result {
            Ok(()) if is_really => {
                "cancelled, because its GPUs ran nothing since the notice".to_owned()
            }
            Ok(()) => {
                "would be cancelled, because its GPUs ran nothing since the notice".to_owned()
            }
            Err(problem) => format!("not cancelled: {problem}"),
        };
        say(&format!("{} of {}: {why}", run.run, run.user));
        self.record("CANCEL", &run.run, if result.is_ok() { 200 } else { 502 }, &why);
        let is_done = is_really && result.is_ok();
        let attempts = before.attempts + 1;
        let cancel = RunCancel { time_unix_s: now_s, is_done, attempts, why };
        self.board.change(|notices| {
            let is_last =
                |one: &&mut OwnerNotice| one.time_unix_s == last.time_unix_s && one.run == last.run;
            if let Some(notice) = notices.iter_mut().rfind(is_last) {
                notice.cancel = Some(cancel);
            }
        })
    }

    /// Cancels a run, after Slurm has confirmed whose it is, and that no GPU of it is unknown.
    fn cancel(&self, run: &IdleRun) -> Result<(), String> {
        let Some(folder) = &self.slurm else { return Err("Slurm is not asked".to_owned()) };
        let job = run.run.strip_prefix("slurm/").unwrap_or_default();
        let state = ClusterState::ask(folder.as_deref())?;
        let running = state.running(job).ok_or("Slurm knows no such job that runs")?;
        if running.user != run.user {
            return Err(format!("Slurm says that it is a job of {}", running.user));
        }
        if running.gpus > run.gpus {
            return Err(format!("it has {} GPUs, and {} report rows", running.gpus, run.gpus));
        }
        cancel_job(folder.as_deref(), &running.name)
    }

    fn record(&self, method: &str, run: &str, status: u16, note: &str) {
        let line = AuditLine {
            who: Some(HUB),
            role: None,
            is_by_proxy: false,
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            method,
            path: run,
            status,
            note: Some(note),
        };
        self.audit.write(&line, Utc::now());
    }
}

/// Whether a run of Slurm has not worked since its owner was told, and all of its GPUs were seen
/// to be idle for the whole time after it. The clocks of its hosts are only compared with
/// themselves.
fn is_due(notice: &OwnerNotice, run: &IdleRun, after: Duration, now_s: u64) -> bool {
    let told = &notice.run;
    run.run.starts_with("slurm/")
        && told.idle_gpus == told.gpus
        && run.idle_gpus == run.gpus
        && run.gpus == told.gpus
        && run.worked_unix_s <= told.worked_unix_s
        && notice.time_unix_s + after.as_secs() <= now_s
        && run.idle_gpu_s >= told.idle_gpu_s + run.gpus as f64 * after.as_secs_f64()
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests;
