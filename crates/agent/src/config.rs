//! The agent's configuration, which is read from a TOML file and can be overridden by flags.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Parser;
use fleet::ipc::socket::{SocketError, SocketPlace};
use fleet::process::own_uid;
use fleet::untrusted::{Privacy, UntrustedError, read_trusted};
use serde::Deserialize;

use crate::counters::interval::INTERVAL_S;
use crate::kubernetes::KubernetesConfig;
use crate::net::Net;
use crate::periodic::policy::Policy;

/// The default state folder of an agent that runs as root.
const STATE_OF_ROOT: &str = "/var/lib/rowmill-agent";
/// The largest length of a host name in bytes, as in DNS.
const HOST_MAX: usize = 253;

/// rowmill-agent: counters of this host, and traces of its PyTorch jobs on request.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "\
Examples:
  rowmill-agent --socket-dir /run/kineto                      answer PyTorch, serve `rowmill capture`
  rowmill-agent --socket-dir /run/kineto --metrics 127.0.0.1:9465      and Prometheus
  rowmill-agent --config /etc/rowmill/agent.toml              everything from a file
  rowmill-agent --config agent.toml --check                   only check the file

Jobs are started with KINETO_USE_DAEMON=1 KINETO_IPC_SOCKET_DIR=/run/kineto, and poll every 5 s.
The folder must be writable for them: install -d -m 1777 /run/kineto. Without --socket-dir the agent
uses the abstract socket @dynolog, which containers in another network namespace cannot reach.

Pages at --metrics:
  /metrics        0.0.4 text, or OpenMetrics where the scraper accepts it
  /metrics/dcgm   the names and labels of dcgm-exporter
Everyone may read them, unless the file names a secret (mode 0600) that scrapers must send as
\"Authorization: Bearer\". The port of [listen] serves them too, over TLS, for tokens with the verb
status:
  metrics_token_file = \"/etc/rowmill/metrics.token\"

