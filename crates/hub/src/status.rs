//! Reads from the store which hosts report rows, with their versions and the problems of their
//! rows.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::Range;

use arrow_array::{StringArray, TimestampMillisecondArray};
use fleet::plain::without_controls;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::columns::RowTable;
use crate::error::Error;
use crate::store::ingest::{HostProblem, ProblemCount};
use crate::store::{HOUR_S, Partition, StoreFolder, column};

/// Seconds without rows after which a host counts as silent. The longest interval of rows is
/// shorter in every usual configuration.
const SILENT_S: u64 = 300;

/// What the store has about a host.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HostStatus {
    /// Start of the last interval with a row of the host, in seconds since 1970.
    pub last_row_unix_s: Option<u64>,
    pub versions: HostVersions,
    /// State by the scheduler; `None` if no scheduler reports the host.
    pub node: Option<NodeState>,
    /// Problems by their name.
    pub problems: BTreeMap<&'static str, ProblemTotal>,
    /// Times of the events with `versions` and `node`.
    #[serde(skip)]
    versions_unix_ms: i64,
    #[serde(skip)]
    node_unix_ms: i64,
}

/// The state of a host by its scheduler, as in the details of an event `node`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeState {
    /// States and flags in lowercase, such as `idle` and `drain`.
    pub state: Vec<String>,
    pub reason: String,
    pub gpus: u64,
    pub gpus_used: u64,
}

/// The versions of the programs of a host. A text is empty if the version is unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostVersions {
    pub agent: String,
    pub driver: String,
    pub kernel: String,
}

/// The events of a problem of a host, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ProblemTotal {
    pub rows: u64,
    /// The largest age of a row in seconds, or the largest difference of the clocks, which is
    /// positive if the host's clock is ahead.
    pub worst_s: f64,
    pub last_unix_s: u64,
}

/// The details of an event that reports a problem.
#[derive(Deserialize)]
struct ProblemDetails {
    rows: u64,
    seconds: f64,
}

/// Reads the status of all hosts from the rows of a time in seconds since 1970, which is extended
/// to whole hours.
///
/// # Errors
/// If a file cannot be read.
pub fn read_status(
    folder: &StoreFolder,
    range: &Range<u64>,
) -> Result<BTreeMap<String, HostStatus>, Error> {
    let mut hosts = BTreeMap::<String, HostStatus>::new();
    let hours = |table: RowTable| -> Result<Vec<Partition>, Error> {
        let mut hours = folder.hours(table.folder())?;
        hours.retain(|hour| (hour + 1) * HOUR_S > range.start && hour * HOUR_S < range.end);
        let partition = |hour| Partition { hour: Some(hour), table: table.folder() };
        Ok(hours.into_iter().map(partition).collect())
    };
    for partition in hours(RowTable::Host)? {
        folder.read(partition, &["host", "start"], |batch, path| {
            let names: &StringArray = column(batch, "host", path)?;
            let starts: &TimestampMillisecondArray = column(batch, "start", path)?;
            for row in 0..batch.num_rows() {
                let start = u64::try_from(starts.value(row) / 1000).ok();
                let name = names.value(row);
                if !hosts.contains_key(name) {
                    hosts.insert(name.to_owned(), HostStatus::default());
                }
                if let Some(status) = hosts.get_mut(name) {
                    status.last_row_unix_s = status.last_row_unix_s.max(start);
                }
            }
            Ok(())
        })?;
    }
    for partition in hours(RowTable::Event)? {
        folder.read(partition, &["host", "kind", "start", "details"], |batch, path| {
            let names: &StringArray = column(batch, "host", path)?;
            let kinds: &StringArray = column(batch, "kind", path)?;
            let starts: &TimestampMillisecondArray = column(batch, "start", path)?;
            let details: &StringArray = column(batch, "details", path)?;
            for row in 0..batch.num_rows() {
                let status = hosts.entry(names.value(row).to_owned()).or_default();
                status.add_event(kinds.value(row), starts.value(row), details.value(row));
            }
            Ok(())
        })?;
    }
    Ok(hosts)
}

impl HostStatus {
    /// Adds an event of the host. Events of other kinds are ignored.
    fn add_event(&mut self, kind: &str, start_unix_ms: i64, details: &str) {
        if kind == "agent" {
            if start_unix_ms >= self.versions_unix_ms
                && let Ok(versions) = serde_json::from_str(details)
            {
                (self.versions, self.versions_unix_ms) = (versions, start_unix_ms);
            }
            return;
        }
        if kind == "node" {
            if start_unix_ms >= self.node_unix_ms
                && let Ok(node) = serde_json::from_str(details)
            {
                (self.node, self.node_unix_ms) = (Some(node), start_unix_ms);
            }
            return;
        }
        let problem = HostProblem::ALL.into_iter().find(|problem| problem.word() == kind);
        let details: Option<ProblemDetails> = serde_json::from_str(details).ok();
        let (Some(problem), Some(details)) = (problem, details) else { return };
        let total = self.problems.entry(problem.word()).or_default();
        let mut count = ProblemCount { rows: total.rows, worst_s: total.worst_s };
        count.add(ProblemCount { rows: details.rows, worst_s: details.seconds });
        let last_unix_s = u64::try_from(start_unix_ms / 1000).unwrap_or(0).max(total.last_unix_s);
        *total = ProblemTotal { rows: count.rows, worst_s: count.worst_s, last_unix_s };
    }

    fn is_silent(&self, now_unix_s: u64) -> bool {
        self.last_row_unix_s.is_none_or(|last| last + SILENT_S < now_unix_s)
    }

