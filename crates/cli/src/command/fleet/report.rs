//! The command `rowmill fleet report`: what happened in the fleet since yesterday, compared with
//! the same time a week before. All figures come from the hub; this file only chooses and compares
//! them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use chrono::DateTime;
use serde::Serialize;

use super::hub::{
    ALL, HOUR_S, HubAnswer, HubClient, HubGroup, HubHost, HubHosts, HubRuns, HubSums, TimeRange,
};
use super::notice_answer::{HubNotices, NoticeCounts};
use super::sections::{MailedPage, ReportSection};
use crate::args::FleetReport;
use setup::Session;
use setup::error::Error;
use setup::{output, render};

/// Observed percentage of the allocated time below which the report says so.
const COVERAGE_MIN: f64 = 95.0;
/// Share of the deployed time a week before, relative to now, below which the report says so.
const BEFORE_MIN: f64 = 0.9;

/// What happened in a fleet, and a week before. Times are GPU hours.
#[derive(Debug, Serialize)]
struct MorningReport {
    hub: String,
    since_unix_s: u64,
    until_unix_s: u64,
    /// What is unknown, or was observed only in part.
    notes: Vec<String>,
    funnel: Vec<FunnelRow>,
    gpu_hours: Compared<f64>,
    /// Observed percentage of the allocated time.
    observed_percent: Compared<f64>,
    /// Hours of runs that failed, and of runs that repeat a failed one.
    failed_hours: Compared<f64>,
    repeated_hours: Compared<f64>,
    /// In the order of the hours that their lower efficiency costs.
    workflows: Listed<ChangeRow>,
    /// In the order of lost hours.
    users: Listed<ChangeRow>,
    idle_owners: Listed<OwnerRow>,
    /// Notices to owners of idle GPUs in the time.
    notices: NoticeCounts,
    jobs: Listed<JobRow>,
    failed_jobs: Listed<FailedRow>,
    nodes: Listed<NodeRow>,
}

/// The first rows of a list.
#[derive(Debug, Serialize)]
struct Listed<T> {
    rows: Vec<T>,
    /// Number of further rows.
    left_out: usize,
}

/// A value now and a week before, if it was known then.
#[derive(Clone, Copy, Debug, Serialize)]
struct Compared<T> {
    now: T,
    week_before: Option<T>,
}

/// A part of the deployed time.
#[derive(Debug, Serialize)]
struct FunnelRow {
    part: String,
    hours: f64,
    percent: Compared<f64>,
}

/// A workflow or a user, compared with a week before.
#[derive(Debug, Serialize)]
struct ChangeRow {
    name: String,
    allocated_hours: Compared<f64>,
    lost_hours: Compared<f64>,
    /// Active percentage of the time in which SMs were observed.
    efficiency_percent: Compared<Option<f64>>,
    /// Allocated hours multiplied by the drop of the efficiency; negative if it rose.
    drop_hours: Option<f64>,
    /// The parts of `drop_hours` within workflows and by another mix of workflows. Known of users
    /// only.
    drop_within_hours: Option<f64>,
    drop_mix_hours: Option<f64>,
}

/// A user who holds GPUs that run nothing.
#[derive(Debug, Serialize)]
struct OwnerRow {
    user: String,
    idle_hours: Compared<f64>,
    allocated_hours: f64,
}

/// A job and the GPU time that it held without using it.
#[derive(Debug, Serialize)]
struct JobRow {
    run: String,
    user: String,
    workflow: String,
    allocated_hours: f64,
    /// Lost hours, and with those that nobody observed.
    lost_hours: [f64; 2],
    efficiency: Option<[f64; 2]>,
}

/// A job that failed, or that repeats a failed one.
#[derive(Debug, Serialize)]
struct FailedRow {
    run: String,
    user: String,
    workflow: String,
    allocated_hours: f64,
    is_failed: bool,
    /// How the job ended, in words.
    end: String,
    /// The failed job that this one repeats.
    repeats: Option<String>,
}

