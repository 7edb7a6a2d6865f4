//! The hub's configuration, a TOML file.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fleet::untrusted::{Privacy, read_trusted};
use serde::Deserialize;

use crate::access::AccessConfig;
use crate::bucket::BucketConfig;
use crate::columns::FINDINGS;
use crate::error::Error;
use crate::log_links::LogLinks;
use crate::notices::rules::NoticeRules;
use crate::orders::limits::TraceLimits;
use crate::outward::target::OutwardTarget;
use crate::pattern::matches_pattern;
pub use crate::time::{DAY_S, parse_time};
use crate::watch::rules::WatchRules;
use crate::weights::GpuModels;

/// Longest time whose ended jobs are asked for. Longer questions burden Slurm's database.
const ACCOUNTING_MAX: Duration = Duration::from_secs(30 * DAY_S);

/// The keys of the configuration file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HubFile {
    /// Folder of the stored rows.
    pub store: PathBuf,
    #[serde(default = "default_listen")]
    pub listen: SocketAddr,
    /// Certificate chain in PEM, leaf first.
    pub certificate: Option<PathBuf>,
    /// Private key in PEM.
    pub key: Option<PathBuf>,
    /// File with the hashes of tokens.
    pub tokens: PathBuf,
    /// Shortest time between two commits in milliseconds. Batches that arrive meanwhile share one.
    #[serde(default = "default_commit_ms")]
    pub commit_ms: u64,
    /// Largest total size in MiB of the batches that wait for a commit. Further ones get 429.
    #[serde(default = "default_waiting_mib")]
    pub waiting_mib: u32,
    #[serde(default = "default_connections")]
    pub connections: u32,
    #[serde(default, rename = "pool")]
    pub pools: Pools,
    #[serde(default)]
    pub retention: Retention,
    /// Weights of GPU models that are not built in, and prices.
    #[serde(default, rename = "model")]
    pub models: GpuModels,
    pub slurm: Option<SlurmCluster>,
    #[serde(default)]
    pub access: AccessConfig,
    /// Where the sums of each minute are sent.
    #[serde(default)]
    pub outward: Vec<OutwardTarget>,
    /// Where files of hours that are over are copied.
    pub bucket: Option<BucketConfig>,
    /// Limits of trace orders and of the traces that agents send.
    #[serde(default)]
    pub traces: TraceLimits,
    /// When traces are ordered without a person. Without it, none is.
    pub watch: Option<WatchRules>,
    /// When owners of idle GPUs are told. Without it, nobody looks for idle GPUs.
    pub notices: Option<NoticeRules>,
    /// Where the logs of runs are.
    pub logs: Option<LogLinks>,
}

/// The Slurm cluster whose jobs and nodes the hub asks for.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlurmCluster {
    /// Name of the cluster, which takes the place of the host in its entries.
    pub cluster: String,
    #[serde(default = "default_interval_s")]
    pub interval_s: u64,
    /// Folder of `squeue`, `sinfo`, `sacct` and `scancel`. Without it, they are found by `PATH`.
    pub folder: Option<PathBuf>,
    /// Time before the start of the hub whose ended jobs are asked for. After 0 s, the accounting
    /// is never asked.
    #[serde(default = "default_accounting", deserialize_with = "crate::time::deserialize_span")]
    pub accounting: Duration,
}

/// Pools of hosts by the names of their hosts. The first matching pool counts.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(transparent)]
pub struct Pools(Vec<HostPool>);

/// One pool of hosts.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostPool {
    pub name: String,
    /// Names of hosts. A `*` at the end stands for any letters.
    pub hosts: Vec<String>,
}

/// For how long each kind of file is kept. A kind without a time is kept for good. Days are deleted
/// as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retention {
    /// Rows of GPUs, hosts and steps.
    #[serde(default, deserialize_with = "crate::time::deserialize_time")]
    pub rows: Option<Duration>,
    /// Sums of each minute.
    #[serde(default, deserialize_with = "crate::time::deserialize_time")]
    pub minutes: Option<Duration>,
    /// Sums of each hour.
    #[serde(default, deserialize_with = "crate::time::deserialize_time")]
    pub hours: Option<Duration>,
    #[serde(default, deserialize_with = "crate::time::deserialize_time")]
    pub runs: Option<Duration>,
}

