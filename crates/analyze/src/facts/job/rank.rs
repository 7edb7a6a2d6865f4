//! Computes the facts of one rank on first use. Facts that need other ranks are in
//! [`super::JobFacts`].

use std::collections::BTreeMap;
use std::sync::OnceLock;

use trace::store::EventKind;

use super::copies::{self, Copy};
use super::kernel::WindowKernel;
use crate::facts::attribution::{self, Attribution};
use crate::facts::back_pressure::{self, Pressure};
use crate::facts::calls;
use crate::facts::disturbance::{self, Disturbances};
use crate::facts::interval::{self, Interval};
use crate::facts::scope::Scope;
use crate::facts::skew::Skew;
use crate::facts::tree::{self, OperatorTree};
use crate::tables::breakdown::{self, Breakdown};
use crate::tables::idle::{self, DeviceCause, Gap, Idle};
use crate::tables::launches::{self, LaunchRow};
use crate::tables::memory::{self, MemoryPeak};
use crate::tables::steps::{self, StepRow};

/// A device counts as busy all the time if it is idle for less than this share of the window, in
/// percent.
const DEVICE_BOUND_PCT: f64 = 5.0;

/// The input tensors of operators, by rank and row. The tensors are read from the trace file
/// separately, because no column of a trace contains them.
pub type OperatorTensors = BTreeMap<(u32, u32), Tensors>;

/// The input tensors of one operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tensors {
    /// Sizes of each input; empty for an input that is not a tensor.
    pub dims: Vec<Vec<u64>>,
    /// Element type of each input as PyTorch writes it, such as `c10::Half`.
    pub types: Vec<String>,
}

/// Facts of one rank that several analyses share. Each fact is computed on first use.
#[derive(Debug)]
pub struct RankFacts<'a> {
    pub scope: &'a Scope<'a>,
    tensors: OnceLock<BTreeMap<u32, Tensors>>,
    tree: OnceLock<OperatorTree>,
    attribution: OnceLock<Attribution>,
    clocks: OnceLock<(Vec<Skew>, Pressure)>,
    breakdown: OnceLock<Breakdown>,
    steps: OnceLock<Vec<StepRow>>,
    memory_peaks: OnceLock<Vec<MemoryPeak>>,
    idle: OnceLock<Idle<'a>>,
    calls: OnceLock<Vec<u32>>,
    copies: OnceLock<Vec<Copy>>,
    pub(super) kernels: OnceLock<Vec<WindowKernel>>,
    overhead: OnceLock<Vec<Interval>>,
    set_up: OnceLock<Vec<Interval>>,
    disturbances: OnceLock<Disturbances>,
    python: OnceLock<OperatorTree>,
    waits: OnceLock<BTreeMap<u32, i64>>,
}

impl<'a> RankFacts<'a> {
    /// Creates the facts of a window without computing any of them yet.
    pub fn new(scope: &'a Scope<'a>) -> Self {
        Self {
            scope,
            tensors: OnceLock::new(),
            tree: OnceLock::new(),
            attribution: OnceLock::new(),
            clocks: OnceLock::new(),
            breakdown: OnceLock::new(),
            steps: OnceLock::new(),
            memory_peaks: OnceLock::new(),
            idle: OnceLock::new(),
            calls: OnceLock::new(),
            copies: OnceLock::new(),
            kernels: OnceLock::new(),
            overhead: OnceLock::new(),
            set_up: OnceLock::new(),
            disturbances: OnceLock::new(),
            python: OnceLock::new(),
            waits: OnceLock::new(),
        }
    }

    /// Returns the operators, annotations and calls of each host thread as a tree.
    pub fn tree(&self) -> &OperatorTree {
        self.tree.get_or_init(|| tree::build(self.scope.trace))
    }

    /// Returns the owners of the window's device work.
    pub fn attribution(&self) -> &Attribution {
        self.attribution.get_or_init(|| attribution::attribute_device_work(self.scope, self.tree()))
    }

    /// Returns the clock skew of each device against its host.
    pub fn skews(&self) -> &[Skew] {
        &self.clocks().0
    }

    /// Returns the launches of this rank that waited because the device's queue was full.
    pub fn pressure(&self) -> &Pressure {
        &self.clocks().1
    }

    fn clocks(&self) -> &(Vec<Skew>, Pressure) {
        self.clocks.get_or_init(|| back_pressure::with_clocks(self.scope))
    }

    /// Returns the steps of the trace with their figures.
    pub fn steps(&self) -> &[StepRow] {
        self.steps.get_or_init(|| steps::list_steps(self.scope))
    }

    /// Returns the peak of each device's memory over the whole trace.
    pub fn memory_peaks(&self) -> &[MemoryPeak] {
        self.memory_peaks.get_or_init(|| memory::find_peaks(self.scope.trace, self.tree()))
    }

