//! Summarizes a comparison in one line, with the change of the unit and its causes.

use serde::Serialize;

use super::change::{DiffSubject, PartChange, Shift, SpentChange};
use crate::percent::percent;
use crate::text::time;

/// Maximum number of operators and calls that the line names.
const NAMED: usize = 2;
/// Minimum share of the change, in percent, from which an operator or call is named.
const WORTH_PCT: f64 = 10.0;
/// The recordings may be of different jobs if less than this share of the time lies under names of
/// both sides, in percent.
const SHARED_MIN_PCT: f64 = 50.0;

/// Conclusion of a comparison: the change of the unit, whether it is noise, and its causes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DiffVerdict {
    /// The conclusion as one line of text.
    pub text: String,
    pub outcome: DiffOutcome,
    pub before_ns: i64,
    pub after_ns: i64,
    pub before_median_ns: i64,
    pub after_median_ns: i64,
    pub delta_ns: i64,
    /// `delta_ns` relative to the mean unit before, in percent.
    pub delta_pct: Option<f64>,
    /// A change smaller than this many nanoseconds may be chance. The noise is `None` if a side has
    /// fewer than two units.
    pub noise_ns: Option<i64>,
    /// Parts of the unit whose change exceeds their noise, largest change first. The list is empty
    /// for recordings without device work.
    pub parts: Vec<Cause>,
    /// Sum of the changes of these parts relative to the whole change, in percent; 100 at best.
    pub explained_pct: Option<f64>,
    /// Things that changed most in the direction of the whole change. The list has operators by the
    /// device time of their work or, where the device waits for the host, operators and calls by
    /// host time.
    pub names: Vec<Cause>,
}

/// Direction in which the unit changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DiffOutcome {
    /// A unit takes more time after, by more than chance explains.
    Slower,
    /// A unit takes less time after, by more than chance explains.
    Faster,
    /// The change may be chance.
    WithinNoise,
    Same,
}

/// A change that explains a part of the change of the unit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cause {
    /// Name of a part of the unit, of an operator or of a call.
    pub name: String,
    /// Change of its time per unit.
    pub delta_ns: i64,
    /// `delta_ns` relative to the change of the unit, in percent.
    pub explained_pct: Option<f64>,
}

/// Summarizes what changed between two recordings. `unit` is the change of the mean unit, and the
/// medians of both sides are given with it. `shared_pct` is the share of the time under names that
/// both sides have.
pub fn judge_change(
    unit: &Shift,
    [before_median_ns, after_median_ns]: [i64; 2],
    parts: &[PartChange],
    changes: &[SpentChange],
    shared_pct: Option<f64>,
) -> DiffVerdict {
    let outcome = match unit.delta_ns {
        0 => DiffOutcome::Same,
        _ if unit.is_noise => DiffOutcome::WithinNoise,
        1.. => DiffOutcome::Slower,
        _ => DiffOutcome::Faster,
    };
    let has_device = parts
        .iter()
        .any(|part| part.part != "idle" && (part.before_mean_ns, part.after_mean_ns) != (0, 0));
    let mut causes = Vec::new();
    if has_device {
        // The change of the mean unit equals the sum of the changes of its parts' means.
        let is_real = |part: &&PartChange| {
            let noise_ns = part.noise_ns.unwrap_or_default();
            part.mean_delta_ns != 0 && part.mean_delta_ns.abs() > noise_ns
        };
        let real = parts.iter().filter(is_real);
        causes.extend(real.map(|part| cause(&words(part.part), part.mean_delta_ns, unit)));
        causes.sort_by_key(|cause| std::cmp::Reverse(cause.delta_ns.abs()));
    }
    let is_host = causes.first().is_none_or(|first| first.name == "idle");
    let sum: i64 = causes.iter().map(|cause| cause.delta_ns).sum();
    let missed = percent((unit.delta_ns - sum).abs(), unit.delta_ns.abs());
    let explained_pct = missed.filter(|_| has_device).map(|missed| (100.0 - missed).max(0.0));
    let mut verdict = DiffVerdict {
        text: String::new(),
        outcome,
        before_ns: unit.before_ns,
        after_ns: unit.after_ns,
        before_median_ns,
        after_median_ns,
        delta_ns: unit.delta_ns,
        delta_pct: percent(unit.delta_ns, unit.before_ns),
        noise_ns: unit.noise_ns,
        parts: causes,
        explained_pct,
        names: names(unit, changes, is_host),
    };
    verdict.text = line(&verdict) + &medians(&verdict) + &doubt(shared_pct);
    verdict
}

