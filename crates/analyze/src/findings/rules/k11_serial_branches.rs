//! Rule K11 finds branches of a model that run one after the other, although each of them leaves
//! the device mostly empty.

use std::collections::BTreeMap;

use trace::store::TrackId;

use super::k01_few_blocks;
use crate::facts::job::{RankFacts, Tensors, WindowKernel};
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::text::time;

pub(super) const RULE: Rule = Rule {
    id: "K11",
    title: "branches one after the other",
    category: FindingCategory::Kernel,
    side: CureSide::Device,
    confidence: Confidence::Low,
    limits: &[
        limit("branches", 4.0, "minimum number of modules of one kind in a row"),
        limit(
            "blocks_per_sm",
            1.0,
            "maximum blocks per multiprocessor of each kernel of the modules",
        ),
        limit(
            "time_pct",
            1.0,
            "minimum time that running the modules side by side saves, percent of the window",
        ),
    ],
    page: page!("K11"),
    detect: Detect::Rank(detect),
};

const MODULE: &str = "nn.Module: ";
/// Parts of the names of modules whose children always run one after the other.
const CHAINS: [&str; 6] = ["Sequential", "Encoder", "Decoder", "Stack", "Chain", "MLP"];
/// Operators whose result has as many elements as their largest input.
const ELEMENTWISE: [&str; 10] = [
    "aten::relu",
    "aten::gelu",
    "aten::silu",
    "aten::sigmoid",
    "aten::tanh",
    "aten::add",
    "aten::mul",
    "aten::dropout",
    "aten::native_dropout",
    "aten::native_layer_norm",
];

/// Modules of one kind within one run of their parent, with the kernels of each module.
struct Branches<'a> {
    modules: Vec<u32>,
    kernels: Vec<Vec<&'a WindowKernel>>,
    path: BranchPath,
}

/// Whether operators may pass data from one module to the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BranchPath {
    /// The next module may read what the module before it, or an operator between them, has
    /// written.
    Possible,
    /// The tensor sizes rule out that a module reads what the module before it has written.
    RuledOut,
    /// The sizes of the tensors are not known.
    Unknown,
}

impl Branches<'_> {
    fn all(&self) -> impl Iterator<Item = &WindowKernel> {
        self.kernels.iter().flatten().copied()
    }

    /// Iterates over the total kernel time of each module.
    fn times(&self) -> impl Iterator<Item = i64> {
        self.kernels.iter().map(|kernels| kernels.iter().map(|kernel| kernel.duration).sum())
    }

    /// Returns the share of the multiprocessors that the modules fill together, if all their
    /// kernels have launch shapes.
    fn fill(&self) -> Option<f64> {
        let filled = |kernel: &WindowKernel| Some(kernel.duration as f64 * kernel.blocks_per_sm()?);
        let filled: f64 = self.all().map(filled).sum::<Option<f64>>()?;
        Some(filled / (self.times().sum::<i64>() as f64).max(1.0))
    }

    /// Returns the time that is saved if the modules run side by side. The modules together still
    /// take at least the time of the longest one, and at least the time of all their work on a full
    /// device.
    fn saved_ns(&self, rank: &RankFacts<'_>) -> i64 {
        let time: i64 = self.times().sum();
        let longest = self.times().max().unwrap_or_default();
        let least = (longest as f64).max(self.fill().unwrap_or_default() * time as f64);
        let kernels: Vec<&WindowKernel> = self.all().collect();
        let alone = k01_few_blocks::alone(rank, &kernels);
        let alone_ns: f64 =
            kernels.iter().zip(alone).map(|(kernel, alone)| kernel.duration as f64 * alone).sum();
        ((time as f64 - least) * alone_ns / (time as f64).max(1.0)) as i64
    }

    /// Returns the kernels of all modules except the longest one.
    fn hidden(&self) -> Vec<u32> {
        let times: Vec<i64> = self.times().collect();
        let longest = (0..times.len()).max_by_key(|at| times[*at]);
        let others = self.kernels.iter().enumerate().filter(|(at, _)| Some(*at) != longest);
        others.flat_map(|(_, kernels)| kernels.iter().map(|kernel| kernel.row)).collect()
    }

    /// Returns whether the recording proves that running the modules in parallel would take less
    /// time.
    fn is_proven(&self) -> bool {
        self.path == BranchPath::RuledOut && self.fill().is_some()
    }
}

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    if rank.python().nodes.is_empty() {
        return None;
    }
    let mut groups = branches(rank, limits);
    groups.retain(|group| group.path != BranchPath::Possible);
    // Branches whose gain is proven are not merged with branches whose gain is not.
    let are_proven = groups.iter().any(Branches::is_proven);
    groups.retain(|group| group.is_proven() == are_proven);
    let high: i64 = groups.iter().map(|group| group.saved_ns(rank)).sum();
    let share = rank.share(high);
    let largest =
        groups.iter().max_by_key(|group| (group.saved_ns(rank), group.modules.first()))?;
    if share < limits.value("time_pct") {
        return None;
    }
    let fill = largest.fill();
    let what = format!(
        "{} modules such as {} run one after the other on one stream{}: side by side they would take \
         {} less per step ({share:.1} % of the window){}.",
        largest.modules.len(),
        rank.name(largest.modules[0]).trim_start_matches(MODULE),
        match fill {
            Some(fill) => format!(
                " and fill {:.0} % of the multiprocessors, so that others are free",
                100.0 * fill
            ),
            None => String::new(),
        },
        time(rank.per_step(high)),
        match (largest.path, fill) {
            (BranchPath::RuledOut, Some(_)) =>
                ", and no tensor has the sizes to lead from one to the next",
            (BranchPath::RuledOut, None) =>
                ", if multiprocessors are free, which this recording does not show",
            _ =>
                ", if no operator leads from one to the next, which only the sizes of tensors could show",
        }
    );
    let advice = "Where no path of operators joins them, run them on several streams, batch them into \
                  one operator (bmm, vmap, grouped kernels), or capture them as branches of a CUDA \
                  graph.";
    let rows: Vec<u32> = groups.iter().flat_map(Branches::hidden).collect();
    let edits = vec![rank.edit(rows.clone(), Action::Overlap)];
    let found = RuleFindings::new(what, advice)
        .about(kind(rank.name(largest.modules[0])))
        .number("branches_max", largest.modules.len() as f64);
    let found = found.shown_by(rank.collect_evidence(rows));
    // Without proof, the finding only asks the user to check and promises no saving.
    Some(if are_proven { found.saves(high, edits) } else { found })
}

