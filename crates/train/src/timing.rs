//! Times of training steps, as each rank measures them and as a run reports them.
//!
//! The time of an action of a step comes from `model`, and the waits within it from `lane`.

use std::ops::AddAssign;
use std::time::Duration;

use schema::stage::Overlap;
use serde::{Deserialize, Serialize};

/// Number of [`Overlap`]s.
const OVERLAPS: usize = Overlap::ALL.len();

/// Times of some steps of a rank, summed, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SummedTimes {
    pub steps: u64,
    pub step_ns: u64,
    /// Time in which the device computed. For an asynchronous device such as a GPU, the time for
    /// which the host waited for it.
    pub device_ns: u64,
    /// Time of lookups. Asynchronous devices do not report it, nor that of row updates.
    pub lookup_ns: u64,
    pub update_ns: u64,
    /// Time that the compute thread spent on rows of tables in files: their choice, copies and
    /// waits.
    pub fetch_ns: u64,
    /// Time that the compute thread spent on exchanges, by [`Overlap`]: copies and waits.
    pub exchange_ns: [u64; OVERLAPS],
    /// Time in which the compute thread waited for exchanges, by [`Overlap`].
    pub exposed_ns: [u64; OVERLAPS],
}

/// Number of values of [`SummedTimes`].
const VALUES: usize = 6 + 2 * OVERLAPS;

impl SummedTimes {
    /// Size of the times in a message.
    pub(crate) const BYTES: usize = 8 * VALUES;

    /// Adds the time for which the compute thread waited for the end of an exchange.
    pub(crate) fn add_wait(&mut self, overlap: Overlap, waited: Duration) {
        self.exposed_ns[overlap as usize] += nanoseconds(waited);
    }

    pub(crate) fn write(&self, bytes: &mut [u8]) {
        let Self { steps, step_ns, device_ns, lookup_ns, update_ns, fetch_ns, .. } = *self;
        let first = [steps, step_ns, device_ns, lookup_ns, update_ns, fetch_ns];
        let values = first.into_iter().chain(self.exchange_ns).chain(self.exposed_ns);
        for (to, value) in bytes.chunks_exact_mut(8).zip(values) {
            to.copy_from_slice(&value.to_le_bytes());
        }
    }

    /// Reads the values that [`Self::write`] wrote. Missing ones are 0.
    pub(crate) fn read(bytes: &[u8]) -> Self {
        let mut values = [0; VALUES];
        for (value, from) in values.iter_mut().zip(bytes.as_chunks().0) {
            *value = u64::from_le_bytes(*from);
        }
        let [steps, step_ns, device_ns, lookup_ns, update_ns, fetch_ns, exchanges @ ..] = values;
        let (exchange_ns, exposed_ns): (&[u64], &[u64]) = exchanges.split_at(OVERLAPS);
        let by_overlap = |values: &[u64]| std::array::from_fn(|overlap| values[overlap]);
        let (exchange_ns, exposed_ns) = (by_overlap(exchange_ns), by_overlap(exposed_ns));
        let times =
            Self { steps, step_ns, device_ns, lookup_ns, update_ns, fetch_ns, ..Self::default() };
        Self { exchange_ns, exposed_ns, ..times }
    }
}

impl AddAssign for SummedTimes {
    fn add_assign(&mut self, other: Self) {
        self.steps += other.steps;
        self.step_ns += other.step_ns;
        self.device_ns += other.device_ns;
        self.lookup_ns += other.lookup_ns;
        self.update_ns += other.update_ns;
        self.fetch_ns += other.fetch_ns;
        for (sum, exchange) in self.exchange_ns.iter_mut().zip(other.exchange_ns) {
            *sum += exchange;
        }
        for (sum, exposed) in self.exposed_ns.iter_mut().zip(other.exposed_ns) {
            *sum += exposed;
        }
    }
}

/// Returns a time in nanoseconds, or the largest number if it is longer than 500 years.
pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Mean times of the training steps of a rank, in milliseconds.
///
/// An exchange is exposed while the compute thread waits for it. Its whole time contains the copies
/// into and out of messages, too. `step_ms` is `device_ms` plus
/// `host_ms`, and `host_ms` is `host_without_waits_ms` plus all exposed times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankTiming {
    pub rank: u32,
    /// Time of a step without the wait for input.
    pub step_ms: f64,
    /// Time in which the device computed. For an asynchronous device such as a GPU, the time for
    /// which the host waited for it.
    pub device_ms: f64,
    /// Times of lookups, row updates and dense layers, which add up to `device_ms`. Asynchronous
    /// devices report only dense layers, with the time of all.
    pub lookup_ms: f64,
    pub update_ms: f64,
    pub dense_ms: f64,
    /// Time that the compute thread spent on rows of tables in files: their choice, copies and
    /// waits, also those for their ids.
    #[serde(default)]
    pub row_fetch_ms: f64,
    pub input_distribution_ms: f64,
    pub pooled_exchange_ms: f64,
    pub gradient_exchange_ms: f64,
    pub all_reduce_ms: f64,
    pub host_ms: f64,
    pub host_without_waits_ms: f64,
    pub exposed_input_distribution_ms: f64,
    pub exposed_pooled_exchange_ms: f64,
    pub exposed_gradient_exchange_ms: f64,
    pub exposed_all_reduce_ms: f64,
    /// Time for which the compute thread waited for a command of rank 0, or for the losses of other
    /// ranks.
    pub exposed_control_ms: f64,
}