fn default_interval_s() -> u64 {
    60
}

fn default_accounting() -> Duration {
    Duration::from_secs(DAY_S)
}

fn default_listen() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 9470))
}

fn default_commit_ms() -> u64 {
    200
}

fn default_waiting_mib() -> u32 {
    64
}

fn default_connections() -> u32 {
    16_384
}

impl HubFile {
    /// Reads and checks a configuration file.
    ///
    /// # Errors
    /// If the file cannot be read, has an unknown key or a wrong value, or if the hub would receive
    /// tokens from other hosts without TLS.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let bytes = read_trusted(path, Privacy::Readable)
            .map_err(|source| Error::File { key: "--config", source })?;
        let text = String::from_utf8_lossy(&bytes);
        let file: Self = toml::from_str(&text)
            .map_err(|source| Error::Toml { path: path.to_owned(), source: Box::new(source) })?;
        file.check()?;
        Ok(file)
    }

    fn check(&self) -> Result<(), Error> {
        let wrong = |what: &str, expected, got: String| {
            Err(Error::Value { what: what.to_owned(), expected, got })
        };
        if self.certificate.is_some() != self.key.is_some() {
            let got = "one of them".to_owned();
            return wrong("certificate", "`certificate` and `key`, or none of them", got);
        }
        if self.certificate.is_none() && !self.listen.ip().is_loopback() {
            let expected = "a loopback address, unless `certificate` and `key` are set";
            return wrong("listen", expected, self.listen.to_string());
        }
        // The largest message has 8 MiB.
        if !(8..=1024).contains(&self.waiting_mib) {
            return wrong("waiting_mib", "8 to 1024", self.waiting_mib.to_string());
        }
        if self.commit_ms > 10_000 {
            // Agents wait 20 s for an answer.
            return wrong("commit_ms", "at most 10000", self.commit_ms.to_string());
        }
        if self.connections == 0 {
            return wrong("connections", "at least 1", "0".to_owned());
        }
        if let Some(slurm) = &self.slurm {
            if slurm.cluster.is_empty() || slurm.cluster.len() > 64 {
                let got = format!("{} letters", slurm.cluster.len());
                return wrong("slurm: cluster", "a name of 1 to 64 letters", got);
            }
            // Slurm forgets ended jobs after five minutes unless it is configured otherwise.
            if !(1..=240).contains(&slurm.interval_s) {
                return wrong("slurm: interval_s", "1 to 240", slurm.interval_s.to_string());
            }
            if slurm.accounting > ACCOUNTING_MAX {
                let got = format!("{} s", slurm.accounting.as_secs());
                return wrong("slurm: accounting", "at most 30d", got);
            }
        }
        self.access.check()?;
        self.bucket.iter().try_for_each(BucketConfig::check)?;
        self.outward.iter().try_for_each(OutwardTarget::check)?;
        self.traces.check()?;
        self.watch.iter().try_for_each(WatchRules::check)?;
        self.notices.iter().try_for_each(|rules| rules.check(self.slurm.is_some()))?;
        self.logs.iter().try_for_each(LogLinks::check)?;
        self.retention.check()
    }
}

impl Retention {
    /// Returns for how long the files of a table are kept, or `None` if they are kept for good.
    pub fn kept(&self, table: &str) -> Option<Duration> {
        match table {
            "gpu" | "host" | "step" => self.rows,
            "run" | "event" | FINDINGS => self.runs,
            "by_minute" => self.minutes,
            "by_hour" | "by_host" | "cpu_by_host" | "faults" => self.hours,
            _ => None,
        }
    }

