//! Finds the part of a truncated recording for which all device rows were read.
//!
//! Profilers write rows in the order of their buffers, not of time, so the rows that a cut file
//! lost may lie at any time. Lost rows show as gaps in the rows that were read: launches without
//! device rows, and operators without launches. The covered part ends before the first such gap.

mod hole;
mod order;
mod silence;
#[cfg(test)]
mod tests;

use trace::store::{Covered, CutRecording, Ending, Loss, Trace};

use crate::facts::links::Links;
use crate::facts::refuted;
use crate::facts::window;
use crate::percent::percent;

/// Minimum covered share of a recording, in percent, below which no figures are computed.
const COVERED_PCT: f64 = 50.0;
/// Maximum unreadable share of the text or events, in percent, up to which the missing part is
/// still known.
const SKIPPED_PCT: f64 = 0.1;
/// Share of launches, in percent, that may lack device rows because any recording ends at some
/// point.
const UNFINISHED_PCT: f64 = 1.0;

/// Decides the covered part of each truncated recording of a job. Complete recordings, and
/// recordings whose covered part is already decided, stay unchanged.
///
/// # Cost
/// The cost is `O(n log n)` in the rows of cut traces.
pub fn judge_all(traces: &mut [Trace]) {
    traces.iter_mut().for_each(judge);
    // Some writers put the base time after the events, so a truncated file loses it. Without the
    // base time, the times of different ranks cannot be compared.
    let has_base = |trace: &Trace| trace.header.base_time_ns != 0;
    if !traces.iter().any(has_base) {
        return;
    }
    for trace in traces.iter_mut().filter(|trace| !has_base(trace)) {
        if let Some(cut) = &mut trace.cut {
            cut.covered = Some(Covered::Nothing);
            cut.why += "; baseTimeNanoseconds, to which all its times are relative, was cut off";
        }
    }
}

/// Decides the covered part of one truncated recording.
pub fn judge(trace: &mut Trace) {
    if trace.cut.is_none()
        && let Some(why) = damage(trace)
    {
        let byte = trace.origin.text_bytes;
        let ending = Ending::Damaged;
        trace.cut = Some(CutRecording { ending, byte, why, covered: None, span: None });
    }
    let Some(cut) = &trace.cut else { return };
    let span = window::recorded(trace);
    let covered = match (cut.covered, cut.ending) {
        (Some(judged), _) => Some(judged),
        (None, Ending::Damaged) => Some(Covered::Nothing),
        (None, Ending::BehindEvents) => span.map(|(_, end)| Covered::Until(end)),
        (None, Ending::WithinEvents) => until(trace, &Links::new(trace)).map(Covered::Until),
        (None, Ending::Unclosed) => {
            let links = Links::new(trace);
            // A list of events without its closing bracket counts as cut only if rows are missing.
            if !order::has_lost_launches(trace, &links, UNFINISHED_PCT) {
                trace.cut = None;
                return;
            }
            until(trace, &links).map(Covered::Until)
        }
    };
    if let Some(cut) = &mut trace.cut {
        cut.covered = covered.or(Some(Covered::Nothing));
        cut.span = span;
    }
}

/// Prepares a judged trace for analysis: removes the rows outside its covered part, and shortens
/// durations that other rows contradict.
pub fn trim(trace: &mut Trace) {
    refuted::clip(trace);
    match trace.cut.as_ref().and_then(|cut| cut.covered) {
        Some(Covered::Until(end)) => trace.keep_until(end),
        Some(Covered::Nothing) => trace.keep_nothing(),
        None => {}
    }
}

