//! The commands `rowmill fleet trace --job`, `rowmill fleet orders` and `rowmill fleet findings`,
//! which order traces through the hub and show what they say.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use chrono::DateTime;
use serde::{Deserialize, Serialize};

use super::hub::{HubClient, TimeRange};
use crate::args::{FleetFindings, FleetOrders, FleetTrace};
use setup::Session;
use setup::error::{EXIT_FAILED, Error};
use setup::error_text::plain;
use setup::render;

/// Time between two queries for the state of an order.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Number of the findings of an order that are shown.
const SHOWN: usize = 3;

/// What a person wishes to be traced.
#[derive(Serialize)]
struct WishedTrace<'a> {
    job: Option<&'a str>,
    host: Option<&'a str>,
    steps: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    align: Option<u32>,
    why: &'static str,
}

/// The orders of a time.
#[derive(Debug, Deserialize)]
struct ListedOrders {
    orders: Vec<ListedOrder>,
}

/// An order, and what became of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct ListedOrder {
    id: u64,
    created_unix_s: u64,
    by: String,
    why: String,
    run: String,
    workflow: String,
    user: String,
    is_over: bool,
    progress: Vec<HubProgress>,
    traces: Vec<HubTrace>,
    report: Option<String>,
    analysis: Option<HubAnalysis>,
}

/// What became of an order on one host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct HubProgress {
    host: String,
    state: String,
    reason: String,
}

/// A trace at the hub.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct HubTrace {
    path: String,
    bytes: u64,
}

/// What the traces of an order say.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct HubAnalysis {
    error: String,
    step_ns: i64,
    findings: Vec<HubFinding>,
}

/// A finding of a trace.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct HubFinding {
    rule: String,
    title: String,
    category: String,
    what: String,
    saving: Option<HubSaving>,
}

/// Time that a step would save.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct HubSaving {
    mid_ns: i64,
}

/// What the findings of the fleet cost.
#[derive(Debug, Serialize, Deserialize)]
struct HubLosses {
    gpu_hours: f64,
    traced_gpu_hours: f64,
    #[serde(default)]
    sampled_gpu_hours: f64,
    lost_gpu_hours: f64,
    traces: u64,
    workflows: Vec<HubWorkflow>,
    findings: Vec<HubLoss>,
    findings_left_out: u64,
}

/// What a workflow type of a user loses.
#[derive(Debug, Serialize, Deserialize)]
struct HubWorkflow {
    workflow: String,
    user: String,
    gpu_hours: f64,
    traced_gpu_hours: f64,
    #[serde(default)]
    sampled_gpu_hours: f64,
    lost_gpu_hours: f64,
    traces: u64,
}

/// What a finding costs a run.
#[derive(Debug, Serialize, Deserialize)]
struct HubLoss {
    rule: String,
    title: String,
    workflow: String,
    user: String,
    run: String,
    traces: u64,
    gpu_hours: f64,
    lost_gpu_hours: f64,
    lost_gpu_hours_low: f64,
    lost_gpu_hours_high: f64,
    what: String,
    advice: String,
    order: u64,
}

/// Orders a trace through the hub, and waits until it is analyzed.
pub fn run_trace(args: &FleetTrace, session: &Session) -> Result<ExitCode, Error> {
    let hub = HubClient::open(&args.through.place(&args.reach))?;
    let align = match args.align {
        crate::args::Align::Auto => None,
        crate::args::Align::Given(align) => Some(align),
    };
    let wish = WishedTrace {
        job: args.through.job.as_deref(),
        host: args.through.host.as_deref(),
        steps: args.iterations,
        align,
        why: "rowmill fleet trace",
    };
    let mut order: ListedOrder = hub.post("traces", &wish)?;
    let hosts: Vec<&str> = order.progress.iter().map(|one| one.host.as_str()).collect();
    session.console.say(format_args!("order {} for {}", order.id, plain(&hosts.join(", "))));
    let until = Instant::now() + args.timeout;
    let mut said = Vec::new();
    while !order.is_over && Instant::now() < until {
        for one in order.progress.iter().filter(|one| !said.contains(*one)) {
            let why =
                if one.reason.is_empty() { String::new() } else { format!(": {}", one.reason) };
            let line = plain(&format!("{}: {}{why}", one.host, one.state));
            session.console.say(format_args!("{line}"));
        }
        said.clone_from(&order.progress);
        std::thread::sleep(POLL_INTERVAL);
        let range = TimeRange::before(None, args.timeout + Duration::from_secs(3600));
        let found: ListedOrders = hub.ask("orders", Some(range), &[])?;
        let found = found.orders.into_iter().find(|one| one.id == order.id);
        order = found.unwrap_or(order);
    }
    if !order.is_over {
        let wait = args.timeout.as_secs();
        session.console.say(format_args!(
            "not over after {wait} s; `rowmill fleet orders` shows what became of it"
        ));
    }
    session.console.report(&order, |order| order_text(order, hub.url()))?;
    let has_traces = order.analysis.as_ref().is_some_and(|analysis| analysis.error.is_empty());
    Ok(if has_traces { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FAILED) })
}

