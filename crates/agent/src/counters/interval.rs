//! Sums the readings of one GPU over intervals of the wall clock, which are ten seconds by default.
//!
//! Sums and seconds are kept instead of ratios, so that intervals, GPUs and hosts add up exactly.
//! Durations are measured on the monotonic clock; the wall clock only selects the interval. Time
//! between two readings that are too far apart is *unobserved*, never guessed. Clocks are
//! arguments, so this module reads none itself.

use std::collections::BTreeMap;

use serde::Serialize;

/// Default length of a counter interval in seconds.
pub const INTERVAL_S: u64 = 10;
const SECOND_NS: u64 = 1_000_000_000;
/// Longest time between two readings that counts as observed. Readings are taken twice a second.
pub const GAP_NS: u64 = 2_000_000_000;
/// Largest change of the difference between wall clock and monotonic clock from one reading to the
/// next. A larger change is a jump of the wall clock.
const JUMP_NS: u64 = 500_000_000;
/// Number of ranges of written intervals that are remembered. A new range begins after a gap or a
/// jump of the clock.
const RANGES_MAX: usize = 64;

/// The time of a reading, on the monotonic clock and on the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadingTime {
    pub monotonic_ns: u64,
    pub unix_ns: u64,
}

/// One reading of a GPU. Values that the device does not report are `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CounterReading {
    /// Share of time that the GPU was busy.
    pub busy: Option<f64>,
    /// Share of time that SMs were active, averaged over all SMs.
    pub sm_active: Option<f64>,
    /// Resident warps divided by their maximum, averaged over all SMs and over time.
    pub sm_occupancy: Option<f64>,
    /// Shares of time in which the pipes of the SMs were active.
    pub pipes: Pipes,
    /// Share of the memory bandwidth in use.
    pub dram: Option<f64>,
    /// Bytes per second sent and received over PCIe.
    pub pcie: Option<(f64, f64)>,
    /// Bytes per second sent and received over all NVLink links together.
    pub nvlink: Option<(f64, f64)>,
    /// GPU memory in use, in bytes.
    pub memory_used: Option<u64>,
    pub memory_total: Option<u64>,
    pub power_w: Option<f64>,
    /// Energy in joules that the device has used since the driver was loaded.
    pub energy_j: Option<f64>,
    /// Clock rates of the SMs and of the memory, in hertz.
    pub clocks_hz: Option<(f64, f64)>,
    /// Temperature of the GPU in degrees Celsius.
    pub temperature: Option<f64>,
    /// Names of the reasons why the clock is throttled.
    pub throttled: Vec<&'static str>,
    /// Error counters of the device: kind, count, and width of the counter in bits.
    pub errors: Vec<(&'static str, u64, u32)>,
    pub remap: Option<RowRemap>,
    /// Numbers of the XID errors that occurred since the last reading.
    pub xids: Vec<u64>,
}

impl CounterReading {
    /// Combines the activity shares of SMs, pipes and memory with the shares of `other`, pair by
    /// pair, by the function `combine`. Leaves `busy` unchanged.
    pub fn combine_activity(
        &mut self,
        other: &Self,
        combine: impl Fn(Option<f64>, Option<f64>) -> Option<f64>,
    ) {
        let pairs = [
            (&mut self.sm_active, other.sm_active),
            (&mut self.sm_occupancy, other.sm_occupancy),
            (&mut self.dram, other.dram),
            (&mut self.pipes.tensor, other.pipes.tensor),
            (&mut self.pipes.fp64, other.pipes.fp64),
            (&mut self.pipes.fp32, other.pipes.fp32),
            (&mut self.pipes.fp16, other.pipes.fp16),
        ];
        for (own, other) in pairs {
            *own = combine(*own, other);
        }
    }
}

/// The state of the remapping of faulty memory rows of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowRemap {
    /// Whether memory rows will be remapped at the next reset of the GPU.
    pub is_pending: bool,
    /// Whether a remapping failed because no spare rows were left.
    pub has_failed: bool,
}

/// Shares of time in which each kind of pipe of the SMs was active.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pipes {
    pub tensor: Option<f64>,
    pub fp64: Option<f64>,
    pub fp32: Option<f64>,
    pub fp16: Option<f64>,
}

