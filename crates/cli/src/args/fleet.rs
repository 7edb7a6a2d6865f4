//! The command line of `rowmill fleet`.

use std::path::PathBuf;
use std::time::Duration;

use chrono::{NaiveDate, NaiveDateTime};
use clap::{Args, Subcommand};

use super::capture::{With, span};

/// Options of `rowmill fleet`, which queries agents on many hosts.
#[derive(Debug, Args)]
pub struct Fleet {
    #[command(subcommand)]
    pub verb: FleetVerb,
}

/// The verbs of `rowmill fleet`.
#[derive(Debug, Subcommand)]
pub enum FleetVerb {
    /// Record the same iterations of every rank on many hosts, and write a report
    #[command(after_help = "\
Examples:
  rowmill fleet trace --hosts a,b --token-file ops.token      five iterations of every rank
  rowmill fleet trace --slurm 4711 --token-file ops.token     all ranks of a Slurm job
  rowmill fleet trace --hosts a,b --token-file ops.token --run ads/train-0     one job of several
  rowmill fleet trace --hosts a,b:9500 --ca fleet.pem --iterations 20 --align 1000
  rowmill fleet trace --job 4711 --token-file tracer.token     through the hub, which keeps the traces

The output folder receives rank-N.json.gz, report.html and merged.pftrace. `rowmill trace FOLDER` reads
it as one job. Every rank is reported as written or lost, with the reason; the exit code is 1 if one was
lost. A report describes one job: if several run on the hosts, choose one with --run, --user or --pid. A
trace that could not be fetched stays on its host for an hour.

--align auto chooses as many iterations as take 20 s, given the step time that jobs report over the
socket rowmill-steps, or 100 if no job reports it.")]
    Trace(Box<FleetTrace>),
    /// List the hosts that answer, with their clocks and the number of missing capabilities
    #[command(after_help = "Example:\n  rowmill fleet hosts --hosts a,b --token-file ops.token")]
    Hosts(Reach),
    /// List processes and GPUs with their states: training, hung, held idle
    #[command(after_help = "\
Examples:
  rowmill fleet status                               this host, over its agent's own socket
  rowmill fleet status --hosts a,b --token-file ops.token")]
    Status(Reach),
    /// List the capabilities that hosts lack, and why; with --job or --host, what is wrong with a
    /// run or a host by its rows at the hub, and what to do about it
    #[command(after_help = "\
Examples:
  rowmill fleet doctor --hosts a,b --token-file ops.token
  rowmill fleet doctor --job 4711 --token-file viewer.token
  rowmill fleet doctor --host gpu-7 --since 7d --hub https://hub:9470 --token-file viewer.token")]
    Doctor(FleetDoctor),
    /// Sample processes for a few seconds: resource use, and where threads run or wait
    #[command(after_help = "\
Examples:
  rowmill fleet sample                               every process on this host that polls for traces
  rowmill fleet sample --pid 4711 --for 30s          one process, whether it polls or not
  rowmill fleet sample --hosts a,b --token-file ops.token --run 8812      a Slurm job's processes

CPU time, run-queue delay, page faults, disk bytes and memory are kernel counters over the whole sample.
Thread states are sampled once per --every: R is running or in a run queue, S waits, D waits for a disk or
driver. A waiting thread is shown with its kernel stack if the agent is root, else with the
innermost kernel function. Nothing is attached to the processes, so Python and C++ functions are not
shown; rowmill capture --with stacks records those.")]
    Sample {
        #[command(flatten)]
        reach: Reach,
        #[command(flatten)]
        select: ProcessSelection,
        /// Length of the sample, at most 60s
        #[arg(long = "for", value_name = "TIME", value_parser = sample_length, default_value = "5s")]
        length: Duration,
        /// Interval between samples, at least 10ms
        #[arg(long, value_name = "TIME", value_parser = sample_interval, default_value = "100ms")]
        every: Duration,
    },
    /// Report where the fleet's GPU hours went, which workflows and jobs lost most, who holds idle
    /// GPUs, what failed, and which nodes are sick, against a week before
    #[command(after_help = "\
Examples:
  rowmill fleet report --hub https://hub:9470 --token-file viewer.token
  rowmill fleet report --hub http://127.0.0.1:9470 --token-file viewer.token --since 7d --html report.html
  rowmill fleet report --token-file viewer.token --until 2026-11-28      the day before that midnight

All figures come from the hub. HTML files have no scripts and can be mailed.")]
    Report(FleetReport),
    /// Report what a job did with its GPUs, for example at its end
    #[command(after_help = "\
Example:
  rowmill fleet job 4711 --hub https://hub:9470 --token-file viewer.token")]
    Job(FleetJob),
    /// List the orders for traces at the hub: who or what gave them, and what became of them
    #[command(after_help = "Example:\n  rowmill fleet orders --token-file viewer.token --since 7d")]
    Orders(FleetOrders),
    /// List what the findings of all traces at the hub cost in GPU hours, by workflow and by run
    #[command(after_help = "\
Example:
  rowmill fleet findings --token-file viewer.token --since 7d

A trace stands for the GPU hours of its run from its own time, or from the moment at which the run left the
band of its history, until the next trace. A finding costs its saving multiplied by these hours.")]
    Findings(FleetFindings),
    /// List what owners of idle GPUs were told by the hub, or would be, and why others were not
    #[command(after_help = "\
Example:
  rowmill fleet notices --token-file viewer.token --since 7d

The section [notices] of the hub's configuration says when owners are told.")]
    Notices(FleetNotices),
    /// Release a GPU's hardware counters to Nsight or CUPTI for a limited time
    #[command(after_help = "Example:\n  rowmill fleet pause --gpu 0 --for 10m")]
    Pause {
        #[command(flatten)]
        reach: Reach,
        /// Index of the GPU
        #[arg(long, value_name = "INDEX", value_parser = gpu_index)]
        gpu: u32,
        /// Length of the pause; 0 resumes at once
        #[arg(long = "for", value_name = "TIME", value_parser = pause)]
        length: Duration,
    },
}

