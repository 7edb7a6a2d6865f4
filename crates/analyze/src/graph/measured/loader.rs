//! Finds threads that load input, which are the worker threads and the thread that pins memory. If
//! such threads were recorded, the thread that fetches a batch waited for the last work that they
//! finished before it got the batch.

use std::collections::BTreeSet;

use trace::store::{EventKind, StringId, Trace, TrackId};

use super::draft::Draft;
use super::host::{Chain, ChainDraft, HandOff};
use super::label::PathCategory;
use super::segment::ThreadSegment;
use crate::facts::scope::Scope;

/// Parts of the names of frames and operators that only loader threads run.
const LOADING: [&str; 3] = ["_utils/pin_memory.py(", "_utils/worker.py(", "aten::pin_memory"];
/// Annotation that PyTorch writes around the fetch of a batch.
const FETCHING: &str = "enumerate(DataLoader)";

/// Returns the tracks of the threads that load input but do not fetch it themselves.
pub(super) fn tracks(scope: &Scope<'_>) -> BTreeSet<TrackId> {
    let trace = scope.trace;
    let has = |parts: &[&str]| -> Vec<bool> {
        trace.strings.iter().map(|text| parts.iter().any(|part| text.contains(part))).collect()
    };
    let (loading, fetching) = (has(&LOADING), has(&[FETCHING]));
    if !loading.contains(&true) || !fetching.contains(&true) {
        return BTreeSet::new();
    }
    let tracks_named = |names: &[bool]| -> BTreeSet<TrackId> {
        let is_host = |row: &u32| {
            matches!(
                trace.kind(*row),
                EventKind::Operator | EventKind::Annotation | EventKind::Python
            )
        };
        let rows = trace.rows().filter(|row| names[trace.slices.name[*row as usize].0 as usize]);
        rows.filter(is_host).map(|row| trace.slices.track[row as usize]).collect()
    };
    &tracks_named(&loading) - &tracks_named(&fetching)
}

/// Adds nodes for the times at which a loader thread put something into a queue, which only Python
/// frames show.
pub(super) fn add_puts(chain: &mut ChainDraft<'_, '_, '_>, scope: &Scope<'_>, track: TrackId) {
    let trace = scope.trace;
    let is_put = |name: StringId| {
        let name = trace.strings.get(name);
        name.contains("queue") && name.ends_with(": put")
    };
    let frames = scope.frames();
    let (from, to) = (scope.window.start, scope.window.end);
    let mut rows: Vec<u32> = Vec::new();
    for (frame, at) in frames.all().iter().zip(0..) {
        let Some(row) = frame.row.filter(|_| is_put(frame.name)) else { continue };
        // One `put` may call another, and only the outermost call counts.
        let is_outermost = frames.stack(at).skip(1).all(|around| !is_put(around.name));
        if is_outermost && trace.slices.track[row as usize] == track {
            rows.push(row);
        }
    }
    rows.sort_by_key(|row| (trace.slices.start(*row), *row));
    let mut last = from;
    for row in rows {
        let (start, end) = (trace.slices.start(row).max(last), trace.slices.end(row).min(to));
        if start < end {
            chain.add(&ThreadSegment { row, start, end });
            last = end;
        }
    }
}

/// Marks all nodes of a loader thread as data loading. The end of a loader thread does not end the
/// window.
pub(super) fn mark(draft: &mut Draft, chain: &mut Chain) {
    chain.works = false;
    for node in chain.nodes() {
        let category = &mut draft.origins[node.index()].category;
        if *category == PathCategory::HostOperator {
            *category = PathCategory::DataLoading;
        }
    }
}

/// Finds the loader work that fetching threads waited for. The time of such a wait does not count
/// as work of the fetching thread.
pub(super) fn find(
    draft: &mut Draft,
    scope: &Scope<'_>,
    chains: &mut [Chain],
    loaders: &BTreeSet<TrackId>,
) {
    // Nodes of the loader threads, sorted by the time at which they end.
    let mut done: Vec<_> = chains
        .iter()
        .filter(|chain| loaders.contains(&chain.track))
        .flat_map(Chain::nodes)
        .map(|node| (draft.end(node), node))
        .collect();
    if done.is_empty() {
        return;
    }
    done.sort_unstable();
    let trace = scope.trace;
    for chain in chains.iter_mut().filter(|chain| !loaders.contains(&chain.track)) {
        let mut hand_offs = Vec::new();
        for (step, entry) in chain.entries().enumerate() {
            let node = chain.node(step);
            let row = draft.origins[node.index()].row();
            let fetches = row.is_some_and(|row| is_fetching(trace, row));
            let ended = draft.end(node);
            let until = done.partition_point(|(end, _)| *end <= ended);
            let last = until.checked_sub(1).map(|last| done[last]);
            let Some((end, source)) = last.filter(|(end, _)| fetches && *end > entry) else {
                continue;
            };
            if draft.starts[source.index()] < end {
                draft.starts[node.index()] = end;
                hand_offs.push(HandOff { step, source, worked: 0 });
                draft.evidence.hand_offs += 1;
            }
        }
        chain.hand_offs.extend(hand_offs);
        chain.hand_offs.sort_by_key(|hand_off| hand_off.step);
    }
}

fn is_fetching(trace: &Trace, row: u32) -> bool {
    trace.name(row).contains(FETCHING)
}