fn order_text(order: &ListedOrder, url: &str) -> String {
    let mut text = render::grid(&["host", "state", "reason"], &progress_rows(order));
    if let Some(analysis) = &order.analysis {
        if !analysis.error.is_empty() {
            text += &format!("\n\nno findings: {}", plain(&analysis.error));
        }
        for (finding, saving) in order.worst(SHOWN) {
            let share = 100.0 * saving as f64 / analysis.step_ns.max(1) as f64;
            let (rule, title, what) = (&finding.rule, &finding.title, &finding.what);
            text += &plain(&format!("\n\n{rule} {title}: saves {share:.1} % of a step. {what}"));
        }
    }
    if let Some(report) = &order.report {
        text += &format!("\n\nreport: {}", plain(&format!("{url}{report}")));
    }
    text
}

impl ListedOrder {
    /// Returns the findings that save most, with the time in nanoseconds that a step would save.
    fn worst(&self, count: usize) -> Vec<(&HubFinding, i64)> {
        let findings = self.analysis.iter().flat_map(|analysis| &analysis.findings);
        let mut findings: Vec<_> = findings
            .filter_map(|finding| Some((finding, finding.saving?.mid_ns)))
            .filter(|(_, saving)| *saving > 0)
            .collect();
        findings.sort_by_key(|(_, saving)| std::cmp::Reverse(*saving));
        findings.truncate(count);
        findings
    }
}

fn progress_rows(order: &ListedOrder) -> Vec<Vec<String>> {
    let row = |one: &HubProgress| [&one.host, &one.state, &one.reason].map(|text| plain(text));
    order.progress.iter().map(|one| row(one).to_vec()).collect()
}

/// Lists the orders of a time.
pub fn run_orders(args: &FleetOrders, session: &Session) -> Result<ExitCode, Error> {
    let hub = HubClient::open(&args.place)?;
    let found: ListedOrders = hub.ask("orders", Some(TimeRange::before(None, args.since)), &[])?;
    session.console.report(&found.orders, |orders| {
        let rows: Vec<Vec<String>> = orders.iter().map(order_row).collect();
        let heads = ["time (UTC)", "order", "by", "run", "workflow", "hosts", "finding", "why"];
        render::grid(&heads, &rows)
    })?;
    Ok(ExitCode::SUCCESS)
}

fn order_row(order: &ListedOrder) -> Vec<String> {
    let time =
        i64::try_from(order.created_unix_s).ok().and_then(|s| DateTime::from_timestamp(s, 0));
    let time = time.map_or(String::new(), |time| time.format("%Y-%m-%d %H:%M").to_string());
    let hosts: Vec<String> =
        order.progress.iter().map(|one| format!("{}: {}", one.host, one.state)).collect();
    let finding = match &order.analysis {
        None => String::new(),
        Some(analysis) if !analysis.error.is_empty() => plain(&analysis.error),
        Some(_) => order.worst(1).first().map_or("none".to_owned(), |(finding, _)| {
            plain(&format!("{} {}", finding.rule, finding.title))
        }),
    };
    vec![
        time,
        order.id.to_string(),
        plain(&order.by),
        plain(&order.run),
        plain(&order.workflow),
        plain(&hosts.join(", ")),
        finding,
        plain(&order.why),
    ]
}

/// Lists what the findings of all traces cost.
pub fn run_findings(args: &FleetFindings, session: &Session) -> Result<ExitCode, Error> {
    let hub = HubClient::open(&args.place)?;
    let limit = args.top.to_string();
    let pairs = [("limit", limit.as_str())];
    let losses: HubLosses =
        hub.ask("findings", Some(TimeRange::before(None, args.since)), &pairs)?;
    session.console.report(&losses, losses_text)?;
    Ok(ExitCode::SUCCESS)
}

fn losses_text(losses: &HubLosses) -> String {
    let hours = |hours: f64| format!("{hours:.2}");
    let mut text = format!(
        "{} GPU h could be saved. {} traces stand for {} of {} allocated GPU h.\n\n",
        hours(losses.lost_gpu_hours),
        losses.traces,
        hours(losses.traced_gpu_hours),
        hours(losses.gpu_hours)
    );
    let workflow = |one: &HubWorkflow| {
        vec![
            plain(&one.workflow),
            plain(&one.user),
            hours(one.gpu_hours),
            hours(one.traced_gpu_hours),
            hours(one.sampled_gpu_hours),
            hours(one.lost_gpu_hours),
            one.traces.to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = losses.workflows.iter().map(workflow).collect();
    let heads = ["workflow", "user", "GPU h", "traced", "by samples", "could be saved", "traces"];
    text += &render::grid(&heads, &rows);
    let finding = |one: &HubLoss| {
        let (low, high) = (hours(one.lost_gpu_hours_low), hours(one.lost_gpu_hours_high));
        vec![
            plain(&format!("{} {}", one.rule, one.title)),
            plain(&one.workflow),
            if one.run.is_empty() { "(samples)".to_owned() } else { plain(&one.run) },
            one.traces.to_string(),
            hours(one.gpu_hours),
            format!("{} ({low} to {high})", hours(one.lost_gpu_hours)),
        ]
    };
    let rows: Vec<Vec<String>> = losses.findings.iter().map(finding).collect();
    let heads = ["finding", "workflow", "run", "traces", "GPU h", "lost GPU h"];
    text += &format!("\n\n{}", render::grid(&heads, &rows));
    if losses.findings_left_out > 0 {
        text += &format!("\n{} more: --top shows them", losses.findings_left_out);
    }
    text + "\nFindings of a run may save the same time, so they are not added up."
}