    pub(super) fn know_tensors(&self, by_row: BTreeMap<u32, Tensors>) {
        self.tensors.get_or_init(|| by_row);
    }

    /// Returns the inputs of an operator, if the caller has read them from the file.
    pub fn tensors(&self, row: u32) -> Option<&Tensors> {
        self.tensors.get()?.get(&row)
    }

    /// Returns whether the inputs of any operator are known.
    pub(crate) fn has_tensors(&self) -> bool {
        let known = self.tensors.get().into_iter().flat_map(BTreeMap::values);
        known.into_iter().any(|tensors| !tensors.dims.is_empty())
    }

    pub(super) fn know_waits(&self, waits: impl Iterator<Item = (u32, i64)>) {
        self.waits.get_or_init(|| waits.collect());
    }

    /// Returns the time that the kernel of a collective waited for other ranks, or 0 if no other
    /// rank was read.
    pub(crate) fn waited(&self, row: u32) -> i64 {
        self.waits.get().and_then(|waits| waits.get(&row).copied()).unwrap_or_default()
    }

    /// Returns the number of this rank within its job.
    pub fn rank(&self) -> u32 {
        self.scope.trace.rank
    }

    /// Returns the number of steps in the window, or 1 if the window has no steps.
    pub fn step_count(&self) -> i64 {
        (self.scope.window.steps.len() as i64).max(1)
    }

    /// Returns the mean step time of the host, or that of the devices if it is longer.
    pub fn step_ns(&self) -> i64 {
        self.scope.length_ns() / self.step_count()
    }

    pub(crate) fn per_step(&self, ns: i64) -> i64 {
        ns / self.step_count()
    }

    /// Converts a count over the whole window to a count per step.
    pub(crate) fn count_per_step(&self, count: usize) -> f64 {
        count as f64 / self.step_count() as f64
    }

    /// Converts a time to its share of the window, in percent.
    pub(crate) fn share(&self, ns: i64) -> f64 {
        100.0 * ns as f64 / self.scope.window.length().max(1) as f64
    }

    /// Returns the breakdown of the window's time into classes of device work.
    pub fn breakdown(&self) -> &Breakdown {
        self.breakdown.get_or_init(|| breakdown::compute_breakdown(self.scope))
    }