/// Sums of a GPU's readings over an interval, or since the agent started.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct IntervalSums {
    /// Seconds between readings that were close enough together to count as observed.
    pub observed_s: f64,
    pub reads: u64,
    /// Number of readings that contradict the previous one, such as a counter that fell.
    pub suspect: u64,
    /// Seconds in which the GPU was busy. An optional sum is `None` if no reading reported the
    /// value.
    pub busy_s: Option<f64>,
    /// Seconds in which SMs were active, averaged over all SMs.
    pub sm_active_s: Option<f64>,
    /// Resident warps divided by their maximum, times seconds.
    pub sm_occupancy_s: Option<f64>,
    /// Seconds in which the tensor cores were active.
    pub tensor_s: Option<f64>,
    /// Seconds in which the pipe for 64-bit floating-point numbers was active.
    pub fp64_s: Option<f64>,
    /// Seconds in which the pipe for 32-bit floating-point numbers was active.
    pub fp32_s: Option<f64>,
    /// Seconds in which the pipe for 16-bit floating-point numbers was active.
    pub fp16_s: Option<f64>,
    /// Share of the memory bandwidth in use, times seconds.
    pub dram_s: Option<f64>,
    pub pcie_sent_bytes: Option<f64>,
    pub pcie_received_bytes: Option<f64>,
    pub nvlink_sent_bytes: Option<f64>,
    pub nvlink_received_bytes: Option<f64>,
    /// Energy in joules, by the device's own energy counter.
    pub energy_j: Option<f64>,
    /// Energy in joules, computed as power times time.
    pub power_ws: Option<f64>,
    /// Clock rate of the SMs in hertz, times seconds.
    pub sm_clock_hz_s: Option<f64>,
    /// Clock rate of the memory in hertz, times seconds.
    pub memory_clock_hz_s: Option<f64>,
    /// Seconds in which the clock was throttled, by reason.
    pub throttle_s: BTreeMap<&'static str, f64>,
    pub errors: BTreeMap<&'static str, u64>,
    /// Count of XID errors, by XID number.
    pub xids: BTreeMap<u64, u64>,
}

/// The completed sums of one device over one interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IntervalRow {
    /// Start of the interval in seconds since 1970, a multiple of the interval's length.
    pub start_unix_s: u64,
    #[serde(flatten)]
    pub sums: IntervalSums,
    /// The last and the largest reading of the memory in use, in bytes.
    pub memory_used: Option<(u64, u64)>,
    /// Largest reading of the power, in watts.
    pub power_max_w: Option<f64>,
    /// Largest reading of the temperature, in degrees Celsius.
    pub temperature_max: Option<f64>,
}

/// Remembers which intervals were written, as ranges of their start times. Each interval is thus
/// written once, even if the wall clock jumps forward or is set back.
#[derive(Debug, Default)]
pub struct WrittenIntervals {
    ranges: Vec<(u64, u64)>,
}

impl WrittenIntervals {
    /// Records an interval. Returns whether the interval had not been recorded before.
    pub fn insert(&mut self, start_unix_s: u64, length_s: u64) -> bool {
        if self.ranges.iter().any(|&(first, last)| (first..=last).contains(&start_unix_s)) {
            return false;
        }
        match self.ranges.iter_mut().find(|(_, last)| last + length_s == start_unix_s) {
            Some((_, last)) => *last = start_unix_s,
            None => {
                if self.ranges.len() == RANGES_MAX {
                    self.ranges.remove(0);
                }
                self.ranges.push((start_unix_s, start_unix_s));
            }
        }
        true
    }
}

/// Accumulates the readings of one device into rows, one per interval.
#[derive(Debug)]
pub struct Intervals {
    length_s: u64,
    /// Sums over all readings since the agent started.
    pub total: IntervalSums,
    /// The last complete interval, from which the pages compute shares.
    pub last: Option<IntervalRow>,
    current: Option<IntervalRow>,
    before: Option<(ReadingTime, CounterReading)>,
    written: WrittenIntervals,
    /// Number of intervals that were not emitted because a row with the same start was emitted
    /// before.
    pub repeated: u64,
}

impl Intervals {
    /// Creates an accumulator without readings, for intervals of `length_s` seconds.
    pub fn new(length_s: u64) -> Self {
        let (total, written) = (IntervalSums::default(), WrittenIntervals::default());
        let (last, current, before) = (None, None, None);
        Self { length_s, total, last, current, before, written, repeated: 0 }
    }

