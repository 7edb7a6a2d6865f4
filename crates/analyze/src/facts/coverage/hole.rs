//! Detects rows missing inside a syntactically complete file, which happens if a range of bytes was
//! lost and both sides of it still join to valid JSON. Ids reveal such a hole, because profilers
//! number rows consecutively, and a row that refers to another one contains its id.

use std::collections::HashMap;

use trace::store::{EventKind, FlowPhase, Loss, Trace};

use super::{order, silence};
use crate::facts::links::Links;
use crate::facts::window;
use crate::percent::percent;

/// Minimum number of ids in a trace. With fewer, the numbering scheme of its profiler cannot be
/// recognized.
const IDS_MIN: usize = 200;
/// A gap in the ids stands out if it is more than this many times as large as the gap `ALIKE`
/// places behind it in order of size.
const OUTLIER: u64 = 3;
/// Number of similarly large gaps that an undamaged recording may have. Profilers skip a block of
/// ids each time a module is loaded, and these blocks are equally large.
const ALIKE: usize = 3;
/// Maximum number of gaps in a sequence of ids that still counts as gapless.
const STRAY_GAPS: usize = 5;
/// Minimum length of a gap that counts as a hole. Shorter gaps are single ids that the profiler
/// skipped.
const GAP_MIN: u64 = 10;
/// Minimum number of operators between two calls that usually launch work but launched nothing
/// there.
const SILENT_MIN: usize = 3;
/// Minimum number of consecutive launches without device work that counts as evidence of a hole.
const LOST_RUN: usize = 10;
const LOST_PCT: f64 = 2.0;
/// Minimum number of consecutive flow events without an end that counts as evidence of a hole.
const FLOW_RUN: usize = 10;
const FLOW_PCT: f64 = 5.0;

/// Describes the evidence that rows are missing inside the file, or returns `None` for a complete
/// recording.
///
/// # Cost
/// The cost is `O(n log n)` in the calls of the trace, and `O(n)` in its other rows.
pub(super) fn find(trace: &Trace) -> Option<String> {
    let is_spliced = trace.losses.count_of(Loss::BrokenEvent) > 0;
    let calls = Calls::new(trace);
    calls
        .gap(trace)
        .or_else(|| calls.lost_launches(trace, is_spliced))
        .or_else(|| gap_of_events(trace))
        .or_else(|| gap_of_frames(trace))
        .or_else(|| missing_step(trace))
        .or_else(|| is_spliced.then(|| loose_flows(trace)).flatten())
        .or_else(|| is_spliced.then(|| calls.silent_edge(trace)).flatten())
}

/// Reports a missing step number if operators or calls ran in the time of that step.
fn missing_step(trace: &Trace) -> Option<String> {
    let slices = &trace.slices;
    let mut steps = window::named_steps(trace);
    steps.sort_by_key(|step| step.number);
    let missing = steps.windows(2).find(|pair| {
        let (from, until) = (pair[0].end, pair[1].start);
        let works = |row: u32| {
            let is_host = trace.kind(row).is_call() || trace.kind(row) == EventKind::Operator;
            is_host && from <= slices.start(row) && slices.end(row) <= until
        };
        pair[1].number > pair[0].number + 1 && trace.rows().any(works)
    })?;
    Some(format!(
        "ProfilerStep#{} is missing between ProfilerStep#{} and ProfilerStep#{}, and rows of its \
         time are there",
        missing[0].number + 1,
        missing[0].number,
        missing[1].number
    ))
}

/// Returns whether each launch of a trace has its device work and each piece of device work its
/// launch.
pub(super) fn is_paired(trace: &Trace) -> bool {
    let calls = Calls::new(trace);
    let launched = calls.launches(trace);
    let is_launched = |row: &u32| {
        let id = trace.slices.correlation(*row);
        id.is_some_and(|id| calls.ids.binary_search_by_key(&id, |(id, _)| *id).is_ok())
    };
    let works = || trace.rows().filter(|row| trace.kind(*row).is_device_work());
    let arrived = window::arrived(trace);
    let has_work = |(id, _): &(u64, u32)| arrived.binary_search(id).is_ok();
    !launched.is_empty() && launched.iter().all(has_work) && works().all(|row| is_launched(&row))
}

/// The runtime and driver calls of a trace, sorted by correlation id.
struct Calls {
    ids: Vec<(u64, u32)>,
}

