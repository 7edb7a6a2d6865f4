//! Selects the agents that `rowmill fleet` queries: the agents of named hosts, of a Slurm job, or
//! of this host. The module also prints why a host failed.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use fleet::ipc::control;
use fleet::ipc::socket::SocketPlace;
use setup::Session;
use setup::error::{Error, RunError};

use crate::agent_client::{Client, connect_remote, find_hint};
use crate::args::Reach;
use crate::capture_request::socket_place;

/// The socket folder that the installation guide recommends for agents.
const USUAL_FOLDER: &str = "/run/kineto";

/// Maximum time in which a host must answer a request that does not make it wait.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Creates clients for the agents that the options select.
///
/// # Errors
/// Slurm does not know the job, or a token or a certificate is missing.
pub fn open_clients(reach: &Reach, patience: Duration) -> Result<Vec<Client>, Error> {
    let hosts = match reach.slurm {
        Some(job) => list_slurm_hosts(job)?,
        None => reach.hosts.clone(),
    };
    if hosts.is_empty() {
        return Ok(vec![Client::local(find_local_socket(reach), patience)]);
    }
    let unique: BTreeSet<String> = hosts.into_iter().filter(|host| !host.is_empty()).collect();
    connect_remote(unique, reach, patience)
}

/// Finds the socket of this host's agent. The result is the socket that the user names, or else the
/// abstract socket. If no agent listens at the abstract socket, but one listens in the recommended
/// folder, the result is the socket in that folder.
fn find_local_socket(reach: &Reach) -> SocketPlace {
    let named = socket_place(reach.socket_dir.as_deref());
    let usual = SocketPlace::in_folder(Path::new(USUAL_FOLDER));
    let is_unnamed = named == SocketPlace::Abstract && control::connect(&named).is_err();
    if is_unnamed && control::connect(&usual).is_ok() { usual } else { named }
}

/// Queries Slurm for the hosts of a job.
fn list_slurm_hosts(job: i64) -> Result<Vec<String>, Error> {
    let run = |program: &'static str, words: &[&str]| {
        let output = Command::new(program).args(words).output();
        let output = output.map_err(|source| RunError::Program { program, source })?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if output.status.success() && !text.is_empty() {
            Ok(text)
        } else {
            let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
            let said = if said.is_empty() { "none".to_owned() } else { said };
            Err(Error::from(RunError::Slurm { job, said }))
        }
    };
    let list = run("squeue", &["--noheader", "--job", &job.to_string(), "--format", "%N"])?;
    let names = run("scontrol", &["show", "hostnames", &list])?;
    Ok(names.lines().map(str::to_owned).collect())
}

/// Prints why a host did not fulfill a request, and advice on what to do.
pub fn say_problem(client: &Client, problem: &str, session: &Session) {
    session.console.say(format_args!("{}: {problem}", client.name()));
    if let Some(hint) = find_hint(problem) {
        session.console.say(format_args!("hint: {hint}"));
    }
}