    /// Adds a reading, or `None` if the device could not be read. Returns the rows of intervals
    /// that ended with it.
    pub fn read(&mut self, at: ReadingTime, reading: Option<CounterReading>) -> Vec<IntervalRow> {
        let mut ended = Vec::new();
        let length_ns = self.length_s * SECOND_NS;
        // Intervals begin at multiples of their length since 1970, so that intervals of all hosts
        // coincide.
        let start = at.unix_ns / length_ns * self.length_s;
        let before = self.before.take();
        let between = before.as_ref().and_then(|(before, _)| elapsed(*before, at));
        let is_jump = before.as_ref().is_some_and(|(before, _)| jump(*before, at).is_some());
        // The time since the last reading counts only if both readings succeeded.
        let observed = between.zip(reading.as_ref());
        if self.current.as_ref().is_some_and(|row| row.start_unix_s != start) {
            if let Some((span_ns, reading)) = observed {
                // The boundary of the interval lies between two readings, so each interval gets its
                // share of the time between them. After a jump of the clock the position of the
                // boundary is unknown.
                let after_ns = if is_jump { 0 } else { (at.unix_ns % length_ns).min(span_ns) };
                self.observe(reading, span_ns - after_ns);
                ended.extend(self.close());
                self.open(start);
                self.observe(reading, after_ns);
            } else {
                ended.extend(self.close());
                self.open(start);
            }
        } else {
            if self.current.is_none() {
                self.open(start);
            }
            if let Some((span_ns, reading)) = observed {
                self.observe(reading, span_ns);
            }
        }
        if let Some(reading) = reading {
            self.count(before.as_ref().map(|(_, reading)| reading), &reading);
            self.before = Some((at, reading));
        }
        ended
    }

    /// The mean share during the last complete interval. `what` selects the sum, which is divided
    /// by the observed seconds.
    pub fn share(&self, what: impl Fn(&IntervalSums) -> Option<f64>) -> Option<f64> {
        let sums = &self.last.as_ref()?.sums;
        (sums.observed_s > 0.0).then(|| what(sums)).flatten().map(|sum| sum / sums.observed_s)
    }

    fn open(&mut self, start_unix_s: u64) {
        let sums = IntervalSums::default();
        let (memory_used, power_max_w, temperature_max) = (None, None, None);
        self.current =
            Some(IntervalRow { start_unix_s, sums, memory_used, power_max_w, temperature_max });
    }

    /// Closes the current interval. If the clock was set back and the interval was written before,
    /// no second row is returned, but the interval still counts for shares.
    fn close(&mut self) -> Option<IntervalRow> {
        let row = self.current.take()?;
        self.last = Some(row.clone());
        if self.written.insert(row.start_unix_s, self.length_s) {
            return Some(row);
        }
        self.repeated += 1;
        None
    }

    fn observe(&mut self, reading: &CounterReading, span_ns: u64) {
        let seconds = span_ns as f64 * 1e-9;
        self.total.add_time(reading, seconds);
        if let Some(row) = &mut self.current {
            // If the clock was set back a little, the end of the interval occurs twice. The row
            // must not claim more observed seconds than its interval has.
            let left = (self.length_s as f64 - row.sums.observed_s).max(0.0);
            row.sums.add_time(reading, seconds.min(left));
        }
    }

    /// Adds counts and maxima, which do not depend on the time between readings.
    fn count(&mut self, before: Option<&CounterReading>, reading: &CounterReading) {
        let Some(row) = &mut self.current else { return };
        if let Some(used) = reading.memory_used {
            let largest = row.memory_used.map_or(used, |(_, largest)| largest.max(used));
            row.memory_used = Some((used, largest));
        }
        row.power_max_w = larger(row.power_max_w, reading.power_w);
        row.temperature_max = larger(row.temperature_max, reading.temperature);
        for sums in [&mut self.total, &mut row.sums] {
            sums.count(before, reading);
        }
    }
}

