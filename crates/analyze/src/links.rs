//! Which call launched which device work, by correlation id. Knows no times.

use trace::store::Trace;

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
    /// `O(n log n)` in calls and device rows.
    pub fn of(trace: &Trace) -> Self {
        let mut calls: Vec<(u64, bool, u32)> = Vec::new();
        let mut device: Vec<(u64, u32)> = Vec::new();
        for row in trace.rows() {
            let kind = trace.kind(row);
            // Id 0 is what profilers write for "none".
            let id = trace.slices.correlation(row).filter(|id| *id != 0);
            let Some(id) = id else { continue };
            if kind.is_call() {
                calls.push((id, kind == trace::store::Kind::Driver, row));
            } else if kind.is_device_work() {
                device.push((id, row));
            }
        }
        calls.sort_unstable();
        calls.dedup_by_key(|(id, ..)| *id);
        let rows = trace.slices.len();
        let mut call = vec![NONE; rows];
        let mut first = vec![0u32; rows + 1];
        for &(id, row) in &device {
            if let Ok(at) = calls.binary_search_by_key(&id, |(id, ..)| *id) {
                call[row as usize] = calls[at].2;
                first[calls[at].2 as usize + 1] += 1;
            }
        }
        for row in 0..rows {
            first[row + 1] += first[row];
        }
        let mut next = first.clone();
        let mut work = vec![0; first[rows] as usize];
        for &(_, row) in &device {
            let launched_by = call[row as usize];
            if launched_by != NONE {
                let place = &mut next[launched_by as usize];
                work[*place as usize] = row;
                *place += 1;
            }
        }
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
