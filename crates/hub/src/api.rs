//! The questions that viewers ask over HTTP, and their answers as JSON: the sums of any selection,
//! the faults of its GPUs, its runs, and its hosts with what should be mended on them. The server
//! checks who asks.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use chrono::{NaiveDate, NaiveDateTime};
use serde::Serialize;
use serde::de::value::{Error as NameError, StrDeserializer};
use serde::de::{Deserialize, IntoDeserializer};

use crate::aggregate::MINUTE_S;
use crate::attempts::{RunAttempt, read_attempts};
use crate::config::{HubFile, Pools, parse_time};
use crate::error::Error;
use crate::faults::{self, GpuFault};
use crate::grouping::{BucketSums, SumQuery};
use crate::kept::hours_within;
use crate::log_links::LogLinks;
use crate::nodes::NodeState;
use crate::runs::{self, RunState};
use crate::status::{HostIssue, HostVersions, read_status};
use crate::store::{HOUR_S, StoreFolder};
use crate::sums::{Dimension, FleetSums, LAYERS, PART_COUNT, SumKey};
use crate::time::{describe_moment, unix_now};
use crate::trees::ResourceTree;
use crate::weights::{GpuModels, GpuWeight};
use crate::{host_faults, rollup, status, steps};

/// Number of groups of an answer if the query names no limit.
const LIMIT: usize = 1000;
/// Length of the time of a query that names none.
const SINCE_S: u64 = 86_400;
/// Largest number of steps of time of a query.
const STEPS_MAX: u64 = 20_000;

/// What answers are computed from.
pub struct FleetReader {
    folder: Arc<StoreFolder>,
    pools: Pools,
    models: GpuModels,
    logs: Option<LogLinks>,
}

/// A query with its unit and the largest number of groups of its answer.
#[derive(Debug)]
pub struct FleetQuery {
    pub sums: SumQuery,
    /// Whether the query names the begin and the end of its time.
    pub has_since: bool,
    pub has_until: bool,
    pub weight: GpuWeight,
    pub limit: usize,
}

