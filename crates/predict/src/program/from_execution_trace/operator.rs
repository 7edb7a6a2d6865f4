//! Predicts the runtime calls of an execution trace's operators from the recorded operators of a
//! calibration.

use std::collections::BTreeMap;

use trace::execution_trace::{ExecutionTrace, Node, NodeForest, NodeTensor, TraceValue};

use super::scaled_calls::{Scale, ScaledCalls};
use super::sort::{self, Sort};
use super::storage;
use crate::calibration::launches::{self, ApiCall, LaunchedWork, Launches, Variant};
use crate::calibration::opaque::OpaqueCosts;
use crate::calibration::{Calibration, Key, nearest};
use crate::recording::text_bytes;

/// The runtime calls of one operator of an execution trace, as predicted from the calibration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OperatorCalls {
    /// Tensor sizes, in the spelling of the calibration if it contains them.
    pub sizes: String,
    pub calls: ScaledCalls,
    /// Names of operators without samples. The number is the bytes that the operator moves, or
    /// `None` if it only creates views.
    pub unknown: Vec<(String, Option<u64>)>,
}

/// Predicts the runtime calls of an execution trace's operators from the recorded operators of a
/// calibration.
pub struct LaunchPredictor<'a> {
    pub trace: &'a ExecutionTrace,
    pub tree: &'a NodeForest,
    calibration: &'a Calibration,
    launches: &'a Launches,
    opaque: OpaqueCosts,
    has_accelerator: bool,
    /// Sorts of ids, by the index of the node that performs them.
    sorts: BTreeMap<u32, Sort>,
    /// Forward operators by the sequence number that they share with their backward operators.
    forward: BTreeMap<i64, u32>,
}

impl<'a> LaunchPredictor<'a> {
    /// Prepares the predictor for the operators of one trace.
    pub fn new(
        trace: &'a ExecutionTrace,
        tree: &'a NodeForest,
        calibration: &'a Calibration,
    ) -> Self {
        let mut all = trace.nodes.iter().flat_map(tensors);
        let has_accelerator = all.any(|tensor| is_on_accelerator(trace, tensor));
        let (launches, opaque) =
            (&calibration.launches, OpaqueCosts::from_calibration(calibration));
        let sorts = sort::find_sorts(trace);
        // The last operator of a number is the one that has the backward operator.
        let numbered = (0u32..).zip(&trace.nodes);
        let numbered = numbered.filter(|(_, node)| node.sequence >= 0 && node.forward_thread == 0);
        let forward = numbered.map(|(at, node)| (node.sequence, at)).collect();
        Self { trace, tree, calibration, launches, opaque, has_accelerator, sorts, forward }
    }

    /// Returns the sizes of an operator's inputs as text. A backward operator without inputs has
    /// the sizes of its forward operator, as in recordings.
    fn sizes(&self, at: u32) -> String {
        let node = &self.trace.nodes[at as usize];
        let own = sizes(self.trace, node);
        if !own.is_empty() || node.forward_thread == 0 {
            return own;
        }
        let forward = self.forward.get(&node.sequence);
        forward.map_or(own, |at| sizes(self.trace, &self.trace.nodes[*at as usize]))
    }

    /// Returns a node and its descendants in preorder.
    pub fn inside(&self, at: u32) -> Vec<u32> {
        let (mut open, mut found) = (vec![at], Vec::new());
        while let Some(at) = open.pop() {
            found.push(at);
            open.extend(self.tree.children(at).iter().rev());
        }
        found
    }

    /// Predicts the calls of an outermost operator. The kernels of an operator that sorts ids are
    /// adapted to the number of ids.
    pub fn predict_calls(&self, at: u32) -> OperatorCalls {
        let done = self.recorded(at);
        match self.sort_in(at) {
            Some(sort) => OperatorCalls { calls: sort.adapted(done.calls), ..done },
            None => done,
        }
    }

    /// Returns the sort that an operator or one of its descendants performs, if there is one.
    fn sort_in(&self, at: u32) -> Option<Sort> {
        if self.sorts.is_empty() {
            return None;
        }
        self.inside(at).iter().find_map(|node| self.sorts.get(node).copied())
    }