Owners of GPUs are labels of rowmill_run_info only. In a join it goes left, as a GPU may have several runs:
rowmill_run_info{UUID!=\"\"} * on (instance, UUID) group_left () hw_gpu_utilization_ratio.

Owners of GPUs come from a folder with one file per GPU and from the kubelet. Slurm variables of a process
count if its control group, its user or its work on the GPU confirms them:
  job_mapping = \"/run/rowmill-jobs\"
  pod_resources = \"/var/lib/kubelet/pod-resources/kubelet.sock\"
  pod_logs = \"/var/log/pods\"                 # joins names and UIDs of pods
  [kubernetes]                               # names jobs and owners of pods; every key may be left out
  pods_url = \"https://127.0.0.1:10250/pods\" # of the kubelet [default: the API server]
  node = \"gpu-17\"                          # [default: the variable NODE_NAME]
  user_label = \"example.org/owner\"         # label or annotation; workflow_label as well
  job_labels = [\"training.kubeflow.org/job-name\"]  # otherwise the pod's controller

The number of GPUs that this host should have; alert rules compare it with the GPUs found:
  expected_gpus = 8

Traces for other hosts (`rowmill fleet trace`) are off until the file has these sections:
  [listen]
  address = \"0.0.0.0:9466\"
  certificate = \"/etc/rowmill/agent.pem\"     # chain, leaf first
  key = \"/etc/rowmill/agent.key\"
  [[token]]
  name = \"operations\"
  file = \"/etc/rowmill/operations.token\"     # at least 16 letters, mode 0600
  verbs = [\"status\", \"trace\", \"pause\"]
  users = [1000]                             # users whose jobs the token covers; [] for all
  hosts = [\"10.0.0.0/8\"]                     # addresses from which the token is valid; [] for all

Send rows to a hub and execute its orders, without opening a port here:
  [hub]
  url = \"https://hub.example:9470\"
  ca = \"/etc/rowmill/hub.pem\"               # [default: the public authorities]
  token_file = \"/etc/rowmill/hub.token\"     # at least 16 letters, mode 0600
  queue_mib = 64                             # on disk while the hub is unreachable; then the oldest are dropped
  verbs = [\"trace\", \"pause\"]               # orders that the hub may send [default: none]
  users = [1000]                             # users whose jobs the hub may trace; [] for all

Every flag is also a key of the file: socket_dir, metrics, state_dir, json, nvml, dcgm_page,
dcgm_fields. A flag overrides its key. Further keys:
  host = \"gpu-17\"                          # name in rows and labels [default: the kernel's]
  interval_s = 10                            # length of an interval of rows and pages; divides 60
  audit = \"/var/log/rowmill/audit.jsonl\"   # log of all requests [default: stderr]

Limits of disk use:
  audit_mib = 64                             # of the audit file and its predecessor
  spool_mib = 8192                           # traces waiting to be fetched
  spool_user_mib = 4096                      # traces of one user among them [default: half]

Tools of dynolog (dyno, unitrace.py) on this host connect to this port [default: off]:
  dynolog = \"127.0.0.1:1778\"               # loopback only; a user's own processes only

Trace a sample of every job's steps, within daily budgets for each workflow type:
  [periodic]                                 # every key may be left out
  traces_per_day = 24                        # per workflow type on this host
  mib_per_day = 2048                         # that the profiler may write
  share_of_steps = 0.001                     # largest share of steps that is recorded
  slowdown_max = 0.03                        # slowdown by three traces in a row, then backs off
  iterations = 5                             # steps per trace
  with = [\"shapes\"]                        # stacks, flops, modules, memory
  users = [1000]                             # users whose jobs are traced; [] for all
  keep_mib = 4096                            # in state_dir/periodic; the oldest are removed first
  [[periodic.workflow]]                      # the first matching name applies
  name = \"ranking-*\"
  traces_per_day = 96                        # 0 for none; mib_per_day and share_of_steps as well

Processes of a user are traced for that user and for root only. The agent ends at SIGTERM or
Ctrl-C. If a socket unit holds the socket, the next agent answers the polls that arrive in between."
)]
pub struct Args {
    /// Read the configuration from this TOML file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Check everything that could keep the agent from starting, then exit
    #[arg(long)]
    pub check: bool,
    /// Folder of the jobs' KINETO_IPC_SOCKET_DIR [default: the abstract socket @dynolog]
    #[arg(long, value_name = "FOLDER")]
    pub socket_dir: Option<PathBuf>,
    /// Serve /metrics at this address, such as 127.0.0.1:9465 [default: off]
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<SocketAddr>,
    /// Folder of traces waiting to be fetched [default: /var/lib/rowmill-agent for root; for others
    /// rowmill-agent in $XDG_STATE_HOME or ~/.local/state]
    #[arg(long, value_name = "FOLDER")]
    pub state_dir: Option<PathBuf>,
    /// Write every interval as a JSON line to this file, or - for stdout
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Path of the NVML library [default: libnvidia-ml.so.1, if it exists]
    #[arg(long, value_name = "FILE")]
    pub nvml: Option<PathBuf>,
    /// URL of a dcgm-exporter's page, for SM activity of GPUs before Hopper
    #[arg(long, value_name = "URL")]
    pub dcgm_page: Option<String>,
    /// Fields of /metrics/dcgm: a CSV file as for dcgm-exporter
    #[arg(long, value_name = "FILE")]
    pub dcgm_fields: Option<PathBuf>,
}

impl Args {
    /// The file to name in a message about a wrong key. The result is the configuration file, or
    /// `None` if a flag set the value or there is no configuration file.
    pub fn origin(&self, key: &str) -> Option<&Path> {
        let is_flag = match key {
            "socket_dir" => self.socket_dir.is_some(),
            "metrics" => self.metrics.is_some(),
            "state_dir" => self.state_dir.is_some(),
            "json" => self.json.is_some(),
            "dcgm_page" => self.dcgm_page.is_some(),
            "dcgm_fields" => self.dcgm_fields.is_some(),
            _ => false,
        };
        self.config.as_deref().filter(|_| !is_flag)
    }
}

/// The agent's configuration, as read from a TOML file. Command-line flags may override some keys.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub socket_dir: Option<PathBuf>,
    pub metrics: Option<SocketAddr>,
    /// File with the secret that scrapers must send. Without this file, everyone may read the
    /// pages.
    pub metrics_token_file: Option<PathBuf>,
    pub state_dir: Option<PathBuf>,
    pub json: Option<PathBuf>,
    pub nvml: Option<PathBuf>,
    pub dcgm_page: Option<String>,
    pub dcgm_fields: Option<PathBuf>,
    /// Number of GPUs that this host should have. If a different number can be read, the agent
    /// reports it in a note.
    pub expected_gpus: Option<u32>,
    /// A folder with one file per GPU, which lists the ids of the jobs on that GPU. dcgm-exporter
    /// uses the same format for its job mapping.
    pub job_mapping: Option<PathBuf>,
    /// The kubelet's PodResources socket, which reports which pod uses which GPU.
    pub pod_resources: Option<PathBuf>,
    /// The kubelet's log folder, `/var/log/pods` by default. The names of its entries map the names
    /// of pods to their UIDs.
    pub pod_logs: Option<PathBuf>,
    /// The source of the jobs and owners of pods.
    pub kubernetes: Option<KubernetesConfig>,
    /// Name of this host in counter rows and in labels of metrics.
    pub host: Option<String>,
    /// File of the audit log. Without it, audit lines go to stderr.
    pub audit: Option<PathBuf>,
    /// Largest size of the audit log in MiB, 64 by default. The oldest lines are dropped first.
    pub audit_mib: Option<u64>,
    /// Largest total size in MiB of the traces waiting to be fetched, 8192 by default.
    pub spool_mib: Option<u64>,
    /// Largest total size in MiB of the traces of one user that wait to be fetched; half of
    /// `spool_mib` by default.
    pub spool_user_mib: Option<u64>,
    /// Length of a counter interval in seconds, 10 by default. The length must divide 60.
    pub interval_s: Option<u64>,
    /// The hub that receives counter rows and sends trace orders.
    pub hub: Option<HubConfig>,
    pub periodic: Option<Policy>,
    /// Loopback address at which dynolog's client tools are served.
    pub dynolog: Option<SocketAddr>,
    pub listen: Option<Listen>,
    /// Tokens of the callers that may connect to the TLS address of `listen`.
    #[serde(default, rename = "token")]
    pub tokens: Vec<CallerToken>,
}

/// The TLS endpoint that serves callers from other hosts.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listen {
    pub address: SocketAddr,
    /// File with the server's certificate chain in PEM, leaf certificate first.
    pub certificate: PathBuf,
    /// File with the server's private key in PEM.
    pub key: PathBuf,
}

/// The hub, which collects counter rows of many hosts and sends trace orders to their agents.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HubConfig {
    pub url: String,
    /// File with the CA certificate that signed the hub's certificate. By default, the public
    /// certificate authorities are trusted.
    pub ca: Option<PathBuf>,
    /// File with the token by which the hub authenticates this host.
    pub token_file: PathBuf,
    /// Largest size in MiB of the rows that are queued on disk while the hub is unreachable.
    #[serde(default = "queue_mib")]
    pub queue_mib: u64,
    /// Kinds of orders that the hub may send.
    #[serde(default)]
    pub verbs: Vec<Verb>,
    /// Ids of the users whose jobs the hub may trace. An empty list allows all users.
    #[serde(default)]
    pub users: Vec<u32>,
}

fn queue_mib() -> u64 {
    64
}

/// A token of callers from other hosts, with the permissions of those callers.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallerToken {
    /// Name of the caller in audit lines.
    pub name: String,
    pub file: PathBuf,
    pub verbs: Vec<Verb>,
    /// Ids of the users whose jobs the caller may trace. An empty list allows all users.
    #[serde(default)]
    pub users: Vec<u32>,
    /// Networks from which the token is valid, such as `10.0.0.0/8`. An empty list allows every
    /// address.
    #[serde(default)]
    pub hosts: Vec<String>,
}

