//! A client of a hub, and the answers that `rowmill fleet report` and `rowmill fleet job` need.
//! Other members of the answers are ignored, so that a newer hub can be asked too.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use ureq::Body;
use ureq::http::Response;

use crate::agent_client::{self, Encryption};
use crate::args::HubPlace;
use setup::error::{Error, RunError, UsageError};

/// Maximum time in which the hub must answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Largest size of an answer in bytes.
const ANSWER_MAX: u64 = 64 << 20;
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
    pub groups_left_out: u64,
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
    pub members: BTreeMap<String, String>,
}

/// The sums that the reports need. The hub sends more.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct HubSums {
    pub deployed_s: f64,
    pub allocated_s: f64,
    pub busy_s: f64,
    pub busy_observed_s: f64,
    pub sm_observed_s: f64,
    pub held_idle_s: f64,
}

/// The faults of GPUs.
#[derive(Clone, Debug, Deserialize)]
pub struct HubFaults {
    pub faults: Vec<HubFault>,
}

/// Faults of one kind of one GPU.
#[derive(Clone, Debug, Deserialize)]
pub struct HubFault {
    pub host: String,
    pub gpu: u32,
    /// Kind of the fault, such as `throttled hw_slowdown`, in seconds, or `error xid_79`.
    pub kind: String,
    pub amount: f64,
}

/// A range of time in seconds since 1970.
#[derive(Clone, Copy, Debug)]
pub struct TimeRange {
    pub since: u64,
    pub until: u64,
}

impl TimeRange {
    /// Returns the range of a length that ends now.
    pub fn until_now(length: Duration) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Self { since: now.saturating_sub(length.as_secs()), until: now }
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
        self.ask("sums", range, pairs)
    }

    /// Asks for the faults of a time.
    ///
    /// # Errors
    /// If the hub does not answer or refuses the query.
    pub fn faults(&self, range: TimeRange) -> Result<HubFaults, Error> {
        self.ask("faults", range, &[])
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

    /// Asks for something about a time.
    ///
    /// # Errors
    /// If the hub does not answer or refuses the query.
    pub fn ask<T: DeserializeOwned>(
        &self,
        what: &str,
        range: TimeRange,
        pairs: &[(&str, &str)],
    ) -> Result<T, Error> {
        let mut request = self.agent.get(format!("{}/hub/v1/{what}", self.url));
        request = request.header("Authorization", format!("Bearer {}", self.token));
        for (key, second) in [("since", range.since), ("until", range.until)] {
            request = request.query(key, second.to_string());
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
            let text = String::from_utf8_lossy(&bytes);
            return Err(failed(format!("{}: {}", answer.status(), text.trim())).into());
        }
        let parsed = serde_json::from_slice(&bytes);
        parsed.map_err(|error| failed(format!("unexpected answer: {error}")).into())
    }
}

impl HubGroup {
    /// Returns the member of a dimension, or an empty text.
    pub fn member(&self, dimension: &str) -> &str {
        self.members.get(dimension).map_or("", String::as_str)
    }

    /// Returns the hours of allocated GPUs in which SMs were not active: at least, if unobserved
    /// time was active, and at most.
    pub fn lost_hours(&self) -> [f64; 2] {
        let part = |at: usize| self.parts.get(at).copied().unwrap_or(0.0) / HOUR_S;
        let idle = part(4) + part(6);
        [idle, idle + part(3) + part(5)]
    }
}
