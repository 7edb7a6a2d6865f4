//! Divides the idle time of each device by the activity of the thread that launched the work after
//! the gap.

use std::collections::BTreeMap;

use schema::{CellType, TableRow};
use serde::Serialize;
use trace::store::StringId;

use super::share::{IdleSettings, IdleShare};
use super::thread::{Activity, HostThreads};
use crate::facts::interval::Interval;
use crate::facts::scope::Scope;
use crate::facts::tree::OperatorTree;
use crate::facts::window::{self, WindowRule};
use crate::percent::percent;

/// The reason why a device was idle. Until the launching call ends, the reason is the activity of
/// its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, CellType)]
#[serde(rename_all = "snake_case")]
pub enum DeviceCause {
    /// The thread still waited for the device, although the device had already finished its work.
    SyncDrain,
    /// The launching thread fetched the next batch.
    Input,
    /// The launching thread ran operators or Python code.
    CpuWork,
    /// The thread was in a call of the runtime or driver, which includes the launch itself.
    Runtime,
    /// Nothing recorded ran on the thread, apart from annotations of the user.
    Untraced,
    /// The launch call was made in the gap, and its work started shortly after the call had ended.
    LaunchDelay,
    /// The work was launched before the gap began, and the gap is short.
    KernelWait,
    /// The work was launched but did not start for a long time, because it waited for other work,
    /// an event or another rank.
    Dependency,
    /// The launch of the work that ended the gap was not recorded.
    Unlinked,
    /// The gap lies before the first work of the device.
    Head,
    Tail,
}

/// The part of a device's idle time that has one cause.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct DeviceIdle {
    pub rank: u32,
    pub device: i32,
    pub cause: DeviceCause,
    /// Number of gaps to which the cause contributes.
    pub gap_count: u64,
    pub idle_ns: i64,
    /// Share of the device's idle time, in percent.
    pub idle_pct: Option<f64>,
    pub window_pct: Option<f64>,
    /// Part of `idle_ns` in gaps that began while the thread waited for the device.
    pub after_sync_ns: i64,
    /// Smallest time that the cause has in a single gap.
    pub min_ns: i64,
    pub p50_ns: i64,
    pub mean_ns: f64,
    pub max_ns: i64,
}

/// Operator or frame in which a host thread spent the idle time of a device.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct IdleOwner {
    pub rank: u32,
    pub device: i32,
    pub cause: DeviceCause,
    /// The innermost operator, Python frame or user annotation that ran on the thread, or that
    /// launched the awaited work; otherwise the call. The owner is `None` if nothing was recorded.
    pub owner: Option<String>,
    /// Number of gaps to which the owner contributes.
    pub gap_count: u64,
    pub idle_ns: i64,
    /// Share of the device's idle time, in percent.
    pub idle_pct: Option<f64>,
}

/// A stretch of the window in which no stream of a device had work.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct Gap<'a> {
    pub rank: u32,
    pub device: i32,
    /// Start of the gap, in absolute nanoseconds.
    pub start_ns: i64,
    /// End of the gap, in absolute nanoseconds.
    pub end_ns: i64,
    pub idle_ns: i64,
    /// The cause with the largest part of the gap.
    pub cause: DeviceCause,
    /// The owner of most of the part with that cause.
    pub owner: Option<&'a str>,
    /// Whether the thread was waiting for the device when the gap began.
    pub is_after_sync: bool,
    /// The row of the work that ended the gap; `None` for a gap after the last work.
    pub ending_row: Option<u32>,
    /// The row of the call that launched the work after the gap.
    pub call_row: Option<u32>,
}

/// A gap whose cause is not yet known, not clipped to the window.
#[derive(Clone, Copy)]
struct Bare {
    device: i32,
    from: i64,
    to: i64,
    /// Set to [`DeviceCause::Head`] or [`DeviceCause::Tail`] if that cause explains the whole gap.
    edge: Option<DeviceCause>,
    ending: Option<u32>,
}

/// A part of a gap as (cause, owner, nanoseconds in the window).
type GapPart = (DeviceCause, Option<StringId>, i64);

/// The parts of a gap after its causes were found, sorted by cause and owner.
#[derive(Default)]
struct GapParts {
    of: Vec<GapPart>,
    is_after_sync: bool,
}

/// Idle time of one device by cause, and by the operator or annotation that owned the host
/// meanwhile.
#[derive(Default)]
struct IdleSums {
    gaps: BTreeMap<DeviceCause, Vec<i64>>,
    after_sync: BTreeMap<DeviceCause, i64>,
    owners: BTreeMap<(DeviceCause, Option<StringId>), (u64, i64)>,
}

/// Collects the idle time of the devices of a rank.
pub(super) struct DeviceIdleTime<'a> {
    pub devices: Vec<DeviceIdle>,
    pub owners: Vec<IdleOwner>,
    pub gaps: Vec<Gap<'a>>,
}

