//! Selects outermost operators of threads by patterns of their names.

use std::collections::BTreeSet;
use std::ops::Range;

use schema::pattern;
use schema::reference::distance;

use super::position::EditPosition;
use crate::Error;
use crate::program::{Action, MarkKind, Program, Rank};

/// An operator, given by the positions of its first and last action on a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OperatorRange {
    pub thread: usize,
    pub begin: usize,
    pub end: usize,
}

/// Lists the outermost operators of a rank, thread by thread, in execution order.
pub(super) fn operators(rank: &Rank) -> Vec<OperatorRange> {
    let mut found = Vec::new();
    for (thread, actions) in rank.threads.iter().map(|thread| &thread.actions).enumerate() {
        let mut begin = None;
        for (at, action) in actions.iter().enumerate() {
            match action {
                Action::Begin(mark) if mark.kind == MarkKind::Operator => begin = Some(at),
                Action::End => {
                    let whole = begin.take().map(|begin| OperatorRange { thread, begin, end: at });
                    found.extend(whole);
                }
                _ => {}
            }
        }
    }
    found
}

/// Lists the annotations of a rank as ranges that include everything inside them.
fn annotations(rank: &Rank) -> Vec<OperatorRange> {
    let mut found = Vec::new();
    for (thread, actions) in rank.threads.iter().map(|thread| &thread.actions).enumerate() {
        let mut open = Vec::new();
        for (at, action) in actions.iter().enumerate() {
            match action {
                Action::Begin(mark) => open.push((mark.kind, at)),
                Action::End => {
                    let begun = open.pop().filter(|(kind, _)| *kind == MarkKind::Annotation);
                    found.extend(begun.map(|(_, begin)| OperatorRange { thread, begin, end: at }));
                }
                _ => {}
            }
        }
    }
    found.sort_unstable();
    found
}

/// Returns the name of an operator, which its first action holds.
pub(super) fn name(program: &Program, rank: usize, operator: OperatorRange) -> &str {
    match program.ranks[rank].threads[operator.thread].actions[operator.begin] {
        Action::Begin(mark) => program.text(mark.name),
        _ => "",
    }
}

/// Splits a pattern such as `aten::mm[2]` or `aten::mm[2..]` into the name pattern and occurrences,
/// which are counted from 0.
pub(super) fn split(pattern: &str) -> (&str, Option<Range<usize>>) {
    let numbers = |text: &str| match text.strip_suffix("..") {
        Some(first) => Some(first.parse().ok()?..usize::MAX),
        None => text.parse().ok().map(|number: usize| number..number.saturating_add(1)),
    };
    let numbered = pattern.strip_suffix(']').and_then(|rest| rest.rsplit_once('['));
    let numbered = numbered.and_then(|(name, text)| Some((name, numbers(text)?)));
    numbered.map_or((pattern, None), |(name, numbers)| (name, Some(numbers)))
}

/// Finds the operators of each rank that match a pattern. A pattern with numbers, such as
/// `aten::mm[2..]`, returns only those occurrences. If no operator matches, the pattern may name
/// annotations: each one is returned as a range from its begin to its end.
///
/// # Errors
/// [`Error::NothingSelected`] if no operator on any rank matches.
pub(super) fn find_operators(
    program: &Program,
    position: EditPosition,
    what: &'static str,
    pattern: &str,
) -> Result<Vec<Vec<OperatorRange>>, Error> {
    let (names, numbers) = split(pattern);
    let select = |all: fn(&Rank) -> Vec<OperatorRange>| -> Vec<Vec<OperatorRange>> {
        let ranks = program.ranks.iter().enumerate();
        let named = ranks.map(|(at, rank)| {
            let named = all(rank).into_iter();
            let mut named: Vec<OperatorRange> =
                named.filter(|one| pattern::matches(names, name(program, at, *one))).collect();
            if let Some(Range { start, end }) = numbers {
                named.truncate(end);
                named.drain(..start.min(named.len()));
            }
            named
        });
        named.collect()
    };
    let mut found = select(operators);
    if found.iter().all(Vec::is_empty) {
        found = select(annotations);
    }
    if found.iter().all(Vec::is_empty) {
        // A second search without the number tells a number that is too large from an unknown name.
        if numbers.is_some()
            && let Ok(all) = find_operators(program, position, what, names)
        {
            let most = all.iter().map(Vec::len).max().unwrap_or_default();
            let expected = format!("{what} of which each rank has at most {most}, from [0] on");
            return Err(position.error(&expected, format!("{pattern:?}")));
        }
        let ranks = 0..program.ranks.len();
        let names = ranks.flat_map(|rank| {
            let all = operators(&program.ranks[rank]).into_iter();
            all.map(move |operator| name(program, rank, operator).to_owned())
        });
        return Err(nothing_selected(position, what, pattern, names.collect()));
    }
    Ok(found)
}

/// Creates the error for a pattern that matches nothing, with the most similar names.
pub(super) fn nothing_selected(
    position: EditPosition,
    what: &'static str,
    pattern: &str,
    names: BTreeSet<String>,
) -> Error {
    const NAMED: usize = 3;
    let mut names: Vec<String> = names.into_iter().collect();
    names.sort_by_cached_key(|name| distance(pattern, name));
    names.truncate(NAMED);
    let EditPosition { number, kind } = position;
    Error::NothingSelected { number, kind, what, got: pattern.to_owned(), names }
}