impl IntervalSums {
    fn add_time(&mut self, reading: &CounterReading, seconds: f64) {
        self.observed_s += seconds;
        let add = |sum: &mut Option<f64>, share: Option<f64>| {
            if let Some(share) = share {
                *sum = Some(sum.unwrap_or(0.0) + share * seconds);
            }
        };
        add(&mut self.busy_s, reading.busy);
        add(&mut self.sm_active_s, reading.sm_active);
        add(&mut self.sm_occupancy_s, reading.sm_occupancy);
        add(&mut self.tensor_s, reading.pipes.tensor);
        add(&mut self.fp64_s, reading.pipes.fp64);
        add(&mut self.fp32_s, reading.pipes.fp32);
        add(&mut self.fp16_s, reading.pipes.fp16);
        add(&mut self.dram_s, reading.dram);
        add(&mut self.pcie_sent_bytes, reading.pcie.map(|(sent, _)| sent));
        add(&mut self.pcie_received_bytes, reading.pcie.map(|(_, received)| received));
        add(&mut self.nvlink_sent_bytes, reading.nvlink.map(|(sent, _)| sent));
        add(&mut self.nvlink_received_bytes, reading.nvlink.map(|(_, received)| received));
        add(&mut self.power_ws, reading.power_w);
        add(&mut self.sm_clock_hz_s, reading.clocks_hz.map(|(sm, _)| sm));
        add(&mut self.memory_clock_hz_s, reading.clocks_hz.map(|(_, memory)| memory));
        for reason in &reading.throttled {
            *self.throttle_s.entry(reason).or_default() += seconds;
        }
    }

    fn count(&mut self, before: Option<&CounterReading>, reading: &CounterReading) {
        self.reads += 1;
        for xid in &reading.xids {
            *self.xids.entry(*xid).or_default() += 1;
        }
        let Some(before) = before else { return };
        if let (Some(old), Some(new)) = (before.energy_j, reading.energy_j) {
            // The device's counters restart at zero when the driver is reloaded, so the increase is
            // then unknown.
            if new >= old {
                self.energy_j = Some(self.energy_j.unwrap_or(0.0) + new - old);
            } else {
                self.suspect += 1;
            }
        }
        for (kind, new, bits) in &reading.errors {
            let old = before.errors.iter().find(|(name, ..)| name == kind);
            // If the last reading lacked this counter, its increase is unknown.
            let Some((_, old, _)) = old else { continue };
            match delta(*old, *new, *bits) {
                Some(errors) => *self.errors.entry(kind).or_default() += errors,
                None => self.suspect += 1,
            }
        }
    }
}

/// The increase of a counter of `bits` bits between two readings. A counter that fell from its
/// upper half to its lower half has wrapped. Any other decrease is a reset, for which the increase
/// is `None`.
pub fn delta(old: u64, new: u64, bits: u32) -> Option<u64> {
    if new >= old {
        return Some(new - old);
    }
    let (range, half) = (1_u64.checked_shl(bits)?, 1_u64.checked_shl(bits.checked_sub(1)?)?);
    // At two readings per second, no counter passes half of its range in between, so a fall from
    // the upper to the lower half is a wrap.
    (old < range && old >= half && new < half).then(|| range - old + new)
}

/// Nanoseconds between two readings on the monotonic clock. `None` if the readings are too far
/// apart to count as observed.
pub fn elapsed(before: ReadingTime, at: ReadingTime) -> Option<u64> {
    let elapsed = at.monotonic_ns.checked_sub(before.monotonic_ns)?;
    (elapsed <= GAP_NS).then_some(elapsed)
}

/// Returns by how many nanoseconds the wall clock was set between two readings. `None` if it was
/// not.
pub fn jump(before: ReadingTime, at: ReadingTime) -> Option<i64> {
    let since = |at: u64, before: u64| i128::from(at) - i128::from(before);
    let wall = since(at.unix_ns, before.unix_ns);
    let jump = wall - since(at.monotonic_ns, before.monotonic_ns);
    let bound =
        |jump: i128| i64::try_from(jump).unwrap_or(if jump < 0 { i64::MIN } else { i64::MAX });
    // Smaller differences are the usual clock adjustments by NTP.
    (jump.unsigned_abs() > u128::from(JUMP_NS)).then(|| bound(jump))
}

