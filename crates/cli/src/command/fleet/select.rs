//! Selects processes on every host by job, user or process id, as the options of `rowmill fleet`
//! say.
//!
//! A report describes one job, so a selection with processes of several jobs is refused.

use std::collections::{BTreeMap, BTreeSet};

use fleet::wire::{ProcessRow, Status};

use crate::agent_client::{Client, HostClock};
use crate::args::ProcessSelection;
use setup::error::{Error, RunError};
use setup::error_text::plain;

/// Process ids of the selected processes, by the name of their host.
pub type PidsByHost = BTreeMap<String, Vec<u32>>;

/// A host's status and clock, or the reason why its agent did not answer.
pub type StatusAnswer = Result<(Status, HostClock), String>;

/// Pairs the hosts that answered with their statuses. `answers` must be in the order of the
/// clients.
pub fn by_host<'a>(
    clients: &'a [Client],
    answers: &'a [StatusAnswer],
) -> impl Iterator<Item = (&'a str, &'a Status)> + Clone {
    let named = clients.iter().map(Client::name).zip(answers);
    named.filter_map(|(host, answer)| Some((host, &answer.as_ref().ok()?.0)))
}

impl ProcessSelection {
    /// Whether all processes are selected, because no option restricts them.
    pub fn is_all(&self) -> bool {
        self.pids.is_empty() && self.run.is_none() && self.user.is_none()
    }

    /// Whether a process is selected. Launchers and data loaders are selected only by their process
    /// id.
    fn selects(&self, row: &ProcessRow) -> bool {
        let is_run = |run: &String| row.names.contains(run) || row.job.as_ref() == Some(run);
        let is_user =
            |user: &String| row.user.as_ref() == Some(user) || *user == row.uid.to_string();
        (row.skip.is_none() || self.pids.contains(&row.pid))
            && (self.pids.is_empty() || self.pids.contains(&row.pid))
            && self.run.as_ref().is_none_or(is_run)
            && self.user.as_ref().is_none_or(is_user)
    }

    /// Formats the options of the selection as the user typed them, for a message.
    fn describe(&self) -> String {
        let pids = self.pids.iter().map(|pid| format!("--pid {pid}"));
        let run = self.run.iter().map(|run| format!("--run {run}"));
        let names = fleet::allocation::user_names();
        let is_known =
            |user: &String| user.parse::<u32>().is_ok() || names.values().any(|name| name == user);
        let unknown =
            |user| if is_known(user) { "" } else { " (no such user in /etc/passwd here)" };
        let user = self.user.iter().map(|user| format!("--user {user}{}", unknown(user)));
        run.chain(user).chain(pids).collect::<Vec<_>>().join(" ")
    }
}

/// Returns the selected processes on all hosts that answered.
///
/// # Errors
/// At least one host answered, but no process on any host is selected.
pub fn choose<'a>(
    statuses: impl Iterator<Item = (&'a str, &'a Status)> + Clone,
    selection: &ProcessSelection,
) -> Result<PidsByHost, Error> {
    let mut chosen = PidsByHost::new();
    for (host, status) in statuses.clone() {
        let rows = status.processes.iter().filter(|row| selection.selects(row));
        let pids: Vec<u32> = rows.map(|row| row.pid).collect();
        if !pids.is_empty() {
            chosen.insert(host.to_owned(), pids);
        }
    }
    // If no option restricts the selection, the agents themselves report why there are no
    // processes.
    if chosen.is_empty() && !selection.is_all() && statuses.clone().next().is_some() {
        let all = statuses.flat_map(|(_, status)| &status.processes);
        let there = list_jobs(all.filter(|row| row.skip.is_none()));
        return Err(RunError::NoProcess { selection: selection.describe(), there }.into());
    }
    Ok(chosen)
}

