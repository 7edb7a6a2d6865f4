//! Predicts the runtime calls of an execution trace's operators from the recorded operators of a
//! calibration.

use std::collections::BTreeMap;

use trace::execution_trace::{ExecutionTrace, Node, NodeForest, NodeTensor, TraceValue};

use super::kernels::{LaunchedKernel, NodeKernels, TraceKernels};
use super::order;
use super::scaled_calls::{Scale, ScaledCalls};
use super::sort::{self, Sort};
use super::storage;
use crate::calibration::launches::{self, ApiCall, LaunchedWork, Variant};
use crate::calibration::opaque::OpaqueCosts;
use crate::calibration::price::Prices;
use crate::calibration::{Calibration, Key, nearest};
use crate::program::{Overhead, WorkKind};
use crate::recording::text_bytes;
use kernel_model::Estimate;

/// The runtime calls of one operator of an execution trace, as predicted from the calibration.
#[derive(Clone, Debug, Default)]
pub struct OperatorCalls {
    /// Tensor sizes, in the spelling of the calibration if it contains them.
    pub sizes: String,
    pub calls: ScaledCalls,
    /// Names of operators without samples. The number is the bytes that the operator moves, or
    /// `None` if it only creates views.
    pub unknown: Vec<(String, Option<u64>)>,
    /// Number of nested operators before each call and after the last one, if models price kernels.
    pub nested: Vec<u32>,
    /// Times of the launched kernels by the key of their samples, if models price them.
    pub prices: Vec<(Key<WorkKind>, Estimate)>,
}

/// The kernels of an execution trace and the models that price them.
pub struct ModeledKernels<'a> {
    pub kernels: TraceKernels,
    pub price: &'a dyn Fn(&LaunchedKernel) -> Estimate,
}

/// Runtime call and stream that are assumed for operators that the calibration does not contain.
#[derive(Clone, Copy, Debug)]
pub struct Usual<'a> {
    pub call: &'a str,
    pub stream: i32,
    /// Whether the calibration contains work on a device rather than only host time.
    pub has_device: bool,
}

/// Predicts the runtime calls of an execution trace's operators from the recorded operators of a
/// calibration.
pub struct LaunchPredictor<'a> {
    pub trace: &'a ExecutionTrace,
    pub tree: &'a NodeForest,
    calibration: &'a Calibration,
    pub usual: Usual<'a>,
    opaque: OpaqueCosts,
    has_accelerator: bool,
    /// Sorts of ids, by the index of the node that performs them.
    sorts: BTreeMap<u32, Sort>,
    /// Forward operators by the sequence number that they share with their backward operators.
    forward: BTreeMap<i64, u32>,
    /// Kernels that models price in place of the calibration's kernels.
    modeled: Option<ModeledKernels<'a>>,
}

impl<'a> LaunchPredictor<'a> {
    /// Prepares the predictor for the operators of one trace.
    pub fn new(
        trace: &'a ExecutionTrace,
        tree: &'a NodeForest,
        calibration: &'a Calibration,
        usual: Usual<'a>,
        modeled: Option<ModeledKernels<'a>>,
    ) -> Self {
        let mut all = trace.nodes.iter().flat_map(storage::tensors);
        let has_accelerator = all.any(|tensor| storage::is_on_accelerator(trace, tensor));
        // The last operator of a number is the one that has the backward operator.
        let numbered = (0u32..).zip(&trace.nodes);
        let numbered = numbered.filter(|(_, node)| node.sequence >= 0 && node.forward_thread == 0);
        let forward = numbered.map(|(at, node)| (node.sequence, at)).collect();
        Self {
            trace,
            tree,
            calibration,
            usual,
            opaque: OpaqueCosts::from_calibration(calibration),
            has_accelerator,
            sorts: sort::find_sorts(trace),
            forward,
            modeled,
        }
    }

    /// Returns the tensor sizes of an operator's inputs as text, such as `16x13 float`. A backward
    /// operator without inputs has the sizes of its forward operator, as in recordings. PyTorch
    /// 2.11 writes the number of the forward operator into the node nested in that of autograd's
    /// engine.
    fn sizes(&self, at: u32) -> String {
        let own = sizes(self.trace, &self.trace.nodes[at as usize]);
        if !own.is_empty() {
            return own;
        }
        let nested = std::iter::once(&at).chain(self.tree.children(at));
        let mut nodes = nested.map(|at| &self.trace.nodes[*at as usize]);
        let backward = nodes.find(|node| node.forward_thread != 0);
        let forward = backward.and_then(|node| self.forward.get(&node.sequence));
        forward.map_or(own, |at| sizes(self.trace, &self.trace.nodes[*at as usize]))
    }

