//! Moves slices that overlap on a track without nesting to further lanes of the track.
//!
//! Trace viewers keep one stack of nested slices per line, and they drop slices that do not nest.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::store::Slices;

/// Number of lanes in which slices may nest. Each further lane holds one slice at a time, which
/// bounds the cost if thousands of slices overlap.
const NESTING: usize = 8;

/// The lane of its track on which each slice is drawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceLanes {
    /// Lane of each slice, by row. Lane 0 is the track's own line.
    pub lane: Vec<u32>,
    /// Number of lanes of each track, at least 1.
    pub count: Vec<u32>,
    /// Rows ordered by track, then by start, then by descending duration, so that parents precede
    /// their children.
    order: Vec<u32>,
    /// Offset of each track's rows in `order`, followed by the length of `order`.
    first: Vec<usize>,
}

impl SliceLanes {
    /// Returns the rows of a track by start. Among rows with equal starts, longer slices come
    /// first.
    pub fn rows(&self, track: usize) -> &[u32] {
        &self.order[self.first[track]..self.first[track + 1]]
    }

    /// Counts the slices that were moved away from lane 0.
    pub fn moved(&self) -> u64 {
        self.lane.iter().filter(|lane| **lane > 0).count() as u64
    }
}

/// Puts each slice in the first lane of its track where it either nests in other slices or does not
/// overlap them.
///
/// # Cost
/// `O(n log n)` in the number of slices, and less if they are already in order.
pub fn assign(slices: &Slices, tracks: usize) -> SliceLanes {
    let (mut order, first) = by_track(slices, tracks);
    let mut lane = vec![0; slices.len()];
    let mut count = vec![1; tracks];
    for track in 0..tracks {
        let rows = &mut order[first[track]..first[track + 1]];
        // Of slices with equal starts, the longest comes first because it contains the others.
        rows.sort_by_key(|row| (slices.start(*row), Reverse(slices.end(*row)), *row));
        count[track] = assign_track(slices, rows, &mut lane);
    }
    SliceLanes { lane, count, order, first }
}

/// Leaves all slices in lane 0, even if they overlap.
pub fn none(slices: &Slices, tracks: usize) -> SliceLanes {
    let (order, first) = by_track(slices, tracks);
    SliceLanes { lane: vec![0; slices.len()], count: vec![1; tracks], order, first }
}

fn by_track(slices: &Slices, tracks: usize) -> (Vec<u32>, Vec<usize>) {
    let mut first = vec![0; tracks + 1];
    for track in &slices.track {
        first[track.0 as usize + 1] += 1;
    }
    for track in 0..tracks {
        first[track + 1] += first[track];
    }
    // A counting sort by track keeps the file order within a track.
    let mut next = first.clone();
    let mut order = vec![0; slices.len()];
    for (row, track) in slices.track.iter().enumerate() {
        let place = &mut next[track.0 as usize];
        order[*place] = row as u32;
        *place += 1;
    }
    (order, first)
}

/// Assigns lanes to the rows of a track, and returns the number of lanes.
fn assign_track(slices: &Slices, rows: &[u32], lane: &mut [u32]) -> u32 {
    let mut nesting: Vec<Vec<i64>> = vec![Vec::new()];
    let mut alone = Alone::default();
    for &row in rows {
        let (start, end) = (slices.start(row), slices.end(row));
        let place = nesting.iter_mut().position(|open| fits(open, start, end));
        lane[row as usize] = match place {
            Some(place) => {
                nesting[place].push(end);
                place as u32
            }
            None if nesting.len() < NESTING => {
                nesting.push(vec![end]);
                nesting.len() as u32 - 1
            }
            // Testing more nesting lanes would cost time proportional to the number of overlapping
            // slices.
            None => NESTING as u32 + alone.take(start, end),
        };
    }
    nesting.len() as u32 + alone.lanes
}

/// Whether a slice lies after or inside the open slices of a lane. `open` holds the end times of
/// these slices.
fn fits(open: &mut Vec<i64>, start: i64, end: i64) -> bool {
    // Rows are visited in the order of their starts, so a slice that has ended cannot contain a
    // later one.
    while open.last().is_some_and(|last| *last <= start) {
        open.pop();
    }
    open.last().is_none_or(|last| end <= *last)
}

/// Lanes that hold at most one slice at a time, so that a free lane is found without a search.
#[derive(Default)]
struct Alone {
    lanes: u32,
    free: BinaryHeap<Reverse<u32>>,
    busy: BinaryHeap<Reverse<(i64, u32)>>,
}

impl Alone {
    fn take(&mut self, start: i64, end: i64) -> u32 {
        while let Some(Reverse((until, lane))) = self.busy.peek().copied() {
            if until > start {
                break;
            }
            self.busy.pop();
            self.free.push(Reverse(lane));
        }
        // The lowest free lane is reused, so that the number of lanes stays small.
        let lane = self.free.pop().map_or(self.lanes, |Reverse(lane)| lane);
        self.lanes = self.lanes.max(lane + 1);
        self.busy.push(Reverse((end, lane)));
        lane
    }
}

#[cfg(test)]
mod tests;