/// Looks up the status rows of the selected processes.
pub fn chosen_rows<'a>(
    statuses: impl Iterator<Item = (&'a str, &'a Status)>,
    chosen: &PidsByHost,
) -> impl Iterator<Item = &'a ProcessRow> {
    statuses.flat_map(|(host, status)| {
        let pids = chosen.get(host).map_or(&[][..], Vec::as_slice);
        status.processes.iter().filter(|row| pids.contains(&row.pid))
    })
}

/// Checks that the selected processes belong to one job of one user. The user is checked because
/// any user can start a process under the name of another user's job.
///
/// # Errors
/// The processes belong to several jobs or users, two of them have the same rank, or one machine
/// answers under two names.
pub fn check_one_job<'a>(
    statuses: impl Iterator<Item = (&'a str, &'a Status)> + Clone,
    chosen: &PidsByHost,
) -> Result<(), Error> {
    let mut named = BTreeMap::new();
    for (name, status) in statuses.clone().filter(|(name, _)| chosen.contains_key(*name)) {
        // A machine that is listed under two names reports the same process ids and the same host
        // name twice.
        let machine = (&status.host, status.processes.iter().map(|row| row.pid).collect());
        let machine: (&String, Vec<u32>) = machine;
        if let Some(first) = named.insert(machine, name).filter(|_| !status.processes.is_empty()) {
            let (first, second) = (first.to_owned(), name.to_owned());
            return Err(RunError::SameHost { first, second }.into());
        }
    }
    let rows: Vec<&ProcessRow> = chosen_rows(statuses, chosen).collect();
    let jobs: BTreeSet<String> = rows.iter().map(|row| job_title(row)).collect();
    if jobs.len() > 1 {
        return Err(RunError::ManyJobs { there: list_jobs(rows.into_iter()) }.into());
    }
    let mut by_rank = BTreeMap::new();
    for row in rows {
        let Some(rank) = row.rank else { continue };
        if let Some(first) = by_rank.insert(rank, row.pid) {
            return Err(RunError::SameRank { rank, first, second: row.pid }.into());
        }
    }
    Ok(())
}

/// Names the job of a process and its user, as in `7 of user ada`.
fn job_title(row: &ProcessRow) -> String {
    let user = plain(row.user.as_ref().unwrap_or(&row.uid.to_string()));
    match &row.job {
        Some(job) => format!("{} of user {user}", plain(job)),
        None => format!("no job of user {user}"),
    }
}

/// Lists jobs with their processes, for a message.
fn list_jobs<'a>(rows: impl Iterator<Item = &'a ProcessRow>) -> String {
    let mut pids = BTreeMap::<String, Vec<String>>::new();
    for row in rows {
        pids.entry(job_title(row)).or_default().push(row.pid.to_string());
    }
    let words = pids.into_iter().map(|(job, pids)| format!("{job} (process {})", pids.join(", ")));
    let words: Vec<String> = words.collect();
    if words.is_empty() { "none".to_owned() } else { words.join("; ") }
}

#[cfg(test)]
mod tests {
    use fleet::wire::{ProcessRow, Status};

    use super::{PidsByHost, check_one_job, choose};
    use crate::args::ProcessSelection;

    fn row(pid: u32, rank: u32, job: Option<&str>) -> ProcessRow {
        let names = job.iter().map(|job| (*job).to_owned()).chain([format!("alias-{pid}")]);
        ProcessRow {
            pid,
            uid: 1000,
            user: Some("ada".to_owned()),
            rank: Some(rank),
            world_size: None,
            job: job.map(str::to_owned),
            names: names.collect(),
            command: String::new(),
            polled_ms: 0,
            is_free: true,
            skip: None,
            phase: None,
            step: None,
            step_ns: None,
            is_hung: false,
        }
    }