/// Returns the mean times of each rank that has counted a step. `times` has one entry per rank.
#[must_use]
pub fn mean_times(times: &[SummedTimes]) -> Vec<RankTiming> {
    let counted = (0..).zip(times).filter(|(_, times)| times.steps > 0);
    let timing = |(rank, times): (u32, &SummedTimes)| {
        let mean_ms = |ns: u64| ns as f64 / times.steps as f64 / 1e6;
        let exposed_ms = |overlap| mean_ms(times.exposed_ns[overlap as usize]);
        let exchange_ms = |overlap| mean_ms(times.exchange_ns[overlap as usize]);
        let dense_ns = times.device_ns.saturating_sub(times.lookup_ns + times.update_ns);
        let host_ns = times.step_ns.saturating_sub(times.device_ns);
        RankTiming {
            rank,
            step_ms: mean_ms(times.step_ns),
            device_ms: mean_ms(times.device_ns),
            lookup_ms: mean_ms(times.lookup_ns),
            update_ms: mean_ms(times.update_ns),
            dense_ms: mean_ms(dense_ns),
            row_fetch_ms: mean_ms(times.fetch_ns),
            input_distribution_ms: exchange_ms(Overlap::Input),
            pooled_exchange_ms: exchange_ms(Overlap::Pooled),
            gradient_exchange_ms: exchange_ms(Overlap::Gradient),
            all_reduce_ms: exchange_ms(Overlap::AllReduce),
            host_ms: mean_ms(host_ns),
            host_without_waits_ms: mean_ms(host_ns.saturating_sub(times.exposed_ns.iter().sum())),
            exposed_input_distribution_ms: exposed_ms(Overlap::Input),
            exposed_pooled_exchange_ms: exposed_ms(Overlap::Pooled),
            exposed_gradient_exchange_ms: exposed_ms(Overlap::Gradient),
            exposed_all_reduce_ms: exposed_ms(Overlap::AllReduce),
            exposed_control_ms: exposed_ms(Overlap::Control),
        }
    };
    counted.map(timing).collect()
}

/// Returns the share of the time of all steps in which compute threads waited for exchanges.
pub(crate) fn exposed_share(times: &[SummedTimes]) -> f64 {
    let exposed = times.iter().flat_map(|times| times.exposed_ns).sum::<u64>();
    let steps = times.iter().map(|times| times.step_ns).sum::<u64>();
    exposed as f64 / steps.max(1) as f64
}

/// Adds the times of each rank to the sums, in rank order.
pub(crate) fn add_times(
    sums: &mut Vec<SummedTimes>,
    times: impl ExactSizeIterator<Item = SummedTimes>,
) {
    sums.resize(times.len().max(sums.len()), SummedTimes::default());
    sums.iter_mut().zip(times).for_each(|(sum, times)| *sum += times);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use schema::stage::Overlap;

    use super::{SummedTimes, exposed_share, mean_times};

    #[test]
    fn parts_of_a_step_sum_to_its_time() {
        let mut times = SummedTimes {
            steps: 2,
            step_ns: 40_000_000,
            device_ns: 10_000_000,
            lookup_ns: 2_000_000,
            update_ns: 4_000_000,
            fetch_ns: 3_000_000,
            exchange_ns: [0, 0, 8_000_000, 0, 0],
            exposed_ns: [0; 5],
        };
        times.add_wait(Overlap::Gradient, Duration::from_millis(6));
        times.add_wait(Overlap::Control, Duration::from_millis(2));
        let mut bytes = [0; SummedTimes::BYTES];
        times.write(&mut bytes);
        assert_eq!(SummedTimes::read(&bytes), times);
        assert!((exposed_share(&[times, times]) - 0.2).abs() < 1e-9);
        let timings = mean_times(&[SummedTimes::default(), SummedTimes::read(&bytes)]);
        let [timing] = timings[..] else { panic!("{timings:?}") };
        assert_eq!((timing.rank, timing.step_ms, timing.device_ms), (1, 20.0, 5.0));
        assert_eq!(timing.row_fetch_ms, 1.5);
        assert_eq!((timing.host_ms, timing.host_without_waits_ms), (15.0, 11.0));
        assert_eq!((timing.lookup_ms, timing.update_ms, timing.dense_ms), (1.0, 2.0, 2.0));
        assert_eq!((timing.gradient_exchange_ms, timing.pooled_exchange_ms), (4.0, 0.0));
        assert_eq!((timing.exposed_gradient_exchange_ms, timing.exposed_control_ms), (3.0, 1.0));
    }
}
