//! Determines the rank of each trace. The rank in the file's content counts first, then the rank in
//! its name, then the position in the order of names.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::Error;
use crate::store::{Loss, Trace};

/// Words that precede a rank directly or with one separator, as in `rank-34` and `worker2`.
const BEFORE: [&str; 2] = ["rank", "worker"];
/// Words that precede a rank after a separator, if a dot or the end of the name follows the rank,
/// as in `dlrm_eg_2` and `chakra.0.et`.
const BEFORE_LAST: [&str; 7] = ["eg", "et", "kineto", "trace", "chakra", "gpu", "device"];
/// Largest number of digits of a rank. Longer numbers are times or process ids.
const DIGITS: usize = 5;

/// Assigns every trace a unique rank, and sorts the traces by rank.
///
/// The rank in a file's content has priority over the rank in its name. A trace without a rank, or
/// with a rank that is already used, gets the smallest free rank in the order of names. Each trace
/// that was numbered in this way is counted as a loss.
pub fn assign(traces: &mut [Trace]) {
    sort_by_name(traces);
    let claims = claims(traces);
    count_overruled(traces, &claims);
    let mut holders: BTreeMap<u32, usize> = BTreeMap::new();
    for (at, claim) in claims.iter().enumerate() {
        if let Some(rank) = claim {
            // If several traces claim the same rank, the first one by name keeps it.
            holders.entry(*rank).or_insert(at);
        }
    }
    let used_ranks: BTreeSet<u32> = holders.keys().copied().collect();
    // Traces without a rank get numbers that no other trace claims.
    let mut free = (0..).filter(|rank| !used_ranks.contains(rank));
    let names: Vec<String> = traces.iter().map(full_name).collect();
    let alone = traces.len() == 1;
    for (at, trace) in traces.iter_mut().enumerate() {
        let holder = claims[at].and_then(|rank| Some((rank, *holders.get(&rank)?)));
        trace.rank = match holder {
            Some((rank, holder)) if holder == at => rank,
            _ => free.next().unwrap_or(u32::MAX),
        };
        let rank = trace.rank;
        match holder {
            Some((_, holder)) if holder == at => {}
            Some((claimed, holder)) => trace.losses.count(Loss::RankConflict, || {
                format!("{}: rank {claimed} is {}'s; numbered {rank}", names[at], names[holder])
            }),
            // A single trace does not need a rank, so nothing is lost.
            None if alone => {}
            None => trace.losses.count(Loss::RankConflict, || {
                format!("{}: names no rank; numbered {rank} by order of names", names[at])
            }),
        }
    }
    traces.sort_by_key(|trace| trace.rank);
}

/// Sorts traces by the names of their files.
pub fn sort_by_name(traces: &mut [Trace]) {
    traces.sort_by(|a, b| natural(&full_name(a), &full_name(b)));
}

/// Assigns a list of ranks to the traces. The traces are taken in the order of the paths, then of
/// their file names.
pub fn give(traces: &mut [Trace], paths: &[PathBuf], ranks: &[u32]) -> Result<(), Error> {
    let distinct: BTreeSet<u32> = ranks.iter().copied().collect();
    if ranks.len() != traces.len() || distinct.len() != ranks.len() {
        return Err(Error::Ranks { expected: traces.len(), got: ranks.to_vec() });
    }
    let place = |trace: &Trace| paths.iter().position(|path| trace.origin.path.starts_with(path));
    traces.sort_by(|a, b| {
        place(a).cmp(&place(b)).then_with(|| natural(&full_name(a), &full_name(b)))
    });
    for (trace, rank) in traces.iter_mut().zip(ranks) {
        trace.rank = *rank;
        // The user resolved the conflict by stating the ranks.
        trace.losses.remove(Loss::RankConflict);
    }
    traces.sort_by_key(|trace| trace.rank);
    Ok(())
}

/// Returns the rank that each trace claims. Contents are used unless several contents claim the
/// same rank while all names have different ranks.
pub fn claims(traces: &[Trace]) -> Vec<Option<u32>> {
    let named = |trace: &Trace| {
        let inside = trace.origin.member.as_deref().and_then(from_path);
        inside.or_else(|| from_path(&trace.origin.path.to_string_lossy()))
    };
    let contents: Vec<_> =
        traces.iter().map(|trace| content(trace).or_else(|| named(trace))).collect();
    let names: Vec<_> = traces.iter().map(named).collect();
    let distinct = |claims: &[Option<u32>]| {
        claims.iter().flatten().collect::<BTreeSet<_>>().len() == claims.iter().flatten().count()
    };
    let all_named = names.iter().all(Option::is_some) && distinct(&names);
    if !distinct(&contents) && all_named { names } else { contents }
}

