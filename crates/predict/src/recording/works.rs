//! Reads the device work of a step: the work that it launched, and the work that an earlier step
//! left running.

use std::collections::BTreeMap;

use analyze::skew;
use trace::store::{EventKind, Strings};

use super::reader::RankReader;
use super::recorded::{RankTimes, TimeRange};
use super::sizes;
use super::structure::find_partners;
use crate::effort;
use crate::program::{Rank, Repeated, Stream, Work, WorkKind};

/// Longest time from a launch, or from the end of the awaited work, to a start. Longer times have
/// another cause.
const LATENCY_NS: i64 = 200_000;

/// Adds the device work of a rank's step. Returns the index of each work by trace row.
pub(super) fn read(
    read: &RankReader<'_>,
    names: &mut Strings,
    rank: &mut Rank,
    recorded: &mut RankTimes,
) -> BTreeMap<u32, u32> {
    let trace = read.scope.trace;
    let stream = |row: u32| Stream { device: trace.device(row), number: trace.stream(row) };
    // All times are converted to the clock of the host.
    let span = |row: u32| {
        let shift = skew::shift_ns(&read.waits.skews, trace.device(row));
        (trace.slices.start(row) - shift, trace.slices.end(row) - shift)
    };
    let is_inside = |row: u32| span(row).1 > read.span.start && span(row).0 < read.span.end;
    let taken = |row: &u32| match read.scope.links().call(*row) {
        Some(call) => {
            let start = trace.slices.start(call);
            // Work of earlier steps counts even if it runs after this step, because the work of
            // this step queues behind it.
            start < read.span.end && (read.span.start <= start || span(*row).1 > read.span.start)
        }
        None => is_inside(*row),
    };
    let mut rows: Vec<u32> = read.scope.device_rows.iter().copied().filter(taken).collect();
    // The sort is stable, so rows of one stream keep their order by start.
    rows.sort_by_key(|row| stream(*row));
    let mut place = BTreeMap::new();
    for (at, row) in rows.iter().enumerate() {
        place.insert(*row, at as u32);
        if rank.streams.last() != Some(&stream(*row)) {
            rank.streams.push(stream(*row));
        }
        let number = rank.streams.len() as u32 - 1;
        let work = work(read, names, *row, number);
        rank.works.push(work);
        let (start, end) = span(*row);
        recorded.works.push((read.since(start), read.since(end)));
    }
    find_repeated(&mut rank.works);
    for (at, row) in rows.iter().enumerate() {
        let stream = rank.works[at].stream;
        let before =
            find_partners(&read.waits.behind, *row).find_map(|row| place.get(&row).copied());
        let previous = at.checked_sub(1).filter(|before| rank.works[*before].stream == stream);
        rank.works[at].behind = before.or(previous.map(|before| before as u32));
        let after =
            find_partners(&read.waits.of_streams, *row).filter_map(|row| place.get(&row).copied());
        rank.works[at].after =
            after.filter(|other| rank.works[*other as usize].stream != stream).collect();
        let call = read.scope.links().call(*row).map(|call| read.since(trace.slices.start(call)));
        rank.works[at].held_ns =
            held_ns(&rank.works[at], &recorded.works, recorded.works[at].0, call);
    }
    place
}

fn work(read: &RankReader<'_>, names: &mut Strings, row: u32, stream: u32) -> Work {
    let trace = read.scope.trace;
    let shape = trace.slices.launch_shape.get(row).copied();
    let bytes = trace.slices.bytes.get(row).copied();
    let kind = match trace.kind(row) {
        EventKind::Memcpy => WorkKind::Copy,
        EventKind::Memset => WorkKind::Set,
        _ => WorkKind::Kernel,
    };
    let call = read.scope.links().call(row);
    let op = call.and_then(|call| read.top_operator(call));
    // The duration of a matrix product depends on more than its grid, so the operator's tensor
    // sizes are part of the detail.
    let sizes = op.map_or("", |op| read.size_text(op));
    let launch = match (shape, bytes) {
        (Some(shape), _) => format!("{:?}x{:?}", shape.grid, shape.block),
        (None, Some(bytes)) => format!("{bytes} B"),
        (None, None) => String::new(),
    };
    let separator = if sizes.is_empty() || launch.is_empty() { "" } else { "; " };
    let mut detail = [sizes, separator, &launch].concat();
    if let Some(work) = op.and_then(|op| read.work.get(&(trace.rank, op))) {
        detail = effort::detail(&detail, *work);
    }
    let start = call.map(|call| trace.slices.start(call));
    Work {
        name: names.intern(trace.name(row)),
        kind,
        stream,
        op: names.intern(op.map_or("", |op| trace.name(op))),
        detail: names.intern(&detail),
        shape,
        bytes,
        scale: 1.0,
        is_launched: start.is_some_and(|at| read.span.start <= at && at < read.span.end),
        ..Work::default()
    }
}

/// Returns the time between all that a work is known to wait for and its start, or 0 if latencies
/// may explain it.
fn held_ns(work: &Work, times: &[TimeRange], start: i64, call: Option<i64>) -> i64 {
    let ends = work.behind.iter().chain(&work.after).map(|other| times[*other as usize].1);
    let ready = ends.chain(call).max();
    let held = ready.map_or(0, |ready| start - ready);
    if held > LATENCY_NS && work.is_launched { held } else { 0 }
}

/// Finds the works that repeat those which earlier steps left running. On a stream, the last work
/// left running is repeated by the last work of this step, and so on backwards. A work of another
/// name repeats nothing, because then the earlier step was not like this one.
fn find_repeated(works: &mut [Work]) {
    let mut first = 0;
    while let Some(stream) = works.get(first).map(|work| work.stream) {
        let count = works[first..].iter().take_while(|work| work.stream == stream).count();
        let place = |is_launched: bool| {
            let range = (first..first + count).rev();
            range.filter(|at| works[*at].is_launched == is_launched).collect::<Vec<_>>()
        };
        let (launched, left) = (place(true), place(false));
        for (at, earlier) in left.into_iter().enumerate().filter(|_| !launched.is_empty()) {
            let by = launched[at % launched.len()];
            if works[by].name == works[earlier].name {
                let steps = 1 + (at / launched.len()) as u32;
                works[earlier].repeated = Some(Repeated { by: by as u32, steps });
            }
        }
        first += count;
    }
}

impl RankReader<'_> {
    /// Returns the outermost operator around a row, if there is one.
    pub(super) fn top_operator(&self, row: u32) -> Option<u32> {
        let is_operator = |row: &u32| sizes::is_operator(self.scope, *row);
        self.tree.ancestors(row).filter(is_operator).last()
    }
}
