//! The command `rowmill fleet sample`, which shows the resources that processes of many hosts use,
//! and the functions in which their threads wait.

use std::process::ExitCode;

use fleet::wire::{SampleOrder, Sampled, Samples};
use serde::Serialize;

use super::select;
use crate::agent_client::{Client, ask_each};
use crate::args::ProcessSelection;
use setup::Session;
use setup::error::{EXIT_FAILED, Error};
use setup::error_text::plain;
use setup::render;

/// Largest number of functions per process in the table. The JSON output has all of them.
const SHOWN: usize = 8;

/// The samples of one host, or the reason why its agent did not answer.
#[derive(Serialize)]
struct HostSamples {
    host: String,
    error: Option<String>,
    samples: Option<Samples>,
}

/// Runs `rowmill fleet sample` and prints its result. Processes that are chosen by process id need
/// not poll for traces, because only jobs and users are looked up in the status of a host.
pub fn run(
    clients: &[Client],
    order: &SampleOrder,
    selection: &ProcessSelection,
    session: &Session,
) -> Result<ExitCode, Error> {
    // The agent can sample any process by its id, so the status of the host is needed only for jobs
    // and users.
    let is_by_pid = selection.run.is_none() && selection.user.is_none();
    let statuses = if is_by_pid { Vec::new() } else { ask_each(clients, Client::fetch_status) };
    let chosen = select::choose(select::by_host(clients, &statuses), selection)?;
    let answers = ask_each(clients, |client| {
        let host = client.name().to_owned();
        let at = clients.iter().position(|other| other.name() == client.name());
        if let Some(Err(problem)) = at.and_then(|at| statuses.get(at)) {
            return Some(HostSamples { host, error: Some(problem.clone()), samples: None });
        }
        let pids = if is_by_pid { &order.pids } else { chosen.get(client.name())? };
        let order = SampleOrder { pids: pids.clone(), ..order.clone() };
        Some(match client.sample_processes(&order) {
            Ok(samples) => HostSamples { host, error: None, samples: Some(samples) },
            Err(problem) => HostSamples { host, error: Some(problem), samples: None },
        })
    });
    let answers: Vec<HostSamples> = answers.into_iter().flatten().collect();
    session.console.report(&answers, |answers| table(answers))?;
    let has_failed = answers.iter().any(|answer| answer.error.is_some());
    Ok(if has_failed { ExitCode::from(EXIT_FAILED) } else { ExitCode::SUCCESS })
}

fn table(answers: &[HostSamples]) -> String {
    let (mut usage, mut waits) = (Vec::new(), Vec::new());
    let answered = answers.iter().filter_map(|answer| Some((answer, answer.samples.as_ref()?)));
    for (answer, samples) in answered {
        for process in &samples.processes {
            usage.push(usage_row(&answer.host, process, samples.length_ms));
            let looks = f64::from(process.looks.max(1));
            for row in process.waiting.iter().take(SHOWN) {
                waits.push(vec![
                    answer.host.clone(),
                    process.pid.to_string(),
                    plain(&row.thread),
                    row.state.clone(),
                    plain(row.at.as_deref().unwrap_or_default()),
                    format!("{:.2}", f64::from(row.looks) / looks),
                ]);
            }
        }
    }
    let heads = [
        "host",
        "process",
        "rank",
        "CPU",
        "queued",
        "switches",
        "faults",
        "read",
        "written",
        "memory",
        "allocated",
    ];
    let mut text = if usage.is_empty() { String::new() } else { render::grid(&heads, &usage) };
    if !waits.is_empty() {
        let heads = ["host", "process", "thread", "state", "where", "threads"];
        text += &format!("\n\n{}", render::grid(&heads, &waits));
    }
    for answer in answers {
        if let Some(why) = &answer.error {
            let gap = if text.is_empty() { "" } else { "\n" };
            text += &format!("{gap}{}: {}", answer.host, plain(why));
        }
    }
    text
}

fn usage_row(host: &str, process: &Sampled, length_ms: u64) -> Vec<String> {
    let used = &process.used;
    let share = |ns: Option<u64>| {
        let share = |ns: u64| ns as f64 / (length_ms.max(1) as f64 * 1e6) * 100.0;
        ns.map_or("-".to_owned(), |ns| format!("{:.0} %", share(ns)))
    };
    let count = |count: Option<u64>| count.map_or("-".to_owned(), |count| count.to_string());
    let mib = |bytes: f64| format!("{:.1} MiB", bytes / f64::from(1 << 20));
    let size = |bytes: Option<u64>| bytes.map_or("-".to_owned(), |bytes| mib(bytes as f64));
    let allocated = used.anonymous_grown_bytes.map_or("-".to_owned(), |bytes| {
        let sign = if bytes < 0 { "" } else { "+" };
        format!("{sign}{}", mib(bytes as f64))
    });
    let both = |one: Option<u64>, other: Option<u64>| one.zip(other).map(|(a, b)| a + b);
    let pid = process.pid.to_string();
    vec![
        host.to_owned(),
        if process.is_ended { format!("{pid} (ended)") } else { pid },
        process.rank.map_or(String::new(), |rank| rank.to_string()),
        share(used.cpu_ns),
        share(used.run_delay_ns),
        count(both(used.switches_voluntary, used.switches_forced)),
        count(both(used.faults_minor, used.faults_major)),
        size(used.read_bytes),
        size(used.written_bytes),
        size(process.rss_peak_bytes),
        allocated,
    ]
}
