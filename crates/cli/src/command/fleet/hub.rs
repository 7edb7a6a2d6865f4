//! A client of a hub, and the answers that `rowmill fleet report` and `rowmill fleet job` need.
//! Other members of the answers are ignored, so that a newer hub can be asked too.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use ureq::Body;
use ureq::http::Response;

use crate::agent_client::{self, Encryption};
use crate::args::HubPlace;
use setup::error::{Error, RunError, UsageError};
use setup::error_text::plain;
use setup::render;

/// Maximum time in which the hub must answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Largest size of an answer in bytes.
const ANSWER_MAX: u64 = 64 << 20;
/// A limit that no answer reaches.
pub const ALL: &str = "100000000";
/// Seconds of an hour.
pub const HOUR_S: f64 = 3600.0;

/// A connection to a hub.
pub struct HubClient {
    url: String,
    token: String,
    agent: ureq::Agent,
}

/// The sums of a selection, grouped as the query asked.
#[derive(Clone, Debug, Deserialize)]
pub struct HubAnswer {
    pub hours_missing: u64,
    pub part_names: Vec<String>,
    pub total: HubGroup,
    pub groups: Vec<HubGroup>,
}

/// The sums of a group in GPU seconds.
#[derive(Clone, Debug, Deserialize)]
pub struct HubGroup {
    pub start_unix_s: Option<u64>,
    pub sums: HubSums,
    /// The deployed time divided into the parts of [`HubAnswer::part_names`], the last of which is
    /// active.
    pub parts: Vec<f64>,
    /// The parts in percent, which add up to 100.0.
    pub percent: Option<Vec<f64>>,
    /// Share of the allocated time in which SMs were active: at least and at most.
    pub efficiency: Option<[f64; 2]>,
    /// The members of the dimensions, such as `user`.
    #[serde(flatten)]
    pub members: BTreeMap<String, Value>,
}

/// The sums that the reports need. The hub sends more.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct HubSums {
    pub deployed_s: f64,
    pub allocated_s: f64,
    pub busy_s: f64,
    pub sm_active_s: f64,
    pub busy_observed_s: f64,
    pub sm_observed_s: f64,
    pub held_idle_s: f64,
}

/// The runs of a selection.
#[derive(Clone, Debug, Deserialize)]
pub struct HubRuns {
    /// Allocated GPU seconds of runs that failed, and of runs that repeat a failed one.
    pub failed: f64,
    pub repeated: f64,
    pub since_unix_s: u64,
    pub until_unix_s: u64,
    pub runs: Vec<HubRun>,
}

/// A run with its sums, and how it ended.
#[derive(Clone, Debug, Deserialize)]
pub struct HubRun {
    #[serde(flatten)]
    pub group: HubGroup,
    pub state: String,
    pub started_unix_s: Option<u64>,
    pub ended_unix_s: Option<u64>,
    pub exit_code: Option<i32>,
    pub exit_signal: Option<u32>,
    pub is_failed: bool,
    /// The failed run that this one repeats.
    pub repeats: Option<String>,
    /// Attempts of the job after which it was started again.
    #[serde(default)]
    pub attempts: Vec<HubAttempt>,
}

/// An attempt of a job after which it was started again.
#[derive(Clone, Debug, Deserialize)]
pub struct HubAttempt {
    pub state: String,
    pub exit_code: Option<i32>,
    pub exit_signal: Option<u32>,
    pub is_failed: bool,
    /// The part of the allocated seconds of the run that this attempt held.
    pub allocated: f64,
}

/// The hosts of a selection.
#[derive(Clone, Debug, Deserialize)]
pub struct HubHosts {
    pub hosts: Vec<HubHost>,
}

/// A host with what should be mended on it.
#[derive(Clone, Debug, Deserialize)]
pub struct HubHost {
    pub host: String,
    pub issues: Vec<HubIssue>,
    /// GPU hours that the host lost at most.
    #[serde(default)]
    pub lost_gpu_hours: f64,
    /// Absent if the hub has no row of the host.
    pub last_row_unix_s: Option<u64>,
    pub node: Option<HubNode>,
}

