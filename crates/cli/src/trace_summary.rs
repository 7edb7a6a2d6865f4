//! Formats the summary of a job as one page of text, which `rowmill trace PATH`, `quickstart` and
//! `capture` print.

use analyze::findings::{FindingReport, RuleSettings};
use analyze::kernels::plain_name;
use analyze::quality::{self, QualityVerdict, Severity};
use analyze::summary::{self as page, Era, JobSummary, Summary};
use analyze::{JobFacts, StepMark, WindowRule};
use serde::Serialize;

use crate::finding_text::top_findings;
use setup::error::Error;
use setup::findings::find_findings;
use setup::open_job::SelectedJob;
use setup::render;

/// Number of kernels and number of operators on the page, unless `--top` sets another number.
pub const TOP: usize = 5;
/// Largest number of characters of a name in a table.
const NAME_WIDTH: usize = 64;
/// Largest number of findings on the page.
const FINDINGS: usize = 3;

/// The content of the page, which is the summary of a job and its findings.
#[derive(Serialize)]
pub struct SummaryPage {
    #[serde(flatten)]
    summary: Summary,
    findings: FindingReport,
    #[serde(skip)]
    pub finding_count: usize,
}

/// Summarizes an opened job, with its `top` longest kernels and operators.
///
/// # Errors
/// A rule for findings is invalid.
pub fn summarize(chosen: &SelectedJob, top: usize) -> Result<SummaryPage, Error> {
    let scopes = chosen.scopes();
    let job = JobFacts::new(&scopes);
    let findings = find_findings(&job, &RuleSettings::default())?;
    let summary = page::summarize_job(&job, top);
    Ok(SummaryPage { summary, findings, finding_count: FINDINGS })
}

/// Formats the summary page as text for the terminal.
pub fn summary_text(page: &SummaryPage) -> String {
    let summary = &page.summary;
    let mut parts = vec![render::facts(&job_facts(page)), share_bars(summary)];
    if summary.ranks.len() > 1 {
        parts.push(rank_table(summary));
    }
    parts.push(kernel_table(summary));
    if summary.job.is_of_host {
        parts.push(self_time_table(summary));
        parts.push(thread_table(summary));
    }
    parts.push(operator_table(summary));
    parts.push(quality_text(summary));
    parts.push(match is_unknown(summary) {
        true => "findings: unknown, because no event of the recording was recognized".to_owned(),
        false => top_findings(&page.findings, page.finding_count),
    });
    parts.retain(|part| !part.is_empty());
    parts.join("\n\n")
}

/// Whether no event of the recording was recognized. No findings are shown then, because an empty
/// list would look as if nothing were wrong.
fn is_unknown(summary: &Summary) -> bool {
    let is_fatal = |issue: &quality::Issue| {
        issue.id == "no-events" || issue.id == "unknown-rows" && issue.severity == Severity::Error
    };
    summary.issues.iter().any(is_fatal)
}

