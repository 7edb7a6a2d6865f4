//! Diagnoses why a process does not poll, or why it could not write its trace. The checks only read
//! from `/proc` and the file system.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::ipc::socket::{FOLDER_MAX, SocketPlace, VARIABLE};
use crate::ipc::staging;
use crate::process::{self, Process};

/// The environment variable that makes PyTorch poll, whatever its value.
const SWITCH: &str = "KINETO_USE_DAEMON";

/// The result of a check of one condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckVerdict {
    /// The condition for polling is met.
    Right,
    /// The condition could not be checked, because the information is not accessible.
    Unknown,
    Wrong,
}

/// One checked condition, with its result and a hint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    pub name: &'static str,
    pub verdict: CheckVerdict,
    pub found: String,
    /// Advice to the user, if the check failed.
    pub fix: Option<String>,
}

/// Whether the process has loaded PyTorch's libraries. Returns `false` if the list of libraries is
/// not accessible.
pub fn has_torch(process: &Process) -> bool {
    process.libraries("libtorch_cpu").is_some_and(|found| !found.is_empty())
}

/// Checks every condition that must hold for a process to poll at `place` and to write a trace.
pub fn diagnose(process: &Process, place: &SocketPlace) -> Vec<Check> {
    let mut checks = vec![
        running(process),
        user(process, process::own_uid()),
        switch(process),
        same_place(process, place),
        library(process),
    ];
    match place {
        SocketPlace::Abstract => checks.push(network(process)),
        SocketPlace::Folder(folder) => checks.push(socket_folder(process, folder)),
    }
    checks.push(endpoint(process));
    checks.push(trace_folder(process));
    checks
}

fn check(name: &'static str, verdict: CheckVerdict, found: impl Into<String>) -> Check {
    Check { name, verdict, found: found.into(), fix: None }
}

impl Check {
    fn fix(self, words: impl Into<String>) -> Self {
        Self { fix: Some(words.into()), ..self }
    }
}

fn running(process: &Process) -> Check {
    let name = "runs";
    match process.state {
        'T' | 't' => check(name, CheckVerdict::Wrong, "stopped")
            .fix(format!("continue it: kill -CONT {}, or detach the debugger", process.pid)),
        'Z' | 'X' => check(name, CheckVerdict::Wrong, "ended, not yet reaped by its parent"),
        _ => check(name, CheckVerdict::Right, "yes"),
    }
}

fn user(process: &Process, own: u32) -> Check {
    let name = "user";
    if own == 0 || own == process.uid {
        return check(name, CheckVerdict::Right, format!("{}, ours is {own}", process.uid));
    }
    check(name, CheckVerdict::Wrong, format!("{}, ours is {own}", process.uid))
        .fix("run rowmill capture as the job's user, or as root")
}

fn switch(process: &Process) -> Check {
    if process.environment.is_none() {
        return check(SWITCH, CheckVerdict::Unknown, "its environment is not readable");
    }
    match process.variable(SWITCH) {
        Some(value) => {
            check(SWITCH, CheckVerdict::Right, format!("{value:?}, set when it started"))
        }
        None => check(SWITCH, CheckVerdict::Wrong, "not set when the process started")
            .fix(format!("start the job with {SWITCH}=1; it cannot be set in a running process")),
    }
}

fn same_place(process: &Process, place: &SocketPlace) -> Check {
    if process.environment.is_none() {
        return check(VARIABLE, CheckVerdict::Unknown, "its environment is not readable");
    }
    let theirs = process.variable(VARIABLE).filter(|folder| !folder.is_empty());
    let (ours, found) = match place {
        SocketPlace::Abstract => (None, theirs.unwrap_or("not set").to_owned()),
        SocketPlace::Folder(folder) => {
            (Some(folder.as_path()), theirs.unwrap_or("not set").to_owned())
        }
    };
    let is_long = theirs.is_some_and(|folder| folder.len() > FOLDER_MAX);
    if is_long {
        return check(VARIABLE, CheckVerdict::Wrong, found).fix(format!(
            "choose a folder of at most {FOLDER_MAX} bytes, as socket names are limited"
        ));
    }
    let same = match (theirs, ours) {
        // PyTorch compares the paths as text, and exits if an answer comes from another path.
        (Some(theirs), Some(ours)) => {
            ours.as_os_str() == theirs && reached(process, theirs) == canonical(ours)
        }
        (theirs, ours) => theirs.is_none() && ours.is_none(),
    };
    if same {
        return check(VARIABLE, CheckVerdict::Right, found);
    }
    let fix = match theirs {
        Some(folder) => format!("listen where it polls: rowmill capture --socket-dir {folder}"),
        None => format!("listen where it polls: omit --socket-dir and unset {VARIABLE}"),
    };
    check(VARIABLE, CheckVerdict::Wrong, found).fix(fix)
}