/// Describes in one line what a job's recordings lack, or returns `None` if they are complete.
pub fn missing<'a>(traces: impl IntoIterator<Item = &'a Trace>) -> Option<String> {
    let traces: Vec<&Trace> = traces.into_iter().collect();
    let lost = |trace: &Trace| trace.losses.count_of(Loss::LostFile);
    let cuts: Vec<String> = traces.iter().filter_map(|trace| describe_gap(trace)).collect();
    let files: u64 = traces.iter().map(|trace| lost(trace)).sum();
    let mut parts: Vec<String> = traces.iter().filter_map(|trace| behind_the_end(trace)).collect();
    if files > 0 {
        let lost_files = traces.iter().flat_map(|trace| trace.losses.iter());
        let lost_files = lost_files.filter(|(loss, _)| *loss == Loss::LostFile);
        let first =
            lost_files.flat_map(|(_, count)| &count.first).next().cloned().unwrap_or_default();
        parts.push(format!("{files} of the job's files cannot be read ({first})"));
    }
    if cuts.len() > 1 {
        parts.push(format!("{} of {} recordings were cut", cuts.len(), traces.len()));
    }
    parts.extend(cuts);
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Describes events that follow the end of the file's first JSON document and were not read.
fn behind_the_end(trace: &Trace) -> Option<String> {
    let (_, counted) = trace.losses.iter().find(|(loss, _)| *loss == Loss::BehindTheEnd)?;
    let (count, first) = (counted.count, counted.first.first()?);
    Some(format!(
        "{}: {count} events behind the end of the trace were not read ({first})",
        trace.origin
    ))
}

/// Describes the missing part of one truncated recording, or returns `None` if it is complete.
pub fn describe_gap(trace: &Trace) -> Option<String> {
    let cut = trace.cut.as_ref()?;
    let CutRecording { byte, why, .. } = cut;
    let found = match cut.ending {
        Ending::Damaged => format!("the recording is damaged ({why})"),
        _ => format!("the recording was cut at byte {byte} of its text ({why})"),
    };
    let ms = |ns: i64| ns as f64 / 1e6;
    let covered = match (cut.covered, cut.span) {
        (Some(Covered::Until(until)), Some((start, end))) => {
            let (covered, whole) = (until.min(end) - start, end - start);
            let share = percent(covered, whole).unwrap_or_default();
            format!(
                "all figures are of its first {:.3} ms, {share:.1} % of the {:.3} ms that were read",
                ms(covered),
                ms(whole)
            )
        }
        (Some(Covered::Nothing), _) if cut.ending != Ending::Damaged => {
            "no figures are given: less than half of the recording is complete".to_owned()
        }
        _ => "no figures are given, because the missing rows are unknown".to_owned(),
    };
    Some(format!("{}: {found}; {covered}", trace.origin))
}

/// Returns evidence that events are missing at unknown places, or `None` if there is no such
/// evidence.
fn damage(trace: &Trace) -> Option<String> {
    let is_over = |part: u64, whole: u64| {
        percent(part as i64, whole as i64).is_some_and(|share| share > SKIPPED_PCT)
    };
    let (skipped, events) = (trace.losses.skipped_bytes(), trace.event_count().max(1));
    let broken = trace.losses.count_of(Loss::BrokenEvent);
    let is_much = is_over(skipped, trace.origin.text_bytes) || is_over(broken, events);
    // A single broken row of usual length loses only itself, provided that every launch has its
    // device work and every work its launch.
    let is_one_row = broken == 1 && skipped <= 2 * trace.origin.text_bytes / events;
    if is_much && !(is_one_row && hole::is_paired(trace)) {
        return Some(format!(
            "{skipped} bytes between its first and its last event cannot be read"
        ));
    }
    hole::find(trace)
}

/// Returns the time until which all device rows were read, or `None` if that covers less than half
/// of the recording or is unknown.
fn until(trace: &Trace, links: &Links) -> Option<i64> {
    let (start, end) = window::recorded(trace)?;
    let is_launched = |row: u32| trace.kind(row).is_device_work() && links.call(row).is_some();
    // Without launches, missing device rows cannot be detected.
    if !trace.rows().any(is_launched) {
        return None;
    }
    let bounds = [
        order::last_call(trace),
        order::first_lost_launch(trace, links),
        silence::first(trace, links),
        order::first_open_graph(trace, links),
        order::last_orphan_bound(trace, links),
    ];
    let until = bounds.into_iter().flatten().min().unwrap_or(end).min(end);
    percent(until - start, end - start).filter(|share| *share >= COVERED_PCT)?;
    Some(until)
}
