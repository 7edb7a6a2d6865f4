//! The additive sums of a fleet, from which every rate and loss follows.
//!
//! Each sum is a number of weighted GPU seconds. A layer contains the next one: deployed GPUs,
//! schedulable ones, those on busy hosts, allocated ones, busy ones, and busy multiprocessors.
//! Rates are ratios of sums, so sums of any parts of a fleet can be added up exactly.

use serde::{Deserialize, Serialize};

/// Number of layers of a fleet.
pub const LAYERS: usize = 6;
/// Names of the losses between two layers, and of the rest that does useful work.
pub const PARTS: [&str; LAYERS] =
    ["not schedulable", "idle hosts", "not allocated", "GPU idle", "SM idle", "SM active"];

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
}

/// The part of a fleet to which sums belong. An empty text stands for GPUs that nobody holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SumKey {
    pub pool: String,
    pub model: String,
    pub workflow: String,
    pub user: String,
    /// Scheduler and job, such as `slurm/123`.
    pub run: String,
}

/// A member of [`SumKey`] by which a report is grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Dimension {
    Pool,
    Model,
    Workflow,
    User,
    Run,
}

impl FleetSums {
    /// Names of all sums, in the order of [`Self::values`].
    pub const NAMES: [&str; 8] = [
        "deployed_s",
        "schedulable_s",
        "on_busy_hosts_s",
        "allocated_s",
        "busy_s",
        "sm_active_s",
        "busy_observed_s",
        "sm_observed_s",
    ];

    /// Returns all sums in a fixed order.
    pub fn values(&self) -> [f64; 8] {
        [
            self.deployed_s,
            self.schedulable_s,
            self.on_busy_hosts_s,
            self.allocated_s,
            self.busy_s,
            self.sm_active_s,
            self.busy_observed_s,
            self.sm_observed_s,
        ]
    }

    /// Creates sums from their values in the order of [`Self::values`].
    pub fn from_values(values: [f64; 8]) -> Self {
        let [deployed_s, schedulable_s, on_busy_hosts_s, allocated_s, busy_s, sm_active_s, ..] =
            values;
        let [.., busy_observed_s, sm_observed_s] = values;
        Self {
            deployed_s,
            schedulable_s,
            on_busy_hosts_s,
            allocated_s,
            busy_s,
            sm_active_s,
            busy_observed_s,
            sm_observed_s,
        }
    }

    /// Adds the sums of another part of the fleet, or of another time.
    pub fn merge(&mut self, other: &Self) {
        let mut values = self.values();
        values.iter_mut().zip(other.values()).for_each(|(sum, value)| *sum += value);
        *self = Self::from_values(values);
    }

    /// Returns the sums of the six layers. A layer is at most the one before it, although two
    /// clocks measured them.
    pub fn layers(&self) -> [f64; LAYERS] {
        let [deployed, schedulable, on_busy_hosts, allocated, busy, sm_active, ..] = self.values();
        let mut layers = [deployed, schedulable, on_busy_hosts, allocated, busy, sm_active];
        for layer in 1..LAYERS {
            layers[layer] = layers[layer].min(layers[layer - 1]);
        }
        layers
    }

    /// Returns the five losses and the rest in percent of the deployed GPUs. Rounded to tenths,
    /// they add up to exactly 100.0. The rest is rounded as usual, and the losses by their largest
    /// remainders. Returns `None` if nothing is deployed.
    pub fn shares(&self) -> Option<[f64; LAYERS]> {
        let layers = self.layers();
        let [deployed, .., rest] = layers;
        if deployed <= 0.0 {
            return None;
        }
        let rest_tenths = (rest / deployed * 1000.0).round();
        let exact: Vec<f64> =
            layers.windows(2).map(|pair| (pair[0] - pair[1]) / deployed * 1000.0).collect();
        let mut tenths: Vec<f64> = exact.iter().map(|loss| loss.floor()).collect();
        let missing = 1000.0 - rest_tenths - tenths.iter().sum::<f64>();
        let mut order: Vec<usize> = (0..exact.len()).collect();
        let remainder = |at: &usize| exact[*at] - tenths[*at];
        order.sort_by(|a, b| remainder(b).total_cmp(&remainder(a)));
        // The rest was rounded by at most half a tenth, so at least zero tenths are missing.
        let missing = missing.round().max(0.0) as usize;
        order.into_iter().take(missing).for_each(|at| tenths[at] += 1.0);
        tenths.push(rest_tenths);
        let mut shares = [0.0; LAYERS];
        shares.iter_mut().zip(tenths).for_each(|(share, tenth)| *share = tenth / 10.0);
        Some(shares)
    }
}

impl SumKey {
    /// Returns the member of a dimension.
    pub fn member(&self, dimension: Dimension) -> &str {
        match dimension {
            Dimension::Pool => &self.pool,
            Dimension::Model => &self.model,
            Dimension::Workflow => &self.workflow,
            Dimension::User => &self.user,
            Dimension::Run => &self.run,
        }
    }
}

#[cfg(test)]
mod tests {
    use testkit::Random;

    use super::FleetSums;

    fn sums(layers: [f64; 6]) -> FleetSums {
        let [a, b, c, d, e, f] = layers;
        FleetSums::from_values([a, b, c, d, e, f, d, d])
    }

    #[test]
    fn the_example_of_ten_thousand_hosts_has_24_3_percent() {
        let hosts = [10_000.0, 9_500.0, 8_550.0].map(|hosts| hosts * 8.0);
        let gpus = [60_192.0, 60_192.0 * 0.62, 60_192.0 * 0.62 * 0.52];
        let fleet = sums([hosts[0], hosts[1], hosts[2], gpus[0], gpus[1], gpus[2]]);
        let shares = fleet.shares().unwrap();
        assert_eq!(shares, [5.0, 9.5, 10.2, 28.6, 22.4, 24.3]);
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
            let shares = sums(layers).shares().unwrap();
            let tenths: i64 = shares.iter().map(|share| (share * 10.0).round() as i64).sum();
            assert_eq!(tenths, 1000, "{layers:?} {shares:?}");
            let mut exact: Vec<f64> = layers.windows(2).map(|pair| pair[0] - pair[1]).collect();
            exact.push(layers[5]);
            for (share, part) in shares.iter().zip(exact) {
                let error = share - part / layers[0] * 100.0;
                assert!(*share >= 0.0 && error.abs() < 0.2, "{layers:?} {shares:?}");
            }
        }
        assert_eq!(FleetSums::default().shares(), None);
    }
}
