//! Assembles batches from decoded rows: ids of the model's features, dense values and labels.
//!
//! This module maps the model's features to columns of the dataset. The module `shuffle` decides
//! the order of the rows.

pub(crate) mod message;

use std::path::PathBuf;

use schema::source::{CategoryKind, OutOfRange};
use schema::{Batch, JaggedTensor};

use crate::dataset::Dataset;
use crate::dataset::column_shape::ColumnShape;
use crate::dataset::fitted::Fitted;
use crate::dataset::part;
use crate::dataset::prepared_rows::{Categories, ColumnBags, PreparedRows};
use crate::error::Error;
use crate::load::shuffle::GroupPiece;
use crate::parse::ids::{self, IdsOutside};
use crate::parse::layout::Rules;

/// The categorical features of a model in its order, each with its column and the number of rows of
/// its table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeaturePlan {
    /// Column name and rows of the table, per feature. An id is the column's value modulo the rows,
    /// or the value itself if the dataset has exact ids. Ids outside the table follow the column's
    /// rule.
    pub columns: Vec<(String, u64)>,
}

/// The rule by which the values of a column become ids of a feature's table.
#[derive(Clone, Copy, Debug)]
enum IdMapping {
    /// The id is the value modulo the table's rows. Values below 0 represent large unsigned
    /// numbers.
    Unsigned(u64),
    /// The id is the value modulo the table's rows. Values below 0 are negative numbers, and the
    /// result is never negative, as in Python.
    Signed(u64),
    /// A value below the number of table rows is its own id. Every other value gets the id that is
    /// reserved for missing values.
    Missing(u64),
    Exact,
}

impl IdMapping {
    #[inline]
    fn id(self, value: i64) -> i64 {
        match self {
            Self::Exact => value,
            Self::Missing(rows) if value.cast_unsigned() < rows => value,
            Self::Missing(_) => MISSING_ROW,
            Self::Unsigned(rows) | Self::Signed(rows) => {
                let bits = value.cast_unsigned();
                // A 32-bit division takes a fraction of the time, and Criteo's values fit.
                if (bits | rows) >> 32 == 0 {
                    return i64::from(bits as u32 % rows as u32);
                }
                match self {
                    Self::Signed(_) if value < 0 => {
                        i128::from(value).rem_euclid(i128::from(rows)) as i64
                    }
                    _ => (bits % rows).cast_signed(),
                }
            }
        }
    }

    /// Adapts the rule to the signedness of the values in `bags`.
    fn for_bags(self, bags: &ColumnBags<'_>) -> Self {
        match self {
            Self::Signed(rows) if bags.unsigned => Self::Unsigned(rows),
            to_id => to_id,
        }
    }
}

/// Id of a missing category in a column without lists.
const MISSING_ROW: i64 = 0;

/// One feature of the model with the column of the dataset that feeds it.
#[derive(Clone, Debug)]
struct Feature {
    /// Index of the feature's column in [`Features::used`].
    at: usize,
    to_id: IdMapping,
    /// Column name, table rows and rule, for columns whose ids outside the table are counted.
    counted: Option<(String, u64, OutOfRange)>,
}

/// All features of the model, resolved to columns of a dataset.
#[derive(Clone, Debug)]
pub(crate) struct Features {
    dense: usize,
    /// Indices of the categorical columns in use, in ascending order.
    used: Vec<usize>,
    features: Vec<Feature>,
    place: PathBuf,
    /// Whether all ids fit into 32 bits.
    narrow: bool,
}

