//! The runtime calls and kernel launches of recorded operators, without durations. These calls
//! complete programs that are built from execution traces, which contain no calls.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::program::{Returns, WorkKind};

/// Runtime calls and launches of recorded operators, by operator name and tensor sizes. A program
/// built from an execution trace takes its launches from here, because execution traces record only
/// operators.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Launches {
    /// Names of all operators that ran, including operators nested in others.
    pub seen: BTreeSet<String>,
    /// Calls of outermost operators, including the calls of operators nested in them.
    pub outer: ByOperator,
    /// Calls that an operator made itself, without the calls of operators nested in it.
    pub inner: ByOperator,
}

/// Call sequences by operator name, then by tensor sizes.
pub type ByOperator = BTreeMap<String, BTreeMap<String, Vec<Variant>>>;

/// A sequence of calls that an operator with some sizes made, with the number of times it occurred.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    pub count: u64,
    pub calls: Vec<ApiCall>,
}

/// A call of the device's runtime API, or a wait for device work that was recorded without a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApiCall {
    /// Name of the runtime call. The name is empty for a wait without a call.
    pub name: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub launches: Vec<LaunchedWork>,
    /// Streams on which the call waited for the last work.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub awaits: Vec<i32>,
    pub returns: Returns,
}

impl ApiCall {
    /// Creates a call that launches a work, and does not wait for it.
    pub fn launch(name: &str, work: LaunchedWork) -> Self {
        let (awaits, returns) = (Vec::new(), Returns::AtOnce);
        Self { name: name.to_owned(), launches: vec![work], awaits, returns }
    }

    /// Creates a wait for the last works of streams. Without a call, the name is empty.
    pub fn wait(name: &str, awaits: Vec<i32>) -> Self {
        let (launches, returns) = (Vec::new(), Returns::AfterAwaited);
        Self { name: name.to_owned(), launches, awaits, returns }
    }
}

/// Device work that a runtime call launched: a kernel, a copy or a memory set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchedWork {
    pub kind: WorkKind,
    pub name: String,
    /// Details of the sample keys of this work with their counts. There are several details if
    /// operators of equal sizes launched work of unequal size.
    pub details: BTreeMap<String, u64>,
    /// Bytes that a copy or a memory set writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    pub stream: i32,
    /// Operation and message bytes of a collective.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collective: Option<(String, u64)>,
}

impl Launches {
    /// Adds the launches of another recording.
    pub fn merge(&mut self, other: Self) {
        self.seen.extend(other.seen);
        for (to, from) in [(&mut self.outer, other.outer), (&mut self.inner, other.inner)] {
            for (name, by_sizes) in from {
                for (sizes, variants) in by_sizes {
                    for variant in variants {
                        add(to, &name, &sizes, variant);
                    }
                }
            }
        }
    }

    /// Returns whether any operator launched device work.
    pub fn has_device(&self) -> bool {
        let variants = self.inner.values().flat_map(BTreeMap::values).flatten();
        variants.flat_map(|variant| &variant.calls).any(|call| !call.launches.is_empty())
    }
}

/// Adds the count of a variant to those of an operator and its sizes.
pub(super) fn add(to: &mut ByOperator, name: &str, sizes: &str, variant: Variant) {
    let known = to.entry(name.to_owned()).or_default().entry(sizes.to_owned()).or_default();
    add_to(known, variant);
}

/// Adds the count of a variant. Variants that differ only in the details of their sample keys are
/// merged.
pub fn add_to(known: &mut Vec<Variant>, variant: Variant) {
    match known.iter_mut().find(|known| is_alike(&known.calls, &variant.calls)) {
        None => known.push(variant),
        Some(known) => {
            known.count += variant.count;
            let works = |calls: Vec<ApiCall>| calls.into_iter().flat_map(|call| call.launches);
            let own = known.calls.iter_mut().flat_map(|call| &mut call.launches);
            for (own, other) in own.zip(works(variant.calls)) {
                for (detail, count) in other.details {
                    *own.details.entry(detail).or_default() += count;
                }
            }
        }
    }
}

fn is_alike(a: &[ApiCall], b: &[ApiCall]) -> bool {
    let work = |(a, b): (&LaunchedWork, &LaunchedWork)| {
        (a.kind, &a.name, a.stream, &a.collective) == (b.kind, &b.name, b.stream, &b.collective)
    };
    let call = |(a, b): (&ApiCall, &ApiCall)| {
        (&a.name, &a.awaits, a.returns, a.launches.len())
            == (&b.name, &b.awaits, b.returns, b.launches.len())
            && a.launches.iter().zip(&b.launches).all(work)
    };
    a.len() == b.len() && a.iter().zip(b).all(call)
}