    /// Predicts the calls of an outermost operator without adapting them to sorts.
    ///
    /// Each nested operator makes the calls that were recorded for its name and sizes, or for the
    /// nearest sizes. If the outermost operator was recorded with its sizes, but never with this
    /// sequence, its most frequent recorded sequence is used instead.
    fn recorded(&self, at: u32) -> OperatorCalls {
        let node = &self.trace.nodes[at as usize];
        let own = self.sizes(at);
        let by_sizes = self.launches.outer.get(self.trace.name(node));
        let composed = self.composed(at);
        let done =
            |sizes: String, calls: ScaledCalls| OperatorCalls { sizes, calls, unknown: Vec::new() };
        let found = by_sizes.map_or_else(Vec::new, |known| matching(known, &own));
        if let Some((first, _)) = found.first() {
            let all =
                found.iter().flat_map(|(spelt, all)| all.iter().map(move |one| (*spelt, one)));
            let all: Vec<(&String, &Variant)> = all.collect();
            let alike = all.iter().filter(|(_, one)| is_alike(&one.calls, &composed.calls));
            let nearest = alike.rev().max_by_key(|(_, one)| shared(&composed.calls, &one.calls));
            return match nearest {
                Some((spelt, variant)) => OperatorCalls {
                    sizes: (*spelt).clone(),
                    calls: in_common(composed.calls, &variant.calls),
                    unknown: Vec::new(),
                },
                None => {
                    let mut every = Vec::new();
                    all.iter().for_each(|(_, one)| launches::add_to(&mut every, (*one).clone()));
                    done((*first).clone(), as_recorded(self.usual(at, &every)))
                }
            };
        }
        // If nested operators are unknown, calls of the operator itself at other sizes are the
        // better prediction.
        let near = by_sizes.filter(|_| !composed.unknown.is_empty());
        match near.and_then(|by_sizes| self.nearest(at, &own, by_sizes)) {
            Some(near) => done(own, near),
            None => OperatorCalls { sizes: own, ..composed },
        }
    }

    /// Predicts the calls of all nested operators, and then the calls of the node itself.
    fn composed(&self, at: u32) -> OperatorCalls {
        let mut done = OperatorCalls::default();
        for at in inside_out(self.tree, at) {
            let node = &self.trace.nodes[at as usize];
            let name = self.trace.name(node);
            if super::order::is_label(self.trace, at) {
                continue;
            }
            if let Some(by_sizes) = self.launches.inner.get(name) {
                let own = self.sizes(at);
                let exact = matching(by_sizes, &own).first().map(|(_, all)| self.usual(at, all));
                let found = exact.map(as_recorded).or_else(|| self.nearest(at, &own, by_sizes));
                let calls = found.filter(|_| self.is_on_device(at) != Some(false));
                done.calls.extend(calls.into_iter().flatten());
            } else if !self.launches.seen.contains(name) {
                let is_leaf = self.tree.children(at).is_empty();
                let moved = is_leaf.then(|| self.moved(node)).flatten();
                done.unknown.push((name.to_owned(), moved));
            }
        }
        done
    }

    /// Returns the calls recorded at the nearest sizes, scaled to the requested sizes.
    fn nearest(
        &self,
        at: u32,
        own: &str,
        by_sizes: &BTreeMap<String, Vec<Variant>>,
    ) -> Option<ScaledCalls> {
        let known: Vec<(&str, f64)> = by_sizes.keys().map(|sizes| (sizes.as_str(), 1.0)).collect();
        let near = nearest::find(&known, own, 0.0).map(|near| known[near.place].0);
        let count = |all: &Vec<Variant>| all.iter().map(|one| one.count).sum::<u64>();
        let most = || by_sizes.iter().max_by_key(|(_, all)| count(all));
        let sizes = near.or_else(|| most().map(|(sizes, _)| sizes.as_str()))?;
        let moved = [own, sizes].map(text_bytes);
        let bytes = if moved.contains(&0) { 1.0 } else { moved[0] as f64 / moved[1] as f64 };
        let scaled = |call: ApiCall| {
            let ns = call.launches.iter().map(|work| self.recorded_ns(work)).sum();
            let time = self.opaque.growth(sizes, ns, own);
            (call, Scale { time, bytes })
        };
        Some(self.usual(at, by_sizes.get(sizes)?).calls.into_iter().map(scaled).collect())
    }

