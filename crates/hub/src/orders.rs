//! Trace orders: who ordered what, which agent has it, and what became of it.
//!
//! Each order is a folder of the store with the file `order.json`. An order is on disk before an
//! agent receives it, together with the queue of that agent, so that no other agent ever receives
//! it: an order is executed at most once. What agents report about it are rows of the table
//! `order`, which are read again at the start of the hub. [`uploads`] stores the traces, and
//! [`analysis`] analyzes them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow_array::{BinaryArray, StringArray};
use fleet::proto::{self, Body, Order, OrderState, SendOrder, Wanted};
use prost::Message;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::access::HubCaller;
use crate::active_runs::{ActiveRun, active_runs, is_named};
use crate::batch::CheckedBatch;
use crate::columns::RowTable;
use crate::error::Error;
use crate::log::say;
use crate::run_reports;
use crate::runs::RunState;
use crate::similar::{describe_similar, similar_names};
use crate::status::read_status;
use crate::store::{Partition, StoreFolder, column};
use crate::time::{DAY_S, describe_moment};
use crate::tokens::hexadecimal;

pub mod analysis;
pub mod finding_rows;
pub mod limits;
pub mod result;
pub mod samples;
#[cfg(test)]
mod tests;
pub mod uploads;

use limits::TraceLimits;
use result::TraceAnalysis;

/// Name of the file of an order in its folder.
const ORDER_FILE: &str = "order.json";
/// Seconds in which an agent must fetch an order.
const FETCH_S: u64 = 300;
/// Seconds after which an agent that fetched an order and reports no end is given up. Agents keep
/// traces for an hour.
const GIVEN_UP_S: u64 = 2 * 3600;
/// Time in milliseconds until the recording starts, and afterwards without progress.
const PATIENCE_MS: u64 = 120_000;
/// Largest number of hosts of one order.
const HOSTS_MAX: usize = 256;
/// Largest number of iterations that an order records.
const STEPS_MAX: u32 = 1000;
/// Multiple of iterations at which the ranks of several hosts start together, unless the order
/// names one.
const ALIGN_HOSTS: u32 = 100;

/// Seconds for which a run that has ended is explained in errors.
const KNOWN_S: u64 = 7 * DAY_S;
/// Why a host does not execute an order yet.
const NOT_ASKING: &str = "its agent has not asked for orders since the hub began; \
                          `verbs = [\"trace\"]` in [hub] of the agent's configuration lets it";

/// A periodic trace of an agent, and how much time of the workflow type it represents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampledTrace {
    /// Name under which the agent keeps the trace.
    pub kept: String,
    /// Time of the processes of the workflow type on the host since the trace before:
    /// sampling weight × recorded steps × step time.
    pub represents_ms: u64,
}

/// An order as its file stores it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HubOrder {
    /// Number of the order: the second of its creation, or the next free one.
    pub id: u64,
    /// Random name by which agents know the order, and which opens its report without a token.
    pub token: String,
    /// Name of the token of the person, or `watch`.
    pub by: String,
    /// The reason of the order.
    pub why: String,
    /// Scheduler and job of the run. If it is empty, all processes of the hosts are traced.
    pub run: String,
    pub workflow: String,
    pub user: String,
    pub hosts: Vec<OrderedHost>,
    pub created_unix_s: u64,
    /// Time after which no agent receives the order.
    pub expires_unix_s: u64,
    /// Time at which the run left the band of its history, for which the trace stands; `None` if
    /// the trace was ordered for another reason.
    pub left_band_unix_s: Option<u64>,
    pub steps: u32,
    /// The recording starts at the next multiple of this number of steps.
    pub align: u32,
    /// Largest size of one trace in bytes.
    pub size_max: u64,
    /// The periodic trace that the agent shall send; `None` if it shall take a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<SampledTrace>,
}

/// A host of an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderedHost {
    pub host: String,
    /// Queue of the agent that received the order, in hexadecimal digits.
    pub queue: Option<String>,
}

/// A wish for traces, before it is an order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OrderWish {
    /// The job, or scheduler and job.
    pub job: Option<String>,
    /// Restricts the order to one host.
    pub host: Option<String>,
    /// Number of steps to record; 5 if it is absent.
    pub steps: Option<u32>,
    pub align: Option<u32>,
    pub why: String,
    #[serde(skip)]
    pub left_band_unix_s: Option<u64>,
}