impl Calls {
    fn new(trace: &Trace) -> Self {
        let id = |row: u32| Some((trace.slices.correlation(row).filter(|id| *id != 0)?, row));
        let calls = trace.rows().filter(|row| trace.kind(*row).is_call());
        let mut ids: Vec<(u64, u32)> = calls.filter_map(id).collect();
        ids.sort_unstable();
        Self { ids }
    }

    /// Finds a gap in the ids of the calls that is far larger than the others and in whose time
    /// operators ran that usually launch work.
    fn gap(&self, trace: &Trace) -> Option<String> {
        let gaps = Gaps::new(self.ids.iter().map(|(id, _)| *id));
        let calls = |gap: &IdGap| {
            format!("correlation ids {} to {} of calls are missing", gap.after + 1, gap.before - 1)
        };
        if let Some(gap) = gaps.in_gapless() {
            return Some(calls(&gap));
        }
        let gap = gaps.outlier()?;
        let row = |id: u64| {
            let at = self.ids.partition_point(|(other, _)| *other < id);
            self.ids.get(at).map(|(_, row)| *row)
        };
        let (after, before) = (row(gap.after)?, row(gap.before)?);
        let span = (trace.slices.end(after), trace.slices.start(before));
        let silent = silence::between(trace, &Links::new(trace), span);
        (silent >= SILENT_MIN).then(|| {
            format!("{}, and {silent} operators of that time launched nothing", calls(&gap))
        })
    }

    /// Finds operators before the first or after the last call that usually launch work but
    /// launched nothing.
    fn silent_edge(&self, trace: &Trace) -> Option<String> {
        let (from, to) = window::recorded(trace)?;
        let rows = || self.ids.iter().map(|(_, row)| *row);
        let first = rows().map(|row| trace.slices.start(row)).min()?;
        let last = rows().map(|row| trace.slices.end(row)).max()?;
        let links = Links::new(trace);
        let silent = |span| silence::between(trace, &links, span);
        let count = silent((from, first)).max(silent((last, to)));
        (count >= SILENT_MIN)
            .then(|| format!("{count} operators at an end of the recording launched nothing"))
    }

    /// Returns the ids and rows of the calls that launch work, judged by their names.
    fn launches(&self, trace: &Trace) -> Vec<(u64, u32)> {
        let names: Vec<bool> = trace.strings.iter().map(window::is_launch).collect();
        let name = |row: u32| trace.slices.name[row as usize].0 as usize;
        let empty = window::empty_memsets(trace, &window::arrived(trace));
        let is_launch = |(_, row): &&(u64, u32)| names[name(*row)] && !empty.contains(row);
        self.ids.iter().filter(is_launch).copied().collect()
    }

    /// Finds consecutive launches without device work, in a recording in which most launches have
    /// device work.
    fn lost_launches(&self, trace: &Trace, is_spliced: bool) -> Option<String> {
        let launches = self.launches(trace);
        let arrived = window::arrived(trace);
        let is_lost = |(id, _): &(u64, u32)| arrived.binary_search(id).is_err();
        let lost: Vec<bool> = launches.iter().map(is_lost).collect();
        let count = lost.iter().filter(|is_lost| **is_lost).count();
        // The end of any recording loses some launches, and even a complete recording may lack
        // single ones.
        let inside = match is_spliced {
            true => lost.len(),
            false => lost.iter().rposition(|is_lost| !is_lost).map_or(0, |last| last + 1),
        };
        let run = longest_run(&lost[..inside]);
        let share = percent(count as i64, launches.len() as i64)?;
        let is_much = run >= LOST_RUN && share > LOST_PCT || is_spliced && run > 0;
        if arrived.is_empty() || !is_much || order::has_only_captured(trace, &launches, &lost) {
            return None;
        }
        Some(format!("{count} of {} launches have no device work, {run} in a row", lost.len()))
    }
}

fn longest_run(flags: &[bool]) -> usize {
    flags.split(|flag| !flag).map(<[bool]>::len).max().unwrap_or(0)
}

/// A range of consecutive ids that no row of the trace has.
#[derive(Clone, Copy, Debug)]
struct IdGap {
    after: u64,
    before: u64,
}

impl IdGap {
    fn length(&self) -> u64 {
        self.before - self.after - 1
    }
}

/// The gaps of a sequence of ids, in ascending order.
struct Gaps {
    largest: Vec<IdGap>,
    count: usize,
    ids: usize,
}