/// The sums of a selection.
#[derive(Debug, Serialize)]
pub struct SumAnswer {
    pub since_unix_s: u64,
    pub until_unix_s: u64,
    pub step_s: Option<u64>,
    pub tree: ResourceTree,
    pub weight: GpuWeight,
    /// Unit of all sums and parts.
    pub unit: &'static str,
    /// Models whose weight is unknown. Their time is left out.
    pub unknown_weight: BTreeSet<String>,
    /// Whole hours of the time, until now, that the answer lacks: no host reported rows, or the
    /// rows were deleted.
    pub hours_missing: u64,
    /// Names of the layers, from the deployed resources to the active ones.
    pub layer_names: [&'static str; LAYERS],
    /// Names of the parts of each group.
    pub part_names: [&'static str; PART_COUNT],
    /// What the figures of this tree do not show.
    pub note: Option<&'static str>,
    pub total: SumGroup,
    /// The groups, by time and then by their allocated time in all.
    pub groups: Vec<SumGroup>,
    /// Number of groups beyond the limit, of which none of the steps is listed.
    pub groups_left_out: usize,
    /// The sums of the groups that were left out, of each step.
    pub others: Vec<SumGroup>,
}

/// The sums of one group.
#[derive(Debug, Default, Serialize)]
pub struct SumGroup {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_unix_s: Option<u64>,
    #[serde(flatten)]
    pub members: BTreeMap<Dimension, String>,
    pub sums: FleetSums,
    pub parts: [f64; PART_COUNT],
    /// The parts in percent, which add up to 100.0.
    pub percent: Option<[f64; PART_COUNT]>,
    /// Share of the allocated time in which SMs were active: at least and at most.
    pub efficiency: Option<[f64; 2]>,
    /// Occupancy of SMs over elapsed cycles, where it was observed.
    pub occupancy: Option<f64>,
}

/// The faults of a selection.
#[derive(Debug, Serialize)]
pub struct FaultAnswer {
    pub since_unix_s: u64,
    pub until_unix_s: u64,
    pub faults: Vec<GpuFault>,
}

/// The runs of a selection that held GPUs or had processes in a time.
#[derive(Debug, Serialize)]
pub struct RunAnswer {
    pub since_unix_s: u64,
    pub until_unix_s: u64,
    pub unit: &'static str,
    pub hours_missing: u64,
    /// Allocated time of runs that had failed by the end of the time, and of runs that repeat a
    /// failed one. Both contain the repeated runs that failed again.
    pub failed: f64,
    pub repeated: f64,
    /// The runs with the largest allocated time, which come first.
    pub runs: Vec<RunRow>,
    pub runs_left_out: usize,
}

/// A run with its sums in the time of the query.
#[derive(Debug, Serialize)]
pub struct RunRow {
    #[serde(flatten)]
    pub group: SumGroup,
    #[serde(flatten)]
    pub state: RunState,
    /// Attempts of the job after which it was started again, which had a part of the sums.
    pub attempts: Vec<RunAttempt>,
    /// URL of the logs of the run, if the configuration has one.
    pub log_url: Option<String>,
    /// Steps per second of a process; known for runs without GPUs only.
    pub steps_per_s: Option<f64>,
}

/// The hosts of a selection.
#[derive(Debug, Serialize)]
pub struct HostAnswer {
    pub since_unix_s: u64,
    pub until_unix_s: u64,
    /// Hosts with issues come first, and those that lost most before others.
    pub hosts: Vec<HostRow>,
}

/// A host with what should be mended on it.
#[derive(Debug, Serialize)]
pub struct HostRow {
    pub host: String,
    pub issues: Vec<HostIssue>,
    /// GPU hours that the host lost at most: allocated without active SMs, not schedulable,
    /// throttled, or silent until now.
    pub lost_gpu_hours: f64,
    /// End of the last interval with a row of the host, in seconds since 1970.
    pub last_row_unix_s: Option<u64>,
    pub versions: HostVersions,
    pub node: Option<NodeState>,
}

/// What the GPUs of a host lost in a time.
#[derive(Clone, Copy, Debug, Default)]
struct HostLoss {
    /// GPU seconds that were not schedulable, or allocated without active SMs.
    lost_s: f64,
    /// Number of GPUs, by the hour with the most rows.
    gpus: f64,
}

impl FleetQuery {
    /// Parses the pairs of a query string. Unknown keys are refused.
    ///
    /// # Errors
    /// The reason if a key or a value is wrong.
    pub fn parse(pairs: &[(String, String)]) -> Result<Self, String> {
        let now = unix_now();
        let (mut since, mut until) = (None, None);
        let mut sums = SumQuery::group(&[], None);
        let (mut weight, mut limit) = (GpuWeight::default(), LIMIT);
        for (key, value) in pairs {
            let wrong = |expected: &str| format!("{key}: expected {expected}, got {value:?}");
            match key.as_str() {
                "since" => since = Some(value),
                "until" => until = Some(parse_moment(value, now).map_err(|text| wrong(&text))?),
                "by" => drop(sums.by.insert(parse_name(value).map_err(|text| wrong(&text))?)),
                "step" => {
                    sums.step_s = Some(match value.as_str() {
                        "minute" => 60,
                        "hour" => HOUR_S,
                        "day" => 86_400,
                        _ => return Err(wrong("minute, hour or day")),
                    });
                }
                "tree" => sums.tree = parse_name(value).map_err(|text| wrong(&text))?,
                "weight" => weight = parse_name(value).map_err(|text| wrong(&text))?,
                "limit" => limit = value.parse().map_err(|_| wrong("a number"))?,
                _ => {
                    let dimension = parse_name(key).map_err(|text| {
                        format!(
                            "{key}: expected since, until, by, step, tree, weight, limit, or {text}"
                        )
                    })?;
                    sums.selection.entry(dimension).or_default().insert(value.clone());
                }
            }
        }
        check_tree(&sums, weight)?;
        let (has_since, has_until) = (since.is_some(), until.is_some());
        let until = until.unwrap_or(now);
        // Sums begin and end with whole minutes, so the answer names whole minutes too.
        let end = until.div_ceil(MINUTE_S).saturating_mul(MINUTE_S);
        let since = match since {
            None => end.saturating_sub(SINCE_S),
            Some(text) => parse_moment(text, end)
                .map_err(|expected| format!("since: expected {expected}, got {text:?}"))?,
        };
        if until > now + SINCE_S {
            let got = describe_moment(until);
            return Err(format!("until: expected a time of at most a day from now, got {got}"));
        }
        if since >= until {
            let [since, until] = [since, until].map(describe_moment);
            return Err(format!("since: expected a time before `until`, {until}, got {since}"));
        }
        sums.range = since / MINUTE_S * MINUTE_S..end;
        let steps = sums.step_s.map_or(1, |step_s| (end - sums.range.start).div_ceil(step_s));
        if steps > STEPS_MAX {
            return Err(format!("step: expected at most {STEPS_MAX} steps, got {steps}"));
        }
        Ok(Self { sums, has_since, has_until, weight, limit })
    }

    /// Checks that a query is about GPUs, because only their sums have runs and faults.
    ///
    /// # Errors
    /// The reason if it is about another tree.
    pub fn check_gpus(&self) -> Result<(), String> {
        match self.sums.tree {
            ResourceTree::Gpu => Ok(()),
            ResourceTree::Cpu => {
                Err("tree: expected gpu, because only sums have others".to_owned())
            }
        }
    }
}

/// Checks that the resources of a query have its dimensions and its weight.
fn check_tree(sums: &SumQuery, weight: GpuWeight) -> Result<(), String> {
    let known = sums.tree.description().dimensions;
    let mut used = sums.by.iter().chain(sums.selection.keys());
    if let Some(other) = used.find(|dimension| !known.contains(dimension)) {
        let names: Vec<&str> = known.iter().map(|dimension| dimension.name()).collect();
        let (names, other) = (names.join(" or "), other.name());
        return Err(format!("tree: expected only {names} as dimensions, got {other}"));
    }
    if sums.tree != ResourceTree::Gpu && weight != GpuWeight::Gpu {
        return Err("weight: expected none, because only GPUs have weights".to_owned());
    }
    Ok(())
}

/// Parses seconds since 1970, a moment in UTC, or a length of time before a moment.
///
/// # Errors
/// What was expected.
fn parse_moment(text: &str, before: u64) -> Result<u64, String> {
    let day = || text.parse::<NaiveDate>().ok().and_then(|day| day.and_hms_opt(0, 0, 0));
    let minute = || NaiveDateTime::parse_from_str(text, "%Y-%m-%dT%H:%M").ok();
    let calendar = || u64::try_from(day().or_else(minute)?.and_utc().timestamp()).ok();
    let span = || Some(before.saturating_sub(parse_time(text).ok()?.as_secs()));
    let expected =
        "seconds since 1970, a time in UTC such as 2026-11-28T07:00, or a length such as 24h";
    text.parse().ok().or_else(calendar).or_else(span).ok_or_else(|| expected.to_owned())
}

/// Parses a name as it is written in JSON.
fn parse_name<'a, T: Deserialize<'a>>(name: &'a str) -> Result<T, String> {
    let deserializer: StrDeserializer<'a, NameError> = name.into_deserializer();
    // serde names the value first, and then what it expected.
    T::deserialize(deserializer).map_err(|error| {
        let text = error.to_string();
        text.split_once("expected ").map_or(text.clone(), |(_, names)| names.to_owned())
    })
}

impl FleetReader {
    /// Creates a reader of the store of a hub.
    pub fn new(folder: Arc<StoreFolder>, file: &HubFile) -> Self {
        let (pools, models, logs) = (file.pools.clone(), file.models.clone(), file.logs.clone());
        Self { folder, pools, models, logs }
    }

    /// The store from which answers are computed.
    pub fn folder(&self) -> &StoreFolder {
        &self.folder
    }

    /// The pools of hosts.
    pub fn pools(&self) -> &Pools {
        &self.pools
    }

    /// Computes the sums of a query.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn sums(&self, query: &FleetQuery) -> Result<SumAnswer, Error> {
        let mut by_model = query.sums.clone();
        if query.weight != GpuWeight::Gpu {
            by_model.by.insert(Dimension::Model);
        }
        let answer = rollup::query(&self.folder, &self.pools, &by_model)?;
        let mut unknown_weight = BTreeSet::new();
        let sums = match query.weight {
            GpuWeight::Gpu => answer.sums,
            _ => self.weigh(answer.sums, query, &mut unknown_weight),
        };
        let mut total = FleetSums::default();
        // The groups over all steps, so that the limit leaves out all steps of a group or none.
        let mut ranks: HashMap<&SumKey, FleetSums> = HashMap::new();
        for ((_, key), sums) in &sums {
            total.merge(sums);
            ranks.entry(key).or_default().merge(sums);
        }
        let mut ranks: Vec<(&SumKey, FleetSums)> = ranks.into_iter().collect();
        ranks.sort_by(|(a, a_sums), (b, b_sums)| {
            let held = b_sums.allocated_s.total_cmp(&a_sums.allocated_s);
            held.then(b_sums.deployed_s.total_cmp(&a_sums.deployed_s)).then_with(|| a.cmp(b))
        });
        let groups_left_out = ranks.len().saturating_sub(query.limit);
        let listed = ranks.into_iter().take(query.limit).enumerate();
        let places: HashMap<&SumKey, usize> = listed.map(|(at, (key, _))| (key, at)).collect();
        let mut groups: Vec<(usize, SumGroup)> = Vec::new();
        let mut others: BTreeMap<Option<u64>, FleetSums> = BTreeMap::new();
        for ((start, key), sums) in &sums {
            let start_unix_s = query.sums.step_s.map(|_| *start);
            let Some(place) = places.get(key) else {
                others.entry(start_unix_s).or_default().merge(sums);
                continue;
            };
            let members = query.sums.by.iter().map(|one| (*one, key.member(*one).to_owned()));
            let members = members.collect();
            groups.push((*place, SumGroup { start_unix_s, members, ..SumGroup::new(*sums) }));
        }
        groups.sort_by_key(|(place, group)| (group.start_unix_s, *place));
        let other = |(start_unix_s, sums)| SumGroup { start_unix_s, ..SumGroup::new(sums) };
        let tree = query.sums.tree.description();
        Ok(SumAnswer {
            since_unix_s: query.sums.range.start,
            until_unix_s: query.sums.range.end,
            step_s: query.sums.step_s,
            weight: query.weight,
            tree: query.sums.tree,
            unit: if tree.modes.is_some() { tree.unit } else { query.weight.unit() },
            unknown_weight,
            hours_missing: answer.hours_missing + self.hours_without_files(query)?,
            layer_names: tree.layers,
            part_names: tree.parts,
            note: tree.note,
            total: SumGroup::new(total),
            groups: groups.into_iter().map(|(_, group)| group).collect(),
            groups_left_out,
            others: others.into_iter().map(other).collect(),
        })
    }

    /// Multiplies sums by the weights of their models. Adds the models whose weight is unknown to
    /// `unknown`, and leaves them out.
    fn weigh(
        &self,
        sums: BucketSums,
        query: &FleetQuery,
        unknown: &mut BTreeSet<String>,
    ) -> BucketSums {
        let mut weighted = BucketSums::new();
        for ((start, mut key), sums) in sums {
            let model = key.member(Dimension::Model);
            let Some(weight) = self.models.weight(query.weight, model) else {
                unknown.insert(model.to_owned());
                continue;
            };
            if !query.sums.by.contains(&Dimension::Model) {
                key.members[Dimension::Model as usize] = "".into();
            }
            weighted.entry((start, key)).or_default().merge(&sums.scale(weight));
        }
        weighted
    }

    /// Counts the whole hours of a query, until now, that have neither rows nor sums.
    fn hours_without_files(&self, query: &FleetQuery) -> Result<u64, Error> {
        let now = unix_now();
        let first = query.sums.range.start.div_ceil(HOUR_S);
        let last = query.sums.range.end.min(now) / HOUR_S;
        if first >= last {
            return Ok(0);
        }
        let hours = hours_within(&self.folder, query.sums.tree, &(first * HOUR_S..last * HOUR_S))?;
        Ok((last - first).saturating_sub(hours.len() as u64))
    }

    /// Lists the runs of a selection that held GPUs, and those without GPUs whose processes agents
    /// reported, with how they ended. If a query without a time selects one run, the time is that
    /// of the whole run.
    ///
    /// # Errors
    /// If the only run of a query without a time is unknown, or if a file cannot be read.
    pub fn runs(&self, query: &FleetQuery) -> Result<RunAnswer, Error> {
        let by = [Dimension::Run, Dimension::User, Dimension::Workflow].into();
        let mut sums = SumQuery { by, step_s: None, ..query.sums.clone() };
        let only = sums.selection.get(&Dimension::Run).filter(|runs| runs.len() == 1);
        if let Some(run) = only.and_then(|runs| runs.first()).filter(|_| !query.has_since) {
            let life = self.find_run(run, unix_now())?.life;
            // Where the sums of minutes were deleted, only whole hours are known.
            sums.range = life.start / HOUR_S * HOUR_S..life.end.next_multiple_of(HOUR_S);
        }
        let range = sums.range.clone();
        let answer = self.sums(&FleetQuery { sums, limit: usize::MAX, ..*query })?;
        let mut states = runs::read(&self.folder, &range)?;
        let mut attempts = self.attempts(query, &range)?;
        let (mut runs, mut failed, mut repeated) = (Vec::new(), 0.0, 0.0);
        for group in answer.groups {
            let run = group.members.get(&Dimension::Run).map_or("", String::as_str);
            if run.is_empty() {
                continue;
            }
            let state = states.remove(run).unwrap_or_default();
            let mut attempts = attempts.remove(run).unwrap_or_default();
            let mut last = group.sums.allocated_s;
            let mut repeats = state.repeats.is_some();
            for attempt in &mut attempts {
                attempt.allocated *= group.sums.allocated_s;
                last -= attempt.allocated;
                failed += if attempt.is_failed { attempt.allocated } else { 0.0 };
                repeated += if repeats { attempt.allocated } else { 0.0 };
                repeats |= attempt.is_failed;
            }
            failed += if state.is_failed { last } else { 0.0 };
            repeated += if repeats { last } else { 0.0 };
            let log_url = self.log_url(&group);
            runs.push(RunRow { group, state, attempts, log_url, steps_per_s: None });
        }
        runs.extend(self.runs_without_gpus(query, &range, states)?);
        let runs_left_out = runs.len().saturating_sub(query.limit);
        runs.truncate(query.limit);
        Ok(RunAnswer {
            since_unix_s: answer.since_unix_s,
            until_unix_s: answer.until_unix_s,
            unit: answer.unit,
            hours_missing: answer.hours_missing,
            failed,
            repeated,
            runs,
            runs_left_out,
        })
    }

    /// Reads the attempts before requeues in a time, by run. The allocated time of each is its
    /// share of that of the run.
    fn attempts(
        &self,
        query: &FleetQuery,
        range: &Range<u64>,
    ) -> Result<BTreeMap<String, Vec<RunAttempt>>, Error> {
        let mut attempts = read_attempts(&self.folder, range)?;
        let sums = SumQuery { range: range.clone(), ..query.sums.clone() };
        let hours = self.hours_of_runs(&sums, attempts.keys().cloned().collect())?;
        for (run, attempts) in &mut attempts {
            for attempt in attempts {
                let time = attempt.started_unix_s..attempt.ended_unix_s;
                attempt.allocated = hours.get(run).map_or(0.0, |run| run.share_within(&time));
            }
        }
        Ok(attempts)
    }

    /// Returns the URL of the logs of a run, if the configuration has one.
    fn log_url(&self, run: &SumGroup) -> Option<String> {
        let [run, user, workflow] = [Dimension::Run, Dimension::User, Dimension::Workflow]
            .map(|dimension| run.members.get(&dimension).map_or("", String::as_str));
        self.logs.as_ref()?.link(run, user, workflow)
    }

    /// Lists the runs of a selection without GPUs whose processes agents reported in a time, from
    /// the states of runs.
    fn runs_without_gpus(
        &self,
        query: &FleetQuery,
        range: &Range<u64>,
        mut states: BTreeMap<String, RunState>,
    ) -> Result<Vec<RunRow>, Error> {
        states.retain(|run, state| {
            let lasts = state.seen_unix_s >= range.start
                && state.started_unix_s.is_none_or(|start| start < range.end);
            let is_selected =
                query.sums.selection.iter().all(|(dimension, members)| match dimension {
                    Dimension::Run => members.contains(run),
                    Dimension::User => members.contains(&state.user),
                    Dimension::Workflow => members.contains(&state.workflow),
                    Dimension::Host => state.hosts.iter().any(|host| members.contains(host)),
                    Dimension::Pool => {
                        let mut pools = state.hosts.iter().map(|host| self.pools.pool_of(host));
                        pools.any(|pool| members.contains(pool))
                    }
                    Dimension::Model => false,
                });
            lasts && !state.hosts.is_empty() && is_selected
        });
        let mut rates = steps::read_rates(&self.folder, range, states.keys().cloned().collect())?;
        let row = |(run, state): (String, RunState)| {
            let steps_per_s = rates.remove(&run);
            let members = [
                (Dimension::Run, run),
                (Dimension::User, state.user.clone()),
                (Dimension::Workflow, state.workflow.clone()),
            ];
            let group = SumGroup { members: members.into(), ..SumGroup::default() };
            let attempts = Vec::new();
            RunRow { log_url: self.log_url(&group), group, state, attempts, steps_per_s }
        };
        Ok(states.into_iter().map(row).collect())
    }

    /// Lists the hosts of a selection with what should be mended on them: silence, wrong clocks and
    /// doubled agents, states in which the scheduler starts no job, and faults of GPUs.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn hosts(&self, query: &FleetQuery) -> Result<HostAnswer, Error> {
        let range = &query.sums.range;
        let faults = faults::query(&self.folder, &self.pools, &query.sums)?;
        let mut by_host: BTreeMap<String, Vec<GpuFault>> = BTreeMap::new();
        for fault in faults {
            by_host.entry(fault.host.clone()).or_default().push(fault);
        }
        let mut statuses = read_status(&self.folder, range)?;
        for host in by_host.keys() {
            // A host may have rows of GPUs only.
            statuses.entry(host.clone()).or_default();
        }
        let losses = self.host_losses(query)?;
        if !query.sums.selection.is_empty() {
            statuses.retain(|host, _| losses.contains_key(host));
        }
        let row = |(host, status): (String, status::HostStatus)| {
            let faults = by_host.remove(&host).unwrap_or_default();
            let throttled_s = host_faults::sum_throttled_s(&faults);
            let loss = losses.get(&host).copied().unwrap_or_default();
            let silent_s = status.last_row_unix_s.filter(|_| status.is_silent);
            let silent_s = silent_s.map_or(0, |last| range.end.saturating_sub(last));
            let lost_s = throttled_s + loss.lost_s + loss.gpus * silent_s as f64;
            let mut issues = status.issues();
            issues.extend(host_faults::describe_faults(&faults));
            let status::HostStatus { last_row_unix_s, versions, node, .. } = status;
            let lost_gpu_hours = lost_s / HOUR_S as f64 + 0.0;
            HostRow { host, issues, lost_gpu_hours, last_row_unix_s, versions, node }
        };
        let mut hosts: Vec<HostRow> = statuses.into_iter().map(row).collect();
        hosts.sort_by(|a, b| {
            let is_well = a.issues.is_empty().cmp(&b.issues.is_empty());
            is_well.then_with(|| b.lost_gpu_hours.total_cmp(&a.lost_gpu_hours))
        });
        let (since_unix_s, until_unix_s) = (range.start, range.end);
        Ok(HostAnswer { since_unix_s, until_unix_s, hosts })
    }

