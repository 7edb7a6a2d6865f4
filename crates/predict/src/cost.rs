//! The time of every part of a [`Program`], with the source of each figure.

use std::collections::BTreeMap;

use analyze::collectives::CollectiveOperation;
use serde::{Deserialize, Serialize};

use crate::program::{Action, Program, Returns, WorkKind};
use crate::recording::RecordedTimes;

/// Where a figure comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Samples of the same operator or kernel with the same sizes.
    Measured,
    /// Samples of other sizes, or of the kind of thing it is.
    Modelled,
    /// Nothing was known of it.
    Unknown,
}

/// A duration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Nanoseconds.
    pub ns: i64,
    /// Whence; `None` for what costs nothing of its own, such as a wait.
    pub source: Option<Source>,
}

impl Cost {
    /// Unknown: 0, and reported.
    pub const UNKNOWN: Self = Self { ns: 0, source: Some(Source::Unknown) };
}

/// What waiting and starting costs, the same everywhere on a host: nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Constants {
    /// From the start of a launch to the start of its kernel.
    pub launch_ns: i64,
    /// From the start of a copying or setting call to the start of its work.
    pub copy_launch_ns: i64,
    /// Between two works of a stream when the second is queued.
    pub queue_gap_ns: i64,
    /// From the end of awaited work of another stream to the start of what waits.
    pub event_wait_ns: i64,
    /// From the end of awaited work, or the start of the call, to the return of a wait.
    pub sync_return_ns: i64,
    /// From the end of a copy to the return of the call that blocks for it.
    pub copy_return_ns: i64,
    /// From a thread's last work to the next of one that waits for it, by what that does next.
    pub hand_over_ns: BTreeMap<String, i64>,
    /// Of collectives, by operation.
    pub transfer: BTreeMap<String, Transfer>,
}

/// The time to move data between ranks: `fixed + bytes · per byte`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Transfer {
    /// Nanoseconds of an empty message.
    pub fixed_ns: f64,
    /// Nanoseconds per byte.
    pub per_byte_ns: f64,
}

/// The times of a program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Costs {
    /// By place of the rank.
    pub ranks: Vec<RankCosts>,
    pub constants: Constants,
}

/// The times of a rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankCosts {
    /// When its step starts, on the clock of all ranks.
    pub start_ns: i64,
    /// Per thread, per action; 0 for what only waits.
    pub actions: Vec<Vec<Cost>>,
    /// Per work; of a collective that ranks meet in, not used.
    pub works: Vec<Cost>,
    /// Per work that the step does not launch: when it starts, since the step does.
    pub left_running_ns: BTreeMap<u32, i64>,
}

impl Constants {
    /// How many there are.
    pub fn count(&self) -> usize {
        let per_byte = self.transfer.values().filter(|transfer| transfer.per_byte_ns != 0.0);
        6 + self.hand_over_ns.len() + self.transfer.len() + per_byte.count()
    }

    /// From the start of a call to the start of its work.
    pub fn latency_ns(&self, kind: WorkKind) -> i64 {
        match kind {
            WorkKind::Kernel => self.launch_ns,
            WorkKind::Copy | WorkKind::Set => self.copy_launch_ns,
        }
    }

    /// The time of a collective once all ranks have arrived; `None` for unknown operations.
    pub fn transfer_ns(&self, operation: CollectiveOperation, bytes: u64) -> Option<i64> {
        let transfer = self.transfer.get(&operation_name(operation))?;
        let ns = transfer.fixed_ns + transfer.per_byte_ns * bytes as f64;
        Some(ns.max(0.0).round() as i64)
    }
}

/// An operation as files spell it.
pub fn operation_name(operation: CollectiveOperation) -> String {
    let text = serde_json::to_string(&operation).unwrap_or_default();
    text.trim_matches('"').to_owned()
}

/// The operation that files spell so.
pub fn parse_operation(name: &str) -> Option<CollectiveOperation> {
    serde_json::from_value(serde_json::Value::String(name.to_owned())).ok()
}

/// The host segments and kernels of a recording, with constants for everything that waits.
pub fn replay(program: &Program, recorded: &RecordedTimes, constants: &Constants) -> Costs {
    let measured = |(from, to): (i64, i64)| Cost { ns: to - from, source: Some(Source::Measured) };
    let ranks = program.ranks.iter().zip(&recorded.ranks).map(|(rank, recorded)| {
        let threads = rank.threads.iter().zip(&recorded.actions).map(|(thread, times)| {
            let cost = |(action, time): (&Action, &(i64, i64))| {
                let own = measured((0, recorded.own_ns(action, *time)));
                match action {
                    Action::Host(_) => own,
                    Action::Call(call) if call.returns == Returns::AtOnce => own,
                    _ => Cost::default(),
                }
            };
            thread.actions.iter().zip(times).map(cost).collect()
        });
        let left = rank.works.iter().zip(&recorded.works).zip(0u32..);
        let left = left.filter(|((work, _), _)| !work.is_launched);
        RankCosts {
            start_ns: recorded.start_ns,
            actions: threads.collect(),
            works: recorded.works.iter().map(|time| measured(*time)).collect(),
            left_running_ns: left.map(|((_, time), at)| (at, time.0)).collect(),
        }
    });
    Costs { ranks: ranks.collect(), constants: constants.clone() }
}