impl Gaps {
    fn new(ids: impl Iterator<Item = u64>) -> Self {
        let mut found = Self { largest: Vec::new(), count: 0, ids: 0 };
        let mut last = None;
        // An id of 0 means that the row has no id.
        for id in ids.filter(|id| *id != 0) {
            if last == Some(id) {
                continue;
            }
            found.ids += 1;
            if let Some(after) = last.filter(|last| last + 1 < id) {
                found.count += 1;
                found.keep(IdGap { after, before: id });
            }
            last = Some(id);
        }
        found
    }

    fn keep(&mut self, gap: IdGap) {
        let most = ALIKE + 2;
        if self.largest.len() == most && self.largest[most - 1].length() >= gap.length() {
            return;
        }
        let at = self.largest.partition_point(|other| other.length() >= gap.length());
        self.largest.insert(at, gap);
        self.largest.truncate(most);
    }

    /// Returns the largest gap in ids that are otherwise consecutive.
    fn in_gapless(&self) -> Option<IdGap> {
        let is_gapless = self.ids >= IDS_MIN && self.count <= STRAY_GAPS;
        let second = self.largest.get(1).map_or(0, IdGap::length);
        let first = self.largest.first().filter(|_| is_gapless)?;
        (first.length() >= GAP_MIN.max(OUTLIER * second)).then_some(*first)
    }

    /// Returns the largest gap of the ids, provided that few others are as large.
    fn outlier(&self) -> Option<IdGap> {
        let first = self.largest.first().filter(|_| self.ids >= IDS_MIN)?;
        let usual = self.largest.get(ALIKE).map_or(0, IdGap::length);
        (first.length() > OUTLIER * usual.max(1)).then_some(*first)
    }
}

/// Finds a gap in the numbers of the events. Operators and annotations are numbered in one common
/// sequence without gaps.
fn gap_of_events(trace: &Trace) -> Option<String> {
    let mut ids: [Vec<u64>; 2] = Default::default();
    for (row, id) in trace.slices.event_index.iter() {
        ids[usize::from(trace.kind(row) == EventKind::Python)].push(*id);
    }
    let gap = |mut ids: Vec<u64>| {
        ids.sort_unstable();
        Gaps::new(ids.into_iter()).in_gapless()
    };
    let gap = ids.into_iter().find_map(gap)?;
    Some(format!("events {} to {} are missing", gap.after + 1, gap.before - 1))
}

/// Finds a gap in the numbers of Python frames, which are consecutive, and by which frames refer to
/// their callers.
fn gap_of_frames(trace: &Trace) -> Option<String> {
    let frames = &trace.slices.python;
    let mut ids: Vec<u64> = frames.iter().map(|(_, frame)| frame.id).collect();
    ids.sort_unstable();
    let gap = Gaps::new(ids.into_iter()).in_gapless()?;
    Some(format!("frames {} to {} of Python are missing", gap.after + 1, gap.before - 1))
}

/// Finds consecutive flow events from calls to device work that have no end, in a recording where
/// most flow events have one.
fn loose_flows(trace: &Trace) -> Option<String> {
    let mut ends: HashMap<(u8, u64), (bool, bool)> = HashMap::new();
    for flow in &trace.flows {
        let (is_begun, is_ended) = ends.entry((flow.category, flow.id)).or_default();
        match flow.phase {
            FlowPhase::Start => *is_begun = true,
            FlowPhase::Step | FlowPhase::End => *is_ended = true,
        }
    }
    // A lost range may contain the starts of all flow events, which leaves only their ends.
    let ended = ends.values().filter(|(_, is_ended)| *is_ended).count();
    let mut begun: Vec<((u8, u64), bool)> = ends
        .into_iter()
        .filter(|(_, (is_begun, _))| *is_begun)
        .map(|(id, (_, is_ended))| (id, !is_ended))
        .collect();
    begun.sort_unstable();
    if begun.is_empty() && ended > 0 {
        return Some(format!("{ended} flow events begin at no row"));
    }
    let loose: Vec<bool> = begun.iter().map(|(_, is_loose)| *is_loose).collect();
    let count = loose.iter().filter(|is_loose| **is_loose).count();
    let (run, share) = (longest_run(&loose), percent(count as i64, loose.len() as i64)?);
    (run >= FLOW_RUN && share > FLOW_PCT).then(|| {
        format!("{count} of {} flow events lead to no row, {run} of them in a row", loose.len())
    })
}