/// A kind of request for which a caller needs permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    Status,
    Trace,
    /// Release the hardware counters for some seconds, so that other tools can use them.
    Pause,
}

/// An error of the configuration, or of the agent's start.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A configuration file that cannot be read.
    #[error("{}: cannot read: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// A file that other users could have written or read, or that is not a regular file.
    #[error("{0}")]
    File(UntrustedError),
    /// A configuration file that is not valid TOML or has an unknown key.
    #[error("{}: {}", path.display(), source.to_string().trim_end())]
    Toml { path: PathBuf, source: Box<toml::de::Error> },
    /// A value or combination of values that is invalid.
    #[error("{what}: expected {expected}, got {got}")]
    Value { what: String, expected: String, got: String },
    /// A failure of the operating system while the agent starts.
    #[error("{what}: {source}")]
    Start { what: String, source: std::io::Error },
    /// An error of the Unix socket that PyTorch processes poll.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// A folder of the agent that cannot be used because other users could change it.
    #[error(transparent)]
    Folder(#[from] UntrustedError),
    #[error("{}: {problem}", path.display())]
    Tls { path: PathBuf, problem: String },
    /// A file or an address that cannot be used, with the key that names it.
    #[error("{key}: {source}")]
    Key {
        /// Name of the configuration key, such as `hub: token_file`.
        key: String,
        source: Box<ConfigError>,
    },
}

