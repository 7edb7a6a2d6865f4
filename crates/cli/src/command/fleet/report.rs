//! The commands `rowmill fleet report` and `rowmill fleet job`: what happened in the fleet since
//! yesterday compared with a week before, and what happened to one job. All figures come from the
//! hub; this file only chooses and compares them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use chrono::DateTime;
use serde::Serialize;

use super::hub::{HOUR_S, HubAnswer, HubClient, HubGroup, HubSums, TimeRange};
use super::sections::{MailedPage, ReportSection};
use crate::args::{FleetJob, FleetReport};
use setup::Session;
use setup::error::{Error, RunError};
use setup::output;

/// Largest number of hosts of the list of sick nodes.
const HOSTS_SHOWN: usize = 64;
/// Seconds without a row after which a host counts as silent. Agents send every few seconds.
const SILENT_S: u64 = 900;
/// Throttled seconds of a GPU below which they are not reported.
const THROTTLED_MIN_S: f64 = 60.0;
/// Observed percentage of the allocated time below which the report says so.
const COVERAGE_MIN: f64 = 95.0;

/// What happened in a fleet, and a week before. Times are GPU hours.
#[derive(Debug, Serialize)]
struct MorningReport {
    hub: String,
    since_unix_s: u64,
    until_unix_s: u64,
    /// What is unknown, or was observed only in part.
    notes: Vec<String>,
    funnel: Vec<FunnelRow>,
    gpu_hours: Compared,
    /// Observed percentage of the allocated time.
    observed_percent: Compared,
    idle_owners: Vec<OwnerRow>,
    jobs: Vec<JobRow>,
    nodes: Vec<NodeRow>,
}

/// A number now and a week before, if it was known then.
#[derive(Clone, Copy, Debug, Serialize)]
struct Compared {
    now: f64,
    week_before: Option<f64>,
}

/// A part of the deployed time.
#[derive(Debug, Serialize)]
struct FunnelRow {
    part: String,
    hours: f64,
    percent: Compared,
}

/// A user who holds GPUs that run nothing.
#[derive(Debug, Serialize)]
struct OwnerRow {
    user: String,
    idle_hours: Compared,
    allocated_hours: f64,
}

/// A job and the GPU time that it held without using it.
#[derive(Debug, Serialize)]
struct JobRow {
    run: String,
    user: String,
    workflow: String,
    allocated_hours: f64,
    /// At least and at most, because some time was not observed.
    lost_hours: [f64; 2],
    efficiency: Option<[f64; 2]>,
    /// Lost hours, at most, of all jobs of the same workflow type.
    workflow_lost_hours: Compared,
}

/// A host that does not work as it should.
#[derive(Debug, Serialize)]
struct NodeRow {
    host: String,
    problems: Vec<String>,
    /// Number of problems a week before.
    week_before: usize,
}