impl Features {
    /// Resolves the features of `plan` to columns of `fitted`. Errors name `place` as the source.
    pub(crate) fn new(
        plan: &FeaturePlan,
        fitted: &Fitted,
        place: &std::path::Path,
    ) -> Result<Self, Error> {
        let rules = fitted.rules()?;
        let mut resolved = Vec::with_capacity(plan.columns.len());
        for (name, rows) in &plan.columns {
            let column = fitted.categorical.iter().position(|c| c.column == *name);
            let Some(column) = column else {
                let available = fitted.categorical.iter().map(|c| c.column.clone()).collect();
                let path = place.to_owned();
                return Err(Error::MissingColumn { path, column: name.clone(), available });
            };
            let too_small = |ids| Error::TableTooSmall { column: name.clone(), ids, rows: *rows };
            let about = &fitted.categorical[column];
            let to_id = match (fitted.id_count(column), about.out_of_range) {
                (Some(ids), _) if ids > *rows => return Err(too_small(ids)),
                (Some(_), _) => IdMapping::Exact,
                (None, _) if *rows == 0 => return Err(too_small(1)),
                (None, Some(OutOfRange::Missing)) => IdMapping::Missing(*rows),
                // Hashes use all 64 bits as an unsigned number, and so did every id in version 1.
                (None, _) if rules == Rules::First || about.kind == CategoryKind::String => {
                    IdMapping::Unsigned(*rows)
                }
                (None, _) => IdMapping::Signed(*rows),
            };
            let counted = about.out_of_range.filter(|_| !matches!(to_id, IdMapping::Exact));
            resolved.push((column, to_id, counted.map(|rule| (name.clone(), *rows, rule))));
        }
        let mut used: Vec<usize> = resolved.iter().map(|(column, ..)| *column).collect();
        used.sort_unstable();
        used.dedup();
        let position = |column| used.partition_point(|&other| other < column);
        let features = resolved.into_iter().map(|(column, to_id, counted)| Feature {
            at: position(column),
            to_id,
            counted,
        });
        let features = features.collect();
        let narrow = plan.columns.iter().all(|&(_, rows)| rows <= u64::from(u32::MAX));
        let place = place.to_owned();
        Ok(Self { dense: fitted.dense.len(), used, features, place, narrow })
    }

    /// Returns the number of features.
    pub(crate) fn len(&self) -> usize {
        self.features.len()
    }

    /// Combines the counts per feature into a report of ids outside their tables.
    pub(crate) fn ids_outside(&self, counts: &[IdsRead]) -> Vec<IdsOutside> {
        let count = |(feature, count): (&Feature, &IdsRead)| {
            let (column, rows, rule) = feature.counted.clone()?;
            let IdsRead { ids, outside } = *count;
            Some(IdsOutside { column, rows, rule, ids, outside })
        };
        self.features.iter().zip(counts).filter_map(count).collect()
    }
}

impl Features {
    /// Returns the number of features.
    pub(crate) fn count(&self) -> usize {
        self.features.len()
    }
}

/// Rows decoded at a time, so that their columns stay in the fastest caches until they are
/// transposed.
const DECODE_ROWS: usize = 1024;
/// Rows of a batch gathered at a time, so that cache lines loaded for one column still serve the
/// next.
const GATHER_ROWS: usize = 64;

/// Decoded rows in row-major order with final ids. A batch takes rows from everywhere in the
/// window, so with separate columns each row would miss the caches once per column.
pub(crate) struct DecodedRows {
    /// Number of floats per row: the label and the dense values.
    width: usize,
    /// Labels and dense values, `[rows, width]`.
    numbers: Vec<f32>,
    /// Number of features with exactly one id per row.
    singles: usize,
    /// Ids of the features with one id per row, `[rows, singles]`.
    ids: IdWindow,
    lists: Vec<Categories>,
    /// Storage place of each feature.
    places: Vec<IdPlace>,
    /// Number of ids per feature; 0 for features whose ids are not counted.
    read: Vec<IdsRead>,
}

/// Number of ids of a feature and of those outside its table; 0 for features that are not counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IdsRead {
    pub ids: u64,
    pub outside: u64,
}

/// The place where [`DecodedRows`] stores the ids of a feature.
#[derive(Clone, Copy)]
enum IdPlace {
    /// Index of the feature's id within a row of [`DecodedRows::ids`].
    Single(usize),
    /// Index of the feature's bags in [`DecodedRows::lists`].
    List(usize),
}

/// Ids in the narrowest type that the largest table allows. Touching fresh memory is a large part
/// of the cost of filling a window.
enum IdWindow {
    Narrow(Vec<u32>),
    Wide(Vec<i64>),
}

/// A borrowed block of rows in columns, to be appended to [`DecodedRows`].
struct ColumnBlock<'a> {
    /// Values of the label, followed by the values of each dense column.
    numbers: Vec<&'a [f32]>,
    /// Ids of the columns in [`Features::used`].
    categorical: Vec<ColumnBags<'a>>,
}