impl ConfigError {
    /// Returns a hint for the user on how to fix the problem.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Socket(SocketError::Taken { .. }) => Some(
                "another agent, `rowmill capture` or dynolog runs here: end it, or name another folder \
                 with --socket-dir"
                    .to_owned(),
            ),
            Self::Socket(SocketError::Foreign { .. }) => Some(
                "end the program of that user, run the agent as root, or name another folder with \
                 --socket-dir"
                    .to_owned(),
            ),
            Self::Socket(SocketError::Unsafe(error)) if error.is_missing() => Some(
                "make the socket folder, open to all users: install -d -m 1777 FOLDER".to_owned(),
            ),
            Self::Socket(SocketError::Unsafe(UntrustedError::Foreign { got: 0, .. })) => Some(
                "root's agent has this socket folder: use that agent, or name another folder with \
                 --socket-dir"
                    .to_owned(),
            ),
            Self::Socket(SocketError::Unsafe(_)) => Some(
                "another user could exchange what the agent keeps there: make the folder as the \
                 agent's user, with mode 0755 or 1777"
                    .to_owned(),
            ),
            Self::Folder(error) if error.is_missing() => {
                Some("make the folder, for the agent's user alone: install -d -m 0750 FOLDER".to_owned())
            }
            Self::Folder(UntrustedError::Io { .. }) => None,
            Self::Folder(_) => Some(
                "another user could exchange what the agent keeps there: name a folder of the \
                 agent's user with state_dir"
                    .to_owned(),
            ),
            Self::File(UntrustedError::Owner { .. } | UntrustedError::Open { .. }) => Some(
                "whoever may write this file could act as the agent, and whoever may read a secret \
                 could call it: give it to the agent's user with chown and chmod"
                    .to_owned(),
            ),
            Self::Toml { .. } | Self::Value { .. } => {
                Some("rowmill-agent --help shows every part of the file".to_owned())
            }
            Self::Tls { .. } => Some(
                "certificate and key are PEM files that belong together, the certificate's chain leaf \
                 first: openssl x509 -noout -subject -in FILE, openssl pkey -noout -in FILE"
                    .to_owned(),
            ),
            Self::Key { key, source } => source.hint_of_key(key).or_else(|| source.hint()),
            Self::File(_) | Self::Read { .. } | Self::Start { .. } | Self::Socket(_) => None,
        }
    }

    /// Returns a hint about the file that a key names.
    fn hint_of_key(&self, key: &str) -> Option<String> {
        let is_secret = key.ends_with("token_file") || key.ends_with(": file");
        match self {
            Self::Read { source, .. } if is_secret && source.kind() == ErrorKind::NotFound => Some(
                "make the file with a secret: openssl rand -hex 16 | install -m 0600 /dev/stdin FILE"
                    .to_owned(),
            ),
            Self::Read { .. } => Some("correct the path, or make the file".to_owned()),
            Self::Value { .. } if is_secret => Some(
                "write one line with a secret: openssl rand -hex 16 | install -m 0600 /dev/stdin FILE"
                    .to_owned(),
            ),
            _ => None,
        }
    }

    /// The name of the wrong configuration key, such as `hub: url`. `None` if the problem does not
    /// concern a key.
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::Key { key: what, .. } | Self::Value { what, .. } => Some(what),
            _ => None,
        }
    }

    /// Wraps the error of a file, for use with `map_err`: as [`ConfigError::File`] if the file is
    /// not trusted, and as [`ConfigError::Read`] otherwise.
    pub fn file(error: UntrustedError) -> Self {
        match error {
            UntrustedError::Io { path, source, .. } => Self::Read { path, source },
            error => Self::File(error),
        }
    }

    /// Returns a closure for `map_err` that wraps an error in [`ConfigError::Key`].
    pub fn at_key<E: Into<Self>>(key: impl Into<String>) -> impl FnOnce(E) -> Self {
        let key = key.into();
        move |source| Self::Key { key, source: Box::new(source.into()) }
    }

    /// Returns a closure for `map_err` that wraps an I/O error in [`ConfigError::Start`].
    pub fn start(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Start { what, source }
    }
}