/// What became of an order on one host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostProgress {
    pub host: String,
    /// `waiting`, `sent`, `tracing`, `done`, `failed` or `expired`.
    pub state: &'static str,
    /// The reason if the host has no trace.
    pub reason: String,
    pub processes: Vec<ProcessProgress>,
}

/// What became of an order in one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProcessProgress {
    pub pid: u32,
    pub rank: Option<u32>,
    pub state: String,
    pub reason: String,
    /// Size of the trace in bytes; `None` if it does not exist yet.
    pub bytes: Option<u64>,
}

/// Why no order was created.
#[derive(Debug)]
pub enum OrderFailure {
    /// The wish is refused, with an HTTP status and a reason.
    Refused(u16, String),
    Store(Error),
}

impl From<Error> for OrderFailure {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

/// All orders that are kept.
pub struct OrderBoard {
    folder: Arc<StoreFolder>,
    pub limits: TraceLimits,
    kept: Mutex<KeptOrders>,
    /// Held while a part of a trace is written.
    upload: Mutex<()>,
    /// Changes with each new order, so that waiting requests for orders look again.
    news: watch::Sender<u64>,
}

/// The orders, what agents reported about them, and their analyses.
#[derive(Debug, Default)]
struct KeptOrders {
    orders: BTreeMap<u64, HubOrder>,
    /// Last state by the number of the order and the host.
    states: BTreeMap<(u64, String), OrderState>,
    analyses: BTreeMap<u64, TraceAnalysis>,
    /// Hosts whose agents have asked for orders since the hub began.
    asking: BTreeSet<String>,
    last_id: u64,
}

impl OrderBoard {
    /// Reads the orders of a store.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn open(folder: Arc<StoreFolder>, limits: TraceLimits) -> Result<Self, Error> {
        let mut kept = KeptOrders::default();
        for id in folder.order_ids()? {
            kept.last_id = id;
            let path = folder.order_path(id).join(ORDER_FILE);
            let bytes = fs::read(&path).map_err(Error::io(&path, "read"))?;
            match serde_json::from_slice::<HubOrder>(&bytes) {
                Ok(order) if order.id == id => drop(kept.orders.insert(id, order)),
                // A damaged file must not keep the hub from taking rows.
                _ => say(&format!("note: {}: expected an order; it is ignored", path.display())),
            }
            if let Some(analysis) = TraceAnalysis::read(&folder.order_path(id)) {
                kept.analyses.insert(id, analysis);
            }
        }
        let partition = Partition { hour: None, table: RowTable::Order.folder() };
        folder.read(partition, &["host", "message"], |batch, path| {
            let hosts: &StringArray = column(batch, "host", path)?;
            let messages: &BinaryArray = column(batch, "message", path)?;
            for row in 0..batch.num_rows() {
                if let Ok(state) = OrderState::decode(messages.value(row)) {
                    kept.note(hosts.value(row), state);
                }
            }
            Ok(())
        })?;
        let (kept, upload) = (Mutex::new(kept), Mutex::new(()));
        Ok(Self { folder, limits, kept, upload, news: watch::Sender::new(0) })
    }

    fn lock(&self) -> MutexGuard<'_, KeptOrders> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a channel that changes with each new order.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }

    /// Creates an order that a person wishes.
    ///
    /// # Errors
    /// If the wish is wrong, the person may not trace the run, or the budget is used up.
    pub fn order(
        &self,
        wish: &OrderWish,
        caller: &HubCaller,
        now_unix_s: u64,
    ) -> Result<HubOrder, OrderFailure> {
        let run = match &wish.job {
            Some(job) => self.find_run(job, wish.host.as_deref(), caller, now_unix_s)?,
            None => {
                let wrong = || OrderFailure::Refused(400, "expected a job or a host".to_owned());
                let hosts = BTreeSet::from([wish.host.clone().ok_or_else(wrong)?]);
                ActiveRun { hosts, ..ActiveRun::default() }
            }
        };
        if !caller.may_trace(&run.user) {
            let whose = match run.run.as_str() {
                "" => "all processes of a host".to_owned(),
                name => format!("the run {name} of {:?}", run.user),
            };
            let name = caller.grant.name();
            let reason = format!("expected a caller who may trace {whose}, got {name:?}");
            return Err(OrderFailure::Refused(403, reason));
        }
        if wish.job.is_none() {
            self.check_hosts(&run.hosts, now_unix_s)?;
        }
        self.create(wish, run, caller.grant.name(), now_unix_s)
    }

