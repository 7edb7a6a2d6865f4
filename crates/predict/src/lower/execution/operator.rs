//! What an operator of an execution trace calls: as operators of the calibration did.

use std::collections::BTreeMap;

use trace::execution_trace::{ExecutionTrace, Node, Tensor, Tree, Value};

use super::storage;
use crate::calibration::launches::{Called, Launches, Variant};
use crate::calibration::nearest;
use crate::recording::text_bytes;

/// What an operator does.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Done {
    /// The sizes of its tensors, as the calibration spells them where it knows them.
    pub sizes: String,
    /// Its calls, each with how many times as much work as recorded it launches.
    pub calls: Vec<(Called, f64)>,
    /// Operators inside, or itself, that were never recorded: name, and bytes that it moves if it
    /// does more than give another view of memory.
    pub unknown: Vec<(String, Option<u64>)>,
}

/// An execution trace beside what a calibration knows.
pub struct Knowledge<'a> {
    /// The trace.
    pub trace: &'a ExecutionTrace,
    /// What lies in what.
    pub tree: &'a Tree,
    /// What operators called.
    pub launches: &'a Launches,
    has_accelerator: bool,
}

impl<'a> Knowledge<'a> {
    /// Of a trace.
    pub fn new(trace: &'a ExecutionTrace, tree: &'a Tree, launches: &'a Launches) -> Self {
        let mut all = trace.nodes.iter().flat_map(tensors);
        let has_accelerator = all.any(|tensor| is_on_accelerator(trace, tensor));
        Self { trace, tree, launches, has_accelerator }
    }

    /// A node and all inside, each after the node around it, in order.
    pub fn inside(&self, at: u32) -> Vec<u32> {
        let (mut open, mut found) = (vec![at], Vec::new());
        while let Some(at) = open.pop() {
            found.push(at);
            open.extend(self.tree.children(at).iter().rev());
        }
        found
    }

    /// What an outermost operator does.
    ///
    /// The operators inside do what those of their names and sizes did, or of the nearest sizes.
    /// Where that is not what one of this name and these sizes ever did, it does what that did most
    /// often.
    pub fn of(&self, at: u32) -> Done {
        let node = &self.trace.nodes[at as usize];
        let own = sizes(self.trace, node);
        let by_sizes = self.launches.outer.get(self.trace.name(node));
        let composed = self.composed(at);
        let done = |sizes: String, (variant, scale): (Variant, f64)| Done {
            sizes,
            calls: variant.calls.into_iter().map(|call| (call, scale)).collect(),
            unknown: Vec::new(),
        };
        if let Some((spelt, variants)) = by_sizes.and_then(|known| matching(known, &own)) {
            let is_composed = |variant: &&Variant| is_alike(&variant.calls, &composed.calls);
            return match variants.iter().find(is_composed) {
                Some(variant) => Done {
                    sizes: spelt.clone(),
                    calls: in_common(composed.calls, &variant.calls),
                    unknown: Vec::new(),
                },
                None => done(spelt.clone(), (self.usual(at, variants), 1.0)),
            };
        }
        // Of one that nobody knows inside, what it did with other sizes says more.
        let near = by_sizes.filter(|_| !composed.unknown.is_empty());
        match near.and_then(|by_sizes| self.nearest((at, &own), by_sizes)) {
            Some(near) => done(own, near),
            None => Done { sizes: own, ..composed },
        }
    }

    /// What the operators inside a node do, and the node itself after them.
    fn composed(&self, at: u32) -> Done {
        let mut done = Done::default();
        for at in self.inside_out(at) {
            let node = &self.trace.nodes[at as usize];
            let name = self.trace.name(node);
            if super::order::is_label(self.trace, at) {
                continue;
            }
            if let Some(by_sizes) = self.launches.inner.get(name) {
                let own = sizes(self.trace, node);
                let exact = matching(by_sizes, &own).map(|(_, all)| (self.usual(at, all), 1.0));
                let found = exact.or_else(|| self.nearest((at, &own), by_sizes));
                let calls = found.map(|(variant, scale)| (variant.calls, scale));
                let calls = calls.filter(|_| self.is_on_device(at) != Some(false));
                if let Some((calls, scale)) = calls {
                    done.calls.extend(calls.into_iter().map(|call| (call, scale)));
                }
            } else if !self.launches.seen.contains(name) {
                let is_leaf = self.tree.children(at).is_empty();
                let moved = is_leaf.then(|| self.moved(node)).flatten();
                done.unknown.push((name.to_owned(), moved));
            }
        }
        done
    }

    /// A node after all inside: an operator launches when those have prepared what it needs.
    fn inside_out(&self, at: u32) -> Vec<u32> {
        let (mut open, mut found) = (vec![at], Vec::new());
        while let Some(at) = open.pop() {
            found.push(at);
            open.extend(self.tree.children(at));
        }
        found.reverse();
        found
    }

    /// The variant of the nearest sizes, and how many times as much it moves here.
    fn nearest(
        &self,
        (at, own): (u32, &str),
        by_sizes: &BTreeMap<String, Vec<Variant>>,
    ) -> Option<(Variant, f64)> {
        let known: Vec<(&str, f64)> = by_sizes.keys().map(|sizes| (sizes.as_str(), 1.0)).collect();
        let near = nearest::find(&known, own, 0.0).map(|near| known[near.place].0);
        let most = || {
            let all =
                by_sizes.iter().max_by_key(|(_, all)| all.iter().map(|one| one.count).sum::<u64>());
            all.map(|(sizes, _)| sizes.as_str())
        };
        let sizes = near.or_else(most)?;
        let (own, other) = (text_bytes(own), text_bytes(sizes));
        let scale = if own > 0 && other > 0 { own as f64 / other as f64 } else { 1.0 };
        Some((self.usual(at, by_sizes.get(sizes)?), scale))
    }