impl Config {
    /// Reads the configuration file that the flags name, if any, and applies the flags. The values
    /// are not checked here, but by [`Config::problems`].
    ///
    /// # Errors
    /// If the file cannot be read, is not TOML or has an unknown key, or if no state folder can be
    /// determined.
    pub fn from_args(args: &Args) -> Result<Self, ConfigError> {
        let mut config = match &args.config {
            Some(path) => read(path)?,
            None => Self::default(),
        };
        let over = |flag: &Option<PathBuf>, key: &mut Option<PathBuf>| {
            if flag.is_some() {
                key.clone_from(flag);
            }
        };
        // The user types flags in a shell, so their paths may be relative; paths in the file must
        // be absolute.
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        over(&args.socket_dir.as_ref().map(absolute), &mut config.socket_dir);
        over(&args.state_dir, &mut config.state_dir);
        over(&args.json, &mut config.json);
        over(&args.nvml, &mut config.nvml);
        over(&args.dcgm_fields, &mut config.dcgm_fields);
        config.metrics = args.metrics.or(config.metrics);
        config.dcgm_page = args.dcgm_page.clone().or(config.dcgm_page);
        if config.state_dir.is_none() {
            config.state_dir = Some(default_state(own_uid(), |name| std::env::var_os(name))?);
        }
        Ok(config)
    }

    /// The place of the Unix socket that PyTorch processes poll.
    pub fn place(&self) -> SocketPlace {
        self.socket_dir.as_deref().map_or(SocketPlace::Abstract, SocketPlace::in_folder)
    }

    /// The folder of finished traces, and of state that must survive a restart of the agent.
    pub fn state(&self) -> PathBuf {
        self.state_dir.clone().unwrap_or_else(|| PathBuf::from(STATE_OF_ROOT))
    }

    /// The folder in which finished traces wait until a client fetches them.
    pub fn spool(&self) -> PathBuf {
        self.state().join("traces")
    }

    /// Largest size of the audit log in MiB, with the default applied.
    pub fn audit_mib(&self) -> u64 {
        self.audit_mib.unwrap_or(64)
    }

    /// Largest size in MiB of all traces that wait to be fetched, with the default applied.
    pub fn spool_mib(&self) -> u64 {
        self.spool_mib.unwrap_or(8192)
    }

    /// Largest size in MiB of the waiting traces of one user, with the default applied.
    pub fn spool_user_mib(&self) -> u64 {
        self.spool_user_mib.unwrap_or(self.spool_mib().div_ceil(2))
    }

    /// The folder of the kubelet's pod logs, with the default applied.
    pub fn pod_logs(&self) -> PathBuf {
        self.pod_logs.clone().unwrap_or_else(|| "/var/log/pods".into())
    }

    /// Length of a counter interval in seconds, with the default applied.
    pub fn interval_s(&self) -> u64 {
        self.interval_s.unwrap_or(INTERVAL_S)
    }

    /// Lists every invalid value, and every key that is set without another key that it requires.
    pub fn problems(&self) -> Vec<ConfigError> {
        let mut problems = self.endpoint_problems();
        problems.extend(self.token_problems());
        problems.extend(self.value_problems());
        let periodic = self.periodic.as_ref().map(Policy::problems).unwrap_or_default();
        problems.extend(periodic.iter().map(|one| wrong(&one.what, one.expected, &one.got)));
        problems.extend(self.hub.iter().flat_map(HubConfig::problems));
        problems
    }