/// Something that should be mended on a host.
#[derive(Clone, Debug, Deserialize)]
pub struct HubIssue {
    pub kind: String,
    pub text: String,
}

/// A host as its scheduler knows it.
#[derive(Clone, Debug, Deserialize)]
pub struct HubNode {
    pub gpus: u64,
}

/// The answer of a hub that refuses a query.
#[derive(Deserialize)]
struct HubRefusal {
    error: String,
}

/// A range of time in seconds since 1970.
#[derive(Clone, Copy, Debug)]
pub struct TimeRange {
    pub since: u64,
    pub until: u64,
}

impl TimeRange {
    /// Returns the range of a length that ends at a moment, or now.
    pub fn before(until: Option<u64>, length: Duration) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let until = until.unwrap_or(now);
        Self { since: until.saturating_sub(length.as_secs()), until }
    }

    /// Returns the same range a week before.
    pub fn week_before(self) -> Self {
        let week = 7 * 86_400;
        Self { since: self.since.saturating_sub(week), until: self.until.saturating_sub(week) }
    }
}

impl HubClient {
    /// Reads the token and the certificate. Nothing is sent yet.
    ///
    /// # Errors
    /// If the URL would send the token in the clear to another host, or if a file is missing or
    /// empty.
    pub fn open(place: &HubPlace) -> Result<Self, Error> {
        let url = place.hub.trim_end_matches('/').to_owned();
        let rest = url.strip_prefix("http://");
        let host = rest.map(|rest| rest.rsplit_once(':').map_or(rest, |(host, _)| host));
        let is_local = host.is_some_and(|host| ["localhost", "127.0.0.1", "[::1]"].contains(&host));
        if !is_local && !url.starts_with("https://") {
            return Err(UsageError::HubUrl { url }.into());
        }
        let token = agent_client::read_token(&place.token_file)?;
        let encryption = if is_local { Encryption::Optional } else { Encryption::Required };
        let agent = agent_client::open_http(place.ca.as_deref(), PATIENCE, encryption)?;
        Ok(Self { url, token, agent })
    }

    /// Asks for sums of a time with further pairs of the query, such as `by` and a dimension.
    ///
    /// # Errors
    /// If the hub does not answer or refuses the query.
    pub fn sums(&self, range: TimeRange, pairs: &[(&str, &str)]) -> Result<HubAnswer, Error> {
        self.ask("sums", Some(range), pairs)
    }

    /// Asks for the runs of a time, without a limit.
    ///
    /// # Errors
    /// If the hub does not answer.
    pub fn runs(&self, range: TimeRange, pairs: &[(&str, &str)]) -> Result<HubRuns, Error> {
        self.ask("runs", Some(range), &[pairs, &[("limit", ALL)]].concat())
    }

    /// Asks for one run, whose whole time the answer names.
    ///
    /// # Errors
    /// If the hub does not answer or does not know the run.
    pub fn whole_run(&self, run: &str) -> Result<HubRuns, Error> {
        self.ask("runs", None, &[("run", run)])
    }

    /// Asks for the hosts of a time with their issues.
    ///
    /// # Errors
    /// If the hub does not answer or refuses the query.
    pub fn hosts(&self, range: TimeRange, pairs: &[(&str, &str)]) -> Result<HubHosts, Error> {
        self.ask("hosts", Some(range), pairs)
    }

    /// Returns the URL of the hub.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Posts a message in JSON.
    ///
    /// # Errors
    /// If the hub does not answer or refuses the message.
    pub fn post<T: DeserializeOwned>(
        &self,
        what: &str,
        message: &impl Serialize,
    ) -> Result<T, Error> {
        let request = self.agent.post(format!("{}/hub/v1/{what}", self.url));
        let request = request.header("Authorization", format!("Bearer {}", self.token));
        let request = request.content_type("application/json");
        self.read(request.send(&serde_json::to_vec(message)?))
    }

