//! The units in which memory is counted: purposes, and the totals of one rank.

use std::collections::BTreeMap;

use serde::Serialize;

/// The purpose of some memory, as listed by the estimate.
///
/// The constructors of layers count their buffers by purpose. The estimate adds the memory of the
/// loader, the checkpoint and the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryUse {
    /// The program, its libraries and threads, and free memory that the allocator keeps.
    Program,
    /// Weights of the embedding tables.
    TableWeights,
    /// Optimizer states of the embedding tables.
    TableStates,
    /// Tags and locks of caches of table rows, checksums of their files, and rows on their way
    /// between both. Cached weights and states are those of tables.
    RowCache,
    /// Weights of the dense layers in all their forms, with gradients and optimizer states.
    DenseParameters,
    /// Outputs of layers, and pooled vectors.
    Activations,
    Gradients,
    /// Ids, pooled vectors and gradients that are exchanged between ranks or tiles.
    Exchange,
    /// Buffers for sorting the ids of a batch by row.
    RowUpdates,
    /// Rows decoded for the shuffle.
    Shuffle,
    Batches,
    /// Buffers for decoding and decompressing Parquet.
    Decoding,
    /// Vocabularies of exact ids.
    Vocabularies,
    Trace,
    /// Buffers for reading held-out rows, and the scores of these rows.
    Evaluation,
    /// Copies made to write or read a checkpoint.
    Checkpoint,
    Preparation,
    Generation,
}

impl MemoryUse {
    /// Returns the label of this purpose in tables and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Program => "program and threads",
            Self::TableWeights => "table weights",
            Self::TableStates => "table optimizer states",
            Self::RowCache => "tags and transfers of cached rows",
            Self::DenseParameters => "dense weights, gradients and states",
            Self::Activations => "activations",
            Self::Gradients => "gradients of activations",
            Self::Exchange => "exchange between ranks and tiles",
            Self::RowUpdates => "sorting of row updates",
            Self::Shuffle => "rows decoded for the shuffle",
            Self::Batches => "batches read ahead",
            Self::Decoding => "decoding of Parquet",
            Self::Vocabularies => "vocabularies",
            Self::Trace => "recorded steps",
            Self::Evaluation => "evaluation",
            Self::Checkpoint => "checkpoint copies",
            Self::Preparation => "preparation of raw files",
            Self::Generation => "generation of rows",
        }
    }
}

/// The size of a global batch, from which buffers that grow with the data are estimated.
#[derive(Clone, Copy, Debug)]
pub struct Traffic<'a> {
    /// Number of samples over all ranks.
    pub batch_size: usize,
    /// Mean number of ids per bag, by feature.
    pub ids_per_bag: &'a [f64],
    /// Batches whose ids are in memory: the one that is trained, and the next if the schedule
    /// distributes it meanwhile.
    pub id_buffers: usize,
}

/// The memory that one rank's model needs, counted by building the model without allocating.
#[derive(Clone, Debug)]
pub struct RankMemory {
    /// Bytes by purpose, held from the first step to the last.
    pub held: BTreeMap<MemoryUse, u64>,
    /// Upper bound of the messages of one exchange of pooled vectors, in bytes.
    pub messages: u64,
    /// Bytes of the gradients of all dense parameters, because all buckets may be in flight at
    /// once.
    pub gradients: u64,
    /// Bytes of all dense parameters and their optimizer states in a checkpoint.
    pub saved_dense: u64,
    /// Bytes needed besides the tile itself to read the rank's largest tile from a checkpoint.
    pub chunk: u64,
}