    fn endpoint_problems(&self) -> Vec<ConfigError> {
        let mut problems = Vec::new();
        if self.listen.is_some() && self.tokens.is_empty() {
            problems.push(wrong("listen", "at least one [[token]] section", "none"));
        }
        if self.listen.is_none() && !self.tokens.is_empty() {
            problems.push(wrong("token", "a [listen] with certificate and key", "none"));
        }
        if self.metrics_token_file.is_some() && self.metrics.is_none() {
            let expected = "metrics = \"ADDRESS\" as well";
            problems.push(wrong("metrics_token_file", expected, "none"));
        }
        if let Some(url) = self.dcgm_page.as_ref().filter(|url| !is_page(url)) {
            let expected = "a URL such as http://127.0.0.1:9400/metrics";
            problems.push(wrong("dcgm_page", expected, &format!("{url:?}")));
        }
        let kubernetes = self.kubernetes.as_ref().and_then(KubernetesConfig::problem);
        if let Some((key, expected, got)) = kubernetes {
            problems.push(wrong(&format!("kubernetes: {key}"), expected, &got));
        }
        if let Some(address) = self.dynolog.filter(|at| !at.ip().is_loopback()) {
            let expected = "a loopback address such as 127.0.0.1:1778";
            problems.push(wrong("dynolog", expected, &address.to_string()));
        }
        if let Some(folder) = self.socket_dir.as_ref().filter(|folder| !folder.is_absolute()) {
            let expected = "an absolute path, spelled as in the jobs' KINETO_IPC_SOCKET_DIR";
            problems.push(wrong("socket_dir", expected, &format!("{folder:?}")));
        }
        problems
    }

    fn token_problems(&self) -> Vec<ConfigError> {
        let mut problems = Vec::new();
        for (at, token) in self.tokens.iter().enumerate() {
            let what = |key: &str| format!("token {:?}: {key}", token.name);
            if self.tokens[..at].iter().any(|other| other.name == token.name) {
                problems.push(wrong(&what("name"), "a different name for each token", "it twice"));
            }
            if token.verbs.is_empty() {
                problems.push(wrong(&what("verbs"), "status, trace or pause", "none"));
            }
            for host in token.hosts.iter().filter(|host| Net::parse(host).is_none()) {
                let expected = "an address such as 10.0.0.1 or 10.0.0.0/8";
                problems.push(wrong(&what("hosts"), expected, &format!("{host:?}")));
            }
        }
        problems
    }

    fn value_problems(&self) -> Vec<ConfigError> {
        let mut problems = Vec::new();
        if let Some(host) = self.host.as_ref().filter(|host| !is_host_name(host)) {
            let expected = format!("1 to {HOST_MAX} letters without spaces");
            let got =
                if host.len() > HOST_MAX { host.len().to_string() } else { format!("{host:?}") };
            problems.push(wrong("host", &expected, &got));
        }
        let interval_s = self.interval_s();
        if interval_s == 0 || 60 % interval_s != 0 {
            let expected = "a divisor of 60 seconds, such as 10";
            problems.push(wrong("interval_s", expected, &interval_s.to_string()));
        }
        let (all, own) = (self.spool_mib(), self.spool_user_mib());
        for (key, mib) in
            [("audit_mib", self.audit_mib()), ("spool_mib", all), ("spool_user_mib", own)]
        {
            if !(1..=1 << 30).contains(&mib) {
                problems.push(wrong(key, "1 to 1073741824 MiB", &mib.to_string()));
            }
        }
        if own > all {
            let expected = format!("at most the {all} MiB of spool_mib");
            problems.push(wrong("spool_user_mib", &expected, &own.to_string()));
        }
        problems
    }
}