fn cause(name: &str, delta_ns: i64, unit: &Shift) -> Cause {
    Cause { name: name.to_owned(), delta_ns, explained_pct: percent(delta_ns, unit.delta_ns) }
}

fn words(part: &str) -> String {
    part.replace('_', " ")
}

/// Returns the things whose time changed in the same direction as the unit, largest change first.
fn names(unit: &Shift, changes: &[SpentChange], is_host: bool) -> Vec<Cause> {
    let is_asked = |subject| match is_host {
        true => matches!(subject, DiffSubject::Host | DiffSubject::Call),
        false => subject == DiffSubject::Operator,
    };
    let real = changes.iter().filter(|change| is_asked(change.subject) && !change.is_noise);
    let same_way = real.filter(|change| change.delta_ns.signum() == unit.delta_ns.signum());
    let mut named: Vec<Cause> =
        same_way.map(|change| cause(&change.name, change.delta_ns, unit)).collect();
    named.retain(|cause| cause.explained_pct.is_some_and(|share| share >= WORTH_PCT));
    named.sort_by(|a, b| b.delta_ns.abs().cmp(&a.delta_ns.abs()).then_with(|| a.name.cmp(&b.name)));
    named.truncate(NAMED);
    named
}

fn line(verdict: &DiffVerdict) -> String {
    let span = span(verdict.before_ns, verdict.after_ns);
    let by = match verdict.delta_pct.map(f64::abs) {
        Some(share) if share >= 9.95 => format!("{share:.0} %"),
        Some(share) => format!("{share:.1} %"),
        None => time(verdict.delta_ns.abs()),
    };
    let way = match verdict.outcome {
        DiffOutcome::Same => return format!("{span}: no change"),
        DiffOutcome::WithinNoise => {
            let noise = verdict.noise_ns.map_or_else(String::new, |ns| format!(" (±{})", time(ns)));
            return format!("{span}: no change beyond the noise{noise}");
        }
        DiffOutcome::Slower => "slower",
        DiffOutcome::Faster => "faster",
    };
    let listed = |causes: &[Cause]| {
        let one = |cause: &Cause| format!("{} {}", cause.name, signed(cause.delta_ns));
        causes.iter().map(one).collect::<Vec<_>>().join(", ")
    };
    let mut text = format!("{span}: {way} by {by}");
    if !verdict.parts.is_empty() {
        text += &format!(", of which {}", listed(&verdict.parts));
    }
    if !verdict.names.is_empty() {
        let link = if verdict.parts.is_empty() { ", of which" } else { "; most of it in" };
        text += &format!("{link} {}", listed(&verdict.names));
    }
    text
}

/// Returns a sentence about the medians, if they changed less than half as much as the means.
fn medians(verdict: &DiffVerdict) -> String {
    let is_change = matches!(verdict.outcome, DiffOutcome::Slower | DiffOutcome::Faster);
    let moved = (verdict.after_median_ns - verdict.before_median_ns) * verdict.delta_ns.signum();
    if !is_change || 2 * moved >= verdict.delta_ns.abs() {
        return String::new();
    }
    let span = span(verdict.before_median_ns, verdict.after_median_ns);
    format!(". The median went {span}, so a few long units cause the difference of the means")
}

/// Returns a warning if the two recordings have little in common.
fn doubt(shared_pct: Option<f64>) -> String {
    let few = shared_pct.filter(|share| *share < SHARED_MIN_PCT);
    few.map_or_else(String::new, |share| {
        format!(
            ". Only {share:.0} % of the operators' time is under names that both recordings have: they \
             may be of different jobs"
        )
    })
}

/// Formats two times as `77.5 → 129 ms`, or each with its own unit if the units differ.
fn span(before_ns: i64, after_ns: i64) -> String {
    let (before, after) = (time(before_ns), time(after_ns));
    let units = [&before, &after].map(|text| text.rsplit_once(' ').map(|(_, unit)| unit));
    match before.rsplit_once(' ') {
        Some((number, _)) if units[0] == units[1] => format!("{number} → {after}"),
        _ => format!("{before} → {after}"),
    }
}

fn signed(ns: i64) -> String {
    format!("{}{}", if ns > 0 { "+" } else { "" }, time(ns))
}