    /// The most frequent of the variants that launch, for what touches memory of a device; of the
    /// others, for what does not.
    fn usual(&self, at: u32, variants: &[Variant]) -> Variant {
        let launches =
            |variant: &&Variant| variant.calls.iter().any(|call| !call.launches.is_empty());
        let most = |launching: Option<bool>| {
            let fits = |one: &&Variant| launching.is_none_or(|wanted| launches(one) == wanted);
            // The first of several.
            variants.iter().rev().filter(fits).max_by_key(|variant| variant.count)
        };
        let found = match self.is_on_device(at) {
            Some(false) => most(Some(false)),
            Some(true) => most(Some(true)).or_else(|| most(None)),
            None => most(None),
        };
        found.cloned().unwrap_or(Variant { count: 0, calls: Vec::new() })
    }

    /// Whether anything that an operator touches lies on a device; `None` where nothing says so.
    fn is_on_device(&self, at: u32) -> Option<bool> {
        let nodes = self.inside(at).into_iter().map(|at| &self.trace.nodes[at as usize]);
        let all: Vec<&Tensor> = nodes.flat_map(tensors).collect();
        let is_on = all.iter().any(|tensor| is_on_accelerator(self.trace, tensor));
        (self.has_accelerator && !all.is_empty()).then_some(is_on)
    }

    /// Bytes that an operator reads and writes; `None` if it writes nothing.
    fn moved(&self, node: &Node) -> Option<u64> {
        let written = storage::written(self.trace, node);
        let counts =
            |tensor: &&Tensor| !self.has_accelerator || is_on_accelerator(self.trace, tensor);
        if !written.iter().any(counts) {
            return None;
        }
        let all = storage::read(node).into_iter().chain(written).filter(counts);
        let bytes = all.map(|tensor| tensor.elements.saturating_mul(tensor.element_bytes));
        Some(bytes.fold(0, u64::saturating_add))
    }
}

fn tensors(node: &Node) -> impl Iterator<Item = &Tensor> {
    let all = node.inputs.iter().chain(&node.outputs);
    all.flat_map(|argument| argument.value.tensors()).filter(|tensor| tensor.storage != 0)
}

fn is_on_accelerator(trace: &ExecutionTrace, tensor: &Tensor) -> bool {
    let device = trace.text(tensor.device);
    !device.is_empty() && !device.starts_with("cpu") && !device.starts_with("meta")
}

/// What is known of the same sizes, and how these are spelt.
fn matching<'a>(
    by_sizes: &'a BTreeMap<String, Vec<Variant>>,
    own: &str,
) -> Option<(&'a String, &'a Vec<Variant>)> {
    by_sizes.get_key_value(own).or_else(|| {
        let wanted = canonical(own);
        by_sizes.iter().find(|(known, _)| canonical(known) == wanted)
    })
}

/// Whether calls launch and await the same, whatever they are samples of.
fn is_alike(recorded: &[Called], composed: &[(Called, f64)]) -> bool {
    let works = |call: &Called| -> Vec<(String, i32)> {
        call.launches.iter().map(|work| (work.name.clone(), work.stream)).collect()
    };
    let same = |(a, (b, _)): (&Called, &(Called, f64))| {
        (&a.name, &a.awaits, a.returns) == (&b.name, &b.awaits, b.returns) && works(a) == works(b)
    };
    recorded.len() == composed.len() && recorded.iter().zip(composed).all(same)
}

/// Calls by the operators inside, their works by those samples that the operator around them has
/// too.
fn in_common(mut composed: Vec<(Called, f64)>, outer: &[Called]) -> Vec<(Called, f64)> {
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

/// The sizes of a node's inputs as recordings have them: `512x1024 float, 1024 float`.
pub fn sizes(trace: &ExecutionTrace, node: &Node) -> String {
    let one = |value: &Value, kind: &str| match value {
        Value::Tensor(tensor) if tensor.storage == 0 && tensor.elements == 0 => String::new(),
        Value::Tensor(tensor) => {
            let sizes: Vec<String> = tensor.shape.iter().map(ToString::to_string).collect();
            let element = match trace.text(tensor.dtype) {
                "long" => "long int",
                other => other,
            };
            format!("{} {element}", sizes.join("x")).trim().to_owned()
        }
        Value::Bool(_) | Value::Int(_) | Value::Float(_) => "Scalar".to_owned(),
        Value::List(_) if kind.starts_with("GenericList[Tensor(") => "TensorList".to_owned(),
        _ => String::new(),
    };
    let inputs = node.inputs.iter();
    let parts: Vec<String> =
        inputs.map(|input| one(&input.value, trace.text(input.kind))).collect();
    parts.join(", ").trim_end_matches([',', ' ']).to_owned()
}

/// Sizes without the types of what has none, which recordings spell in several ways.
fn canonical(sizes: &str) -> String {
    let kept = |part: &str| match part.starts_with(|letter: char| letter.is_ascii_digit()) {
        true => part.to_owned(),
        false => String::new(),
    };
    let parts: Vec<String> = sizes.split(", ").map(kept).collect();
    parts.join(", ").trim_end_matches([',', ' ']).to_owned()
}