/// A host that does not work as it should.
#[derive(Debug, Serialize)]
struct NodeRow {
    host: String,
    /// GPU hours that were lost on it at most.
    lost_hours: f64,
    kinds: Vec<String>,
    problems: Vec<String>,
    /// Number of problems a week before.
    week_before: usize,
}

/// The answers about one time.
struct FleetAnswers {
    users: HubAnswer,
    workflows: HubAnswer,
    /// By user and workflow.
    mixes: HubAnswer,
    runs: HubRuns,
    hosts: HubHosts,
}

impl FleetAnswers {
    fn ask(client: &HubClient, range: TimeRange) -> Result<Self, Error> {
        let by = |dimension| client.sums(range, &[("by", dimension), ("limit", ALL)]);
        let (users, workflows) = (by("user")?, by("workflow")?);
        let mixes = [("by", "user"), ("by", "workflow"), ("limit", ALL)];
        let mixes = client.sums(range, &mixes)?;
        let (runs, hosts) = (client.runs(range, &[])?, client.hosts(range, &[])?);
        Ok(Self { users, workflows, mixes, runs, hosts })
    }
}

impl<T> Listed<T> {
    fn first(mut rows: Vec<T>, top: usize) -> Self {
        let left_out = rows.len().saturating_sub(top);
        rows.truncate(top);
        Self { rows, left_out }
    }
}

