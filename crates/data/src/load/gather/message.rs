//! Encodes decoded rows as a message to another rank, and reads such messages.
//!
//! A message is a sequence of 8-byte words: the kind, the number of rows, whether ids take 64 bits,
//! and the counts of ids per feature. Then come the values of the rows, array by array. A message
//! of the other kind has the text of an error.

use std::sync::Arc;

use bytemuck::{Pod, cast_slice, cast_slice_mut};

use super::{DecodedRows, Features, IdWindow, IdsRead};
use crate::dataset::Dataset;

const ROWS: u64 = 0;
const FAILURE: u64 = 1;

/// The arrays of a message, which sender and receiver derive from the same model and dataset.
pub(crate) struct MessageLayout {
    features: Arc<Features>,
    /// Whether each categorical column of the dataset holds lists.
    is_list: Vec<bool>,
}

impl MessageLayout {
    pub(crate) fn new(features: &Arc<Features>, dataset: &Dataset) -> Self {
        let columns = &dataset.manifest().columns.categorical;
        let is_list = columns.iter().map(|column| column.is_list).collect();
        Self { features: Arc::clone(features), is_list }
    }

    /// Encodes some rows of `from`, each given as an index into `from` and a row in it. The message
    /// also has the counts of all ids of `from`.
    pub(crate) fn encode(&self, from: &[DecodedRows], rows: &[(u32, u32)]) -> Vec<u8> {
        let is_wide = from.iter().any(|decoded| matches!(decoded.ids, IdWindow::Wide(_)));
        let mut bytes = Vec::with_capacity(self.message_bytes(from, rows.len()));
        bytes.extend_from_slice(cast_slice(&[ROWS, rows.len() as u64, u64::from(is_wide)]));
        for feature in 0..self.features.len() {
            let count = |count: fn(&IdsRead) -> u64| -> u64 {
                from.iter().map(|decoded| count(&decoded.read[feature])).sum()
            };
            let counts = [count(|read| read.ids), count(|read| read.outside)];
            bytes.extend_from_slice(cast_slice(&counts));
        }
        for &(part, row) in rows {
            let DecodedRows { width, numbers, .. } = &from[part as usize];
            bytes.extend_from_slice(cast_slice(&numbers[row as usize * width..][..*width]));
        }
        for &(part, row) in rows {
            let DecodedRows { singles, ids, .. } = &from[part as usize];
            let start = row as usize * singles;
            match ids {
                IdWindow::Wide(ids) => {
                    bytes.extend_from_slice(cast_slice(&ids[start..][..*singles]));
                }
                IdWindow::Narrow(ids) if !is_wide => {
                    bytes.extend_from_slice(cast_slice(&ids[start..][..*singles]));
                }
                IdWindow::Narrow(ids) => {
                    let wide = ids[start..][..*singles].iter().map(|&id| i64::from(id));
                    bytes.extend(wide.flat_map(i64::to_ne_bytes));
                }
            }
        }
        for list in 0..from.first().map_or(0, |decoded| decoded.lists.len()) {
            let bag = |&(part, row): &(u32, u32)| from[part as usize].lists[list].row(row as usize);
            let mut end = 0;
            for row in rows {
                end += bag(row).len() as u32;
                bytes.extend_from_slice(&end.to_ne_bytes());
            }
            rows.iter().for_each(|row| bytes.extend_from_slice(cast_slice(bag(row))));
        }
        bytes
    }

    /// Estimates the bytes of a message with `rows` rows. Lists are not counted.
    fn message_bytes(&self, from: &[DecodedRows], rows: usize) -> usize {
        let words = 3 + 2 * self.features.len();
        let row = from.first().map_or(0, |decoded| decoded.width + decoded.singles);
        words * size_of::<u64>() + rows * row * size_of::<f32>()
    }

    /// Reads a message. Returns `None` if it does not have this layout, and the text of a failure.
    pub(crate) fn decode(&self, bytes: &[u8]) -> Option<Result<DecodedRows, String>> {
        let mut rest = MessageReader { bytes };
        if rest.word()? == FAILURE {
            return Some(Err(String::from_utf8_lossy(rest.bytes).into_owned()));
        }
        let (rows, is_wide) = (usize::try_from(rest.word()?).ok()?, rest.word()? != 0);
        let mut decoded = DecodedRows::with_room(0, &self.features, |column| self.is_list[column]);
        for read in &mut decoded.read {
            *read = IdsRead { ids: rest.word()?, outside: rest.word()? };
        }
        decoded.numbers = rest.values(rows.checked_mul(decoded.width)?)?;
        let ids = rows.checked_mul(decoded.singles)?;
        decoded.ids = match is_wide {
            true => IdWindow::Wide(rest.values(ids)?),
            false => IdWindow::Narrow(rest.values(ids)?),
        };
        for list in decoded.lists.iter_mut().filter(|_| rows > 0) {
            let ends: Vec<u32> = rest.values(rows)?;
            list.values = rest.values(*ends.last()? as usize)?;
            if !ends.is_sorted() {
                return None;
            }
            list.ends = Some(ends);
        }
        rest.bytes.is_empty().then_some(Ok(decoded))
    }
}

/// Encodes the text of an error in place of rows.
pub(crate) fn encode_failure(problem: &str) -> Vec<u8> {
    [&FAILURE.to_ne_bytes(), problem.as_bytes()].concat()
}

/// The part of a message that was not read yet.
struct MessageReader<'a> {
    bytes: &'a [u8],
}

impl MessageReader<'_> {
    fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.bytes.split_first_chunk()?;
        self.bytes = rest;
        Some(u64::from_ne_bytes(*word))
    }

    fn values<T: Pod>(&mut self, count: usize) -> Option<Vec<T>> {
        let (bytes, rest) = self.bytes.split_at_checked(count.checked_mul(size_of::<T>())?)?;
        self.bytes = rest;
        // The bytes may not be aligned, so they are copied.
        let mut values = vec![T::zeroed(); count];
        cast_slice_mut(&mut values).copy_from_slice(bytes);
        Some(values)
    }
}
