//! The command `rowmill fleet doctor --job` or `--host`: what is wrong with a run or a host by its
//! rows, and what to do about it. The hub judges.

use std::process::ExitCode;

use serde::{Deserialize, Serialize};

use super::hub::{HubClient, TimeRange};
use super::report::{moment, number, optional};
use super::sections::{MailedPage, ReportSection};
use crate::args::FleetDoctor;
use setup::Session;
use setup::error::Error;
use setup::error_text::plain;
use setup::render;

/// What the hub says, without charts.
#[derive(Debug, Serialize, Deserialize)]
struct DoctorReport {
    since_unix_s: u64,
    until_unix_s: u64,
    notes: Vec<String>,
    hosts: Vec<String>,
    gpus: u64,
    gpu_hours: f64,
    cpu_busy: Option<f64>,
    steps: Vec<HubSteps>,
    findings: Vec<HubIssueFound>,
    losses: HubLostHours,
    not_judged: Vec<String>,
}

/// The training steps of a run, or of a process of no run.
#[derive(Debug, Serialize, Deserialize)]
pub struct HubSteps {
    name: String,
    steps: u64,
    steps_per_s: f64,
    mean_step_s: Option<f64>,
}

/// Where the lost GPU hours went. The parts add up.
#[derive(Debug, Serialize, Deserialize)]
struct HubLostHours {
    lost_gpu_hours: f64,
    unobserved_gpu_hours: f64,
    parts: Vec<HubLossPart>,
}

/// A part of the lost hours.
#[derive(Debug, Serialize, Deserialize)]
struct HubLossPart {
    rule: Option<String>,
    title: String,
    gpu_hours: f64,
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
    explained_gpu_hours: f64,
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
    // Without a time, the hub takes the whole time of a job, and a day of a host.
    let range = args.since.map(|since| TimeRange::before(None, since));
    let report: DoctorReport = client.ask("doctor", range, &[(dimension, name)])?;
    session.console.report(&report, |report| describe(report, &format!("{dimension} {name}")))?;
    Ok(ExitCode::SUCCESS)
}

fn describe(report: &DoctorReport, subject: &str) -> String {
    let time = [report.since_unix_s, report.until_unix_s].map(moment);
    let [gpus, hosts] = [(report.gpus, "GPU"), (report.hosts.len() as u64, "host")]
        .map(|(count, word)| render::counted(count, word));
    let held = match report.gpus {
        0 => String::new(),
        _ => format!(", held for {} GPU h", number(report.gpu_hours)),
    };
    let mut notes = vec![format!("{gpus} on {hosts}{held}, {} to {}.", time[0], time[1])];
    notes.extend(report.notes.iter().map(|note| plain(note)));
    if let Some(share) = report.cpu_busy {
        notes.push(format!(
            "CPUs of the hosts were busy for {} % of the time.",
            number(share * 100.0)
        ));
    }
    notes.extend(report.steps.iter().map(describe_steps));
    let issue = |one: &HubIssueFound| {
        let (severity, lost) = (plain(&one.severity), optional(one.lost_gpu_hours));
        vec![plain(&one.rule), severity, plain(&one.tab), plain(&one.title), lost]
    };
    let mut sections = vec![ReportSection {
        title: match report.findings.len() {
            0 => "No issues".to_owned(),
            _ => "Issues, the worst first; several may claim the same hours".to_owned(),
        },
        notes: Vec::new(),
        head: vec!["rule", "severity", "tab", "issue", "lost GPU h at most"],
        rows: report.findings.iter().map(issue).collect(),
        bar: None,
    }];
    sections.extend(loss_section(&report.losses));
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

/// Describes the steps of a run or a process.
pub fn describe_steps(steps: &HubSteps) -> String {
    let mean = steps.mean_step_s.map_or(String::new(), |mean_s| format!(", {mean_s:.4} s each"));
    let rate = format!("{:.2} per second and process", steps.steps_per_s);
    format!("{}: {}, {rate}{mean}.", plain(&steps.name), render::counted(steps.steps, "step"))
}

/// Lists the causes of the lost hours, which add up.
fn loss_section(losses: &HubLostHours) -> Option<ReportSection> {
    let all = losses.lost_gpu_hours;
    let row = |part: &HubLossPart| {
        let rule = part.rule.as_deref().unwrap_or("-");
        let share = number(part.gpu_hours / all * 100.0);
        vec![plain(rule), plain(&part.title), number(part.gpu_hours), share]
    };
    let mut notes = vec![format!(
        "GPUs or their SMs were seen to be idle for {} of the held GPU h. Each hour counts once.",
        number(all)
    )];
    if losses.unobserved_gpu_hours > 0.0 {
        let hours = number(losses.unobserved_gpu_hours);
        notes.push(format!("Activity was not observed in {hours} further GPU h."));
    }
    (all > 0.0).then(|| ReportSection {
        title: "Lost GPU hours by cause".to_owned(),
        notes,
        head: vec!["rule", "cause", "lost GPU h", "%"],
        rows: losses.parts.iter().map(row).collect(),
        bar: Some(3),
    })
}
