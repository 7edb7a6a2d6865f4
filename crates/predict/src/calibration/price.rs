//! Prices a program from a calibration: each part by the most similar samples.

use std::collections::BTreeMap;

use trace::store::StringId;

use super::opaque::{OPAQUE, OpaqueCosts};
use super::roofline_scaling::{self, Roof};
use super::{Calibration, Key, constants, mean, nearest, samples};
use crate::cost::{Cost, Costs, RankCosts, Source};
use crate::effort::Effort;
use crate::program::{Action, Overhead, Part, Program, Returns, Segment, Work, WorkKind};
use crate::recording::Setting;

/// The choice of samples that price an overhead. Kernels are always priced by the most similar
/// samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// Samples of the same operator and sizes, or else of the operator, or else of the class. Time
    /// between operators takes samples of the same preceding and following operator.
    #[default]
    Full,
    /// One mean for all time between operators, and one per operator and class for the rest.
    OneMean,
    /// Like [`Method::OneMean`], but of samples within 1.5 interquartile ranges of the quartiles,
    /// except for calls.
    ///
    /// # Source
    /// arXiv:2201.07821, IV-B.
    Trimmed,
}

/// Central times by key, by name and by class, in nanoseconds.
#[derive(Clone, Debug)]
struct Centres<C: Ord> {
    by_key: BTreeMap<Key<C>, f64>,
    by_name: BTreeMap<(C, String), f64>,
    by_class: BTreeMap<C, f64>,
}

/// Prices of a calibration, computed once for all programs that it prices.
#[derive(Clone, Debug)]
pub struct Prices {
    method: Method,
    overheads: Centres<Overhead>,
    works: Centres<WorkKind>,
    roof: Roof,
    opaque: OpaqueCosts,
    constants: crate::cost::Constants,
}

impl<C: Ord + Copy> Centres<C> {
    /// Computes central times with `centre`, which combines the samples of one or more keys.
    fn from_samples<S>(samples: &BTreeMap<Key<C>, S>, centre: impl Fn(C, &[&S]) -> f64) -> Self {
        let mut by_name: BTreeMap<(C, String), Vec<&S>> = BTreeMap::new();
        let mut by_class: BTreeMap<C, Vec<&S>> = BTreeMap::new();
        for (key, samples) in samples {
            by_name.entry((key.class, key.name.clone())).or_default().push(samples);
            by_class.entry(key.class).or_default().push(samples);
        }
        let by_key = samples.iter().map(|(key, one)| (key.clone(), centre(key.class, &[one])));
        let by_name = by_name.into_iter().map(|(key, all)| {
            let class = key.0;
            (key, centre(class, &all))
        });
        let by_class = by_class.into_iter().map(|(class, all)| (class, centre(class, &all)));
        Self { by_key: by_key.collect(), by_name: by_name.collect(), by_class: by_class.collect() }
    }

    /// Prices a key by the first of these that is known:
    ///
    /// - its own samples,
    ///
    /// - the nearest sizes of the same name, growing with the power `alone` if there is only one,
    ///
    /// - its name,
    ///
    /// - its class.
    fn cost(&self, key: Key<C>, alone: f64) -> Cost {
        if let Some(found) = self.by_key.get(&key) {
            return Cost { ns: rounded(*found), source: Some(Source::Measured) };
        }
        let named = find_by_name(&self.by_key, &key);
        let known: Vec<(&str, f64)> =
            named.iter().map(|(detail, found)| (*detail, **found)).collect();
        match nearest::find(&known, &key.detail, alone) {
            Some(near) => Cost { ns: rounded(near.ns.max(0.0)), source: Some(Source::Modelled) },
            None => self.by_name(key),
        }
    }

    fn by_name(&self, key: Key<C>) -> Cost {
        let class = key.class;
        match self.by_name.get(&(class, key.name)) {
            Some(found) => Cost { ns: rounded(*found), source: Some(Source::Modelled) },
            None => self.by_class(class),
        }
    }

    fn by_class(&self, class: C) -> Cost {
        let found = self.by_class.get(&class);
        found.map_or(Cost::UNKNOWN, |found| Cost {
            ns: rounded(*found),
            source: Some(Source::Modelled),
        })
    }
}

/// Returns the entries of a key's class and name, by detail.
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

/// Exponent of growth with size for overheads with one known size: they do not depend on data.
const OVERHEAD_POWER: f64 = 0.0;
/// Exponent of growth with size for device work with one known size.
const WORK_POWER: f64 = 1.0;

fn rounded(ns: f64) -> i64 {
    ns.clamp(-9e15, 9e15).round() as i64
}

/// Keeps the samples within 1.5 interquartile ranges of the quartiles.
pub(crate) fn trimmed(mut samples: Vec<i64>) -> Vec<i64> {
    samples.sort_unstable();
    let at = |share: f64| samples.get((samples.len() as f64 * share) as usize).copied();
    let (Some(low), Some(high)) = (at(0.25), at(0.75)) else { return samples };
    let reach = (high - low) * 3 / 2;
    samples.retain(|ns| (low - reach..=high + reach).contains(ns));
    samples
}

