//! Adds up sums by time and by members of dimensions. Texts are numbers while sums are added, and
//! become texts again in the result.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::iter;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::types::Int32Type;
use arrow_array::{Array, DictionaryArray, RecordBatch, StringArray};
use arrow_buffer::NullBuffer;

use crate::error::Error;
use crate::store::column;
use crate::sums::{DIMENSIONS, Dimension, FleetSums, SumKey};
use crate::trees::ResourceTree;

/// Sums by the start of a time, in seconds since 1970, and by the part of the fleet.
pub type BucketSums = BTreeMap<(u64, SumKey), FleetSums>;

/// Number of a text that the selection of a query excludes.
pub const EXCLUDED: u32 = u32::MAX;

/// Which sums are wanted: of which time and which part of the fleet, and how they are grouped.
#[derive(Clone, Debug)]
pub struct SumQuery {
    pub tree: ResourceTree,
    /// Seconds since 1970, which are extended to whole minutes.
    pub range: Range<u64>,
    /// Length of the times that get sums of their own: a minute, an hour or a day. `None` adds up
    /// the whole range.
    pub step_s: Option<u64>,
    pub by: BTreeSet<Dimension>,
    /// The members that count, by dimension. Other dimensions are not restricted.
    pub selection: BTreeMap<Dimension, BTreeSet<String>>,
}

impl SumQuery {
    /// Creates a query for all time that only groups.
    pub fn group(by: &[Dimension], step_s: Option<u64>) -> Self {
        let by = by.iter().copied().collect();
        let (tree, selection) = Default::default();
        Self { tree, range: 0..u64::MAX, step_s, by, selection }
    }

    /// Whether the selection includes a row with these members.
    pub fn selects(&self, members: &[(Dimension, &str)]) -> bool {
        members.iter().all(|(dimension, member)| {
            self.selection.get(dimension).is_none_or(|chosen| chosen.contains(*member))
        })
    }

    /// Returns the start of the time to which a second belongs.
    pub fn bucket(&self, second: u64) -> u64 {
        self.step_s.map_or(self.range.start, |step_s| second / step_s * step_s)
    }

    /// Divides an interval among the times that have sums of their own. Returns the start of each
    /// time, and the seconds of the interval that lie within both the time and the range.
    pub fn divide(&self, interval: Range<u64>) -> impl Iterator<Item = (u64, u64)> {
        let end = interval.end.min(self.range.end);
        let mut start = interval.start.max(self.range.start);
        iter::from_fn(move || {
            if start >= end {
                return None;
            }
            let bucket = self.bucket(start);
            let next = self.step_s.map_or(end, |step_s| (bucket + step_s).min(end));
            let seconds = next - start;
            start = next;
            Some((bucket, seconds))
        })
    }

    /// Whether the answer depends on a dimension.
    pub fn needs(&self, dimension: Dimension) -> bool {
        self.by.contains(&dimension) || self.selection.contains_key(&dimension)
    }
}

/// The start of a time, and the numbers of the texts of a [`SumKey`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupKey {
    pub start: u64,
    pub members: [u32; DIMENSIONS],
}

/// The numbers of the texts of a query. All threads share them, so that their sums are added up
/// without texts.
#[derive(Debug)]
pub struct TextNumbers(Mutex<TextTable>);

/// Texts in the order of their numbers.
#[derive(Debug, Default)]
struct TextTable {
    texts: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, u32>,
}

impl Default for TextNumbers {
    fn default() -> Self {
        let texts = Self(Mutex::default());
        // Members that do not matter have the number 0, which therefore is the empty text.
        texts.number("");
        texts
    }
}

impl TextNumbers {
    fn number(&self, text: &str) -> u32 {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&number) = table.numbers.get(text) {
            return number;
        }
        let number = u32::try_from(table.texts.len()).unwrap_or(EXCLUDED);
        let text: Arc<str> = text.into();
        table.texts.push(Arc::clone(&text));
        table.numbers.insert(text, number);
        number
    }
}

/// Sums by the groups of a query.
pub struct GroupedSums<'a> {
    pub query: &'a SumQuery,
    texts: &'a TextNumbers,
    places: HashMap<GroupKey, usize>,
    groups: Vec<(GroupKey, FleetSums)>,
    /// Place of the last group, because neighboring rows mostly belong to the same one.
    last: usize,
}

impl<'a> GroupedSums<'a> {
    /// Creates an empty set of groups.
    pub fn new(query: &'a SumQuery, texts: &'a TextNumbers) -> Self {
        let (places, groups, last) = Default::default();
        Self { query, texts, places, groups, last }
    }

