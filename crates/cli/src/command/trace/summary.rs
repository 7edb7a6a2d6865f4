//! `rowmill trace PATH`: a job in one page. `quickstart` ends with it.

use std::path::Path;

use analyze::WindowRule;
use analyze::antipattern::Report;
use analyze::kernels::plain_name;
use analyze::quality::{self, Known, Severity, Verdict};
use analyze::summary::{self as page, Era, Summary};
use serde::Serialize;

use super::{Look, finding};
use crate::args::Selection;
use crate::error::Error;
use crate::render;
use crate::resolve::Session;
use crate::resolve::trace::{Chosen, choose};

/// Kernels and operators that are named.
const TOP: usize = 5;
/// Letters of a name that are shown.
const NAME_WIDTH: usize = 64;

/// Findings that are named.
const FINDINGS: usize = 3;

/// A job in one page, and what wastes its time.
#[derive(Serialize)]
struct Page {
    #[serde(flatten)]
    summary: Summary,
    findings: Report,
    #[serde(skip)]
    finding_count: usize,
}

/// Runs the command.
pub fn run(selection: &Selection, session: &Session) -> Result<(), Error> {
    let look = Look::new(selection, session)?;
    let page = of(&look.chosen, selection.top.unwrap_or(TOP))?;
    look.report(&page, table)
}

/// The page of our own trace, for people.
pub fn of_run(folder: &Path, session: &Session) -> Result<String, Error> {
    let selection = Selection {
        paths: vec![folder.to_owned()],
        window: None,
        classify: None,
        classes: Vec::new(),
        compat: None,
        ranks: Vec::new(),
        top: None,
        output: None,
    };
    let mut page = of(&choose(&selection, session)?, TOP)?;
    page.finding_count = 1;
    Ok(table(&page))
}

fn of(chosen: &Chosen, top: usize) -> Result<Page, Error> {
    let scopes = chosen.scopes();
    let known = Known::of(&scopes);
    let findings = finding::of(&scopes, &known)?;
    let summary = page::of(&known.evidence(&scopes), top);
    Ok(Page { summary, findings, finding_count: FINDINGS })
}

/// The page as text.
fn table(page: &Page) -> String {
    let summary = &page.summary;
    let mut parts = vec![render::facts(&job(summary)), share_bars(summary)];
    if summary.ranks.len() > 1 {
        parts.push(ranks(summary));
    }
    parts.push(kernels(summary));
    parts.push(operators(summary));
    parts.push(trust(summary));
    parts.push(finding::top(&page.findings, page.finding_count));
    parts.retain(|part| !part.is_empty());
    parts.join("\n\n")
}

fn job(summary: &Summary) -> Vec<(&'static str, String)> {
    let job = &summary.job;
    let mut ranks = render::count(job.rank_count);
    if let Some(world) = job.world_size.filter(|world| u64::from(*world) != job.rank_count) {
        ranks += &format!(" of {world}");
    }
    if let Some(backend) = &job.backend {
        ranks += &format!(", {backend}");
    }
    let devices = if job.devices.is_empty() { "unknown" } else { &job.devices };
    let written = match job.era {
        Era::Unknown => "unknown",
        Era::Kineto2021 => "PyTorch 1.8 to 1.10",
        Era::KinetoMicroseconds => "PyTorch 1.11 to 2.2",
        Era::KinetoNanoseconds => "PyTorch 2.3",
        Era::KinetoBaseTime => "PyTorch 2.4 or later",
        Era::Rowmill => "rowmill",
    };
    let is_pool = job.is_pool;
    let window = match job.window_rule {
        Some(WindowRule::Steps) => format!("{} whole steps", job.step_count),
        Some(WindowRule::Hta) => "what Holistic Trace Analysis keeps".to_owned(),
        _ => "everything recorded".to_owned(),
    };
    let over = match job.rank_count {
        0 | 1 => String::new(),
        ranks => format!(" over all {ranks} ranks"),
    };
    let step = job.step_p50_ns.map_or("no steps named".to_owned(), |ns| {
        format!("{} (median of the slowest rank)", render::nanos(ns as f64))
    });
    let percent =
        |share: Option<f64>| share.map_or("-".to_owned(), |share| format!("{share:.1} %"));
    vec![
        ("written by", written.to_owned()),
        (
            if is_pool { "CPU pools" } else { "devices" },
            format!("{} × {devices}", job.device_count),
        ),
        ("ranks", ranks),
        (
            "events",
            format!("{} in {}", render::count(job.event_count), schema::Bytes(job.text_bytes)),
        ),
        ("window", format!("{window}, {}{over}", render::nanos(job.window_ns as f64))),
        ("step", step),
        (if is_pool { "pool busy" } else { "device busy" }, percent(job.busy_pct)),
        ("work with a known operator", percent(job.attributed_pct)),
    ]
}

