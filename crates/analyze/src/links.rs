//! Which call launched which device work, by correlation id. Knows no times.

use trace::store::{Kind, Trace};

const NONE: u32 = u32::MAX;

/// Calls and the device work they launched. One call may launch many (a graph).
#[derive(Clone, Debug)]
pub struct Links {
    /// Per row of device work: the call.
    call: Vec<u32>,
    /// Per row of a call: its place in `work`.
    first: Vec<u32>,
    work: Vec<u32>,
}

impl Links {
    /// Joins the runtime and driver calls of a trace to its device work.
    ///
    /// Where a runtime and a driver call share a correlation id, the runtime call, the outer one,
    /// is taken. Ids are those of one process; a file with several processes joins within each
    /// device's rows as the profiler numbered them.
    ///
    /// # Cost
    /// `O(n)` in the rows where ids are dense, as profilers count them; else `O(n log n)` in calls
    /// and device rows.
    pub fn of(trace: &Trace) -> Self {
        let mut calls: Vec<Numbered> = Vec::new();
        let mut device: Vec<(u64, u32)> = Vec::new();
        for row in trace.rows() {
            let kind = trace.kind(row);
            if !kind.is_call() && !kind.is_device_work() {
                continue;
            }
            // Id 0 is what profilers write for "none".
            let id = trace.slices.correlation(row).filter(|id| *id != 0);
            let Some(id) = id else { continue };
            if kind.is_call() {
                calls.push(Numbered { id, is_driver: kind == Kind::Driver, row });
            } else {
                device.push((id, row));
            }
        }
        let index = Index::of(calls);
        let rows = trace.slices.len();
        let mut call = vec![NONE; rows];
        let mut first = vec![0u32; rows + 1];
        for &(id, row) in &device {
            let launched_by = index.find(id);
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
        // Each place has moved to its end, which is the next one's beginning.
        first.copy_within(..rows, 1);
        first[0] = 0;
        Self { call, first, work }
    }

    /// The call that launched a row of device work, if it was recorded.
    pub fn call(&self, device_row: u32) -> Option<u32> {
        Some(self.call[device_row as usize]).filter(|row| *row != NONE)
    }

    /// The device work a call launched, in the order of the file; none for other rows.
    pub fn work(&self, call_row: u32) -> &[u32] {
        let row = call_row as usize;
        &self.work[self.first[row] as usize..self.first[row + 1] as usize]
    }
}

/// A call and its id. Of one id the least is taken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Numbered {
    id: u64,
    is_driver: bool,
    row: u32,
}

/// From ids to rows of calls.
enum Index {
    /// The rows from a first id on.
    Dense(u64, Vec<u32>),
    /// Sorted, each id once.
    Sparse(Vec<Numbered>),
}

impl Index {
    fn of(mut calls: Vec<Numbered>) -> Self {
        // A table of this many rows per call is smaller than the calls themselves.
        const SPREAD: u64 = 6;
        let least = calls.iter().map(|call| call.id).min().unwrap_or_default();
        let most = calls.iter().map(|call| call.id).max().unwrap_or_default();
        if most - least >= SPREAD * calls.len() as u64 {
            calls.sort_unstable();
            calls.dedup_by_key(|call| call.id);
            return Self::Sparse(calls);
        }
        let mut rows = vec![NONE; (most - least) as usize + 1];
        // Calls come in the order of their rows, so the first one of a kind stays.
        for is_driver in [false, true] {
            for call in calls.iter().filter(|call| call.is_driver == is_driver) {
                let place = &mut rows[(call.id - least) as usize];
                if *place == NONE {
                    *place = call.row;
                }
            }
        }
        Self::Dense(least, rows)
    }

    fn find(&self, id: u64) -> u32 {
        match self {
            Self::Dense(least, rows) => {
                let place = id.checked_sub(*least).and_then(|at| rows.get(at as usize));
                place.copied().unwrap_or(NONE)
            }
            Self::Sparse(calls) => {
                let at = calls.binary_search_by_key(&id, |call| call.id);
                at.map_or(NONE, |at| calls[at].row)
            }
        }
    }
}

#[cfg(test)]
mod tests;
