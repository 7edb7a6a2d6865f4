//! Sums the time spent on each kernel, operator or call, unit by unit.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use trace::store::{EventKind, StringId, Trace};

use super::change::DiffSubject;
use super::unit::RankUnits;

/// Separator between the operators of a path, outermost operator first.
const INSIDE: &str = " > ";

/// Removes the step number from names such as `ProfilerStep#12`, so that steps with different
/// numbers have one name.
fn unnumbered(name: &str) -> &str {
    let bare = name.trim_end_matches(|letter: char| letter.is_ascii_digit());
    if bare.ends_with('#') { bare } else { name }
}

/// Name and shape, which together identify a kernel, operator or call on both sides.
pub type SpentKey = (String, String);

/// Time that one side spent on all things of one subject.
#[derive(Default)]
pub struct Spent {
    pub units: usize,
    /// Time of each thing by its name and shape.
    pub rows: BTreeMap<SpentKey, SpentRow>,
}

/// Time spent on one kernel, operator or call, with one entry per unit.
#[derive(Debug, Default)]
pub struct SpentRow {
    pub count: u64,
    /// Nanoseconds per unit, up to the last unit in which the thing occurs.
    pub ns: Vec<i64>,
}

impl SpentRow {
    fn add(&mut self, unit: usize, ns: i64) {
        self.count += 1;
        if self.ns.len() <= unit {
            self.ns.resize(unit + 1, 0);
        }
        self.ns[unit] += ns;
    }

    fn join(&mut self, other: Self) {
        self.count += other.count;
        if self.ns.len() < other.ns.len() {
            self.ns.resize(other.ns.len(), 0);
        }
        for (sum, ns) in self.ns.iter_mut().zip(other.ns) {
            *sum += ns;
        }
    }
}

/// Sums the time that the ranks of a side spent on each kernel, operator or call of a subject.
pub fn collect_spent(samples: &[RankUnits<'_>], subject: DiffSubject) -> Spent {
    let units = samples.iter().map(|sample| sample.units.len()).sum();
    let mut spent = Spent { units, rows: BTreeMap::new() };
    for sample in samples {
        let trace = sample.scope.trace;
        let named =
            |name: &StringId| (unnumbered(trace.strings.get(*name)).to_owned(), String::new());
        match subject {
            DiffSubject::Kernel => {
                spent.join(device(sample), |(name, shape)| (named(name).0, shape.to_string()));
            }
            DiffSubject::Operator => spent.join(operators(sample, own_device), named),
            DiffSubject::Host => spent.join(operators(sample, own_host), named),
            DiffSubject::Path => {
                let (rows, paths) = by_path(sample);
                spent.join(rows, |path| (paths.text(trace, *path), String::new()));
            }
            DiffSubject::Call => spent.join(calls(sample), named),
        }
    }
    spent
}

impl Spent {
    fn join<K>(&mut self, rows: HashMap<K, SpentRow>, key: impl Fn(&K) -> SpentKey) {
        for (raw, row) in rows {
            self.rows.entry(key(&raw)).or_default().join(row);
        }
    }
}

fn collect<K: Hash + Eq>(
    sample: &RankUnits<'_>,
    rows: impl Iterator<Item = (K, u32, i64)>,
) -> HashMap<K, SpentRow> {
    let slices = &sample.scope.trace.slices;
    let mut found: HashMap<K, SpentRow> = HashMap::new();
    for (key, row, ns) in rows {
        if let Some(unit) = sample.unit_at(slices.start(row)) {
            found.entry(key).or_default().add(unit, ns);
        }
    }
    found
}

/// Launch shape of device work, which is part of the identity of a kernel or copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Shape {
    Grid([u32; 3], [u32; 3]),
    Bytes(u64),
    Unknown,
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Grid([x, y, z], [a, b, c]) => {
                write!(f, "grid {x}x{y}x{z} block {a}x{b}x{c}")
            }
            Self::Bytes(bytes) => write!(f, "{bytes} bytes"),
            Self::Unknown => Ok(()),
        }
    }
}

