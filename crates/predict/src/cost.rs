//! The time of every part of a [`Program`], with the evidence for each.

use std::collections::BTreeMap;

use analyze::collectives::CollectiveOperation;
use serde::{Deserialize, Serialize};

use crate::program::{Action, Program, Returns, WorkKind};
use crate::recording::RecordedTimes;

/// Evidence behind a cost, from most to least certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Samples of the same operator or kernel with the same sizes.
    Measured,
    /// Samples of other sizes or of the class.
    Modelled,
    Unknown,
}

/// The time of an action or work, with its evidence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    pub ns: i64,
    /// Evidence; `None` for parts without a time of their own, such as waits.
    pub source: Option<Source>,
}

impl Cost {
    /// A cost without any samples: 0 ns, reported as unknown.
    pub const UNKNOWN: Self = Self { ns: 0, source: Some(Source::Unknown) };
}

/// Latencies and waits that are the same everywhere on a host, in nanoseconds.
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
    /// From a thread's last work to the next work of the thread that waits for it, by the name of
    /// that work.
    pub hand_over_ns: BTreeMap<String, i64>,
    /// Transfer times of collectives, by operation.
    pub transfer: BTreeMap<String, Transfer>,
}

/// Linear model of the time to move data between ranks: `fixed + bytes · per byte`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Transfer {
    /// Nanoseconds of an empty message.
    pub fixed_ns: f64,
    pub per_byte_ns: f64,
}

/// The time of every part of a program, beside the constants for waits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Costs {
    pub ranks: Vec<RankCosts>,
    pub constants: Constants,
}

/// The time of every action and work of one rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankCosts {
    /// Start of its step on the common clock.
    pub start_ns: i64,
    /// Indexed by thread and action; 0 for actions that only wait.
    pub actions: Vec<Vec<Cost>>,
    /// Indexed by work; unused for collectives of several ranks.
    pub works: Vec<Cost>,
    /// Start, relative to the step's start, of each work that an earlier step launched.
    pub left_running_ns: BTreeMap<u32, i64>,
}

impl Constants {
    /// Returns the number of constants.
    pub fn count(&self) -> usize {
        let per_byte = self.transfer.values().filter(|transfer| transfer.per_byte_ns != 0.0);
        6 + self.hand_over_ns.len() + self.transfer.len() + per_byte.count()
    }

    /// Returns the time from the start of a call to the start of its work.
    pub fn latency_ns(&self, kind: WorkKind) -> i64 {
        match kind {
            WorkKind::Kernel => self.launch_ns,
            WorkKind::Copy | WorkKind::Set => self.copy_launch_ns,
        }
    }

    /// Returns the time of a collective after all ranks have arrived; `None` for unknown
    /// operations.
    pub fn transfer_ns(&self, operation: CollectiveOperation, bytes: u64) -> Option<i64> {
        let transfer = self.transfer.get(&operation_name(operation))?;
        let ns = transfer.fixed_ns + transfer.per_byte_ns * bytes as f64;
        Some(ns.max(0.0).round() as i64)
    }
}

/// Returns the name of an operation in files.
pub fn operation_name(operation: CollectiveOperation) -> String {
    let text = serde_json::to_string(&operation).unwrap_or_default();
    text.trim_matches('"').to_owned()
}

/// Parses the name of an operation in files.
pub fn parse_operation(name: &str) -> Option<CollectiveOperation> {
    serde_json::from_value(serde_json::Value::String(name.to_owned())).ok()
}

/// Takes host segments and kernels from a recording, and constants for all waits.
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