    /// Computes what the GPUs of each host of a selection lost.
    fn host_losses(&self, query: &FleetQuery) -> Result<HashMap<String, HostLoss>, Error> {
        let by = [Dimension::Host].into();
        let sums = SumQuery { by, step_s: Some(HOUR_S), ..query.sums.clone() };
        let mut losses: HashMap<String, HostLoss> = HashMap::new();
        for ((_, key), sums) in rollup::query(&self.folder, &self.pools, &sums)?.sums {
            let loss = losses.entry(key.member(Dimension::Host).to_owned()).or_default();
            let [not_schedulable, _, _, _, gpu_idle, _, sm_idle, _] = sums.parts();
            loss.lost_s += not_schedulable + gpu_idle + sm_idle;
            loss.gpus = loss.gpus.max((sums.deployed_s / HOUR_S as f64).ceil());
        }
        Ok(losses)
    }

    /// Lists the faults of the GPUs of a selection of hosts, pools and models.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn faults(&self, query: &FleetQuery) -> Result<FaultAnswer, Error> {
        Ok(FaultAnswer {
            since_unix_s: query.sums.range.start,
            until_unix_s: query.sums.range.end,
            faults: faults::query(&self.folder, &self.pools, &query.sums)?,
        })
    }
}

impl SumGroup {
    fn new(sums: FleetSums) -> Self {
        Self {
            sums,
            parts: sums.parts(),
            percent: sums.shares(),
            efficiency: sums.efficiency(),
            occupancy: sums.occupancy(),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::FleetQuery;
    use crate::sums::Dimension;

    fn parse(text: &str) -> Result<FleetQuery, String> {
        let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
        let pairs: Vec<_> = pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        FleetQuery::parse(&pairs)
    }

    #[test]
    fn queries_are_read_whole_or_refused_with_a_reason() {
        let query = parse("since=2h&until=10000&by=user&by=run&step=hour&user=a&user=b&limit=3");
        let query = query.unwrap();
        assert_eq!((query.sums.range, query.limit), (2820..10_020, 3));
        assert_eq!(query.sums.by, [Dimension::User, Dimension::Run].into());
        assert_eq!(query.sums.selection[&Dimension::User].len(), 2);
        for (text, reason) in [
            ("by=team", "by: expected one of `pool`, `model`"),
            ("color=red", "color: expected since, until"),
            ("since=90d&step=minute", "step: expected at most 20000 steps, got 129600"),
            ("step=week", "step: expected minute, hour or day"),
            ("since=yesterday", "since: expected seconds since 1970, a time in UTC such as"),
            ("until=soon", "until: expected seconds since 1970, a time in UTC such as"),
            ("until=9999999999", "until: expected a time of at most a day from now, got 2286-"),
            (
                "since=2026-01-02&until=2026-01-01T07:30",
                "since: expected a time before `until`, 2026-01-01 07:30 UTC, got 2026-01-02 00:00",
            ),
            ("tree=cpu&by=user", "tree: expected only pool or host as dimensions, got user"),
            ("tree=cpu&weight=sm", "weight: expected none"),
            ("tree=disk", "tree: expected"),
            ("weight=mass", "weight: expected one of `gpu`, `sm`"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}
