//! The calls and launches of recorded operators, which steps without times are given as well.
//! Contains no durations.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::program::{Returns, WorkKind};

/// The calls and launches of recorded operators, by name and tensor sizes. Execution traces without
/// times get their launches from it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Launches {
    /// Names of all operators that ran, nested ones included.
    pub seen: BTreeSet<String>,
    /// Outermost operators with all calls inside them.
    pub outer: ByOperator,
    /// Operators that made calls themselves, with those calls only.
    pub inner: ByOperator,
}

/// Variants by operator name, then by sizes.
pub type ByOperator = BTreeMap<String, BTreeMap<String, Vec<Variant>>>;

/// One sequence of calls that an operator of some sizes made, and how often it did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    pub count: u64,
    pub calls: Vec<ApiCall>,
}

/// A call of the device's runtime API, or a wait that no call shows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApiCall {
    /// Empty for a wait without a call.
    pub name: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub launches: Vec<LaunchedWork>,
    /// Streams whose last work the call waited for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub awaits: Vec<i32>,
    pub returns: Returns,
}

/// Device work that a call launched: a kernel, copy or memory set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchedWork {
    pub kind: WorkKind,
    pub name: String,
    /// Sample keys with their counts; several if equal sizes did unequal work.
    pub details: BTreeMap<String, u64>,
    /// Bytes of a copy or a set.
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
        let variants = self.outer.values().flat_map(BTreeMap::values).flatten();
        variants.flat_map(|variant| &variant.calls).any(|call| !call.launches.is_empty())
    }
}

/// Counts a variant. Variants that differ only in sample keys are merged.
pub(super) fn add(to: &mut ByOperator, name: &str, sizes: &str, variant: Variant) {
    let known = to.entry(name.to_owned()).or_default().entry(sizes.to_owned()).or_default();
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
