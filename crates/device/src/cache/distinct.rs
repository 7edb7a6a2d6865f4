//! The distinct rows among the ids of a batch, and the row of each id.

/// The distinct rows of a batch. The next batch reuses the buffers.
#[derive(Clone, Debug, Default)]
pub struct DistinctRows {
    /// Distinct rows in ascending order.
    pub rows: Vec<u64>,
    /// The position of each id's row in [`Self::rows`], in the order in which ids were added.
    pub of_id: Vec<u32>,
    /// Ids with their numbers.
    numbered: Vec<(u64, u32)>,
}

impl DistinctRows {
    /// Forgets the last batch.
    pub fn clear(&mut self) {
        self.numbered.clear();
    }

    /// Adds ids of the batch. They must be rows of the table.
    pub fn add(&mut self, ids: &[i64]) {
        let first = self.numbered.len();
        let numbered = (first as u32..).zip(ids).map(|(number, &id)| (id as u64, number));
        self.numbered.extend(numbered);
    }

    /// Finds the distinct rows of all ids that were added.
    pub fn find(&mut self) {
        self.numbered.sort_unstable();
        self.rows.clear();
        self.of_id.resize(self.numbered.len(), 0);
        for &(row, number) in &self.numbered {
            if self.rows.last() != Some(&row) {
                self.rows.push(row);
            }
            self.of_id[number as usize] = self.rows.len() as u32 - 1;
        }
    }
}
