//! The command `rowmill trace diff`, which compares two recordings of a job.

use std::io::Write;
use std::path::Path;

use ::report::{Options, TimelineSteps, diff as page, html};
use analyze::diff::{
    self, Diff, DiffSide, DiffSubject, DiffUnit, DiffVerdict, PartChange, Presence, SpentChange,
};
use analyze::job::JobFacts;
use serde::Serialize;
use trace::store::{self, Trace};

use super::query::TraceQuery;
use crate::args::DiffBy;
use crate::trace_files::refuse_input;
use crate::trace_summary::shorten_name;
use setup::Session;
use setup::args::Selection;
use setup::error::{Error, UsageError};
use setup::open_job::job_title;
use setup::open_job::open_selection;
use setup::output;
use setup::render;

/// Number of changes per subject on the page, unless `--top` sets another number.
const TOP: usize = 5;

/// Runs `rowmill trace diff` and prints its result.
pub fn run(
    selection: &Selection,
    by: Option<DiffBy>,
    report: Option<&Path>,
    session: &Session,
) -> Result<(), Error> {
    let [before, after] = &selection.paths[..] else {
        return Err(UsageError::TwoRecordings { got: selection.paths.len() }.into());
    };
    let side = |path: &Path| Selection { paths: vec![path.to_owned()], ..selection.clone() };
    let [before, after] = [side(before), side(after)];
    let (mut before, after) =
        (TraceQuery::new(&before, session)?, open_selection(&after, session)?);
    let missing = [before.chosen.missing.take(), after.missing.clone()];
    let missing: Vec<String> = missing.into_iter().flatten().collect();
    before.chosen.missing = (!missing.is_empty()).then(|| missing.join("; "));
    for output in selection.output.as_deref().into_iter().chain(report) {
        refuse_input(&before.chosen.job, output)?;
        refuse_input(&after.job, output)?;
    }
    let scopes = [before.chosen.scopes(), after.scopes()];
    let jobs = [JobFacts::new(&scopes[0]), JobFacts::new(&scopes[1])];
    let diff = diff::compare_jobs(&jobs[0], &jobs[1]);
    let is_usable = |job: &store::Job| job.traces.iter().all(Trace::is_usable);
    let is_comparable = is_usable(&before.chosen.job) && is_usable(&after.job);
    // Steps are compared by their means, so a few missing steps do no harm. Whole windows are
    // compared by their sums, so a missing part of one window would count as a change.
    if before.chosen.missing.is_some() && (!is_comparable || diff.unit == DiffUnit::Window) {
        session
            .console
            .say("the recordings cannot be compared: their missing parts would count as changes");
        return match by {
            None | Some(DiffBy::Part) => before.put::<PartChange>(&[]),
            Some(_) => before.put::<SpentChange>(&[]),
        };
    }
    if let Some(out) = report {
        let names = [0, 1].map(|at| job_title(&selection.paths[at..=at]));
        let side = |at: usize| page::RecordingSide { name: &names[at], job: &jobs[at] };
        return write_report([side(0), side(1)], &diff, out, session);
    }
    let subject = match by {
        None => {
            let top = selection.top.unwrap_or(TOP);
            return before.report(&diff, |diff| table(diff, top));
        }
        Some(DiffBy::Part) => {
            let rows: Vec<&PartChange> = diff.parts.iter().chain(&diff.totals).collect();
            return before.put(&rows);
        }
        Some(DiffBy::Kernel) => DiffSubject::Kernel,
        Some(DiffBy::Operator) => DiffSubject::Operator,
        Some(DiffBy::Path) => DiffSubject::Path,
        Some(DiffBy::Host) => DiffSubject::Host,
        Some(DiffBy::Call) => DiffSubject::Call,
    };
    let rows: Vec<&SpentChange> = diff.filter_subject(subject).collect();
    before.put(&rows)
}

/// The result of `rowmill trace diff --report`, in the form in which it is printed.
#[derive(Serialize)]
struct WrittenDiff<'a> {
    #[serde(serialize_with = "render::path_text")]
    path: &'a Path,
    bytes: u64,
    verdict: &'a DiffVerdict,
    timeline_events: [u64; 2],
    /// Describes the missing parts of the recordings. `None` if they are complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    recording_cut: Option<&'a str>,
}

