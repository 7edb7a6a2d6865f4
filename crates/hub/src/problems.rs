//! Turns problems of hosts into events of the store, so that whoever reads the store sees them.
//!
//! An event is written when a problem first occurs, and then at most once per [`PERIOD`] with the
//! counts since. The events are entries of a queue that the hub itself starts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fleet::proto::{Body, HostEvent};
use serde_json::json;

use crate::batch::QueuedEntry;
use crate::error::Error;
use crate::store::ingest::{HostProblem, ProblemCount};

/// Shortest time between two events of a problem of a host.
const PERIOD: Duration = Duration::from_secs(60);
/// Number of batches from which the difference of two clocks is computed.
const CLOCK_BATCHES: u32 = 6;
/// Difference of the clocks of host and hub in seconds from which it is a problem.
const CLOCK_S: f64 = 2.0;

/// The problems of hosts that no event reports yet.
#[derive(Debug)]
pub struct ProblemLog {
    queue: Arc<[u8]>,
    next: u64,
    problems: BTreeMap<(Arc<str>, HostProblem), PendingProblem>,
    clocks: BTreeMap<Arc<str>, ClockWindow>,
}

/// The counts of a problem that no event reports yet, and the time of its last event.
#[derive(Debug, Default)]
struct PendingProblem {
    count: ProblemCount,
    is_pending: bool,
    written: Option<Instant>,
}

/// The last batches of a host that tell the difference of its clock from the hub's.
#[derive(Clone, Copy, Debug)]
struct ClockWindow {
    batches: u32,
    /// The shortest time that a batch took. A delay on the way only makes a batch take longer, so
    /// the shortest time is the best estimate of the difference of the clocks.
    shortest_s: f64,
}

impl ProblemLog {
    /// Creates an empty log, with a queue of its own.
    ///
    /// # Errors
    /// If the operating system has no random bytes.
    pub fn new() -> Result<Self, Error> {
        let mut queue = [0; 16];
        getrandom::fill(&mut queue)?;
        let (problems, clocks) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { queue: queue.into(), next: 1, problems, clocks })
    }

    /// Adds problems of one commit.
    pub fn add(&mut self, problems: &BTreeMap<(Arc<str>, HostProblem), ProblemCount>) {
        for (key, count) in problems {
            let pending = self.problems.entry(key.clone()).or_default();
            pending.count.add(*count);
            pending.is_pending = true;
        }
    }

    /// Adds the time that a batch of a host took by the two clocks, in seconds. The time is
    /// negative if the host's clock is ahead.
    pub fn add_batch(&mut self, host: &Arc<str>, took_s: f64) {
        let window = self.clocks.entry(Arc::clone(host));
        let window = window.or_insert(ClockWindow { batches: 0, shortest_s: f64::INFINITY });
        window.batches += 1;
        window.shortest_s = window.shortest_s.min(took_s);
        if window.batches < CLOCK_BATCHES {
            return;
        }
        let ahead_s = -window.shortest_s;
        self.clocks.remove(host);
        if ahead_s.abs() > CLOCK_S {
            let count = ProblemCount { rows: 0, worst_s: ahead_s };
            self.add(&BTreeMap::from([((Arc::clone(host), HostProblem::Clock), count)]));
        }
    }

    /// Returns events of the problems that are due. They stay due until [`Self::confirm`].
    pub fn due(&self, now: Instant, now_unix_ms: u64) -> Vec<QueuedEntry> {
        let due = self.problems.iter().filter(|(_, pending)| pending.is_due(now));
        let entry =
            |(sequence, (key, pending)): (u64, (&(Arc<str>, HostProblem), &PendingProblem))| {
                let (host, problem) = key;
                let ProblemCount { rows, worst_s } = pending.count;
                let event = HostEvent {
                    kind: problem.word().to_owned(),
                    start_unix_ms: now_unix_ms,
                    is_over: true,
                    details: json!({ "rows": rows, "seconds": worst_s }).to_string(),
                    ..HostEvent::default()
                };
                let (queue, host) = (Arc::clone(&self.queue), Arc::clone(host));
                QueuedEntry { queue, host, sequence, body: Body::Event(Box::new(event)) }
            };
        (self.next..).zip(due).map(entry).collect()
    }

    /// Forgets the counts of which [`Self::due`] returned the events at `now`, because the events
    /// are on disk.
    pub fn confirm(&mut self, now: Instant) {
        for pending in self.problems.values_mut().filter(|pending| pending.is_due(now)) {
            let written = Some(now);
            *pending = PendingProblem { written, ..PendingProblem::default() };
            self.next += 1;
        }
    }
}

impl PendingProblem {
    fn is_due(&self, now: Instant) -> bool {
        self.is_pending && self.written.is_none_or(|written| now - written >= PERIOD)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::time::Instant;

    use fleet::proto::Body;

    use super::{CLOCK_BATCHES, PERIOD, ProblemLog};
    use crate::store::ingest::{HostProblem, ProblemCount};

    /// Returns the number, the kind and the details of each event, and confirms the events.
    fn take(log: &mut ProblemLog, now: Instant) -> Vec<(u64, String, String)> {
        let due = log.due(now, 1000);
        log.confirm(now);
        let event = |entry: crate::batch::QueuedEntry| match entry.body {
            Body::Event(event) => (entry.sequence, event.kind, event.details),
            other => panic!("{other:?}"),
        };
        due.into_iter().map(event).collect()
    }

    #[test]
    fn a_lasting_problem_has_an_event_at_once_and_then_one_per_period() {
        let mut log = ProblemLog::new().unwrap();
        let host: Arc<str> = "gpu-1".into();
        let problems = |rows, worst_s| {
            let key = (Arc::clone(&host), HostProblem::LateRows);
            BTreeMap::from([(key, ProblemCount { rows, worst_s })])
        };
        let began = Instant::now();
        log.add(&problems(2, 300.0));
        assert_eq!(log.due(began, 5).len(), 1, "not confirmed");
        let event =
            |sequence, details: &str| vec![(sequence, "late_rows".to_owned(), details.to_owned())];
        assert_eq!(take(&mut log, began), event(1, r#"{"rows":2,"seconds":300.0}"#));
        log.add(&problems(3, 200.0));
        log.add(&problems(4, 250.0));
        assert_eq!(take(&mut log, began + PERIOD / 2), []);
        let later = began + PERIOD;
        assert_eq!(take(&mut log, later), event(2, r#"{"rows":7,"seconds":250.0}"#));
        assert_eq!(take(&mut log, later + PERIOD), []);
    }

    #[test]
    fn the_shortest_of_several_batches_tells_the_difference_of_the_clocks() {
        let mut log = ProblemLog::new().unwrap();
        let host: Arc<str> = "gpu-1".into();
        let mut send = |times: &[f64]| {
            (0..CLOCK_BATCHES as usize)
                .for_each(|at| log.add_batch(&host, times[at % times.len()]));
            take(&mut log, Instant::now() + PERIOD).pop().map(|(_, kind, details)| (kind, details))
        };
        assert_eq!(send(&[30.0, 0.1, 9.0]), None, "a slow network");
        let clock =
            |seconds| Some(("clock".to_owned(), format!(r#"{{"rows":0,"seconds":{seconds:.1}}}"#)));
        assert_eq!(send(&[7.0, 5.0, 6.0]), clock(-5.0));
    }
}
