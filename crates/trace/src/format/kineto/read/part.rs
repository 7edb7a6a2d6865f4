//! One parsed part of the text: columns with the worker's own numbers of texts, categories and
//! tracks, and notes for decisions that need the whole.

use std::collections::BTreeMap;

use super::intern::{FastMap, InternedNumber, Numbers, User};
use crate::store::{Allocation, Counter, Flow, Instant, Losses, Slices, room};

/// What was read of a part of the text.
#[derive(Debug, Default)]
pub struct TextPart {
    /// Slices; `category` stays empty, names and tracks are the worker's.
    pub slices: Slices,
    /// The worker's category of each slice.
    pub slice_categories: Vec<u16>,
    /// Flows; their category is in `flow_categories`.
    pub flows: Vec<Flow>,
    /// The worker's category of each flow.
    pub flow_categories: Vec<u16>,
    pub counters: Vec<Counter>,
    /// Instants; their category is in `instant_categories`.
    pub instants: Vec<Instant>,
    /// The worker's category of each instant.
    pub instant_categories: Vec<u16>,
    pub allocations: Vec<Allocation>,
    /// Begins and ends, in order.
    pub edges: Vec<Edge>,
    /// Names of tracks and processes, in order.
    pub labels: Vec<TrackName>,
    /// Events per phase of one ASCII letter.
    pub letters: Letters,
    /// Events of any other phase.
    pub phases: BTreeMap<String, u64>,
    pub losses: Losses,
    /// What this part uses of the worker's numbers, in order of first use.
    pub used: Used,
}

/// Events per phase of one ASCII letter.
#[derive(Debug)]
pub struct Letters(pub [u64; 128]);

impl Default for Letters {
    fn default() -> Self {
        Self([0; 128])
    }
}

/// The worker's numbers in order of first use, with what the new ones among them stand for.
#[derive(Debug, Default)]
pub struct Used {
    pub texts: Vec<u32>,
    pub categories: Vec<u32>,
    pub tracks: Vec<u32>,
    /// Texts the worker met first here, in order of their numbers.
    pub new_texts: Vec<Box<str>>,
    /// Categories the worker met first here.
    pub new_categories: Vec<Box<str>>,
    /// Tracks the worker met first here.
    pub new_tracks: Vec<(ThreadId, ThreadId)>,
}

/// The begin (`B`) or the end (`E`) of a slice; pairs may lie in different parts.
#[derive(Clone, Copy, Debug)]
pub struct Edge {
    /// The slice that begins here; `None` for an end.
    pub row: Option<u32>,
    pub track: u32,
    pub time: i64,
    /// Where in the text.
    pub offset: u64,
}

/// A name given by a metadata event.
#[derive(Clone, Debug)]
pub struct TrackName {
    pub what: Named,
    /// The track of the event.
    pub track: u32,
    pub text: Box<str>,
}

/// What a metadata event names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    Thread,
    Process,
    /// The process, in other words.
    ProcessLabel,
}

/// A process or thread id.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ThreadId {
    Number(i64),
    Text(Box<str>),
}

/// The numbers a worker has assigned so far, over all its parts.
#[derive(Debug)]
pub struct WorkerTables {
    user: User,
    texts: Numbers<Box<[u8]>>,
    categories: Numbers<Box<[u8]>>,
    tracks: Numbers<(ThreadId, ThreadId)>,
    /// Tracks of two numbers, where a hash of them says.
    near: [((i64, i64), u32); NEAR],
    numbered: FastMap<(i64, i64), u32>,
}

const NEAR: usize = 64;

impl WorkerTables {
    /// Nothing yet.
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

    /// Begins a part.
    pub fn begin(&mut self) {
        self.user.0 += 1;
    }

    /// The number of a text.
    #[inline(always)]
    pub fn text(&mut self, text: &[u8], used: &mut Used) -> u32 {
        let found = self.texts.find(text, self.user).unwrap_or_else(|| {
            used.new_texts.push(String::from_utf8_lossy(text).into());
            self.texts.add(text.into(), self.user)
        });
        note(found, &mut used.texts)
    }

    /// The number of a category. There are no more than 65,535.
    #[inline(always)]
    pub fn category(&mut self, name: &[u8], used: &mut Used) -> u16 {
        let found = self.categories.find(name, self.user).unwrap_or_else(|| {
            used.new_categories.push(String::from_utf8_lossy(name).into());
            self.categories.add(name.into(), self.user)
        });
        note(found, &mut used.categories).min(u32::from(u16::MAX)) as u16
    }

    /// The number of a track of two numbers.
    #[inline(always)]
    pub fn numbered_track(&mut self, key: (i64, i64), used: &mut Used) -> u32 {
        let place = (key.0.wrapping_mul(31).wrapping_add(key.1)) as usize % NEAR;
        let (near, number) = self.near[place];
        let number = if near == key && number != u32::MAX {
            number
        } else {
            let number = self.numbered_far(key, used);
            self.near[place] = (key, number);
            number
        };
        note(self.tracks.touch(number, self.user), &mut used.tracks)
    }

    fn numbered_far(&mut self, key: (i64, i64), used: &mut Used) -> u32 {
        if let Some(number) = self.numbered.get(&key) {
            return *number;
        }
        let number = self.track((ThreadId::Number(key.0), ThreadId::Number(key.1)), used);
        self.numbered.insert(key, number);
        number
    }

    /// The number of any track.
    pub fn track(&mut self, key: (ThreadId, ThreadId), used: &mut Used) -> u32 {
        let found = self.tracks.find(&key, self.user).unwrap_or_else(|| {
            used.new_tracks.push(key.clone());
            self.tracks.add(key, self.user)
        });
        note(found, &mut used.tracks)
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
    /// Events of any phase that were read.
    pub fn event_count(&self) -> u64 {
        self.letters.0.iter().sum::<u64>() + self.phases.values().sum::<u64>()
    }

    /// Takes memory for the whole text, of which this is about the given share.
    pub fn make_room(&mut self, share: f64) {
        self.slices.make_room(share);
        room::make(&mut self.slice_categories, share);
        room::make(&mut self.flows, share);
        room::make(&mut self.flow_categories, share);
        room::make(&mut self.counters, share);
        room::make(&mut self.instants, share);
        room::make(&mut self.instant_categories, share);
        room::make(&mut self.allocations, share);
    }
}