/// Writes the comparison as an HTML report.
fn write_report(
    sides: [page::RecordingSide<'_>; 2],
    diff: &Diff,
    out: &Path,
    session: &Session,
) -> Result<(), Error> {
    let options = Options {
        title: sides.map(|side| side.name).join(" → "),
        program: concat!("rowmill ", env!("CARGO_PKG_VERSION")).to_owned(),
        steps: TimelineSteps::Fitting,
        events_max: Options::EVENTS_MAX,
    };
    let report = page::build_report(sides, diff, &options)?;
    let page = html::diff_page(&report)?;
    output::put(out, |file| file.write_all(page.as_bytes()).map_err(Error::io(out, "write")))?;
    let written = WrittenDiff {
        path: out,
        bytes: page.len() as u64,
        verdict: &diff.verdict,
        timeline_events: report.sides.each_ref().map(|side| side.timeline.event_count),
        recording_cut: report.missing.as_deref(),
    };
    session.console.report(&written, |written| {
        let facts = render::facts(&[
            ("report", written.path.display().to_string()),
            ("size", schema::Bytes(written.bytes).to_string()),
        ]);
        format!("{}\n\n{facts}", written.verdict.text)
    })
}

/// Formats the comparison as text: verdict, both recordings, parts of the step, largest changes.
fn table(diff: &Diff, top: usize) -> String {
    let mut parts = vec![diff.verdict.text.clone(), side_table(diff), part_table(diff)];
    for (subject, title) in [
        (DiffSubject::Kernel, "kernels, copies and sets: device time"),
        (DiffSubject::Operator, "operators: device time of their own"),
        (DiffSubject::Host, "operators: host time of their own"),
        (DiffSubject::Call, "calls of the runtime: host time"),
    ] {
        let real = diff.filter_subject(subject).filter(|change| !change.is_noise);
        let rows: Vec<Vec<String>> =
            real.take(top).map(|change| change_row(diff, change)).collect();
        if !rows.is_empty() {
            parts.push(render::grid(
                &[title, "count", "before", "after", "change", "% of step"],
                &rows,
            ));
        }
    }
    let noise = diff.changes.iter().filter(|change| change.is_noise).count();
    parts.push(format!(
        "{} more changes are within the noise; --by part, kernel, operator, path, host or call prints all",
        render::count(noise as u64)
    ));
    parts.join("\n\n")
}

fn side_table(diff: &Diff) -> String {
    let unit = unit_name(diff);
    let row = |name: &str, side: &DiffSide| {
        let time = |ns: i64| render::nanos(ns as f64);
        let durations = &side.durations;
        vec![
            name.to_owned(),
            render::count(side.rank_count),
            render::count(side.unit_count),
            render::nanos(durations.mean_ns),
            time(durations.p5_ns),
            time(durations.p50_ns),
            time(durations.p95_ns),
        ]
    };
    let units = format!("{unit}s");
    let header = ["", "ranks", &units, "mean", "p5", "p50", "p95"];
    render::grid(&header, &[row("before", &diff.before), row("after", &diff.after)])
}

/// Formats the table that compares the parts of a step in both recordings.
fn part_table(diff: &Diff) -> String {
    let percent = |share: Option<f64>| share.map_or("-".to_owned(), |share| format!("{share:.1}"));
    let row = |part: &PartChange| {
        vec![
            part.part.replace('_', " "),
            render::nanos(part.before_ns as f64),
            render::nanos(part.after_ns as f64),
            format_change(part.delta_ns, part.noise_ns, part.is_noise),
            percent(part.explained_pct),
            percent(part.before_pct),
            percent(part.after_pct),
        ]
    };
    let is_there = |part: &&PartChange| part.before_mean_ns != 0 || part.after_mean_ns != 0;
    let there = diff.parts.iter().filter(is_there);
    let rows: Vec<Vec<String>> = there.map(row).collect();
    let title = format!("where the time of a {} goes (medians)", unit_name(diff));
    let header =
        [title.as_str(), "before", "after", "change", "% of change", "% before", "% after"];
    render::grid(&header, &rows)
}

fn change_row(diff: &Diff, spent: &SpentChange) -> Vec<String> {
    let name = match spent.shape.as_str() {
        "" => shorten_name(&spent.name),
        shape => format!("{}, {shape}", shorten_name(&spent.name)),
    };
    let each = |counts: [f64; 2]| match diff.unit {
        DiffUnit::Step => counts.map(|count| format!("{count:.1}")).join(" → "),
        DiffUnit::Window => counts.map(|count| render::count(count as u64)).join(" → "),
    };
    let counts = match diff.unit {
        DiffUnit::Step => [spent.before_per_unit, spent.after_per_unit],
        DiffUnit::Window => [spent.before_count as f64, spent.after_count as f64],
    };
    // Work that exists in only one recording has no time in the other one.
    let side = |ns: i64, missing: Presence| match spent.presence == missing {
        true => "-".to_owned(),
        false => render::nanos(ns as f64),
    };
    vec![
        name,
        each(counts),
        side(spent.before_ns, Presence::Added),
        side(spent.after_ns, Presence::Removed),
        format_change(spent.delta_ns, spent.noise_ns, spent.is_noise),
        spent.unit_pct.map_or("-".to_owned(), |share| format!("{share:+.1}")),
    ]
}

/// Formats a difference with its sign and with the range of the noise.
fn format_change(delta_ns: i64, noise_ns: Option<i64>, is_noise: bool) -> String {
    let sign = if delta_ns > 0 { "+" } else { "" };
    let delta = format!("{sign}{}", render::nanos(delta_ns as f64));
    match noise_ns {
        Some(_) if is_noise => format!("{delta} (noise)"),
        Some(noise) => format!("{delta} ± {}", render::nanos(noise as f64)),
        None => delta,
    }
}

fn unit_name(diff: &Diff) -> &'static str {
    match diff.unit {
        DiffUnit::Step => "step",
        DiffUnit::Window => "window",
    }
}