    /// Asks for something about a time. Without one, the hub chooses it.
    ///
    /// # Errors
    /// If the hub does not answer or refuses the query.
    pub fn ask<T: DeserializeOwned>(
        &self,
        what: &str,
        range: Option<TimeRange>,
        pairs: &[(&str, &str)],
    ) -> Result<T, Error> {
        let mut request = self.agent.get(format!("{}/hub/v1/{what}", self.url));
        request = request.header("Authorization", format!("Bearer {}", self.token));
        if let Some(TimeRange { since, until }) = range {
            request = request.query("since", since.to_string()).query("until", until.to_string());
        }
        let request = request.query_pairs(pairs.iter().copied());
        self.read(request.call())
    }

    fn read<T: DeserializeOwned>(
        &self,
        answer: Result<Response<Body>, ureq::Error>,
    ) -> Result<T, Error> {
        let failed = |problem: String| RunError::Hub { url: self.url.clone(), problem };
        let mut answer = answer.map_err(|error| failed(agent_client::describe_failure(&error)))?;
        let bytes = answer.body_mut().with_config().limit(ANSWER_MAX).read_to_vec();
        let bytes = bytes.map_err(|error| failed(error.to_string()))?;
        if !answer.status().is_success() {
            // Proxies on the way answer with any text.
            let text = match serde_json::from_slice::<HubRefusal>(&bytes) {
                Ok(refusal) => refusal.error,
                Err(_) => String::from_utf8_lossy(&bytes).trim().to_owned(),
            };
            let problem = format!("{}: {}", answer.status(), plain(&text));
            let url = self.url.clone();
            return Err(match answer.status().as_u16() {
                // A new token, or a hub that can read its files, may help.
                401 | 500.. => failed(problem),
                _ => RunError::HubRefused { url, problem },
            }
            .into());
        }
        let parsed = serde_json::from_slice(&bytes);
        parsed.map_err(|error| failed(format!("unexpected answer: {error}")).into())
    }
}

impl HubRun {
    /// Describes how the run ended, and how often its job was started again.
    pub fn describe_end(&self) -> String {
        let again = match self.attempts.len() {
            0 => String::new(),
            count => format!(", started again {}", render::counted(count as u64, "time")),
        };
        if self.ended_unix_s.is_none() {
            let state = if self.state.is_empty() { "unknown" } else { &self.state };
            return format!("{state}{again}");
        }
        let state = if self.state.is_empty() { "ended" } else { &self.state };
        describe_exit(state, self.exit_code, self.exit_signal) + &again
    }

    /// Returns the allocated seconds without those of attempts before the last one.
    pub fn last_allocated_s(&self) -> f64 {
        let before: f64 = self.attempts.iter().map(|attempt| attempt.allocated).sum();
        self.group.sums.allocated_s - before
    }
}

impl HubAttempt {
    /// Describes how the attempt ended.
    pub fn describe_end(&self) -> String {
        describe_exit(&self.state, self.exit_code, self.exit_signal) + ", then started again"
    }
}

fn describe_exit(state: &str, code: Option<i32>, signal: Option<u32>) -> String {
    let code = code.filter(|code| *code != 0).map(|code| format!(", exit code {code}"));
    let signal = signal.map(|signal| format!(", signal {signal}"));
    format!("{state}{}{}", code.unwrap_or_default(), signal.unwrap_or_default())
}

impl HubGroup {
    /// Returns the member of a dimension, or an empty text.
    pub fn member(&self, dimension: &str) -> &str {
        self.members.get(dimension).and_then(Value::as_str).unwrap_or_default()
    }

    /// Returns the lost hours: those of allocated GPUs whose SMs were seen not to be active. The
    /// second number also counts the hours that nobody observed.
    pub fn lost_hours(&self) -> [f64; 2] {
        let part = |at: usize| self.parts.get(at).copied().unwrap_or(0.0) / HOUR_S;
        let lost = part(4) + part(6);
        [lost, lost + part(3) + part(5)]
    }
}