/// What happened to a job. Times are GPU hours.
#[derive(Debug, Serialize)]
struct JobSummary {
    run: String,
    user: String,
    workflow: String,
    models: Vec<String>,
    first_unix_s: u64,
    last_unix_s: u64,
    notes: Vec<String>,
    allocated_hours: f64,
    held_idle_hours: f64,
    gpu_busy_percent: Option<f64>,
    efficiency: Option<[f64; 2]>,
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

/// Runs `rowmill fleet report` and prints its result.
pub fn run(args: &FleetReport, session: &Session) -> Result<ExitCode, Error> {
    let client = HubClient::open(&args.reach.place)?;
    let range = TimeRange::until_now(args.since);
    let report = read_morning(&client, args, range)?;
    let title = format!("Fleet from {} to {}", moment(range.since), moment(range.until));
    let sections = morning_sections(&report);
    show(
        &report,
        &MailedPage { title, notes: &report.notes, sections },
        args.reach.html.as_deref(),
        session,
    )
}

/// Runs `rowmill fleet job` and prints its result.
pub fn run_job(args: &FleetJob, session: &Session) -> Result<ExitCode, Error> {
    let client = HubClient::open(&args.reach.place)?;
    let name = if args.id.contains('/') { args.id.clone() } else { format!("slurm/{}", args.id) };
    let report = read_job(&client, &name, TimeRange::until_now(args.since))?;
    let title = format!("Job {}", report.run);
    let sections = job_sections(&report);
    show(
        &report,
        &MailedPage { title, notes: &report.notes, sections },
        args.reach.html.as_deref(),
        session,
    )
}

/// Writes the HTML file if it is wanted, and prints the report as text or JSON.
fn show<T: Serialize>(
    report: &T,
    page: &MailedPage,
    to: Option<&Path>,
    session: &Session,
) -> Result<ExitCode, Error> {
    if let Some(path) = to {
        let write = |file: &mut File| file.write_all(page.html().as_bytes());
        output::put(path, |file| write(file).map_err(Error::io(path, "write")))?;
    }
    session.console.report(report, |_| page.text())?;
    Ok(ExitCode::SUCCESS)
}

fn read_morning(
    client: &HubClient,
    args: &FleetReport,
    range: TimeRange,
) -> Result<MorningReport, Error> {
    let before = range.week_before();
    let users = client.sums(range, &[("by", "user"), ("limit", "100000")])?;
    let users_before = client.sums(before, &[("by", "user"), ("limit", "100000")])?;
    let pairs = [("by", "run"), ("by", "user"), ("by", "workflow"), ("limit", "100000")];
    let runs = client.sums(range, &pairs)?;
    let workflows = [("by", "workflow"), ("limit", "100000")];
    let workflows_before = client.sums(before, &workflows)?;
    let nodes = read_nodes(client, range)?;
    let nodes_before: BTreeMap<String, Vec<String>> = read_nodes(client, before)?;
    let had_rows = users_before.total.sums.deployed_s > 0.0;
    let compare = |now, week_before: f64| {
        let week_before = had_rows.then_some(week_before);
        Compared { now, week_before }
    };
    let percent =
        |answer: &HubAnswer, at: usize| answer.total.percent.as_ref().map_or(0.0, |p| p[at]);
    let funnel = users.part_names.iter().enumerate().map(|(at, part)| FunnelRow {
        part: part.clone(),
        hours: users.total.parts[at] / HOUR_S,
        percent: compare(percent(&users, at), percent(&users_before, at)),
    });
    let observed = |answer: &HubAnswer| coverage(&answer.total.sums).unwrap_or(0.0);
    let mut notes = describe_gaps(&users);
    if !had_rows {
        notes.push("The hub has no rows of a week before, so nothing is compared.".to_owned());
    } else if users_before.hours_missing > 0 {
        notes.push(format!("A week before, {} hours are missing.", users_before.hours_missing));
    }
    let nodes = nodes.into_iter().map(|(host, problems)| NodeRow {
        week_before: nodes_before.get(&host).map_or(0, Vec::len),
        host,
        problems,
    });
    Ok(MorningReport {
        hub: args.reach.place.hub.clone(),
        since_unix_s: range.since,
        until_unix_s: range.until,
        notes,
        funnel: funnel.collect(),
        gpu_hours: compare(
            users.total.sums.deployed_s / HOUR_S,
            users_before.total.sums.deployed_s / HOUR_S,
        ),
        observed_percent: compare(observed(&users), observed(&users_before)),
        idle_owners: list_owners(&users, &users_before, args.top, had_rows),
        jobs: list_jobs(&runs, &workflows_before, args.top, had_rows),
        nodes: nodes.take(HOSTS_SHOWN).collect(),
    })
}

fn list_owners(now: &HubAnswer, before: &HubAnswer, top: usize, had_rows: bool) -> Vec<OwnerRow> {
    let idle = |group: &HubGroup| group.sums.held_idle_s / HOUR_S;
    let idle_before: BTreeMap<&str, f64> =
        before.groups.iter().map(|group| (group.member("user"), idle(group))).collect();
    let held = now.groups.iter().filter(|group| group.sums.held_idle_s > 0.0);
    let mut owners: Vec<OwnerRow> = held
        .map(|group| OwnerRow {
            user: group.member("user").to_owned(),
            idle_hours: Compared {
                now: idle(group),
                week_before: had_rows
                    .then(|| idle_before.get(group.member("user")).copied().unwrap_or(0.0)),
            },
            allocated_hours: group.sums.allocated_s / HOUR_S,
        })
        .collect();
    owners.sort_by(|a, b| b.idle_hours.now.total_cmp(&a.idle_hours.now));
    owners.truncate(top);
    owners
}

fn list_jobs(runs: &HubAnswer, before: &HubAnswer, top: usize, had_rows: bool) -> Vec<JobRow> {
    let lost_before: BTreeMap<&str, f64> = before
        .groups
        .iter()
        .map(|group| (group.member("workflow"), group.lost_hours()[1]))
        .collect();
    let mut lost_now: BTreeMap<&str, f64> = BTreeMap::new();
    for group in &runs.groups {
        *lost_now.entry(group.member("workflow")).or_default() += group.lost_hours()[1];
    }
    let held = runs.groups.iter().filter(|group| !group.member("run").is_empty());
    let mut jobs: Vec<JobRow> = held
        .map(|group| {
            let workflow = group.member("workflow");
            JobRow {
                run: group.member("run").to_owned(),
                user: group.member("user").to_owned(),
                workflow: workflow.to_owned(),
                allocated_hours: group.sums.allocated_s / HOUR_S,
                lost_hours: group.lost_hours(),
                efficiency: group.efficiency,
                workflow_lost_hours: Compared {
                    now: lost_now[workflow],
                    week_before: had_rows
                        .then(|| lost_before.get(workflow).copied().unwrap_or(0.0)),
                },
            }
        })
        .collect();
    // What was observed to be lost counts first, and then what may be lost.
    let rank = |job: &JobRow| job.lost_hours;
    jobs.sort_by(|a, b| {
        let ([a_least, a_most], [b_least, b_most]) = (rank(a), rank(b));
        b_least.total_cmp(&a_least).then(b_most.total_cmp(&a_most))
    });
    jobs.truncate(top);
    jobs
}

/// Lists the problems of hosts: faults of their GPUs, and that a host stopped reporting.
fn read_nodes(
    client: &HubClient,
    range: TimeRange,
) -> Result<BTreeMap<String, Vec<String>>, Error> {
    let mut nodes = read_faults(client, range)?;
    let by_host = [("by", "host"), ("limit", "1000000")];
    let all = client.sums(range, &by_host)?;
    let recent = TimeRange { since: range.until.saturating_sub(SILENT_S), ..range };
    let recent = client.sums(recent, &by_host)?;
    let reporting: BTreeSet<&str> =
        recent.groups.iter().map(|group| group.member("host")).collect();
    let silent = all.groups.iter().map(|group| group.member("host"));
    let silent: Vec<&str> =
        silent.filter(|host| !reporting.contains(host)).take(HOSTS_SHOWN).collect();
    if silent.is_empty() {
        return Ok(nodes);
    }
    let mut pairs = vec![("by", "host"), ("step", "hour"), ("limit", "1000000")];
    pairs.extend(silent.iter().map(|host| ("host", *host)));
    let mut last: BTreeMap<String, u64> = BTreeMap::new();
    for group in client.sums(range, &pairs)?.groups {
        last.insert(group.member("host").to_owned(), group.start_unix_s.unwrap_or(0));
    }
    for (host, hour) in last {
        let problem = format!("stopped reporting in the hour from {}", moment(hour));
        nodes.entry(host).or_default().push(problem);
    }
    Ok(nodes)
}

/// Lists the faults of GPUs by host.
fn read_faults(
    client: &HubClient,
    range: TimeRange,
) -> Result<BTreeMap<String, Vec<String>>, Error> {
    let mut nodes: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for fault in client.faults(range)?.faults {
        let problem = match fault.kind.split_once(' ') {
            Some(("throttled", reason)) if fault.amount >= THROTTLED_MIN_S => {
                let minutes = fault.amount / 60.0;
                format!("GPU {}: throttled for {minutes:.1} minutes ({reason})", fault.gpu)
            }
            Some(("error", name)) => {
                format!("GPU {}: {name} × {:.0}", fault.gpu, fault.amount)
            }
            _ => continue,
        };
        nodes.entry(fault.host).or_default().push(problem);
    }
    Ok(nodes)
}

fn read_job(client: &HubClient, run: &str, range: TimeRange) -> Result<JobSummary, Error> {
    let total = [("run", run), ("by", "user"), ("by", "workflow"), ("by", "model")];
    let total = client.sums(range, &total)?;
    let Some(first) = total.groups.first() else {
        return Err(RunError::NoJob { run: run.to_owned() }.into());
    };
    let hours = client.sums(range, &[("run", run), ("step", "hour"), ("limit", "100000")])?;
    let starts = || hours.groups.iter().filter_map(|group| group.start_unix_s);
    let since = starts().min().unwrap_or(range.since).max(range.since);
    let until = starts().max().map_or(range.until, |last| last + HOUR_S as u64).min(range.until);
    // Hosts of a run are known only from rows, so only the hours of the run are read.
    let range = TimeRange { since, until };
    let hosts = client.sums(range, &[("run", run), ("by", "host"), ("limit", "100000")])?;
    let mut notes = describe_gaps(&total);
    if hosts.hours_missing > 0 {
        notes.push(format!(
            "The hosts of {} hours are unknown, because their rows were deleted.",
            hosts.hours_missing
        ));
    }
    let faults = read_faults(client, range)?;
    let host_row = |group: &HubGroup| JobHostRow {
        host: group.member("host").to_owned(),
        allocated_hours: group.sums.allocated_s / HOUR_S,
        gpu_busy_percent: busy_percent(&group.sums),
        efficiency: group.efficiency,
        problems: faults.get(group.member("host")).cloned().unwrap_or_default(),
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
        first_unix_s: since,
        last_unix_s: until,
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

fn morning_sections(report: &MorningReport) -> Vec<ReportSection> {
    let funnel = report.funnel.iter().map(|row| {
        vec![row.part.clone(), number(row.hours), number(row.percent.now), before(row.percent)]
    });
    let owners = report.idle_owners.iter().map(|row| {
        let OwnerRow { user, idle_hours, allocated_hours } = row;
        vec![user.clone(), number(idle_hours.now), before(*idle_hours), number(*allocated_hours)]
    });
    let jobs = report.jobs.iter().map(|row| {
        vec![
            row.run.clone(),
            row.user.clone(),
            row.workflow.clone(),
            number(row.allocated_hours),
            span(row.lost_hours.map(number)),
            shares(row.efficiency),
            number(row.workflow_lost_hours.now),
            before(row.workflow_lost_hours),
        ]
    });
    let nodes = report
        .nodes
        .iter()
        .map(|row| vec![row.host.clone(), row.problems.join("; "), row.week_before.to_string()]);
    let none = |is_empty: bool, text: &str| {
        if is_empty { vec![text.to_owned()] } else { Vec::new() }
    };
    let (hours, observed) = (report.gpu_hours, report.observed_percent);
    let funnel_notes = vec![format!(
        "{} GPU hours of hosts that report rows, {} a week before. Activity was observed in {} % of the \
         allocated time, {} % a week before.",
        number(hours.now),
        before(hours),
        number(observed.now),
        before(observed)
    )];
    vec![
        ReportSection {
            title: "Where the deployed GPU time went".to_owned(),
            notes: funnel_notes,
            head: vec!["part", "GPU h", "%", "% a week before"],
            rows: funnel.collect(),
            bar: Some(2),
        },
        ReportSection {
            title: "GPUs that are held and idle, by owner".to_owned(),
            notes: none(report.idle_owners.is_empty(), "None was observed."),
            head: vec!["user", "idle h", "a week before", "allocated h"],
            rows: owners.collect(),
            bar: None,
        },
        ReportSection {
            title: "Jobs by lost GPU hours".to_owned(),
            notes: none(report.jobs.is_empty(), "No GPU was allocated."),
            head: vec![
                "job",
                "user",
                "workflow",
                "allocated h",
                "lost h",
                "SM active %",
                "workflow lost h",
                "a week before",
            ],
            rows: jobs.collect(),
            bar: None,
        },
        ReportSection {
            title: "Sick nodes".to_owned(),
            notes: none(report.nodes.is_empty(), "None is known."),
            head: vec!["host", "problems", "problems a week before"],
            rows: nodes.collect(),
            bar: None,
        },
    ]
}

fn job_sections(report: &JobSummary) -> Vec<ReportSection> {
    let optional = |value: Option<f64>| value.map_or("-".to_owned(), number);
    let facts = [
        ("user", report.user.clone()),
        ("workflow", report.workflow.clone()),
        ("GPUs", report.models.join(", ")),
        ("time", format!("{} to {}", moment(report.first_unix_s), moment(report.last_unix_s))),
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

/// Describes what is unknown about an answer.
fn describe_gaps(answer: &HubAnswer) -> Vec<String> {
    let mut notes = vec![
        "Hosts that report nothing are unknown. Idle hosts count as usable, although they may not be."
            .to_owned(),
    ];
    if answer.hours_missing > 0 {
        notes.push(format!("{} hours are missing.", answer.hours_missing));
    }
    if answer.groups_left_out > 0 {
        notes.push(format!("{} small groups are not listed.", answer.groups_left_out));
    }
    if let Some(observed) = coverage(&answer.total.sums).filter(|share| *share < COVERAGE_MIN) {
        notes.push(format!(
            "SM activity was observed in {observed:.1} % of the allocated time; where it was not, \
             figures are ranges."
        ));
    }
    notes
}

/// Returns the percentage of the allocated time in which SM activity was observed.
fn coverage(sums: &HubSums) -> Option<f64> {
    let observed_s = sums.sm_observed_s.min(sums.busy_observed_s);
    (sums.allocated_s > 0.0).then(|| observed_s / sums.allocated_s * 100.0)
}

/// Returns the busy percentage of the time in which it was observed.
fn busy_percent(sums: &HubSums) -> Option<f64> {
    (sums.busy_observed_s > 0.0).then(|| sums.busy_s / sums.busy_observed_s * 100.0)
}

fn number(value: f64) -> String {
    format!("{value:.1}")
}

fn before(value: Compared) -> String {
    value.week_before.map_or("-".to_owned(), number)
}

fn span([least, most]: [String; 2]) -> String {
    if least == most { least } else { format!("{least} to {most}") }
}

fn shares(efficiency: Option<[f64; 2]>) -> String {
    efficiency.map_or("-".to_owned(), |bounds| span(bounds.map(|share| number(share * 100.0))))
}

/// Formats a time as UTC.
fn moment(unix_s: u64) -> String {
    let time = i64::try_from(unix_s).ok().and_then(|second| DateTime::from_timestamp(second, 0));
    time.map_or("-".to_owned(), |time| time.format("%Y-%m-%d %H:%M UTC").to_string())
}
