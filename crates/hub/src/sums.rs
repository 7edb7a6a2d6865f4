//! The additive sums of a fleet, from which every rate and loss follows.
//!
//! Each sum is a number of weighted GPU seconds. A layer contains the next one: deployed GPUs,
//! schedulable ones, those on busy hosts, allocated ones, busy ones, and busy multiprocessors.
//! Rates are ratios of sums, so sums of any parts of a fleet can be added up exactly.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Number of layers of a fleet.
pub const LAYERS: usize = 6;
/// Number of dimensions by which sums are grouped.
pub const DIMENSIONS: usize = 6;
/// Number of sums of a part of the fleet.
pub const SUMS: usize = 12;
/// Share of an interval in which a GPU that counts as idle may be busy, as in the agent.
pub const IDLE_BUSY_MAX: f64 = 0.01;
/// Number of parts into which the deployed time is divided.
pub const PART_COUNT: usize = 8;
/// Names of the losses between two layers, and of the rest that does useful work.
pub const PARTS: [&str; PART_COUNT] = [
    "not schedulable",
    "idle hosts",
    "not allocated",
    "GPU not observed",
    "GPU idle",
    "SM not observed",
    "SM idle",
    "SM active",
];

/// Weighted GPU seconds of a selection of hosts and a time, by layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FleetSums {
    pub deployed_s: f64,
    pub schedulable_s: f64,
    pub on_busy_hosts_s: f64,
    pub allocated_s: f64,
    /// Seconds in which an allocated GPU ran a kernel.
    pub busy_s: f64,
    /// Seconds of allocated GPUs multiplied by the share of active multiprocessors.
    pub sm_active_s: f64,
    /// The part of `allocated_s` in which `busy_s` was observed.
    pub busy_observed_s: f64,
    /// The part of `allocated_s` in which `sm_active_s` was observed.
    pub sm_observed_s: f64,
    /// The part of `busy_s` in which `sm_active_s` was not observed.
    pub busy_sm_unknown_s: f64,
    /// The part of `busy_observed_s` in intervals in which the GPU was idle throughout.
    pub held_idle_s: f64,
    /// Seconds of allocated GPUs multiplied by their occupancy: resident warps ÷ their maximum,
    /// over elapsed cycles.
    pub sm_occupancy_s: f64,
    /// The part of `allocated_s` in which `sm_occupancy_s` was observed.
    pub occupancy_observed_s: f64,
}

/// The part of a fleet to which sums belong, as a text for each [`Dimension`]. An empty text stands
/// for GPUs that nobody holds, or for a dimension by which the sums are not grouped.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SumKey {
    pub members: [Arc<str>; DIMENSIONS],
}

/// A property of GPU time by which sums are grouped and selected.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Dimension {
    Pool,
    Model,
    /// The workflow type of a run.
    Workflow,
    User,
    /// Scheduler and job, such as `slurm/123`.
    Run,
    Host,
}

impl Dimension {
    pub const ALL: [Self; DIMENSIONS] =
        [Self::Pool, Self::Model, Self::Workflow, Self::User, Self::Run, Self::Host];

    /// Returns the name of the dimension, which is also the name of its column.
    pub fn name(self) -> &'static str {
        ["pool", "model", "workflow", "user", "run", "host"][self as usize]
    }
}

impl FleetSums {
    /// Number of the first names, which each kept file has. Older files lack the others.
    pub const ALWAYS_KEPT: usize = 10;
    /// Names of all sums, in the order of [`Self::values`].
    pub const NAMES: [&str; SUMS] = [
        "deployed_s",
        "schedulable_s",
        "on_busy_hosts_s",
        "allocated_s",
        "busy_s",
        "sm_active_s",
        "busy_observed_s",
        "sm_observed_s",
        "busy_sm_unknown_s",
        "held_idle_s",
        "sm_occupancy_s",
        "occupancy_observed_s",
    ];

    /// Returns all sums in a fixed order.
    pub fn values(&self) -> [f64; SUMS] {
        [
            self.deployed_s,
            self.schedulable_s,
            self.on_busy_hosts_s,
            self.allocated_s,
            self.busy_s,
            self.sm_active_s,
            self.busy_observed_s,
            self.sm_observed_s,
            self.busy_sm_unknown_s,
            self.held_idle_s,
            self.sm_occupancy_s,
            self.occupancy_observed_s,
        ]
    }

    /// Creates sums from their values in the order of [`Self::values`].
    pub fn from_values(values: [f64; SUMS]) -> Self {
        let [deployed_s, schedulable_s, on_busy_hosts_s, allocated_s, busy_s, sm_active_s, ..] =
            values;
        let [.., busy_observed_s, sm_observed_s, busy_sm_unknown_s, held_idle_s, _, _] = values;
        let [.., sm_occupancy_s, occupancy_observed_s] = values;
        Self {
            deployed_s,
            schedulable_s,
            on_busy_hosts_s,
            allocated_s,
            busy_s,
            sm_active_s,
            busy_observed_s,
            sm_observed_s,
            busy_sm_unknown_s,
            held_idle_s,
            sm_occupancy_s,
            occupancy_observed_s,
        }
    }

    /// Adds the sums of another part of the fleet, or of another time.
    pub fn merge(&mut self, other: &Self) {
        let mut values = self.values();
        values.iter_mut().zip(other.values()).for_each(|(sum, value)| *sum += value);
        *self = Self::from_values(values);
    }

    /// Returns all sums multiplied by a number.
    pub fn scale(&self, factor: f64) -> Self {
        Self::from_values(self.values().map(|sum| sum * factor))
    }

