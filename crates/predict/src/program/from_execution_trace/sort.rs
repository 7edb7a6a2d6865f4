//! Adapts the sort of a lookup's ids before the row update. The number of kernels of the sort
//! depends on the number of ids, which only the lookup records.
//!
//! CUB sorts the keys with one kernel in one block if they fit. For more keys, CUB computes a
//! histogram of all digits and then makes one pass over all keys for each eight bits.

use std::collections::BTreeMap;

use trace::execution_trace::{ExecutionTrace, Node, TraceValue};

use super::scaled_calls::{Scale, ScaledCalls};
use super::storage::argument;
use crate::calibration::launches::{ApiCall, LaunchedWork};
use crate::program::WorkKind;

/// Number of threads of the block that sorts all keys, and number of 4-byte keys that each thread
/// holds.
const THREADS: u64 = 256;
const KEYS_OF_FOUR_BYTES: u64 = 19;
/// Number of key bits by which one pass sorts.
const BITS: u64 = 8;

const ONE_BLOCK: &str = "DeviceRadixSortSingleTileKernel";
const HISTOGRAM: &str = "DeviceRadixSortHistogramKernel";
const SUM: &str = "DeviceRadixSortExclusiveSumKernel";
const PASS: &str = "DeviceRadixSortOnesweepKernel";
const KEYS_OF_EIGHT_BYTES: &str = "DeviceRadixSortPolicy<long";

/// A radix sort of the ids of a lookup before its row update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sort {
    pub keys: u64,
    /// Number of bits in which keys may differ.
    pub bits: u64,
}

/// Sort algorithm, which CUB chooses by the number of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SortMethod {
    OneBlock,
    Passes,
}

impl Sort {
    /// Returns whether recorded calls use the algorithm that this number of keys requires.
    pub fn is_done_by(self, calls: &[ApiCall]) -> bool {
        let sorts = calls.iter().find_map(sorting);
        sorts.is_none_or(|(way, bytes)| way == self.way(bytes))
    }

    /// Adapts recorded calls to the number of keys. One pass is assumed to take as long as the sort
    /// in one block, because both rank the keys of one block and no better times are known.
    pub fn adapted(self, calls: ScaledCalls) -> ScaledCalls {
        let first = calls.iter().position(|(call, _)| sorting(call).is_some());
        let Some(first) = first else { return calls };
        let Some((way, bytes)) = sorting(&calls[first].0) else { return calls };
        match (way, self.way(bytes)) {
            (SortMethod::OneBlock, SortMethod::Passes) => self.by_passes(calls, first),
            (SortMethod::Passes, SortMethod::OneBlock) => in_one_block(calls),
            _ => calls,
        }
    }

    fn way(self, key_bytes: u64) -> SortMethod {
        let each = (KEYS_OF_FOUR_BYTES * 4 / key_bytes).max(1);
        if self.keys <= THREADS * each { SortMethod::OneBlock } else { SortMethod::Passes }
    }

    fn by_passes(self, mut calls: ScaledCalls, at: usize) -> ScaledCalls {
        let (sort, scale) = calls[at].clone();
        let another = |name: &str| {
            let mut call = sort.clone();
            for work in &mut call.launches {
                work.name = work.name.replace(ONE_BLOCK, name);
            }
            (call, scale)
        };
        let stream = sort.launches.first().map_or(0, |work| work.stream);
        let set = || (set(stream), Scale::ONE);
        // The first two memory sets clear the digit counts and counters. Each pass then clears its
        // own counters.
        let mut sorted = vec![set(), set(), another(HISTOGRAM), another(SUM)];
        for _ in 0..self.bits.div_ceil(BITS).max(1) {
            sorted.extend([set(), (sort.clone(), scale)]);
        }
        calls.splice(at..=at, sorted);
        calls
    }
}

