//! The command `rowmill fleet`, which queries the agents of many hosts, with a thread for each
//! host, and prints the answers.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use fleet::wire::{Pause, PeriodicRow, SampleOrder, Status};
use serde::Serialize;

use crate::agent_client::{self, HostClock, ask_each};
use crate::args::{Fleet, FleetVerb, Reach};
use setup::Session;
use setup::error::{EXIT_FAILED, Error};
use setup::error_text::plain;
use setup::render;

mod doctor;
mod hub;
mod job;
mod notice_answer;
mod notices;
mod order;
mod reach;
mod report;
mod sample;
mod sections;
mod select;
pub mod trace;

use reach::{PATIENCE, open_clients, say_problem};

/// The status of one host, or the reason why its agent did not answer.
#[derive(Serialize)]
struct HostStatus {
    host: String,
    error: Option<String>,
    clock: Option<HostClock>,
    status: Option<Status>,
}

/// Runs `rowmill fleet` and prints its result.
pub fn run(args: &Fleet, session: &Session) -> Result<ExitCode, Error> {
    match &args.verb {
        FleetVerb::Trace(args) if args.through.is_chosen() => order::run_trace(args, session),
        FleetVerb::Trace(args) => trace::run(args, session),
        FleetVerb::Orders(args) => order::run_orders(args, session),
        FleetVerb::Findings(args) => order::run_findings(args, session),
        FleetVerb::Notices(args) => notices::run(args, session),
        FleetVerb::Report(args) => report::run(args, session),
        FleetVerb::Job(args) => job::run(args, session),
        FleetVerb::Hosts(reach) => show_statuses(reach, session, host_table),
        FleetVerb::Status(reach) => show_statuses(reach, session, status_table),
        FleetVerb::Doctor(args) => match args.subject() {
            Some(subject) => doctor::run(args, &subject, session),
            None => show_statuses(&args.reach, session, note_table),
        },
        FleetVerb::Sample { reach, select, length, every } => {
            let ms = |time: &Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
            let (pids, run) = (select.pids.clone(), None);
            let order = SampleOrder { pids, run, length_ms: ms(length), every_ms: ms(every) };
            // The answer arrives only after the sampled time, so the timeout is longer by that
            // time.
            let clients = open_clients(reach, PATIENCE + *length)?;
            sample::run(&clients, &order, select, session)
        }
        FleetVerb::Pause { reach, gpu, length } => {
            let order = Pause { gpu: *gpu, seconds: length.as_secs() };
            pause_counters(reach, &order, session)
        }
    }
}

/// Queries all hosts for their status, and prints the answers with the function `table`.
fn show_statuses(
    reach: &Reach,
    session: &Session,
    table: fn(&[HostStatus]) -> String,
) -> Result<ExitCode, Error> {
    let clients = open_clients(reach, PATIENCE)?;
    let answers = ask_each(&clients, |client| {
        let host = client.name().to_owned();
        match client.fetch_status() {
            Ok((status, clock)) => {
                // The user did not type a name for the local host, so the name that its agent
                // reports is shown.
                let host = if client.is_local() { status.host.clone() } else { host };
                HostStatus { host, error: None, clock: Some(clock), status: Some(status) }
            }
            Err(problem) => HostStatus { host, error: Some(problem), clock: None, status: None },
        }
    });
    session.console.report(&answers, |answers| table(answers))?;
    let problems = answers.iter().filter_map(|answer| Some((&answer.host, answer.error.as_ref()?)));
    // Several hosts often fail for the same reason, so each hint is printed only once.
    let hints: BTreeSet<&str> =
        problems.clone().filter_map(|(_, problem)| agent_client::find_hint(problem)).collect();
    problems.for_each(|(host, problem)| session.console.say(format_args!("{host}: {problem}")));
    hints.iter().for_each(|hint| session.console.say(format_args!("hint: {hint}")));
    let has_failed = answers.iter().any(|answer| answer.error.is_some());
    Ok(if has_failed { ExitCode::from(EXIT_FAILED) } else { ExitCode::SUCCESS })
}

fn host_table(answers: &[HostStatus]) -> String {
    let row = |answer: &HostStatus| match &answer.status {
        Some(status) => {
            let clock = answer.clock.map_or(String::new(), HostClock::describe);
            let (processes, gpus) = (status.processes.len(), status.gpus.len());
            let notes = match status.notes.len() {
                0 => String::new(),
                count => render::counted(count as u64, "note"),
            };
            vec![
                answer.host.clone(),
                status.version.clone(),
                processes.to_string(),
                gpus.to_string(),
                clock,
                notes,
            ]
        }
        None => silent_row(answer, 6),
    };
    let rows: Vec<Vec<String>> = answers.iter().map(row).collect();
    render::grid(&["host", "agent", "processes", "GPUs", "clock", "notes"], &rows)
}

/// Builds the table row of a host that did not answer. The reason is printed on stderr, below the
/// table.
fn silent_row(answer: &HostStatus, columns: usize) -> Vec<String> {
    let mut row = vec![String::new(); columns];
    row[0].clone_from(&answer.host);
    row[columns - 1] = "no answer".to_owned();
    row
}