fn larger(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.max(other)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use super::{CounterReading, INTERVAL_S, IntervalRow, Intervals, ReadingTime, delta, jump};

    const SECOND: u64 = 1_000_000_000;
    const BASE: u64 = 1_700_000_000 * SECOND;

    fn moment(ms: u64) -> ReadingTime {
        ReadingTime { monotonic_ns: 5 * SECOND + ms * 1_000_000, unix_ns: BASE + ms * 1_000_000 }
    }

    fn busy(share: f64) -> CounterReading {
        CounterReading { busy: Some(share), energy_j: Some(0.0), ..CounterReading::default() }
    }

    fn close(one: f64, other: f64) -> bool {
        (one - other).abs() < 1e-9
    }

    #[test]
    fn readings_sum_to_rows_and_are_split_at_boundaries() {
        let mut intervals = Intervals::new(INTERVAL_S);
        let mut rows: Vec<IntervalRow> = Vec::new();
        // The readings are at 0.3 s, 0.8 s, …, so each boundary lies 0.2 s after one reading and
        // 0.3 s before the next.
        for read in 0..=60 {
            rows.extend(intervals.read(moment(300 + read * 500), Some(busy(0.5))));
        }
        assert_eq!(rows.len(), 3);
        for (at, row) in rows.iter().enumerate() {
            assert_eq!(row.start_unix_s, 1_700_000_000 + 10 * at as u64);
            let observed = if at == 0 { 9.7 } else { 10.0 };
            assert!(close(row.sums.observed_s, observed), "{row:?}");
            assert!(close(row.sums.busy_s.unwrap(), observed / 2.0), "{row:?}");
            assert_eq!((row.sums.reads, row.sums.sm_active_s), (20, None));
        }
        assert!(close(intervals.total.observed_s, 30.0));
        assert!(close(intervals.share(|sums| sums.busy_s).unwrap(), 0.5));
    }

    #[test]
    fn gaps_lost_devices_and_clock_jumps_are_unobserved_without_duplicates() {
        let mut intervals = Intervals::new(INTERVAL_S);
        let mut rows = Vec::new();
        for read in 0..10 {
            rows.extend(intervals.read(moment(read * 500), Some(busy(1.0))));
        }
        // The agent pauses for several seconds, then the device cannot be read for a second.
        rows.extend(intervals.read(moment(8_500), Some(busy(1.0))));
        rows.extend(intervals.read(moment(9_000), None));
        rows.extend(intervals.read(moment(9_500), Some(busy(1.0))));
        rows.extend(intervals.read(moment(10_000), Some(busy(1.0))));
        assert_eq!(rows.len(), 1);
        assert!(close(rows[0].sums.observed_s, 5.0), "{rows:?}");
        assert!(close(rows[0].sums.busy_s.unwrap(), 5.0), "{rows:?}");
        // The clock is set back by 15 s, so one interval occurs twice. The repeated interval must
        // be emitted once.
        let back = |ms: u64| ReadingTime {
            monotonic_ns: moment(ms).monotonic_ns,
            unix_ns: moment(ms).unix_ns - 15 * SECOND,
        };
        let mut starts: Vec<u64> = rows.iter().map(|row| row.start_unix_s).collect();
        for read in 21..120 {
            starts.extend(
                intervals.read(back(read * 500), Some(busy(1.0))).iter().map(|r| r.start_unix_s),
            );
        }
        let unique: std::collections::BTreeSet<u64> = starts.iter().copied().collect();
        assert_eq!(starts.len(), unique.len(), "{starts:?}");
        assert!(intervals.repeated >= 1, "{starts:?}");
    }

    /// Feeds two readings per second for `seconds`, on a wall clock that is off by `offset_s`.
    fn read_on(
        intervals: &mut Intervals,
        monotonic_s: &mut u64,
        offset_s: i64,
        seconds: u64,
    ) -> Vec<u64> {
        let mut starts = Vec::new();
        for _ in 0..seconds * 2 {
            let at = moment(*monotonic_s * 500);
            let unix_ns = at.unix_ns.checked_add_signed(offset_s * SECOND.cast_signed()).unwrap();
            let rows = intervals.read(ReadingTime { unix_ns, ..at }, Some(busy(0.25)));
            assert!(rows.iter().all(|row| row.sums.observed_s <= 10.0 + 1e-9), "{rows:?}");
            starts.extend(rows.iter().map(|row| row.start_unix_s));
            *monotonic_s += 1;
        }
        starts
    }

    #[test]
    fn an_interval_from_the_future_does_not_discard_later_ones() {
        let (mut intervals, mut clock) = (Intervals::new(INTERVAL_S), 0);
        let four_years = 4 * 365 * 86_400;
        assert_eq!(read_on(&mut intervals, &mut clock, 0, 60).len(), 5);
        assert_eq!(read_on(&mut intervals, &mut clock, four_years, 30).len(), 3);
        // The clock was set right within an interval of which a row had been written before. All
        // other intervals are new, so they must be emitted.
        let starts = read_on(&mut intervals, &mut clock, 0, 60);
        assert_eq!(starts.len(), 6, "{starts:?}");
        assert_eq!(intervals.repeated, 0);
        assert!((intervals.total.observed_s - 149.5).abs() < 1e-6, "monotonic time is observed");
    }

    #[test]
    fn a_clock_that_is_set_back_an_hour_does_not_freeze_shares_and_is_counted() {
        let (mut intervals, mut clock) = (Intervals::new(INTERVAL_S), 0);
        assert_eq!(read_on(&mut intervals, &mut clock, 0, 60).len(), 5);
        // After the clock is set back by an hour, it reaches intervals that were never written.
        assert_eq!(read_on(&mut intervals, &mut clock, -3600, 60).len(), 6);
        // Twenty seconds occur a second time. The two repeated intervals must give no rows, but
        // must still update the shares.
        assert_eq!(read_on(&mut intervals, &mut clock, -3630, 30).len(), 1);
        assert_eq!(intervals.repeated, 2);
        assert!(close(intervals.share(|sums| sums.busy_s).unwrap(), 0.25));
        let last = intervals.last.as_ref().unwrap().start_unix_s;
        assert!(last.abs_diff(1_700_000_000 + 150 - 3630) <= 20, "{last}");
        assert!((intervals.total.observed_s - 149.5).abs() < 1e-6);
    }

    #[test]
    fn clock_jumps_are_reported_and_drift_is_not() {
        let at = |monotonic_ms: u64, unix_ms: u64| ReadingTime {
            monotonic_ns: monotonic_ms * 1_000_000,
            unix_ns: BASE + unix_ms * 1_000_000,
        };
        let before = at(1_000, 1_000);
        assert_eq!(jump(before, at(1_500, 1_500)), None);
        assert_eq!(jump(before, at(1_500, 1_900)), None);
        assert_eq!(jump(before, at(1_500, 61_500)), Some(60_000_000_000));
        assert_eq!(jump(before, at(1_500, 0)), Some(-1_500_000_000));
        let year_zero = ReadingTime { unix_ns: 0, ..before };
        assert!(jump(before, year_zero).unwrap() < -1_000_000_000_000_000_000);
    }

    #[test]
    fn counters_wrap_reset_and_come_back() {
        assert_eq!(delta(5, 9, 32), Some(4));
        assert_eq!(delta(u64::from(u32::MAX), 3, 32), Some(4));
        assert_eq!(delta(700, 3, 32), None, "a reset is not a wrap");
        assert_eq!(delta(u64::MAX, 3, 64), None);
        let reading = |energy: f64, replays: u64| CounterReading {
            energy_j: Some(energy),
            errors: vec![("pcie_replay", replays, 32)],
            xids: vec![79],
            ..busy(0.0)
        };
        let mut intervals = Intervals::new(INTERVAL_S);
        for (at, (energy, replays)) in
            [(100.0, 4_294_967_290), (150.0, 4), (10.0, 6), (11.0, 2)].into_iter().enumerate()
        {
            intervals.read(moment(500 * at as u64), Some(reading(energy, replays)));
        }
        let total = &intervals.total;
        assert_eq!((total.energy_j, total.errors["pcie_replay"]), (Some(51.0), 12));
        assert_eq!((total.suspect, total.xids[&79]), (2, 4));
    }

    /// Whatever the times of the readings, the sums must equal the true values over the observed
    /// time.
    #[test]
    fn sums_equal_the_observed_time_for_any_gaps() {
        let mut state = 12345_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let mut intervals = Intervals::new(INTERVAL_S);
        let (mut at, mut truth, mut rows) = (0, 0.0, Vec::new());
        for read in 0..20_000 {
            let step = if random(20) == 0 { 100 + random(9_000) } else { 400 + random(200) };
            at += step;
            let share = random(101) as f64 / 100.0;
            if read > 0 && step <= 2_000 {
                truth += share * step as f64 * 1e-3;
            }
            rows.extend(intervals.read(moment(at), Some(busy(share))));
        }
        assert!((intervals.total.busy_s.unwrap() - truth).abs() < 1e-6);
        let summed: f64 = rows.iter().filter_map(|row| row.sums.busy_s).sum();
        assert!(truth - summed < 10.0 && truth >= summed - 1e-6);
        assert!(rows.iter().all(|row| row.sums.observed_s <= 10.0 + 1e-9));
    }
}
