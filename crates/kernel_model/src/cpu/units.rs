//! Fits a time per unit of each amount of work, together with the time that threads take to wake
//! up.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::fit;
use super::work::CpuWork;
use crate::embedding::lookup::{Amount, WAKING};

/// Number of rounds that alternate between two estimates. Each round fits unit times, then
/// recomputes how long the caller waits for waking threads.
const ROUNDS: usize = 10;
/// Initial guess of the time that a thread takes to wake up, in nanoseconds.
const WAKING_NS: f64 = 10_000.0;

/// Time per unit of each amount of work, in nanoseconds. Amounts without an entry take no time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Units(BTreeMap<String, f64>);

impl Units {
    /// Fits unit times to operations and their measured times in nanoseconds.
    pub fn fit(works: &[(&CpuWork, f64)]) -> Self {
        let names = || works.first().into_iter().flat_map(|(work, _)| &work.amounts);
        let rounds = if names().any(|(name, _)| *name == WAKING) { ROUNDS } else { 1 };
        let (mut units, mut waking_ns) = (Self::default(), WAKING_NS);
        for _ in 0..rounds {
            let awake: Vec<CpuWork> = works
                .iter()
                .map(|(work, _)| {
                    let amounts = units.awake(work, waking_ns).collect();
                    CpuWork { amounts, ..(*work).clone() }
                })
                .collect();
            let times = works.iter().map(|(_, ns)| *ns);
            let found = fit::fit_units(&awake.iter().zip(times).collect::<Vec<_>>());
            let named = names().zip(found).filter(|(_, unit)| *unit > 0.0);
            units = Self(named.map(|((name, _), unit)| ((*name).to_owned(), unit)).collect());
            // If the fit assigns a unit time of 0 to waking, try a shorter waking time in the next
            // round.
            waking_ns = units.unit_ns(WAKING).max(waking_ns / 2.0);
        }
        units
    }

    /// Returns the time of each amount of an operation, in nanoseconds.
    pub fn times(&self, work: &CpuWork) -> impl Iterator<Item = f64> {
        self.awake(work, self.unit_ns(WAKING)).map(|amount| self.unit_ns(amount.0) * amount.1)
    }

    /// Checks that all unit times are finite and not negative.
    pub fn are_valid(&self) -> bool {
        self.0.values().all(|unit| unit.is_finite() && *unit >= 0.0)
    }

    /// Returns the amounts of an operation, with [`WAKING`] reduced to the part that the caller
    /// waits for. The caller waits no longer than the other threads save.
    fn awake(&self, work: &CpuWork, waking_ns: f64) -> impl Iterator<Item = Amount> {
        let is_shared = |amount: &&Amount| amount.0 != "call" && amount.0 != WAKING;
        let shared = work.amounts.iter().filter(is_shared);
        let shared_ns: f64 = shared.map(|amount| self.unit_ns(amount.0) * amount.1).sum();
        work.amounts.iter().map(move |&(name, amount)| match name {
            WAKING => (name, (amount * shared_ns / waking_ns.max(1.0)).min(1.0)),
            _ => (name, amount),
        })
    }

    fn unit_ns(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::{CpuWork, Units, WAKING};

    fn work(rows: f64) -> CpuWork {
        let amounts = vec![("call", 1.0), (WAKING, 1.0), ("rows", rows)];
        CpuWork { kind: "lookup".to_owned(), amounts, sizes: Vec::new() }
    }

    /// Time of a call in the fixture: 900 ns plus 10 ns per row with two threads, of which the
    /// second wakes up after 16 µs.
    fn taken(rows: f64) -> f64 {
        let alone = 20.0 * rows;
        900.0 + (alone + alone.min(16_000.0)) / 2.0
    }

    #[test]
    fn a_call_that_ends_before_others_wake_takes_what_one_thread_takes() {
        let works: Vec<CpuWork> = (1..60).map(|at| work(f64::from(at * at * 4))).collect();
        let known: Vec<(&CpuWork, f64)> =
            works.iter().map(|work| (work, taken(work.amounts[2].1))).collect();
        let units = Units::fit(&known);
        for rows in [30.0, 300.0, 3_000.0, 12_000.0] {
            let found: f64 = units.times(&work(rows)).sum();
            assert!((found / taken(rows) - 1.0).abs() < 0.02, "{rows} rows: {found}");
        }
    }
}
