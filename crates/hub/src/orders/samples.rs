//! Fetches periodic traces from agents, within a budget for each day.
//!
//! Agents sample the steps of every workflow type and keep these traces on their hosts. Each one is
//! announced by an event `trace`. The hub then orders some of them: an order of this kind names a
//! kept trace instead of a run to trace, and is otherwise like those of people.

use std::collections::BTreeMap;

use fleet::proto::{Body, HostEvent};
use serde::Deserialize;

use super::{FETCH_S, HubOrder, OrderBoard, OrderedHost, STEPS_MAX, SampledTrace, create_token};
use crate::batch::CheckedBatch;
use crate::error::Error;
use crate::events::read_events;
use crate::grouping::SumQuery;
use crate::store::StoreFolder;
use crate::sums::Dimension;
use crate::tokens::hexadecimal;

/// The name under which the hub orders periodic traces, in place of a person's.
const WHO: &str = "periodic";
/// Largest length of the name of a kept trace in bytes.
const NAME_MAX: usize = 64;
/// Longest time in seconds that one trace may represent: a day of 1,000 processes.
const REPRESENTS_MAX_S: f64 = 86_400.0 * 1000.0;

/// The details of an event `trace`. The event of a lost trace has none of these fields.
#[derive(Debug, Deserialize)]
struct TraceDetails {
    token: String,
    workflow: String,
    steps: u32,
    weight: f64,
    step_ns_before: f64,
    file: FileDetails,
}

/// What the event says about the file of the trace.
#[derive(Debug, Deserialize)]
struct FileDetails {
    bytes: u64,
}

/// A periodic trace that an agent announces.
#[derive(Clone, Debug, PartialEq)]
pub struct Announcement {
    pub workflow: String,
    pub sample: SampledTrace,
    /// Number of recorded steps.
    steps: u32,
    bytes: u64,
}

impl Announcement {
    /// Reads the details of an event `trace`. Returns `None` for a lost trace, and for values that
    /// no agent sends.
    pub fn parse(details: &str) -> Option<Self> {
        let details: TraceDetails = serde_json::from_str(details).ok()?;
        let TraceDetails { token: kept, workflow, steps, weight, step_ns_before, file } = details;
        let represents_s = weight * f64::from(steps) * step_ns_before * 1e-9;
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        let is_valid = (1..=NAME_MAX).contains(&kept.len())
            && kept.bytes().all(is_name)
            && (1..=STEPS_MAX).contains(&steps)
            && (1e-3..=REPRESENTS_MAX_S).contains(&represents_s);
        let represents_ms = (represents_s * 1e3) as u64;
        let sample = SampledTrace { kept, represents_ms };
        is_valid.then_some(Self { workflow, sample, steps, bytes: file.bytes })
    }
}

impl OrderBoard {
    /// Returns the events of a batch that announce periodic traces, with the queue of their agent.
    pub fn announcements(batch: &CheckedBatch) -> Vec<(String, HostEvent)> {
        let event = |body: &Body| match body {
            Body::Event(event) if event.kind == "trace" => Some(event.as_ref().clone()),
            _ => None,
        };
        let entries = batch.entries.iter();
        entries.filter_map(|entry| Some((hexadecimal(&entry.queue), event(&entry.body)?))).collect()
    }

    /// Orders the announced traces for which the budget of the last 24 hours has room. Traces of
    /// hosts whose agents accept no orders are left out.
    ///
    /// # Errors
    /// If an order cannot be stored.
    pub fn fetch_samples(
        &self,
        host: &str,
        announced: Vec<(String, HostEvent)>,
        now_unix_s: u64,
    ) -> Result<(), Error> {
        for (queue, event) in announced {
            let Some(announcement) = Announcement::parse(&event.details) else { continue };
            let run = event.run.unwrap_or_default();
            let order = HubOrder {
                id: 0,
                token: create_token()?,
                by: WHO.to_owned(),
                why: "a sample of the steps of its workflow type".to_owned(),
                run: if run.job.is_empty() {
                    String::new()
                } else {
                    format!("{}/{}", run.scheduler, run.job)
                },
                workflow: if run.name.is_empty() { announcement.workflow } else { run.name },
                user: run.user,
                hosts: vec![OrderedHost { host: host.to_owned(), queue: Some(queue) }],
                created_unix_s: now_unix_s,
                expires_unix_s: now_unix_s + FETCH_S,
                left_band_unix_s: None,
                steps: announcement.steps,
                align: 1,
                size_max: self.limits.size_mib << 20,
                sample: Some(announcement.sample),
            };
            let mut kept = self.lock();
            let lately = || kept.lately(now_unix_s).filter(|known| known.sample.is_some());
            let is_same = |known: &&HubOrder| {
                (&known.workflow, &known.user) == (&order.workflow, &order.user)
            };
            // The agent sends a batch again if the answer was lost.
            let is_known = lately().any(|known| {
                known.sample == order.sample && known.hosts[0].host == order.hosts[0].host
            });
            let has_room = lately().count() < self.limits.periodic_per_day
                && lately().filter(is_same).count() < self.limits.periodic_per_workflow
                && (1..=order.size_max).contains(&announcement.bytes);
            if is_known || !has_room || !kept.asking.contains(host) {
                continue;
            }
            let id = now_unix_s.max(kept.last_id + 1);
            self.add(&mut kept, HubOrder { id, ..order })?;
        }
        Ok(())
    }
}

/// Adds up the time in seconds that all announced traces represent, by workflow type and user, for
/// the time and selection of a query. Only some of these traces were fetched.
///
/// # Errors
/// If a file cannot be read.
pub fn read_represented(
    folder: &StoreFolder,
    query: &SumQuery,
) -> Result<BTreeMap<(String, String), f64>, Error> {
    let mut represented = BTreeMap::new();
    read_events(folder, "trace", &query.range, |event| {
        let announced = Announcement::parse(event.details);
        let Some(announced) = announced.filter(|_| query.range.contains(&event.start_unix_s))
        else {
            return;
        };
        let workflow = if event.name.is_empty() { announced.workflow.as_str() } else { event.name };
        let members = [
            (Dimension::Run, event.run.as_str()),
            (Dimension::Workflow, workflow),
            (Dimension::User, event.user),
        ];
        if query.selects(&members) {
            let key = (workflow.to_owned(), event.user.to_owned());
            *represented.entry(key).or_default() += announced.sample.represents_ms as f64 * 1e-3;
        }
    })?;
    Ok(represented)
}
