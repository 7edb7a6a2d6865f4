//! The recorded times of a step, stored separately from its program.

use std::collections::{BTreeMap, BTreeSet};

use trace::store::StringId;

use crate::program::{Action, Program};

/// Begin and end of an action or work, in nanoseconds.
pub type TimeRange = (i64, i64);

/// Recorded times of all parts of a [`Program`], in nanoseconds since the start of the step on the
/// same rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedTimes {
    pub ranks: Vec<RankTimes>,
}

/// Recorded times of one rank, and the trace rows from which its program was built.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankTimes {
    /// Absolute start of the step, on the clock of the recording.
    pub start_ns: i64,
    /// Duration of the step on the host.
    pub step_ns: i64,
    /// Begin and end of each action, indexed by thread and action.
    pub actions: Vec<Vec<TimeRange>>,
    /// Begin and end of each device work, indexed by work.
    pub works: Vec<TimeRange>,
    /// The part of the program that each trace row became. Rows that became several parts are
    /// missing from this list.
    pub rows: BTreeMap<u32, Place>,
    /// Names of all operators that ran, including operators nested in others.
    pub operators: BTreeSet<StringId>,
    /// Number of host events that began during each action, indexed by thread and action.
    pub events: Vec<Vec<u32>>,
    /// The caller of each runtime call, by thread and action.
    pub callers: BTreeMap<(usize, usize), Caller>,
}

/// The innermost operator around a runtime call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    pub row: u32,
    pub name: StringId,
    pub sizes: StringId,
}

/// The part of a rank's program that a trace row became.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Work(u32),
    /// The actions of a call or of an outermost operator: its thread, its first and its last
    /// action.
    Actions {
        thread: usize,
        first: usize,
        last: usize,
    },
}

impl RankTimes {
    /// Returns the time that an action takes itself. The own time of a launch into a full queue
    /// begins when the queue has room.
    pub fn own_ns(&self, action: &Action, (from, to): TimeRange) -> i64 {
        to - self.begun_ns(action, (from, to))
    }

    /// Returns the number of host events that began during an action, or 0 if the recording has no
    /// counts.
    pub fn events_in(&self, thread: usize, action: usize) -> u32 {
        self.events.get(thread).and_then(|events| events.get(action)).copied().unwrap_or_default()
    }

    /// Returns the time at which a call began to launch: its start, or the time when the queue had
    /// room.
    pub fn begun_ns(&self, action: &Action, (from, to): TimeRange) -> i64 {
        let room = match action {
            Action::Call(call) => call.room,
            _ => None,
        };
        room.map_or(from, |work| self.works[work as usize].1.clamp(from, to))
    }
}

/// Initial conditions of a step. Neither a program nor a calibration contains these conditions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Setting {
    pub ranks: Vec<RankSetting>,
}

/// Initial conditions of one rank's step.
#[derive(Clone, Debug, PartialEq)]
pub struct RankSetting {
    /// Start of the step on the clock that all ranks share.
    pub start_ns: i64,
    /// Begin and end of each work that an earlier step launched, relative to the start of this
    /// step.
    pub left_running: Vec<TimeRange>,
    /// Factor on the price of the rank's device work, because the devices of a job differ in speed.
    pub device_factor: f64,
}

impl Default for RankSetting {
    fn default() -> Self {
        Self { start_ns: 0, left_running: Vec::new(), device_factor: 1.0 }
    }
}

impl Setting {
    /// Returns the conditions of the rank at a position. An unknown rank starts at 0 without
    /// earlier work.
    pub fn rank(&self, place: usize) -> &RankSetting {
        const UNKNOWN: &RankSetting =
            &RankSetting { start_ns: 0, left_running: Vec::new(), device_factor: 1.0 };
        self.ranks.get(place).unwrap_or(UNKNOWN)
    }
}

impl RecordedTimes {
    /// Extracts the initial conditions of all ranks from a recording.
    pub fn setting(&self, program: &Program) -> Setting {
        let ranks = program.ranks.iter().zip(&self.ranks).map(|(rank, recorded)| {
            let works = rank.works.iter().zip(&recorded.works);
            let left = works.filter(|(work, _)| !work.is_launched).map(|(_, times)| *times);
            RankSetting {
                start_ns: recorded.start_ns,
                left_running: left.collect(),
                device_factor: 1.0,
            }
        });
        Setting { ranks: ranks.collect() }
    }
}

/// A recorded step: its program and the recorded times of its parts.
#[derive(Clone, Debug, Default)]
pub struct Step {
    pub program: Program,
    pub recorded: RecordedTimes,
}