    /// Checks that hosts reported something within a day, or that their agents ask for orders.
    fn check_hosts(&self, hosts: &BTreeSet<String>, now_unix_s: u64) -> Result<(), OrderFailure> {
        let is_asking = |host: &&String| self.lock().asking.contains(*host);
        let silent: Vec<&String> = hosts.iter().filter(|host| !is_asking(host)).collect();
        if silent.is_empty() {
            return Ok(());
        }
        let statuses = read_status(&self.folder, &(now_unix_s.saturating_sub(DAY_S)..now_unix_s))?;
        let Some(host) = silent.into_iter().find(|host| !statuses.contains_key(*host)) else {
            return Ok(());
        };
        let similar = describe_similar(&similar_names(host, statuses.keys()));
        let reason =
            format!("host: expected a host with rows of the last day, got {host:?}{similar}");
        Err(OrderFailure::Refused(404, reason))
    }

    /// Finds the run that a person means, on one host or on all of its hosts.
    fn find_run(
        &self,
        job: &str,
        host: Option<&str>,
        caller: &HubCaller,
        now_unix_s: u64,
    ) -> Result<ActiveRun, OrderFailure> {
        let refused = |status, reason| Err(OrderFailure::Refused(status, reason));
        let mut found = active_runs(&self.folder, now_unix_s)?;
        found.retain(|run| is_named(&run.run, job));
        if found.len() > 1 {
            found.retain(|run| caller.may_trace(&run.user));
        }
        if found.len() > 1 {
            let names: Vec<String> =
                found.iter().map(|run| format!("{} of {}", run.run, run.user)).collect();
            return refused(400, format!("job: expected one of {}, got {job:?}", names.join(", ")));
        }
        let Some(mut run) = found.pop() else {
            let why = self.explain_missing_run(job, now_unix_s)?;
            return refused(404, format!("job: expected a run that lasts, got {job:?}{why}"));
        };
        if let Some(host) = host {
            if !run.hosts.contains(host) {
                let hosts: Vec<&str> = run.hosts.iter().map(String::as_str).take(8).collect();
                let hosts = hosts.join(", ");
                let reason = format!("host: expected a host of the run, such as {hosts}");
                return refused(400, format!("{reason}, got {host:?}"));
            }
            run.hosts = BTreeSet::from([host.to_owned()]);
        }
        Ok(run)
    }

    /// Explains why no lasting run has the name of a job, for the end of an error.
    fn explain_missing_run(&self, job: &str, now_unix_s: u64) -> Result<String, Error> {
        let since = now_unix_s.saturating_sub(KNOWN_S);
        let reports = run_reports::read_last(&self.folder, &(since..now_unix_s + DAY_S))?;
        let names: Vec<String> = reports.keys().cloned().collect();
        let known = reports.into_iter().find(|(run, _)| is_named(run, job));
        let Some((run, reports)) = known else {
            // A job without its scheduler is compared with jobs.
            let plain = |name: &String| match name.split_once('/') {
                Some((_, id)) if !job.contains('/') => id.to_owned(),
                _ => name.clone(),
            };
            let names: Vec<String> = names.iter().map(plain).collect();
            return Ok(describe_similar(&similar_names(job, &names)));
        };
        let ended = RunState::merge(reports).and_then(|state| state.ended_unix_s);
        Ok(match ended {
            Some(ended) => format!(": {run} ended at {}", describe_moment(ended)),
            None => format!(": no agent reports processes of {run} now"),
        })
    }

    /// Creates an order for a run that was found, without a check of permissions.
    ///
    /// # Errors
    /// If the wish is wrong or the budget is used up.
    pub fn create(
        &self,
        wish: &OrderWish,
        run: ActiveRun,
        by: &str,
        now_unix_s: u64,
    ) -> Result<HubOrder, OrderFailure> {
        let refused = |status, reason| Err(OrderFailure::Refused(status, reason));
        let steps = wish.steps.unwrap_or(5);
        if !(1..=STEPS_MAX).contains(&steps) {
            return refused(400, format!("steps: expected 1 to {STEPS_MAX}, got {steps}"));
        }
        let hosts = run.hosts.len();
        if !(1..=HOSTS_MAX).contains(&hosts) {
            return refused(400, format!("expected 1 to {HOSTS_MAX} hosts, got {hosts}"));
        }
        let align = wish.align.unwrap_or(if hosts == 1 { 1 } else { ALIGN_HOSTS });
        if align == 0 || wish.why.len() > 1024 {
            return refused(400, "expected a multiple from 1, and a short reason".to_owned());
        }
        let token = create_token()?;
        let mut kept = self.lock();
        let lately = kept.lately(now_unix_s).filter(|order| order.sample.is_none());
        let (count, most) = (lately.count(), self.limits.orders_per_day);
        if count >= most {
            return refused(
                429,
                format!("expected at most {most} orders in 24 hours, got {count}"),
            );
        }
        let id = now_unix_s.max(kept.last_id + 1);
        let order = HubOrder {
            id,
            token,
            by: by.to_owned(),
            why: wish.why.clone(),
            run: run.run,
            workflow: run.workflow,
            user: run.user,
            hosts: run.hosts.into_iter().map(|host| OrderedHost { host, queue: None }).collect(),
            created_unix_s: now_unix_s,
            expires_unix_s: now_unix_s + FETCH_S,
            left_band_unix_s: wish.left_band_unix_s,
            steps,
            align,
            size_max: self.limits.size_mib << 20,
            sample: None,
        };
        self.add(&mut kept, order.clone())?;
        Ok(order)
    }