pub(super) fn compute_device_idle<'a>(
    scope: &Scope<'a>,
    tree: &OperatorTree,
    settings: &IdleSettings,
) -> DeviceIdleTime<'a> {
    let mut devices = BTreeMap::<i32, IdleSums>::new();
    let mut gaps = Vec::new();
    each(scope, tree, settings, |bare, parts| {
        devices.entry(bare.device).or_default().add(parts);
        gaps.extend(gap(scope, bare, parts));
    });
    gaps.sort_by_key(|gap| (gap.device, gap.start_ns));
    let (mut causes, mut owners) = (Vec::new(), Vec::new());
    for (device, sums) in devices {
        let idle_ns = sums.gaps.values().flatten().sum();
        owners.extend(owner_rows(scope, device, &sums, idle_ns, settings.owner_count));
        for (cause, gaps) in sums.gaps {
            let after_sync_ns = sums.after_sync[&cause];
            let IdleShare { spread, idle_pct, window_pct } = IdleShare::new(scope, gaps, idle_ns);
            causes.push(DeviceIdle {
                rank: scope.trace.rank,
                device,
                cause,
                gap_count: spread.count,
                idle_ns: spread.total,
                idle_pct,
                window_pct,
                after_sync_ns,
                min_ns: spread.min,
                p50_ns: spread.p50,
                mean_ns: spread.mean,
                max_ns: spread.max,
            });
        }
    }
    DeviceIdleTime { devices: causes, owners, gaps }
}

fn owner_rows(
    scope: &Scope<'_>,
    device: i32,
    sums: &IdleSums,
    idle_ns: i64,
    count: usize,
) -> Vec<IdleOwner> {
    let name = |id: Option<StringId>| id.map(|id| scope.trace.strings.get(id).to_owned());
    let row = |(&(cause, owner), &(gap_count, ns)): (&_, &_)| IdleOwner {
        rank: scope.trace.rank,
        device,
        cause,
        owner: name(owner),
        gap_count,
        idle_ns: ns,
        idle_pct: percent(ns, idle_ns),
    };
    let mut owned: Vec<_> = sums.owners.iter().collect();
    owned.sort_by_key(|(key, (_, ns))| (std::cmp::Reverse(*ns), **key));
    owned.into_iter().take(count).map(row).collect()
}

/// Builds a gap with its cause and owner, or returns `None` if it lies outside the window.
fn gap<'a>(scope: &Scope<'a>, bare: &Bare, parts: &GapParts) -> Option<Gap<'a>> {
    // If several causes have equal time, the first one is taken.
    let (cause, _, owners) = parts.by_cause().rev().max_by_key(|(_, ns, _)| *ns)?;
    let owner = owners.iter().rev().max_by_key(|(.., ns)| *ns).and_then(|owner| owner.1);
    let (start_ns, end_ns) = clip(scope, (bare.from, bare.to));
    Some(Gap {
        rank: scope.trace.rank,
        device: bare.device,
        start_ns,
        end_ns,
        idle_ns: end_ns - start_ns,
        cause,
        owner: owner.map(|id| scope.trace.strings.get(id)),
        is_after_sync: parts.is_after_sync,
        ending_row: bare.ending,
        call_row: bare.ending.and_then(|row| scope.links().call(row)),
    })
}

/// Finds every gap of a device and divides it by cause.
fn each(
    scope: &Scope<'_>,
    tree: &OperatorTree,
    settings: &IdleSettings,
    mut visit: impl FnMut(&Bare, &GapParts),
) {
    let host = HostThreads::new(scope.trace, tree, scope.frames());
    let mut parts = GapParts::default();
    let mut busy_until = Outside::before(scope);
    let mut label = |gap: Bare| {
        parts.label(scope, &host, settings, &gap);
        visit(&gap, &parts);
    };
    for &row in &scope.device_rows {
        let device = scope.trace.device(row);
        let (from, to) = (scope.trace.slices.start(row), scope.trace.slices.end(row));
        let until = busy_until.entry(device).or_default();
        let begin = until.unwrap_or(scope.window.start);
        // A gap counts from the last work before the window, if there was any, because that is
        // where it really began.
        if from > begin.max(scope.window.start) {
            let edge = until.is_none().then_some(DeviceCause::Head);
            label(Bare { device, from: begin, to: from, edge, ending: Some(row) });
        }
        *until = Some(begin.max(to));
    }
    let after = Outside::after(scope);
    for device in scope.devices() {
        let from = busy_until[&device].unwrap_or(scope.window.end);
        if from >= scope.window.end {
            continue;
        }
        label(match after.get(&device) {
            Some(&(to, row)) => Bare { device, from, to, edge: None, ending: Some(row) },
            None => {
                let edge = Some(DeviceCause::Tail);
                Bare { device, from, to: scope.window.end, edge, ending: None }
            }
        });
    }
}

/// Finds the device work next to the window, because a gap at the edge of the window begins or ends
/// there.
struct Outside;

