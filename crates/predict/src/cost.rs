//! Times of all parts of a [`Program`], each with the evidence behind it.

use std::collections::BTreeMap;

use analyze::collectives::CollectiveOperation;
use serde::{Deserialize, Serialize};

use crate::program::{Action, Program, Returns, WorkKind};
use crate::recording::RecordedTimes;

/// Evidence behind a cost, ordered from most to least certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The cost comes from samples of the same operator or kernel with the same sizes.
    Measured,
    /// The cost comes from samples of other sizes, or of other operators of the class.
    Modeled,
    Unknown,
}

/// The duration of an action or work, with the evidence behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    pub ns: i64,
    /// Evidence behind the time. The source is `None` for parts without a duration of their own,
    /// such as waits.
    pub source: Option<Source>,
}

impl Cost {
    /// Cost of a part for which no samples exist: 0 ns, reported as unknown.
    pub const UNKNOWN: Self = Self { ns: 0, source: Some(Source::Unknown) };
}

/// Latencies and waits in nanoseconds that are assumed to be equal everywhere in a program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Constants {
    /// Time from the start of a launch call to the start of its kernel.
    pub launch_ns: i64,
    /// Time from the start of a copy or memory-set call to the start of its device work.
    pub copy_launch_ns: i64,
    /// Time between two works of a stream when the second is already queued.
    pub queue_gap_ns: i64,
    /// Time from the end of work on another stream to the start of the work that waits for it.
    pub event_wait_ns: i64,
    /// Time from the end of the awaited work, or from the start of the call if that is later, to
    /// the return of a synchronizing call.
    pub sync_return_ns: i64,
    /// Time from the end of a copy to the return of the call that blocks for it.
    pub copy_return_ns: i64,
    /// Time from a thread's last work to the next work of the thread that waits for it. The key is
    /// the name of that next work.
    pub hand_over_ns: BTreeMap<String, i64>,
    /// Transfer times of collectives by name of the operation.
    pub transfer: BTreeMap<String, Transfer>,
}

/// Linear model of the time to move data between ranks: `fixed_ns + bytes · per_byte_ns`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Transfer {
    /// Time of an empty message, in nanoseconds.
    pub fixed_ns: f64,
    pub per_byte_ns: f64,
}

/// Times of all parts of a program, with the constants for its waits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Costs {
    pub ranks: Vec<RankCosts>,
    pub constants: Constants,
}

/// Times of all actions and works of one rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankCosts {
    /// Start of the rank's step on the clock that all ranks share.
    pub start_ns: i64,
    /// Costs indexed by thread and action. Actions that only wait cost 0.
    pub actions: Vec<Vec<Cost>>,
    /// Costs indexed by work. Entries of collectives that join several ranks are not used.
    pub works: Vec<Cost>,
    /// Start of each work that an earlier step launched, relative to the start of this step. The
    /// key is the index of the work.
    pub left_running_ns: BTreeMap<u32, i64>,
}

impl Constants {
    /// Returns the number of constants, for reports of a model's size.
    pub fn count(&self) -> usize {
        let per_byte = self.transfer.values().filter(|transfer| transfer.per_byte_ns != 0.0);
        6 + self.hand_over_ns.len() + self.transfer.len() + per_byte.count()
    }

    /// Returns the time from the start of a call to the start of the device work it launches.
    pub fn latency_ns(&self, kind: WorkKind) -> i64 {
        match kind {
            WorkKind::Kernel => self.launch_ns,
            WorkKind::Copy | WorkKind::Set => self.copy_launch_ns,
        }
    }

    /// Returns the time that a collective takes after all ranks have arrived, or `None` for
    /// operations without samples.
    pub fn transfer_ns(&self, operation: CollectiveOperation, bytes: u64) -> Option<i64> {
        let transfer = self.transfer.get(&operation_name(operation))?;
        let ns = transfer.fixed_ns + transfer.per_byte_ns * bytes as f64;
        Some(ns.max(0.0).round() as i64)
    }
}

/// Returns the name of a collective operation as it is written in files.
pub fn operation_name(operation: CollectiveOperation) -> String {
    let text = serde_json::to_string(&operation).unwrap_or_default();
    text.trim_matches('"').to_owned()
}

/// Parses the name of a collective operation as it is written in files.
pub fn parse_operation(name: &str) -> Option<CollectiveOperation> {
    serde_json::from_value(serde_json::Value::String(name.to_owned())).ok()
}

/// Builds costs that replay a recording: host segments and kernels keep their recorded times, and
/// waits take the constants.
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
