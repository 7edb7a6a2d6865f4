//! The hub's own metrics, as `GET /metrics` answers them in the text format of Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::outward::OutwardCounters;
use crate::store::ingest::{HostProblem, IngestTally};
use crate::token_file::FollowedTokens;

/// Content type of the page.
pub const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What the hub has done since its start.
#[derive(Debug, Default)]
pub struct HubCounters {
    /// Number of answers by path and status.
    answers: Mutex<BTreeMap<(&'static str, u16), u64>>,
    commits: AtomicU64,
    failed_commits: AtomicU64,
    rows: AtomicU64,
    /// Rows with a problem, in the order of [`HostProblem::ALL`].
    problems: [AtomicU64; HostProblem::ALL.len()],
    /// Counters of targets by their URL.
    outward: Vec<(String, Arc<OutwardCounters>)>,
}

/// A counter of a target of sums.
struct TargetCounter {
    name: &'static str,
    kind: &'static str,
    value: fn(&OutwardCounters) -> &AtomicU64,
}

const OUTWARD: [TargetCounter; 5] = [
    TargetCounter { name: "samples_total", kind: "counter", value: |c| &c.samples_sent },
    TargetCounter { name: "samples_refused_total", kind: "counter", value: |c| &c.samples_refused },
    TargetCounter { name: "minutes_skipped_total", kind: "counter", value: |c| &c.minutes_skipped },
    TargetCounter { name: "failures_total", kind: "counter", value: |c| &c.failures },
    TargetCounter { name: "through_seconds", kind: "gauge", value: |c| &c.through_unix_s },
];

impl HubCounters {
    /// Creates counters of a hub with the counters of its targets, by URL.
    pub fn new(outward: Vec<(String, Arc<OutwardCounters>)>) -> Self {
        Self { outward, ..Self::default() }
    }

    /// Counts an answer by its path and status.
    pub fn add_answer(&self, path: &'static str, status: u16) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        *answers.entry((path, status)).or_default() += 1;
    }

    /// Counts a commit, or one that failed.
    pub fn add_commit(&self, tally: Option<&IngestTally>) {
        let Some(tally) = tally else {
            self.failed_commits.fetch_add(1, Ordering::Relaxed);
            return;
        };
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.rows.fetch_add(tally.stored, Ordering::Relaxed);
        for ((_, problem), count) in &tally.problems {
            let at = HostProblem::ALL.iter().position(|one| one == problem);
            if let Some(counter) = at.and_then(|at| self.problems.get(at)) {
                counter.fetch_add(count.rows, Ordering::Relaxed);
            }
        }
    }

    /// Renders all counters as text, with the state of the file of tokens.
    pub fn render(&self, tokens: &FollowedTokens) -> String {
        let mut text = String::new();
        let begin = |text: &mut String, name: &str, kind: &str| {
            let _ = writeln!(text, "# TYPE rowmill_hub_{name} {kind}");
        };
        for (name, value) in [
            ("commits_total", &self.commits),
            ("failed_commits_total", &self.failed_commits),
            ("rows_total", &self.rows),
        ] {
            begin(&mut text, name, "counter");
            let _ = writeln!(text, "rowmill_hub_{name} {}", value.load(Ordering::Relaxed));
        }
        begin(&mut text, "tokens_stale", "gauge");
        let _ = writeln!(text, "rowmill_hub_tokens_stale {}", u8::from(tokens.is_stale()));
        begin(&mut text, "problem_rows_total", "counter");
        // A wrong clock is a problem of batches, not of rows.
        let problems = HostProblem::ALL.iter().zip(&self.problems);
        for (problem, count) in problems.filter(|(one, _)| **one != HostProblem::Clock) {
            let (problem, count) = (problem.word(), count.load(Ordering::Relaxed));
            let _ = writeln!(text, "rowmill_hub_problem_rows_total{{kind=\"{problem}\"}} {count}");
        }
        begin(&mut text, "answers_total", "counter");
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        for ((path, status), count) in answers.iter() {
            let labels = format!("path=\"{path}\",status=\"{status}\"");
            let _ = writeln!(text, "rowmill_hub_answers_total{{{labels}}} {count}");
        }
        for TargetCounter { name, kind, value } in OUTWARD {
            if !self.outward.is_empty() {
                begin(&mut text, &format!("outward_{name}"), kind);
            }
            for (url, counters) in &self.outward {
                let url = url.replace('\\', "\\\\").replace('"', "\\\"");
                let count = value(counters).load(Ordering::Relaxed);
                let _ = writeln!(text, "rowmill_hub_outward_{name}{{url=\"{url}\"}} {count}");
            }
        }
        text
    }
}
