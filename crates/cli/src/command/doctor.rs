//! The command `rowmill doctor`, which diagnoses why captures, GPUs, MPI or links do not work.

use std::path::Path;
use std::process::ExitCode;

use fleet::diagnosis::{self, Check, CheckVerdict};
use fleet::process::{self, Process};
use serde::Serialize;

use crate::args::Doctor;
use crate::capture_request::socket_place;
use setup::Session;
use setup::error::{EXIT_FAILED, Error, UsageError};
use setup::render;

mod device;
mod links;
mod mpi;

/// A process with the results of all its checks.
#[derive(Serialize)]
struct DiagnosedProcess {
    pid: u32,
    command: String,
    can_be_captured: bool,
    checks: Vec<CheckLine>,
}

/// The result of one check of a process, with a remedy if the check failed.
#[derive(Serialize)]
struct CheckLine {
    check: &'static str,
    verdict: &'static str,
    found: String,
    cure: Option<String>,
}

/// Runs `rowmill doctor` and prints its result.
pub fn run(doctor: &Doctor, session: &Session) -> Result<ExitCode, Error> {
    match doctor {
        Doctor::Capture { pid, socket_dir } => {
            diagnose_capture(pid, socket_dir.as_deref(), session)
        }
        Doctor::Device => device::run(session),
        Doctor::Links(args) => links::run(args, session),
        Doctor::Mpi { mpi_library } => mpi::run(mpi_library.as_deref(), session),
    }
}

fn diagnose_capture(
    pids: &[u32],
    folder: Option<&Path>,
    session: &Session,
) -> Result<ExitCode, Error> {
    let diagnosed = diagnose_processes(pids, folder)?;
    if diagnosed.is_empty() {
        session.console.say(
            "no process with PyTorch loaded was found; name one with --pid, or run this command as the \
             job's user",
        );
    }
    session.console.report(&diagnosed, |diagnosed| {
        diagnosed.iter().map(table).collect::<Vec<_>>().join("\n\n")
    })?;
    let is_well = diagnosed.iter().all(|process| process.can_be_captured);
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FAILED) })
}

fn diagnose_processes(
    pids: &[u32],
    socket_dir: Option<&Path>,
) -> Result<Vec<DiagnosedProcess>, Error> {
    let processes: Vec<Process> = if pids.is_empty() {
        let own = std::process::id();
        let all = process::all().into_iter().filter(|&pid| pid != own).filter_map(Process::read);
        all.filter(diagnosis::has_torch).collect()
    } else {
        let read_process = |&pid: &u32| Process::read(pid).ok_or(UsageError::NoSuchProcess { pid });
        pids.iter().map(read_process).collect::<Result<_, _>>()?
    };
    let place = socket_place(socket_dir);
    let diagnose =
        |process: &Process| summarize_checks(process, diagnosis::diagnose(process, &place));
    Ok(processes.iter().map(diagnose).collect())
}

fn summarize_checks(process: &Process, checks: Vec<Check>) -> DiagnosedProcess {
    DiagnosedProcess {
        pid: process.pid,
        command: process.command.join(" "),
        can_be_captured: checks.iter().all(|check| check.verdict != CheckVerdict::Wrong),
        checks: checks.into_iter().map(check_line).collect(),
    }
}

fn check_line(check: Check) -> CheckLine {
    let verdict = match check.verdict {
        CheckVerdict::Right => "ok",
        CheckVerdict::Unknown => "unknown",
        CheckVerdict::Wrong => "wrong",
    };
    CheckLine { check: check.name, verdict, found: check.found, cure: check.fix }
}

fn table(process: &DiagnosedProcess) -> String {
    let verdict = if process.can_be_captured { "can be captured" } else { "cannot be captured" };
    let mut text = format!("process {}: {verdict}   {}\n", process.pid, process.command);
    let row = |line: &CheckLine| vec![line.check.into(), line.verdict.into(), line.found.clone()];
    let rows: Vec<Vec<String>> = process.checks.iter().map(row).collect();
    text += &render::grid(&["check", "", "found"], &rows);
    for cure in process.checks.iter().filter_map(|line| line.cure.as_ref()) {
        text += &format!("\n→ {cure}");
    }
    text
}