/// Keeps one of the passes as the only kernel and removes the calls that prepare the passes.
fn in_one_block(mut calls: ScaledCalls) -> ScaledCalls {
    let launches = |at: usize, of: fn(&LaunchedWork) -> bool| calls[at].0.launches.iter().any(of);
    let is_part =
        |work: &LaunchedWork| [HISTOGRAM, SUM, PASS].iter().any(|name| work.name.contains(name));
    let Some(last) = (0..calls.len()).rev().find(|at| launches(*at, is_part)) else { return calls };
    let Some(mut first) = (0..calls.len()).find(|at| launches(*at, is_part)) else { return calls };
    // The memory sets directly before the first kernel of the sort are included.
    while first > 0 {
        let is_set = launches(first - 1, |work| work.kind == WorkKind::Set);
        if !is_set && !calls[first - 1].0.launches.is_empty() {
            break;
        }
        first -= 1;
    }
    // Leading calls without launches belong to an earlier operator, so they are kept.
    while first < last && calls[first].0.launches.is_empty() {
        first += 1;
    }
    calls.drain(first..last);
    calls
}

fn set(stream: i32) -> ApiCall {
    let work = LaunchedWork {
        kind: WorkKind::Set,
        name: "Memset (Device)".to_owned(),
        details: BTreeMap::from([(String::new(), 1)]),
        bytes: None,
        stream,
        collective: None,
    };
    ApiCall::launch("cudaMemsetAsync", work)
}

/// Returns the sort algorithm that a call launches and the size of its keys in bytes.
fn sorting(call: &ApiCall) -> Option<(SortMethod, u64)> {
    call.launches.iter().find_map(|work| {
        let bytes = if work.name.contains(KEYS_OF_EIGHT_BYTES) { 8 } else { 4 };
        let is = |name| work.name.contains(name);
        let way = if is(ONE_BLOCK) {
            SortMethod::OneBlock
        } else if is(HISTOGRAM) || is(PASS) {
            SortMethod::Passes
        } else {
            return None;
        };
        Some((way, bytes))
    })
}

/// Finds the sorts of operators that update the rows of lookups, by index of the updating node.
///
/// Updates run in the reverse order of lookups, so each update takes the last lookup of its kind.
pub fn find_sorts(trace: &ExecutionTrace) -> BTreeMap<u32, Sort> {
    let mut order: Vec<u32> = (0..trace.nodes.len() as u32).collect();
    order.sort_by_key(|at| trace.nodes[*at as usize].id);
    let mut lookups: BTreeMap<String, Vec<Sort>> = BTreeMap::new();
    let mut found = BTreeMap::new();
    for at in order {
        let node = &trace.nodes[at as usize];
        let name = trace.name(node);
        if let Some(kind) = looked_up(name) {
            lookups.entry(kind).or_default().extend(sort(trace, node));
        } else if let Some(kind) = updated(name) {
            let sort = lookups.get_mut(&kind).and_then(Vec::pop);
            found.extend(sort.map(|sort| (at, sort)));
        }
    }
    found
}

/// Returns the kind of a lookup, which is its optimizer or `dense`.
fn looked_up(name: &str) -> Option<String> {
    let (before, after) = name.split_once("embedding_codegen_lookup_")?;
    let kind =
        if before.ends_with("dense_") { "dense" } else { after.strip_suffix("_function")? };
    Some(kind.to_owned())
}

/// Returns the kind of lookup whose rows an operator updates.
fn updated(name: &str) -> Option<String> {
    let name = name.strip_prefix("torch::autograd::CppNode<SplitLookupFunction_")?;
    Some(name.strip_suffix("_Op>")?.to_lowercase())
}

fn sort(trace: &ExecutionTrace, node: &Node) -> Option<Sort> {
    let keys = argument(trace, node, "indices")?.tensor()?.elements;
    let TraceValue::Int(bits) = argument(trace, node, "total_hash_size_bits")? else { return None };
    Some(Sort { keys, bits: u64::try_from(*bits).ok()? })
}

#[cfg(test)]
mod tests;
