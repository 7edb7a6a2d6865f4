//! Prices a program from a calibration. Each part is priced by the samples of the most similar
//! recorded work.

use std::collections::BTreeMap;

use schema::median::float_median;
use trace::store::StringId;

use super::opaque::{OPAQUE, OpaqueCosts};
use super::roofline_scaling::{self, Roof};
use super::{Calibration, Key, constants, mean, nearest, samples, shared};
use crate::cost::{Constants, Cost, Costs, RankCosts, Source, Transfer};
use crate::effort::Effort;
use crate::program::{Action, Overhead, Part, Program, Returns, Segment, Work, WorkKind};
use crate::recording::{Setting, Step};
use crate::tensor_work;

/// Central times in nanoseconds at three levels of detail: by key, by name and by class.
#[derive(Clone, Debug)]
struct Centres<C: Ord> {
    by_key: BTreeMap<Key<C>, f64>,
    by_name: BTreeMap<(C, String), f64>,
    /// Median over names of the time by name. It prices names without samples, because a mean over
    /// samples would be that of the few names that load data or compute on the host.
    typical: BTreeMap<C, f64>,
}

/// Prices derived from a calibration. The prices are computed once and reused for every program.
#[derive(Clone, Debug)]
pub struct Prices {
    overheads: Centres<Overhead>,
    works: Centres<WorkKind>,
    roof: Roof,
    opaque: OpaqueCosts,
    constants: Constants,
    are_works_modeled: bool,
    /// Host time by number of nested operators, for operators without samples.
    nested: BTreeMap<Overhead, Transfer>,
    /// Time of an operator that computes nothing, if the host computes everything.
    idle_operator_ns: Option<f64>,
}

/// The time of an operator that the host computes, taken from other sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct GrownTime {
    pub ns: f64,
    /// Factor by which the work of the tensors grows. It is 1 if only the spelling of the sizes
    /// differs.
    pub factor: f64,
}

/// End of the detail of an operator without samples, after the number of its nested operators.
pub const NESTED: &str = " nested";

impl<C: Ord + Copy> Centres<C> {
    /// Computes the central time of each group of samples. `centre` combines the samples of one or
    /// more keys.
    fn from_samples<S>(samples: &BTreeMap<Key<C>, S>, centre: impl Fn(&[&S]) -> f64) -> Self {
        let mut by_name: BTreeMap<(C, String), Vec<&S>> = BTreeMap::new();
        for (key, samples) in samples {
            by_name.entry((key.class, key.name.clone())).or_default().push(samples);
        }
        let by_key = samples.iter().map(|(key, one)| (key.clone(), centre(&[one]))).collect();
        let by_name: BTreeMap<(C, String), f64> =
            by_name.into_iter().map(|(key, all)| (key, centre(&all))).collect();
        let mut of_class: BTreeMap<C, Vec<f64>> = BTreeMap::new();
        by_name.iter().for_each(|((class, _), ns)| of_class.entry(*class).or_default().push(*ns));
        let median = |(class, mut all): (C, Vec<f64>)| Some((class, float_median(&mut all)?));
        let typical = of_class.into_iter().filter_map(median).collect();
        Self { by_key, by_name, typical }
    }

    /// Prices a key from the first of these sources that is available:
    ///
    /// - samples of the key itself,
    /// - samples of the nearest sizes of the same name; if only one size is known, time grows with
    ///   the power `alone`,
    /// - samples of all sizes of the same name,
    /// - the median of the names of the same class.
    fn cost(&self, key: Key<C>, alone: f64) -> Cost {
        if let Some(found) = self.by_key.get(&key) {
            return Cost { ns: rounded(*found), source: Some(Source::Measured) };
        }
        match nearest::find(&self.known(&key), &key.detail, alone) {
            Some(near) => Cost { ns: rounded(near.ns.max(0.0)), source: Some(Source::Modeled) },
            None => self.by_name(key),
        }
    }

    /// Lists the details and central times of all keys with a key's class and name.
    fn known(&self, key: &Key<C>) -> Vec<(&str, f64)> {
        find_by_name(&self.by_key, key).into_iter().map(|(detail, ns)| (detail, *ns)).collect()
    }

