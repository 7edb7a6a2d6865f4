//! Enforces rate limits for many senders. Each sender may use a burst of units at once, and then a
//! number of units per second. A sender above its limit does not affect the others. The caller
//! provides the current time.

use std::collections::BTreeMap;
use std::time::Duration;

/// Minimum time between two searches for senders that can be forgotten, because each search visits
/// all senders.
const PRUNE: Duration = Duration::from_millis(250);

/// The rate limit of one sender, which is enforced by a token bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Number of units that are available at once after a pause.
    pub burst: f64,
    /// Number of units that become available per second.
    pub per_s: f64,
}

/// The token buckets of all senders with one common rate.
#[derive(Debug)]
pub struct Quotas<K> {
    rate: Rate,
    keys_max: usize,
    buckets: BTreeMap<K, Bucket>,
    /// The bucket that all senders beyond `keys_max` share.
    rest: Bucket,
    pruned: Duration,
}

/// A token bucket with the units left and the time of the last refill.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: f64,
    filled: Duration,
    refused: u64,
}

impl<K: Ord + Clone> Quotas<K> {
    /// Creates a quota of `rate` for each sender. Up to `keys_max` senders are tracked one by one;
    /// any further senders share a single quota.
    pub fn new(rate: Rate, keys_max: usize) -> Self {
        let rest = Bucket { left: rate.burst, filled: Duration::ZERO, refused: 0 };
        Self { rate, keys_max, buckets: BTreeMap::new(), rest, pruned: Duration::ZERO }
    }

    /// Takes one unit for the sender `key`. If no unit is left, counts a refusal and returns
    /// `false`.
    pub fn take(&mut self, now: Duration, key: &K) -> bool {
        let is_known = self.buckets.contains_key(key);
        let is_full = self.buckets.len() >= self.keys_max;
        // Pruning visits all senders, so it runs at most once per `PRUNE`, even if every message
        // comes from a new sender.
        if is_full && !is_known && now.saturating_sub(self.pruned) >= PRUNE {
            self.pruned = now;
            self.prune(now);
        }
        let bucket = if is_known || self.buckets.len() < self.keys_max {
            let fresh = Bucket { left: self.rate.burst, filled: now, refused: 0 };
            self.buckets.entry(key.clone()).or_insert(fresh)
        } else {
            &mut self.rest
        };
        bucket.fill(now, self.rate);
        if bucket.left < 1.0 {
            bucket.refused += 1;
            return false;
        }
        bucket.left -= 1.0;
        true
    }

    /// Returns the number of refusals of each sender since the last call. The key `None` stands for
    /// all senders that share a bucket.
    pub fn take_refused(&mut self) -> Vec<(Option<K>, u64)> {
        let tracked = self.buckets.iter_mut().map(|(key, bucket)| (Some(key.clone()), bucket));
        tracked
            .chain([(None, &mut self.rest)])
            .filter(|(_, bucket)| bucket.refused > 0)
            .map(|(key, bucket)| (key, std::mem::take(&mut bucket.refused)))
            .collect()
    }

    /// Forgets senders with a full bucket, because a new sender starts with a full bucket as well.
    fn prune(&mut self, now: Duration) {
        let rate = self.rate;
        self.buckets.retain(|_, bucket| {
            bucket.fill(now, rate);
            // Senders with refusals that were not reported yet are kept, so that the refusals are
            // not lost.
            bucket.left < rate.burst || bucket.refused > 0
        });
    }
}

impl Bucket {
    fn fill(&mut self, now: Duration, rate: Rate) {
        let since = now.saturating_sub(self.filled).as_secs_f64();
        self.left = (self.left + since * rate.per_s).min(rate.burst);
        // Threads may pass times out of order. If `filled` moved backward, units would be granted
        // twice.
        self.filled = self.filled.max(now);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Quotas, Rate};

    #[test]
    fn sender_above_its_limit_does_not_affect_others() {
        let mut quotas = Quotas::new(Rate { burst: 3.0, per_s: 2.0 }, 8);
        let s = Duration::from_secs_f64;
        let taken = (0..100).filter(|_| quotas.take(s(0.0), &1)).count();
        assert_eq!((taken, quotas.take(s(0.0), &2)), (3, true));
        let taken = (0..100).filter(|_| quotas.take(s(1.0), &1)).count();
        assert_eq!(taken, 2);
        assert_eq!(quotas.take_refused(), [(Some(1), 195)]);
        assert!(quotas.take_refused().is_empty());
    }

    #[test]
    fn senders_above_the_maximum_share_one_bucket() {
        let mut quotas = Quotas::new(Rate { burst: 1.0, per_s: 1.0 }, 4);
        let now = Duration::from_secs(1);
        let taken = (0..1000).filter(|key| quotas.take(now, key)).count();
        assert_eq!((taken, quotas.buckets.len()), (5, 4));
        let refused: u64 = quotas.take_refused().into_iter().map(|(_, count)| count).sum();
        assert_eq!(refused, 995);
        // After a pause, the earlier senders must be forgotten, so that a new sender gets a bucket
        // of its own.
        assert!(quotas.take(Duration::from_secs(9), &5000) && quotas.buckets.len() == 1);
    }
}
