//! `rowmill fleet`: asks agents, one thread a host, and shows what they say.

use std::collections::BTreeSet;
use std::process::{Command, ExitCode};
use std::time::Duration;

use fleet::wire::{Pause, PeriodicRow, SampleOrder, Status};
use serde::Serialize;

use crate::args::{Fleet, FleetVerb, Reach};
use crate::command::capture::place;
use crate::error::{EXIT_FAILED, Error};
use crate::plain::plain;
use crate::render;
use crate::resolve::Session;

pub mod client;
mod sample;
mod select;
pub mod trace;

use client::{Client, HostClock, each};

/// How long a host may take for a short answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// What one host said.
#[derive(Serialize)]
struct Answer {
    host: String,
    error: Option<String>,
    /// The host's clock minus ours, and how far that may be off.
    clock: Option<HostClock>,
    status: Option<Status>,
}

/// Runs the command.
pub fn run(args: &Fleet, session: &Session) -> Result<ExitCode, Error> {
    match &args.verb {
        FleetVerb::Trace(args) => trace::run(args, session),
        FleetVerb::Hosts(reach) => show(reach, session, hosts),
        FleetVerb::Status(reach) => show(reach, session, statuses),
        FleetVerb::Doctor(reach) => show(reach, session, notes),
        FleetVerb::Sample { reach, select, length, every } => {
            let ms = |time: &Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
            let (pids, run) = (select.pids.clone(), None);
            let order = SampleOrder { pids, run, length_ms: ms(length), every_ms: ms(every) };
            let clients = clients(reach, PATIENCE + *length)?;
            sample::run(&clients, &order, select, session)
        }
        FleetVerb::Pause { reach, gpu, length } => {
            let order = Pause { gpu: *gpu, seconds: length.as_secs() };
            pause(reach, &order, session)
        }
    }
}

/// The agents that are meant.
fn clients(reach: &Reach, patience: Duration) -> Result<Vec<Client>, Error> {
    let hosts = match reach.slurm {
        Some(job) => of_slurm(job)?,
        None => reach.hosts.clone(),
    };
    if hosts.is_empty() {
        return Ok(vec![Client::local(place(reach.socket_dir.as_deref()), patience)]);
    }
    let unique: BTreeSet<String> = hosts.into_iter().filter(|host| !host.is_empty()).collect();
    client::remote(unique, reach, patience)
}

/// The hosts of a Slurm job.
fn of_slurm(job: i64) -> Result<Vec<String>, Error> {
    let ask = |program: &'static str, words: &[&str]| {
        let output = Command::new(program).args(words).output();
        let output = output.map_err(|source| Error::Program { program, source })?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if output.status.success() && !text.is_empty() {
            Ok(text)
        } else {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(Error::Slurm { job, said })
        }
    };
    let list = ask("squeue", &["--noheader", "--job", &job.to_string(), "--format", "%N"])?;
    let names = ask("scontrol", &["show", "hostnames", &list])?;
    Ok(names.lines().map(str::to_owned).collect())
}

fn show(
    reach: &Reach,
    session: &Session,
    table: fn(&[Answer]) -> String,
) -> Result<ExitCode, Error> {
    let clients = clients(reach, PATIENCE)?;
    let answers = each(&clients, |client| {
        let host = client.name().to_owned();
        match client.status() {
            Ok((status, clock)) => {
                Answer { host, error: None, clock: Some(clock), status: Some(status) }
            }
            Err(problem) => Answer { host, error: Some(problem), clock: None, status: None },
        }
    });
    session.console.report(&answers, |answers| table(answers))?;
    let is_silent = answers.iter().any(|answer| answer.error.is_some());
    Ok(if is_silent { ExitCode::from(EXIT_FAILED) } else { ExitCode::SUCCESS })
}

fn hosts(answers: &[Answer]) -> String {
    let row = |answer: &Answer| match &answer.status {
        Some(status) => {
            let clock = answer.clock.map_or(String::new(), client::HostClock::words);
            let (processes, gpus) = (status.processes.len(), status.gpus.len());
            let lacks = if status.notes.is_empty() {
                String::new()
            } else {
                format!("{} notes", status.notes.len())
            };
            vec![
                answer.host.clone(),
                status.version.clone(),
                processes.to_string(),
                gpus.to_string(),
                clock,
                lacks,
            ]
        }
        None => {
            let why = answer.error.clone().unwrap_or_default();
            vec![
                answer.host.clone(),
                String::new(),
                String::new(),
                String::new(),
                String::new(),
                plain(&why),
            ]
        }
    };
    let rows: Vec<Vec<String>> = answers.iter().map(row).collect();
    render::grid(&["host", "agent", "processes", "GPUs", "clock", "problem"], &rows)
}

fn statuses(answers: &[Answer]) -> String {
    let mut processes = Vec::new();
    let mut gpus = Vec::new();
    for answer in answers {
        let Some(status) = &answer.status else {
            let why = plain(answer.error.as_deref().unwrap_or_default());
            processes.push(vec![
                answer.host.clone(),
                String::new(),
                String::new(),
                String::new(),
                why,
            ]);
            continue;
        };
        for row in &status.processes {
            let rank = row.rank.map_or(String::new(), |rank| rank.to_string());
            let does = match (&row.skip, row.is_hung, &row.phase) {
                (Some(skip), ..) => skip.clone(),
                (None, true, _) => "seems to hang".to_owned(),
                (None, false, Some(phase)) => phase.clone(),
                (None, false, None) if row.is_free => "asks".to_owned(),
                (None, false, None) => "traces".to_owned(),
            };
            let job = row.job.clone().unwrap_or_default();
            processes.push(vec![answer.host.clone(), row.pid.to_string(), rank, plain(&job), does]);
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
    let mut text = render::grid(&["host", "pid", "rank", "job", "does"], &processes);
    if !gpus.is_empty() {
        let heads = ["host", "GPU", "model", "busy", "SMs active", "job", "state"];
        text += &format!("\n\n{}", render::grid(&heads, &gpus));
    }
    let periodic = periodic(answers);
    if !periodic.is_empty() {
        let heads =
            ["host", "user", "workflow type", "traces today", "MiB", "steps", "slower by", "state"];
        text += &format!("\n\n{}", render::grid(&heads, &periodic));
    }
    text
}

/// Periodic traces of today beside their budgets.
fn periodic(answers: &[Answer]) -> Vec<Vec<String>> {
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

fn notes(answers: &[Answer]) -> String {
    let mut rows = Vec::new();
    for answer in answers {
        let notes = answer.status.iter().flat_map(|status| &status.notes).chain(&answer.error);
        let before = rows.len();
        rows.extend(notes.map(|note| vec![answer.host.clone(), plain(note)]));
        if rows.len() == before {
            rows.push(vec![answer.host.clone(), "nothing is missing".to_owned()]);
        }
    }
    render::grid(&["host", "what is missing"], &rows)
}

fn pause(reach: &Reach, order: &Pause, session: &Session) -> Result<ExitCode, Error> {
    let clients = clients(reach, PATIENCE)?;
    let mut code = ExitCode::SUCCESS;
    for (client, done) in clients.iter().zip(each(&clients, |client| client.pause(order))) {
        let host = client.name();
        match done {
            Ok(()) if order.seconds == 0 => session.console.say(format_args!("{host}: resumed")),
            Ok(()) => session.console.say(format_args!("{host}: paused for {} s", order.seconds)),
            Err(problem) => {
                session.console.say(format_args!("{host}: {problem}"));
                code = ExitCode::from(EXIT_FAILED);
            }
        }
    }
    Ok(code)
}