    /// Returns the idle time of streams and devices, with its owners and gaps.
    pub fn idle(&self) -> &Idle<'a> {
        self.idle.get_or_init(|| {
            idle::compute_idle_time(self.scope, self.tree(), &idle::IdleSettings::USUAL)
        })
    }

    /// Returns each gap in which a device of this rank was idle.
    pub fn gaps(&self) -> &[Gap<'a>] {
        &self.idle().gaps
    }

    /// Returns the gap, on any device, that contains a given time.
    pub(crate) fn gap_at(&self, time: i64) -> Option<&Gap<'a>> {
        self.gaps_near((time, time)).find(|gap| gap.start_ns <= time && time < gap.end_ns)
    }

    /// Iterates over the gaps of all devices that touch a span.
    ///
    /// # Cost
    /// The search takes two binary searches per device, because gaps are sorted by device and
    /// start.
    pub(crate) fn gaps_near(&self, (from, to): Interval) -> impl Iterator<Item = &Gap<'a>> {
        let mut rest = self.gaps();
        let devices = std::iter::from_fn(move || {
            let device = rest.first()?.device;
            let (gaps, others) = rest.split_at(rest.partition_point(|gap| gap.device <= device));
            rest = others;
            Some(gaps)
        });
        devices.flat_map(move |gaps| {
            let first = gaps.partition_point(|gap| gap.end_ns < from);
            gaps[first..].iter().take_while(move |gap| gap.start_ns <= to)
        })
    }

    /// Returns the idle time that has one of some causes, averaged over the devices.
    pub(crate) fn idle_by(&self, causes: &[DeviceCause]) -> i64 {
        self.idle_where(|cause| causes.contains(&cause))
    }

    /// Returns the time of the steps in which no device works, averaged over the devices.
    pub(crate) fn idle_ns(&self) -> i64 {
        // If devices lag behind the host, their steps are longer than the window, and they work in
        // the excess.
        let idle = self.idle_where(|_| true) + self.scope.length_ns() - self.scope.window.length();
        if self.breakdown().device_count == 0 { self.scope.length_ns() } else { idle }
    }

    fn idle_where(&self, is_meant: impl Fn(DeviceCause) -> bool) -> i64 {
        let devices = i64::from(self.breakdown().device_count).max(1);
        let rows = self.idle().devices.iter().filter(|row| is_meant(row.cause));
        rows.map(|row| row.idle_ns).sum::<i64>() / devices
    }

    /// Returns whether the devices are busy during almost all of the window, including its
    /// beginning and end.
    pub(crate) fn is_device_bound(&self) -> bool {
        let has_devices = self.breakdown().device_count > 0;
        has_devices && self.share(self.idle_where(|_| true)) < DEVICE_BOUND_PCT
    }

    /// Returns whether the host alone determines the length of a step. The host alone does so if
    /// the recording has no device work and names no device, and if its ranks do not communicate.
    pub(crate) fn is_host_only(&self) -> bool {
        let trace = self.scope.trace;
        let is_exchange = |name: &str| name == "record_param_comms" || name.starts_with("nccl");
        trace.header.devices.is_empty()
            && !trace.rows().any(|row| trace.kind(row).is_device_work())
            && !trace.strings.iter().any(is_exchange)
    }

    /// Iterates over the launches of the window, each with the delay until its work started.
    pub fn launches(&self) -> impl Iterator<Item = LaunchRow<'a>> + use<'_, 'a> {
        launches::list_launches(self.scope, &launches::LaunchSettings::USUAL)
    }

    /// Returns the runtime and driver calls that start in the window, sorted by start.
    pub(crate) fn calls(&self) -> &[u32] {
        self.calls.get_or_init(|| {
            let trace = self.scope.trace;
            let is_call = |row: &u32| trace.kind(*row).is_call() && self.scope.starts_inside(*row);
            let mut calls: Vec<u32> = trace.rows().filter(is_call).collect();
            calls.sort_by_key(|row| (trace.slices.start(*row), *row));
            calls
        })
    }

    pub(crate) fn copies(&self) -> &[Copy] {
        self.copies.get_or_init(|| copies::copies(self.scope))
    }

    /// Returns the times in which the profiler did its own work.
    pub(crate) fn overhead(&self) -> &[Interval] {
        self.overhead.get_or_init(|| {
            let trace = self.scope.trace;
            let rows = trace.rows().filter(|row| trace.kind(*row) == EventKind::Overhead);
            interval::union(rows.map(|row| self.scope.clipped(row)).collect())
        })
    }

    /// Returns the times outside steady steps in which any thread allocated driver memory or loaded
    /// code.
    pub(crate) fn set_up(&self) -> &[Interval] {
        self.set_up.get_or_init(|| {
            let names = self.names(|name| calls::SET_UP.contains(&name));
            let rows = self.scope.trace.rows().filter(|row| self.is_named(&names, *row));
            let rows = rows.filter(|row| !self.is_steady(self.start(*row)));
            interval::union(rows.map(|row| self.scope.clipped(row)).collect())
        })
    }

    /// Returns the nested Python frames, which are empty if none were recorded.
    pub(crate) fn python(&self) -> &OperatorTree {
        self.python.get_or_init(|| {
            let trace = self.scope.trace;
            let is_empty = trace.slices.python.is_empty();
            if is_empty { OperatorTree::default() } else { tree::build_python_tree(trace) }
        })
    }

    /// Returns the host work that steady steps do not repeat.
    pub fn disturbances(&self) -> &Disturbances {
        self.disturbances.get_or_init(|| disturbance::find_disturbances(self.scope, self.tree()))
    }

    /// Returns the index of the step that contains a given time.
    pub(crate) fn step_at(&self, time: i64) -> Option<usize> {
        let steps = &self.scope.window.steps;
        let at = steps.partition_point(|step| step.end <= time);
        steps.get(at).filter(|step| step.start <= time).map(|_| at)
    }

    /// Returns whether a time lies in a step after the first one, when set-up is over.
    pub(crate) fn is_steady(&self, time: i64) -> bool {
        self.step_at(time).is_some_and(|step| step > 0)
    }

    pub(crate) fn start(&self, row: u32) -> i64 {
        self.scope.trace.slices.start(row)
    }

    pub(crate) fn end(&self, row: u32) -> i64 {
        self.scope.trace.slices.end(row)
    }

    pub(crate) fn duration(&self, row: u32) -> i64 {
        self.scope.trace.slices.duration[row as usize]
    }

    pub(crate) fn name(&self, row: u32) -> &'a str {
        self.scope.trace.name(row)
    }

    pub(crate) fn total(&self, rows: &[u32]) -> i64 {
        rows.iter().map(|row| self.duration(*row)).sum()
    }

    /// Returns whether a device row was launched by a graph launch.
    pub(crate) fn is_of_graph(&self, row: u32) -> bool {
        let call = self.scope.links().call(row);
        call.is_some_and(|call| self.name(call).contains("GraphLaunch"))
    }

    /// Returns whether other ranks of the job were read.
    pub(crate) fn has_peers(&self) -> bool {
        self.waits.get().is_some()
    }

    /// Returns some rows together with all rows nested inside them.
    pub(crate) fn whole(&self, rows: &[u32]) -> Vec<u32> {
        rows.iter().flat_map(|row| self.tree().subtree(*row).iter().copied()).collect()
    }
}