fn device(sample: &RankUnits<'_>) -> HashMap<(StringId, Shape), SpentRow> {
    let scope = sample.scope;
    let slices = &scope.trace.slices;
    let rows = scope.device_rows.iter().map(|&row| {
        let grid = slices.launch_shape.get(row).map(|shape| Shape::Grid(shape.grid, shape.block));
        let bytes = || slices.bytes.get(row).map(|bytes| Shape::Bytes(*bytes));
        let shape = grid.or_else(bytes).unwrap_or(Shape::Unknown);
        ((slices.name[row as usize], shape), row, slices.duration[row as usize])
    });
    collect(sample, rows)
}

/// Returns the duration of the device work that an operator launched itself.
fn own_device(sample: &RankUnits<'_>, row: u32) -> i64 {
    sample.attribution.exclusive(sample.tree, row).device_ns
}

/// Returns the host time of an operator without the time of its children.
fn own_host(sample: &RankUnits<'_>, row: u32) -> i64 {
    sample.tree.own_length(sample.scope.trace, row)
}

fn operators(
    sample: &RankUnits<'_>,
    ns: fn(&RankUnits<'_>, u32) -> i64,
) -> HashMap<StringId, SpentRow> {
    let trace = sample.scope.trace;
    let rows = sample.tree.nodes.iter().copied();
    let operators = rows.filter(|row| trace.kind(*row) == EventKind::Operator);
    let named = operators.map(|row| (trace.slices.name[row as usize], row, ns(sample, row)));
    collect(sample, named)
}

fn calls(sample: &RankUnits<'_>) -> HashMap<StringId, SpentRow> {
    let trace = sample.scope.trace;
    let is_call = |row: &u32| matches!(trace.kind(*row), EventKind::Runtime | EventKind::Driver);
    let slices = &trace.slices;
    let named = |row: u32| (slices.name[row as usize], row, slices.duration[row as usize]);
    collect(sample, trace.rows().filter(is_call).map(named))
}

/// Interned paths of a call tree, where each path is stored as its parent path and a name.
#[derive(Default)]
struct Paths {
    known: HashMap<(Option<u32>, StringId), u32>,
    of: Vec<(Option<u32>, StringId)>,
}

impl Paths {
    fn number(&mut self, parent: Option<u32>, name: StringId) -> u32 {
        *self.known.entry((parent, name)).or_insert_with(|| {
            self.of.push((parent, name));
            self.of.len() as u32 - 1
        })
    }

    fn text(&self, trace: &Trace, path: u32) -> String {
        let step = |path: &u32| self.of[*path as usize].0;
        let all = std::iter::successors(Some(path), step);
        let mut names: Vec<&str> =
            all.map(|path| unnumbered(trace.strings.get(self.of[path as usize].1))).collect();
        names.reverse();
        names.join(INSIDE)
    }
}

fn by_path(sample: &RankUnits<'_>) -> (HashMap<u32, SpentRow>, Paths) {
    let (tree, trace) = (sample.tree, sample.scope.trace);
    let mut paths = Paths::default();
    // The operators around the current node, each as (index of the node after its subtree, path).
    let mut around: Vec<(u32, u32)> = Vec::new();
    let mut rows = Vec::new();
    for (node, &row) in tree.nodes.iter().enumerate() {
        while around.pop_if(|(behind, _)| *behind <= node as u32).is_some() {}
        if trace.kind(row) != EventKind::Operator {
            continue;
        }
        let parent = around.last().map(|(_, path)| *path);
        let path = paths.number(parent, trace.slices.name[row as usize]);
        around.push((tree.range(row).end, path));
        rows.push((path, row, own_device(sample, row)));
    }
    (collect(sample, rows.into_iter()), paths)
}