    /// Describes all problems in one line.
    fn describe_problems(&self, now_unix_s: u64) -> String {
        let mut parts = Vec::new();
        if self.is_silent(now_unix_s) {
            parts.push("silent".to_owned());
        }
        if let Some(node) = self.node.as_ref().filter(|node| !node.is_schedulable()) {
            let state = without_controls(&node.state.join("+"));
            let reason = without_controls(&node.reason);
            parts.push(format!("{state}: {reason}").trim_end_matches(": ").to_owned());
        }
        for (problem, total) in &self.problems {
            let ProblemTotal { rows, worst_s, .. } = total;
            parts.push(match *problem {
                "clock" if *worst_s > 0.0 => format!("clock ahead by {worst_s:.1} s"),
                "clock" => format!("idle+drain: fan; clock behind by {:.1} s", worst_s.abs()),
                problem if *worst_s > 0.0 => format!("{problem}: {rows}, up to {worst_s:.0} s"),
                "doubled_rows" => format!("doubled_rows: {rows} (two agents?)"),
                problem => format!("{problem}: {rows}"),
            });
        }
        parts.join("; ")
    }
}

impl NodeState {
    /// Whether jobs may start on the node.
    fn is_schedulable(&self) -> bool {
        const STATES: [&str; 7] =
            ["allocated", "cloud", "completing", "idle", "mixed", "planned", "reserved"];
        self.state.iter().all(|state| STATES.contains(&state.as_str()))
    }
}

/// Formats the status of hosts as a table. Hosts with problems come first.
pub fn format_table(hosts: &BTreeMap<String, HostStatus>, now_unix_s: u64) -> String {
    let mut rows: Vec<(String, &HostStatus, String)> = hosts
        .iter()
        .map(|(host, status)| {
            (without_controls(host), status, status.describe_problems(now_unix_s))
        })
        .collect();
    rows.sort_by_key(|(.., problems)| problems.is_empty());
    let with_problems = rows.iter().filter(|(.., problems)| !problems.is_empty()).count();
    let mut text = format!("{} hosts, {with_problems} of them with problems\n", rows.len());
    if rows.is_empty() {
        return text;
    }
    let width = rows.iter().map(|(host, ..)| host.chars().count()).max().unwrap_or(0).max(4);
    let _ = writeln!(
        text,
        "\n{:<width$}  {:>10}  {:<10}  {:<12}  {:<24}  problems",
        "host", "last row", "agent", "driver", "kernel"
    );
    for (host, status, problems) in rows {
        let age = status.last_row_unix_s.map(|last| now_unix_s.saturating_sub(last));
        let age = age.map_or("-".to_owned(), |age_s| format!("{age_s} s ago"));
        let HostVersions { agent, driver, kernel } = &status.versions;
        let [agent, driver, kernel] = [agent, driver, kernel].map(|text| without_controls(text));
        let _ = writeln!(
            text,
            "{host:<width$}  {age:>10}  {agent:<10}  {driver:<12}  {kernel:<24}  {problems}"
        );
    }
    text
}

/// Formats the status of hosts as JSON.
pub fn format_json(hosts: &BTreeMap<String, HostStatus>, range: &Range<u64>) -> String {
    let value = json!({
        "since_unix_s": range.start,
        "until_unix_s": range.end,
        "hosts": hosts,
    });
    format!("{value:#}\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{HostStatus, format_table};

    #[test]
    fn problems_add_up_and_hosts_with_problems_come_first() {
        let mut sick = HostStatus { last_row_unix_s: Some(990), ..HostStatus::default() };
        sick.add_event("late_rows", 900_000, r#"{"rows": 3, "seconds": 400.0}"#);
        sick.add_event("late_rows", 960_000, r#"{"rows": 4, "seconds": 300.0}"#);
        sick.add_event("doubled_rows", 960_000, r#"{"rows": 5, "seconds": 0.0}"#);
        sick.add_event("clock", 960_000, r#"{"rows": 0, "seconds": -7.5}"#);
        let node = r#"{"state": ["idle", "drain"], "reason": "fan", "gpus": 4, "gpus_used": 0}"#;
        sick.add_event("node", 960_000, node);
        sick.add_event("hang", 960_000, "{}");
        sick.add_event(
            "agent",
            2,
            r#"{"agent": "0.2", "driver": "570\u001b[2J", "kernel": "6.1"}"#,
        );
        sick.add_event("agent", 1, r#"{"agent": "0.1", "driver": "1", "kernel": "1"}"#);
        let well = HostStatus { last_row_unix_s: Some(995), ..HostStatus::default() };
        let silent = HostStatus { last_row_unix_s: Some(100), ..HostStatus::default() };
        let hosts = [("a", well), ("b", sick), ("c", silent)];
        let hosts: BTreeMap<_, _> = hosts.map(|(name, status)| (name.to_owned(), status)).into();
        let text = format_table(&hosts, 1000);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "3 hosts, 2 of them with problems");
        let problems =
            "clock behind by 7.5 s; doubled_rows: 5 (two agents?); late_rows: 7, up to 400 s";
        assert!(lines[3].starts_with("b ") && lines[3].ends_with(problems), "{text}");
        assert!(lines[3].contains("  10 s ago  0.2 ") && !text.contains('\u{1b}'), "{text}");
        assert!(lines[4].starts_with("c ") && lines[4].ends_with("  silent"), "{text}");
        assert!(lines[5].starts_with("a "), "{text}");
        assert_eq!(format_table(&BTreeMap::new(), 0), "0 hosts, 0 of them with problems\n");
    }
}