/// Runs `rowmill fleet report` and prints its result.
pub fn run(args: &FleetReport, session: &Session) -> Result<ExitCode, Error> {
    let client = HubClient::open(&args.reach.place)?;
    let range = TimeRange::before(args.until, args.since);
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

/// Writes the HTML file if it is wanted, and prints the report as text or JSON.
pub fn show<T: Serialize>(
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
    let now = FleetAnswers::ask(client, range)?;
    let before = FleetAnswers::ask(client, range.week_before())?;
    let had_rows = before.users.total.sums.deployed_s > 0.0;
    let compare = |now, before: f64| Compared { now, week_before: had_rows.then_some(before) };
    let percent =
        |answer: &HubAnswer, at: usize| answer.total.percent.as_ref().map_or(0.0, |p| p[at]);
    let funnel = now.users.part_names.iter().enumerate().map(|(at, part)| FunnelRow {
        part: part.clone(),
        hours: now.users.total.parts[at] / HOUR_S,
        percent: compare(percent(&now.users, at), percent(&before.users, at)),
    });
    let observed = |answer: &HubAnswer| coverage(&answer.total.sums).unwrap_or(0.0);
    let hours =
        |seconds: f64, seconds_before: f64| compare(seconds / HOUR_S, seconds_before / HOUR_S);
    let mut workflows = compare_groups(&now.workflows, &before.workflows, "workflow");
    workflows.sort_by(|a, b| {
        let drop = |row: &ChangeRow| row.drop_hours.unwrap_or(0.0);
        drop(b).total_cmp(&drop(a)).then(b.lost_hours.now.total_cmp(&a.lost_hours.now))
    });
    let mut users = compare_groups(&now.users, &before.users, "user");
    users.iter_mut().for_each(|row| row.divide_drop(&now.mixes, &before.mixes));
    users.sort_by(|a, b| b.lost_hours.now.total_cmp(&a.lost_hours.now));
    let mut notes = describe_gaps(&now.users);
    notes.extend(describe_nodes(&now.hosts));
    notes.extend(describe_week_before(range, &now.users, &before.users));
    let top = args.top as usize;
    Ok(MorningReport {
        hub: args.reach.place.hub.clone(),
        since_unix_s: range.since,
        until_unix_s: range.until,
        notes,
        funnel: funnel.collect(),
        gpu_hours: hours(now.users.total.sums.deployed_s, before.users.total.sums.deployed_s),
        observed_percent: compare(observed(&now.users), observed(&before.users)),
        failed_hours: hours(now.runs.failed, before.runs.failed),
        repeated_hours: hours(now.runs.repeated, before.runs.repeated),
        workflows: Listed::first(workflows, top),
        users: Listed::first(users, top),
        idle_owners: Listed::first(list_owners(&now.users, &before.users), top),
        notices: HubNotices::ask(client, range)?.count(),
        jobs: Listed::first(list_jobs(&now.runs), top),
        failed_jobs: Listed::first(list_failed(&now.runs), top),
        nodes: Listed::first(list_nodes(&now.hosts, &before.hosts), top),
    })
}

/// Compares the groups of a dimension that held GPUs now or a week before.
fn compare_groups(now: &HubAnswer, before: &HubAnswer, dimension: &str) -> Vec<ChangeRow> {
    let had_rows = before.total.sums.deployed_s > 0.0;
    let named = |answer: &HubAnswer| -> BTreeMap<String, HubGroup> {
        let held = answer.groups.iter().filter(|group| group.sums.allocated_s > 0.0);
        held.map(|group| (group.member(dimension).to_owned(), group.clone())).collect()
    };
    let (now, before) = (named(now), named(before));
    let mut names: Vec<&String> = now.keys().chain(before.keys()).collect();
    names.sort();
    names.dedup();
    let row = |name: &String| {
        let compare = |value: fn(&HubGroup) -> f64| Compared {
            now: now.get(name).map_or(0.0, value),
            week_before: had_rows.then(|| before.get(name).map_or(0.0, value)),
        };
        let allocated_hours = compare(|group| group.sums.allocated_s / HOUR_S);
        let efficiency_now = now.get(name).and_then(efficiency_percent);
        let efficiency_before = before.get(name).and_then(efficiency_percent);
        let both = efficiency_before.zip(efficiency_now);
        ChangeRow {
            name: name.clone(),
            allocated_hours,
            lost_hours: compare(|group| group.lost_hours()[0]),
            efficiency_percent: Compared {
                now: efficiency_now,
                week_before: had_rows.then_some(efficiency_before),
            },
            drop_hours: both.map(|(before, now)| (before - now) / 100.0 * allocated_hours.now),
            drop_within_hours: None,
            drop_mix_hours: None,
        }
    };
    names.into_iter().map(row).collect()
}

impl ChangeRow {
    /// Divides the drop of a user: into what each workflow lost against itself a week before, at
    /// the use of now, and the rest, which is due to another mix of workflows.
    fn divide_drop(&mut self, now: &HubAnswer, before: &HubAnswer) {
        let own = |answer: &HubAnswer| -> BTreeMap<String, HubSums> {
            let own = answer.groups.iter().filter(|group| group.member("user") == self.name);
            let observed = own.filter(|group| group.sums.sm_observed_s > 0.0);
            observed.map(|group| (group.member("workflow").to_owned(), group.sums)).collect()
        };
        let (now, before) = (own(now), own(before));
        let observed_s: f64 = now.values().map(|sums| sums.sm_observed_s).sum();
        let rate = |sums: &HubSums| sums.sm_active_s / sums.sm_observed_s;
        let drop = |(workflow, sums): (&String, &HubSums)| {
            let earlier = rate(before.get(workflow)?);
            Some(sums.sm_observed_s / observed_s * (earlier - rate(sums)))
        };
        let within = now.iter().filter_map(drop).sum::<f64>() * self.allocated_hours.now;
        self.drop_within_hours = self.drop_hours.map(|_| within);
        self.drop_mix_hours = self.drop_hours.map(|all| all - within);
    }
}

/// Returns the active percentage of the time in which SMs were observed.
fn efficiency_percent(group: &HubGroup) -> Option<f64> {
    let HubSums { sm_active_s, sm_observed_s, .. } = group.sums;
    (sm_observed_s > 0.0).then(|| sm_active_s / sm_observed_s * 100.0)
}

fn list_owners(now: &HubAnswer, before: &HubAnswer) -> Vec<OwnerRow> {
    let had_rows = before.total.sums.deployed_s > 0.0;
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
    owners
}

fn list_jobs(runs: &HubRuns) -> Vec<JobRow> {
    let row = |group: &HubGroup| JobRow {
        run: group.member("run").to_owned(),
        user: group.member("user").to_owned(),
        workflow: group.member("workflow").to_owned(),
        allocated_hours: group.sums.allocated_s / HOUR_S,
        lost_hours: group.lost_hours(),
        efficiency: group.efficiency,
    };
    let held = runs.runs.iter().filter(|run| run.group.sums.allocated_s > 0.0);
    let mut jobs: Vec<JobRow> = held.map(|run| row(&run.group)).collect();
    // What was observed to be lost counts first, and then what may be lost.
    jobs.sort_by(|a, b| {
        let ([a_lost, a_most], [b_lost, b_most]) = (a.lost_hours, b.lost_hours);
        b_lost.total_cmp(&a_lost).then(b_most.total_cmp(&a_most))
    });
    jobs
}

/// Lists the runs and attempts that failed, and those that repeat a failed one, in the order of
/// the hours of their runs.
fn list_failed(runs: &HubRuns) -> Vec<FailedRow> {
    let mut rows = Vec::new();
    for run in runs.runs.iter().filter(|run| run.group.sums.allocated_s > 0.0) {
        let row =
            |allocated_s: f64, is_failed: bool, end: String, repeats: Option<&str>| FailedRow {
                run: run.group.member("run").to_owned(),
                user: run.group.member("user").to_owned(),
                workflow: run.group.member("workflow").to_owned(),
                allocated_hours: allocated_s / HOUR_S,
                is_failed,
                end,
                repeats: repeats.map(str::to_owned),
            };
        let mut repeats = run.repeats.as_deref();
        for attempt in &run.attempts {
            if attempt.is_failed || repeats.is_some() {
                let end = attempt.describe_end();
                rows.push(row(attempt.allocated, attempt.is_failed, end, repeats));
            }
            // A job that is started again after a failure repeats itself.
            repeats = if attempt.is_failed { Some(run.group.member("run")) } else { repeats };
        }
        if run.is_failed || repeats.is_some() {
            rows.push(row(run.last_allocated_s(), run.is_failed, run.describe_end(), repeats));
        }
    }
    rows
}

fn list_nodes(now: &HubHosts, before: &HubHosts) -> Vec<NodeRow> {
    let issues_before: BTreeMap<&str, usize> =
        before.hosts.iter().map(|host| (host.host.as_str(), host.issues.len())).collect();
    let sick = now.hosts.iter().filter(|host| !host.issues.is_empty());
    let row = |host: &HubHost| NodeRow {
        host: host.host.clone(),
        lost_hours: host.lost_gpu_hours,
        kinds: host.issues.iter().map(|issue| issue.kind.clone()).collect(),
        problems: host.issues.iter().map(|issue| issue.text.clone()).collect(),
        week_before: issues_before.get(host.host.as_str()).copied().unwrap_or(0),
    };
    sick.map(row).collect()
}

/// Describes what is unknown about an answer.
pub fn describe_gaps(answer: &HubAnswer) -> Vec<String> {
    let mut notes = Vec::new();
    if answer.hours_missing > 0 {
        notes.push(format!(
            "{} without rows: no host reported, or the rows were deleted.",
            render::counted(answer.hours_missing, "whole hour")
        ));
    }
    if let Some(observed) = coverage(&answer.total.sums).filter(|share| *share < COVERAGE_MIN) {
        notes.push(format!(
            "SM activity was observed in {observed:.1} % of the allocated time; where it was not, \
             figures are ranges."
        ));
    }
    notes
}

/// Describes the hosts whose time is in no figure.
fn describe_nodes(hosts: &HubHosts) -> Vec<String> {
    let mut notes = vec!["Hosts that report nothing are unknown.".to_owned()];
    let nodes = hosts.hosts.iter().filter(|host| host.last_row_unix_s.is_none());
    let gpus: Vec<u64> = nodes.filter_map(|host| Some(host.node.as_ref()?.gpus)).collect();
    if !gpus.is_empty() {
        notes.push(format!(
            "Nodes of the scheduler that report no rows, and are in no figure: {} with {}.",
            gpus.len(),
            render::counted(gpus.iter().sum::<u64>(), "GPU")
        ));
    }
    notes
}

/// Describes why a week before cannot be compared, or only with care.
fn describe_week_before(range: TimeRange, now: &HubAnswer, before: &HubAnswer) -> Vec<String> {
    let mut notes = Vec::new();
    let (deployed, deployed_before) = (now.total.sums.deployed_s, before.total.sums.deployed_s);
    if deployed_before <= 0.0 {
        return vec!["The hub has no rows of a week before, so nothing is compared.".to_owned()];
    }
    if range.week_before().until > range.since {
        notes.push(
            "The time is longer than a week, so it overlaps with the time a week before."
                .to_owned(),
        );
    }
    if before.hours_missing > now.hours_missing {
        notes.push(format!(
            "A week before, there are {} without rows, so a shorter time is compared.",
            render::counted(before.hours_missing, "whole hour")
        ));
    }
    if deployed_before < BEFORE_MIN * deployed {
        notes.push(format!(
            "A week before, hosts reported {:.0} % of the GPU hours of now, so compare shares instead \
             of hours.",
            deployed_before / deployed * 100.0
        ));
    }
    notes
}

fn morning_sections(report: &MorningReport) -> Vec<ReportSection> {
    let (hours, observed) = (report.gpu_hours, report.observed_percent);
    let funnel_notes = vec![format!(
        "{} GPU hours of hosts that report rows, {} a week before. Activity was observed in {} % of the \
         allocated time, {} % a week before.",
        number(hours.now),
        before(hours),
        number(observed.now),
        before(observed)
    )];
    let funnel = report.funnel.iter().map(|row| {
        vec![row.part.clone(), number(row.hours), number(row.percent.now), before(row.percent)]
    });
    let funnel = ReportSection {
        title: "Where the deployed GPU time went".to_owned(),
        notes: funnel_notes,
        head: vec!["part", "GPU h", "%", "% a week before"],
        rows: funnel.collect(),
        bar: Some(2),
    };
    let mut workflows =
        change_section("Workflows, by the GPU hours that their drop costs", &report.workflows);
    workflows.head[0] = "workflow";
    let mut users = change_section("Users, by lost GPU hours", &report.users);
    users.head[0] = "user";
    users.head.extend(["of the drop: within workflows", "by another mix"]);
    for (cells, row) in users.rows.iter_mut().zip(&report.users.rows) {
        cells.extend([row.drop_within_hours, row.drop_mix_hours].map(optional));
    }
    let note = "The drop within workflows compares each workflow with itself a week before, at the \
                use of now. The rest is due to another mix of workflows.";
    users.notes.push(note.to_owned());
    let owners = |row: &OwnerRow| {
        let OwnerRow { user, idle_hours, allocated_hours } = row;
        vec![user.clone(), number(idle_hours.now), before(*idle_hours), number(*allocated_hours)]
    };
    let head = vec!["user", "idle h", "a week before", "allocated h"];
    let title = "GPUs that are held and idle, by owner";
    let mut owners = section(title, &report.idle_owners, "None was observed.", head, owners);
    owners.notes.extend(report.notices.describe());
    let nodes = |row: &NodeRow| {
        let lost = number(row.lost_hours);
        vec![row.host.clone(), lost, row.problems.join("; "), row.week_before.to_string()]
    };
    let head = vec!["host", "lost GPU h at most", "problems", "problems a week before"];
    let nodes =
        section("Sick nodes, by lost GPU hours", &report.nodes, "None is known.", head, nodes);
    vec![funnel, workflows, nodes, owners, job_section(report), failed_section(report), users]
}

fn job_section(report: &MorningReport) -> ReportSection {
    let cells = |row: &JobRow| {
        vec![
            row.run.clone(),
            row.user.clone(),
            row.workflow.clone(),
            number(row.allocated_hours),
            span(row.lost_hours.map(number)),
            shares(row.efficiency),
        ]
    };
    let head = vec!["job", "user", "workflow", "allocated h", "lost h", "SM active %"];
    section("Jobs by lost GPU hours", &report.jobs, "No GPU was allocated.", head, cells)
}

fn failed_section(report: &MorningReport) -> ReportSection {
    let cells = |row: &FailedRow| {
        let repeats = row.repeats.clone().unwrap_or_default();
        let [run, user, workflow] = [&row.run, &row.user, &row.workflow].map(String::clone);
        vec![run, user, workflow, number(row.allocated_hours), row.end.clone(), repeats]
    };
    let head = vec!["job", "user", "workflow", "allocated h", "end", "repeats"];
    let title = "Failed and repeated jobs";
    let mut jobs = section(title, &report.failed_jobs, "None is known.", head, cells);
    let (failed, repeated) = (report.failed_hours, report.repeated_hours);
    let text = format!(
        "{} GPU hours of failed jobs, {} a week before; {} of jobs that repeat a failed one, {} a week \
         before.",
        number(failed.now),
        before(failed),
        number(repeated.now),
        before(repeated)
    );
    jobs.notes.insert(0, text);
    jobs
}

/// A section about workflows or users. Its first column has no name yet.
fn change_section(title: &str, list: &Listed<ChangeRow>) -> ReportSection {
    let cells = |row: &ChangeRow| {
        let efficiency = row.efficiency_percent;
        vec![
            row.name.clone(),
            number(row.allocated_hours.now),
            before(row.allocated_hours),
            optional(efficiency.now),
            optional(efficiency.week_before.flatten()),
            optional(row.drop_hours),
            number(row.lost_hours.now),
            before(row.lost_hours),
        ]
    };
    let head = vec![
        "",
        "allocated h",
        "a week before",
        "SM active %",
        "a week before",
        "h by the drop",
        "lost h",
        "a week before",
    ];
    section(title, list, "No GPU was allocated.", head, cells)
}

fn section<T>(
    title: &str,
    list: &Listed<T>,
    none: &str,
    head: Vec<&'static str>,
    cells: impl Fn(&T) -> Vec<String>,
) -> ReportSection {
    let mut notes = Vec::new();
    if list.rows.is_empty() {
        notes.push(none.to_owned());
    }
    if list.left_out > 0 {
        let rows = render::counted(list.left_out as u64, "further row");
        notes.push(format!("{rows} not listed (--top)."));
    }
    let rows = list.rows.iter().map(cells).collect();
    ReportSection { title: title.to_owned(), notes, head, rows, bar: None }
}

/// Returns the percentage of the allocated time in which SM activity was observed.
fn coverage(sums: &HubSums) -> Option<f64> {
    let observed_s = sums.sm_observed_s.min(sums.busy_observed_s);
    (sums.allocated_s > 0.0).then(|| observed_s / sums.allocated_s * 100.0)
}

/// Formats a number with one decimal. What rounds to zero has no sign.
pub fn number(value: f64) -> String {
    let text = format!("{value:.1}");
    if text == "-0.0" { "0.0".to_owned() } else { text }
}

/// Formats a number that may be unknown.
pub fn optional(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), number)
}

fn before(value: Compared<f64>) -> String {
    optional(value.week_before)
}

/// Formats the least and the greatest value, as one if they are equal.
pub fn span([least, most]: [String; 2]) -> String {
    if least == most { least } else { format!("{least} to {most}") }
}

/// Formats the least and the greatest share as percentages.
pub fn shares(efficiency: Option<[f64; 2]>) -> String {
    efficiency.map_or("-".to_owned(), |bounds| span(bounds.map(|share| number(share * 100.0))))
}

/// Formats a time as UTC.
pub fn moment(unix_s: u64) -> String {
    let time = i64::try_from(unix_s).ok().and_then(|second| DateTime::from_timestamp(second, 0));
    time.map_or("-".to_owned(), |time| time.format("%Y-%m-%d %H:%M UTC").to_string())
}