/// Returns the rank that is stated in a trace's content.
pub fn content(trace: &Trace) -> Option<u32> {
    trace.header.distributed.as_ref().and_then(|job| job.rank)
}

/// Counts a loss for each trace whose name took priority over its content.
fn count_overruled(traces: &mut [Trace], claims: &[Option<u32>]) {
    for (trace, claim) in traces.iter_mut().zip(claims) {
        let Some((claimed, assigned)) = content(trace).zip(*claim).filter(|(a, b)| a != b) else {
            continue;
        };
        let name = full_name(trace);
        trace.losses.count(Loss::RankConflict, || {
            format!("{name}: claims rank {claimed}, as others do; numbered {assigned} by its name")
        });
    }
}

fn full_name(trace: &Trace) -> String {
    let path = trace.origin.path.to_string_lossy();
    match &trace.origin.member {
        Some(member) => format!("{path}/{member}"),
        None => path.into_owned(),
    }
}

/// Extracts a rank from a path. The last component that contains a rank is used. A bare number
/// counts only as the name of the file itself, because folders are often named by dates.
fn from_path(path: &str) -> Option<u32> {
    let own = path.rsplit(['/', '\\']).next().unwrap_or_default();
    let stem = own.split('.').next().unwrap_or_default();
    // A bare number is a name such as `3.json`, but not `3_steps.json`.
    let bare = || number(stem).filter(|(_, rest)| rest.is_empty()).map(|(rank, _)| rank);
    let any = || path.rsplit(['/', '\\']).find_map(from_name);
    from_name(own).or_else(bare).or_else(any)
}

/// Extracts the rank that follows a known word in a path component.
fn from_name(name: &str) -> Option<u32> {
    let name = name.to_ascii_lowercase();
    BEFORE
        .iter()
        .find_map(|word| behind(&name, word, |_| true))
        .or_else(|| BEFORE_LAST.iter().find_map(|word| behind(&name, word, ends)))
}

/// Returns the number after a word if `right` accepts the text after the number.
fn behind(name: &str, word: &str, right: fn(&str) -> bool) -> Option<u32> {
    name.match_indices(word).find_map(|(at, _)| {
        let (before, rest) = (&name[..at], &name[at + word.len()..]);
        let rest = match rest.strip_prefix(['-', '_', '.', '=', ' ', '#']) {
            Some(rest) => rest,
            None if BEFORE.contains(&word) => rest,
            None => return None,
        };
        // The word must not be the end of a longer one, so that `frank3` does not claim rank 3.
        let begins = !before.ends_with(|c: char| c.is_ascii_alphanumeric());
        number(rest).filter(|(_, rest)| begins && right(rest)).map(|(rank, _)| rank)
    })
}

fn ends(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with('.')
}

/// Splits a text into the number at its start and the text after it.
fn number(text: &str) -> Option<(u32, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    if end > DIGITS { None } else { Some((text[..end].parse().ok()?, &text[end..])) }
}

/// Compares texts with their numbers as numbers, so that `rank_10` follows `rank_9`.
pub fn natural(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a.as_bytes(), b.as_bytes());
    while let (Some(x), Some(y)) = (left.first(), right.first()) {
        let order = if x.is_ascii_digit() && y.is_ascii_digit() {
            let (first, second) = (digits(&mut left), digits(&mut right));
            // Leading zeros were removed, so a number with more digits is larger.
            first.len().cmp(&second.len()).then_with(|| first.cmp(second))
        } else {
            (left, right) = (&left[1..], &right[1..]);
            x.cmp(y)
        };
        if order.is_ne() {
            return order;
        }
    }
    // Names that differ only in leading zeros still need a fixed order.
    left.len().cmp(&right.len()).then_with(|| a.cmp(b))
}

/// Splits off the digits at the start of a text, and returns them without leading zeros.
fn digits<'a>(text: &mut &'a [u8]) -> &'a [u8] {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    *text = rest;
    let zeros = digits.iter().take_while(|byte| **byte == b'0').count();
    &digits[zeros..]
}

#[cfg(test)]
mod tests;
