//! Edits of execution traces, which change operators and tensors before a program is built. The
//! program built from the edited trace then has other kernels, prices and dependencies. All other
//! edits change programs and are in the other files of this folder.

mod fuse;
mod nodes;
mod replace;
mod resize;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use schema::pattern;
use trace::execution_trace::{ExecutionTrace, NodeForest, TraceValue};

use self::nodes::{each_tensor, nodes_inside};
use super::Edit;
use super::position::EditPosition;
use super::select::{nothing_selected, split};
use crate::Error;
use crate::program::from_execution_trace::{order, storage};

/// First number of the streams to which `parallelise` moves kernels, above those of recordings.
const STREAMS: i64 = 1_000_000;

/// Applies the edits of tensors to one step of execution traces. The other edits are left to
/// [`super::apply_to_program`], which runs afterwards.
///
/// # Errors
/// [`Error::NothingSelected`] for a pattern without a match, and [`Error::Edit`] for an edit that
/// cannot be applied, with the reason.
pub fn apply(traces: &mut [ExecutionTrace], step: usize, edits: &[Edit]) -> Result<(), Error> {
    for (at, edit) in edits.iter().enumerate() {
        let position = EditPosition { number: at + 1, kind: edit.kind() };
        match edit {
            Edit::Resize { from, to } => {
                for trace in traces.iter_mut() {
                    resize::apply(trace, position, *from, *to)?;
                }
            }
            Edit::Remove { operators } => {
                let selected = select(traces, step, position, "operators", operators)?;
                traces.iter_mut().zip(selected).for_each(|(trace, all)| remove(trace, &all));
            }
            Edit::Fuse { operators, factor } => {
                if (factor - 1.0).abs() > f64::EPSILON {
                    let expected = "no factor, because a kernel model prices the fused operator";
                    return Err(position.error(expected, factor));
                }
                let selected = select(traces, step, position, "operators", operators)?;
                let both = traces.iter_mut().zip(selected);
                if both.map(|(trace, all)| fuse::apply(trace, &all)).sum::<usize>() == 0 {
                    let expected = "operators that do not read each other's results";
                    return Err(position.error(expected, "single ones"));
                }
            }
            Edit::Parallelise { operators, join: None } => {
                let selected = select(traces, step, position, "operators", operators)?;
                for (trace, selected) in traces.iter_mut().zip(selected) {
                    let name = trace.strings.intern(order::STREAM);
                    for (number, at) in (STREAMS..).zip(selected) {
                        trace.nodes[at as usize].rest.push((name, TraceValue::Int(number)));
                    }
                }
            }
            Edit::Replace { operators, with } => {
                let selected = select(traces, step, position, "operators", operators)?;
                let sources = select(traces, step, position, "with", with)?;
                let mut is_any = false;
                for ((trace, all), sources) in traces.iter_mut().zip(selected).zip(sources) {
                    let Some(source) = sources.into_iter().find(|one| !all.contains(one)) else {
                        continue;
                    };
                    let replaced = replace::apply(trace, &all, source);
                    replaced.map_err(|[expected, got]| position.error(&expected, got))?;
                    is_any = true;
                }
                if !is_any {
                    let expected = "another operator to replace them by";
                    return Err(position.error(expected, "none on the same rank"));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Finds the outermost operators of a step that match a pattern, in each trace in order. Without
/// a match, the pattern may name a label, which stands for the operators inside it.
fn select(
    traces: &[ExecutionTrace],
    step: usize,
    position: EditPosition,
    what: &'static str,
    pattern: &str,
) -> Result<Vec<Vec<u32>>, Error> {
    let (wanted, numbers) = split(pattern);
    let mut names = BTreeSet::new();
    // `levels` are those around an operator whose names are compared, from its own.
    let mut find = |levels: Range<usize>| -> Vec<Vec<u32>> {
        let in_trace = |trace: &ExecutionTrace| {
            let tree = NodeForest::build(&trace.nodes);
            let Some(range) = order::steps(trace).get(step).copied() else { return Vec::new() };
            let (_, items) = order::order_items(trace, &tree, range);
            let operators = items.iter().filter(|item| item.kind == order::ItemKind::Operator);
            let operators: Vec<u32> = operators.map(|item| item.node).collect();
            let name = |at: u32| trace.name(&trace.nodes[at as usize]);
            names.extend(operators.iter().map(|at| name(*at).to_owned()));
            let is_wanted = |at: &u32| {
                let around = std::iter::successors(Some(*at), |at| tree.parent(*at));
                let mut around = around.skip(levels.start).take(levels.len());
                around.any(|at| pattern::matches(wanted, name(at)))
            };
            let selected = operators.iter().copied().filter(is_wanted);
            let numbers = numbers.clone().unwrap_or(0..usize::MAX);
            selected.skip(numbers.start).take(numbers.end - numbers.start).collect()
        };
        traces.iter().map(in_trace).collect()
    };
    let mut found = find(0..1);
    if found.iter().all(Vec::is_empty) {
        found = find(1..usize::MAX);
    }
    if found.iter().all(Vec::is_empty) {
        return Err(nothing_selected(position, what, pattern, names));
    }
    Ok(found)
}

/// Removes operators with all that is nested in them. What reads their results depends on what
/// wrote their first input instead.
fn remove(trace: &mut ExecutionTrace, operators: &[u32]) {
    let tree = NodeForest::build(&trace.nodes);
    let gone: BTreeSet<u64> = nodes_inside(trace, &tree, operators).collect();
    let mut order: Vec<usize> = (0..trace.nodes.len()).collect();
    order.sort_by_key(|at| trace.nodes[*at].id);
    let roots: BTreeSet<u64> = operators.iter().map(|at| trace.nodes[*at as usize].id).collect();
    let mut instead: BTreeMap<u64, u64> = BTreeMap::new();
    for at in order {
        let node = &trace.nodes[at];
        let id = node.id;
        let read: Vec<u64> = storage::read(node).iter().map(|tensor| tensor.storage).collect();
        let written: Vec<u64> =
            storage::written(trace, node).iter().map(|tensor| tensor.storage).collect();
        let new = written.into_iter().filter(|storage| !read.contains(storage));
        if roots.contains(&id) {
            let first = read.iter().copied().find(|storage| *storage != 0);
            let first = first.map(|storage| instead.get(&storage).copied().unwrap_or(storage));
            instead.extend(new.filter_map(|storage| Some((storage, first?))));
        } else if !gone.contains(&id) {
            // A storage that is written anew is other memory at the same place.
            new.for_each(|storage| {
                instead.remove(&storage);
            });
            each_tensor(&mut trace.nodes[at], &mut |tensor| {
                tensor.storage = *instead.get(&tensor.storage).unwrap_or(&tensor.storage);
            });
        }
    }
    trace.nodes.retain(|node| !gone.contains(&node.id));
}
