//! The calls and launches of recorded operators, from which an untimed step gets its own. Knows no
//! durations.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::program::{Returns, WorkKind};

/// What operators called, by their names and the sizes of their tensors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Launches {
    /// Every operator that ran, those inside others too.
    pub seen: BTreeSet<String>,
    /// Outermost operators, with all that was called inside.
    pub outer: ByOperator,
    /// Operators that called something themselves, and only that.
    pub inner: ByOperator,
}

/// Variants by name, then by sizes.
pub type ByOperator = BTreeMap<String, BTreeMap<String, Vec<Variant>>>;

/// One way in which an operator of some sizes was carried out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    pub count: u64,
    /// Its calls, in order.
    pub calls: Vec<ApiCall>,
}

/// A call of the device's runtime, or a wait that no call shows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApiCall {
    /// Its name; empty for a wait without a call.
    pub name: String,
    /// What it put on streams.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub launches: Vec<LaunchedWork>,
    /// The streams whose last work it waited for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub awaits: Vec<i32>,
    pub returns: Returns,
}

/// A piece of device work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchedWork {
    /// Kernel, copy or set.
    pub kind: WorkKind,
    pub name: String,
    /// The keys of its samples with their counts; several if equal sizes did unequal work.
    pub details: BTreeMap<String, u64>,
    /// Bytes of a copy or a set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    pub stream: i32,
    /// Of a collective in which ranks met: the operation, and bytes of the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collective: Option<(String, u64)>,
}

impl Launches {
    /// Adds those of another recording.
    pub fn merge(&mut self, other: Self) {
        self.seen.extend(other.seen);
        for (to, from) in [(&mut self.outer, other.outer), (&mut self.inner, other.inner)] {
            for (name, by_sizes) in from {
                for (sizes, variants) in by_sizes {
                    for variant in variants {
                        add(to, (&name, &sizes), variant);
                    }
                }
            }
        }
    }

    /// Whether anything ran on a device.
    pub fn has_device(&self) -> bool {
        let variants = self.outer.values().flat_map(BTreeMap::values).flatten();
        variants.flat_map(|variant| &variant.calls).any(|call| !call.launches.is_empty())
    }
}

/// Counts a variant, or adds to one that differs in no more than the samples of its works.
pub(super) fn add(to: &mut ByOperator, (name, sizes): (&str, &str), variant: Variant) {
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
