//! The command `rowmill fleet doctor --job` or `--host`: what is wrong with a run or a host by its
//! rows, and what to do about it. The hub judges.

use std::process::ExitCode;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::hub::{HubClient, TimeRange};
use super::report::{moment, number, optional};
use super::sections::{MailedPage, ReportSection};
use crate::args::FleetDoctor;
use setup::Session;
use setup::error::Error;
use setup::error_text::plain;
use setup::render;

/// Length of the time unless one is given.
const DAY: Duration = Duration::from_secs(86_400);

/// What the hub says, without charts.
#[derive(Debug, Serialize, Deserialize)]
struct DoctorReport {
    since_unix_s: u64,
    until_unix_s: u64,
    hosts: Vec<String>,
    gpus: u64,
    gpu_hours: f64,
    findings: Vec<HubIssueFound>,
    not_judged: Vec<String>,
}

/// An issue of a run or a host.
#[derive(Debug, Serialize, Deserialize)]
struct HubIssueFound {
    rule: String,
    tab: String,
    title: String,
    severity: String,
    what: String,
    advice: String,
    lost_gpu_hours: Option<f64>,
    place_count: u64,
    /// The GPUs, hosts, runs or processes that lose most, with figures.
    places: serde_json::Value,
    limits: serde_json::Value,
}

/// Asks the hub about a run or a host, by dimension and name, and prints its answer.
pub fn run(
    args: &FleetDoctor,
    [dimension, name]: &[String; 2],
    session: &Session,
) -> Result<ExitCode, Error> {
    let client = HubClient::open(&args.place())?;
    let range = TimeRange::before(None, args.since.unwrap_or(DAY));
    let report: DoctorReport = client.ask("doctor", range, &[(dimension, name)])?;
    session.console.report(&report, |report| describe(report, &format!("{dimension} {name}")))?;
    Ok(ExitCode::SUCCESS)
}

fn describe(report: &DoctorReport, subject: &str) -> String {
    let time = [report.since_unix_s, report.until_unix_s].map(moment);
    let notes = [format!(
        "{} on {}, held for {} GPU h, {} to {}.",
        render::counted(report.gpus, "GPU"),
        render::counted(report.hosts.len() as u64, "host"),
        number(report.gpu_hours),
        time[0],
        time[1]
    )];
    let issue = |one: &HubIssueFound| {
        let (severity, lost) = (plain(&one.severity), optional(one.lost_gpu_hours));
        vec![plain(&one.rule), severity, plain(&one.tab), plain(&one.title), lost]
    };
    let mut sections = vec![ReportSection {
        title: match report.findings.len() {
            0 => "No issues".to_owned(),
            _ => "Issues, the worst first; several may cost the same hours".to_owned(),
        },
        notes: Vec::new(),
        head: vec!["rule", "severity", "tab", "issue", "lost GPU h at most"],
        rows: report.findings.iter().map(issue).collect(),
        bar: None,
    }];
    sections.extend(report.findings.iter().map(|one| ReportSection {
        title: format!("{} · {}", plain(&one.rule), plain(&one.title)),
        notes: vec![plain(&one.what), format!("What to do: {}", plain(&one.advice))],
        head: Vec::new(),
        rows: Vec::new(),
        bar: None,
    }));
    sections.push(ReportSection {
        title: "Not judged".to_owned(),
        notes: report.not_judged.iter().map(|text| plain(text)).collect(),
        head: Vec::new(),
        rows: Vec::new(),
        bar: None,
    });
    MailedPage { title: plain(subject), notes: &notes, sections }.text()
}
