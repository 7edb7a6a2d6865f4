//! Which agents `rowmill fleet` asks.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use fleet::ipc::control;
use fleet::ipc::socket::SocketPlace;
use setup::error::{Error, RunError};

use crate::agent_client::{Client, remote};
use crate::args::Reach;
use crate::capture_request::socket_place;

/// The socket folder that the installation guide names.
const USUAL_FOLDER: &str = "/run/kineto";

/// How long a host may take for a short answer.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Clients of the agents that the options name: those of hosts, of a Slurm job, or of this host.
///
/// # Errors
/// Slurm does not know the job, or a token or certificate is missing.
pub fn open_clients(reach: &Reach, patience: Duration) -> Result<Vec<Client>, Error> {
    let hosts = match reach.slurm {
        Some(job) => hosts_of_slurm_job(job)?,
        None => reach.hosts.clone(),
    };
    if hosts.is_empty() {
        return Ok(vec![Client::local(local_place(reach), patience)]);
    }
    let unique: BTreeSet<String> = hosts.into_iter().filter(|host| !host.is_empty()).collect();
    remote(unique, reach, patience)
}

/// The socket of this host's agent: where the user says, else the name of the kernel, else the
/// usual folder if an agent answers there.
fn local_place(reach: &Reach) -> SocketPlace {
    let named = socket_place(reach.socket_dir.as_deref());
    let usual = SocketPlace::in_folder(Path::new(USUAL_FOLDER));
    let is_unnamed = named == SocketPlace::Abstract && control::connect(&named).is_err();
    if is_unnamed && control::connect(&usual).is_ok() { usual } else { named }
}

/// The hosts of a Slurm job.
fn hosts_of_slurm_job(job: i64) -> Result<Vec<String>, Error> {
    let ask = |program: &'static str, words: &[&str]| {
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
    let list = ask("squeue", &["--noheader", "--job", &job.to_string(), "--format", "%N"])?;
    let names = ask("scontrol", &["show", "hostnames", &list])?;
    Ok(names.lines().map(str::to_owned).collect())
}

/// A number of things: `1 note`, `2 notes`, `1 process`, `2 processes`.
/// A count with its noun, which is plural unless the count is 1.
pub fn counted(count: usize, thing: &str) -> String {
    let ending = match (count, thing.ends_with('s')) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{count} {thing}{ending}")
}