fn library(process: &Process) -> Check {
    let name = "PyTorch";
    let Some(found) = process.libraries("libtorch_cpu") else {
        return check(name, CheckVerdict::Unknown, "its libraries are not readable");
    };
    let Some(path) = found.first() else {
        return check(name, CheckVerdict::Wrong, "libtorch_cpu is not loaded").fix(
            "wait until it has imported torch; a launcher's child may be the one that trains",
        );
    };
    let shown = path.display().to_string();
    match process::contains(process, path, SWITCH.as_bytes()) {
        Some(true) => check(name, CheckVerdict::Right, shown),
        Some(false) => {
            check(name, CheckVerdict::Wrong, format!("{shown}: built without the daemon")).fix(
                "use a PyTorch built with Kineto's daemon support, as the wheels for Linux are",
            )
        }
        None => check(name, CheckVerdict::Unknown, format!("{shown}: cannot be read")),
    }
}

fn network(process: &Process) -> Check {
    let name = "network namespace";
    match process.shares("net") {
        Some(true) => check(name, CheckVerdict::Right, "ours"),
        Some(false) => check(name, CheckVerdict::Wrong, "another: a container's").fix(format!(
            "mount one folder into the container and set {VARIABLE} to it in the job, and give \
             --socket-dir here"
        )),
        None => check(name, CheckVerdict::Unknown, "not readable"),
    }
}

fn socket_folder(process: &Process, folder: &Path) -> Check {
    let name = "socket folder";
    let shown = folder.display().to_string();
    let Ok(found) = fs::metadata(folder) else {
        return check(name, CheckVerdict::Wrong, format!("{shown}: no such folder"))
            .fix(format!("create it before the job starts: mkdir -m 1777 {shown}"));
    };
    // To create a socket, a process needs the permissions to write and to search (3) in the class
    // that applies to it.
    let bits = if found.uid() == process.uid {
        0o300
    } else if found.gid() == process.gid {
        0o030
    } else {
        0o003
    };
    if process.uid == 0 || found.mode() & bits == bits {
        return check(name, CheckVerdict::Right, shown);
    }
    check(name, CheckVerdict::Wrong, format!("{shown}: user {} may not write there", process.uid))
        .fix(format!("allow the job to create sockets there: chmod 1777 {shown}"))
}