fn status_table(answers: &[HostStatus]) -> String {
    let mut processes = Vec::new();
    let mut gpus = Vec::new();
    for answer in answers {
        let Some(status) = &answer.status else {
            processes.push(silent_row(answer, 6));
            continue;
        };
        for row in &status.processes {
            let rank = row.rank.map_or(String::new(), |rank| rank.to_string());
            let state = match (&row.skip, row.is_hung, &row.phase) {
                (Some(skip), ..) => skip.clone(),
                (None, true, _) => "seems to hang".to_owned(),
                (None, false, Some(phase)) => phase.clone(),
                (None, false, None) if row.is_free => "polls for requests".to_owned(),
                (None, false, None) => "is being traced".to_owned(),
            };
            let job = row.job.clone().unwrap_or_default();
            let user = row.user.as_ref().map_or(row.uid.to_string(), |user| plain(user));
            let host = answer.host.clone();
            processes.push(vec![host, row.pid.to_string(), user, rank, plain(&job), state]);
        }
        for gpu in &status.gpus {
            let share = |part: Option<f64>| {
                part.map_or("-".to_owned(), |part| format!("{:.0} %", part * 100.0))
            };
            let state = match (&gpu.lost, gpu.is_held_idle, gpu.paused_s) {
                (Some(why), ..) => format!("lost: {}", plain(why)),
                (None, true, _) => "held idle".to_owned(),
                (None, false, Some(left)) => format!("paused for {left} s"),
                (None, false, None) => String::new(),
            };
            let job = plain(&gpu.job.clone().unwrap_or_default());
            let (busy, sm) = (share(gpu.busy), share(gpu.sm_active));
            gpus.push(vec![
                answer.host.clone(),
                gpu.index.to_string(),
                gpu.model.clone(),
                busy,
                sm,
                job,
                state,
            ]);
        }
    }
    let mut text = render::grid(&["host", "pid", "user", "rank", "job", "state"], &processes);
    if !gpus.is_empty() {
        let heads = ["host", "GPU", "model", "busy", "SMs active", "job", "state"];
        text += &format!("\n\n{}", render::grid(&heads, &gpus));
    }
    let periodic = periodic_rows(answers);
    if !periodic.is_empty() {
        let heads =
            ["host", "user", "workflow type", "traces today", "MiB", "steps", "slower by", "state"];
        text += &format!("\n\n{}", render::grid(&heads, &periodic));
    }
    text
}

/// Lists the periodic traces that each agent recorded today, compared with their daily budgets.
fn periodic_rows(answers: &[HostStatus]) -> Vec<Vec<String>> {
    let row = |host: &str, row: &PeriodicRow| {
        let lost = if row.lost == 0 { String::new() } else { format!(", {} lost", row.lost) };
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let share = row.recorded as f64 / row.steps.max(1) as f64;
        let spread =
            row.spread.map_or(String::new(), |one| format!(" (spread {:.1} %)", one * 100.0));
        let slower =
            row.slowdown.map_or("-".to_owned(), |one| format!("{:+.1} %{spread}", one * 100.0));
        let state = match row.backs_off_s {
            Some(left) => format!("{} for {left} s", row.state),
            None => row.state.clone(),
        };
        vec![
            host.to_owned(),
            row.uid.to_string(),
            plain(&row.workflow),
            format!("{} of {}{lost}", row.traces, row.traces_max),
            format!("{:.1} of {:.0}", mib(row.bytes), mib(row.bytes_max)),
            format!(
                "{} of {}: {:.3} of {:.3} %",
                row.recorded,
                row.steps,
                share * 100.0,
                row.share_max * 100.0
            ),
            slower,
            plain(&state),
        ]
    };
    let statuses = answers.iter().filter_map(|answer| Some((answer, answer.status.as_ref()?)));
    let rows = statuses.flat_map(|(answer, status)| {
        status.periodic.iter().map(|one| row(&answer.host, one)).collect::<Vec<_>>()
    });
    rows.collect()
}

fn note_table(answers: &[HostStatus]) -> String {
    let mut rows = Vec::new();
    for answer in answers {
        let Some(status) = &answer.status else {
            rows.push(silent_row(answer, 2));
            continue;
        };
        rows.extend(status.notes.iter().map(|note| vec![answer.host.clone(), plain(note)]));
        if status.notes.is_empty() {
            rows.push(vec![answer.host.clone(), "nothing is missing".to_owned()]);
        }
    }
    render::grid(&["host", "what is missing"], &rows)
}

fn pause_counters(reach: &Reach, order: &Pause, session: &Session) -> Result<ExitCode, Error> {
    let clients = open_clients(reach, PATIENCE)?;
    let mut code = ExitCode::SUCCESS;
    for (client, done) in
        clients.iter().zip(ask_each(&clients, |client| client.pause_counters(order)))
    {
        let host = client.name();
        match done {
            Ok(()) if order.seconds == 0 => session.console.say(format_args!("{host}: resumed")),
            Ok(()) => session.console.say(format_args!("{host}: paused for {} s", order.seconds)),
            Err(problem) => {
                say_problem(client, &problem, session);
                code = ExitCode::from(EXIT_FAILED);
            }
        }
    }
    Ok(code)
}