    /// Stores a new order, and wakes the requests that wait for orders.
    fn add(&self, kept: &mut KeptOrders, order: HubOrder) -> Result<(), Error> {
        self.write(&order)?;
        kept.last_id = order.id;
        kept.orders.insert(order.id, order);
        self.news.send_modify(|count| *count += 1);
        Ok(())
    }

    fn write(&self, order: &HubOrder) -> Result<(), Error> {
        let path = self.folder.order_path(order.id).join(ORDER_FILE);
        let bytes = serde_json::to_vec_pretty(order).unwrap_or_default();
        self.folder.replace(&path, &bytes)
    }

    /// Whether orders wait for an agent.
    pub fn has_orders(&self, host: &str, queue: &[u8], after: u64, now_unix_s: u64) -> bool {
        let queue = hexadecimal(queue);
        let mut kept = self.lock();
        if !kept.asking.contains(host) {
            kept.asking.insert(host.to_owned());
        }
        kept.orders.range(after + 1..).any(|(_, order)| order.is_for(host, &queue, now_unix_s))
    }

    /// Returns the orders for an agent whose numbers are greater than `after`. They are marked as
    /// sent to its queue first.
    ///
    /// # Errors
    /// If an order cannot be marked. It stays for the next request.
    pub fn take_orders(
        &self,
        host: &str,
        queue: &[u8],
        after: u64,
        now_unix_s: u64,
    ) -> Result<Vec<Order>, Error> {
        let queue = hexadecimal(queue);
        let mut kept = self.lock();
        let mut orders = Vec::new();
        for order in kept.orders.range_mut(after + 1..).map(|(_, order)| order) {
            if !order.is_for(host, &queue, now_unix_s) {
                continue;
            }
            let mut marked = order.clone();
            for one in marked.hosts.iter_mut().filter(|one| one.host == host) {
                one.queue = Some(queue.clone());
            }
            if marked != *order {
                self.write(&marked)?;
                *order = marked;
            }
            orders.push(Order { id: order.id, wanted: Some(order.message()) });
        }
        Ok(orders)
    }

    /// Returns the states of orders in a batch, which [`Self::note`] adds once they are stored.
    pub fn states(batch: &CheckedBatch) -> Vec<OrderState> {
        let state = |body: &Body| match body {
            Body::Order(state) => Some(state.clone()),
            _ => None,
        };
        batch.entries.iter().filter_map(|entry| state(&entry.body)).collect()
    }

    /// Adds states of orders that an agent reported.
    pub fn note(&self, host: &str, states: Vec<OrderState>) {
        if !states.is_empty() {
            let mut kept = self.lock();
            states.into_iter().for_each(|state| kept.note(host, state));
        }
    }

    /// Returns the orders since a time, newest first.
    pub fn list(&self, since_unix_s: u64) -> Vec<HubOrder> {
        let kept = self.lock();
        let orders = kept.orders.values().rev();
        orders.filter(|order| order.created_unix_s >= since_unix_s).cloned().collect()
    }

    /// Returns an order by its number.
    pub fn find(&self, id: u64) -> Option<HubOrder> {
        self.lock().orders.get(&id).cloned()
    }

    /// Returns what became of an order on each of its hosts.
    pub fn progress(&self, order: &HubOrder, now_unix_s: u64) -> Vec<HostProgress> {
        let kept = self.lock();
        order.hosts.iter().map(|host| kept.progress(order, host, now_unix_s)).collect()
    }

    /// Returns the analysis of the traces of an order, once it has ended.
    pub fn analysis(&self, id: u64) -> Option<TraceAnalysis> {
        self.lock().analyses.get(&id).cloned()
    }

