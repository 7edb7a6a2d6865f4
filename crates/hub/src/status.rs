//! Reads from the store which hosts report rows, with their versions and the problems of their
//! rows.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::Range;

use arrow_array::{StringArray, TimestampMillisecondArray, UInt32Array};
use fleet::plain::without_controls;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::columns::RowTable;
use crate::error::Error;
use crate::grouping::TextColumn;
use crate::nodes::{NODE, NodeState};
use crate::store::ingest::{HostProblem, ProblemCount};
use crate::store::{HOUR_S, Partition, StoreFolder, column};

/// Seconds after which a host counts as silent, everywhere in the hub, if a row is overdue.
pub const SILENT_S: u64 = 300;

/// What the store has about a host.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HostStatus {
    /// End of the last interval with a row of the host, in seconds since 1970.
    pub last_row_unix_s: Option<u64>,
    /// Whether a row was overdue for five minutes at the end of the time.
    pub is_silent: bool,
    /// Length of the last interval with a row.
    #[serde(skip)]
    last_length_s: u64,
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

/// Something that should be mended on a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostIssue {
    /// A name such as `silent`, `node`, `clock` or `error xid_79`.
    pub kind: String,
    pub text: String,
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

/// Kind of the events with versions.
const AGENT: &str = "agent";

/// The details of an event that reports a problem.
#[derive(Deserialize)]
struct ProblemDetails {
    rows: u64,
    seconds: f64,
}

/// Reads the status of all hosts from the rows of a time in seconds since 1970. What happened in
/// the same hour before its start counts too, and problems that were found in the hour of its end.
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
        folder.read_coded(partition, &["host", "start", "length_s"], &[], |batch, path| {
            let mut ends: Vec<(String, [u64; 2])> = Vec::new();
            let number = |name: &str| {
                ends.push((name.to_owned(), [0; 2]));
                (ends.len() - 1) as u32
            };
            let names = TextColumn::new(batch, "host", path, number)?;
            let starts: &TimestampMillisecondArray = column(batch, "start", path)?;
            let lengths: &UInt32Array = column(batch, "length_s", path)?;
            for row in 0..batch.num_rows() {
                let start = u64::try_from(starts.value(row) / 1000).unwrap_or(0);
                let last = &mut ends[names.number(row) as usize].1;
                if start < range.end {
                    let length_s = u64::from(lengths.value(row));
                    *last = [start + length_s, length_s].max(*last);
                }
            }
            for (name, [end, length_s]) in ends.into_iter().filter(|(_, [end, _])| *end > 0) {
                let status = hosts.entry(name).or_default();
                if status.last_row_unix_s <= Some(end) {
                    (status.last_row_unix_s, status.last_length_s) = (Some(end), length_s);
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
                let (name, kind) = (names.value(row), kinds.value(row));
                let is_state = [AGENT, NODE].contains(&kind);
                let start = u64::try_from(starts.value(row) / 1000).unwrap_or(0);
                let is_problem = HostProblem::ALL.into_iter().any(|one| one.word() == kind);
                if is_state && start < range.end || is_problem {
                    let status = hosts.entry(name.to_owned()).or_default();
                    status.add_event(kind, starts.value(row), details.value(row));
                }
            }
            Ok(())
        })?;
    }
    // The reports of a scheduler may be late too, and have the name of a cluster in place of a
    // host.
    hosts.retain(|_, status| {
        let has_state = status.node.is_some() || status.versions != HostVersions::default();
        let mut problems = status.problems.keys();
        status.last_row_unix_s.is_some() || has_state || problems.any(|one| !is_harmless(one))
    });
    for status in hosts.values_mut() {
        let last = status.last_row_unix_s;
        let patience_s = status.last_length_s + SILENT_S;
        status.is_silent = last.is_none_or(|last| last + patience_s < range.end);
    }
    Ok(hosts)
}