/// Checks whether the process has created its socket for answers, which proves that Kineto has
/// started to poll.
fn endpoint(process: &Process) -> Check {
    const CLIENT: &str = "dynoconfigclient";
    let name = "its own socket";
    let fds = fs::read_dir(format!("/proc/{}/fd", process.pid));
    let table = fs::read_to_string(format!("/proc/{}/net/unix", process.pid));
    let (Ok(fds), Ok(table)) = (fds, table) else {
        return check(name, CheckVerdict::Unknown, "not readable");
    };
    let inodes: Vec<String> = fds
        .flatten()
        .filter_map(|fd| fs::read_link(fd.path()).ok())
        .filter_map(|to| {
            let to = to.to_string_lossy().into_owned();
            Some(to.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
        })
        .collect();
    let is_ours = |line: &&str| {
        // Column 7 of `net/unix` is the inode, by which the sockets of a process are identified.
        let inode = line.split_ascii_whitespace().nth(6);
        line.contains(CLIENT) && inode.is_some_and(|inode| inodes.iter().any(|own| own == inode))
    };
    match table.lines().find(is_ours) {
        Some(line) => {
            let socket = line.split_ascii_whitespace().last().unwrap_or_default();
            check(name, CheckVerdict::Right, socket)
        }
        None => check(name, CheckVerdict::Wrong, format!("no socket named {CLIENT}…: the process does not poll")).fix(
            "set the variable before torch is imported; with KINETO_LOG_LEVEL=0 the job logs the reason",
        ),
    }
}

fn trace_folder(process: &Process) -> Check {
    let name = "trace folder";
    if process.environment.is_none() {
        return check(name, CheckVerdict::Unknown, "its environment is not readable");
    }
    let folder = staging::allowed(process);
    let fix = format!("set {} to a folder the job may write", staging::VARIABLE);
    let seen = process.path(Path::new(folder));
    if folder.starts_with('/') && seen.is_dir() {
        return check(name, CheckVerdict::Right, folder);
    }
    check(name, CheckVerdict::Wrong, format!("{folder}: no such folder")).fix(fix)
}

fn reached(process: &Process, folder: &str) -> PathBuf {
    canonical(&process.path(Path::new(folder)))
}

fn canonical(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{Check, CheckVerdict, diagnose};
    use crate::ipc::socket::SocketPlace;
    use crate::process::Process;

    fn process(variables: &[(&str, &str)]) -> Process {
        let pair = |&(a, b): &(&str, &str)| (a.to_owned(), b.to_owned());
        let environment: BTreeMap<String, String> = variables.iter().map(pair).collect();
        Process { environment: Some(environment), ..Process::read(std::process::id()).unwrap() }
    }

    fn verdict(process: &Process, place: &SocketPlace, name: &str) -> Check {
        diagnose(process, place).into_iter().find(|check| check.name == name).unwrap()
    }

    #[test]
    fn unprepared_process_fails_all_checks() {
        let checks = diagnose(&process(&[]), &SocketPlace::Abstract);
        let wrong: Vec<&str> = checks
            .iter()
            .filter(|check| check.verdict == CheckVerdict::Wrong)
            .map(|check| check.name)
            .collect();
        assert_eq!(wrong, ["KINETO_USE_DAEMON", "PyTorch", "its own socket"]);
        assert!(checks.iter().all(|c| c.fix.is_some() == (c.verdict == CheckVerdict::Wrong)));
    }

    #[test]
    fn other_place_other_user_and_stopped_process_are_reported() {
        let name = "KINETO_IPC_SOCKET_DIR";
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let path = folder.path().to_str().unwrap();
        let here = SocketPlace::Folder(folder.path().to_owned());
        let asks = process(&[("KINETO_USE_DAEMON", "0"), (name, path)]);
        assert_eq!(verdict(&asks, &here, name).verdict, CheckVerdict::Right);
        assert_eq!(verdict(&asks, &here, "socket folder").verdict, CheckVerdict::Right);
        assert_eq!(verdict(&asks, &here, "KINETO_USE_DAEMON").verdict, CheckVerdict::Right);
        let elsewhere = verdict(&asks, &SocketPlace::Abstract, name);
        assert_eq!(
            elsewhere.fix.unwrap(),
            format!("listen where it polls: rowmill capture --socket-dir {path}")
        );
        assert_eq!(verdict(&process(&[]), &here, name).verdict, CheckVerdict::Wrong);
        let long = process(&[(name, &format!("/{}", "x".repeat(60)))]);
        assert_eq!(verdict(&long, &here, name).verdict, CheckVerdict::Wrong);
        let stopped = Process { state: 'T', ..asks.clone() };
        assert_eq!(verdict(&stopped, &here, "runs").verdict, CheckVerdict::Wrong);
        let hidden = Process { environment: None, ..asks };
        assert_eq!(verdict(&hidden, &here, name).verdict, CheckVerdict::Unknown);
        let traces = process(&[("KINETO_ONDEMAND_TRACE_DIR", "/no/such")]);
        assert_eq!(verdict(&traces, &here, "trace folder").verdict, CheckVerdict::Wrong);
        assert_eq!(super::user(&stopped, 0).verdict, CheckVerdict::Right);
        assert_eq!(super::user(&stopped, stopped.uid + 1).verdict, CheckVerdict::Wrong);
    }
}