    /// Returns whether the calibration has host times of an operator, or is not used for its names.
    pub fn knows(&self, overhead: Overhead, name: &str) -> bool {
        self.modeled.is_none() || Prices::knows(self.calibration, overhead, name)
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
        if let Some(modeled) = &self.modeled {
            return self.modeled_calls(modeled, at);
        }
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
        let by_sizes = self.calibration.launches.outer.get(self.trace.name(node));
        let composed = self.composed(at);
        let done = |sizes: String, calls: ScaledCalls| OperatorCalls {
            sizes,
            calls,
            ..OperatorCalls::default()
        };
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
                    ..OperatorCalls::default()
                },
                None => {
                    let mut every = Vec::new();
                    all.iter().for_each(|(_, one)| launches::add_to(&mut every, (*one).clone()));
                    let usual = self.usual(at, every.iter().collect());
                    done((*first).clone(), as_recorded(usual))
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
        for at in order::inside_out(self.tree, at) {
            let node = &self.trace.nodes[at as usize];
            let name = self.trace.name(node);
            if order::is_label(self.trace, at) {
                continue;
            }
            if let Some(by_sizes) = self.calibration.launches.inner.get(name) {
                let own = self.sizes(at);
                let exact = matching(by_sizes, &own);
                let exact = exact.first().map(|(_, all)| self.usual(at, all.iter().collect()));
                let found = exact.map(as_recorded).or_else(|| self.nearest(at, &own, by_sizes));
                let calls = found.filter(|_| self.is_on_device(at) != Some(false));
                done.calls.extend(calls.into_iter().flatten());
            } else if !self.calibration.launches.seen.contains(name) {
                let is_leaf = self.tree.children(at).is_empty();
                let moved = is_leaf.then(|| self.moved(node)).flatten();
                done.unknown.push((name.to_owned(), moved));
            }
        }
        done
    }

    /// Predicts the calls of an outermost operator whose kernels models price. Each nested operator
    /// makes as many calls as were recorded for it, and otherwise one call for each of its kernels.
    fn modeled_calls(&self, modeled: &ModeledKernels<'a>, at: u32) -> OperatorCalls {
        let node = &self.trace.nodes[at as usize];
        let own = self.sizes(at);
        let by_sizes = self.calibration.launches.outer.get(self.trace.name(node));
        let sizes = match by_sizes.map(|known| matching(known, &own)).as_deref() {
            Some([(spelt, _)]) => (*spelt).clone(),
            _ => own,
        };
        let mut done = OperatorCalls { sizes, ..OperatorCalls::default() };
        let mut nested = 0;
        for at in order::inside_out(self.tree, at) {
            let Some(kernels) = modeled.kernels.get(at) else { continue };
            if order::is_label(self.trace, at) && kernels.kernels.is_empty() {
                continue;
            }
            let name = self.trace.name(&self.trace.nodes[at as usize]);
            let recorded = self.recorded_calls(at, name, kernels);
            let is_seen = recorded.is_some() || self.calibration.launches.seen.contains(name);
            if !kernels.is_listed && !is_seen && !kernels.kernels.is_empty() {
                done.unknown.push((name.to_owned(), None));
            }
            let before = done.calls.len();
            self.launch_modeled(modeled, kernels, recorded.unwrap_or_default(), &mut done);
            nested += 1;
            if done.calls.len() > before {
                done.nested.push(std::mem::take(&mut nested));
                done.nested.resize(done.calls.len(), 0);
            }
        }
        done.nested.push(nested);
        done
    }