fn job_facts(page: &SummaryPage) -> Vec<(&'static str, String)> {
    let job = &page.summary.job;
    let mut ranks = render::count(job.rank_count);
    // The world size is shown only if traces of some ranks are missing.
    if let Some(world) = job.world_size.filter(|world| u64::from(*world) != job.rank_count) {
        ranks += &format!(" of {world}");
    }
    if let Some(backend) = &job.backend {
        ranks += &format!(", {backend}");
    }
    let devices = match (job.is_of_host, job.devices.as_str()) {
        (true, _) => "none recorded: the host is the device".to_owned(),
        (_, "") if job.device_count == 0 => "none recorded".to_owned(),
        (_, "") => format!("{} × unknown", job.device_count),
        (_, names) => format!("{} × {names}", job.device_count),
    };
    let written = match job.era {
        Era::Unknown => "unknown",
        Era::Kineto2021 => "PyTorch 1.8 to 1.10",
        Era::KinetoMicroseconds => "PyTorch 1.11 to 2.2",
        Era::KinetoNanoseconds => "PyTorch 2.3",
        Era::KinetoBaseTime => "PyTorch 2.4 or later",
        Era::Autograd => "PyTorch's autograd profiler (EventList.export_chrome_trace)",
        Era::Ascend => "torch_npu (Ascend)",
        Era::Rowmill => "rowmill",
        Era::Foreign => job.foreign_writer.unwrap_or("an unknown program"),
    };
    let is_pool = job.is_pool;
    let window = match job.window_rule {
        Some(WindowRule::Steps) => format!("{} whole steps", job.step_count),
        Some(WindowRule::Hta) => "the part that Holistic Trace Analysis keeps".to_owned(),
        _ => "everything recorded".to_owned(),
    };
    let over = match job.rank_count {
        0 | 1 => String::new(),
        ranks => format!(" over all {ranks} ranks"),
    };
    let sum_suffix = |what: &str| match job.rank_count {
        0 | 1 => String::new(),
        ranks => format!(" of {what} of all {ranks} ranks"),
    };
    let percent = |share: Option<f64>, what: &str| {
        share.map_or("-".to_owned(), |share| format!("{share:.1} %{}", sum_suffix(what)))
    };
    let mut facts = vec![
        ("written by", written.to_owned()),
        (if is_pool { "CPU pools" } else { "devices" }, devices),
        ("ranks", ranks),
        (
            "events",
            format!("{} in {}", render::count(job.event_count), schema::Bytes(job.text_bytes)),
        ),
        ("window", format!("{window}, {}{over}", render::nanos(job.window_ns as f64))),
        ("step", describe_step(job)),
    ];
    if !page.findings.step_summary.is_empty() && !is_unknown(&page.summary) {
        facts.push(("adds up", page.findings.step_summary.clone()));
    }
    if !job.is_of_host {
        let busy = if is_pool { "pool busy" } else { "device busy" };
        facts.push((busy, percent(job.busy_pct, "the windows")));
        let attributed = percent(job.attributed_pct, "the device work");
        facts.push(("work with a known operator", attributed));
    }
    facts
}

/// Describes the median step of the slowest rank on the host. Adds the step on the device if it
/// differs.
fn describe_step(job: &JobSummary) -> String {
    let Some(ns) = job.step_p50_ns else { return "no steps named".to_owned() };
    let host = render::nanos(ns as f64);
    let mut whose = match (job.rank_count, job.step_rank) {
        (2.., Some(rank)) => format!(" of rank {rank}, the slowest"),
        _ => String::new(),
    };
    if let Some(source) = job.step_mark.and_then(StepMark::source) {
        whose += &format!("; inferred from {source}");
    }
    match job.device_step_p50_ns {
        Some(device) => {
            let device = render::nanos(device as f64);
            format!("{host} on the host, {device} on the device (medians{whose})")
        }
        None => format!("{host} (median{whose})"),
    }
}

/// Formats the bars that show where the time of the windows goes. The parts add up to the windows.
fn share_bars(summary: &Summary) -> String {
    if summary.job.device_count == 0 && !summary.job.is_of_host {
        // If the recording is cut, its device work may just be missing from the file.
        let is_known = summary.verdict != QualityVerdict::Broken;
        return if is_known { "no device work was recorded".to_owned() } else { String::new() };
    }
    const WIDTH: f64 = 40.0;
    let rows: Vec<Vec<String>> = summary
        .parts
        .iter()
        .filter(|part| part.time_ns > 0)
        .map(|part| {
            let share = part.window_pct.unwrap_or_default();
            vec![
                part_name(part.part, summary.job.is_of_host),
                render::nanos(part.time_ns as f64),
                format!("{share:.1}"),
                "█".repeat((share / 100.0 * WIDTH).round() as usize),
            ]
        })
        .collect();
    let share = match summary.job.rank_count {
        0 | 1 => "% of the window",
        _ => "% of all ranks' windows",
    };
    render::grid(&["where the time goes", "time", share, ""], &rows)
}

fn part_name(part: &str, is_of_host: bool) -> String {
    match part {
        "compute" if is_of_host => "in operators".to_owned(),
        "exposed_other" if is_of_host => "between operators".to_owned(),
        _ => part.replace('_', " "),
    }
}

fn self_time_table(summary: &Summary) -> String {
    let rows: Vec<Vec<String>> = summary
        .own_times
        .iter()
        .map(|one| {
            vec![
                shorten_name(&one.name),
                render::count(one.count),
                render::nanos(one.own_ns as f64),
                render::nanos(one.host_ns as f64),
                one.window_pct.map_or("-".to_owned(), |share| format!("{share:.1}")),
            ]
        })
        .collect();
    let share = match summary.job.rank_count {
        0 | 1 => "self, % of the window",
        _ => "self, % of all ranks' windows",
    };
    render::grid(&["operators by self time", "count", "self", "total", share], &rows)
}