impl HubConfig {
    fn problems(&self) -> Vec<ConfigError> {
        let mut problems = Vec::new();
        if self.url.starts_with("http://") && !is_loopback_http(&self.url) {
            let expected = "https://, because http would send the token and the rows in the clear; \
                            http:// only to a loopback address such as 127.0.0.1";
            problems.push(wrong("hub: url", expected, &self.url));
        } else if !is_root(&self.url) {
            let expected = "a URL such as https://hub.example:9470, without query and fragment";
            problems.push(wrong("hub: url", expected, &format!("{:?}", self.url)));
        }
        if !(1..=1 << 20).contains(&self.queue_mib) {
            problems.push(wrong("hub: queue_mib", "1 to 1048576 MiB", &self.queue_mib.to_string()));
        }
        problems
    }
}

fn wrong(what: &str, expected: &str, got: &str) -> ConfigError {
    let (what, expected, got) = (what.to_owned(), expected.to_owned(), got.to_owned());
    ConfigError::Value { what, expected, got }
}

fn is_host_name(host: &str) -> bool {
    let is_apart = |letter: char| letter.is_whitespace() || letter.is_control();
    !host.is_empty() && host.len() <= HOST_MAX && !host.contains(is_apart)
}

fn is_page(url: &str) -> bool {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'))
}

/// Whether a URL begins with `https://` and has no user name, query or fragment, so that paths can
/// be appended to it.
fn is_root(url: &str) -> bool {
    let is_wrong = |letter: char| "?#@".contains(letter) || letter.is_whitespace();
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/') && !rest.contains(is_wrong))
}

/// Whether a URL reaches this host alone, without TLS. The address must be a number, because a name
/// could be resolved to another host.
fn is_loopback_http(url: &str) -> bool {
    let place = url.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
    let address = place.and_then(|place| place.parse::<std::net::SocketAddr>().ok());
    address.is_some_and(|address| address.ip().is_loopback())
}