/// Options that select the agents, and how to connect to them.
#[derive(Clone, Debug, Args)]
pub struct Reach {
    /// Hosts whose agents are queried, with a port unless it is 9466 [default: this host, over its
    /// agent's socket]
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    pub hosts: Vec<String>,
    /// Query the hosts that squeue lists for this Slurm job
    #[arg(long, value_name = "JOB", conflicts_with = "hosts")]
    pub slurm: Option<i64>,
    /// File that contains the agents' token
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// CA certificate of the agents, or their own certificate [default: the public certificate
    /// authorities]
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// The folder of the agent's socket on this host [default: KINETO_IPC_SOCKET_DIR, or else the
    /// abstract socket or /run/kineto]
    #[arg(long, value_name = "FOLDER")]
    pub socket_dir: Option<PathBuf>,
}

/// Options that tell how to reach the hub.
#[derive(Clone, Debug, Args)]
pub struct HubPlace {
    /// The hub's URL: https, or http on this host
    #[arg(long, value_name = "URL", default_value = HUB)]
    pub hub: String,
    /// File that contains a viewer's token
    #[arg(long, value_name = "FILE")]
    pub token_file: PathBuf,
    /// CA certificate of the hub, or its own certificate [default: the public certificate
    /// authorities]
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
}

/// Options of reports of the hub.
#[derive(Clone, Debug, Args)]
pub struct HubReach {
    #[command(flatten)]
    pub place: HubPlace,
    /// Also write the report to this HTML file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Options of `rowmill fleet report`.
#[derive(Clone, Debug, Args)]
pub struct FleetReport {
    #[command(flatten)]
    pub reach: HubReach,
    /// Length of the reported time, from 1m to 3650d, such as 90m, 24h or 7d
    #[arg(long, value_name = "TIME", value_parser = span_of_days, default_value = "24h")]
    pub since: Duration,
    /// End of the reported time: a day or minute in UTC such as 2026-11-28 or 2026-11-28T07:00, or
    /// seconds since 1970 [default: now]
    #[arg(long, value_name = "MOMENT", value_parser = moment)]
    pub until: Option<u64>,
    /// Number of rows of each list, from 1
    #[arg(long, value_name = "N", default_value = "20", value_parser = clap::value_parser!(u32).range(1..))]
    pub top: u32,
}

/// Options of `rowmill fleet job`.
#[derive(Clone, Debug, Args)]
pub struct FleetJob {
    /// Id of the job in Slurm, or scheduler and id, such as kubernetes/POD
    #[arg(value_name = "ID")]
    pub id: String,
    #[command(flatten)]
    pub reach: HubReach,
}

/// Options of `rowmill fleet orders`.
#[derive(Clone, Debug, Args)]
pub struct FleetOrders {
    #[command(flatten)]
    pub place: HubPlace,
    /// How far to look back, such as 90m, 24h or 7d
    #[arg(long, value_name = "TIME", value_parser = span_of_days, default_value = "24h")]
    pub since: Duration,
}

/// Options of `rowmill fleet notices`.
#[derive(Clone, Debug, Args)]
pub struct FleetNotices {
    #[command(flatten)]
    pub place: HubPlace,
    /// How far to look back, such as 90m, 24h or 7d
    #[arg(long, value_name = "TIME", value_parser = span_of_days, default_value = "24h")]
    pub since: Duration,
}

/// Options of `rowmill fleet findings`.
#[derive(Clone, Debug, Args)]
pub struct FleetFindings {
    #[command(flatten)]
    pub place: HubPlace,
    /// How far to look back, such as 90m, 24h or 7d
    #[arg(long, value_name = "TIME", value_parser = span_of_days, default_value = "7d")]
    pub since: Duration,
    /// Number of findings
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub top: usize,
}

/// Options of `rowmill fleet doctor`. With `job` or `host`, the hub is asked instead of the agents.
#[derive(Clone, Debug, Args)]
pub struct FleetDoctor {
    #[command(flatten)]
    pub reach: Reach,
    /// Ask the hub about this job: the number of a Slurm job, or SCHEDULER/JOB such as slurm/4711
    #[arg(long, value_name = "JOB", group = "subject", requires = "token_file", conflicts_with_all = AGENTS)]
    pub job: Option<String>,
    /// Ask the hub about this host
    #[arg(long, value_name = "HOST", group = "subject", requires = "token_file", conflicts_with_all = AGENTS)]
    pub host: Option<String>,
    /// The hub's URL with --job or --host: https, or http on this host [default:
    /// http://127.0.0.1:9470]
    #[arg(long, value_name = "URL", requires = "subject")]
    pub hub: Option<String>,
    /// With --job or --host, how far to look back, such as 90m, 24h or 7d [default: to the start of
    /// the job, or 24h for a host]
    #[arg(long, value_name = "TIME", value_parser = span_of_days, requires = "subject")]
    pub since: Option<Duration>,
}

/// Options that select agents.
const AGENTS: [&str; 3] = ["hosts", "slurm", "socket_dir"];

impl FleetDoctor {
    /// Returns the dimension and the name about which the hub is asked.
    pub fn subject(&self) -> Option<[String; 2]> {
        let run = |job: &String| {
            let name = if job.contains('/') { job.clone() } else { format!("slurm/{job}") };
            ["run".to_owned(), name]
        };
        let host = || self.host.clone().map(|host| ["host".to_owned(), host]);
        self.job.as_ref().map(run).or_else(host)
    }