    fn check(&self) -> Result<(), Error> {
        let Self { rows, minutes, hours, runs } = *self;
        let wrong = |what: &str, expected, got: Option<Duration>| {
            let got = got.map_or("no end".to_owned(), |time| format!("{} s", time.as_secs()));
            Err(Error::Value { what: format!("retention: {what}"), expected, got })
        };
        for (what, time) in [("rows", rows), ("minutes", minutes), ("hours", hours), ("runs", runs)]
        {
            if time.is_some_and(|time| time < Duration::from_secs(DAY_S)) {
                return wrong(what, "at least 1d", time);
            }
        }
        // Sums that end before their rows would be computed from the rows again and again.
        let is_shorter = |time: Option<Duration>, than: Option<Duration>| {
            time.is_some_and(|time| than.is_none_or(|than| time < than))
        };
        if is_shorter(minutes, rows) {
            return wrong("minutes", "at least the time of `rows`", minutes);
        }
        if is_shorter(hours, minutes) {
            return wrong("hours", "at least the time of `minutes`", hours);
        }
        Ok(())
    }
}

impl Pools {
    /// Returns the name of the pool of a host, or `default` if no pool has it.
    pub fn pool_of(&self, host: &str) -> &str {
        let is_match = |pattern: &String| matches_pattern(pattern, host);
        let pool = self.0.iter().find(|pool| pool.hosts.iter().any(is_match));
        pool.map_or("default", |pool| &pool.name)
    }
}

#[cfg(test)]
mod tests {
    use super::{DAY_S, HubFile};

    fn check(text: &str) -> Result<HubFile, String> {
        let base = "store = '/s'\ntokens = '/t'\n";
        let file: HubFile = toml::from_str(&format!("{base}{text}")).map_err(|e| e.to_string())?;
        file.check().map_err(|error| error.to_string())?;
        Ok(file)
    }

    #[test]
    fn other_hosts_are_served_over_tls_only() {
        assert!(check("").is_ok());
        let error = check("listen = '0.0.0.0:1'").unwrap_err();
        assert!(error.starts_with("listen: expected a loopback address"), "{error}");
        assert!(check("listen = '0.0.0.0:1'\ncertificate = '/c'\nkey = '/k'").is_ok());
        assert!(check("certificate = '/c'").unwrap_err().contains("one of them"));
        assert!(check("prot = 1").unwrap_err().contains("unknown field `prot`"));
    }

    #[test]
    fn times_of_retention_are_checked() {
        let check = |lines: &str| check(&format!("[retention]\n{lines}"));
        let kept = check("rows = '30d'\nminutes = '90d'\nhours = '2y'").unwrap().retention;
        let days = |table: &str| kept.kept(table).map(|time| time.as_secs() / DAY_S);
        let expected = [Some(30), Some(90), Some(730), None];
        assert_eq!(["gpu", "by_minute", "by_hour", "event"].map(days), expected);
        for (lines, problem) in [
            ("rows = '2w'", "expected a time such as 90m, 24h, 7d or 2y, got \"2w\""),
            ("rows = '5h'", "retention: rows: expected at least 1d, got 18000 s"),
            ("rows = '3d'\nminutes = '2d'", "retention: minutes: expected at least the time of"),
            ("minutes = '2d'", "retention: minutes: expected at least the time of `rows`"),
            ("rows = '1d'\nhours = '2d'", "retention: hours: expected at least the time of"),
            ("row = '1d'", "unknown field `row`"),
        ] {
            let error = check(lines).unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
    }

    #[test]
    fn a_host_belongs_to_the_first_pool_that_matches() {
        let text =
            "[[pool]]\nname = 'a'\nhosts = ['gpu-1', 'a*']\n[[pool]]\nname = 'b'\nhosts = ['*']";
        let pools = check(text).unwrap().pools;
        assert_eq!(["gpu-1", "gpu-12", "a7"].map(|host| pools.pool_of(host)), ["a", "b", "a"]);
        assert_eq!(check("").unwrap().pools.pool_of("x"), "default");
    }
}