/// Where the time of all windows goes, as bars: the parts add up.
fn share_bars(summary: &Summary) -> String {
    if summary.job.device_count == 0 {
        // Of a cut recording nobody knows that.
        let is_known = summary.verdict != Verdict::Broken;
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
                part.part.replace('_', " "),
                render::nanos(part.time_ns as f64),
                format!("{share:.1}"),
                "█".repeat((share / 100.0 * WIDTH).round() as usize),
            ]
        })
        .collect();
    render::grid(&["where the time goes", "time", "%", ""], &rows)
}

fn ranks(summary: &Summary) -> String {
    let percent = |share: Option<f64>| share.map_or("-".to_owned(), |share| format!("{share:.1}"));
    let rows: Vec<Vec<String>> = summary
        .ranks
        .iter()
        .map(|rank| {
            let step = rank.step_p50_ns.map_or("-".to_owned(), |ns| render::nanos(ns as f64));
            vec![
                rank.rank.to_string(),
                render::nanos(rank.window_ns as f64),
                step,
                percent(rank.busy_pct),
                percent(rank.exposed_communication_pct),
            ]
        })
        .collect();
    render::grid(&["rank", "window", "step", "busy %", "exposed communication %"], &rows)
}

fn kernels(summary: &Summary) -> String {
    if summary.kernels.is_empty() {
        return String::new();
    }
    let rows: Vec<Vec<String>> = summary
        .kernels
        .iter()
        .map(|kernel| {
            vec![
                shortened(&kernel.name),
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
    render::grid(&[what, "count", "time", "% of busy"], &rows)
}

fn operators(summary: &Summary) -> String {
    if summary.operators.is_empty() {
        return String::new();
    }
    let rows: Vec<Vec<String>> = summary
        .operators
        .iter()
        .map(|operator| {
            vec![
                shortened(&operator.name),
                render::count(operator.count),
                render::nanos(operator.host_ns as f64),
                render::nanos(operator.device_ns as f64),
                operator.busy_pct.map_or("-".to_owned(), |share| format!("{share:.1}")),
            ]
        })
        .collect();
    let places = match summary.job.is_pool {
        true => ["on its thread", "on the pool"],
        false => ["on the host", "on devices"],
    };
    render::grid(&["outermost operators", "count", places[0], places[1], "% of busy"], &rows)
}

fn trust(summary: &Summary) -> String {
    let mut lines = vec![format!("quality of the trace: {}", verdict(summary.verdict))];
    for kind in quality::by_kind(&summary.issues) {
        if kind.severity != Severity::Info {
            lines.push(format!("  {}: {}", kind.id, kind.what));
        }
    }
    if !summary.issues.is_empty() {
        lines.push("  rowmill trace doctor says what that hurts and what to do".to_owned());
    }
    lines.join("\n")
}

fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Good => "good",
        Verdict::Doubtful => "doubtful, some figures may mislead",
        Verdict::Poor => "poor, some figures are wrong",
        Verdict::Broken => "broken, parts of the recording are missing",
    }
}

/// A name that fits a table.
pub fn shortened(name: &str) -> String {
    let name = plain_name(name);
    if name.chars().count() <= NAME_WIDTH {
        return name.to_owned();
    }
    let kept: String = name.chars().take(NAME_WIDTH - 1).collect();
    format!("{kept}…")
}
