//! Stores the weights of nodes or edges, which are durations and delays in nanoseconds.

use std::collections::BTreeMap;

/// Entry of a weight that does not fit into four bytes.
const LARGE: u32 = u32::MAX;

/// Weights by index.
///
/// Graphs of long traces have millions of weights, and pricing copies them. Nearly all are between
/// 0 and 4.29 s, so they take four bytes each, and the others are stored separately.
#[derive(Clone, Debug, Default)]
pub(super) struct Weights {
    small: Vec<u32>,
    /// The weights whose entry in `small` is [`LARGE`]. Other entries are out of date.
    large: BTreeMap<usize, i64>,
}

impl Weights {
    pub(super) fn len(&self) -> usize {
        self.small.len()
    }

    pub(super) fn reserve(&mut self, weights: usize) {
        self.small.reserve(weights);
    }

    pub(super) fn push(&mut self, weight: i64) {
        self.small.push(0);
        self.set(self.small.len() - 1, weight);
    }

    pub(super) fn get(&self, at: usize) -> i64 {
        match self.small[at] {
            LARGE => self.large[&at],
            small => i64::from(small),
        }
    }

    pub(super) fn set(&mut self, at: usize, weight: i64) {
        self.small[at] = u32::try_from(weight).unwrap_or(LARGE);
        if self.small[at] == LARGE {
            self.large.insert(at, weight);
        }
    }
}

impl FromIterator<i64> for Weights {
    fn from_iter<I: IntoIterator<Item = i64>>(weights: I) -> Self {
        let weights = weights.into_iter();
        let mut stored = Self::default();
        stored.reserve(weights.size_hint().0);
        weights.for_each(|weight| stored.push(weight));
        stored
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_of_any_size_are_kept() {
        let given = [0, 7, i64::from(LARGE) - 1, i64::from(LARGE), 1 << 40, -1, i64::MIN];
        let mut weights: Weights = given.into_iter().collect();
        let all =
            |weights: &Weights| (0..weights.len()).map(|at| weights.get(at)).collect::<Vec<_>>();
        assert_eq!(all(&weights), given);
        (0..given.len()).for_each(|at| weights.set(at, given[given.len() - 1 - at]));
        assert!(all(&weights).into_iter().eq(given.into_iter().rev()));
    }
}