    /// Returns the number of a member, [`EXCLUDED`] if it is not selected, and 0 if the sums are
    /// not grouped by its dimension.
    pub fn number(&self, dimension: Dimension, member: &str) -> u32 {
        match self.query.selection.get(&dimension) {
            Some(selected) if !selected.contains(member) => EXCLUDED,
            _ if self.query.by.contains(&dimension) => self.texts.number(member),
            _ => 0,
        }
    }

    /// Returns the place of a group, which is created if it is new.
    #[inline]
    pub fn place(&mut self, key: GroupKey) -> usize {
        if self.groups.get(self.last).is_none_or(|(last, _)| *last != key) {
            self.last = *self.places.entry(key).or_insert_with(|| {
                self.groups.push((key, FleetSums::default()));
                self.groups.len() - 1
            });
        }
        self.last
    }

    /// Returns the sums of the group at a place.
    pub fn sums_at(&mut self, place: usize) -> &mut FleetSums {
        &mut self.groups[place].1
    }

    /// Adds sums to a group, unless a member of it is excluded.
    pub fn add(&mut self, key: GroupKey, sums: &FleetSums) {
        if !key.members.contains(&EXCLUDED) {
            let place = self.place(key);
            self.sums_at(place).merge(sums);
        }
    }

    /// Adds the groups of another set with the same texts.
    pub fn merge(&mut self, other: &Self) {
        other.groups.iter().for_each(|(key, sums)| self.add(*key, sums));
    }

    /// Returns the groups with their texts.
    pub fn finish(mut self) -> BucketSums {
        let table = self.texts.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Groups are sorted by the ranks of their texts, which is faster than by texts.
        let mut sorted: Vec<usize> = (0..table.texts.len()).collect();
        sorted.sort_by(|a, b| table.texts[*a].cmp(&table.texts[*b]));
        let mut ranks = vec![0_usize; sorted.len()];
        sorted.into_iter().enumerate().for_each(|(rank, text)| ranks[text] = rank);
        let rank = |key: &GroupKey| key.members.map(|number| ranks[number as usize]);
        self.groups.sort_by_cached_key(|(key, _)| (key.start, rank(key)));
        let group = |(key, sums): (GroupKey, FleetSums)| {
            let members = key.members.map(|number| Arc::clone(&table.texts[number as usize]));
            ((key.start, SumKey { members }), sums)
        };
        self.groups.into_iter().map(group).collect()
    }
}

/// A column of texts that are numbered once per different text.
pub struct TextColumn<'a> {
    codes: &'a [i32],
    /// The rows without a text, unless all have one.
    missing: Option<&'a NullBuffer>,
    /// The numbers of the texts by their codes.
    numbers: Vec<u32>,
    /// The number of the empty text, which stands for missing ones.
    number_missing: u32,
}

impl<'a> TextColumn<'a> {
    /// Reads the column `name` of rows, whose texts `number` numbers.
    ///
    /// # Errors
    /// If the column is missing or is not a dictionary of texts.
    pub fn new(
        batch: &'a RecordBatch,
        name: &'static str,
        path: &Path,
        mut number: impl FnMut(&str) -> u32,
    ) -> Result<Self, Error> {
        let array: &DictionaryArray<Int32Type> = column(batch, name, path)?;
        let texts: Option<&StringArray> = array.values().as_any().downcast_ref();
        let wrong = || Error::Column { path: path.to_owned(), column: name };
        let texts = texts.ok_or_else(wrong)?.iter();
        let numbers = texts.map(|text| number(text.unwrap_or_default())).collect();
        let (codes, missing) = (array.keys().values(), array.nulls());
        let missing = missing.filter(|missing| missing.null_count() > 0);
        Ok(Self { codes, missing, numbers, number_missing: number("") })
    }

    /// Whether a row has no text.
    #[inline]
    pub fn is_missing(&self, row: usize) -> bool {
        self.missing.is_some_and(|missing| missing.is_null(row))
    }

    /// Whether two rows have the same text, or both have none.
    #[inline]
    pub fn is_equal(&self, a: usize, b: usize) -> bool {
        self.codes[a] == self.codes[b] && self.is_missing(a) == self.is_missing(b)
    }

    /// Returns the number of the text of a row.
    #[inline]
    pub fn number(&self, row: usize) -> u32 {
        if self.is_missing(row) {
            return self.number_missing;
        }
        self.numbers[self.codes[row] as usize]
    }
}
