//! Sends the sums of each minute to Prometheus, VictoriaMetrics or an OpenTelemetry collector.
//!
//! The files of the store are the queue: a thread for each target reads a minute from them when it
//! is over, and goes on when the target has taken it. A slow target therefore costs no memory and
//! delays no agent. [`target`] is its configuration; [`remote_write`] and
//! [`otlp`] encode the same samples.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fleet::untrusted::{Privacy, read_trusted};

use crate::aggregate::MINUTE_S;
use crate::config::Pools;
use crate::error::Error;
use crate::grouping::SumQuery;
use crate::log::say;
use crate::store::StoreFolder;
use crate::sums::FleetSums;
use crate::{rollup, tls};

pub mod otlp;
pub mod remote_write;
pub mod sample;
pub mod target;

use sample::{EncodedSamples, GroupMinute};
use target::{AGE_MAX_S, BY, OutwardProtocol, OutwardTarget};

/// Name of the workflow and user of the groups beyond the limit.
const OTHERS: &str = "(others)";
/// Largest number of groups of one request.
const REQUEST_GROUPS: usize = 500;
/// Largest number of seconds that are computed at a time.
const READ_S: u64 = 10 * MINUTE_S;
/// Timeout of a request.
const PATIENCE: Duration = Duration::from_secs(20);
const BACKOFF_MIN: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(60);
/// Interval at which the thread checks whether the hub is ending.
const TICK: Duration = Duration::from_millis(200);
/// Largest number of bytes of an answer that are read.
const ANSWER_MAX: u64 = 4096;

/// What has been sent to a target since the start of the hub.
#[derive(Debug, Default)]
pub struct OutwardCounters {
    pub samples_sent: AtomicU64,
    /// Samples that the target refused.
    pub samples_refused: AtomicU64,
    /// Minutes that were left out because the target was away for too long.
    pub minutes_skipped: AtomicU64,
    /// Attempts that failed and are repeated.
    pub failures: AtomicU64,
    /// End of the last minute that was sent, in seconds since 1970.
    pub through_unix_s: AtomicU64,
}

/// Sends the sums of a store to one target.
pub struct OutwardSender {
    target: OutwardTarget,
    token: Option<String>,
    client: ureq::Agent,
    folder: Arc<StoreFolder>,
    pools: Pools,
    counters: Arc<OutwardCounters>,
    stop: Arc<AtomicBool>,
}

/// Why samples were not taken.
enum SendProblem {
    /// The target will never take these samples.
    Refused(String),
    /// The target may take them later, at the earliest after this time.
    Away(String, Option<Duration>),
}

impl OutwardSender {
    /// Reads the token and the certificates of a target.
    ///
    /// # Errors
    /// If a file cannot be used.
    pub fn new(
        target: OutwardTarget,
        folder: Arc<StoreFolder>,
        pools: Pools,
        stop: Arc<AtomicBool>,
    ) -> Result<Self, Error> {
        let token = match &target.token_file {
            None => None,
            Some(path) => {
                let bytes = read_trusted(path, Privacy::Secret)
                    .map_err(|source| Error::File { key: "outward: token_file", source })?;
                Some(String::from_utf8_lossy(&bytes).trim().to_owned())
            }
        };
        let client = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_global(Some(PATIENCE))
            .tls_config(tls::trust(target.ca.as_deref(), "outward: ca")?)
            .build()
            .new_agent();
        let counters = Arc::default();
        Ok(Self { target, token, client, folder, pools, counters, stop })
    }

    /// Returns the URL and the counters of the target.
    pub fn counters(&self) -> (String, Arc<OutwardCounters>) {
        (self.target.url.clone(), Arc::clone(&self.counters))
    }

    /// Starts the thread, which ends soon after `stop` is set. `states` is the folder in which the
    /// hub keeps how far each target is.
    ///
    /// # Errors
    /// If the operating system cannot start a thread.
    pub fn start(self, states: PathBuf) -> std::io::Result<JoinHandle<()>> {
        let builder = thread::Builder::new().name("outward".to_owned());
        builder.spawn(move || self.send_minutes(&states))
    }