impl HostStatus {
    /// Adds an event of the host. Events of other kinds are ignored.
    fn add_event(&mut self, kind: &str, start_unix_ms: i64, details: &str) {
        if kind == AGENT {
            if start_unix_ms >= self.versions_unix_ms
                && let Ok(versions) = serde_json::from_str(details)
            {
                (self.versions, self.versions_unix_ms) = (versions, start_unix_ms);
            }
            return;
        }
        if kind == NODE {
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

    /// Lists what should be mended on the host.
    pub fn issues(&self) -> Vec<HostIssue> {
        let mut issues = Vec::new();
        let mut add = |kind: &str, text: String| {
            issues.push(HostIssue { kind: kind.to_owned(), text });
        };
        if self.is_silent {
            add("silent", "silent".to_owned());
        }
        if let Some(node) = self.node.as_ref().filter(|node| !node.is_schedulable()) {
            let text = format!("{}: {}", node.state.join("+"), node.reason);
            add(NODE, text.trim_end_matches(": ").to_owned());
        }
        for (problem, total) in self.problems.iter().filter(|(problem, _)| !is_harmless(problem)) {
            add(problem, total.describe(problem));
        }
        issues
    }

    /// Describes all issues in one line, and then what needs no care.
    fn describe(&self) -> String {
        let issues: Vec<String> = self.issues().into_iter().map(|issue| issue.text).collect();
        let harmless = self.problems.iter().filter(|(problem, _)| is_harmless(problem));
        let notes: Vec<String> = harmless.map(|(problem, total)| total.describe(problem)).collect();
        let notes =
            if notes.is_empty() { String::new() } else { format!("({})", notes.join("; ")) };
        without_controls(format!("{} {notes}", issues.join("; ")).trim())
    }
}

/// Whether rows with a problem are stored once and counted exactly, or were left out on purpose.
/// Rows that an agent sends after it was cut off are late, for example.
fn is_harmless(problem: &str) -> bool {
    let harmless = [HostProblem::LateRows, HostProblem::RepeatedRows, HostProblem::ExpiredRows];
    harmless.into_iter().any(|one| one.word() == problem)
}

impl ProblemTotal {
    fn describe(&self, problem: &str) -> String {
        let Self { rows, worst_s, .. } = self;
        match problem {
            "clock" if *worst_s > 0.0 => format!("clock ahead by {worst_s:.1} s"),
            "clock" => format!("clock behind by {:.1} s", worst_s.abs()),
            problem if *worst_s > 0.0 => format!("{problem}: {rows}, up to {worst_s:.0} s"),
            "doubled_rows" => format!("doubled_rows: {rows} (two agents?)"),
            problem => format!("{problem}: {rows}"),
        }
    }
}

/// Formats the status of hosts as a table. Hosts with issues come first.
pub fn format_table(hosts: &BTreeMap<String, HostStatus>, now_unix_s: u64) -> String {
    let mut rows: Vec<(String, &HostStatus, bool)> = hosts
        .iter()
        .map(|(host, status)| (without_controls(host), status, status.issues().is_empty()))
        .collect();
    rows.sort_by_key(|(.., is_well)| *is_well);
    let with_problems = rows.iter().filter(|(.., is_well)| !is_well).count();
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
    for (host, status, _) in rows {
        let problems = status.describe();
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
        let last_row_unix_s = Some(100);
        let silent = HostStatus { last_row_unix_s, is_silent: true, ..HostStatus::default() };
        let mut late = HostStatus { last_row_unix_s: Some(999), ..HostStatus::default() };
        late.add_event("late_rows", 900_000, r#"{"rows": 3, "seconds": 400.0}"#);
        let hosts = [("a", well), ("b", sick), ("c", silent), ("d", late)];
        let hosts: BTreeMap<_, _> = hosts.map(|(name, status)| (name.to_owned(), status)).into();
        let text = format_table(&hosts, 1000);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "4 hosts, 2 of them with problems");
        let problems = "  idle+drain: fan; clock behind by 7.5 s; doubled_rows: 5 (two agents?) (late_rows: 7, up to 400 s)";
        assert!(lines[3].starts_with("b ") && lines[3].ends_with(problems), "{text}");
        assert!(lines[3].contains("  10 s ago  0.2 ") && !text.contains('\u{1b}'), "{text}");
        assert!(lines[4].starts_with("c ") && lines[4].ends_with("  silent"), "{text}");
        assert!(
            lines[5].starts_with("a ") && lines[6].ends_with("  (late_rows: 3, up to 400 s)"),
            "{text}"
        );
        assert_eq!(format_table(&BTreeMap::new(), 0), "0 hosts, 0 of them with problems\n");
    }
}
