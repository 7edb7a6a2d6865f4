//! What rules ask of a job, computed once, when first asked for. Knows no rule.

mod copies;
mod kernels;
mod names;
mod proof;

use std::cell::OnceCell;
use std::collections::BTreeMap;

use trace::store::Kind;

use super::finding::RowEdit;
use crate::attribution::Attribution;
use crate::breakdown::{self, Breakdown};
use crate::classify::Class;
use crate::collectives::{self, Collectives};
use crate::critical_path::{self, CriticalPath, Options};
use crate::disturbance::{self, Disturbances};
use crate::graph::edit::Action;
use crate::graph::measured::{self, MeasuredGraph};
use crate::idle::{self, DeviceCause, Gap, Idle};
use crate::interval::{self, Interval};
use crate::launches::{self, LaunchRow};
use crate::pressure::{self, Pressure};
use crate::quality::{self, Evidence, Issue};
use crate::scope::Scope;
use crate::stragglers::{self, Stragglers};
use crate::tree::Tree;

pub(super) use copies::{Copy, Direction};
pub(super) use kernels::Kernel;
pub(super) use names::is_synchronization;

/// Idle time below which a device counts as busy all the time, percent of the window.
const DEVICE_BOUND_PCT: f64 = 5.0;

/// The tensors of operators, by rank and row: what no column of a trace holds.
pub type Shapes = BTreeMap<(u32, u32), Tensors>;

/// The inputs of one operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tensors {
    /// Sizes of each; none of what is no tensor.
    pub dims: Vec<Vec<u64>>,
    /// Type of each, as PyTorch writes it, such as `c10::Half`.
    pub types: Vec<String>,
}

/// What is known of a job.
pub(super) struct JobFacts<'a> {
    pub ranks: Vec<Facts<'a>>,
    pub evidence: &'a [Evidence<'a>],
    scopes: &'a [Scope<'a>],
    collectives: OnceCell<Collectives>,
    measured: OnceCell<MeasuredGraph>,
    paths: OnceCell<CriticalPath>,
    stragglers: OnceCell<Stragglers>,
    issues: OnceCell<Vec<Issue>>,
}

/// What is known of one rank.
pub(super) struct Facts<'a> {
    pub scope: &'a Scope<'a>,
    pub tree: &'a Tree,
    pub attribution: &'a Attribution,
    pub shapes: &'a Shapes,
    breakdown: OnceCell<Breakdown>,
    idle: OnceCell<Idle>,
    gaps: OnceCell<Vec<Gap>>,
    launches: OnceCell<Vec<LaunchRow<'a>>>,
    calls: OnceCell<Vec<u32>>,
    copies: OnceCell<Vec<Copy>>,
    kernels: OnceCell<Vec<Kernel>>,
    pressure: OnceCell<Pressure>,
    overhead: OnceCell<Vec<Interval>>,
    set_up: OnceCell<Vec<Interval>>,
    disturbances: OnceCell<Disturbances>,
    python: OnceCell<Tree>,
    waits: OnceCell<BTreeMap<u32, i64>>,
}

impl<'a> JobFacts<'a> {
    pub fn new(scopes: &'a [Scope<'a>], evidence: &'a [Evidence<'a>], shapes: &'a Shapes) -> Self {
        let job = Self {
            ranks: evidence.iter().map(|rank| Facts::new(rank, shapes)).collect(),
            evidence,
            scopes,
            collectives: OnceCell::new(),
            measured: OnceCell::new(),
            paths: OnceCell::new(),
            stragglers: OnceCell::new(),
            issues: OnceCell::new(),
        };
        job.tell_waits();
        job
    }

    /// Tells each rank how long its collectives waited for others.
    fn tell_waits(&self) {
        for facts in self.ranks.iter().filter(|_| self.ranks.len() > 1) {
            let parts = self.collectives().matched.iter().flat_map(|one| &one.participants);
            let own = parts.filter(|part| part.rank == facts.rank());
            facts.waits.get_or_init(|| own.map(|part| (part.row, part.wait_ns)).collect());
        }
    }

    pub fn collectives(&self) -> &Collectives {
        self.collectives.get_or_init(|| collectives::of(self.scopes))
    }

    pub fn measured(&self) -> &MeasuredGraph {
        self.measured.get_or_init(|| measured::of(self.scopes, self.collectives()))
    }

    pub fn paths(&self) -> &CriticalPath {
        let options = Options { contributors: 0 };
        self.paths.get_or_init(|| critical_path::of_graph(self.scopes, self.measured(), &options))
    }

    pub fn stragglers(&self) -> &Stragglers {
        let of = || stragglers::of(self.scopes, self.collectives(), self.measured());
        self.stragglers.get_or_init(of)
    }

    pub fn issues(&self) -> &[Issue] {
        self.issues.get_or_init(|| quality::of(self.evidence))
    }

    /// The facts of a rank.
    pub fn rank(&self, rank: u32) -> Option<&Facts<'a>> {
        self.ranks.iter().find(|facts| facts.rank() == rank)
    }

    /// The mean step of the slowest rank.
    pub fn step_ns(&self) -> i64 {
        self.ranks.iter().map(Facts::step_ns).max().unwrap_or_default()
    }
}

