//! Parses what-if questions and finds the nodes and edges that they select.

use regex::Regex;

use crate::error::Error;
use crate::facts::frames::Frame;
use crate::facts::job::JobFacts;
use crate::facts::scope::Scope;
use crate::graph::critical_path::PathCategory;
use crate::graph::edit::{Action, Edit};
use crate::graph::measured::{CATEGORIES, MeasuredGraph};
use crate::graph::{EdgeId, EdgeKind, NodeId, NodeKind};

/// A what-if question, which has selectors that must all match and the action on the nodes that
/// match.
#[derive(Clone, Debug)]
pub struct Question {
    pub text: String,
    pub selectors: Vec<Selector>,
    pub action: Action,
}

/// One condition that a node must meet to be selected.
#[derive(Clone, Debug)]
pub enum Selector {
    /// Selects device work whose name matches.
    Kernel(Pattern),
    /// Selects host time in operators whose name matches, including everything that runs inside
    /// them.
    Operator(Pattern),
    /// Selects rows whose own name matches, such as a kernel, a call, or an operator without what
    /// runs inside it.
    Name(Pattern),
    /// Selects time of these categories, which include untraced time and delays.
    Categories(Vec<PathCategory>),
    Rank(u32),
}

/// A name that must match exactly, or a regular expression.
#[derive(Clone, Debug)]
pub enum Pattern {
    Exact(String),
    /// A regular expression that may match anywhere in the name.
    Matches(Regex),
}

const FORM: &str =
    "SELECTOR… xFACTOR, such as 'kernel=~gemm x0.5' or 'class=communication rank=3 x0'";
const ACTIONS: &str =
    "a factor at the end, such as x0.5, or unblock, overlap, close-gap, to=50us or earlier=2ms";
const TIME: &str = "a time with its unit: ns, us, ms or s";
const KEYS: &str = "kernel=, op=, name=, class=, category=, rank= or a category";
const CLASSES: &str = "compute, communication or memory";

const NAMES: &str = "host_operator, runtime_call, synchronization_return, python_frame, \
    untraced_host, data_loading, launch_delay, compute, memory, communication, \
    communication_transfer or device_gap";

/// Largest factor of an action. With a larger factor, a window of several hours would overflow the
/// nanoseconds.
const FACTOR_MAX: f64 = 1000.0;

/// Parses a what-if question, which consists of selectors that must all match and of the action on
/// what they select.
///
/// The selectors are `kernel=NAME`, `op=NAME`, `name=NAME`, `class=compute|communication|memory`,
/// `category=CATEGORY` or the category alone, and `rank=N`. Write `=~` before a regular expression,
/// and `"…"` around a name with blanks. The action is one of these:
/// - `x0.5` multiplies the duration by a factor.
/// - `unblock` makes calls not wait for a device, and a fetch not wait for loader threads.
/// - `overlap` lets the work take no time of its own.
/// - `close-gap` starts the work directly after the previous work.
/// - `to=TIME` limits the duration.
/// - `earlier=TIME` lets the rank arrive earlier at a collective.
///
/// # Errors
/// Returns [`Error::Edit`] with the expected syntax, or [`Error::Pattern`] for an invalid regular
/// expression.
pub fn parse(text: &str) -> Result<Question, Error> {
    let wrong = |expected: &'static str, got: &str| Error::Edit {
        edit: text.to_owned(),
        expected,
        got: got.to_owned(),
    };
    let words = words(text);
    let Some((last, selecting)) = words.split_last() else { return Err(wrong(FORM, "nothing")) };
    let action = action(last).map_err(|expected| wrong(expected, last))?;
    if selecting.is_empty() {
        return Err(wrong(FORM, last));
    }
    let selector = |word: &String| {
        selector(word).map_err(|refused| match refused {
            Refused::Wrong(expected) => wrong(expected, word),
            Refused::Pattern(error) => error,
        })
    };
    let selectors: Vec<Selector> = selecting.iter().map(selector).collect::<Result<_, _>>()?;
    // A category may select edges, which have only a length, so scaling is the only action on it.
    let by_category = selectors.iter().any(|one| matches!(one, Selector::Categories(_)));
    if by_category && !matches!(action, Action::Scale(_)) {
        return Err(wrong("a factor for a class or category, such as x0.5", last));
    }
    Ok(Question { text: text.to_owned(), selectors, action })
}