/// Returns the operators whose tensors decide whether data flows from one module to the next.
pub(super) fn operators(rank: &RankFacts<'_>) -> Vec<u32> {
    let limits = RuleLimits { rule: &RULE, changed: None };
    let groups = branches(rank, &limits);
    let modules = groups.iter().flat_map(|group| &group.kernels);
    let ends = modules.flat_map(|kernels| [kernels.first(), kernels.last()]);
    ends.flatten().filter_map(|kernel| kernel.owner).collect()
}

fn branches<'a>(rank: &'a RankFacts<'_>, limits: &RuleLimits<'_>) -> Vec<Branches<'a>> {
    let python = rank.python();
    let modules = rank.names(|name| name.starts_with(MODULE));
    let module_above =
        |row: u32| python.ancestors(row).find(|around| rank.is_named(&modules, *around));
    // Group the modules by the run of their parent and by kind.
    let mut branches: BTreeMap<(u32, &str), Vec<u32>> = BTreeMap::new();
    for row in python.nodes.iter().filter(|row| rank.is_named(&modules, **row)) {
        let parent = module_above(*row);
        let is_chain = |parent: &u32| CHAINS.iter().any(|part| rank.name(*parent).contains(part));
        if let Some(parent) = parent.filter(|parent| !is_chain(parent)) {
            branches.entry((parent, kind(rank.name(*row)))).or_default().push(*row);
        }
    }
    branches.retain(|_, modules| modules.len() as f64 >= limits.value("branches"));
    if branches.is_empty() {
        return Vec::new();
    }
    // Assign each kernel to its nearest module and to the modules around that one, and note when
    // each thread launched.
    let mut kernels: BTreeMap<u32, Vec<&WindowKernel>> = BTreeMap::new();
    let mut launches: Vec<(TrackId, i64)> = Vec::new();
    for kernel in rank.compute_kernels() {
        let Some(call) = rank.scope.links().call(kernel.row) else { continue };
        let track = rank.scope.trace.slices.track[call as usize];
        launches.push((track, rank.start(call)));
        let Some(frame) = python.deepest_at(track, rank.start(call)) else { continue };
        let around = std::iter::once(frame).chain(python.ancestors(frame));
        for module in around.filter(|row| rank.is_named(&modules, *row)) {
            kernels.entry(module).or_default().push(kernel);
        }
    }
    launches.sort_unstable();
    let is_small = |kernel: &&WindowKernel| {
        kernel.blocks_per_sm().is_none_or(|blocks| blocks < limits.value("blocks_per_sm"))
    };
    let group = |modules: Vec<u32>| {
        let module_kernels = |module: &u32| kernels.get(module).cloned().unwrap_or_default();
        let kernels: Vec<Vec<&WindowKernel>> = modules.iter().map(module_kernels).collect();
        let mut streams = kernels.iter().flatten().map(|one| rank.scope.trace.stream(one.row));
        let first = streams.next()?;
        let is_one = streams.all(|stream| stream == first);
        let all_small = kernels.iter().all(|of| !of.is_empty() && of.iter().all(is_small));
        let path = path(rank, &launches, &modules, &kernels);
        let group = Branches { modules, kernels, path };
        // Modules with unknown data flow and unknown launch shapes give no finding.
        let is_known = path == BranchPath::RuledOut || group.fill().is_some();
        (is_one && all_small && is_known).then_some(group)
    };
    branches.into_values().filter_map(group).collect()
}

