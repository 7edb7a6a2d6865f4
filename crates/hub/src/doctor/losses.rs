//! Divides the lost time of GPUs among the issues, so that the parts add up. `lost_gpu_hours` of an
//! issue is an upper bound, and several issues may claim the same hours there; here, each hour
//! counts once.

use std::collections::BTreeMap;

use serde::Serialize;

use super::facts::DoctorFacts;
use super::finding::{DoctorCase, ExplainedLoss, GpuPlace};
use crate::store::HOUR_S;

/// Rules in the order in which they may claim lost time. Causes that are known by their time and
/// place come first, and estimates of a whole run last.
const ORDER: [&str; 8] = ["P10", "P01", "P02", "P06", "P08", "P07", "P12", "P11"];
/// Titles of the time that no rule explains: of idle GPUs, and of idle multiprocessors.
const UNEXPLAINED: [&str; 2] = [
    "GPUs wait between pieces of work; not explained by a rule",
    "Few multiprocessors work; not explained by a rule",
];

/// Where the lost time of GPUs went. Lost is the held time in which GPUs or their multiprocessors
/// were seen to be idle.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DoctorLosses {
    pub lost_gpu_hours: f64,
    /// Held hours in which activity was not observed. They may be lost too.
    pub unobserved_gpu_hours: f64,
    /// Parts that add up to `lost_gpu_hours`, the largest first.
    pub parts: Vec<LossPart>,
}

/// A part of the lost time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LossPart {
    /// The issue that explains it; `None` if no rule does.
    pub rule: Option<&'static str>,
    pub title: &'static str,
    pub gpu_hours: f64,
}

/// The issues of one rule.
pub struct RuleCases {
    pub rule: &'static str,
    pub title: &'static str,
    pub cases: Vec<DoctorCase>,
}

/// Lost seconds of a GPU in a cell that no issue has claimed.
#[derive(Clone, Copy, Debug, Default)]
struct LostSeconds {
    idle_s: f64,
    sm_s: f64,
}

impl LostSeconds {
    fn sum(self) -> f64 {
        self.idle_s + self.sm_s
    }
}

/// The lost time that no issue has claimed yet.
struct UnclaimedLoss<'a> {
    facts: &'a DoctorFacts,
    cells: BTreeMap<(&'a GpuPlace, u64), LostSeconds>,
}

/// Divides the lost time among the issues of all rules.
pub fn divide(facts: &DoctorFacts, found: &[RuleCases]) -> DoctorLosses {
    let mut unclaimed = UnclaimedLoss::new(facts);
    let hours = |seconds: f64| seconds / HOUR_S as f64;
    let lost_s = unclaimed.sum().sum();
    let unobserved = |(gpu, _): (&GpuPlace, _)| {
        let facts = &facts.gpus[gpu];
        facts.sum(|cell| {
            let busy_s = cell.busy_s.min(cell.busy_observed_s);
            (cell.held_s - cell.busy_observed_s).max(0.0) + (busy_s - cell.sm_busy_s).max(0.0)
        })
    };
    let unobserved_s = facts.gpus.iter().map(unobserved).fold(0.0, |sum, seconds| sum + seconds);
    let mut parts = Vec::new();
    for rule in ORDER {
        let own = || found.iter().filter(|one| one.rule == rule);
        let claimed_s: f64 =
            own().flat_map(|one| &one.cases).map(|case| unclaimed.claim(&case.explains)).sum();
        let title = own().map(|one| one.title).next();
        if let Some(title) = title.filter(|_| claimed_s > 0.0) {
            parts.push(LossPart { rule: Some(rule), title, gpu_hours: hours(claimed_s) });
        }
    }
    let left = unclaimed.sum();
    for (title, seconds) in UNEXPLAINED.into_iter().zip([left.idle_s, left.sm_s]) {
        if seconds > 0.0 {
            parts.push(LossPart { rule: None, title, gpu_hours: hours(seconds) });
        }
    }
    parts.sort_by(|a, b| b.gpu_hours.total_cmp(&a.gpu_hours));
    DoctorLosses { lost_gpu_hours: hours(lost_s), unobserved_gpu_hours: hours(unobserved_s), parts }
}