    /// Returns how to reach the hub. The token and the certificate are those of `reach`.
    pub fn place(&self) -> HubPlace {
        HubPlace {
            hub: self.hub.clone().unwrap_or_else(|| HUB.to_owned()),
            token_file: self.reach.token_file.clone().unwrap_or_default(),
            ca: self.reach.ca.clone(),
        }
    }
}

/// Options that order a trace through the hub instead of from the agents.
#[derive(Clone, Debug, Args)]
pub struct ThroughHub {
    /// Order the trace through the hub, for this job: the number of a Slurm job, or SCHEDULER/JOB
    /// such as slurm/4711
    #[arg(long, value_name = "JOB", requires = "token_file", conflicts_with_all = DIRECT)]
    pub job: Option<String>,
    /// Order the trace through the hub, on this host only; without --job, of all its processes
    #[arg(long, value_name = "HOST", requires = "token_file", conflicts_with_all = DIRECT)]
    pub host: Option<String>,
    /// The hub's URL with --job or --host: https, or http on this host [default:
    /// http://127.0.0.1:9470]
    #[arg(long, value_name = "URL", requires = "token_file", conflicts_with_all = DIRECT)]
    pub hub: Option<String>,
}

/// The URL of a hub on this host.
const HUB: &str = "http://127.0.0.1:9470";
/// Options that apply if this program asks the agents itself, and not if it asks the hub.
const DIRECT: [&str; 9] =
    ["hosts", "slurm", "socket_dir", "pids", "run", "user", "with", "output", "size_max"];

impl ThroughHub {
    /// Whether the trace is ordered through the hub.
    pub fn is_chosen(&self) -> bool {
        self.job.is_some() || self.host.is_some() || self.hub.is_some()
    }

