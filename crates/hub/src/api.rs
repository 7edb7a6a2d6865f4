//! The questions that viewers ask over HTTP, and their answers as JSON: the sums of any selection,
//! and the faults of its GPUs. The server checks who asks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde::de::value::{Error as NameError, StrDeserializer};
use serde::de::{Deserialize, IntoDeserializer};

use crate::aggregate::MINUTE_S;
use crate::config::{HubFile, Pools, parse_time};
use crate::error::Error;
use crate::faults::{self, GpuFault};
use crate::grouping::SumQuery;
use crate::rollup;
use crate::store::{HOUR_S, StoreFolder};
use crate::sums::{Dimension, FleetSums, PART_COUNT, PARTS};
use crate::weights::{GpuModels, GpuWeight};

/// Number of groups of an answer if the query names no limit.
const LIMIT: usize = 1000;
/// Length of the time of a query that names none.
const SINCE_S: u64 = 86_400;

/// What answers are computed from.
pub struct FleetReader {
    folder: Arc<StoreFolder>,
    pools: Pools,
    models: GpuModels,
}

/// A query with its unit and the largest number of groups of its answer.
#[derive(Debug)]
pub struct FleetQuery {
    pub sums: SumQuery,
    pub weight: GpuWeight,
    pub limit: usize,
}

/// The sums of a selection.
#[derive(Debug, Serialize)]
pub struct SumAnswer {
    pub since_unix_s: u64,
    pub until_unix_s: u64,
    pub step_s: Option<u64>,
    pub weight: GpuWeight,
    /// Unit of all sums and parts.
    pub unit: &'static str,
    /// Models whose weight is unknown. Their time is left out.
    pub unknown_weight: BTreeSet<String>,
    /// Hours whose rows are deleted, so that the answer lacks them.
    pub hours_missing: u64,
    /// Names of the parts of each group.
    pub part_names: [&'static str; PART_COUNT],
    pub total: SumGroup,
    /// The groups, by time and then by their allocated time.
    pub groups: Vec<SumGroup>,
    /// Number of groups beyond the limit. The total contains them.
    pub groups_left_out: usize,
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
}

/// The faults of a selection.
#[derive(Debug, Serialize)]
pub struct FaultAnswer {
    pub since_unix_s: u64,
    pub until_unix_s: u64,
    pub faults: Vec<GpuFault>,
}

impl FleetQuery {
    /// Parses the pairs of a query string. Unknown keys are refused.
    ///
    /// # Errors
    /// The reason if a key or a value is wrong.
    pub fn parse(pairs: &[(String, String)]) -> Result<Self, String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let (mut since, mut until) = (None, now);
        let mut sums = SumQuery::group(&[], None);
        let (mut weight, mut limit) = (GpuWeight::default(), LIMIT);
        for (key, value) in pairs {
            let wrong = |expected: &str| format!("{key}: expected {expected}, got {value:?}");
            match key.as_str() {
                "since" => since = Some(value),
                "until" => until = value.parse().map_err(|_| wrong("seconds since 1970"))?,
                "by" => drop(sums.by.insert(parse_name(value).map_err(|text| wrong(&text))?)),
                "step" => {
                    sums.step_s = Some(match value.as_str() {
                        "minute" => 60,
                        "hour" => HOUR_S,
                        "day" => 86_400,
                        _ => return Err(wrong("minute, hour or day")),
                    });
                }
                "weight" => weight = parse_name(value).map_err(|text| wrong(&text))?,
                "limit" => limit = value.parse().map_err(|_| wrong("a number"))?,
                _ => {
                    let dimension = parse_name(key).map_err(|text| {
                        format!("{key}: expected since, until, by, step, weight, limit, or {text}")
                    })?;
                    sums.selection.entry(dimension).or_default().insert(value.clone());
                }
            }
        }
        // Sums begin and end with whole minutes, so the answer names whole minutes too.
        let end = until.div_ceil(MINUTE_S).saturating_mul(MINUTE_S);
        let since = match since {
            None => end.saturating_sub(SINCE_S),
            Some(text) => match (text.parse(), parse_time(text)) {
                (Ok(second), _) => second,
                (_, Ok(span)) => end.saturating_sub(span.as_secs()),
                (_, Err(problem)) => return Err(format!("since: {problem}, or a time in seconds")),
            },
        };
        if since >= until || until > now + SINCE_S {
            return Err(format!("until: expected a time after {since} and not ahead, got {until}"));
        }
        sums.range = since / MINUTE_S * MINUTE_S..end;
        Ok(Self { sums, weight, limit })
    }
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
        Self { folder, pools: file.pools.clone(), models: file.models.clone() }
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
        let (mut total, mut unknown_weight) = (FleetSums::default(), BTreeSet::new());
        let mut groups: BTreeMap<_, FleetSums> = BTreeMap::new();
        for ((start, key), sums) in answer.sums {
            let Some(weight) = self.models.weight(query.weight, key.member(Dimension::Model))
            else {
                unknown_weight.insert(key.member(Dimension::Model).to_owned());
                continue;
            };
            let sums = sums.scale(weight);
            total.merge(&sums);
            let members = query.sums.by.iter().map(|one| (*one, key.member(*one).to_owned()));
            groups.entry((start, members.collect::<BTreeMap<_, _>>())).or_default().merge(&sums);
        }
        let step_s = query.sums.step_s;
        let mut groups: Vec<SumGroup> = groups
            .into_iter()
            .map(|((start, members), sums)| {
                let start_unix_s = step_s.map(|_| start);
                SumGroup { start_unix_s, members, ..SumGroup::new(sums) }
            })
            .collect();
        let rank = |group: &SumGroup| (group.sums.allocated_s, group.sums.deployed_s);
        groups.sort_by(|a, b| {
            let ((a_held, a_all), (b_held, b_all)) = (rank(a), rank(b));
            b_held.total_cmp(&a_held).then(b_all.total_cmp(&a_all))
        });
        let groups_left_out = groups.len().saturating_sub(query.limit);
        groups.truncate(query.limit);
        groups.sort_by_key(|group| group.start_unix_s);
        Ok(SumAnswer {
            since_unix_s: query.sums.range.start,
            until_unix_s: query.sums.range.end,
            step_s,
            weight: query.weight,
            unit: query.weight.unit(),
            unknown_weight,
            hours_missing: answer.hours_missing,
            part_names: PARTS,
            total: SumGroup::new(total),
            groups,
            groups_left_out,
        })
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
        let (parts, percent, efficiency) = (sums.parts(), sums.shares(), sums.efficiency());
        Self { sums, parts, percent, efficiency, ..Self::default() }
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
            ("step=week", "step: expected minute, hour or day"),
            ("since=yesterday", "since: expected a time such as"),
            ("since=9&until=9", "until: expected a time after 9"),
            ("weight=mass", "weight: expected one of `gpu`, `sm`"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}