    fn by_name(&self, key: Key<C>) -> Cost {
        let family = (key.class, shared::family(&key.name).to_owned());
        let class = key.class;
        let found = self.by_name.get(&(class, key.name)).or_else(|| self.by_name.get(&family));
        let found = found.or_else(|| self.typical.get(&class));
        match found {
            Some(found) => Cost { ns: rounded(*found), source: Some(Source::Modeled) },
            None => Cost::UNKNOWN,
        }
    }
}

/// Returns all entries with a key's class and name, each with its detail.
fn find_by_name<'a, C: Ord + Copy, V>(
    all: &'a BTreeMap<Key<C>, V>,
    key: &Key<C>,
) -> Vec<(&'a str, &'a V)> {
    let first = Key { detail: String::new(), ..key.clone() };
    let same = all
        .range(first..)
        .take_while(|(other, _)| other.class == key.class && other.name == key.name);
    same.map(|(other, value)| (other.detail.as_str(), value)).collect()
}

/// Exponent of the growth of a host overhead with tensor size where only one size is recorded. The
/// exponent is zero because overheads do not depend on data.
const OVERHEAD_POWER: f64 = 0.0;
/// Exponent of the growth of device work with tensor size where only one size is recorded.
const WORK_POWER: f64 = 1.0;

fn rounded(ns: f64) -> i64 {
    ns.clamp(-9e15, 9e15).round() as i64
}

/// Fits lines of host time by the number of nested operators, over all operators. Each nested
/// operator costs time of the dispatcher, and of the profiler if it runs.
fn by_nested(
    calibration: &Calibration,
    overheads: &Centres<Overhead>,
) -> BTreeMap<Overhead, Transfer> {
    let mut points: BTreeMap<Overhead, Vec<(u64, f64)>> = BTreeMap::new();
    for ((class, name), count) in &calibration.events {
        let Some(ns) = overheads.by_name.get(&(*class, name.clone())) else { continue };
        let events = (count.events as f64 / count.samples.max(1) as f64).round() as u64;
        points.entry(*class).or_default().push((events, *ns));
    }
    points.retain(|class, _| !matches!(class, Overhead::BetweenOps | Overhead::RuntimeCall));
    points.into_iter().map(|(class, points)| (class, robust_line(&points))).collect()
}

/// Fits a line of which the slope is the median slope between two points (Theil and Sen). Too few
/// points give no slope, so their time grows in proportion to the number of operators.
fn robust_line(points: &[(u64, f64)]) -> Transfer {
    const FEWEST: usize = 8;
    let median = |values: &mut Vec<f64>| float_median(values).unwrap_or_default();
    if points.len() < FEWEST {
        let each = points.iter().map(|(count, ns)| ns / (1.0 + *count as f64));
        let each = median(&mut each.collect());
        return Transfer { fixed_ns: each, per_byte_ns: each };
    }
    let pairs = points.iter().enumerate().flat_map(|(at, a)| {
        let others = points[at + 1..].iter().filter(|b| b.0 != a.0);
        others.map(|b| (b.1 - a.1) / (b.0 as f64 - a.0 as f64))
    });
    let per_byte_ns = median(&mut pairs.collect()).max(0.0);
    let fixed = points.iter().map(|(count, ns)| ns - per_byte_ns * *count as f64);
    Transfer { fixed_ns: median(&mut fixed.collect()).max(0.0), per_byte_ns }
}

impl Prices {
    /// Returns whether an operator has samples of a kind of overhead.
    pub fn knows(calibration: &Calibration, class: Overhead, name: &str) -> bool {
        let first = Key { class, name: name.to_owned(), detail: String::new() };
        let next = calibration.overheads.range(first..).next();
        next.is_some_and(|(key, _)| key.class == class && key.name == name)
    }

    /// Computes the central times from which programs are priced.
    pub fn new(calibration: &Calibration) -> Self {
        let overheads = Centres::from_samples(&calibration.overheads, |all: &[&Vec<i64>]| {
            let all: Vec<i64> = all.iter().flat_map(|one| one.iter().copied()).collect();
            mean(&all).unwrap_or_default()
        });
        let works = Centres::from_samples(&calibration.works, |all| {
            samples::centre(all, &calibration.recordings).unwrap_or_default()
        });
        let mut alone: Vec<f64> = overheads
            .by_key
            .iter()
            .filter(|(key, _)| key.class == Overhead::HostOnly)
            .map(|(_, ns)| *ns)
            .collect();
        alone.sort_by(f64::total_cmp);
        // Views and other operators that compute nothing are the fastest quarter.
        let idle_operator_ns = alone.get(alone.len() / 4).copied();
        let known = works.by_key.iter();
        let roof = Roof::from_works(known.map(|(key, found)| (key.detail.as_str(), *found)));
        let opaque = OpaqueCosts::from_calibration(calibration);
        Self {
            works,
            roof,
            opaque,
            constants: constants::derive_constants(calibration),
            are_works_modeled: calibration.are_works_modeled,
            nested: by_nested(calibration, &overheads),
            idle_operator_ns: idle_operator_ns.filter(|_| !calibration.has_device_work()),
            overheads,
        }
    }

