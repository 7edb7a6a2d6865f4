//! Decoded rows to batches: ids of the model's features, dense rows, labels.
//!
//! Knows the model's features by column; not where rows come from or in which order they are
//! wanted.

use schema::{Batch, KeyedJaggedTensor};

use crate::dataset::Dataset;
use crate::error::Error;
use crate::fitted::Fitted;
use crate::loader::FeaturePlan;
use crate::parquet::part;
use crate::rows::{Categories, Rows};

/// How the values of a column become ids of a feature's table.
#[derive(Clone, Copy, Debug)]
enum ToId {
    /// Unsigned value modulo the table's rows.
    Modulo(u64),
    /// The value is the id.
    Exact,
}

impl ToId {
    #[inline]
    fn id(self, value: i64) -> i64 {
        match self {
            Self::Exact => value,
            Self::Modulo(rows) => {
                let value = value.cast_unsigned();
                // A division of 32 bits takes a fraction of the time, and Criteo's values fit.
                if (value | rows) >> 32 == 0 {
                    i64::from(value as u32 % rows as u32)
                } else {
                    (value % rows).cast_signed()
                }
            }
        }
    }
}

/// The features of a model as columns of a dataset.
#[derive(Clone, Debug)]
pub(crate) struct Features {
    dense: usize,
    /// Categorical columns in use, sorted.
    used: Vec<usize>,
    /// Per feature the position in `used` and the rule.
    features: Vec<(usize, ToId)>,
}

impl Features {
    /// Finds the features of `plan` among the columns of `fitted`; `place` names them in errors.
    pub(crate) fn of(
        plan: &FeaturePlan,
        fitted: &Fitted,
        place: &std::path::Path,
    ) -> Result<Self, Error> {
        let mut found = Vec::with_capacity(plan.columns.len());
        for (name, rows) in &plan.columns {
            let column = fitted.categorical.iter().position(|c| c.column == *name);
            let Some(column) = column else {
                let available = fitted.categorical.iter().map(|c| c.column.clone()).collect();
                let path = place.to_owned();
                return Err(Error::MissingColumn { path, column: name.clone(), available });
            };
            let too_small = |ids| Error::TableTooSmall { column: name.clone(), ids, rows: *rows };
            found.push(match fitted.id_count(column) {
                Some(ids) if ids > *rows => return Err(too_small(ids)),
                Some(_) => (column, ToId::Exact),
                None if *rows == 0 => return Err(too_small(1)),
                None => (column, ToId::Modulo(*rows)),
            });
        }
        let mut used: Vec<usize> = found.iter().map(|(column, _)| *column).collect();
        used.sort_unstable();
        used.dedup();
        let position = |column| used.partition_point(|&other| other < column);
        let features = found.iter().map(|&(column, to_id)| (position(column), to_id)).collect();
        Ok(Self { dense: fitted.dense.len(), used, features })
    }
}

/// Rows ready to be drawn from: ids final, dense values row by row.
pub(crate) struct Decoded {
    labels: Vec<f32>,
    /// `[rows, dense]`
    dense: Vec<f32>,
    /// Per feature.
    ids: Vec<Categories>,
}

impl Decoded {
    /// Decodes a row group.
    pub(crate) fn read(dataset: &Dataset, group: u64, features: &Features) -> Result<Self, Error> {
        let (part, group) = dataset.part_of(group)?;
        let batch = part.read(group, features.dense, &features.used)?;
        let columns: Vec<&[f32]> =
            (1..=features.dense).map(|column| part::floats(&batch, column)).collect();
        let first = 1 + features.dense;
        let ids = features
            .features
            .iter()
            .map(|&(at, to_id)| part::categories(&batch, first + at, |value| to_id.id(value)));
        Ok(Self {
            labels: part::floats(&batch, 0).to_vec(),
            dense: transpose(&columns, batch.num_rows()),
            ids: ids.collect(),
        })
    }

    /// Takes rows as they were converted.
    pub(crate) fn of(rows: &Rows, features: &Features) -> Self {
        let columns: Vec<&[f32]> = rows.dense.iter().map(Vec::as_slice).collect();
        let ids = features.features.iter().map(|&(at, to_id)| {
            let column = &rows.categorical[features.used[at]];
            Categories {
                values: column.values.iter().map(|&value| to_id.id(value)).collect(),
                ends: column.ends.clone(),
            }
        });
        Self {
            labels: rows.labels.clone(),
            dense: transpose(&columns, rows.len()),
            ids: ids.collect(),
        }
    }
}

fn transpose(columns: &[&[f32]], rows: usize) -> Vec<f32> {
    let width = columns.len();
    let mut out = vec![0.0; rows * width];
    for (column, values) in columns.iter().enumerate() {
        for (row, &value) in values.iter().enumerate() {
            out[row * width + column] = value;
        }
    }
    out
}

/// A batch being filled.
pub(crate) struct Filling {
    width: usize,
    labels: Vec<f32>,
    dense: Vec<f32>,
    /// Per feature the ids and the bags' lengths.
    ids: Vec<(Vec<i64>, Vec<usize>)>,
}

impl Filling {
    pub(crate) fn new(features: &Features) -> Self {
        Self {
            width: features.dense,
            labels: Vec::new(),
            dense: Vec::new(),
            ids: vec![Default::default(); features.features.len()],
        }
    }

    /// Samples taken so far.
    pub(crate) fn len(&self) -> usize {
        self.labels.len()
    }

    /// Takes `rows`, each a row of one of `from`.
    pub(crate) fn take(&mut self, from: &[Decoded], rows: &[(u32, u32)]) {
        for &(part, row) in rows {
            let (part, row) = (&from[part as usize], row as usize);
            self.labels.push(part.labels[row]);
            let start = row * self.width;
            self.dense.extend_from_slice(&part.dense[start..start + self.width]);
        }
        for (feature, (values, lengths)) in self.ids.iter_mut().enumerate() {
            if from.iter().all(|part| part.ids[feature].ends.is_none()) {
                let id = |&(part, row): &(u32, u32)| {
                    from[part as usize].ids[feature].values[row as usize]
                };
                values.extend(rows.iter().map(id));
                lengths.resize(lengths.len() + rows.len(), 1);
                continue;
            }
            for &(part, row) in rows {
                let bag = from[part as usize].ids[feature].row(row as usize);
                values.extend_from_slice(bag);
                lengths.push(bag.len());
            }
        }
    }

    /// The batch; what follows starts empty.
    pub(crate) fn finish(&mut self) -> Batch {
        let size = self.labels.len();
        let features = self.ids.len();
        let mut values = Vec::with_capacity(self.ids.iter().map(|(ids, _)| ids.len()).sum());
        let mut lengths = Vec::with_capacity(features * size);
        for (ids, bags) in &mut self.ids {
            values.append(ids);
            lengths.append(bags);
        }
        let mut sparse = KeyedJaggedTensor::from_lengths(features, &lengths, values);
        // A model without sparse features has no lengths to tell the batch size from.
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
    use super::ToId;

    #[test]
    fn modulo_is_unsigned_and_exact_at_every_width() {
        for rows in [1, 3, 1 << 20, (1 << 32) - 1, 1 << 32, (1 << 40) + 7] {
            for value in [0, 5, -1, i64::MIN, i64::MAX, 1 << 32, (1 << 32) - 1] {
                let expected = value.cast_unsigned() % rows;
                assert_eq!(
                    ToId::Modulo(rows).id(value),
                    expected.cast_signed(),
                    "{value} % {rows}"
                );
            }
        }
    }
}