    /// Removes the orders and traces whose time has ended.
    ///
    /// # Errors
    /// If a folder cannot be removed.
    pub fn remove_old(&self, now_unix_s: u64) -> Result<(), Error> {
        let before = now_unix_s.saturating_sub(self.limits.kept.as_secs());
        let mut kept = self.lock();
        let old: Vec<u64> = kept.orders.range(..before).map(|(id, _)| *id).collect();
        for id in old {
            self.folder.remove_order(id)?;
            kept.orders.remove(&id);
            kept.analyses.remove(&id);
            kept.states.retain(|(order, _), _| *order != id);
        }
        Ok(())
    }
}

impl HubOrder {
    /// Whether an agent shall receive the order: within its time, and unless another queue of the
    /// host received it.
    fn is_for(&self, host: &str, queue: &str, now_unix_s: u64) -> bool {
        let is_its = |one: &OrderedHost| {
            one.host == host && one.queue.as_ref().is_none_or(|known| known == queue)
        };
        now_unix_s <= self.expires_unix_s && self.hosts.iter().any(is_its)
    }

    fn message(&self) -> Wanted {
        let token = self.token.clone();
        if let Some(sample) = &self.sample {
            return Wanted::Send(SendOrder { token, kept: sample.kept.clone() });
        }
        Wanted::Trace(proto::TraceOrder {
            token,
            run: (!self.run.is_empty()).then(|| self.run.clone()),
            iterations: self.steps,
            align: self.align,
            size_max: self.size_max,
            patience_ms: PATIENCE_MS,
            ..proto::TraceOrder::default()
        })
    }
}

/// Creates the random name of an order.
fn create_token() -> Result<String, Error> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(Error::from)?;
    Ok(format!("hub-{}", hexadecimal(&random)))
}

impl KeptOrders {
    /// Returns the orders of the last 24 hours.
    fn lately(&self, now_unix_s: u64) -> impl Iterator<Item = &HubOrder> {
        self.orders.values().filter(move |order| order.created_unix_s + DAY_S > now_unix_s)
    }

    /// Adds a state that a host reported, unless another host or another order has its number.
    fn note(&mut self, host: &str, state: OrderState) {
        let Some(order) = self.orders.get(&state.id) else { return };
        let is_its = state.token == order.token && order.hosts.iter().any(|one| one.host == host);
        let key = (state.id, host.to_owned());
        if is_its && self.states.get(&key).is_none_or(|last| !last.is_over) {
            self.states.insert(key, state);
        }
    }

    fn progress(&self, order: &HubOrder, host: &OrderedHost, now_unix_s: u64) -> HostProgress {
        let state = self.states.get(&(order.id, host.host.clone()));
        let has_trace = |state: &OrderState| state.processes.iter().any(|one| one.file.is_some());
        let (word, reason) = match state {
            Some(state) if !state.is_over => ("tracing", String::new()),
            Some(state) if has_trace(state) => ("done", String::new()),
            Some(state) if state.error.is_empty() => {
                let reasons = state.processes.iter().map(|one| one.reason.as_str());
                (
                    "failed",
                    reasons.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join("; "),
                )
            }
            Some(state) => ("failed", state.error.clone()),
            None if host.queue.is_some() => ("sent", String::new()),
            None if now_unix_s > order.expires_unix_s => {
                ("expired", "no agent of this host asked for orders in time".to_owned())
            }
            None if self.asking.contains(&host.host) => ("waiting", String::new()),
            None => ("waiting", NOT_ASKING.to_owned()),
        };
        let is_given_up =
            matches!(word, "sent" | "tracing") && now_unix_s > order.created_unix_s + GIVEN_UP_S;
        let (state_word, reason) = if is_given_up {
            ("failed", "the agent reports no end".to_owned())
        } else {
            (word, reason)
        };
        let process = |one: &proto::ProcessState| ProcessProgress {
            pid: one.pid,
            rank: one.rank,
            state: one.state.clone(),
            reason: one.reason.clone(),
            bytes: one.file.as_ref().map(|file| file.bytes),
        };
        HostProgress {
            host: host.host.clone(),
            state: state_word,
            reason,
            processes: state.iter().flat_map(|state| state.processes.iter().map(process)).collect(),
        }
    }
}

impl HostProgress {
    /// Whether nothing more will happen.
    pub fn is_over(&self) -> bool {
        matches!(self.state, "done" | "failed" | "expired")
    }
}