impl DecodedRows {
    /// Estimates the bytes of a decoded row whose features have these columns and 32-bit ids.
    pub(crate) fn row_bytes(features: &[ColumnShape], dense: usize) -> f64 {
        let feature = |column: &ColumnShape| match column.is_list {
            true => column.ids_per_row * size_of::<i64>() as f64 + size_of::<u32>() as f64,
            false => size_of::<u32>() as f64,
        };
        let numbers = size_of::<f32>() * (1 + dense);
        numbers as f64 + features.iter().map(feature).sum::<f64>()
    }

    /// Decodes part of a row group of the dataset.
    pub(crate) fn read(
        dataset: &Dataset,
        piece: &GroupPiece,
        features: &Features,
    ) -> Result<Self, Error> {
        let (part, group) = dataset.part_of(piece.group)?;
        let rows = piece.rows.start as usize..piece.rows.end as usize;
        let columns = &dataset.manifest().columns.categorical;
        let is_list = |column: usize| columns[column].is_list;
        let unsigned = |at: usize| columns[features.used[at]].unsigned;
        let mut decoded = Self::with_room(rows.len(), features, is_list);
        let (dense, used) = (features.dense, &features.used);
        for batch in part.read(group, rows, dense, used, DECODE_ROWS)? {
            let batch = batch?;
            let numbers = (0..=dense).map(|column| part::float_values(&batch, column));
            let categorical = (0..used.len()).map(|at| ColumnBags {
                unsigned: unsigned(at),
                ..part::id_bags(&batch, 1 + dense + at)
            });
            let block =
                ColumnBlock { numbers: numbers.collect(), categorical: categorical.collect() };
            decoded.take(&block, features)?;
        }
        Ok(decoded)
    }

    /// Converts rows that were just parsed and transformed, for scoring.
    pub(crate) fn from_rows(rows: &PreparedRows, features: &Features) -> Result<Self, Error> {
        let is_list = |column: usize| rows.categorical[column].ends.is_some();
        let mut decoded = Self::with_room(rows.len(), features, is_list);
        let mut numbers = vec![&rows.labels[..]];
        numbers.extend(rows.dense.iter().map(Vec::as_slice));
        let used = features.used.iter();
        let categorical = used.map(|&column| rows.categorical[column].bags()).collect();
        decoded.take(&ColumnBlock { numbers, categorical }, features)?;
        Ok(decoded)
    }

    /// Returns the counts of ids per feature.
    pub(crate) fn ids_read(&self) -> &[IdsRead] {
        &self.read
    }

    /// Creates an empty value with capacity for `rows` rows.
    fn with_room(rows: usize, features: &Features, is_list: impl Fn(usize) -> bool) -> Self {
        let (mut singles, mut lists) = (0, Vec::new());
        let mut place = |feature: &Feature| {
            if is_list(features.used[feature.at]) {
                lists.push(Categories { ends: Some(Vec::new()), ..Categories::default() });
                return IdPlace::List(lists.len() - 1);
            }
            singles += 1;
            IdPlace::Single(singles - 1)
        };
        let places = features.features.iter().map(&mut place).collect();
        let width = 1 + features.dense;
        let ids = match features.narrow {
            true => IdWindow::Narrow(Vec::with_capacity(rows * singles)),
            false => IdWindow::Wide(Vec::with_capacity(rows * singles)),
        };
        let numbers = Vec::with_capacity(rows * width);
        let read = vec![IdsRead::default(); features.features.len()];
        Self { width, numbers, singles, ids, lists, places, read }
    }

    /// Counts the ids of `block` that are outside their tables, and fails if a column refuses them.
    fn count(&mut self, block: &ColumnBlock<'_>, features: &Features) -> Result<(), Error> {
        for (feature, read) in features.features.iter().zip(&mut self.read) {
            let Some((column, rows, rule)) = &feature.counted else { continue };
            let values = block.categorical[feature.at].values;
            let outside = ids::count_outside(values, *rows) as u64;
            read.ids += values.len() as u64;
            read.outside += outside;
            if outside > 0 && *rule == OutOfRange::Error {
                let id = values.iter().find(|id| id.cast_unsigned() >= *rows).copied();
                return Err(Error::IdOutOfRange {
                    place: features.place.display().to_string(),
                    column: column.clone(),
                    id: id.unwrap_or_default(),
                    rows: *rows,
                });
            }
        }
        Ok(())
    }

