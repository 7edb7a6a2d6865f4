//! Turns the host's counters into rows. Two samples a second show peaks and gaps, and full readings
//! are taken at interval boundaries. If an interval was not fully observed, its row has no
//! differences of counters, because they would cover a different time.

use std::collections::BTreeMap;

use super::host::{self, ControlGroup, HostCounters, HostSample};
use super::interval::{ReadingTime, WrittenIntervals, elapsed, jump};

/// Accumulates samples of the host between two full readings.
#[derive(Debug)]
pub struct Watch {
    length_s: u64,
    start_unix_s: Option<u64>,
    last: Option<(ReadingTime, HostSample)>,
    before: Option<(ReadingTime, HostCounters, BTreeMap<String, ControlGroup>)>,
    memory_available_min: u64,
    cpu_busy_max: Option<f64>,
    written: WrittenIntervals,
}

/// The readings of the host over an interval that has ended.
#[derive(Debug)]
pub struct Ended {
    pub start_unix_s: u64,
    /// Whether a row of this interval was written before the clock was set back. No second row is
    /// written then.
    pub is_repeated: bool,
    /// Seconds between the two readings at the ends of the interval; 0 if a part in between was not
    /// observed.
    pub observed_s: f64,
    /// Counters at the end of the interval.
    pub host: HostCounters,
    /// Counters and control groups at the beginning of the interval.
    pub before: Option<(HostCounters, BTreeMap<String, ControlGroup>)>,
    pub groups: BTreeMap<String, ControlGroup>,
    /// Quantiles over the cores of their busy share: p5, p25, p50, p75 and p95.
    pub cores: Option<[f64; 5]>,
    /// Smallest number of bytes of memory that were available to a new program.
    pub memory_available_min: u64,
    /// Busy share of all cores in the busiest half second.
    pub cpu_busy_max: Option<f64>,
}

impl Watch {
    /// Creates an accumulator without samples, for intervals of `length_s` seconds.
    pub fn new(length_s: u64) -> Self {
        Self {
            length_s,
            start_unix_s: None,
            last: None,
            before: None,
            memory_available_min: u64::MAX,
            cpu_busy_max: None,
            written: WrittenIntervals::default(),
        }
    }

    /// Adds a sample. At the end of an interval, calls `read` for a full reading and returns the
    /// ended interval.
    pub fn look(
        &mut self,
        at: ReadingTime,
        look: HostSample,
        read: impl FnOnce() -> (HostCounters, BTreeMap<String, ControlGroup>),
    ) -> Option<Ended> {
        let start = at.unix_ns / 1_000_000_000 / self.length_s * self.length_s;
        let is_jump = self.last.as_ref().is_some_and(|(last, _)| jump(*last, at).is_some());
        let between = self.last.as_ref().and_then(|(last, _)| elapsed(*last, at));
        let between = between.filter(|_| !is_jump);
        if between.is_none() {
            // After a gap or a jump of the clock, the difference of two readings would cover a time
            // that is not the interval.
            self.before = None;
        }
        if let (Some((_, last)), Some(ns)) = (&self.last, between.filter(|ns| *ns > 0)) {
            let cores = look.cores.max(1) as f64;
            let busy = (look.busy_s - last.busy_s) / (ns as f64 * 1e-9 * cores);
            let busy = busy.clamp(0.0, 1.0);
            self.cpu_busy_max = Some(self.cpu_busy_max.map_or(busy, |most| most.max(busy)));
        }
        self.memory_available_min = self.memory_available_min.min(look.memory_available);
        self.last = Some((at, look));
        let began = self.start_unix_s.replace(start);
        if began == Some(start) {
            return None;
        }
        let (host, groups) = read();
        let before = self.before.replace((at, host.clone(), groups.clone()));
        let memory_available_min = std::mem::replace(&mut self.memory_available_min, u64::MAX);
        let cpu_busy_max = self.cpu_busy_max.take();
        let start_unix_s = began?;
        let is_repeated = !self.written.insert(start_unix_s, self.length_s);
        let observed_ns = before
            .as_ref()
            .map_or(0, |(then, ..)| at.monotonic_ns.saturating_sub(then.monotonic_ns));
        let observed_s = observed_ns as f64 * 1e-9;
        let before = before.map(|(_, host, groups)| (host, groups));
        let cores =
            before.as_ref().and_then(|(before, _)| host::core_quantiles(before, &host, observed_s));
        Some(Ended {
            start_unix_s,
            is_repeated,
            observed_s,
            host,
            before,
            groups,
            cores,
            memory_available_min,
            cpu_busy_max,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{Ended, HostCounters, HostSample, ReadingTime, Watch};

    const SECOND: u64 = 1_000_000_000;

    fn look(watch: &mut Watch, (monotonic_ms, unix_ms): (u64, u64), busy_s: f64) -> Option<Ended> {
        let at =
            ReadingTime { monotonic_ns: monotonic_ms * 1_000_000, unix_ns: unix_ms * 1_000_000 };
        let look = HostSample { busy_s, cores: 2, memory_available: 1000 - monotonic_ms / 100 };
        let host = HostCounters { cores_busy_s: vec![busy_s / 2.0; 2], ..HostCounters::default() };
        watch.look(at, look, || (host, BTreeMap::new()))
    }

    #[test]
    fn only_complete_intervals_have_differences_and_peaks() {
        let mut watch = Watch::new(10);
        let base = 1_700_000_000_000;
        let (mut ended, mut busy) = (Vec::new(), 0.0);
        for at in (3_000..=45_000).step_by(500) {
            // The second interval has one busy half second, and the third one has a gap.
            busy += if at == 15_000 { 1.0 } else { 0.1 };
            if !(31_000..34_000).contains(&at) {
                ended.extend(look(&mut watch, (at, base + at), busy));
            }
        }
        let starts: Vec<u64> = ended.iter().map(|row| row.start_unix_s % 100).collect();
        assert_eq!(starts, [0, 10, 20, 30]);
        let observed: Vec<f64> = ended.iter().map(|row| row.observed_s).collect();
        assert_eq!(observed, [7.0, 10.0, 10.0, 0.0], "watched from its third second; broken");
        assert_eq!(ended[1].cpu_busy_max, Some(1.0));
        assert!((ended[2].cpu_busy_max.unwrap() - 0.1).abs() < 1e-9);
        assert!((ended[1].cores.unwrap()[2] - 0.145).abs() < 1e-9 && ended[3].cores.is_none());
        assert!(ended[1].memory_available_min < ended[0].memory_available_min);
    }

    #[test]
    fn clock_jumps_neither_duplicate_nor_suppress_rows() {
        for offset_ms in [-20_000, 100_000_000_000] {
            let mut watch = Watch::new(10);
            let base = 1_700_000_000 * SECOND / 1_000_000;
            let (mut starts, mut repeated, mut last) = (Vec::new(), 0, 0);
            for at in (0..120_000_u64).step_by(500) {
                let offset = if (25_000..60_000).contains(&at) { offset_ms } else { 0 };
                let unix_ms = (base + at).checked_add_signed(offset).unwrap();
                let Some(row) = look(&mut watch, (at, unix_ms), 0.0) else { continue };
                last = at;
                if row.is_repeated { repeated += 1 } else { starts.push(row.start_unix_s) }
            }
            let mut unique = starts.clone();
            unique.sort_unstable();
            unique.dedup();
            assert!(starts.len() == unique.len() && starts.len() >= 9, "{starts:?}");
            assert!(last == 110_000 && (repeated > 0) == (offset_ms < 0), "{repeated}: {starts:?}");
        }
    }
}
