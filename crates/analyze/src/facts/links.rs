//! Links each runtime call to the device work that it launched, by correlation id.

use trace::store::{EventKind, Trace};

const NONE: u32 = u32::MAX;

/// Runtime calls and the device work that they launched. One call may launch many device rows, as
/// the launch of a graph does.
#[derive(Clone, Debug)]
pub struct Links {
    /// The call that launched each row of device work.
    call: Vec<u32>,
    /// Index in `work` of the first device row of each call.
    first: Vec<u32>,
    work: Vec<u32>,
    /// Device rows whose correlation id belongs to several calls.
    contested: Vec<u32>,
}

impl Links {
    /// Joins the runtime and driver calls of a trace to its device work.
    ///
    /// If a runtime call and a driver call share a correlation id, the runtime call is taken,
    /// because it is the outer one. Each process counts its ids separately, and a device row does
    /// not name its process. If several calls of one kind share an id, the last one that starts at
    /// or before the device row is taken, or else the first one. [`Links::contested`] lists the
    /// device rows concerned.
    ///
    /// # Cost
    /// The cost is `O(n)` in the rows if the ids are dense, as profilers count them. The cost is
    /// `O(n log n)` in calls and device rows if ids are sparse or repeated.
    pub fn new(trace: &Trace) -> Self {
        let mut calls: Vec<Numbered> = Vec::new();
        let mut device: Vec<(u64, u32)> = Vec::new();
        for row in trace.rows() {
            let kind = trace.kind(row);
            if !kind.is_call() && !kind.is_device_work() {
                continue;
            }
            // Profilers write id 0 for "no id".
            let id = trace.slices.correlation(row).filter(|id| *id != 0);
            let Some(id) = id else { continue };
            if kind.is_call() {
                calls.push(Numbered { id, is_driver: kind == EventKind::Driver, row });
            } else {
                device.push((id, row));
            }
        }
        let index = CallIndex::new(trace, calls);
        let mut contested = Vec::new();
        let rows = trace.slices.len();
        let mut call = vec![NONE; rows];
        let mut first = vec![0u32; rows + 1];
        for &(id, row) in &device {
            let launched_by = match index.find_repeated(id, || trace.slices.start(row)) {
                Some(call) => {
                    contested.push(row);
                    call
                }
                None => index.find(id),
            };
            call[row as usize] = launched_by;
            if launched_by != NONE {
                first[launched_by as usize + 1] += 1;
            }
        }
        for row in 0..rows {
            first[row + 1] += first[row];
        }
        let mut work = vec![0; first[rows] as usize];
        for &(_, row) in &device {
            let launched_by = call[row as usize];
            if launched_by != NONE {
                let place = &mut first[launched_by as usize];
                work[*place as usize] = row;
                *place += 1;
            }
        }
        // Filling moved the start of each call's rows to their end, which is where the rows of the
        // next call begin.
        first.copy_within(..rows, 1);
        first[0] = 0;
        Self { call, first, work, contested }
    }

    /// Returns the call that launched a row of device work, if that call was recorded.
    pub fn call(&self, device_row: u32) -> Option<u32> {
        Some(self.call[device_row as usize]).filter(|row| *row != NONE)
    }

    /// Returns the device work that a call launched, in file order. The result is empty for rows
    /// that are not calls.
    pub fn work(&self, call_row: u32) -> &[u32] {
        let row = call_row as usize;
        &self.work[self.first[row] as usize..self.first[row + 1] as usize]
    }

    /// Returns the device work that several calls of one kind may have launched, in file order.
    pub fn contested(&self) -> &[u32] {
        &self.contested
    }
}

/// A call with its correlation id. If several calls share an id, the smallest in this order is
/// taken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Numbered {
    id: u64,
    is_driver: bool,
    row: u32,
}

/// Index from correlation ids to the rows of calls.
struct CallIndex {
    first: First,
    /// Calls that share an id with another call of their kind, sorted by (id, start, row).
    repeated: Vec<(u64, i64, u32)>,
}

/// The first call of each correlation id, in the smaller of two layouts.
enum First {
    /// The smallest id, and the row of the call for each id from there on.
    Dense(u64, Vec<u32>),
    /// Calls sorted by id, with each id only once.
    Sparse(Vec<Numbered>),
}

impl CallIndex {
    fn new(trace: &Trace, mut calls: Vec<Numbered>) -> Self {
        // A dense table with up to this many entries per call takes less memory than the calls
        // themselves.
        const SPREAD: u64 = 6;
        let least = calls.iter().map(|call| call.id).min().unwrap_or_default();
        let most = calls.iter().map(|call| call.id).max().unwrap_or_default();
        let mut repeated = Vec::new();
        let one = |id: u64, row: u32| (id, trace.slices.start(row), row);
        let first = if most - least >= SPREAD * calls.len() as u64 {
            calls.sort_unstable();
            for same in calls.chunk_by(|a, b| a.id == b.id) {
                let same_side = same.iter().filter(|call| call.is_driver == same[0].is_driver);
                if same_side.clone().nth(1).is_some() {
                    repeated.extend(same_side.map(|call| one(call.id, call.row)));
                }
            }
            calls.dedup_by_key(|call| call.id);
            First::Sparse(calls)
        } else {
            let mut rows = vec![NONE; (most - least) as usize + 1];
            // Rows are in ascending order, so the first call of a kind keeps the place.
            for is_driver in [false, true] {
                for call in calls.iter().filter(|call| call.is_driver == is_driver) {
                    let place = &mut rows[(call.id - least) as usize];
                    if *place == NONE {
                        *place = call.row;
                    } else if !is_driver || trace.kind(*place) == EventKind::Driver {
                        repeated.extend([one(call.id, *place), one(call.id, call.row)]);
                    }
                }
            }
            First::Dense(least, rows)
        };
        repeated.sort_unstable();
        repeated.dedup();
        Self { first, repeated }
    }

    fn find(&self, id: u64) -> u32 {
        match &self.first {
            First::Dense(least, rows) => {
                let place = id.checked_sub(*least).and_then(|at| rows.get(at as usize));
                place.copied().unwrap_or(NONE)
            }
            First::Sparse(calls) => {
                let at = calls.binary_search_by_key(&id, |call| call.id);
                at.map_or(NONE, |at| calls[at].row)
            }
        }
    }

    /// Finds the call for an id that several calls share: the last one before the work starts, or
    /// else the first one.
    fn find_repeated(&self, id: u64, start: impl Fn() -> i64) -> Option<u32> {
        if self.repeated.is_empty() {
            return None;
        }
        let until = (id, start());
        let at = self.repeated.partition_point(|(id, start, _)| (*id, *start) <= until);
        let before = at.checked_sub(1).map(|at| self.repeated[at]).filter(|call| call.0 == id);
        let after = || self.repeated.get(at).copied().filter(|call| call.0 == id);
        before.or_else(after).map(|(.., row)| row)
    }
}

#[cfg(test)]
mod tests;
