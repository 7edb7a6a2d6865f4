//! What a program costs by a calibration: the most similar samples there are of everything in it.

use std::collections::BTreeMap;

use super::collect::key;
use super::{Calibration, Key, constants};
use crate::cost::{Cost, Costs, RankCosts, Source};
use crate::program::{Action, Overhead, Program, Returns, WorkKind};
use crate::recording::Recorded;

/// Means by key, by name and by class; a sum and a count each.
#[derive(Clone, Debug)]
struct Means<C: Ord> {
    by_key: BTreeMap<Key<C>, (i64, i64)>,
    by_name: BTreeMap<(C, String), (i64, i64)>,
    by_class: BTreeMap<C, (i64, i64)>,
}

/// The means of a calibration, found once for all programs it prices.
#[derive(Clone, Debug)]
pub struct Prices {
    overheads: Means<Overhead>,
    works: Means<WorkKind>,
    constants: crate::cost::Constants,
}

impl<C: Ord + Copy> Means<C> {
    fn of(samples: &BTreeMap<Key<C>, Vec<i64>>) -> Self {
        let mut means =
            Self { by_key: BTreeMap::new(), by_name: BTreeMap::new(), by_class: BTreeMap::new() };
        for (key, samples) in samples {
            let (sum, count) = (samples.iter().sum::<i64>(), samples.len() as i64);
            means.by_key.insert(key.clone(), (sum, count));
            let add = |place: &mut (i64, i64)| *place = (place.0 + sum, place.1 + count);
            add(means.by_name.entry((key.class, key.name.clone())).or_default());
            add(means.by_class.entry(key.class).or_default());
        }
        means
    }

    /// The mean of the same, else of the same name, else of the class.
    fn cost(&self, key: Key<C>) -> Cost {
        let mean = |&(sum, count): &(i64, i64)| (sum as f64 / count.max(1) as f64).round() as i64;
        if let Some(found) = self.by_key.get(&key) {
            return Cost { ns: mean(found), source: Source::Measured };
        }
        let class = key.class;
        let found = self.by_name.get(&(class, key.name)).or_else(|| self.by_class.get(&class));
        found.map_or_else(Cost::default, |found| Cost { ns: mean(found), source: Source::Modelled })
    }
}

impl Prices {
    /// Of a calibration.
    pub fn of(calibration: &Calibration) -> Self {
        Self {
            overheads: Means::of(&calibration.overheads),
            works: Means::of(&calibration.works),
            constants: constants::of(calibration),
        }
    }

    /// What a program costs. When ranks start, and what an earlier step left running, is as
    /// recorded.
    pub fn price(&self, program: &Program, recorded: &Recorded) -> Costs {
        let ranks = program.ranks.iter().zip(&recorded.ranks).map(|(rank, recorded)| {
            let actions = rank.threads.iter().map(|thread| {
                let cost = |action: &Action| match action {
                    Action::Host(segment) => self.overheads.cost(key(program, *segment)),
                    Action::Call(call) if call.returns == Returns::AtOnce => {
                        self.overheads.cost(key(program, call.cost))
                    }
                    _ => Cost::default(),
                };
                thread.actions.iter().map(cost).collect()
            });
            let works = rank.works.iter().zip(&recorded.works).map(|(work, (from, to))| {
                if !work.is_launched {
                    return Cost { ns: to - from, source: Source::Measured };
                }
                let name = program.text(work.name).to_owned();
                let detail = program.text(work.detail).to_owned();
                self.works.cost(Key { class: work.kind, name, detail })
            });
            let left = rank.works.iter().zip(&recorded.works).zip(0u32..);
            let left = left.filter(|((work, _), _)| !work.is_launched);
            RankCosts {
                start_ns: recorded.start_ns,
                actions: actions.collect(),
                works: works.collect(),
                left_running_ns: left.map(|((_, time), at)| (at, time.0)).collect(),
            }
        });
        Costs { ranks: ranks.collect(), constants: self.constants.clone() }
    }
}