impl<'a> Facts<'a> {
    fn new(rank: &Evidence<'a>, shapes: &'a Shapes) -> Self {
        Self {
            scope: rank.scope,
            tree: rank.tree,
            attribution: rank.attribution,
            shapes,
            breakdown: OnceCell::new(),
            idle: OnceCell::new(),
            gaps: OnceCell::new(),
            launches: OnceCell::new(),
            calls: OnceCell::new(),
            copies: OnceCell::new(),
            kernels: OnceCell::new(),
            pressure: OnceCell::new(),
            overhead: OnceCell::new(),
            set_up: OnceCell::new(),
            disturbances: OnceCell::new(),
            python: OnceCell::new(),
            waits: OnceCell::new(),
        }
    }

    pub fn rank(&self) -> u32 {
        self.scope.trace.rank
    }

    /// Steps in the window; 1 where none is named.
    pub fn step_count(&self) -> i64 {
        (self.scope.window.steps.len() as i64).max(1)
    }

    /// The mean step: the host's, or the devices' where that is longer.
    pub fn step_ns(&self) -> i64 {
        self.scope.length_ns() / self.step_count()
    }

    pub fn per_step(&self, ns: i64) -> i64 {
        ns / self.step_count()
    }

    /// How many for each step.
    pub fn count_per_step(&self, count: usize) -> f64 {
        count as f64 / self.step_count() as f64
    }

    /// Of the window, in percent.
    pub fn share(&self, ns: i64) -> f64 {
        100.0 * ns as f64 / self.scope.window.length().max(1) as f64
    }

    pub fn breakdown(&self) -> &Breakdown {
        self.breakdown.get_or_init(|| breakdown::of(self.scope))
    }

    pub fn idle(&self) -> &Idle {
        self.idle.get_or_init(|| idle::of(self.scope, self.tree, &idle::Settings::USUAL))
    }

    pub fn gaps(&self) -> &[Gap] {
        self.gaps.get_or_init(|| idle::gaps(self.scope, self.tree, &idle::Settings::USUAL))
    }

    /// The gap of any device that a time lies in.
    pub fn gap_at(&self, time: i64) -> Option<&Gap> {
        self.gaps_near((time, time)).find(|gap| gap.start_ns <= time && time < gap.end_ns)
    }

    /// The gaps of all devices that touch a span.
    pub fn gaps_near(&self, (from, to): Interval) -> impl Iterator<Item = &Gap> {
        let devices = self.gaps().chunk_by(|a, b| a.device == b.device);
        devices.flat_map(move |gaps| {
            let first = gaps.partition_point(|gap| gap.end_ns < from);
            gaps[first..].iter().take_while(move |gap| gap.start_ns <= to)
        })
    }

    /// Idle time of some causes, the mean of the devices.
    pub fn idle_by(&self, causes: &[DeviceCause]) -> i64 {
        self.idle_where(|cause| causes.contains(&cause))
    }

    fn idle_where(&self, is_meant: impl Fn(DeviceCause) -> bool) -> i64 {
        let devices = i64::from(self.breakdown().device_count).max(1);
        let rows = self.idle().devices.iter().filter(|row| is_meant(row.cause));
        rows.map(|row| row.idle_ns).sum::<i64>() / devices
    }

    /// Idle time between the first and the last work of the devices, of the window, in percent;
    /// `None` without device work.
    pub fn idle_pct(&self) -> Option<f64> {
        let is_inside =
            |cause: DeviceCause| !matches!(cause, DeviceCause::Head | DeviceCause::Tail);
        let has_devices = self.breakdown().device_count > 0;
        has_devices.then(|| self.share(self.idle_where(is_inside)))
    }

