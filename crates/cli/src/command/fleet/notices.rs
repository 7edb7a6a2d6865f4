//! The command `rowmill fleet notices`: what owners of idle GPUs were told, or would be, and why
//! others were not.

use std::collections::BTreeSet;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};

use super::hub::{HOUR_S, HubClient, TimeRange};
use super::report::{moment, number};
use crate::args::FleetNotices;
use setup::Session;
use setup::error::Error;
use setup::error_text::plain;
use setup::render;

/// The notices of a time, and the runs that have idle GPUs now.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HubNotices {
    /// Whether the hub looks for idle GPUs.
    is_on: bool,
    is_dry_run: bool,
    looked_unix_s: Option<u64>,
    notices: Vec<HubNotice>,
    held_back: Vec<HubHeld>,
}

/// A notice to the owner of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct HubNotice {
    time_unix_s: u64,
    #[serde(flatten)]
    run: HubIdleRun,
    is_dry_run: bool,
    text: String,
    sent: Vec<String>,
    problems: Vec<String>,
    cancel: Option<HubCancel>,
}

/// A run with idle GPUs.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct HubIdleRun {
    run: String,
    user: String,
    workflow: String,
    gpus: u64,
    idle_gpus: u64,
    idle_gpu_s: f64,
    since_unix_s: u64,
    hosts: BTreeSet<String>,
}

/// Whether a run was cancelled.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct HubCancel {
    time_unix_s: u64,
    is_done: bool,
    why: String,
}

/// A run whose owner was not told.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct HubHeld {
    #[serde(flatten)]
    run: HubIdleRun,
    why: String,
}

/// Numbers of notices.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct NoticeCounts {
    pub sent: usize,
    pub would_be_sent: usize,
    pub failed: usize,
    pub cancelled: usize,
}

impl HubNotices {
    /// Asks for the notices of a time.
    ///
    /// # Errors
    /// If the hub does not answer.
    pub fn ask(client: &HubClient, range: TimeRange) -> Result<Self, Error> {
        client.ask("notices", range, &[])
    }

    /// Counts the notices by what became of them.
    pub fn count(&self) -> NoticeCounts {
        let mut counts = NoticeCounts::default();
        for notice in &self.notices {
            match (notice.is_dry_run, notice.sent.is_empty()) {
                (true, _) => counts.would_be_sent += 1,
                (false, false) => counts.sent += 1,
                (false, true) => counts.failed += 1,
            }
            let is_done = notice.cancel.as_ref().is_some_and(|cancel| cancel.is_done);
            counts.cancelled += usize::from(is_done);
        }
        counts
    }
}

impl NoticeCounts {
    /// Describes the numbers in a sentence, or `None` if all are 0.
    pub fn describe(self) -> Option<String> {
        let Self { sent, would_be_sent, failed, cancelled } = self;
        let parts = [
            (sent, "were sent to owners of idle GPUs"),
            (would_be_sent, "would be sent, but for a dry run"),
            (failed, "could not be sent"),
        ];
        let parts = parts.into_iter().filter(|(count, _)| *count > 0);
        let mut parts: Vec<String> =
            parts.map(|(count, what)| format!("{count} notices {what}")).collect();
        if cancelled > 0 {
            parts.push(format!("{cancelled} jobs were cancelled after a notice"));
        }
        (!parts.is_empty()).then(|| format!("{}.", parts.join("; ")))
    }
}

/// Lists the notices of a time.
pub fn run(args: &FleetNotices, session: &Session) -> Result<ExitCode, Error> {
    let client = HubClient::open(&args.place)?;
    let notices = HubNotices::ask(&client, TimeRange::before(None, args.since))?;
    session.console.report(&notices, notices_text)?;
    Ok(ExitCode::SUCCESS)
}

fn notices_text(answer: &HubNotices) -> String {
    let looked = answer
        .looked_unix_s
        .map_or("not looked yet".to_owned(), |looked| format!("last look at {}", moment(looked)));
    let state = match (answer.is_on, answer.is_dry_run) {
        (false, _) => {
            "The hub does not look for idle GPUs: it has no section [notices].".to_owned()
        }
        (true, true) => format!("Dry run: nothing is sent; {looked}."),
        (true, false) => format!("Notices are sent; {looked}."),
    };
    let notice = |one: &HubNotice| {
        let way = match (one.is_dry_run, one.sent.is_empty()) {
            (true, _) => "dry run".to_owned(),
            (false, false) => one.sent.join(", "),
            (false, true) => format!("not sent: {}", one.problems.join("; ")),
        };
        let cancel = one.cancel.as_ref().map_or(String::new(), |cancel| cancel.why.clone());
        [vec![moment(one.time_unix_s)], cells(&one.run), vec![plain(&way), plain(&cancel)]].concat()
    };
    let rows: Vec<Vec<String>> = answer.notices.iter().map(notice).collect();
    let heads =
        ["told", "job", "owner", "workflow", "idle GPUs", "idle GPU h", "since", "by", "job then"];
    let mut text = format!("{state}\n\n{}", render::grid(&heads, &rows));
    if !answer.held_back.is_empty() {
        let held = |one: &HubHeld| [cells(&one.run), vec![plain(&one.why)]].concat();
        let rows: Vec<Vec<String>> = answer.held_back.iter().map(held).collect();
        let heads =
            ["job", "owner", "workflow", "idle GPUs", "idle GPU h", "since", "why not told"];
        text += &format!("\n\nOther jobs with idle GPUs now:\n{}", render::grid(&heads, &rows));
    }
    text
}

fn cells(run: &HubIdleRun) -> Vec<String> {
    vec![
        plain(&run.run),
        plain(&run.user),
        plain(&run.workflow),
        format!("{} of {}", run.idle_gpus, run.gpus),
        number(run.idle_gpu_s / HOUR_S),
        moment(run.since_unix_s),
    ]
}