impl Outside {
    /// Returns the latest end of the work before the window, by device.
    fn before(scope: &Scope<'_>) -> BTreeMap<i32, Option<i64>> {
        let mut ends = BTreeMap::<i32, Option<i64>>::new();
        Self::each(scope, |row| {
            let (from, to) = (scope.trace.slices.start(row), scope.trace.slices.end(row));
            if from < scope.window.start && to <= scope.window.start {
                let end = ends.entry(scope.trace.device(row)).or_default();
                *end = Some(end.map_or(to, |end| end.max(to)));
            }
        });
        ends
    }

    /// Returns the start and the row of the first work after the window, by device.
    fn after(scope: &Scope<'_>) -> BTreeMap<i32, (i64, u32)> {
        let mut starts = BTreeMap::<i32, (i64, u32)>::new();
        Self::each(scope, |row| {
            let from = scope.trace.slices.start(row);
            if from >= scope.window.end {
                let first = starts.entry(scope.trace.device(row)).or_insert((from, row));
                *first = (from, row).min(*first);
            }
        });
        starts
    }

    fn each(scope: &Scope<'_>, visit: impl FnMut(u32)) {
        // Only a window of steps leaves out device work; windows of other rules contain all the
        // work that counts.
        if scope.window.rule == WindowRule::Steps {
            let lost = window::lost_start(scope.trace);
            let is_work = |row: &u32| {
                scope.trace.kind(*row).is_device_work()
                    && Some(scope.trace.slices.start(*row)) != lost
            };
            scope.trace.rows().filter(is_work).for_each(visit);
        }
    }
}

impl GapParts {
    fn label(
        &mut self,
        scope: &Scope<'_>,
        host: &HostThreads<'_>,
        settings: &IdleSettings,
        gap: &Bare,
    ) {
        self.of.clear();
        self.is_after_sync = false;
        let whole = (gap.from, gap.to);
        let call = gap.ending.and_then(|row| scope.links().call(row));
        let (None, Some(call)) = (gap.edge, call) else {
            return self.push(scope, gap.edge.unwrap_or(DeviceCause::Unlinked), None, whole);
        };
        let slices = &scope.trace.slices;
        let is_short = |(from, to): Interval| to - from < settings.kernel_wait_ns;
        // If the work was launched before a short gap, the host did not cause the gap.
        if slices.start(call) <= gap.from && is_short(whole) {
            return self.push(scope, DeviceCause::KernelWait, host.owner(call), whole);
        }
        let launched = slices.end(call).clamp(gap.from, gap.to);
        let track = slices.track[call as usize];
        // Until the launch call ended, the host held the device up, so its activity is the cause.
        host.each(track, (gap.from, launched), |piece, activity, owner| {
            self.is_after_sync |= piece.0 == gap.from && activity == Activity::Sync;
            self.push(scope, cause(activity), owner, piece);
        });
        let rest = (launched, gap.to);
        let waits = if gap.from < launched && is_short(rest) {
            DeviceCause::LaunchDelay
        } else {
            DeviceCause::Dependency
        };
        if launched < gap.to {
            self.push(scope, waits, host.owner(call), rest);
        }
        self.merge();
    }

    fn push(
        &mut self,
        scope: &Scope<'_>,
        cause: DeviceCause,
        owner: Option<StringId>,
        span: Interval,
    ) {
        let (from, to) = clip(scope, span);
        if from < to {
            self.of.push((cause, owner, to - from));
        }
    }

    /// Iterates over the causes of a gap, each with its time and with the parts of each owner.
    fn by_cause(&self) -> impl DoubleEndedIterator<Item = (DeviceCause, i64, &[GapPart])> {
        let runs = self.of.chunk_by(|a, b| a.0 == b.0);
        runs.map(|run| (run[0].0, run.iter().map(|(.., ns)| ns).sum(), run))
    }

    /// Merges the parts that have the same cause and owner.
    fn merge(&mut self) {
        self.of.sort_unstable();
        self.of.dedup_by(|later, kept| {
            let is_same = (later.0, later.1) == (kept.0, kept.1);
            kept.2 += if is_same { later.2 } else { 0 };
            is_same
        });
    }
}

fn clip(scope: &Scope<'_>, (from, to): Interval) -> Interval {
    let from = from.clamp(scope.window.start, scope.window.end);
    (from, to.clamp(from, scope.window.end))
}

fn cause(activity: Activity) -> DeviceCause {
    match activity {
        Activity::Sync => DeviceCause::SyncDrain,
        Activity::Input => DeviceCause::Input,
        Activity::Call => DeviceCause::Runtime,
        Activity::Work => DeviceCause::CpuWork,
        Activity::Untraced => DeviceCause::Untraced,
    }
}

impl IdleSums {
    fn add(&mut self, parts: &GapParts) {
        for &(cause, owner, ns) in &parts.of {
            let owned = self.owners.entry((cause, owner)).or_default();
            *owned = (owned.0 + 1, owned.1 + ns);
        }
        for (cause, ns, _) in parts.by_cause() {
            self.gaps.entry(cause).or_default().push(ns);
            *self.after_sync.entry(cause).or_default() += if parts.is_after_sync { ns } else { 0 };
        }
    }
}
