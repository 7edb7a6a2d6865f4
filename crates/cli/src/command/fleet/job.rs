//! The command `rowmill fleet job`: what happened to one job, from its first hour to its last. All
//! figures come from the hub.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::doctor::{HubSteps, describe_steps};
use super::hub::{ALL, HOUR_S, HubClient, HubGroup, HubRun, HubSums, TimeRange};
use super::report::{describe_gaps, moment, number, optional, shares, show, span};
use super::sections::{MailedPage, ReportSection};
use crate::args::FleetJob;
use setup::Session;
use setup::error::Error;
use setup::error_text::plain;

/// What happened to a job. Times are GPU hours.
#[derive(Debug, Serialize)]
struct JobSummary {
    run: String,
    user: String,
    workflow: String,
    models: Vec<String>,
    /// How the job ended, in words.
    end: String,
    /// The failed job that this one repeats.
    repeats: Option<String>,
    first_unix_s: u64,
    last_unix_s: u64,
    notes: Vec<String>,
    allocated_hours: f64,
    held_idle_hours: f64,
    gpu_busy_percent: Option<f64>,
    efficiency: Option<[f64; 2]>,
    /// Lost hours, and with those that nobody observed.
    lost_hours: [f64; 2],
    without_gpus: Option<WholeJob>,
    hosts: Vec<JobHostRow>,
    hours: Vec<JobHourRow>,
}

/// What a job without GPUs did.
#[derive(Debug, Serialize, Deserialize)]
struct WholeJob {
    hosts: Vec<String>,
    /// Share of the CPU time of its hosts that was busy.
    cpu_busy: Option<f64>,
    steps: Vec<HubSteps>,
}

/// A host of a job.
#[derive(Debug, Serialize)]
struct JobHostRow {
    host: String,
    allocated_hours: f64,
    gpu_busy_percent: Option<f64>,
    efficiency: Option<[f64; 2]>,
    problems: Vec<String>,
}

/// An hour of a job.
#[derive(Debug, Serialize)]
struct JobHourRow {
    start_unix_s: u64,
    allocated_hours: f64,
    gpu_busy_percent: Option<f64>,
    efficiency: Option<[f64; 2]>,
}

/// Runs `rowmill fleet job` and prints its result.
pub fn run(args: &FleetJob, session: &Session) -> Result<ExitCode, Error> {
    let client = HubClient::open(&args.reach.place)?;
    let name = if args.id.contains('/') { args.id.clone() } else { format!("slurm/{}", args.id) };
    let report = read_job(&client, &name)?;
    let title = format!("Job {}", report.run);
    let sections = job_sections(&report);
    show(
        &report,
        &MailedPage { title, notes: &report.notes, sections },
        args.reach.html.as_deref(),
        session,
    )
}

