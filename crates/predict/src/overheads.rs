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
    /// Name of the operator, or `None` for all operators together.
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
    let trimmed = crate::calibration::price::trimmed(samples.clone());
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

fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// An overhead of an operator whose mean differs significantly between tensor sizes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SizeRow {
    pub overhead: Overhead,
    pub operator: String,
    /// Tensor sizes with the smallest mean.
    pub least: String,
    pub least_ns: f64,
    /// Tensor sizes with the largest mean.
    pub most: String,
    pub most_ns: f64,
    /// Difference of the two means, in standard errors.
    pub standard_errors: f64,
}

/// Tensor sizes, mean of their samples, and squared standard error of that mean.
type SizedMean<'a> = (&'a str, f64, f64);

/// Finds overheads inside operators that depend on tensor sizes, sorted by significance. Only sizes
/// with at least 5 samples count, and only differences of more than `limit` standard errors.
pub fn by_size(calibration: &Calibration, limit: f64) -> Vec<SizeRow> {
    const SAMPLES_MIN: usize = 5;
    let depends_on_sizes =
        |overhead| !matches!(overhead, Overhead::BetweenOps | Overhead::RuntimeCall);
    let mut by_operator: BTreeMap<(Overhead, &str), Vec<SizedMean<'_>>> = BTreeMap::new();
    for (key, samples) in &calibration.overheads {
        let Some(mean_ns) = mean(samples).filter(|_| samples.len() >= SAMPLES_MIN) else {
            continue;
        };
        let count = samples.len() as f64;
        let square: f64 = samples.iter().map(|ns| (*ns as f64 - mean_ns).powi(2)).sum();
        if depends_on_sizes(key.class) {
            let of_operator = by_operator.entry((key.class, key.name.as_str())).or_default();
            of_operator.push((key.detail.as_str(), mean_ns, square / count / count));
        }
    }
    let mut found: Vec<SizeRow> = Vec::new();
    for ((overhead, operator), means) in by_operator {
        let by_mean = |a: &&SizedMean<'_>, b: &&SizedMean<'_>| a.1.total_cmp(&b.1);
        let (least, most) = (means.iter().min_by(by_mean), means.iter().max_by(by_mean));
        let (Some(least), Some(most)) = (least, most) else { continue };
        let together = (least.2 + most.2).sqrt();
        if together > 0.0 && most.1 - least.1 > limit * together {
            found.push(SizeRow {
                overhead,
                operator: operator.to_owned(),
                least: least.0.to_owned(),
                least_ns: tenths(least.1),
                most: most.0.to_owned(),
                most_ns: tenths(most.1),
                standard_errors: tenths((most.1 - least.1) / together),
            });
        }
    }
    found.sort_by(|a, b| b.standard_errors.total_cmp(&a.standard_errors));
    found
}

/// A kind of overhead whose mean differs significantly between sources, such as ranks or files.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExceptionRow {
    pub overhead: Overhead,
    /// Source with the smallest mean overhead.
    pub least: String,
    pub least_ns: f64,
    /// Source with the largest mean overhead.
    pub most: String,
    pub most_ns: f64,
    /// Difference of the two means, in standard errors.
    pub standard_errors: f64,
}

/// Finds kinds of overhead that depend on their source. The smallest and the largest mean of such a
/// kind differ by more than `limit` standard errors.
///
/// The published model (arXiv:2201.07821) assumes that overheads depend neither on the network nor
/// on tensor sizes.
pub fn exceptions(rows: &[OverheadRow], limit: f64) -> Vec<ExceptionRow> {
    let mut found = Vec::new();
    for overhead in OVERHEADS {
        let whole = rows.iter().filter(|row| row.overhead == overhead && row.operator.is_none());
        let by_mean = |a: &&OverheadRow, b: &&OverheadRow| a.mean_ns.total_cmp(&b.mean_ns);
        let (least, most) = (whole.clone().min_by(by_mean), whole.max_by(by_mean));
        let (Some(least), Some(most)) = (least, most) else { continue };
        let error = |row: &OverheadRow| row.std_ns * row.std_ns / row.count.max(1) as f64;
        let together = (error(least) + error(most)).sqrt();
        let apart = most.mean_ns - least.mean_ns;
        if together > 0.0 && apart > limit * together {
            found.push(ExceptionRow {
                overhead,
                least: least.source.clone(),
                least_ns: least.mean_ns,
                most: most.source.clone(),
                most_ns: most.mean_ns,
                standard_errors: tenths(apart / together),
            });
        }
    }
    found
}