    /// Appends the rows of `block`.
    fn take(&mut self, block: &ColumnBlock<'_>, features: &Features) -> Result<(), Error> {
        self.count(block, features)?;
        let rows = block.numbers[0].len();
        let numbers = grow_zeroed(&mut self.numbers, rows * self.width);
        for (at, column) in block.numbers.iter().enumerate() {
            scatter(column, numbers, self.width, at, |value| value);
        }
        let (count, singles) = (rows * self.singles, self.singles);
        let columns = || {
            features.features.iter().zip(&self.places).map(|(feature, &place)| {
                let bags = &block.categorical[feature.at];
                (bags, feature.to_id.for_bags(bags), place)
            })
        };
        if let IdWindow::Narrow(ids) = &mut self.ids {
            let before = ids.len();
            let mut high = 0;
            place_ids(grow_zeroed(ids, count), singles, columns(), |id| {
                high |= id >> 32;
                id as u32
            });
            // An id that does not fit must be kept as it is, so that the lookup can report it.
            if high != 0 {
                self.ids = IdWindow::Wide(ids[..before].iter().map(|&id| i64::from(id)).collect());
            }
        }
        if let IdWindow::Wide(ids) = &mut self.ids {
            place_ids(grow_zeroed(ids, count), singles, columns(), |id| id);
        }
        for (bags, to_id, place) in columns() {
            match (place, to_id) {
                (IdPlace::Single(_), _) => {}
                (IdPlace::List(list), IdMapping::Missing(rows)) => {
                    self.lists[list].append_some(bags, |value| value.cast_unsigned() < rows);
                }
                (IdPlace::List(list), _) => self.lists[list].append(bags, |value| to_id.id(value)),
            }
        }
        Ok(())
    }

    /// Returns the label and the dense values of a row.
    #[inline]
    fn numbers(&self, row: u32) -> (f32, &[f32]) {
        let start = row as usize * self.width;
        let (label, dense) = (self.numbers[start], start + 1..start + self.width);
        (label, &self.numbers[dense])
    }

    /// Returns the id at index `at` of a row.
    #[inline]
    fn id(&self, row: u32, at: usize) -> i64 {
        let index = row as usize * self.singles + at;
        match &self.ids {
            IdWindow::Narrow(ids) => i64::from(ids[index]),
            IdWindow::Wide(ids) => ids[index],
        }
    }
}

/// Appends `count` zeros to `values` and returns them as a slice.
fn grow_zeroed<T: Copy + Default>(values: &mut Vec<T>, count: usize) -> &mut [T] {
    let start = values.len();
    values.resize(start + count, T::default());
    &mut values[start..]
}

/// Writes the ids of all features with one id per row into rows of `singles` ids.
fn place_ids<'a, T: Copy>(
    ids: &mut [T],
    singles: usize,
    columns: impl Iterator<Item = (&'a ColumnBags<'a>, IdMapping, IdPlace)>,
    mut stored: impl FnMut(i64) -> T,
) {
    for (bags, to_id, place) in columns {
        match (place, to_id) {
            (IdPlace::List(_), _) => {}
            (IdPlace::Single(at), IdMapping::Exact) => {
                scatter(bags.values, ids, singles, at, &mut stored);
            }
            (IdPlace::Single(at), _) => {
                scatter(bags.values, ids, singles, at, |value| stored(to_id.id(value)));
            }
        }
    }
}

/// Writes a column to index `at` of each row of `width` values.
fn scatter<V: Copy, T>(
    column: &[V],
    rows: &mut [T],
    width: usize,
    at: usize,
    mut map: impl FnMut(V) -> T,
) {
    for (row, &value) in rows.chunks_exact_mut(width).zip(column) {
        row[at] = map(value);
    }
}

/// Collects the rows of one batch, feature by feature.
pub(crate) struct BatchBuilder {
    size: usize,
    width: usize,
    labels: Vec<f32>,
    dense: Vec<f32>,
    /// Ids and bag lengths per feature.
    ids: Vec<(Vec<i64>, Vec<usize>)>,
}

impl BatchBuilder {
    pub(crate) fn new(features: &Features, size: usize) -> Self {
        Self {
            size,
            width: features.dense,
            labels: Vec::new(),
            dense: Vec::new(),
            ids: vec![Default::default(); features.features.len()],
        }
    }

