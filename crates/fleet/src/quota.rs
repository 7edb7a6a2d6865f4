//! How much each of many senders may have: so much at once, and so much a second after that. One
//! who takes more gets nothing more, and the others lose nothing by it. Knows no clock.

use std::collections::BTreeMap;
use std::time::Duration;

/// Between two looks for senders that may be forgotten: each goes over all of them.
const PRUNE: Duration = Duration::from_millis(250);

/// What one sender may have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Units at once, after a pause.
    pub burst: f64,
    /// Units a second.
    pub per_s: f64,
}

/// The senders and what each of them has left.
#[derive(Debug)]
pub struct Quotas<K> {
    rate: Rate,
    keys_max: usize,
    buckets: BTreeMap<K, Bucket>,
    /// Shared by those that come when there are too many to know.
    rest: Bucket,
    pruned: Duration,
}

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

    /// Takes one unit for `key`; `false`, and counted, where it has none left.
    pub fn take(&mut self, now: Duration, key: &K) -> bool {
        let is_known = self.buckets.contains_key(key);
        let is_full = self.buckets.len() >= self.keys_max;
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

    /// Who was refused how often since the last call; `None` for all that were not told apart.
    pub fn take_refused(&mut self) -> Vec<(Option<K>, u64)> {
        let known = self.buckets.iter_mut().map(|(key, bucket)| (Some(key.clone()), bucket));
        known
            .chain([(None, &mut self.rest)])
            .filter(|(_, bucket)| bucket.refused > 0)
            .map(|(key, bucket)| (key, std::mem::take(&mut bucket.refused)))
            .collect()
    }

    /// Forgets senders that have everything left: a new one has the same.
    fn prune(&mut self, now: Duration) {
        let rate = self.rate;
        self.buckets.retain(|_, bucket| {
            bucket.fill(now, rate);
            bucket.left < rate.burst || bucket.refused > 0
        });
    }
}

impl Bucket {
    fn fill(&mut self, now: Duration, rate: Rate) {
        let since = now.saturating_sub(self.filled).as_secs_f64();
        self.left = (self.left + since * rate.per_s).min(rate.burst);
        self.filled = self.filled.max(now);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Quotas, Rate};

    #[test]
    fn one_who_takes_too_much_takes_nothing_from_others() {
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
    fn ever_new_senders_share_what_one_may_have() {
        let mut quotas = Quotas::new(Rate { burst: 1.0, per_s: 1.0 }, 4);
        let now = Duration::from_secs(1);
        let taken = (0..1000).filter(|key| quotas.take(now, key)).count();
        assert_eq!((taken, quotas.buckets.len()), (5, 4));
        let refused: u64 = quotas.take_refused().into_iter().map(|(_, count)| count).sum();
        assert_eq!(refused, 995);
        // After a pause those before are forgotten, and new ones are told apart again.
        assert!(quotas.take(Duration::from_secs(9), &5000) && quotas.buckets.len() == 1);
    }
}
