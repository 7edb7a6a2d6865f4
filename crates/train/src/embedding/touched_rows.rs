//! Finds the rows of tables that several ranks hold and any of them looks up, while ids are
//! distributed. Gradients of these rows are summed by `replicas`.

use comm::Communicator;
use schema::JaggedTensor;

use super::layout::Slot;
use crate::Error;

/// Number of rows per word of a mask.
const WORD_BITS: usize = u64::BITS as usize;

/// The rows of tables that several ranks hold and any of them looks up, which are the same on all
/// these ranks. The tables are replicated tables of all ranks, or tiles that replica groups repeat.
#[derive(Clone, Debug, Default)]
pub struct TouchedRows {
    tables: Vec<ReplicaMask>,
    /// A bit per row, table after table.
    words: Vec<u64>,
    messages: Vec<Vec<i64>>,
    /// Touched rows in ascending order, counted over all tables.
    pub rows: Vec<u64>,
    /// Number of touched rows of each table.
    pub counts: Vec<usize>,
}

/// The place of a table in a mask of all of them.
#[derive(Clone, Copy, Debug)]
struct ReplicaMask {
    /// Number of rows of the tables before it.
    first_row: u64,
    first_word: usize,
    word_count: usize,
}

impl TouchedRows {
    /// Creates the masks of tables with the given numbers of rows.
    #[must_use]
    pub fn new(rows: &[u64]) -> Self {
        let (mut first_row, mut first_word) = (0, 0);
        let mask = |&rows: &u64| {
            let word_count = usize::try_from(rows).unwrap_or(usize::MAX).div_ceil(WORD_BITS);
            let mask = ReplicaMask { first_row, first_word, word_count };
            first_row += rows;
            first_word += word_count;
            mask
        };
        let tables: Vec<ReplicaMask> = rows.iter().map(mask).collect();
        Self { tables, ..Self::default() }
    }

    /// Whether ranks have tables in common.
    #[must_use]
    pub fn has_tables(&self) -> bool {
        !self.tables.is_empty()
    }

    /// Returns the bytes of the masks and of up to `rows` touched rows.
    #[must_use]
    pub fn bytes(&self, rows: usize) -> usize {
        let words: usize = self.tables.iter().map(|table| table.word_count).sum();
        (words + rows) * size_of::<u64>()
    }

    /// Marks the rows that a batch looks up. `slots` are those of the tables.
    pub fn mark_batch(&mut self, slots: &[Slot], sparse: &JaggedTensor) {
        self.clear();
        for slot in slots {
            let ids = slot.id_slot();
            if ids.position.is_none() {
                self.mark(slot, &sparse.values[sparse.feature(slot.feature)]);
                continue;
            }
            for sample in 0..sparse.batch_size {
                self.mark(slot, &sparse.values[ids.positions(sparse, sample)]);
            }
        }
    }

    /// Marks the rows of ids that were distributed to `slots`, with one feature per slot.
    pub fn mark_distributed(&mut self, slots: &[Slot], ids: &JaggedTensor) {
        self.clear();
        for (feature, slot) in slots.iter().enumerate() {
            self.mark(slot, &ids.values[ids.feature(feature)]);
        }
    }

    fn clear(&mut self) {
        let words = self.tables.last().map_or(0, |last| last.first_word + last.word_count);
        self.words.clear();
        self.words.resize(words, 0);
    }

    fn mark(&mut self, slot: &Slot, ids: &[i64]) {
        let words = &mut self.words[self.tables[slot.tile].first_word..];
        ids.iter().for_each(|&id| set_bit(words, id as usize));
    }

    /// Adds the rows that the other ranks have marked, and lists all of them.
    ///
    /// For each table, a rank sends the number of touched rows, and then these rows as a list or as
    /// a mask, whichever is shorter. The receiver knows from the number which form follows.
    ///
    /// # Errors
    /// [`Error::Communication`] if a peer left.
    pub fn exchange(&mut self, comm: &mut Communicator) -> Result<(), Error> {
        self.messages.resize_with(comm.world_size(), Vec::new);
        let own = comm.rank().index();
        for rank in (0..self.messages.len()).filter(|&rank| rank != own) {
            self.messages[rank].clear();
            for table in &self.tables {
                let words = &self.words[table.first_word..][..table.word_count];
                push_touched(words, &mut self.messages[rank]);
            }
        }
        comm.all_to_all(&mut self.messages)?;
        for rank in (0..self.messages.len()).filter(|&rank| rank != own) {
            let mut message = self.messages[rank].iter().copied();
            for table in &self.tables {
                let words = &mut self.words[table.first_word..][..table.word_count];
                merge_touched(&mut message, words);
            }
        }
        self.list_rows();
        Ok(())
    }

    fn list_rows(&mut self) {
        self.rows.clear();
        self.counts.clear();
        for table in &self.tables {
            let before = self.rows.len();
            let words = &self.words[table.first_word..][..table.word_count];
            for_each_bit(words, |row| self.rows.push(table.first_row + row as u64));
            self.counts.push(self.rows.len() - before);
        }
    }
}

fn set_bit(words: &mut [u64], at: usize) {
    words[at / WORD_BITS] |= 1 << (at % WORD_BITS);
}

fn for_each_bit(words: &[u64], mut visit: impl FnMut(usize)) {
    for (at, &word) in words.iter().enumerate() {
        let mut left = word;
        while left != 0 {
            visit(at * WORD_BITS + left.trailing_zeros() as usize);
            left &= left - 1;
        }
    }
}

/// Appends the rows of a mask to a message: their number, then the rows or the mask.
fn push_touched(words: &[u64], message: &mut Vec<i64>) {
    let count: usize = words.iter().map(|word| word.count_ones() as usize).sum();
    message.push(count as i64);
    if count < words.len() {
        for_each_bit(words, |row| message.push(row as i64));
    } else {
        message.extend(words.iter().map(|&word| word as i64));
    }
}

/// Adds the rows of a message to a mask.
fn merge_touched(message: &mut impl Iterator<Item = i64>, words: &mut [u64]) {
    let count = message.next().unwrap_or(0) as usize;
    if count < words.len() {
        message.take(count).for_each(|row| set_bit(words, row as usize));
    } else {
        words.iter_mut().zip(message).for_each(|(word, other)| *word |= other as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::{for_each_bit, merge_touched, push_touched, set_bit};

    #[test]
    fn touched_rows_travel_as_a_list_or_a_mask() {
        for (rows, len) in [(&[][..], 1), (&[0, 199][..], 3), (&[3, 64, 65, 130, 199][..], 5)] {
            let mut words = [0; 4];
            rows.iter().for_each(|&row| set_bit(&mut words, row));
            let mut message = Vec::new();
            push_touched(&words, &mut message);
            assert_eq!(message.len(), len);
            let mut merged = [0; 4];
            set_bit(&mut merged, 64);
            let mut values = message.into_iter();
            merge_touched(&mut values, &mut merged);
            assert_eq!(values.next(), None);
            let mut got = Vec::new();
            for_each_bit(&merged, |row| got.push(row));
            let mut expected = [rows, &[64]].concat();
            expected.sort_unstable();
            expected.dedup();
            assert_eq!(got, expected);
        }
    }
}
