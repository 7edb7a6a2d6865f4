//! The times that a step was recorded with, kept apart from its program.

use std::collections::{BTreeMap, BTreeSet};

use trace::store::StringId;

use crate::program::{Action, Program};

/// Begin and end of something, in nanoseconds.
pub type TimeRange = (i64, i64);

/// Recorded times of every part of a [`Program`], in nanoseconds since the start of its rank's
/// step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedTimes {
    pub ranks: Vec<RankTimes>,
}

/// Recorded times of one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankTimes {
    /// Absolute start of the step.
    pub start_ns: i64,
    /// Duration on the host.
    pub step_ns: i64,
    /// Begin and end, by thread and action.
    pub actions: Vec<Vec<TimeRange>>,
    /// Begin and end, by work.
    pub works: Vec<TimeRange>,
    /// Part of the program that each trace row became, if it is a single one.
    pub rows: BTreeMap<u32, Place>,
    /// Names of all operators that ran, nested ones included.
    pub operators: BTreeSet<StringId>,
    /// Host events that began during each action, by thread.
    pub events: Vec<Vec<u32>>,
    /// Caller of each call, by thread and action.
    pub callers: BTreeMap<(usize, usize), Caller>,
}

/// The innermost operator around a call.
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
    /// A call or an outermost operator: its thread, first and last action.
    Actions {
        thread: usize,
        first: usize,
        last: usize,
    },
}

impl RankTimes {
    /// Returns the own time of an action; for a launch into a full queue, from the moment the queue
    /// had room.
    pub fn own_ns(&self, action: &Action, (from, to): TimeRange) -> i64 {
        to - self.begun_ns(action, (from, to))
    }

    /// Returns the number of host events that began during an action; 0 if the recording has no
    /// counts.
    pub fn events_in(&self, thread: usize, action: usize) -> u32 {
        self.events.get(thread).and_then(|events| events.get(action)).copied().unwrap_or_default()
    }

    /// Returns when a call began to launch: at its start, or when the queue had room.
    pub fn begun_ns(&self, action: &Action, (from, to): TimeRange) -> i64 {
        let room = match action {
            Action::Call(call) => call.room,
            _ => None,
        };
        room.map_or(from, |work| self.works[work as usize].1.clamp(from, to))
    }
}

/// Initial conditions of a step, which neither program nor calibration contain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    pub ranks: Vec<RankSetting>,
}

/// Initial conditions of one rank's step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankSetting {
    /// Start on the common clock.
    pub start_ns: i64,
    /// Begin and end of each work that an earlier step launched, relative to the step's start.
    pub left_running: Vec<TimeRange>,
}

impl Setting {
    /// Returns the conditions of the rank at a position; a start at 0 if it is unknown.
    pub fn rank(&self, place: usize) -> &RankSetting {
        const UNKNOWN: &RankSetting = &RankSetting { start_ns: 0, left_running: Vec::new() };
        self.ranks.get(place).unwrap_or(UNKNOWN)
    }
}

impl RecordedTimes {
    /// Extracts the initial conditions from a recording.
    pub fn setting(&self, program: &Program) -> Setting {
        let ranks = program.ranks.iter().zip(&self.ranks).map(|(rank, recorded)| {
            let works = rank.works.iter().zip(&recorded.works);
            let left = works.filter(|(work, _)| !work.is_launched).map(|(_, times)| *times);
            RankSetting { start_ns: recorded.start_ns, left_running: left.collect() }
        });
        Setting { ranks: ranks.collect() }
    }
}

/// A recorded step: its program, and the times it was recorded with.
#[derive(Clone, Debug, Default)]
pub struct Step {
    pub program: Program,
    pub recorded: RecordedTimes,
}
