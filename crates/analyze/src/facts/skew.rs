//! Bounds the clock skew of a device against its host. A call that blocks returns only after the
//! awaited work has ended, and work never begins before its launch.
//!
//! Each such pair of times bounds the device's clock minus the host's. The true difference lies
//! between the largest lower bound and the smallest upper bound.

mod sync_points;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::facts::scope::Scope;
use sync_points::{LaunchedWork, Streams};

/// Lower and upper bound of how far a device's clock is ahead of its host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Skew {
    pub rank: u32,
    pub device: i32,
    /// Lower bound of the skew: the largest time by which work ends after a call that waited for
    /// that work. The bound is `None` if there are no such calls.
    pub lower_ns: Option<i64>,
    /// Upper bound of the skew: the smallest time from the start of a launch to the start of its
    /// work. The bound is `None` if there are no launches.
    pub upper_ns: Option<i64>,
    /// Number of calls that waited for work of this device.
    pub wait_count: u64,
    /// Number of waits that returned before the awaited work ended, by the device's clock.
    pub late_count: u64,
    pub launch_count: u64,
    /// Number of launches that began after their own work, by the device's clock.
    pub early_count: u64,
}

impl Skew {
    /// Returns whether the bounds contradict each other, so that no clock skew explains all times.
    pub fn is_contradictory(&self) -> bool {
        self.lower_ns.zip(self.upper_ns).is_some_and(|(lower, upper)| lower > upper)
    }

    /// Returns the nanoseconds to subtract from the device's times, which is the smallest skew that
    /// explains all times, or 0 if none does.
    pub fn shift_ns(&self) -> i64 {
        if self.is_contradictory() {
            return 0;
        }
        let (lower, upper) = (self.lower_ns.unwrap_or(0).max(0), self.upper_ns.unwrap_or(0).min(0));
        lower + upper
    }
}

impl Skew {
    /// Describes the bounds of the skew and the calls that prove them.
    pub fn words(&self) -> String {
        let us = |ns: i64| format!("{:.3} µs", ns as f64 / 1e3);
        let many = |count: u64, what: &str| match count {
            1 => format!("one {what} alone"),
            count => format!("{count} {what}{}", if what == "launch" { "es" } else { "s" }),
        };
        let least = self.lower_ns.map(|lower| {
            let late = match self.late_count {
                0 => String::new(),
                late => format!(", {late} of which returned before their work ended"),
            };
            format!(
                "at least {} ahead of the host's, by {}{late}",
                us(lower),
                many(self.wait_count, "wait")
            )
        });
        let most = self.upper_ns.map(|upper| {
            let early = match self.early_count {
                0 => String::new(),
                early => format!(", {early} of which began after their work"),
            };
            let bound = match upper {
                ..0 => format!("at least {} behind the host's", us(-upper)),
                _ => format!("at most {} ahead", us(upper)),
            };
            format!("{bound}, by {}{early}", many(self.launch_count, "launch"))
        });
        let bounds: Vec<String> = least.into_iter().chain(most).collect();
        let verdict = match self.is_contradictory() {
            true => ", and both cannot be true, so no times are shifted",
            false => "",
        };
        let bounds = if bounds.is_empty() { "not known".to_owned() } else { bounds.join("; ") };
        format!("the clock of device {} is {bounds}{verdict}", self.device)
    }
}

/// Returns the nanoseconds to subtract from the times of a device; see [`Skew::shift_ns`].
pub fn shift_ns(skews: &[Skew], device: i32) -> i64 {
    skews.iter().find(|skew| skew.device == device).map_or(0, Skew::shift_ns)
}

/// Returns candidates for the nanoseconds to subtract from the times of a device. The first is
/// [`Skew::shift_ns`], and the others are spread a few microseconds apart within the bounds.
pub fn shifts(skews: &[Skew], device: i32) -> Vec<i64> {
    const STEP_NS: i64 = 6_000;
    const FAR_NS: i64 = 24_000;
    let Some(skew) = skews.iter().find(|skew| skew.device == device) else { return vec![0] };
    let usual = skew.shift_ns();
    let least = skew.lower_ns.unwrap_or(i64::MIN).max(usual - FAR_NS);
    let most = skew.upper_ns.unwrap_or(i64::MAX).min(usual + FAR_NS);
    let mut shifts = vec![usual];
    for steps in 1..=FAR_NS / STEP_NS {
        let both = [usual + steps * STEP_NS, usual - steps * STEP_NS];
        shifts.extend(both.into_iter().filter(|shift| (least..=most).contains(shift)));
    }
    shifts
}

/// Measures the skew of each device of a rank, sorted by device.
///
/// # Cost
/// The cost is `O(n log n)` in the device rows of the window.
pub fn measure_skews(scope: &Scope<'_>) -> Vec<Skew> {
    let trace = scope.trace;
    let streams = Streams::new(scope);
    let mut skews: BTreeMap<i32, Skew> = BTreeMap::new();
    let none = |device| Skew {
        rank: trace.rank,
        device,
        lower_ns: None,
        upper_ns: None,
        wait_count: 0,
        late_count: 0,
        launch_count: 0,
        early_count: 0,
    };
    for &LaunchedWork { row, call, .. } in streams.all() {
        let device = trace.device(row);
        let skew = skews.entry(device).or_insert_with(|| none(device));
        // The delay counts from the start of the launch, because work may begin before the launch
        // call returns.
        let delay = trace.slices.start(row) - trace.slices.start(call);
        skew.upper_ns = Some(skew.upper_ns.map_or(delay, |upper| upper.min(delay)));
        skew.launch_count += 1;
        skew.early_count += u64::from(delay < 0);
    }
    // A skew below the upper bound is possible, so the search for waits must allow for it.
    let ahead: BTreeMap<i32, i64> =
        skews.iter().map(|(device, skew)| (*device, skew.upper_ns.unwrap_or(0).max(0))).collect();
    for (call, work) in sync_points::blocking(scope, &streams, &ahead) {
        let device = trace.device(work);
        let skew = skews.entry(device).or_insert_with(|| none(device));
        let overrun = trace.slices.end(work) - trace.slices.end(call);
        skew.lower_ns = Some(skew.lower_ns.map_or(overrun, |lower| lower.max(overrun)));
        skew.wait_count += 1;
        skew.late_count += u64::from(overrun > 0);
    }
    skews.into_values().collect()
}

#[cfg(test)]
mod tests;