    fn send_minutes(&self, states: &Path) {
        let state = states.join(state_name(&self.target.url));
        let ready = || unix_s().saturating_sub(self.target.delay_s) / MINUTE_S * MINUTE_S;
        let mut next = read_state(&state).unwrap_or_else(ready);
        let mut was_failing = false;
        while !self.stop.load(Ordering::SeqCst) {
            let (ready, oldest) = (ready(), self.oldest());
            if next < oldest {
                self.counters
                    .minutes_skipped
                    .fetch_add((oldest - next) / MINUTE_S, Ordering::Relaxed);
                next = oldest;
            }
            if next >= ready {
                self.pause(TICK);
                continue;
            }
            let until = ready.min(next + READ_S);
            let groups = match self.read_groups(next, until) {
                Ok(groups) => groups,
                Err(error) => {
                    say(&format!("note: sums are not sent to {}: {error}", self.target.url));
                    self.pause(BACKOFF_MAX);
                    continue;
                }
            };
            for minute in (next..until).step_by(MINUTE_S as usize) {
                let of_minute = groups.get(&minute).map_or(&[][..], Vec::as_slice);
                let is_sent = of_minute
                    .chunks(REQUEST_GROUPS)
                    .all(|chunk| self.deliver(minute, chunk, &mut was_failing));
                if !is_sent {
                    break;
                }
                next = minute + MINUTE_S;
                self.counters.through_unix_s.store(next, Ordering::Relaxed);
                // Without the file, a restarted hub begins with the current minute.
                let _ = write_state(&state, next);
            }
        }
    }

    /// Returns the first minute that is not too old.
    fn oldest(&self) -> u64 {
        unix_s().saturating_sub(AGE_MAX_S).div_ceil(MINUTE_S) * MINUTE_S
    }

    /// Computes the groups of each minute.
    fn read_groups(
        &self,
        since: u64,
        until: u64,
    ) -> Result<BTreeMap<u64, Vec<GroupMinute>>, Error> {
        let mut query = SumQuery::group(&BY, Some(MINUTE_S));
        query.range = since..until;
        let mut minutes: BTreeMap<u64, Vec<([String; 4], FleetSums)>> = BTreeMap::new();
        for ((start, key), sums) in rollup::query(&self.folder, &self.pools, &query)?.sums {
            let members = BY.map(|dimension| key.member(dimension).to_owned());
            minutes.entry(start).or_default().push((members, sums));
        }
        let groups = minutes.into_iter().map(|(start, groups)| {
            let groups = limit_groups(groups, self.target.groups_max).into_iter();
            let groups = groups.map(|(members, sums)| GroupMinute {
                start_unix_s: start,
                labels: self.label(members),
                sums,
            });
            (start, groups.collect())
        });
        Ok(groups.collect())
    }

    fn label(&self, members: [String; 4]) -> Vec<(String, String)> {
        let own = BY.iter().map(|dimension| dimension.name().to_owned()).zip(members);
        let further = self.target.labels.iter().map(|(name, value)| (name.clone(), value.clone()));
        let mut labels: Vec<_> =
            own.chain(further).filter(|(_, value)| !value.is_empty()).collect();
        labels.sort();
        labels
    }

