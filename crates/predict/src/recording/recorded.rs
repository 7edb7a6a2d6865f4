//! The times that a step was recorded with, kept apart from its program.

use std::collections::{BTreeMap, BTreeSet};

use trace::store::StringId;

use crate::program::{Action, Program};

/// When everything of a [`Program`] was recorded; nanoseconds since the start of its rank's step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedTimes {
    /// By place of the rank.
    pub ranks: Vec<RankTimes>,
}

/// A rank's part of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankTimes {
    /// When the step started, absolute nanoseconds.
    pub start_ns: i64,
    /// How long it took on the host.
    pub step_ns: i64,
    /// Per thread, per action: from, to.
    pub actions: Vec<Vec<(i64, i64)>>,
    /// Per work: from, to.
    pub works: Vec<(i64, i64)>,
    /// The program part made of each row of the trace, if it is a single one.
    pub rows: BTreeMap<u32, Place>,
    /// Every operator that ran, those inside others too.
    pub operators: BTreeSet<StringId>,
    /// Per thread, per action: events of the host that began then, of what is inside too.
    pub events: Vec<Vec<u32>>,
    /// By place of the thread and of a call among its actions: who makes it.
    pub callers: BTreeMap<(usize, usize), Caller>,
}

/// The innermost operator around a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    pub row: u32,
    pub name: StringId,
    /// The sizes of its tensors.
    pub sizes: StringId,
}

/// Where a row of a trace is in a rank's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Work(u32),
    /// A call or an outermost operator: its thread, its first and its last action.
    Actions {
        /// Place of the thread.
        thread: usize,
        /// Place of the first action.
        first: usize,
        /// Place of the last one.
        last: usize,
    },
}

impl RankTimes {
    /// The own cost of a thread's action; for a launch into a full queue, counted from when there
    /// was room.
    pub fn own_ns(&self, action: &Action, (from, to): (i64, i64)) -> i64 {
        to - self.begun_ns(action, (from, to))
    }

    /// Number of host events that began during an action; 0 if the recording has no counts for it.
    pub fn events_in(&self, thread: usize, action: usize) -> u32 {
        self.events.get(thread).and_then(|events| events.get(action)).copied().unwrap_or_default()
    }

    /// When a call began to launch: at its start, or when there was room.
    pub fn begun_ns(&self, action: &Action, (from, to): (i64, i64)) -> i64 {
        let room = match action {
            Action::Call(call) => call.room,
            _ => None,
        };
        room.map_or(from, |work| self.works[work as usize].1.clamp(from, to))
    }
}

/// The start of a step, which neither program nor calibration contains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// By place of the rank.
    pub ranks: Vec<RankSetting>,
}

/// Where a rank's step begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankSetting {
    /// When, on the clock of all ranks.
    pub start_ns: i64,
    /// From when to when the works run that it does not launch, in their order; since its start.
    pub left_running: Vec<(i64, i64)>,
}

impl Setting {
    /// Where the step of the rank at a place begins; of one nobody knows, at 0.
    pub fn rank(&self, place: usize) -> &RankSetting {
        const UNKNOWN: &RankSetting = &RankSetting { start_ns: 0, left_running: Vec::new() };
        self.ranks.get(place).unwrap_or(UNKNOWN)
    }
}

impl RecordedTimes {
    /// Where the steps began.
    pub fn setting(&self, program: &Program) -> Setting {
        let ranks = program.ranks.iter().zip(&self.ranks).map(|(rank, recorded)| {
            let works = rank.works.iter().zip(&recorded.works);
            let left = works.filter(|(work, _)| !work.is_launched).map(|(_, times)| *times);
            RankSetting { start_ns: recorded.start_ns, left_running: left.collect() }
        });
        Setting { ranks: ranks.collect() }
    }
}

/// One recorded step.
#[derive(Clone, Debug, Default)]
pub struct Step {
    pub program: Program,
    pub recorded: RecordedTimes,
}