/// Parses the action, which is the last word of a question.
fn action(word: &str) -> Result<Action, &'static str> {
    if let Some(number) = word.strip_prefix(['x', '*', '×']) {
        let factor = number.parse::<f64>().map_err(|_| ACTIONS)?;
        let is_usable = (0.0..=FACTOR_MAX).contains(&factor);
        return is_usable.then_some(Action::Scale(factor)).ok_or("a factor between 0 and 1000");
    }
    match word.split_once('=') {
        Some(("to", time)) => time_ns(time).map(Action::ShortenTo).ok_or(TIME),
        Some(("earlier", time)) => time_ns(time).map(Action::ArriveEarlier).ok_or(TIME),
        _ => match word {
            "unblock" => Ok(Action::Unblock),
            "overlap" => Ok(Action::Overlap),
            "close-gap" => Ok(Action::CloseGap),
            _ => Err(ACTIONS),
        },
    }
}

/// Converts a time such as `2.5ms` to nanoseconds.
fn time_ns(text: &str) -> Option<i64> {
    /// One hour in nanoseconds, which is longer than any window.
    const MOST_NS: f64 = 3.6e12;
    let digits = text.find(|letter: char| letter.is_alphabetic() || letter == 'µ')?;
    let (number, unit) = text.split_at(digits);
    let scale = match unit {
        "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return None,
    };
    let ns = number.parse::<f64>().ok()? * scale;
    (0.0..=MOST_NS).contains(&ns).then(|| ns.round() as i64)
}