    /// Returns how to reach the hub. The token and the certificate are those of `reach`.
    pub fn place(&self, reach: &Reach) -> HubPlace {
        HubPlace {
            hub: self.hub.clone().unwrap_or_else(|| HUB.to_owned()),
            token_file: reach.token_file.clone().unwrap_or_default(),
            ca: reach.ca.clone(),
        }
    }
}

/// Options that select processes on the hosts.
#[derive(Clone, Debug, Default, Args)]
pub struct ProcessSelection {
    /// Select only this process (repeatable)
    #[arg(long = "pid", value_name = "PID")]
    pub pids: Vec<u32>,
    /// Select only this job: a Slurm job or array task (70_4), a pod, namespace/pod, or the run id
    /// of torchrun
    #[arg(long, value_name = "JOB")]
    pub run: Option<String>,
    /// Select only processes of this user, by name or number
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
}

/// Options of `rowmill fleet trace`, which records a job on many hosts.
#[derive(Debug, Args)]
pub struct FleetTrace {
    #[command(flatten)]
    pub reach: Reach,
    #[command(flatten)]
    pub select: ProcessSelection,
    #[command(flatten)]
    pub through: ThroughHub,
    /// Number of iterations to record
    #[arg(long, visible_alias = "steps", value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub iterations: u32,
    /// Start at a multiple of N iterations, the same on all ranks; `auto` chooses N by the step
    /// time
    #[arg(long, value_name = "N", default_value = "auto", value_parser = align)]
    pub align: Align,
    /// Details to record in addition to names and times
    #[arg(long, value_enum, value_delimiter = ',', value_name = "WHAT")]
    pub with: Vec<With>,
    /// The folder to write, which must be new or empty
    #[arg(short, long, value_name = "FOLDER", default_value = "capture")]
    pub output: PathBuf,
    /// Refuse traces larger than this, such as 512MiB or 8GiB
    #[arg(long, value_name = "SIZE", value_parser = super::bytes, default_value = "4GiB")]
    pub size_max: u64,
    /// Longest wait for the recording to start, for its progress, and for a host that does not
    /// answer
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "2m")]
    pub timeout: Duration,
}

/// The number of iterations at whose multiples the recording may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    Auto,
    Given(u32),
}

fn align(text: &str) -> Result<Align, String> {
    if text == "auto" {
        return Ok(Align::Auto);
    }
    let given = text.parse().ok().filter(|&align| align > 0);
    given.map(Align::Given).ok_or_else(|| format!("expected auto or a number from 1, got {text}"))
}

/// Parses a duration with a unit, or the number 0 with any unit.
fn pause(text: &str) -> Result<Duration, String> {
    if matches!(text, "0" | "0ms" | "0s" | "0m" | "0h") { Ok(Duration::ZERO) } else { span(text) }
}

/// Parses a length of time in minutes, hours or days.
fn span_of_days(text: &str) -> Result<Duration, String> {
    let number = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit_s = match &text[number.len()..] {
        "m" | "min" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => 0,
    };
    let seconds = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit_s));
    let seconds = seconds.filter(|seconds| (60..=3650 * 86_400).contains(seconds));
    let wrong = || format!("expected a time such as 90m, 24h or 7d, up to 3650d, got {text:?}");
    seconds.map(Duration::from_secs).ok_or_else(wrong)
}

