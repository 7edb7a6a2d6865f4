//! Statistics of the host's overheads, and tests of whether they depend on operators and sizes.

use std::collections::BTreeMap;

use analyze::distribution;
use schema::TableRow;
use serde::Serialize;

use crate::calibration::{Calibration, mean, shared};
use crate::program::{OVERHEADS, Overhead};

/// Statistics of one kind of host overhead, for one operator or over all operators.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct OverheadRow {
    /// Name of the rank, step or file from which the samples come.
    pub source: String,
    /// One of the overheads T1 to T5, or `host_only` for operators without calls.
    pub overhead: Overhead,
    /// Name of the operator; `None` in a row about all operators together.
    pub operator: Option<String>,
    pub count: u64,
    pub total_ns: i64,
    pub mean_ns: f64,
    pub std_ns: f64,
    pub median_ns: i64,
    /// Mean of the samples within 1.5 interquartile ranges of the quartiles, as in
    /// arXiv:2201.07821. The difference between this mean and the mean of all samples measures the
    /// tail of the distribution.
    pub trimmed_mean_ns: f64,
    pub max_ns: i64,
}

/// Summarizes each kind of overhead of a calibration, followed by its `top` operators by total
/// time.
pub fn summarize_overheads(
    source: &str,
    calibration: &Calibration,
    top: usize,
) -> Vec<OverheadRow> {
    let mut rows = Vec::new();
    for overhead in OVERHEADS {
        let mut by_operator: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
        let of_kind = calibration.overheads.iter().filter(|(key, _)| key.class == overhead);
        for (key, samples) in of_kind {
            by_operator.entry(&key.name).or_default().extend(samples);
        }
        let all: Vec<i64> = by_operator.values().flatten().copied().collect();
        rows.extend(row(source, overhead, None, all));
        let operators = by_operator
            .into_iter()
            .filter_map(|(name, samples)| row(source, overhead, Some(name), samples));
        let mut operators: Vec<OverheadRow> = operators.collect();
        operators.sort_by_key(|row| std::cmp::Reverse(row.total_ns));
        operators.truncate(top);
        rows.append(&mut operators);
    }
    rows
}

/// Computes the host time of one call of an outermost operator: the time before it, its own time
/// and that of its runtime calls. Returns `None` for operators that were not recorded.
#[must_use]
pub fn operator_host_ns(calibration: &Calibration, name: &str) -> Option<f64> {
    let part = |class: Overhead| {
        let count = calibration.events.get(&(class, name.to_owned()))?.samples;
        let keys = calibration.overheads.iter();
        let own = keys.filter(|(key, _)| key.class == class && key.name == name);
        Some((count as f64, mean(&own.flat_map(|(_, ns)| ns).copied().collect::<Vec<i64>>())?))
    };
    let [first, between, after, alone] = [
        Overhead::BeforeFirstLaunch,
        Overhead::BetweenLaunches,
        Overhead::AfterLastLaunch,
        Overhead::HostOnly,
    ]
    .map(|class| part(class).unwrap_or_default());
    let calls = first.0 + between.0;
    let instances = first.0 + alone.0;
    let own = [first, between, after, alone].iter().map(|(count, ns)| count * ns).sum::<f64>();
    let call_ns = runtime_call_ns(calibration);
    let family = shared::family(name);
    let gap_ns =
        mean_of(calibration, Overhead::BetweenOps, |other| shared::family(other) == family);
    (instances > 0.0).then(|| gap_ns + (own + calls * call_ns) / instances)
}

/// Computes the median host time of the recorded operators, for operators that were not recorded.
#[must_use]
pub fn typical_operator_ns(calibration: &Calibration) -> f64 {
    let classes = [Overhead::BeforeFirstLaunch, Overhead::HostOnly];
    let names = calibration.events.keys().filter(|(class, _)| classes.contains(class));
    let names: std::collections::BTreeSet<&String> = names.map(|(_, name)| name).collect();
    let mut times: Vec<f64> =
        names.into_iter().filter_map(|name| operator_host_ns(calibration, name)).collect();
    schema::median::float_median(&mut times).unwrap_or_default()
}

/// Computes the mean host time of a runtime call, such as the launch of a kernel or of a graph.
#[must_use]
pub fn runtime_call_ns(calibration: &Calibration) -> f64 {
    mean_of(calibration, Overhead::RuntimeCall, |_| true)
}

/// Returns the mean of all samples of a kind of overhead whose operator is selected.
fn mean_of(calibration: &Calibration, class: Overhead, selects: impl Fn(&str) -> bool) -> f64 {
    let keys = calibration.overheads.iter();
    let own = keys.filter(|(key, _)| key.class == class && selects(&key.name));
    mean(&own.flat_map(|(_, ns)| ns).copied().collect::<Vec<i64>>()).unwrap_or_default()
}