    /// Returns the recorded duration of a work, weighted over its details.
    fn recorded_ns(&self, work: &LaunchedWork) -> f64 {
        let total: u64 = work.details.values().sum();
        let one = |(detail, count): (&String, &u64)| {
            let (name, detail) = (work.name.clone(), detail.clone());
            let samples = self.calibration.works.get(&Key { class: work.kind, name, detail });
            let centre = samples.and_then(|of| of.centre(&self.calibration.recordings));
            centre.unwrap_or_default() * *count as f64 / total.max(1) as f64
        };
        work.details.iter().map(one).sum()
    }

    /// Chooses among the recorded call sequences of an operator. If the operator touches device
    /// memory, it is the most frequent sequence with launches, and otherwise the most frequent one
    /// without launches.
    fn usual(&self, at: u32, variants: &[Variant]) -> Variant {
        let sort = self.sort_in(at);
        let sorts = |one: &&Variant| sort.is_none_or(|sort| sort.is_done_by(&one.calls));
        let sorting: Vec<&Variant> = variants.iter().filter(sorts).collect();
        let variants =
            if sorting.is_empty() { variants.iter().collect::<Vec<_>>() } else { sorting };
        let launches =
            |variant: &&Variant| variant.calls.iter().any(|call| !call.launches.is_empty());
        let most = |launching: Option<bool>| {
            let fits = |one: &&Variant| launching.is_none_or(|wanted| launches(one) == wanted);
            // `max_by_key` returns the last of equal maxima, so the reversed order yields the first
            // of them.
            variants.iter().copied().rev().filter(fits).max_by_key(|variant| variant.count)
        };
        let found = match self.is_on_device(at) {
            Some(false) => most(Some(false)),
            Some(true) => most(Some(true)).or_else(|| most(None)),
            None => most(None),
        };
        found.cloned().unwrap_or(Variant { count: 0, calls: Vec::new() })
    }

    /// Returns whether an operator touches device memory, or `None` if its tensors do not show it.
    fn is_on_device(&self, at: u32) -> Option<bool> {
        let nodes = self.inside(at).into_iter().map(|at| &self.trace.nodes[at as usize]);
        let all: Vec<&NodeTensor> = nodes.flat_map(tensors).collect();
        let is_on = all.iter().any(|tensor| is_on_accelerator(self.trace, tensor));
        (self.has_accelerator && !all.is_empty()).then_some(is_on)
    }

    /// Returns the number of bytes that an operator reads and writes, or `None` if it writes
    /// nothing.
    fn moved(&self, node: &Node) -> Option<u64> {
        let written = storage::written(self.trace, node);
        let counts =
            |tensor: &&NodeTensor| !self.has_accelerator || is_on_accelerator(self.trace, tensor);
        if !written.iter().any(counts) {
            return None;
        }
        let all = storage::read(node).into_iter().chain(written).filter(counts);
        let bytes = all.map(|tensor| tensor.elements.saturating_mul(tensor.element_bytes));
        Some(bytes.fold(0, u64::saturating_add))
    }
}

/// Returns a node and its descendants in postorder. An operator launches its own work after its
/// nested operators have prepared its inputs.
pub fn inside_out(tree: &NodeForest, at: u32) -> Vec<u32> {
    let (mut open, mut found) = (vec![at], Vec::new());
    while let Some(at) = open.pop() {
        found.push(at);
        open.extend(tree.children(at));
    }
    found.reverse();
    found
}

fn tensors(node: &Node) -> impl Iterator<Item = &NodeTensor> {
    let all = node.inputs.iter().chain(&node.outputs);
    all.flat_map(|argument| argument.value.tensors()).filter(|tensor| tensor.storage != 0)
}

/// Returns whether a tensor lies on an accelerator rather than in host memory.
pub fn is_on_accelerator(trace: &ExecutionTrace, tensor: &NodeTensor) -> bool {
    let device = trace.text(tensor.device);
    !device.is_empty() && !device.starts_with("cpu") && !device.starts_with("meta")
}

