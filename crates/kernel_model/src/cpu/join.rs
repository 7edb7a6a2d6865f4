//! Merges measurements of several runs on one machine.

use super::measured::{Machine, MeasuredSteps};
use crate::Error;

impl MeasuredSteps {
    /// Adds the measurements of another run on the same machine with the same number of threads.
    ///
    /// Rounds of tables of one shape are merged into one entry. Identical measurements are added
    /// only once. For each rate of the machine, the higher one is kept.
    ///
    /// # Errors
    /// [`Error::OtherCpu`] if the CPU, its caches or the number of threads differ.
    pub fn join(&mut self, other: Self) -> Result<(), Error> {
        let (own, others) = (identity(&self.machine), identity(&other.machine));
        if own != others {
            return Err(Error::OtherCpu { expected: own, got: others });
        }
        self.machine.join(&other.machine);
        for step in other.steps {
            if !self.steps.contains(&step) {
                self.steps.push(step);
            }
        }
        for tables in other.tables {
            match self.tables.iter_mut().find(|own| own.tables == tables.tables) {
                None => self.tables.push(tables),
                Some(own) => {
                    for round in tables.rounds {
                        if !own.rounds.contains(&round) {
                            own.rounds.push(round);
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

impl Machine {
    /// Takes the higher rate of each kind, because other programs may slow down a run, but no run
    /// exceeds the machine's capacity.
    fn join(&mut self, other: &Self) {
        let (spec, others) = (&mut self.spec, &other.spec);
        let more = |a: Option<f64>, b: Option<f64>| a.into_iter().chain(b).reduce(f64::max);
        spec.peak.f32 = spec.peak.f32.max(others.peak.f32);
        spec.peak.tf32 = more(spec.peak.tf32, others.peak.tf32);
        spec.peak.f16 = more(spec.peak.f16, others.peak.f16);
        spec.dram = spec.dram.max(others.dram);
        spec.clock_mhz = spec.clock_mhz.max(others.clock_mhz);
        spec.memory_bytes = spec.memory_bytes.max(others.memory_bytes);
    }
}

/// Describes the properties of a machine that do not change from run to run.
fn identity(machine: &Machine) -> String {
    let mib = |bytes: u64| bytes as f64 / f64::from(1u32 << 20);
    format!(
        "{} with {}, {} MiB of private caches and {} MiB of the last one",
        machine.spec.name,
        schema::unit::counted(u64::from(machine.threads), "thread"),
        mib(machine.private_cache_bytes),
        mib(machine.spec.l2_bytes)
    )
}