    /// Returns the samples on which a price is based. The result is empty if no
    /// sample is similar enough.
    pub fn samples<'a, C: Ord + Copy, S: AsRef<[i64]>>(
        all: &'a BTreeMap<Key<C>, S>,
        key: &Key<C>,
    ) -> Vec<&'a [i64]> {
        if let Some(own) = all.get(key) {
            return vec![own.as_ref()];
        }
        let named = find_by_name(all, key);
        let details: Vec<(&str, f64)> = named.iter().map(|(detail, _)| (*detail, 1.0)).collect();
        if let Some(near) = nearest::find(&details, &key.detail, 0.0) {
            return vec![named[near.place].1.as_ref()];
        }
        if named.is_empty() {
            let of_class = all.iter().filter(|(other, _)| other.class == key.class);
            return of_class.map(|(_, samples)| samples.as_ref()).collect();
        }
        named.into_iter().map(|(_, samples)| samples.as_ref()).collect()
    }

    fn overhead(&self, key: Key<Overhead>) -> Cost {
        if key.name == OPAQUE {
            return self.opaque.host(&key.detail);
        }
        if key.class == Overhead::HostWork {
            let sizes = key.detail.clone();
            let whole = self.overhead(Key { class: Overhead::HostOnly, ..key });
            let ns = self.opaque.host_work_ns(&sizes, whole.ns);
            return Cost { ns, source: whole.source.map(|source| source.max(Source::Modeled)) };
        }
        let nested = key.detail.strip_suffix(NESTED).and_then(|count| count.parse::<f64>().ok());
        if let Some((line, count)) = self.nested.get(&key.class).zip(nested) {
            let ns = rounded(line.fixed_ns + line.per_byte_ns * count);
            return Cost { ns, source: Some(Source::Modeled) };
        }
        let grown = self.grown(&key).map(|grown| {
            let source = if grown.factor == 1.0 { Source::Measured } else { Source::Modeled };
            Cost { ns: rounded(grown.ns.max(0.0)), source: Some(source) }
        });
        grown.unwrap_or_else(|| self.overheads.cost(key, OVERHEAD_POWER))
    }

    /// Returns the time of an operator that the host computes, if it was recorded, but not with
    /// these sizes and not with two other batch sizes. The time of the nearest sizes grows with the
    /// work of the tensors.
    pub(crate) fn grown(&self, key: &Key<Overhead>) -> Option<GrownTime> {
        let idle_ns = self.idle_operator_ns.filter(|_| key.class == Overhead::HostOnly)?;
        if self.overheads.by_key.contains_key(key) {
            return None;
        }
        let named = find_by_name(&self.overheads.by_key, key);
        let known = named.iter().map(|(detail, ns)| (tensor_work::shapes(detail), **ns));
        let known: Vec<(String, f64)> = known.collect();
        let texts: Vec<(&str, f64)> = known.iter().map(|(text, ns)| (text.as_str(), *ns)).collect();
        let wanted = tensor_work::shapes(&key.detail);
        let near = nearest::find(&texts, &wanted, OVERHEAD_POWER)?;
        let (sizes, ns) = texts[near.place];
        let factor = tensor_work::growth(&key.name, sizes, &wanted);
        let idle_ns = idle_ns.min(ns);
        let grown_ns = idle_ns + (ns - idle_ns) * factor;
        Some(GrownTime { ns: if near.is_alone { grown_ns } else { near.ns }, factor })
    }

    /// Returns whether the host computes an operator whose time is taken from other sizes.
    pub(crate) fn is_grown(&self, key: &Key<Overhead>) -> bool {
        self.grown(key).is_some_and(|grown| grown.factor != 1.0)
    }

    /// Counts the operators of a program that the host computes and whose times grow from other
    /// sizes, and all operators without launches.
    pub fn count_grown(&self, program: &Program) -> (usize, usize) {
        let actions = program.ranks.iter().flat_map(|rank| &rank.threads).flat_map(|t| &t.actions);
        let alone = actions.filter_map(|action| match action {
            Action::Host(segment) if segment.overhead == Overhead::HostOnly => Some(*segment),
            _ => None,
        });
        let is_grown = |segment| self.is_grown(&Key::from_segment(program, segment));
        let grown: Vec<bool> = alone.map(is_grown).collect();
        (grown.iter().filter(|grown| **grown).count(), grown.len())
    }

    /// Prices all actions and works of a program. `setting` gives each rank's start time and the
    /// works that the previous step left running.
    pub fn price(&self, program: &Program, setting: &Setting) -> Costs {
        // Cache prices by segment, because a step contains each segment about a thousand times.
        let mut known: BTreeMap<Segment, Cost> = BTreeMap::new();
        let mut kernels = BTreeMap::new();
        let ranks = program.ranks.iter().enumerate().map(|(at, rank)| {
            let setting = setting.rank(rank.copy_of.unwrap_or(at));
            let actions = rank.threads.iter().map(|thread| {
                let mut price_segment = |segment: Segment| {
                    *known
                        .entry(segment)
                        .or_insert_with(|| self.overhead(Key::from_segment(program, segment)))
                };
                let mut scale = 1.0;
                let cost = |action: &Action| {
                    let cost = match action {
                        Action::Begin(mark) => {
                            scale = mark.scale;
                            return Cost::default();
                        }
                        Action::End => {
                            scale = 1.0;
                            return Cost::default();
                        }
                        Action::Host(segment) => price_segment(*segment),
                        Action::Call(call) if call.returns == Returns::AtOnce => {
                            price_segment(call.cost)
                        }
                        _ => return Cost::default(),
                    };
                    Cost { ns: (cost.ns as f64 * scale).round() as i64, ..cost }
                };
                thread.actions.iter().map(cost).collect()
            });
            let mut left = setting.left_running.iter();
            let mut left_running_ns = BTreeMap::new();
            let works = (0u32..).zip(&rank.works).map(|(at, work)| {
                if work.is_launched {
                    let cost = self.work(program, work, &mut kernels);
                    let factor =
                        if work.collective.is_none() { setting.device_factor } else { 1.0 };
                    return Cost { ns: (cost.ns as f64 * factor).round() as i64, ..cost };
                }
                let (from, to) = left.next().copied().unwrap_or_default();
                left_running_ns.insert(at, from);
                Cost { ns: to - from, source: Some(Source::Measured) }
            });
            let works = works.collect();
            let actions = actions.collect();
            RankCosts { start_ns: setting.start_ns, actions, works, left_running_ns }
        });
        let ranks = ranks.collect();
        Costs { ranks, constants: self.constants_for(program) }
    }

    /// Returns the constants, with the mean hand-over time for threads that wait before an operator
    /// before which no thread waited in the recordings.
    fn constants_for(&self, program: &Program) -> Constants {
        let mut constants = self.constants.clone();
        let known = constants.hand_over_ns.values();
        let mean_ns = known.clone().sum::<i64>() / (known.len() as i64).max(1);
        let threads = program.ranks.iter().flat_map(|rank| &rank.threads);
        for action in threads.flat_map(|thread| &thread.actions) {
            if let Action::Await { wakes: Some(name), .. } = action {
                let name = program.text(*name).to_owned();
                constants.hand_over_ns.entry(name).or_insert(mean_ns);
            }
        }
        constants
    }

    /// Returns the initial conditions of a recorded step with the speed of each rank's device: its
    /// recorded time relative to these prices, divided by that of the median rank. Collectives do
    /// not count, because their times include waits.
    pub fn setting_of_devices(&self, step: &Step) -> Setting {
        let mut setting = step.recorded.setting(&step.program);
        let costs = self.price(&step.program, &setting);
        let ranks = step.program.ranks.iter().zip(&step.recorded.ranks).zip(&costs.ranks);
        let speed = ranks.map(|((rank, recorded), costs)| {
            let works = rank.works.iter().zip(&recorded.works).zip(&costs.works);
            let own = works.filter(|((work, _), _)| work.is_launched && work.collective.is_none());
            let (recorded, priced) = own
                .fold((0, 0), |sum, ((_, time), cost)| (sum.0 + time.1 - time.0, sum.1 + cost.ns));
            if priced > 0 { recorded as f64 / priced as f64 } else { 1.0 }
        });
        let factors: Vec<f64> = speed.collect();
        let usual = float_median(&mut factors.clone()).filter(|usual| *usual > 0.0);
        for (rank, factor) in setting.ranks.iter_mut().zip(factors) {
            rank.device_factor = factor / usual.unwrap_or(1.0);
        }
        setting
    }

    /// Sums the prices of a work's parts. The source of the sum is the least certain source among
    /// the parts.
    fn work(
        &self,
        program: &Program,
        work: &Work,
        known: &mut BTreeMap<(WorkKind, StringId, StringId), Cost>,
    ) -> Cost {
        let mut one = |part: Part| {
            let price_kernel = || self.kernel(Key::from_part(program, part));
            *known.entry((part.kind, part.name, part.detail)).or_insert_with(price_kernel)
        };
        let parts = work.cost_parts();
        let costs: Vec<Cost> = parts.iter().map(|part| one(*part)).collect();
        let weighted = costs.iter().zip(&parts).map(|(cost, part)| cost.ns as f64 * part.weight);
        let sum = weighted.sum::<f64>() * work.scale;
        let source = costs.iter().filter_map(|cost| cost.source).max();
        // A work that is scaled or composed of parts was not measured in this form, so its price
        // counts as modeled.
        let source = match source {
            Some(Source::Measured)
                if work.scale != 1.0 || costs.len() > 1 || self.are_works_modeled =>
            {
                Some(Source::Modeled)
            }
            other => other,
        };
        Cost { ns: sum.round() as i64, source }
    }

    /// Prices device work by its own samples, by interpolation between recorded sizes, or by
    /// scaling with the roofline.
    fn kernel(&self, key: Key<WorkKind>) -> Cost {
        if key.name == OPAQUE {
            return self.opaque.work(&key.detail);
        }
        let is_known = self.works.by_key.contains_key(&key);
        if is_known || Effort::parse(&key.detail).is_none() {
            return self.works.cost(key, WORK_POWER);
        }
        let known = self.works.known(&key);
        let near = nearest::find(&known, &key.detail, WORK_POWER).filter(|near| near.is_between);
        let near = near.map(|near| near.ns).or_else(|| self.scaled(&known, &key));
        match near {
            Some(ns) => Cost { ns: rounded(ns.max(0.0)), source: Some(Source::Modeled) },
            None => self.works.cost(key, WORK_POWER),
        }
    }

    /// Returns whether a kernel's price is scaled with the roofline. A price is scaled if the
    /// kernel was not recorded and recorded sizes do not lie on both sides of it.
    pub(crate) fn is_scaled(&self, key: &Key<WorkKind>) -> bool {
        if self.works.by_key.contains_key(key) || Effort::parse(&key.detail).is_none() {
            return false;
        }
        let near = nearest::find(&self.works.known(key), &key.detail, WORK_POWER);
        !near.is_some_and(|near| near.is_between)
    }

    /// Computes errors of roofline scaling by kernel name, by scaling each recorded shape from the
    /// other shapes. Returns pairs of `ln(measured ÷ scaled)` and the scaled time. Each shape
    /// counts once, however many samples it has.
    pub(crate) fn residuals(&self) -> BTreeMap<&str, Vec<(f64, f64)>> {
        let mut found: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
        for (key, own) in &self.works.by_key {
            let mut others = self.works.known(key);
            others.retain(|(detail, _)| *detail != key.detail);
            let Some(scaled) = roofline_scaling::scaled(&others, &key.detail, self.roof) else {
                continue;
            };
            let own = own.max(1.0);
            let scaled = scaled.max(1.0);
            found.entry(&key.name).or_default().push(((own / scaled).ln(), scaled));
        }
        found
    }

    fn scaled(&self, named: &[(&str, f64)], key: &Key<WorkKind>) -> Option<f64> {
        roofline_scaling::scaled(named, &key.detail, self.roof).or_else(|| {
            let all = self.works.by_key.iter();
            let known: Vec<(&str, f64)> =
                all.map(|(key, found)| (key.detail.as_str(), *found)).collect();
            roofline_scaling::pass(&known, &key.detail)
                .or_else(|| roofline_scaling::scaled(&known, &key.detail, self.roof))
        })
    }
}