/// Finds the variants recorded at the given sizes, with the spelling of these sizes in the
/// calibration. An operator without sizes may be a backward operator, whose sizes are those of a
/// forward operator that its execution trace does not name, so all sizes match.
fn matching<'a>(
    by_sizes: &'a BTreeMap<String, Vec<Variant>>,
    own: &str,
) -> Vec<(&'a String, &'a Vec<Variant>)> {
    let wanted = canonical(own);
    let exact = by_sizes.get_key_value(own);
    let exact = exact.or_else(|| by_sizes.iter().find(|(known, _)| canonical(known) == wanted));
    match exact {
        Some(exact) => vec![exact],
        None if own.is_empty() => by_sizes.iter().collect(),
        None => Vec::new(),
    }
}

fn as_recorded(variant: Variant) -> ScaledCalls {
    variant.calls.into_iter().map(|call| (call, Scale::ONE)).collect()
}

/// Returns whether two call sequences launch the same works and await the same streams. Details of
/// sample keys may differ.
fn is_alike(recorded: &[ApiCall], composed: &[(ApiCall, Scale)]) -> bool {
    let works = |call: &ApiCall| -> Vec<(String, i32)> {
        call.launches.iter().map(|work| (work.name.clone(), work.stream)).collect()
    };
    let same = |(a, (b, _)): (&ApiCall, &(ApiCall, Scale))| {
        (&a.name, &a.awaits, a.returns) == (&b.name, &b.awaits, b.returns) && works(a) == works(b)
    };
    recorded.len() == composed.len() && recorded.iter().zip(composed).all(same)
}

/// Counts the works of two alike call sequences that have a sample key in common.
fn shared(composed: &[(ApiCall, Scale)], outer: &[ApiCall]) -> usize {
    let own = composed.iter().flat_map(|(call, _)| &call.launches);
    let pairs = own.zip(outer.iter().flat_map(|call| &call.launches));
    let is_shared = |(own, outer): &(&LaunchedWork, &LaunchedWork)| {
        own.details.keys().any(|detail| outer.details.contains_key(detail))
    };
    pairs.filter(is_shared).count()
}

/// Restricts the sample keys of composed works to the keys that the outer operator recorded as
/// well.
fn in_common(mut composed: ScaledCalls, outer: &[ApiCall]) -> ScaledCalls {
    let works = outer.iter().flat_map(|call| &call.launches);
    let own = composed.iter_mut().flat_map(|(call, _)| &mut call.launches);
    for (own, outer) in own.zip(works) {
        let is_common = |detail: &String| outer.details.contains_key(detail);
        if own.details.keys().any(is_common) {
            own.details.retain(|detail, _| outer.details.contains_key(detail));
        }
    }
    composed
}

/// Formats the sizes of a node's inputs as recordings do, such as `512x1024 float, 1024 float`.
pub fn sizes(trace: &ExecutionTrace, node: &Node) -> String {
    let one = |value: &TraceValue, kind: &str| match value {
        TraceValue::Tensor(tensor) if tensor.storage == 0 && tensor.elements == 0 => String::new(),
        TraceValue::Tensor(tensor) => {
            let sizes: Vec<String> = tensor.shape.iter().map(ToString::to_string).collect();
            let element = match trace.text(tensor.dtype) {
                "long" => "long int",
                other => other,
            };
            format!("{} {element}", sizes.join("x")).trim().to_owned()
        }
        TraceValue::Bool(_) | TraceValue::Int(_) | TraceValue::Float(_) => "Scalar".to_owned(),
        TraceValue::List(_) if kind.starts_with("GenericList[Tensor(") => "TensorList".to_owned(),
        _ => String::new(),
    };
    let inputs = node.inputs.iter();
    let parts: Vec<String> =
        inputs.map(|input| one(&input.value, trace.text(input.kind))).collect();
    parts.join(", ").trim_end_matches([',', ' ']).to_owned()
}

/// Removes the types of inputs without sizes, because recordings spell these types in several ways.
fn canonical(sizes: &str) -> String {
    let kept = |part: &str| match part.starts_with(|letter: char| letter.is_ascii_digit()) {
        true => part.to_owned(),
        false => String::new(),
    };
    let parts: Vec<String> = sizes.split(", ").map(kept).collect();
    parts.join(", ").trim_end_matches([',', ' ']).to_owned()
}
