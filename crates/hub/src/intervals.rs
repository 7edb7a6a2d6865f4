//! A set of numbers or seconds that is kept as ranges, so that consecutive rows need little memory.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of `u64`, stored as disjoint half-open ranges. Ranges that touch are joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IntervalSet {
    /// The end of each range by its start.
    ends: BTreeMap<u64, u64>,
}

impl IntervalSet {
    /// Whether the set and a range have a common number.
    pub fn overlaps(&self, range: &Range<u64>) -> bool {
        let before = self.ends.range(..range.end).next_back();
        !range.is_empty() && before.is_some_and(|(_, &end)| end > range.start)
    }

    /// Adds a range, which may overlap the set.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let Range { mut start, mut end } = range;
        while let Some((&first, &last)) = self.ends.range(..=end).next_back() {
            if last < start {
                break;
            }
            self.ends.remove(&first);
            (start, end) = (start.min(first), end.max(last));
        }
        self.ends.insert(start, end);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use testkit::Random;

    use super::IntervalSet;

    #[test]
    fn random_ranges_equal_a_set_of_numbers() {
        let mut random = Random(7);
        for _ in 0..200 {
            let (mut set, mut numbers) = (IntervalSet::default(), BTreeSet::new());
            for _ in 0..20 {
                let start: u64 = random.below(40);
                let range = start..start + random.below(6_u64);
                let is_known = range.clone().any(|number| numbers.contains(&number));
                assert_eq!(set.overlaps(&range), is_known, "{set:?} {range:?}");
                set.insert(range.clone());
                numbers.extend(range);
            }
            let ranges: Vec<_> = set.ends.iter().map(|(start, end)| *start..*end).collect();
            assert_eq!(ranges.iter().cloned().flatten().collect::<BTreeSet<u64>>(), numbers);
            assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start), "{ranges:?}");
        }
    }
}