fn read_job(client: &HubClient, run: &str) -> Result<JobSummary, Error> {
    let known = client.whole_run(run)?;
    let range = TimeRange { since: known.since_unix_s, until: known.until_unix_s };
    let hours = client.sums(range, &[("run", run), ("step", "hour"), ("limit", ALL)])?;
    let total = [("run", run), ("by", "user"), ("by", "workflow"), ("by", "model")];
    let total = client.sums(range, &total)?;
    let hosts = client.sums(range, &[("run", run), ("by", "host"), ("limit", ALL)])?;
    let mut notes = describe_gaps(&total);
    if hosts.hours_missing > total.hours_missing {
        notes.push(format!(
            "The hosts of {} hours are unknown, because their rows were deleted.",
            hosts.hours_missing - total.hours_missing
        ));
    }
    let end = known.runs.first();
    let member =
        |dimension| end.map_or(String::new(), |run| run.group.member(dimension).to_owned());
    let started = end.and_then(|run| run.started_unix_s);
    let ended = end.and_then(|run| run.ended_unix_s);
    if started.is_none() {
        notes.push("Nobody reported when the job began, so its times are whole hours.".to_owned());
    }
    let has_gpus = total.total.sums.allocated_s > 0.0;
    let steps = match has_gpus {
        // The hosts and steps of a job without GPUs are in rows that only the doctor reads.
        false => Some(client.ask::<WholeJob>("doctor", None, &[("run", run)])?),
        true => None,
    };
    let issues: BTreeMap<String, Vec<String>> = client
        .hosts(range, &[("run", run)])?
        .hosts
        .into_iter()
        .map(|host| (host.host, host.issues.into_iter().map(|issue| issue.text).collect()))
        .collect();
    let host_row = |group: &HubGroup| JobHostRow {
        host: group.member("host").to_owned(),
        allocated_hours: group.sums.allocated_s / HOUR_S,
        gpu_busy_percent: busy_percent(&group.sums),
        efficiency: group.efficiency,
        problems: issues.get(group.member("host")).cloned().unwrap_or_default(),
    };
    let hour_row = |group: &HubGroup| JobHourRow {
        start_unix_s: group.start_unix_s.unwrap_or(0),
        allocated_hours: group.sums.allocated_s / HOUR_S,
        gpu_busy_percent: busy_percent(&group.sums),
        efficiency: group.efficiency,
    };
    let now = TimeRange::before(None, Duration::ZERO).until;
    let models: BTreeSet<&str> = total.groups.iter().map(|group| group.member("model")).collect();
    Ok(JobSummary {
        run: run.to_owned(),
        user: member("user"),
        workflow: member("workflow"),
        models: models.into_iter().map(str::to_owned).collect(),
        end: end.map_or("unknown".to_owned(), HubRun::describe_end),
        repeats: end.and_then(|run| run.repeats.clone()),
        first_unix_s: started.unwrap_or(range.since),
        last_unix_s: ended.unwrap_or(range.until.min(now)),
        notes,
        allocated_hours: total.total.sums.allocated_s / HOUR_S,
        held_idle_hours: total.total.sums.held_idle_s / HOUR_S,
        gpu_busy_percent: busy_percent(&total.total.sums),
        efficiency: total.total.efficiency,
        lost_hours: total.total.lost_hours(),
        without_gpus: steps,
        hosts: hosts.groups.iter().map(host_row).collect(),
        hours: hours.groups.iter().map(hour_row).collect(),
    })
}

fn job_sections(report: &JobSummary) -> Vec<ReportSection> {
    let mut facts = vec![
        ("user", report.user.clone()),
        ("workflow", report.workflow.clone()),
        ("time", format!("{} to {}", moment(report.first_unix_s), moment(report.last_unix_s))),
        ("end", report.end.clone()),
        ("repeats", report.repeats.clone().unwrap_or("-".to_owned())),
    ];
    match &report.without_gpus {
        Some(job) => {
            let busy = optional(job.cpu_busy.map(|share| share * 100.0));
            facts.push(("GPUs", "none".to_owned()));
            facts.push(("hosts", plain(&job.hosts.join(", "))));
            facts.push(("CPUs of the hosts busy %", busy));
            facts.extend(job.steps.iter().map(|steps| ("steps", describe_steps(steps))));
        }
        None => facts.extend([
            ("GPUs", report.models.join(", ")),
            ("allocated GPU h", number(report.allocated_hours)),
            ("lost GPU h", span(report.lost_hours.map(number))),
            ("held and idle GPU h", number(report.held_idle_hours)),
            ("GPU busy %", optional(report.gpu_busy_percent)),
            ("SM active %", shares(report.efficiency)),
        ]),
    }
    let hosts = report.hosts.iter().map(|row| {
        vec![
            row.host.clone(),
            number(row.allocated_hours),
            optional(row.gpu_busy_percent),
            shares(row.efficiency),
            row.problems.join("; "),
        ]
    });
    let hours = report.hours.iter().map(|row| {
        vec![
            moment(row.start_unix_s),
            number(row.allocated_hours),
            optional(row.gpu_busy_percent),
            shares(row.efficiency),
        ]
    });
    let rows = facts.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
    let section = |title: &str, head, rows, bar| ReportSection {
        title: title.to_owned(),
        notes: Vec::new(),
        head,
        rows,
        bar,
    };
    let mut sections = vec![section("In all", vec!["fact", "value"], rows, None)];
    if report.without_gpus.is_none() {
        let head = vec!["host", "allocated h", "GPU busy %", "SM active %", "problems"];
        sections.push(section("Hosts", head, hosts.collect(), None));
        let head = vec!["hour", "allocated h", "GPU busy %", "SM active %"];
        sections.push(section("Hours", head, hours.collect(), Some(2)));
    }
    sections
}

/// Returns the busy percentage of the time in which it was observed.
fn busy_percent(sums: &HubSums) -> Option<f64> {
    (sums.busy_observed_s > 0.0).then(|| sums.busy_s / sums.busy_observed_s * 100.0)
}