/// Returns whether data may flow from each module to the next, either through operators launched
/// between the two or because the second module may read the result of the first.
fn path(
    rank: &RankFacts<'_>,
    launches: &[(TrackId, i64)],
    modules: &[u32],
    kernels: &[Vec<&WindowKernel>],
) -> BranchPath {
    let track = |module: u32| rank.scope.trace.slices.track[module as usize];
    // Work launched between two modules may read the result of the first and feed the second.
    let has_launch_between = |pair: &[u32]| {
        let behind = |time: i64| launches.partition_point(|one| *one < (track(pair[0]), time));
        behind(rank.end(pair[0])) < behind(rank.start(pair[1]))
    };
    if modules.windows(2).any(has_launch_between) {
        return BranchPath::Possible;
    }
    let operator = |kernel: Option<&&WindowKernel>| {
        let owner = kernel?.owner?;
        Some(SizedOperator { name: rank.name(owner), tensors: rank.tensors(owner)? })
    };
    let passes = |pair: &[Vec<&WindowKernel>]| {
        let (last, next) = (operator(pair[0].last())?, operator(pair[1].first())?);
        // A tensor that passes from one module to the next has the same number of elements on both
        // sides.
        Some(next.read_elements().contains(&last.written_elements()?))
    };
    match kernels.windows(2).map(passes).collect::<Option<Vec<bool>>>() {
        None => BranchPath::Unknown,
        Some(passes) if passes.contains(&true) => BranchPath::Possible,
        Some(_) => BranchPath::RuledOut,
    }
}

/// An operator whose tensors are known.
struct SizedOperator<'a> {
    name: &'a str,
    tensors: &'a Tensors,
}

impl SizedOperator<'_> {
    /// Returns the two factors of a matrix product, which are the rows and the weights.
    fn factors(&self) -> Option<[&[u64]; 2]> {
        let first = match self.name {
            "aten::mm" | "aten::bmm" | "aten::linear" | "aten::matmul" => 0,
            "aten::addmm" | "aten::baddbmm" => 1,
            _ => return None,
        };
        let dims = &self.tensors.dims;
        Some([dims.get(first)?.as_slice(), dims.get(first + 1)?.as_slice()])
    }

    /// Returns the number of elements that an operator writes, if its tensors are known.
    fn written_elements(&self) -> Option<u64> {
        if let Some([rows, weights]) = self.factors() {
            let columns = match self.name {
                "aten::linear" => weights.len().checked_sub(2).map(|at| weights[at]),
                _ => weights.last().copied(),
            };
            let inner = rows.last().copied().filter(|size| *size > 0)?;
            return Some(elements(rows) / inner * columns?);
        }
        let is_elementwise = ELEMENTWISE.iter().any(|name| self.name.starts_with(name));
        let largest = self.tensors.dims.iter().map(|dims| elements(dims)).max();
        largest.filter(|_| is_elementwise)
    }

    /// Returns the number of elements of each input that another operator may have written.
    fn read_elements(&self) -> Vec<u64> {
        match self.factors() {
            Some([rows, _]) => vec![elements(rows)],
            None => self.tensors.dims.iter().map(|dims| elements(dims)).collect(),
        }
    }
}

fn elements(dims: &[u64]) -> u64 {
    dims.iter().product()
}

/// Removes the number from a module name such as `nn.Module: Tower_3`.
fn kind(name: &str) -> &str {
    name.rsplit_once('_').map_or(name, |(kind, _)| kind)
}
