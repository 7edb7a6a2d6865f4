//! The answer of a hub about notices to owners of idle GPUs.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::hub::{HubClient, TimeRange};
use setup::error::Error;

/// The notices of a time, and the runs that have idle GPUs now.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HubNotices {
    /// Whether the hub looks for idle GPUs.
    pub is_on: bool,
    pub is_dry_run: bool,
    pub looked_unix_s: Option<u64>,
    pub notices: Vec<HubNotice>,
    pub held_back: Vec<HubHeld>,
}

/// A notice to the owner of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HubNotice {
    pub time_unix_s: u64,
    #[serde(flatten)]
    pub run: HubIdleRun,
    pub is_dry_run: bool,
    pub text: String,
    pub sent: Vec<String>,
    pub problems: Vec<String>,
    pub cancel: Option<HubCancel>,
}

/// A run with idle GPUs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HubIdleRun {
    pub run: String,
    pub user: String,
    pub workflow: String,
    pub gpus: u64,
    pub idle_gpus: u64,
    pub idle_gpu_s: f64,
    pub since_unix_s: u64,
    pub hosts: BTreeSet<String>,
}

/// Whether a run was cancelled.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HubCancel {
    pub time_unix_s: u64,
    pub is_done: bool,
    pub why: String,
}

/// A run whose owner was not told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HubHeld {
    #[serde(flatten)]
    pub run: HubIdleRun,
    pub why: String,
}

/// Numbers of notices by what became of them.
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
        client.ask("notices", Some(range), &[])
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