fn row(
    source: &str,
    overhead: Overhead,
    operator: Option<&str>,
    mut samples: Vec<i64>,
) -> Option<OverheadRow> {
    let mean_ns = mean(&samples)?;
    let square: f64 = samples.iter().map(|ns| (*ns as f64 - mean_ns).powi(2)).sum();
    samples.sort_unstable();
    let trimmed = trimmed(samples.clone());
    Some(OverheadRow {
        source: source.to_owned(),
        overhead,
        operator: operator.map(str::to_owned),
        count: samples.len() as u64,
        total_ns: samples.iter().sum(),
        mean_ns: tenths(mean_ns),
        std_ns: tenths((square / samples.len() as f64).sqrt()),
        median_ns: distribution::integer_median(&mut samples)?,
        trimmed_mean_ns: tenths(mean(&trimmed).unwrap_or_default()),
        max_ns: samples.last().copied().unwrap_or_default(),
    })
}

/// Keeps the samples within 1.5 interquartile ranges of the quartiles.
#[must_use]
pub fn trimmed(mut samples: Vec<i64>) -> Vec<i64> {
    samples.sort_unstable();
    let at = |share: f64| samples.get((samples.len() as f64 * share) as usize).copied();
    let (Some(low), Some(high)) = (at(0.25), at(0.75)) else { return samples };
    let reach = (high - low) * 3 / 2;
    samples.retain(|ns| (low - reach..=high + reach).contains(ns));
    samples
}

fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// A kind of overhead whose mean differs significantly between places: sizes, ranks or files.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OverheadDifference {
    pub overhead: Overhead,
    /// Name of the operator; `None` in a row about all operators together.
    pub operator: Option<String>,
    /// Place with the smallest mean.
    pub least: String,
    pub least_ns: f64,
    /// Place with the largest mean.
    pub most: String,
    pub most_ns: f64,
    /// Difference of the two means, in standard errors.
    pub standard_errors: f64,
}

/// Mean of the samples of one place, with its squared standard error.
struct PlaceMean<'a> {
    place: &'a str,
    mean_ns: f64,
    squared_error: f64,
}

/// Compares the smallest with the largest mean of several places. Returns `None` if they differ by
/// at most `limit` standard errors.
fn compare_places(
    overhead: Overhead,
    operator: Option<&str>,
    places: &[PlaceMean<'_>],
    limit: f64,
) -> Option<OverheadDifference> {
    let by_mean = |a: &&PlaceMean<'_>, b: &&PlaceMean<'_>| a.mean_ns.total_cmp(&b.mean_ns);
    let (least, most) = (places.iter().min_by(by_mean)?, places.iter().max_by(by_mean)?);
    let together = (least.squared_error + most.squared_error).sqrt();
    let apart = most.mean_ns - least.mean_ns;
    (together > 0.0 && apart > limit * together).then(|| OverheadDifference {
        overhead,
        operator: operator.map(str::to_owned),
        least: least.place.to_owned(),
        least_ns: tenths(least.mean_ns),
        most: most.place.to_owned(),
        most_ns: tenths(most.mean_ns),
        standard_errors: tenths(apart / together),
    })
}

/// Finds overheads inside operators that depend on tensor sizes, sorted by significance. Only sizes
/// with at least 5 samples count, and only differences of more than `limit` standard errors.
pub fn by_size(calibration: &Calibration, limit: f64) -> Vec<OverheadDifference> {
    const SAMPLES_MIN: usize = 5;
    let depends_on_sizes =
        |overhead| !matches!(overhead, Overhead::BetweenOps | Overhead::RuntimeCall);
    let mut by_operator: BTreeMap<(Overhead, &str), Vec<PlaceMean<'_>>> = BTreeMap::new();
    for (key, samples) in &calibration.overheads {
        let Some(mean_ns) = mean(samples).filter(|_| samples.len() >= SAMPLES_MIN) else {
            continue;
        };
        let count = samples.len() as f64;
        let square: f64 = samples.iter().map(|ns| (*ns as f64 - mean_ns).powi(2)).sum();
        if depends_on_sizes(key.class) {
            let squared_error = square / count / count;
            by_operator.entry((key.class, key.name.as_str())).or_default().push(PlaceMean {
                place: &key.detail,
                mean_ns,
                squared_error,
            });
        }
    }
    let compare = |((overhead, operator), sizes): ((Overhead, &str), Vec<PlaceMean<'_>>)| {
        compare_places(overhead, Some(operator), &sizes, limit)
    };
    let mut found: Vec<OverheadDifference> = by_operator.into_iter().filter_map(compare).collect();
    found.sort_by(|a, b| b.standard_errors.total_cmp(&a.standard_errors));
    found
}

/// Finds kinds of overhead that depend on their source. The smallest and the largest mean of such a
/// kind differ by more than `limit` standard errors.
///
/// The published model (arXiv:2201.07821) assumes that overheads depend neither on the network nor
/// on tensor sizes.
pub fn exceptions(rows: &[OverheadRow], limit: f64) -> Vec<OverheadDifference> {
    let find = |overhead: Overhead| {
        let whole = rows.iter().filter(|row| row.overhead == overhead && row.operator.is_none());
        let sources = whole.map(|row| PlaceMean {
            place: &row.source,
            mean_ns: row.mean_ns,
            squared_error: row.std_ns * row.std_ns / row.count.max(1) as f64,
        });
        compare_places(overhead, None, &sources.collect::<Vec<_>>(), limit)
    };
    OVERHEADS.into_iter().filter_map(find).collect()
}
