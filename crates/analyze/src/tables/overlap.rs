//! Splits the busy time of a device by the set of classes that run at the same time. Every
//! nanosecond belongs to exactly one set.

use std::collections::BTreeMap;

use schema::TableRow;
use serde::Serialize;

use crate::facts::classify::WorkClass;
use crate::facts::interval::{self, Interval};
use crate::facts::scope::Scope;
use crate::percent::percent;

/// The classes in the order of their bits in a [`ClassSet`], lowest bit first.
const CLASSES: [(WorkClass, &str); 4] = [
    (WorkClass::Compute, "compute"),
    (WorkClass::Communication, "communication"),
    (WorkClass::Memory, "memory"),
    (WorkClass::Other, "other"),
];

/// A set of classes with one bit per class.
type ClassSet = usize;

/// Time during which exactly one set of classes runs.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct ExclusiveClass {
    pub rank: u32,
    /// The device, or `None` for all devices of the rank together.
    pub device: Option<i32>,
    /// Names of the classes joined by `+`, such as `compute+communication`.
    pub classes: String,
    /// Nanoseconds during which these classes run and no others.
    pub exclusive_ns: i64,
    /// Share of the busy time, in percent.
    pub busy_pct: Option<f64>,
    /// Share of the window, in percent.
    pub window_pct: Option<f64>,
}

/// Nanoseconds by the exact set of classes that run, without the time in which no class runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Exclusive {
    ns: [i64; 1 << CLASSES.len()],
    pub(crate) row_count: u64,
}

/// The times of each class as a union of intervals, which grows only at its end.
#[derive(Default)]
struct Unions {
    of: [Vec<Interval>; CLASSES.len()],
    row_count: u64,
}

/// Computes the exclusive times of a rank over all its devices, with a row for each non-empty set
/// of classes in the order of the sets' bits. The exclusive times of all sets sum to the busy time.
///
/// # Cost
/// The cost is `O(n)` in the device rows of the scope.
pub fn compute_overlap(scope: &Scope<'_>) -> Vec<ExclusiveClass> {
    rows(scope, None, &Exclusive::new(scope))
}

/// Computes the overlap of each device that has work in the window, sorted by device.
pub fn by_device(scope: &Scope<'_>) -> Vec<ExclusiveClass> {
    let each = Exclusive::by_device(scope);
    each.into_iter().flat_map(|(device, times)| rows(scope, Some(device), &times)).collect()
}

fn rows(scope: &Scope<'_>, device: Option<i32>, times: &Exclusive) -> Vec<ExclusiveClass> {
    let row = |set: ClassSet| ExclusiveClass {
        rank: scope.trace.rank,
        device,
        classes: name(set),
        exclusive_ns: times.ns[set],
        busy_pct: percent(times.ns[set], times.busy()),
        window_pct: percent(times.ns[set], scope.window.length()),
    };
    (1..times.ns.len()).map(row).collect()
}

fn name(set: ClassSet) -> String {
    let members = CLASSES.iter().filter(|(class, _)| set & bit(*class) != 0);
    members.map(|(_, name)| *name).collect::<Vec<_>>().join("+")
}

fn bit(class: WorkClass) -> ClassSet {
    1 << class as usize
}

impl Exclusive {
    /// Builds the unions from the rows of all devices of the scope.
    pub(crate) fn new(scope: &Scope<'_>) -> Self {
        let mut unions = Unions::default();
        for (row, class) in scope.device_rows.iter().zip(&scope.classes) {
            unions.add(*class, scope.clipped(*row));
        }
        Self::from_unions(&unions)
    }

    /// Builds the unions of each device separately.
    pub(crate) fn by_device(scope: &Scope<'_>) -> Vec<(i32, Self)> {
        let mut devices = BTreeMap::<i32, Unions>::new();
        for (row, class) in scope.device_rows.iter().zip(&scope.classes) {
            let unions = devices.entry(scope.trace.device(*row)).or_default();
            unions.add(*class, scope.clipped(*row));
        }
        devices.iter().map(|(device, unions)| (*device, Self::from_unions(unions))).collect()
    }

    /// Computes the time of each set by a sweep over the boundaries of the unions.
    fn from_unions(unions: &Unions) -> Self {
        let mut times = Self { row_count: unions.row_count, ..Self::default() };
        // Boundary 2i of a union is the start of its interval i, and boundary 2i + 1 is the end.
        let mut next = [0; CLASSES.len()];
        let boundary = |class: usize, at: usize| -> Option<i64> {
            let (start, end) = unions.of[class].get(at / 2)?;
            Some(if at.is_multiple_of(2) { *start } else { *end })
        };
        let earliest =
            |next: &[usize]| (0..next.len()).filter_map(|class| boundary(class, next[class])).min();
        let (mut running, mut since): (ClassSet, i64) = (0, 0);
        while let Some(time) = earliest(&next) {
            if running != 0 {
                times.ns[running] += time - since;
            }
            since = time;
            for (class, at) in next.iter_mut().enumerate() {
                if boundary(class, *at) == Some(time) {
                    running ^= 1 << class;
                    *at += 1;
                }
            }
        }
        times
    }

    /// Returns the time in which at least one class runs.
    pub(crate) fn busy(&self) -> i64 {
        self.ns.iter().sum()
    }

    /// Returns the time in which a given class runs.
    pub(crate) fn running(&self, class: WorkClass) -> i64 {
        self.sum(|set| set & bit(class) != 0)
    }

    /// Returns the time in which both classes run at the same time.
    pub(crate) fn both(&self, one: WorkClass, other: WorkClass) -> i64 {
        let set = bit(one) | bit(other);
        self.sum(|running| running & set == set)
    }

    /// Returns the time in which a class runs while no class of `others` does.
    pub(crate) fn exposed(&self, class: WorkClass, others: &[WorkClass]) -> i64 {
        let hiding: ClassSet = others.iter().map(|other| bit(*other)).sum();
        self.sum(|set| set & bit(class) != 0 && set & hiding == 0)
    }

    fn sum(&self, takes: impl Fn(ClassSet) -> bool) -> i64 {
        (0..self.ns.len()).filter(|set| takes(*set)).map(|set| self.ns[set]).sum()
    }
}

impl Unions {
    fn add(&mut self, class: WorkClass, span: Interval) {
        interval::add(&mut self.of[class as usize], span);
        self.row_count += 1;
    }
}

#[cfg(test)]
mod tests;
