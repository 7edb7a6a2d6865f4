//! Ids on their way between ranks, and the ids that a rank has received. `slot` decides where an
//! id goes.

use schema::JaggedTensor;

/// Ids that this rank sends to each rank, and later the ids that each rank sent to this one. The
/// ids of a rank are slot-major, and each slot has one bag per sample of the sender.
///
/// A device whose memory holds the ids leaves this rank's own ids there, so their entries are
/// empty, except for the lengths. Messages pass through host memory, and their sizes follow from
/// the lengths, which the host therefore reads. A library that sends from device memory would
/// instead send buffers of fixed capacity, and the counts beside them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IdMessages {
    /// Numbers of ids of the bags.
    pub lengths: Vec<Vec<i32>>,
    /// Ids, counted from the first row of the receiver's tile.
    pub values: Vec<Vec<i64>>,
    /// Factors of the bags, if any bag is averaged.
    pub scales: Vec<Vec<f32>>,
    /// Weights of the ids, if the batch has weights.
    pub weights: Vec<Vec<f32>>,
    pub has_weights: bool,
    /// Number of samples of each sender, which has a bag for each of them in every slot.
    pub samples: Vec<usize>,
    /// Number of ids of each rank that have been joined.
    pub(super) taken: Vec<usize>,
}

impl IdMessages {
    /// Clears the buffers, and provides one of each kind per rank for a batch of this rank.
    pub fn clear(&mut self, ranks: usize, batch_size: usize, has_weights: bool) {
        self.has_weights = has_weights;
        self.samples.clear();
        self.samples.resize(ranks, batch_size);
        clear_each(ranks, &mut self.lengths);
        clear_each(ranks, &mut self.values);
        clear_each(ranks, &mut self.scales);
        clear_each(ranks, &mut self.weights);
    }

    /// Returns the bytes of `ids` ids in `bags` bags, of which `scales` have a factor.
    #[must_use]
    pub fn bytes(ids: usize, bags: usize, scales: usize) -> usize {
        ids * size_of::<i64>() + bags * size_of::<i32>() + scales * size_of::<f32>()
    }
}

fn clear_each<T>(ranks: usize, buffers: &mut Vec<Vec<T>>) {
    buffers.resize_with(ranks, Vec::new);
    buffers.iter_mut().for_each(Vec::clear);
}

/// The ids of all ranks' samples for the tiles of this rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LocalIds {
    /// Ids, counted from the tile's first row, with one feature per slot of this rank. Samples of
    /// rank 0 come first, then those of rank 1, and so on.
    pub jagged: JaggedTensor,
    /// One factor per bag, `[slots, B_global]`, if any bag is averaged.
    pub scales: Option<Vec<f32>>,
}

impl LocalIds {
    /// Returns the bytes of `ids` ids in `bags` bags, of which `scales` have a factor.
    #[must_use]
    pub fn bytes(ids: usize, bags: usize, scales: usize) -> usize {
        ids * size_of::<i64>() + (bags + 1) * size_of::<usize>() + scales * size_of::<f32>()
    }
}

/// What the host knows of the ids of a rank, wherever the ids are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdCounts {
    /// Number of samples of each rank.
    pub batch_sizes: Vec<usize>,
    /// Number of ids of each slot of this rank.
    pub ids_per_slot: Vec<usize>,
}

impl IdCounts {
    /// Returns the number of samples of all ranks.
    #[must_use]
    pub fn samples(&self) -> usize {
        self.batch_sizes.iter().sum()
    }

    /// Returns the number of ids of all slots.
    #[must_use]
    pub fn ids(&self) -> usize {
        self.ids_per_slot.iter().sum()
    }
}