/// The reason why a what-if question was rejected: a syntax error with the expected form, or an
/// invalid name pattern.
enum Refused {
    Wrong(&'static str),
    Pattern(Error),
}

/// Splits a text into words at blanks. Blanks inside quotes stay part of the word, and the quotes
/// are removed.
fn words(text: &str) -> Vec<String> {
    let (mut words, mut word) = (Vec::new(), None::<String>);
    let mut is_quoted = false;
    for letter in text.chars() {
        if letter == '"' {
            is_quoted = !is_quoted;
            word.get_or_insert_default();
        } else if letter.is_whitespace() && !is_quoted {
            words.extend(word.take());
        } else {
            word.get_or_insert_default().push(letter);
        }
    }
    words.extend(word);
    words
}

fn selector(word: &str) -> Result<Selector, Refused> {
    let Some((key, value)) = word.split_once('=') else {
        return category(word, KEYS);
    };
    if value.is_empty() || value == "~" {
        return Err(Refused::Wrong("something after ="));
    }
    match key {
        "kernel" => pattern(value).map(Selector::Kernel),
        "op" => pattern(value).map(Selector::Operator),
        "name" => pattern(value).map(Selector::Name),
        "class" => class(value),
        "category" => category(value, NAMES),
        "rank" => {
            let rank = value.parse();
            rank.map(Selector::Rank).map_err(|_| Refused::Wrong("rank=NUMBER"))
        }
        _ => Err(Refused::Wrong(KEYS)),
    }
}

fn pattern(value: &str) -> Result<Pattern, Refused> {
    let Some(expression) = value.strip_prefix('~') else {
        return Ok(Pattern::Exact(value.to_owned()));
    };
    let compiled = Regex::new(expression);
    compiled.map(Pattern::Matches).map_err(|source| {
        Refused::Pattern(Error::Pattern { pattern: expression.to_owned(), source })
    })
}

fn class(value: &str) -> Result<Selector, Refused> {
    let categories = match value {
        "compute" => vec![PathCategory::Compute],
        "memory" => vec![PathCategory::Memory],
        "communication" => vec![PathCategory::Communication, PathCategory::CommunicationTransfer],
        _ => return Err(Refused::Wrong(CLASSES)),
    };
    Ok(Selector::Categories(categories))
}

fn category(value: &str, expected: &'static str) -> Result<Selector, Refused> {
    match CATEGORIES.into_iter().find(|category| category.name() == value) {
        Some(PathCategory::CommunicationWait) => Err(Refused::Wrong(
            "something that takes time itself: communication_wait follows from what the last rank \
             does",
        )),
        Some(category) => Ok(Selector::Categories(vec![category])),
        None => Err(Refused::Wrong(expected)),
    }
}

/// Returns the nodes and edges that a question selects. Edges have no name, so they are selected by
/// category and rank.
pub(super) fn edit(job: &JobFacts<'_>, question: &Question) -> Edit {
    let (scopes, measured) = (job.scopes(), job.measured());
    // Each distinct name is tested only once, and the results are indexed by selector, rank and
    // name.
    let named: Vec<Vec<Vec<bool>>> = question
        .selectors
        .iter()
        .map(|one| scopes.iter().map(|scope| names(scope, one)).collect())
        .collect();
    let takes = |node: usize| {
        let origin = measured.origins[node];
        let (at, Some(row)) = (origin.scope as usize, origin.row()) else { return false };
        let trace = scopes[at].trace;
        question.selectors.iter().zip(&named).all(|(one, named)| {
            let is_named = |row: u32| named[at][trace.slices.name[row as usize].0 as usize];
            match one {
                Selector::Kernel(_) => origin.category.is_of_device() && is_named(row),
                Selector::Name(_) => is_named(row),
                Selector::Operator(_) => {
                    let tree = job.ranks[at].tree();
                    tree.contains(row)
                        && std::iter::once(row).chain(tree.ancestors(row)).any(is_named)
                }
                Selector::Categories(of) => of.contains(&origin.category),
                Selector::Rank(rank) => trace.rank == *rank,
            }
        })
    };
    let is_scaled = matches!(question.action, Action::Scale(_));
    let moment = |node: usize| {
        let node = measured.graph.node(NodeId(node as u32));
        node.kind == NodeKind::StepMarker || (is_scaled && node.weight == 0)
    };
    let chosen = (0..measured.graph.len()).filter(|node| !moment(*node) && takes(*node));
    let mut edges = if is_scaled { edges(scopes, measured, question) } else { Vec::new() };
    if is_scaled {
        edges.extend(pauses(job, question, &named));
    }
    let nodes = chosen.map(|node| NodeId(node as u32)).collect();
    Edit { nodes, edges, action: question.action }
}

fn names(scope: &Scope<'_>, selector: &Selector) -> Vec<bool> {
    let (Selector::Kernel(pattern) | Selector::Operator(pattern) | Selector::Name(pattern)) =
        selector
    else {
        return Vec::new();
    };
    let matches = |name: &str| match pattern {
        Pattern::Exact(exact) => exact == name,
        Pattern::Matches(regex) => regex.is_match(name),
    };
    scope.trace.strings.iter().map(matches).collect()
}

/// Returns the pauses in which the selected frames of Python ran. The selector `name` tests the
/// innermost frame, and `op` tests every frame of the stack.
fn pauses(job: &JobFacts<'_>, question: &Question, named: &[Vec<Vec<bool>>]) -> Vec<(EdgeId, i64)> {
    let is_name = |one: &Selector| matches!(one, Selector::Name(_) | Selector::Operator(_));
    if !question.selectors.iter().any(is_name) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (at, scope) in job.scopes().iter().enumerate() {
        let frames = scope.frames();
        let takes = |frame: u32| {
            question.selectors.iter().zip(named).all(|(one, named)| {
                let is_named = |frame: Frame| named[at][frame.name.0 as usize];
                match one {
                    Selector::Kernel(_) => false,
                    Selector::Name(_) => frames.stack(frame).next().is_some_and(is_named),
                    Selector::Operator(_) => frames.stack(frame).any(is_named),
                    Selector::Categories(of) => of.contains(&PathCategory::PythonFrame),
                    Selector::Rank(rank) => scope.trace.rank == *rank,
                }
            })
        };
        let is_selected: Vec<bool> = (0..frames.all().len() as u32).map(takes).collect();
        let spans = frames.spans(|frame| is_selected[frame as usize]);
        found.extend(job.pauses().within(job.measured(), at as u32, spans));
    }
    found
}

fn edges(
    scopes: &[Scope<'_>],
    measured: &MeasuredGraph,
    question: &Question,
) -> Vec<(EdgeId, i64)> {
    let takes = |edge: &crate::graph::Edge| {
        let at = measured.origins[edge.target.index()].scope as usize;
        let is_start = edge.target == measured.ranks[at].start;
        let is_moment = is_start || edge.kind == EdgeKind::Rendezvous || edge.weight == 0;
        !is_moment
            && question.selectors.iter().all(|one| match one {
                Selector::Categories(of) => of.contains(&measured.edge_category(edge)),
                Selector::Rank(rank) => scopes[at].trace.rank == *rank,
                _ => false,
            })
    };
    let taken = measured.graph.edges().filter(|(_, edge)| takes(edge));
    taken.map(|(id, edge)| (id, edge.weight)).collect()
}