/// Determines the default state folder. The folder is never inside a folder that all users may
/// write to, because another user could have created it first.
fn default_state(
    uid: u32,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<PathBuf, ConfigError> {
    if uid == 0 {
        return Ok(PathBuf::from(STATE_OF_ROOT));
    }
    let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME");
    let state = state.or_else(|| Some(absolute("HOME")?.join(".local/state")));
    let state = state.ok_or_else(|| ConfigError::Value {
        what: "state_dir".to_owned(),
        expected: "a folder of the agent's own user, as neither XDG_STATE_HOME nor HOME names one"
            .to_owned(),
        got: "none".to_owned(),
    })?;
    Ok(state.join("rowmill-agent"))
}

fn read(path: &Path) -> Result<Config, ConfigError> {
    let error = |source| ConfigError::Read { path: path.to_owned(), source };
    let bytes = read_trusted(path, Privacy::Readable).map_err(ConfigError::file)?;
    let text = String::from_utf8(bytes).map_err(|problem| error(std::io::Error::other(problem)))?;
    parse(&text)
        .map_err(|source| ConfigError::Toml { path: path.to_owned(), source: Box::new(source) })
}

/// Parses a configuration from the text of a TOML file.
pub fn parse(text: &str) -> Result<Config, toml::de::Error> {
    toml::from_str(text)
}

#[cfg(test)]
mod tests {
    use super::{Config, Verb, default_state, parse};

    fn check(text: &str) -> String {
        match parse(text) {
            Ok(config) => {
                let problems = config.problems();
                problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
            }
            Err(error) => error.to_string(),
        }
    }

    const LISTEN: &str = "[listen]\naddress = '127.0.0.1:1'\ncertificate = 'c'\nkey = 'k'\n";

    #[test]
    fn a_port_without_token_and_a_token_without_port_are_refused() {
        assert_eq!(check(LISTEN), "listen: expected at least one [[token]] section, got none");
        let token = "[[token]]\nname = 'a'\nfile = 'f'\nverbs = ['status', 'trace']\n";
        assert_eq!(check(token), "token: expected a [listen] with certificate and key, got none");
        assert_eq!(check(&format!("{LISTEN}{token}")), "");
        let config: Config = parse(&format!("{LISTEN}{token}")).unwrap();
        assert_eq!(config.tokens[0].verbs, [Verb::Status, Verb::Trace]);
        let from = format!("{LISTEN}{token}hosts = ['10.0.0.0/40']");
        assert!(check(&from).contains("hosts: expected an address"), "{}", check(&from));
        let none = format!("{LISTEN}{}", token.replace("'status', 'trace'", ""));
        assert!(check(&none).contains("expected status, trace or pause"), "{}", check(&none));
    }

    #[test]
    fn the_default_state_folder_is_never_world_writable() {
        let state = |uid, variables: &[(&str, &str)]| {
            let find = |name: &str| variables.iter().find(|(key, _)| *key == name);
            let path = default_state(uid, |name| find(name).map(|(_, value)| (*value).into()));
            path.map_or_else(|error| error.to_string(), |path| path.display().to_string())
        };
        let home = ("HOME", "/home/ada");
        assert_eq!(state(0, &[home]), "/var/lib/rowmill-agent");
        assert_eq!(state(7, &[home]), "/home/ada/.local/state/rowmill-agent");
        assert_eq!(state(7, &[home, ("XDG_STATE_HOME", "/x")]), "/x/rowmill-agent");
        assert!(state(7, &[("HOME", "ada")]).starts_with("state_dir: expected a folder"));
    }

    #[test]
    fn all_invalid_values_are_named() {
        for host in ["''", "\"a\\nb\"", "'a b'"] {
            let message = check(&format!("host = {host}"));
            assert!(message.starts_with("host: expected 1 to 253 letters"), "{message}");
        }
        let long = check(&format!("host = '{}'", "x".repeat(300)));
        assert!(long.ends_with("without spaces, got 300"), "{long}");
        assert!(check("socket_dir = 'run'").contains("socket_dir: expected an absolute path"));
        let message = check("spool_mib = 10\nspool_user_mib = 11\ninterval_s = 7\ndcgm_page = 'x'");
        for wanted in ["spool_user_mib: expected at most the 10 MiB", "interval_s: ", "dcgm_page: "]
        {
            assert!(message.contains(wanted), "expected {wanted:?} in {message}");
        }
        let token = "[[token]]\nname = 'a'\nfile = 'f'\nverbs = ['status']\n";
        let message = check(&format!("{LISTEN}{token}{token}"));
        assert!(message.contains("token \"a\": name: expected a different name"), "{message}");
        let message = check("[periodic]\n[[periodic.workflow]]\nname = ''");
        assert!(message.ends_with("got \"\""), "{message}");
    }

    #[test]
    fn unknown_keys_and_wrong_values_are_named() {
        assert!(check("socket = 'x'").contains("unknown field `socket`"));
        assert!(check("metrics = 'here'").contains("metrics"));
        assert!(check("dcgm_page = 'ftp://x'").contains("dcgm_page: expected a URL"));
        assert_eq!(check("dynolog = '127.0.0.1:1778'"), "");
        assert_eq!(check("dynolog = '[::1]:1778'"), "");
        assert_eq!(
            check("dynolog = '0.0.0.0:1778'"),
            "dynolog: expected a loopback address such as 127.0.0.1:1778, got 0.0.0.0:1778"
        );
        assert_eq!(
            check("interval_s = 7"),
            "interval_s: expected a divisor of 60 seconds, such as 10, got 7"
        );
        let hub = "[hub]\nurl = 'https://h'\ntoken_file = 't'\n";
        assert_eq!(check(hub), "");
        for url in ["https://h?a=b", "https://h/#part", "https://", "ftp://h", "https:///h"] {
            let message = check(&hub.replace("https://h", url));
            assert!(message.contains("hub: url: expected a URL such as"), "{url}: {message}");
        }
        for url in
            ["http://h", "http://10.0.0.1:9470", "http://127.0.0.1:9470@h", "http://localhost:1"]
        {
            let clear = check(&hub.replace("https://h", url));
            assert!(clear.contains("hub: url: expected https://, because http would"), "{clear}");
        }
        assert_eq!(check(&hub.replace("https://h", "http://127.0.0.1:9470/")), "");
        assert!(check(&format!("{hub}queue_mib = 0")).contains("hub: queue_mib: expected 1 to"));
        assert!(check(&hub.replace("token_file", "token")).contains("token"));
        assert!(check(&LISTEN.replace("key = 'k'", "")).contains("missing field `key`"));
    }
}