    /// Sends samples until the target takes or refuses them. Returns whether the next ones may
    /// follow: not if the hub is ending or the samples have become too old.
    fn deliver(&self, minute: u64, groups: &[GroupMinute], was_failing: &mut bool) -> bool {
        let encoded = match self.target.protocol {
            OutwardProtocol::RemoteWrite => remote_write::encode(groups),
            OutwardProtocol::Otlp => otlp::encode(groups),
        };
        let samples = (groups.len() * FleetSums::NAMES.len()) as u64;
        let mut backoff = BACKOFF_MIN;
        let url = &self.target.url;
        while !self.stop.load(Ordering::SeqCst) && minute >= self.oldest() {
            let (reason, wait) = match self.post(&encoded) {
                Ok(refused) => {
                    self.counters.samples_sent.fetch_add(samples - refused, Ordering::Relaxed);
                    self.counters.samples_refused.fetch_add(refused, Ordering::Relaxed);
                    if std::mem::take(was_failing) {
                        say(&format!("sums are sent to {url} again"));
                    }
                    return true;
                }
                Err(SendProblem::Refused(reason)) => {
                    self.counters.samples_refused.fetch_add(samples, Ordering::Relaxed);
                    if !std::mem::replace(was_failing, true) {
                        say(&format!("error: {url} refuses sums: {reason}"));
                    }
                    return true;
                }
                Err(SendProblem::Away(reason, wait)) => (reason, wait),
            };
            self.counters.failures.fetch_add(1, Ordering::Relaxed);
            if !std::mem::replace(was_failing, true) {
                say(&format!("note: sums wait for {url}: {reason}"));
            }
            self.pause(wait.map_or(backoff, |wait| wait.clamp(backoff, BACKOFF_MAX)));
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
        false
    }

    /// Sends one request. Returns how many samples of it were refused.
    fn post(&self, encoded: &EncodedSamples) -> Result<u64, SendProblem> {
        let away = |error: ureq::Error| SendProblem::Away(error.to_string(), None);
        let mut request = self.client.post(&self.target.url);
        for (name, value) in encoded.headers {
            request = request.header(*name, *value);
        }
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let mut answer = request.send(&encoded.body).map_err(away)?;
        let status = answer.status().as_u16();
        let wait = answer.headers().get("Retry-After").and_then(|value| value.to_str().ok());
        let wait = wait.and_then(|value| value.parse().ok()).map(Duration::from_secs);
        let body = answer.body_mut().with_config().limit(ANSWER_MAX).read_to_vec();
        let body = body.unwrap_or_default();
        if (200..300).contains(&status) {
            return Ok(match self.target.protocol {
                OutwardProtocol::RemoteWrite => 0,
                OutwardProtocol::Otlp => otlp::count_refused(&body),
            });
        }
        let text = String::from_utf8_lossy(&body);
        let reason = format!("status {status}: {}", text.lines().next().unwrap_or_default());
        // An expired token is replaced by a person, after which the samples are welcome again.
        match status {
            401 | 403 | 404 | 408 | 429 | 500.. => Err(SendProblem::Away(reason, wait)),
            _ => Err(SendProblem::Refused(reason)),
        }
    }

    /// Waits, unless the hub is ending.
    fn pause(&self, length: Duration) {
        let mut left = length;
        while !left.is_zero() && !self.stop.load(Ordering::SeqCst) {
            let part = left.min(TICK);
            thread::sleep(part);
            left -= part;
        }
    }
}

/// Keeps the groups with most allocated time, and adds up the others by pool and model.
fn limit_groups(
    mut groups: Vec<([String; 4], FleetSums)>,
    limit: usize,
) -> Vec<([String; 4], FleetSums)> {
    if groups.len() <= limit {
        return groups;
    }
    groups.sort_by(|(_, a), (_, b)| b.allocated_s.total_cmp(&a.allocated_s));
    let mut others: BTreeMap<[String; 4], FleetSums> = BTreeMap::new();
    for ([pool, model, ..], sums) in groups.split_off(limit) {
        let members = [pool, model, OTHERS.to_owned(), OTHERS.to_owned()];
        others.entry(members).or_default().merge(&sums);
    }
    groups.extend(others);
    groups
}

/// Returns the name of the file with the state of a target.
fn state_name(url: &str) -> String {
    let letter = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '_' };
    url.chars().map(letter).collect()
}

fn read_state(path: &Path) -> Option<u64> {
    let second: u64 = std::fs::read_to_string(path).ok()?.trim().parse().ok()?;
    (second <= unix_s()).then_some(second / MINUTE_S * MINUTE_S)
}

fn write_state(path: &Path, next: u64) -> std::io::Result<()> {
    let temporary = path.with_extension("new");
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(&temporary, format!("{next}\n"))?;
    std::fs::rename(&temporary, path)
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::{OTHERS, limit_groups};
    use crate::sums::FleetSums;

    #[test]
    fn groups_beyond_the_limit_are_added_up() {
        let group = |user: &str, allocated_s: f64| {
            let members = ["p", "m", "w", user].map(str::to_owned);
            (members, FleetSums { allocated_s, ..FleetSums::default() })
        };
        let groups = vec![group("a", 1.0), group("b", 5.0), group("c", 2.0)];
        assert_eq!(limit_groups(groups.clone(), 3), groups);
        let limited = limit_groups(groups, 1);
        let named: Vec<_> =
            limited.iter().map(|(members, sums)| (&*members[3], sums.allocated_s)).collect();
        assert_eq!(named, [("b", 5.0), (OTHERS, 3.0)]);
    }
}