    /// Estimates the bytes held in addition to the batch while it is assembled from this many bags
    /// and ids: ids and lengths by feature, and all lengths side by side.
    pub(crate) fn bytes(bags: usize, ids: usize) -> usize {
        ids * size_of::<i64>() + 2 * bags * size_of::<usize>()
    }

    /// Returns the number of samples added so far.
    pub(crate) fn len(&self) -> usize {
        self.labels.len()
    }

    /// Adds `rows`, each given as an index into `from` and a row in it.
    pub(crate) fn take(&mut self, from: &[DecodedRows], rows: &[(u32, u32)]) {
        if self.labels.is_empty() {
            // The vectors of the last batch were handed over with it, so room is reserved again.
            self.labels.reserve_exact(self.size);
            self.dense.reserve_exact(self.size * self.width);
        }
        for rows in rows.chunks(GATHER_ROWS) {
            for &(part, row) in rows {
                let (label, dense) = from[part as usize].numbers(row);
                self.labels.push(label);
                self.dense.extend_from_slice(dense);
            }
            for (feature, (values, lengths)) in self.ids.iter_mut().enumerate() {
                match from[0].places[feature] {
                    IdPlace::Single(at) => {
                        let id = |&(part, row): &(u32, u32)| from[part as usize].id(row, at);
                        values.extend(rows.iter().map(id));
                        lengths.resize(lengths.len() + rows.len(), 1);
                    }
                    IdPlace::List(list) => {
                        for &(part, row) in rows {
                            let bag = from[part as usize].lists[list].row(row as usize);
                            values.extend_from_slice(bag);
                            lengths.push(bag.len());
                        }
                    }
                }
            }
        }
    }

    /// Returns the batch and starts an empty one.
    pub(crate) fn finish(&mut self) -> Batch {
        let size = self.labels.len();
        let features = self.ids.len();
        let mut values = Vec::with_capacity(self.ids.iter().map(|(ids, _)| ids.len()).sum());
        let mut lengths = Vec::with_capacity(features * size);
        for (ids, bags) in &mut self.ids {
            values.append(ids);
            lengths.append(bags);
        }
        let mut sparse = JaggedTensor::from_lengths(features, &lengths, values);
        // Without sparse features there are no lengths to derive the batch size from.
        sparse.batch_size = size;
        Batch {
            size,
            dense: std::mem::take(&mut self.dense),
            sparse,
            labels: std::mem::take(&mut self.labels),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{DecodedRows, Feature, Features, IdMapping};
    use crate::dataset::prepared_rows::{Categories, PreparedRows};

    #[test]
    fn an_exact_id_beyond_32_bits_stays_what_it_is() {
        let features = vec![Feature { at: 0, to_id: IdMapping::Exact, counted: None }];
        let place = std::path::PathBuf::new();
        let features = Features { dense: 0, used: vec![0], features, place, narrow: true };
        for ids in [vec![7, 8], vec![7, 1 << 32 | 8], vec![-1, 7]] {
            let values = ids.clone();
            let categorical = vec![Categories { values, ..Categories::default() }];
            let labels = vec![0.0; ids.len()];
            let rows = PreparedRows { labels, categorical, ..PreparedRows::default() };
            let decoded = DecodedRows::from_rows(&rows, &features).unwrap();
            assert_eq!([decoded.id(0, 0), decoded.id(1, 0)], ids[..]);
        }
    }

    #[test]
    fn modulo_is_exact_at_every_width_with_and_without_a_sign() {
        for rows in [1, 3, 100, 1 << 20, (1 << 32) - 1, 1 << 32, (1 << 40) + 7, 1 << 62] {
            for value in [0, 5, -1, -100, i64::MIN, i64::MAX, 1 << 32, (1 << 32) - 1] {
                let unsigned = value.cast_unsigned() % rows;
                let floored = value.rem_euclid(rows.cast_signed());
                let signed = IdMapping::Signed(rows);
                assert_eq!(signed.id(value), floored, "{value} % {rows}");
                assert_eq!(IdMapping::Unsigned(rows).id(value), unsigned.cast_signed());
                let within = IdMapping::Missing(rows).id(value);
                let expected = if (0..rows.cast_signed()).contains(&value) { value } else { 0 };
                assert_eq!(within, expected, "{value} in {rows}");
            }
        }
        assert_eq!(IdMapping::Signed(100).id(-1), 99);
    }
}