impl DoctorLosses {
    /// Returns the hours that are counted for a rule.
    pub fn explained_by(&self, rule: &str) -> f64 {
        let own = self.parts.iter().find(|part| part.rule == Some(rule));
        own.map_or(0.0, |part| part.gpu_hours)
    }
}

impl<'a> UnclaimedLoss<'a> {
    fn new(facts: &'a DoctorFacts) -> Self {
        let mut cells = BTreeMap::new();
        for (gpu, own) in &facts.gpus {
            for (start, cell) in &own.cells {
                let lost = LostSeconds {
                    idle_s: (cell.busy_observed_s - cell.busy_s).max(0.0),
                    sm_s: (cell.sm_busy_s - cell.sm_active_s).max(0.0),
                };
                if lost.sum() > 0.0 {
                    cells.insert((gpu, *start), lost);
                }
            }
        }
        Self { facts, cells }
    }

    fn sum(&self) -> LostSeconds {
        let add = |sum: LostSeconds, one: &LostSeconds| LostSeconds {
            idle_s: sum.idle_s + one.idle_s,
            sm_s: sum.sm_s + one.sm_s,
        };
        self.cells.values().fold(LostSeconds::default(), add)
    }

    /// Takes the time that an issue explains, and returns its seconds.
    fn claim(&mut self, explained: &ExplainedLoss) -> f64 {
        let (facts, cell_s) = (self.facts, self.facts.cell_s as f64);
        let cells = self.cells.iter_mut();
        match explained {
            ExplainedLoss::Nothing => 0.0,
            ExplainedLoss::HostIdle { host, cells: starts } => cells
                .filter(|((gpu, start), _)| gpu.host == *host && starts.contains(start))
                .map(|(_, lost)| std::mem::take(&mut lost.idle_s))
                .sum(),
            ExplainedLoss::GpuIdle(place) => {
                let Some((gpu, own)) = facts.gpus.get_key_value(place) else { return 0.0 };
                let idle_s = |start| own.cells.get(start).map_or(0.0, |cell| cell.idle_s);
                self.cells
                    .range_mut((gpu, 0)..=(gpu, u64::MAX))
                    .map(|((_, start), lost)| take(&mut lost.idle_s, idle_s(start)))
                    .sum()
            }
            ExplainedLoss::GpuSm(place) => {
                let Some((gpu, _)) = facts.gpus.get_key_value(place) else { return 0.0 };
                let own = self.cells.range_mut((gpu, 0)..=(gpu, u64::MAX));
                own.map(|(_, lost)| std::mem::take(&mut lost.sm_s)).sum()
            }
            ExplainedLoss::Time { time, share } => cells
                .map(|((_, start), lost)| {
                    let begin = *start as f64;
                    let overlap_s = time.end.min(begin + cell_s) - time.start.max(begin);
                    let share = share * (overlap_s / cell_s).clamp(0.0, 1.0);
                    take_share(lost, share)
                })
                .sum(),
            ExplainedLoss::Estimate(seconds) => {
                let left_s = self.sum().sum();
                let share = if left_s > 0.0 { (seconds / left_s).min(1.0) } else { 0.0 };
                self.cells.values_mut().map(|lost| take_share(lost, share)).sum()
            }
        }
    }
}

/// Takes at most a number of seconds.
fn take(left_s: &mut f64, seconds: f64) -> f64 {
    let taken_s = seconds.min(*left_s);
    *left_s -= taken_s;
    taken_s
}

fn take_share(lost: &mut LostSeconds, share: f64) -> f64 {
    let taken_s = lost.sum() * share;
    *lost = LostSeconds { idle_s: lost.idle_s * (1.0 - share), sm_s: lost.sm_s * (1.0 - share) };
    taken_s
}