fn thread_table(summary: &Summary) -> String {
    let rows: Vec<Vec<String>> = summary
        .threads
        .iter()
        .map(|one| {
            vec![
                one.thread.clone(),
                one.rank.to_string(),
                render::count(one.operator_count),
                render::nanos(one.operator_ns as f64),
                one.window_pct.map_or("-".to_owned(), |share| format!("{share:.1}")),
            ]
        })
        .collect();
    let head = ["threads", "rank", "operators", "in operators", "% of the rank's window"];
    render::grid(&head, &rows)
}

fn rank_table(summary: &Summary) -> String {
    let percent = |share: Option<f64>| share.map_or("-".to_owned(), |share| format!("{share:.1}"));
    let rows: Vec<Vec<String>> = summary
        .ranks
        .iter()
        .map(|rank| {
            let step = |ns: Option<i64>| ns.map_or("-".to_owned(), |ns| render::nanos(ns as f64));
            vec![
                rank.rank.to_string(),
                render::nanos(rank.window_ns as f64),
                step(rank.step_p50_ns),
                step(rank.device_step_p50_ns),
                percent(rank.busy_pct),
                percent(rank.exposed_communication_pct),
            ]
        })
        .collect();
    let head = ["rank", "window", "step", "device's step", "busy %", "exposed communication %"];
    render::grid(&head, &rows)
}

fn kernel_table(summary: &Summary) -> String {
    if summary.kernels.is_empty() {
        return String::new();
    }
    let rows: Vec<Vec<String>> = summary
        .kernels
        .iter()
        .map(|kernel| {
            vec![
                shorten_name(&kernel.name),
                render::count(kernel.count),
                render::nanos(kernel.total_ns as f64),
                kernel.busy_pct.map_or("-".to_owned(), |share| format!("{share:.1}")),
            ]
        })
        .collect();
    let what = match summary.job.is_pool {
        true => "operations of the pool",
        false => "kernels, copies and sets",
    };
    render::grid(&[what, "count", "time", busy_name(summary)], &rows)
}

fn operator_table(summary: &Summary) -> String {
    if summary.operators.is_empty() {
        return String::new();
    }
    let rows: Vec<Vec<String>> = summary
        .operators
        .iter()
        .map(|operator| {
            let mut row = vec![
                shorten_name(&operator.name),
                render::count(operator.count),
                render::nanos(operator.host_ns as f64),
            ];
            if !summary.job.is_of_host {
                row.push(render::nanos(operator.device_ns as f64));
                row.push(operator.busy_pct.map_or("-".to_owned(), |pct| format!("{pct:.1}")));
            }
            row
        })
        .collect();
    if summary.job.is_of_host {
        return render::grid(&["outermost operators", "count", "on the host"], &rows);
    }
    let [thread, work] = match summary.job.is_pool {
        true => ["on its thread", "on the pool"],
        false => ["on the host", "on devices"],
    };
    let head = ["outermost operators", "count", thread, work, busy_name(summary)];
    render::grid(&head, &rows)
}

fn busy_name(summary: &Summary) -> &'static str {
    if summary.ranks.len() > 1 { "% of all ranks' busy time" } else { "% of busy" }
}

/// Formats the verdict on the quality of the trace, with its warnings and errors.
fn quality_text(summary: &Summary) -> String {
    let mut lines = vec![format!("quality of the trace: {}", summary.verdict_words)];
    for kind in quality::by_kind(&summary.issues) {
        if kind.severity != Severity::Info {
            lines.push(format!("  {}: {}", kind.id, kind.words(summary.job.rank_count)));
        }
    }
    if lines.len() > 1 {
        lines.push(
            "  rowmill trace doctor says which figures are affected and what to do".to_owned(),
        );
    }
    lines.join("\n")
}

/// Shortens a name so that it fits into a table.
pub fn shorten_name(name: &str) -> String {
    let name = plain_name(name);
    if name.chars().count() <= NAME_WIDTH {
        return name.to_owned();
    }
    let kept: String = name.chars().take(NAME_WIDTH - 1).collect();
    format!("{kept}…")
}

/// Formats the summary that other commands print at their end, which has only one finding.
///
/// # Errors
/// The errors of [`summarize`].
pub fn short_summary(job: &SelectedJob) -> Result<String, Error> {
    let mut page = summarize(job, TOP)?;
    page.finding_count = 1;
    Ok(summary_text(&page))
}