    /// Returns the sums of the six layers. A layer is at most the one before it, although two
    /// clocks measured them.
    pub fn layers(&self) -> [f64; LAYERS] {
        let [deployed, schedulable, on_busy_hosts, allocated, busy, sm_active, ..] = self.values();
        let mut layers = [deployed, schedulable, on_busy_hosts, allocated, busy, sm_active];
        for at in 1..LAYERS {
            layers[at] = layers[at].min(layers[at - 1]);
        }
        layers
    }

    /// Divides the deployed time into [`PARTS`]. Their sum is `deployed_s`.
    pub fn parts(&self) -> [f64; PART_COUNT] {
        let [deployed, schedulable, on_busy_hosts, allocated, busy, sm_active] = self.layers();
        let gpu_unknown = (allocated - self.busy_observed_s).clamp(0.0, allocated - busy);
        let sm_unknown = self.busy_sm_unknown_s.clamp(0.0, busy - sm_active);
        [
            deployed - schedulable,
            schedulable - on_busy_hosts,
            on_busy_hosts - allocated,
            gpu_unknown,
            allocated - busy - gpu_unknown,
            sm_unknown,
            busy - sm_active - sm_unknown,
            sm_active,
        ]
    }

    /// Returns the least and the greatest possible share of the allocated time in which
    /// multiprocessors were active. The least counts all unobserved time as idle, and the greatest
    /// counts it as active. Returns `None` if nothing is allocated.
    pub fn efficiency(&self) -> Option<[f64; 2]> {
        let [.., gpu_unknown, _, sm_unknown, _, sm_active] = self.parts();
        let allocated = self.layers()[3];
        let upper = sm_active + sm_unknown + gpu_unknown;
        (allocated > 0.0).then(|| [sm_active / allocated, upper / allocated])
    }

    /// Returns the occupancy of multiprocessors over the elapsed cycles of the allocated time in
    /// which it was observed. Returns `None` if it was observed nowhere.
    pub fn occupancy(&self) -> Option<f64> {
        let is_observed = self.occupancy_observed_s > 0.0;
        is_observed.then(|| self.sm_occupancy_s / self.occupancy_observed_s)
    }

    /// Returns the parts in percent with one decimal, which add up to 100.0. The last part is
    /// rounded as usual; the others by the method of the largest remainder. `None` if nothing is
    /// deployed.
    pub fn shares(&self) -> Option<[f64; PART_COUNT]> {
        let deployed = self.deployed_s;
        if deployed <= 0.0 {
            return None;
        }
        let exact = self.parts().map(|part| part / deployed * 1000.0);
        let mut tenths = exact.map(f64::floor);
        let last = PART_COUNT - 1;
        tenths[last] = exact[last].round();
        let mut order: Vec<usize> = (0..last).collect();
        let remainder = |at: &usize| exact[*at] - tenths[*at];
        order.sort_by(|a, b| remainder(b).total_cmp(&remainder(a)));
        // The last part was rounded by at most half a tenth, so at least zero tenths are missing.
        let missing = (1000.0 - tenths.iter().sum::<f64>()).round().max(0.0) as usize;
        order.into_iter().take(missing).for_each(|at| tenths[at] += 1.0);
        Some(tenths.map(|tenth| tenth / 10.0))
    }
}

impl SumKey {
    /// Returns the member of a dimension.
    pub fn member(&self, dimension: Dimension) -> &str {
        &self.members[dimension as usize]
    }
}

#[cfg(test)]
mod tests {
    use testkit::Random;

    use super::FleetSums;

    fn sums(layers: [f64; 6]) -> FleetSums {
        let [a, b, c, d, e, f] = layers;
        FleetSums::from_values([a, b, c, d, e, f, d, d, 0.0, 0.0, 0.0, 0.0])
    }

    #[test]
    fn the_example_of_ten_thousand_hosts_has_24_3_percent() {
        let hosts = [10_000.0, 9_500.0, 8_550.0].map(|hosts| hosts * 8.0);
        let gpus = [60_192.0, 60_192.0 * 0.62, 60_192.0 * 0.62 * 0.52];
        let fleet = sums([hosts[0], hosts[1], hosts[2], gpus[0], gpus[1], gpus[2]]);
        let shares = fleet.shares().unwrap();
        assert_eq!(shares, [5.0, 9.5, 10.2, 0.0, 28.6, 0.0, 22.4, 24.3]);
        let layers = fleet.layers();
        let product: f64 = layers.windows(2).map(|pair| pair[1] / pair[0]).product();
        assert!((product - layers[5] / layers[0]).abs() < 1e-12);
    }

    #[test]
    fn shares_of_random_fleets_add_up_and_stay_near() {
        let mut random = Random(3);
        for _ in 0..2000 {
            let mut layers = [0.0; 6];
            let mut left = 1 + random.below(1_000_000_u64);
            for layer in &mut layers {
                *layer = left as f64;
                left = random.below(left + 1);
            }
            let unknown = |of: f64, random: &mut Random| of * random.below(120_u64) as f64 / 100.0;
            let mut fleet = sums(layers);
            fleet.busy_observed_s = unknown(layers[3], &mut random);
            fleet.busy_sm_unknown_s = unknown(layers[4], &mut random);
            let shares = fleet.shares().unwrap();
            let tenths: i64 = shares.iter().map(|share| (share * 10.0).round() as i64).sum();
            assert_eq!(tenths, 1000, "{layers:?} {shares:?}");
            for (share, part) in shares.iter().zip(fleet.parts()) {
                let error = share - part / layers[0] * 100.0;
                assert!(*share >= 0.0 && error.abs() < 0.2, "{layers:?} {shares:?}");
            }
        }
        assert_eq!(FleetSums::default().shares(), None);
    }
}