    /// Whether the devices are busy almost all the time of the window, its head and tail included.
    pub fn is_device_bound(&self) -> bool {
        let has_devices = self.breakdown().device_count > 0;
        has_devices && self.share(self.idle_where(|_| true)) < DEVICE_BOUND_PCT
    }

    pub fn launches(&self) -> &[LaunchRow<'a>] {
        self.launches.get_or_init(|| launches::of(self.scope, &launches::Settings::USUAL))
    }

    /// Runtime and driver calls that start in the window, by start.
    pub fn calls(&self) -> &[u32] {
        self.calls.get_or_init(|| {
            let trace = self.scope.trace;
            let is_call = |row: &u32| trace.kind(*row).is_call() && self.scope.starts_inside(*row);
            let mut calls: Vec<u32> = trace.rows().filter(is_call).collect();
            calls.sort_by_key(|row| (trace.slices.start(*row), *row));
            calls
        })
    }

    pub fn copies(&self) -> &[Copy] {
        self.copies.get_or_init(|| copies::of(self.scope))
    }

    /// Kernels in the window, by start.
    pub fn kernels(&self) -> &[Kernel] {
        self.kernels.get_or_init(|| kernels::of(self))
    }

    pub fn compute_kernels(&self) -> impl Iterator<Item = &Kernel> {
        self.kernels().iter().filter(|kernel| kernel.class == Class::Compute)
    }

    /// Launches that waited for a full queue.
    pub fn pressure(&self) -> &Pressure {
        self.pressure.get_or_init(|| pressure::with_clocks(self.scope).1)
    }

    /// The profiler's own work.
    pub fn overhead(&self) -> &[Interval] {
        self.overhead.get_or_init(|| {
            let trace = self.scope.trace;
            let rows = trace.rows().filter(|row| trace.kind(*row) == Kind::Overhead);
            interval::union(rows.map(|row| self.scope.clipped(row)).collect())
        })
    }

    /// When memory was taken from the driver or code loaded, by any thread, outside steady steps.
    pub fn set_up(&self) -> &[Interval] {
        self.set_up.get_or_init(|| {
            let names = self.names(|name| quality::SET_UP.contains(&name));
            let rows = self.scope.trace.rows().filter(|row| self.is_named(&names, *row));
            let rows = rows.filter(|row| !self.is_steady(self.start(*row)));
            interval::union(rows.map(|row| self.scope.clipped(row)).collect())
        })
    }

    /// When the host did what a running job does not do again.
    pub fn disturbances(&self) -> &Disturbances {
        self.disturbances.get_or_init(|| disturbance::of(self.scope, self.tree))
    }

    /// The place of the step a time lies in.
    pub fn step_at(&self, time: i64) -> Option<usize> {
        let steps = &self.scope.window.steps;
        let at = steps.partition_point(|step| step.end <= time);
        steps.get(at).filter(|step| step.start <= time).map(|_| at)
    }

    /// Whether a time lies in a step after the first: where set-up is over.
    pub fn is_steady(&self, time: i64) -> bool {
        self.step_at(time).is_some_and(|step| step > 0)
    }

    pub fn start(&self, row: u32) -> i64 {
        self.scope.trace.slices.start(row)
    }

    pub fn end(&self, row: u32) -> i64 {
        self.scope.trace.slices.end(row)
    }

    pub fn duration(&self, row: u32) -> i64 {
        self.scope.trace.slices.duration[row as usize]
    }

    pub fn name(&self, row: u32) -> &'a str {
        self.scope.trace.name(row)
    }

    pub fn total(&self, rows: &[u32]) -> i64 {
        rows.iter().map(|row| self.duration(*row)).sum()
    }

    /// How long a collective's kernel waited for other ranks; 0 where only one was seen.
    pub fn waited(&self, row: u32) -> i64 {
        self.waits.get().and_then(|waits| waits.get(&row).copied()).unwrap_or_default()
    }

    /// Whether other ranks of its job were read.
    pub fn has_peers(&self) -> bool {
        self.waits.get().is_some()
    }

    /// An edit of rows of this rank.
    pub fn edit(&self, rows: Vec<u32>, action: Action) -> RowEdit {
        RowEdit::new(self.rank(), rows, action)
    }

    /// Some rows and all that ran inside them.
    pub fn whole(&self, rows: &[u32]) -> Vec<u32> {
        rows.iter().flat_map(|row| self.tree.subtree(*row).iter().copied()).collect()
    }
}