    fn status(processes: Vec<ProcessRow>) -> Status {
        Status {
            version: String::new(),
            host: "node".to_owned(),
            unix_ns: 0,
            processes,
            gpus: Vec::new(),
            periodic: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Returns the processes selected on the hosts `a` and `b`, and the refusal if they belong to
    /// several jobs.
    fn check(selection: &ProcessSelection) -> (PidsByHost, Option<String>) {
        let launcher = ProcessRow { skip: Some("a launcher".to_owned()), ..row(9, 0, Some("7")) };
        let hosts = [
            ("a", status(vec![row(10, 0, Some("7")), row(11, 0, Some("8")), launcher])),
            ("b", status(vec![row(10, 1, Some("7")), row(12, 0, None)])),
        ];
        let statuses = || hosts.iter().map(|(host, status)| (*host, status));
        let chosen = choose(statuses(), selection).unwrap();
        let refused = check_one_job(statuses(), &chosen).err().map(|error| error.to_string());
        (chosen, refused)
    }

    fn pids(chosen: &[(&str, &[u32])]) -> PidsByHost {
        chosen.iter().map(|(host, pids)| ((*host).to_owned(), pids.to_vec())).collect()
    }

    #[test]
    fn a_job_is_chosen_by_any_of_its_names_on_every_host() {
        let select_run = |run: &str| ProcessSelection {
            run: Some(run.to_owned()),
            ..ProcessSelection::default()
        };
        assert_eq!(check(&select_run("7")), (pids(&[("a", &[10]), ("b", &[10])]), None));
        assert_eq!(check(&select_run("alias-11")), (pids(&[("a", &[11])]), None));
        let by_pid = ProcessSelection { pids: vec![12], ..ProcessSelection::default() };
        assert_eq!(check(&by_pid), (pids(&[("b", &[12])]), None));
        let launcher = ProcessSelection { pids: vec![9], ..ProcessSelection::default() };
        assert_eq!(check(&launcher).0, pids(&[("a", &[9])]));
    }

    #[test]
    fn a_choice_that_spans_several_jobs_is_refused() {
        let by_user =
            ProcessSelection { user: Some("ada".to_owned()), ..ProcessSelection::default() };
        for selection in [ProcessSelection::default(), by_user] {
            let (chosen, refused) = check(&selection);
            assert_eq!(chosen, pids(&[("a", &[10, 11]), ("b", &[10, 12])]));
            let refused = refused.unwrap();
            assert!(refused.contains("8 of user ada (process 11)"), "{refused}");
            assert!(refused.contains("no job of user ada (process 12)"), "{refused}");
        }
    }

    #[test]
    fn other_users_duplicate_ranks_and_duplicate_hosts_are_refused() {
        let refused = |hosts: &[(&str, Status)], chosen: &[(&str, &[u32])]| {
            let statuses = hosts.iter().map(|(host, status)| (*host, status));
            check_one_job(statuses, &pids(chosen)).unwrap_err().to_string()
        };
        let eve = ProcessRow { uid: 1001, user: Some("eve".to_owned()), ..row(2, 1, Some("7")) };
        let said = refused(&[("a", status(vec![row(1, 0, Some("7")), eve]))], &[("a", &[1, 2])]);
        assert!(said.contains("7 of user ada (process 1); 7 of user eve (process 2)"), "{said}");
        let twice = status(vec![row(1, 0, None), row(2, 0, None)]);
        let said = refused(&[("a", twice)], &[("a", &[1, 2])]);
        assert!(said.contains("rank 0") && said.contains("processes 1 and 2"), "{said}");
        let host = || status(vec![row(1, 0, Some("7"))]);
        let said = refused(&[("a", host()), ("b", host())], &[("a", &[1]), ("b", &[1])]);
        assert!(said.contains("a and b"), "{said}");
    }

    #[test]
    fn a_selection_without_processes_lists_the_jobs_that_exist() {
        let host = status(vec![row(10, 0, Some("7"))]);
        let nobody =
            ProcessSelection { user: Some("eve".to_owned()), ..ProcessSelection::default() };
        let error = choose([("a", &host)].into_iter(), &nobody).unwrap_err().to_string();
        assert!(
            error.contains("--user eve") && error.contains("7 of user ada (process 10)"),
            "{error}"
        );
        assert!(choose([("a", &host)].into_iter(), &ProcessSelection::default()).is_ok());
    }
}