impl Prices {
    /// Computes the prices of a calibration by a method.
    pub fn new(calibration: &Calibration, method: Method) -> Self {
        let overheads =
            Centres::from_samples(&calibration.overheads, |class, all: &[&Vec<i64>]| {
                let all: Vec<i64> = all.iter().flat_map(|one| one.iter().copied()).collect();
                let kept = match method {
                    Method::Trimmed if class != Overhead::RuntimeCall => trimmed(all),
                    _ => all,
                };
                mean(&kept).unwrap_or_default()
            });
        let works = Centres::from_samples(&calibration.works, |_, all| {
            samples::centre(all, &calibration.recordings).unwrap_or_default()
        });
        let known = works.by_key.iter();
        let roof = Roof::from_works(known.map(|(key, found)| (key.detail.as_str(), *found)));
        let opaque = OpaqueCosts::from_calibration(calibration);
        Self {
            method,
            overheads,
            works,
            roof,
            opaque,
            constants: constants::derive_constants(calibration),
        }
    }

    /// Returns the samples that a price of [`Method::Full`] rests on; empty if nothing is known.
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
            return Cost { ns, source: whole.source.map(|source| source.max(Source::Modelled)) };
        }
        match (self.method, key.class) {
            (Method::Full, _) => self.overheads.cost(key, OVERHEAD_POWER),
            (_, Overhead::BetweenOps) => self.overheads.by_class(Overhead::BetweenOps),
            _ => self.overheads.by_name(key),
        }
    }

    /// Prices all actions and works of a program. Start times and work left running come from
    /// `setting`.
    pub fn price(&self, program: &Program, setting: &Setting) -> Costs {
        // A cache: a step has each segment about a thousand times.
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
                let cost = |action: &Action| match action {
                    Action::Host(segment) => price_segment(*segment),
                    Action::Call(call) if call.returns == Returns::AtOnce => {
                        price_segment(call.cost)
                    }
                    _ => Cost::default(),
                };
                thread.actions.iter().map(cost).collect()
            });
            let mut left = setting.left_running.iter();
            let mut left_running_ns = BTreeMap::new();
            let works = (0u32..).zip(&rank.works).map(|(at, work)| {
                if work.is_launched {
                    return self.work(program, work, &mut kernels);
                }
                let (from, to) = left.next().copied().unwrap_or_default();
                left_running_ns.insert(at, from);
                Cost { ns: to - from, source: Some(Source::Measured) }
            });
            let works = works.collect();
            let actions = actions.collect();
            RankCosts { start_ns: setting.start_ns, actions, works, left_running_ns }
        });
        Costs { ranks: ranks.collect(), constants: self.constants.clone() }
    }

    /// Sums the prices of a work's parts, with the least certain source among them.
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
        // A scaled or composed work counts as modelled, because it was not measured in this form.
        let source = match source {
            Some(Source::Measured) if work.scale != 1.0 || costs.len() > 1 => {
                Some(Source::Modelled)
            }
            other => other,
        };
        Cost { ns: sum.round() as i64, source }
    }
}

impl Prices {
    /// Prices device work by its own samples, by interpolation between known sizes, or by scaling
    /// with the roofline.
    fn kernel(&self, key: Key<WorkKind>) -> Cost {
        if key.name == OPAQUE {
            return self.opaque.work(&key.detail);
        }
        let is_known = self.works.by_key.contains_key(&key);
        if is_known || Effort::parse(&key.detail).is_none() {
            return self.works.cost(key, WORK_POWER);
        }
        let named = find_by_name(&self.works.by_key, &key);
        let known: Vec<(&str, f64)> =
            named.iter().map(|(detail, found)| (*detail, **found)).collect();
        let near = nearest::find(&known, &key.detail, WORK_POWER).filter(|near| near.is_between);
        let near = near.map(|near| near.ns).or_else(|| self.scaled(&known, &key));
        match near {
            Some(ns) => Cost { ns: rounded(ns.max(0.0)), source: Some(Source::Modelled) },
            None => self.works.cost(key, WORK_POWER),
        }
    }

    /// Returns whether a kernel is scaled by the roofline because neither it nor sizes on both
    /// sides are known.
    pub(crate) fn is_scaled(&self, key: &Key<WorkKind>) -> bool {
        if self.works.by_key.contains_key(key) || Effort::parse(&key.detail).is_none() {
            return false;
        }
        let named = find_by_name(&self.works.by_key, key);
        let known: Vec<(&str, f64)> =
            named.iter().map(|(detail, found)| (*detail, **found)).collect();
        let near = nearest::find(&known, &key.detail, WORK_POWER);
        !near.is_some_and(|near| near.is_between)
    }

    /// Computes scaling errors by name: each recorded shape is scaled from the others. Returns
    /// pairs of `ln(measured ÷ scaled)` and scaled time. Each shape counts once, however often it
    /// was disturbed.
    pub(crate) fn residuals(&self) -> BTreeMap<&str, Vec<(f64, f64)>> {
        let mut found: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
        for (key, own) in &self.works.by_key {
            let others: Vec<(&str, f64)> = find_by_name(&self.works.by_key, key)
                .into_iter()
                .filter(|(detail, _)| *detail != key.detail)
                .map(|(detail, found)| (detail, *found))
                .collect();
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
