//! Stores one parsed part of the text. The columns of a part use the worker's own ids of texts,
//! categories and tracks. Decisions that need the whole trace are left to the merge.

use std::collections::BTreeMap;

use super::intern::{FastMap, InternedNumber, Numbers, User};
use crate::store::{Allocation, Counter, Flow, Instant, Losses, Slices, reserve};

/// The result of reading a part of the text.
#[derive(Debug, Default)]
pub struct TextPart {
    /// Slices whose names and tracks are ids that the worker assigned. The column `category` stays
    /// empty.
    pub slices: Slices,
    pub slice_categories: Vec<u16>,
    pub flows: Vec<Flow>,
    pub flow_categories: Vec<u16>,
    pub counters: Vec<Counter>,
    pub instants: Vec<Instant>,
    pub instant_categories: Vec<u16>,
    pub allocations: Vec<Allocation>,
    pub edges: Vec<Edge>,
    pub labels: Vec<TrackName>,
    pub letters: Letters,
    pub phases: BTreeMap<String, u64>,
    pub losses: Losses,
    pub used: Used,
}

/// Number of events of each phase that is one ASCII letter.
#[derive(Debug)]
pub struct Letters(pub [u64; 128]);

impl Default for Letters {
    fn default() -> Self {
        Self([0; 128])
    }
}

/// The ids that a part uses, in order of first use, and the keys that were new in the part.
#[derive(Debug, Default)]
pub struct Used {
    pub texts: Vec<u32>,
    pub categories: Vec<u32>,
    pub tracks: Vec<u32>,
    /// Texts that the worker met for the first time, in order of their ids.
    pub new_texts: Vec<Box<str>>,
    pub new_categories: Vec<Box<str>>,
    pub new_tracks: Vec<(ThreadId, ThreadId)>,
}

/// A begin event (`B`) or an end event (`E`) of a slice. The two events of a slice may be in
/// different parts.
#[derive(Clone, Copy, Debug)]
pub struct Edge {
    /// Row of the slice that begins here, or `None` for an end event.
    pub row: Option<u32>,
    pub track: u32,
    pub time: i64,
    pub offset: u64,
}

/// A name of a process or thread, which a metadata event assigns.
#[derive(Clone, Debug)]
pub struct TrackName {
    pub what: Named,
    pub track: u32,
    pub text: Box<str>,
}

/// The object that a metadata event names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    Thread,
    Process,
    ProcessLabel,
}

/// A process or thread id, which may be a text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ThreadId {
    Number(i64),
    Text(Box<str>),
}

/// The ids that a worker has assigned so far, over all its parts.
#[derive(Debug)]
pub struct WorkerTables {
    user: User,
    texts: Numbers<Box<[u8]>>,
    categories: Numbers<Box<[u8]>>,
    tracks: Numbers<(ThreadId, ThreadId)>,
    /// A cache of recently used tracks whose ids are numbers, indexed by a hash of these ids.
    near: [((i64, i64), u32); NEAR],
    numbered: FastMap<(i64, i64), u32>,
}

const NEAR: usize = 64;

impl WorkerTables {
    /// Creates tables without any ids.
    pub fn new() -> Self {
        Self {
            user: User(0),
            texts: Numbers::new(),
            categories: Numbers::new(),
            tracks: Numbers::new(),
            near: [((0, 0), u32::MAX); NEAR],
            numbered: FastMap::default(),
        }
    }

    /// Starts a new part, which has not used any id yet.
    pub fn begin(&mut self) {
        self.user.0 += 1;
    }

    /// Returns the worker's id of a text.
    #[inline(always)]
    pub fn text(&mut self, text: &[u8], used: &mut Used) -> u32 {
        let number = self.texts.find(text, self.user).unwrap_or_else(|| {
            used.new_texts.push(String::from_utf8_lossy(text).into());
            self.texts.add(text.into(), self.user)
        });
        note(number, &mut used.texts)
    }

    /// Returns the worker's id of a category. All categories beyond the 65,535th share one id.
    #[inline(always)]
    pub fn category(&mut self, name: &[u8], used: &mut Used) -> u16 {
        let number = self.categories.find(name, self.user).unwrap_or_else(|| {
            used.new_categories.push(String::from_utf8_lossy(name).into());
            self.categories.add(name.into(), self.user)
        });
        note(number, &mut used.categories).min(u32::from(u16::MAX)) as u16
    }

    /// Returns the worker's id of a track whose process id and thread id are numbers.
    #[inline(always)]
    pub fn numbered_track(&mut self, pid: i64, tid: i64, used: &mut Used) -> u32 {
        let key = (pid, tid);
        let place = (pid.wrapping_mul(31).wrapping_add(tid)) as usize % NEAR;
        let (near, number) = self.near[place];
        let number = if near == key && number != u32::MAX {
            number
        } else {
            let number = self.numbered_far(pid, tid, used);
            self.near[place] = (key, number);
            number
        };
        note(self.tracks.touch(number, self.user), &mut used.tracks)
    }

    fn numbered_far(&mut self, pid: i64, tid: i64, used: &mut Used) -> u32 {
        if let Some(number) = self.numbered.get(&(pid, tid)) {
            return *number;
        }
        let number = self.track(ThreadId::Number(pid), ThreadId::Number(tid), used);
        self.numbered.insert((pid, tid), number);
        number
    }

    /// Returns the worker's id of any track.
    pub fn track(&mut self, pid: ThreadId, tid: ThreadId, used: &mut Used) -> u32 {
        let key = (pid, tid);
        let number = self.tracks.find(&key, self.user).unwrap_or_else(|| {
            used.new_tracks.push(key.clone());
            self.tracks.add(key, self.user)
        });
        note(number, &mut used.tracks)
    }
}

#[inline(always)]
fn note(found: InternedNumber, used: &mut Vec<u32>) -> u32 {
    match found {
        InternedNumber::Again(number) => number,
        InternedNumber::First(number) | InternedNumber::New(number) => {
            used.push(number);
            number
        }
    }
}

impl TextPart {
    /// Returns the number of events of all phases.
    pub fn event_count(&self) -> u64 {
        self.letters.0.iter().sum::<u64>() + self.phases.values().sum::<u64>()
    }

    /// Reserves memory for the whole text, of which the share `share` has been read.
    pub fn reserve(&mut self, share: f64) {
        self.slices.reserve(share);
        reserve::extrapolate(&mut self.slice_categories, share);
        reserve::extrapolate(&mut self.flows, share);
        reserve::extrapolate(&mut self.flow_categories, share);
        reserve::extrapolate(&mut self.counters, share);
        reserve::extrapolate(&mut self.instants, share);
        reserve::extrapolate(&mut self.instant_categories, share);
        reserve::extrapolate(&mut self.allocations, share);
    }
}
