//! The command `rowmill fleet job`: what happened to one job, from its first hour to its last. All
//! figures come from the hub.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use serde::Serialize;

use super::hub::{ALL, HOUR_S, HubAnswer, HubClient, HubGroup, HubRun, HubSums, TimeRange};
use super::report::{describe_gaps, moment, number, optional, shares, show, span};
use super::sections::{MailedPage, ReportSection};
use crate::args::FleetJob;
use setup::Session;
use setup::error::{Error, RunError};

/// Longest time in which the beginning of a job is looked for, in seconds.
const LONGEST_S: u64 = 800 * 86_400;

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
    hosts: Vec<JobHostRow>,
    hours: Vec<JobHourRow>,
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
    let report = read_job(&client, &name, TimeRange::before(None, args.since))?;
    let title = format!("Job {}", report.run);
    let sections = job_sections(&report);
    show(
        &report,
        &MailedPage { title, notes: &report.notes, sections },
        args.reach.html.as_deref(),
        session,
    )
}

/// Asks for the hours of a job in a range, which is extended to earlier times until it holds the
/// beginning of the job.
fn ask_hours(
    client: &HubClient,
    run: &str,
    mut range: TimeRange,
) -> Result<(HubAnswer, TimeRange), Error> {
    loop {
        let hours = client.sums(range, &[("run", run), ("step", "hour"), ("limit", ALL)])?;
        let starts = || hours.groups.iter().filter_map(|group| group.start_unix_s);
        let (Some(first), Some(last)) = (starts().min(), starts().max()) else {
            return Err(RunError::NoJob { run: run.to_owned() }.into());
        };
        let length = range.until - range.since;
        if first <= range.since && length < LONGEST_S {
            range.since = range.until.saturating_sub((4 * length).min(LONGEST_S));
            continue;
        }
        let until = (last + HOUR_S as u64).min(range.until);
        return Ok((hours, TimeRange { since: first.max(range.since), until }));
    }
}

fn read_job(client: &HubClient, run: &str, range: TimeRange) -> Result<JobSummary, Error> {
    let (hours, range) = ask_hours(client, run, range)?;
    let total = [("run", run), ("by", "user"), ("by", "workflow"), ("by", "model")];
    let total = client.sums(range, &total)?;
    let Some(first) = total.groups.first() else {
        return Err(RunError::NoJob { run: run.to_owned() }.into());
    };
    let hosts = client.sums(range, &[("run", run), ("by", "host"), ("limit", ALL)])?;
    let mut notes = describe_gaps(&total);
    if hosts.hours_missing > total.hours_missing {
        notes.push(format!(
            "The hosts of {} hours are unknown, because their rows were deleted.",
            hosts.hours_missing - total.hours_missing
        ));
    }
    if range.until - range.since + 3600 >= LONGEST_S {
        notes.push(
            "The job is longer than 800 days, of which the last ones are reported.".to_owned(),
        );
    }
    let runs = client.runs(range, &[("run", run)])?.runs;
    let end = runs.first();
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
    let models: BTreeSet<&str> = total.groups.iter().map(|group| group.member("model")).collect();
    Ok(JobSummary {
        run: run.to_owned(),
        user: first.member("user").to_owned(),
        workflow: first.member("workflow").to_owned(),
        models: models.into_iter().map(str::to_owned).collect(),
        end: end.map_or("unknown".to_owned(), HubRun::describe_end),
        repeats: end.and_then(|run| run.repeats.clone()),
        first_unix_s: range.since,
        last_unix_s: range.until,
        notes,
        allocated_hours: total.total.sums.allocated_s / HOUR_S,
        held_idle_hours: total.total.sums.held_idle_s / HOUR_S,
        gpu_busy_percent: busy_percent(&total.total.sums),
        efficiency: total.total.efficiency,
        lost_hours: total.total.lost_hours(),
        hosts: hosts.groups.iter().map(host_row).collect(),
        hours: hours.groups.iter().map(hour_row).collect(),
    })
}

fn job_sections(report: &JobSummary) -> Vec<ReportSection> {
    let facts = [
        ("user", report.user.clone()),
        ("workflow", report.workflow.clone()),
        ("GPUs", report.models.join(", ")),
        ("time", format!("{} to {}", moment(report.first_unix_s), moment(report.last_unix_s))),
        ("end", report.end.clone()),
        ("repeats", report.repeats.clone().unwrap_or("-".to_owned())),
        ("allocated GPU h", number(report.allocated_hours)),
        ("lost GPU h", span(report.lost_hours.map(number))),
        ("held and idle GPU h", number(report.held_idle_hours)),
        ("GPU busy %", optional(report.gpu_busy_percent)),
        ("SM active %", shares(report.efficiency)),
    ];
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
    vec![
        ReportSection {
            title: "In all".to_owned(),
            notes: Vec::new(),
            head: vec!["fact", "value"],
            rows: facts.map(|(name, value)| vec![name.to_owned(), value]).into(),
            bar: None,
        },
        ReportSection {
            title: "Hosts".to_owned(),
            notes: Vec::new(),
            head: vec!["host", "allocated h", "GPU busy %", "SM active %", "problems"],
            rows: hosts.collect(),
            bar: None,
        },
        ReportSection {
            title: "Hours".to_owned(),
            notes: Vec::new(),
            head: vec!["hour", "allocated h", "GPU busy %", "SM active %"],
            rows: hours.collect(),
            bar: Some(2),
        },
    ]
}

/// Returns the busy percentage of the time in which it was observed.
fn busy_percent(sums: &HubSums) -> Option<f64> {
    (sums.busy_observed_s > 0.0).then(|| sums.busy_s / sums.busy_observed_s * 100.0)
}
