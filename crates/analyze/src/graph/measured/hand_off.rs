//! Finds waits between the threads of the forward pass and the backward pass.
//!
//! A trace does not record that one thread waits for another. Such a wait is inferred from times.
//! If a thread resumes after a pause, and its partner thread worked in that pause and has stopped,
//! then the first thread waited for its partner.

use std::collections::{BTreeMap, BTreeSet};

use trace::store::{EventKind, FlowPhase, Trace, TrackId, TrackKey};

use super::draft::Draft;
use super::host::{Chain, HandOff};
use crate::facts::scope::Scope;

/// Finds the hand-offs to each node of each thread.
pub(super) fn find(draft: &mut Draft, scope: &Scope<'_>, chains: &mut [Chain]) {
    let mut chain_of: Vec<Option<usize>> = vec![None; scope.trace.tracks.len()];
    for (at, chain) in chains.iter().enumerate() {
        chain_of[chain.track.0 as usize] = Some(at);
    }
    for (a, b) in pairs(scope.trace) {
        if let (Some(a), Some(b)) = (chain_of[a.0 as usize], chain_of[b.0 as usize]) {
            let (to_a, to_b) = {
                let (a, b) = (&chains[a], &chains[b]);
                (between(draft, scope, b, a), between(draft, scope, a, b))
            };
            draft.evidence.hand_offs += (to_a.len() + to_b.len()) as u64;
            chains[a].hand_offs.extend(to_a);
            chains[b].hand_offs.extend(to_b);
        }
    }
    for chain in chains {
        chain.hand_offs.sort_by_key(|hand_off| hand_off.step);
    }
}

/// Returns the hand-offs from one thread to another.
fn between(draft: &Draft, scope: &Scope<'_>, from: &Chain, to: &Chain) -> Vec<HandOff> {
    let mut found = Vec::new();
    let (mut finished, mut begun) = (0, 0);
    let mut paused = scope.window.start;
    for (step, resumed) in to.entries().enumerate() {
        let pause = std::mem::replace(&mut paused, draft.end(to.node(step)));
        if pause >= resumed {
            continue;
        }
        let ended = |other: usize| draft.end(from.node(other));
        while begun < from.len() && ended(begun) <= pause {
            begun += 1;
        }
        while finished < from.len() && ended(finished) <= resumed {
            finished += 1;
        }
        let Some(last) = finished.checked_sub(1) else { continue };
        // If the other thread was still working at that time, the first one did not wait for its
        // last node.
        let has_stopped = from.entry(finished).is_none_or(|next| next >= resumed);
        if has_stopped && ended(last) > pause {
            let first = from.entry(begun).unwrap_or(ended(last));
            let worked = ended(last) - first.clamp(pause, ended(last));
            found.push(HandOff { step, source: from.node(last), worked });
        }
    }
    found
}

/// Finds pairs of threads in which one ran the backward pass of the other's forward pass. Pairs
/// come from the profiler's flow arrows, or else from its sequence numbers, or else from operator
/// names.
fn pairs(trace: &Trace) -> BTreeSet<(TrackId, TrackId)> {
    let mut pairs = BTreeSet::new();
    let mut ends: Vec<(u64, TrackId, FlowPhase)> = Vec::new();
    let is_backward = |name: &str| matches!(name, "fwdbwd" | "forward_backward");
    let joins: Vec<bool> = trace.categories.iter().map(|c| is_backward(&c.name)).collect();
    let flows = trace.flows.iter().filter(|flow| joins[usize::from(flow.category)]);
    ends.extend(flows.map(|flow| (flow.id, flow.track, flow.phase)));
    ends.sort_by_key(|(id, ..)| *id);
    for arrow in ends.chunk_by(|a, b| a.0 == b.0) {
        // Ids of flow arrows are unique only within a process.
        let is_start = |end: &&(u64, TrackId, FlowPhase)| end.2 == FlowPhase::Start;
        let starts: BTreeSet<TrackId> = arrow.iter().filter(is_start).map(|end| end.1).collect();
        let ends: BTreeSet<TrackId> = arrow.iter().map(|end| end.1).collect();
        for from in starts {
            let others = ends.iter().filter(|to| **to != from);
            let others = others.filter(|to| process(trace, **to) == process(trace, from));
            pairs.extend(others.map(|to| (from.min(*to), from.max(*to))));
        }
    }
    if pairs.is_empty() {
        pairs = by_sequence(trace);
    }
    if pairs.is_empty() { by_name(trace) } else { pairs }
}

/// Finds pairs by the numbers that profilers wrote before 2022, when an operator of the backward
/// pass named the forward thread and the sequence number of the forward operator.
fn by_sequence(trace: &Trace) -> BTreeSet<(TrackId, TrackId)> {
    let slices = &trace.slices;
    let mut forward: BTreeMap<(&TrackKey, i64), TrackId> = BTreeMap::new();
    let mut backward: Vec<(i64, TrackId)> = Vec::new();
    for (row, &sequence) in slices.sequence.iter().filter(|(_, sequence)| **sequence >= 0) {
        let track = slices.track[row as usize];
        match slices.forward_thread.get(row) {
            Some(thread) if *thread > 0 => backward.push((sequence, track)),
            _ => {
                forward.insert((process(trace, track), sequence), track);
            }
        }
    }
    let pair = |(sequence, to): (i64, TrackId)| {
        let from = forward.get(&(process(trace, to), sequence)).filter(|from| **from != to)?;
        Some(((*from).min(to), (*from).max(to)))
    };
    backward.into_iter().filter_map(pair).collect()
}

fn by_name(trace: &Trace) -> BTreeSet<(TrackId, TrackId)> {
    const BACKWARD: &str = "autograd::engine::evaluate_function";
    let is_backward: Vec<bool> =
        trace.strings.iter().map(|text| text.starts_with(BACKWARD)).collect();
    let (mut working, mut backward) = (BTreeSet::new(), BTreeSet::new());
    for row in trace.rows().filter(|row| trace.kind(*row) == EventKind::Operator) {
        let track = trace.slices.track[row as usize];
        working.insert(track);
        if is_backward[trace.slices.name[row as usize].0 as usize] {
            backward.insert(track);
        }
    }
    // The forward thread may run a small part of the backward pass itself, so a thread with
    // backward operators is paired with every other working thread of its process.
    let mut by_process: BTreeMap<&TrackKey, Vec<TrackId>> = BTreeMap::new();
    for track in working {
        by_process.entry(process(trace, track)).or_default().push(track);
    }
    let others = |b: TrackId| {
        let same = by_process[process(trace, b)].iter();
        same.filter(move |a| **a != b).map(move |a| (*a, b))
    };
    let pairs = backward.iter().flat_map(|b| others(*b));
    pairs.map(|(a, b)| (a.min(b), a.max(b))).collect()
}

fn process(trace: &Trace, track: TrackId) -> &TrackKey {
    &trace.tracks[track.0 as usize].pid
}