/// Parses a moment in UTC, or seconds since 1970.
fn moment(text: &str) -> Result<u64, String> {
    let day = || text.parse::<NaiveDate>().ok().and_then(|day| day.and_hms_opt(0, 0, 0));
    let minute = || NaiveDateTime::parse_from_str(text, "%Y-%m-%dT%H:%M").ok();
    let calendar = || u64::try_from(day().or_else(minute)?.and_utc().timestamp()).ok();
    let expected = "expected a moment such as 2026-11-28, 2026-11-28T07:00 or seconds since 1970";
    let wrong = || format!("{expected}, got {text:?}");
    text.parse().ok().or_else(calendar).ok_or_else(wrong)
}

fn sample_length(text: &str) -> Result<Duration, String> {
    let length = span(text)?;
    let is_short = length <= Duration::from_secs(60);
    if is_short { Ok(length) } else { Err(format!("expected at most 60s, got {text}")) }
}

fn sample_interval(text: &str) -> Result<Duration, String> {
    let interval = span(text)?;
    let is_long = interval >= Duration::from_millis(10);
    if is_long { Ok(interval) } else { Err(format!("expected at least 10ms, got {text}")) }
}

fn gpu_index(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("expected the index of a GPU, such as 0, got {text:?}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;

    use super::{gpu_index, moment, pause, sample_interval, sample_length, span_of_days};
    use crate::args::{Cli, bytes};

    #[test]
    fn lengths_of_samples_and_pauses_are_limited() {
        assert_eq!(sample_length("61s"), Err("expected at most 60s, got 61s".to_owned()));
        assert_eq!(sample_length("1m"), Ok(Duration::from_secs(60)));
        assert_eq!(sample_interval("1ms"), Err("expected at least 10ms, got 1ms".to_owned()));
        assert_eq!((pause("0s"), pause("0")), (Ok(Duration::ZERO), Ok(Duration::ZERO)));
        assert_eq!(pause("1h"), Ok(Duration::from_secs(3600)));
        assert!(gpu_index("x").is_err_and(|error| error.contains("the index of a GPU")));
    }

    #[test]
    fn orders_through_the_hub_take_no_options_of_agents() {
        let is_valid = |words: &str| {
            let words = ["rowmill", "fleet", "trace"].into_iter().chain(words.split(' '));
            Cli::try_parse_from(words).is_ok()
        };
        assert!(is_valid("--job 7 --token-file t --steps 9"));
        assert!(is_valid("--host a --token-file t --hub https://hub:9470 --align 10"));
        assert!(!is_valid("--job 7"), "without a token");
        for direct in ["--hosts a", "--slurm 7", "--with stacks", "-o folder", "--size-max 1GiB"] {
            assert!(!is_valid(&format!("--job 7 --token-file t {direct}")), "{direct}");
        }
    }

    #[test]
    fn the_doctor_asks_agents_or_the_hub() {
        let is_valid = |words: &str| {
            let words = ["rowmill", "fleet", "doctor"].into_iter().chain(words.split_whitespace());
            Cli::try_parse_from(words).is_ok()
        };
        let valid = ["", "--hosts a --token-file t", "--job 7 --token-file t --since 2d"];
        assert!(valid.into_iter().all(is_valid));
        let wrong = ["--job 7", "--job 7 --host a --token-file t", "--since 7d", "--hub a"];
        assert!(!wrong.into_iter().any(is_valid));
        assert!(!is_valid("--host a --hosts b --token-file t"), "of agents and the hub");
    }

    #[test]
    fn reports_cover_hours_or_days() {
        assert_eq!(span_of_days("7d"), Ok(Duration::from_secs(604_800)));
        assert_eq!(span_of_days("90m"), Ok(Duration::from_secs(5400)));
        assert_eq!(span_of_days("25h"), Ok(Duration::from_secs(90_000)));
        assert!(["0d", "d", "5s", "-1d", "3651d"].iter().all(|text| span_of_days(text).is_err()));
        let times = ["2026-11-28", "2026-11-28T07:30", "1795824000"].map(moment);
        assert_eq!(times, [Ok(1_795_824_000), Ok(1_795_851_000), Ok(1_795_824_000)]);
        assert!(moment("yesterday").is_err());
    }

    #[test]
    fn sizes_need_a_binary_unit() {
        assert_eq!((bytes("10KiB"), bytes("4GiB")), (Ok(10_240), Ok(4 << 30)));
        for text in ["", "10", "0MiB", "x", "99999999999GiB"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }
}