    /// Returns the calls that were recorded for an operator itself, at the nearest sizes.
    fn recorded_calls(&self, at: u32, name: &str, kernels: &NodeKernels) -> Option<Vec<ApiCall>> {
        let inner = &self.calibration.launches.inner;
        let by_sizes = inner.get(name).or_else(|| inner.get(kernels.same_as?))?;
        let fits = |variant: &&Variant| {
            let mut works = variant.calls.iter().flat_map(|call| &call.launches);
            works.all(|work| kernels.kernels.iter().all(|kernel| kernel.is_done_by(work)))
        };
        let fitting = by_sizes.iter().filter_map(|(sizes, all)| {
            let all: Vec<&Variant> = all.iter().filter(fits).collect();
            (!all.is_empty()).then_some((sizes.as_str(), all))
        });
        let fitting: Vec<(&str, Vec<&Variant>)> = fitting.collect();
        let own = self.sizes(at);
        let known: Vec<(&str, f64)> = fitting.iter().map(|(sizes, _)| (*sizes, 1.0)).collect();
        let near = nearest::find(&known, &own, 0.0);
        let variants = match near {
            Some(near) => fitting[near.place].1.clone(),
            None => fitting.into_iter().flat_map(|(_, all)| all).collect(),
        };
        if variants.is_empty() {
            return None;
        }
        let usual = self.usual(at, variants);
        // An operator that launches nothing here makes no calls that launch or wait.
        let is_idle = kernels.kernels.is_empty()
            && (kernels.is_listed || self.is_on_device(at) == Some(false));
        let is_plain = |call: &ApiCall| call.launches.is_empty() && call.awaits.is_empty();
        if is_idle && !usual.calls.iter().all(is_plain) {
            return None;
        }
        let calls = as_recorded(usual);
        let calls = self.sorts.get(&at).map_or(calls.clone(), |sort| sort.adapted(calls));
        Some(calls.into_iter().map(|(call, _)| call).collect())
    }

    /// Adds the calls of one operator. Its recorded launches share the time of its modeled
    /// kernels; their kernels have other names and sizes on another device.
    fn launch_modeled(
        &self,
        modeled: &ModeledKernels<'a>,
        node: &NodeKernels,
        mut calls: Vec<ApiCall>,
        done: &mut OperatorCalls,
    ) {
        let launched = |calls: &[ApiCall]| calls.iter().map(|call| call.launches.len()).sum();
        let mut count: usize = launched(&calls);
        if count == 0 {
            for kernel in &node.kernels {
                calls.extend(kernel.calls(self.usual.call, self.usual.stream));
            }
            count = launched(&calls);
        }
        let times = node.kernels.iter().map(|kernel| (modeled.price)(kernel));
        let all = times.fold(Estimate::default(), Estimate::plus);
        let time = all.times(1.0 / count.max(1) as f64);
        let text = node.kernels.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let name = node.kernels.first().map_or("unlisted", |kernel| kernel.pass.name);
        let detail = if count > 1 { format!("{text} in {count} launches") } else { text };
        for call in &mut calls {
            for work in &mut call.launches {
                let is_collective = work.collective.is_some();
                work.name = if is_collective { "nccl" } else { name }.to_owned();
                work.details = [(detail.clone(), 1)].into();
                if let Some(kernel) = node.kernels.first().filter(|_| is_collective) {
                    work.collective = work.collective.take().map(|(name, _)| (name, kernel.bytes));
                }
                let key = Key { class: work.kind, name: work.name.clone(), detail: detail.clone() };
                done.prices.push((key, time));
            }
        }
        done.calls.extend(calls.into_iter().map(|call| (call, Scale::ONE)));
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
        Some(
            self.usual(at, by_sizes.get(sizes)?.iter().collect())
                .calls
                .into_iter()
                .map(scaled)
                .collect(),
        )
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
    fn usual(&self, at: u32, variants: Vec<&Variant>) -> Variant {
        let sort = self.sort_in(at);
        let sorts = |one: &&Variant| sort.is_none_or(|sort| sort.is_done_by(&one.calls));
        let sorting: Vec<&Variant> = variants.iter().copied().filter(sorts).collect();
        let variants = if sorting.is_empty() { variants } else { sorting };
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
        let all: Vec<&NodeTensor> = nodes.flat_map(storage::tensors).collect();
        let is_on = all.iter().any(|tensor| storage::is_on_accelerator(self.trace, tensor));
        (self.has_accelerator && !all.is_empty()).then_some(is_on)
    }

    /// Returns the number of bytes that an operator reads and writes, or `None` if it writes
    /// nothing.
    fn moved(&self, node: &Node) -> Option<u64> {
        let written = storage::written(self.trace, node);
        let counts = |tensor: &&NodeTensor| {
            !self.has_accelerator || storage::is_on_accelerator(self.trace, tensor)
        };
        if !written.iter().any(counts) {
            return None;
        }
        let all = storage::read(node).into_iter().chain(written).filter(counts);
        let bytes = all.map(|tensor| tensor.elements.saturating_mul(tensor.element_bytes));
        Some(bytes.fold(0, u64::saturating_add))
    }
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
