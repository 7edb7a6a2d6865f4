//! Errors of training, saving and loading. Front ends display the errors and add hints.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use data::Fingerprint;
use device::cache::CacheFull;
use schema::row_scope::ScopeDifference;
use schema::{ConfigError, Optimizer, Stage};

use crate::checkpoint::Checksum;
use crate::metric::NotFinite;
use crate::parameter::Spot;
use crate::state_dict::{Dialect, Mismatch};

/// An error of training, or of saving or loading a model.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused a file operation.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The attempted action, as a verb.
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// A configuration inside a checkpoint, or to be written into one, is not valid.
    #[error("{}: configuration: {source}", path.display())]
    Config { path: PathBuf, source: ConfigError },
    /// A manifest is truncated, has impossible content or does not belong to a checkpoint.
    #[error("{}: not a checkpoint manifest: {problem}", path.display())]
    Manifest { path: PathBuf, problem: String },
    /// A manifest has a version of the format that this program cannot read.
    #[error("{}: checkpoint format: expected version {expected}, got {got}", path.display())]
    ManifestVersion {
        path: PathBuf,
        /// The version that this program reads.
        expected: u32,
        got: u64,
    },
    /// A file's length differs from the manifest, because the file was truncated or replaced.
    #[error("{}: expected {expected} bytes, got {got}", path.display())]
    FileLength { path: PathBuf, expected: u64, got: u64 },
    /// A file is not in the safetensors format.
    #[error("{}: not a safetensors file: {problem}", path.display())]
    TensorFile { path: PathBuf, problem: String },
    /// A file of `torch.save` has no state dict, or has one that cannot be read without executing
    /// code from the file.
    #[error("{}: not a state dict: {problem}", path.display())]
    Pickled { path: PathBuf, problem: String },
    /// The checksum of the bytes on disk differs from that of the bytes written.
    #[error("{}: {tensor}: expected checksum {expected}, got {got}", path.display())]
    Checksum {
        path: PathBuf,
        /// The damaged tensor, or `header` or `manifest`.
        tensor: String,
        expected: Checksum,
        /// XXH3-64 of the bytes on disk.
        got: Checksum,
    },
    /// The model needs a tensor that the checkpoint lacks.
    #[error("{}: {tensor}: missing, expected shape {expected:?}", path.display())]
    TensorMissing {
        /// The checkpoint's folder or file.
        path: PathBuf,
        tensor: String,
        expected: Vec<usize>,
    },
    /// The checkpoint contains a tensor that the model lacks.
    #[error("{}: {tensor}: the model has no such parameter, got shape {got:?}", path.display())]
    TensorUnexpected {
        /// The checkpoint's folder or file.
        path: PathBuf,
        tensor: String,
        got: Vec<usize>,
    },
    /// A tensor's shape differs from the model's.
    #[error("{}: {tensor}: expected shape {expected:?}, got {got:?}", path.display())]
    TensorShape {
        /// The checkpoint's folder or file.
        path: PathBuf,
        tensor: String,
        expected: Vec<usize>,
        got: Vec<usize>,
    },
    /// The chunks of a checkpoint do not cover the requested tile or the whole table.
    #[error("{}: table {table:?}: expected chunks over {expected} values, got {got}", path.display())]
    Uncovered {
        path: PathBuf,
        table: String,
        expected: u64,
        /// Number of values that the chunks cover.
        got: u64,
    },
    /// The saved optimizer state belongs to another optimizer.
    #[error(
        "{}: table {table:?}: optimizer state: expected {expected}, got {got}", path.display()
    )]
    StateKind { path: PathBuf, table: String, expected: Optimizer, got: Optimizer },
    /// The plan splits columns differently, which changes the update rule of the optimizer whose
    /// state was saved.
    #[error(
        "{}: table {:?}: state of {optimizer}: expected one over {}, got one over {}: another rule",
        path.display(), difference.table, difference.after, difference.before
    )]
    OtherRowScope {
        path: PathBuf,
        /// The optimizer of the tables.
        optimizer: Optimizer,
        /// The first table whose row scope differs.
        difference: ScopeDifference,
    },
    /// A file of optimizer states belongs to another optimizer.
    #[error("{}: states of the {of}: expected those of {expected}, got those of {got}", path.display())]
    OtherRule {
        path: PathBuf,
        of: &'static str,
        /// The optimizer that the job uses.
        expected: Optimizer,
        /// The optimizer that the file names.
        got: String,
    },
    /// An id is not a row of its table. No weight has changed when this error is returned.
    #[error(
        "table {table:?}, sample {sample}, feature {feature}: expected an id in 0..{rows}, got {id}"
    )]
    RowOutOfRange {
        table: String,
        /// Index of the sample in the global batch.
        sample: usize,
        /// Index of the feature in the model's order.
        feature: usize,
        id: i64,
        /// Number of rows of the table.
        rows: u64,
    },
    /// A batch does not have the model's shape.
    #[error("batch: {what}: expected {expected}, got {got}")]
    BatchShape {
        what: &'static str,
        /// Number of values that the model expects.
        expected: usize,
        /// Number of values in the batch.
        got: usize,
    },
    /// A stage of a step failed on this rank.
    #[error("step {step}, stage {stage}: {source}")]
    Stage {
        stage: Stage,
        /// The step that trains the batch, counted from 0.
        step: u64,
        source: Box<Self>,
    },
    /// The rows of a batch do not fit into the cache of a table.
    #[error("table {table:?}: {source}")]
    CacheFull { table: String, source: CacheFull },
    /// A disk returned other bytes of a file of table rows than were written to it.
    #[error(
        "table {table:?}, rows {}..{} in {}: expected checksum {expected}, got {got}",
        rows.start, rows.end, folder.display()
    )]
    StoredRows {
        table: String,
        rows: Range<u64>,
        /// The folder of the file, which has no name.
        folder: PathBuf,
        expected: Checksum,
        got: Checksum,
    },
    /// A table cannot be kept in a file under the plan or on the device of a run.
    #[error("storage of table {table:?}: {problem}")]
    Storage { table: String, problem: &'static str },
    /// There is no folder for tables in files.
    #[error("storage.folder: expected an existing folder, got {}", folder.display())]
    StorageFolder { folder: PathBuf },
    /// The operating system refused a thread.
    #[error("cannot start a thread: {source}")]
    Thread { source: io::Error },
    /// An operation of the device failed.
    #[error(transparent)]
    Device(#[from] device::Error),
    #[error(transparent)]
    Communication(#[from] comm::Error),
    #[error(transparent)]
    ReplicaGroups(#[from] schema::ReplicaGroupsError),
    /// A rank was started with another request than rank 0.
    #[error("rank {rank}: its {subject} differs from that of rank 0")]
    OtherRequest { rank: u32, subject: &'static str },
    /// A rank has no access to the run folder of rank 0.
    #[error(
        "{}: expected a folder that all ranks share; rank {rank} on {host} does not see a file that \
         rank 0 wrote there", path.display()
    )]
    NotShared { path: PathBuf, rank: u32, host: String },
    /// The data of a rank ended before that of rank 0.
    #[error("rank {rank}: its data ended before that of rank 0")]
    NoBatch { rank: u32 },
    /// A message between ranks has an unexpected content, for example because a rank runs another
    /// version.
    #[error("rank {rank}: expected {expected}, got {bytes} bytes of another message")]
    Reply { rank: u32, expected: &'static str, bytes: usize },
    /// The input could not be read.
    #[error(transparent)]
    Data(data::Error),
    /// The model or optimizers of a checkpoint differ from the configuration.
    #[error("{}: {key}: the checkpoint has {expected}, got {got}", path.display())]
    OtherModel {
        path: PathBuf,
        /// The first key that differs.
        key: String,
        expected: String,
        got: String,
    },
    /// A run is resumed with data under other fitted transforms, so its ids and values have another
    /// meaning.
    #[error(
        "{}: the checkpoint's fitted transforms differ from those of the training data {}",
        path.display(), data.display()
    )]
    OtherTransforms { path: PathBuf, data: PathBuf },
    /// A run is resumed with other rows than it began with.
    #[error(
        "{}: expected the {which} rows that the run began with, fingerprint {expected}; {} has {got}",
        path.display(), data.display()
    )]
    OtherRows {
        path: PathBuf,
        which: &'static str,
        data: PathBuf,
        expected: Fingerprint,
        got: String,
    },
    /// A loss or a weight became non-finite. The model is useless from then on and is not saved.
    #[error("step {step}: {what}; {}", last_saved(checkpoint.as_deref()))]
    Diverged {
        step: u64,
        /// The loss, or the position of the first non-finite value.
        what: String,
        /// The last checkpoint, from which the run can be resumed.
        checkpoint: Option<PathBuf>,
    },
    /// A checkpoint or a file contains an unusable value, such as a non-finite weight.
    #[error("{}: {spot}, expected {expected}", path.display())]
    Value {
        /// The checkpoint or the file that contains the value.
        path: PathBuf,
        spot: Spot,
        /// Description of the values that are allowed at this position.
        expected: &'static str,
    },
    /// A model produces non-finite probabilities on the data that it is evaluated on.
    #[error("{}: {reason}", data.display())]
    NotEvaluated { data: PathBuf, reason: NotFinite },
    /// The run has no step left in the requested window of steps to record.
    #[error(
        "steps to record: expected some of {}..{}, which are left of the run, got {}..{}",
        left.start, left.end, asked.start, asked.end
    )]
    NothingToTrace { left: Range<u64>, asked: Range<u64> },
    /// Another process holds the lock of the run folder.
    #[error("{}: another rowmill trains in this run folder", path.display())]
    RunBusy { path: PathBuf },
    /// A trace could not be written.
    #[error(transparent)]
    Trace(#[from] trace::Error),
    /// Another library's state dict does not fit the model.
    #[error("{}: does not fit the model:{}", path.display(), listed(mismatches))]
    StateDict {
        path: PathBuf,
        /// Every tensor that does not fit the model.
        mismatches: Vec<Mismatch>,
    },
    /// The other library's state dict cannot express the model.
    #[error("{target} cannot express this model: {problem}")]
    NotExpressible {
        target: Dialect,
        /// The unsupported part of the model, and what the library supports instead.
        problem: String,
    },
}

impl From<data::Error> for Error {
    fn from(error: data::Error) -> Self {
        match error {
            // Loaders of several ranks exchange rows by a communicator.
            data::Error::RowExchange { source } => match source.downcast() {
                Ok(error) => Self::Communication(*error),
                Err(source) => Self::Data(data::Error::RowExchange { source }),
            },
            error => Self::Data(error),
        }
    }
}

impl Error {
    /// Returns the error of a stage without the stage, and any other error itself.
    #[must_use]
    pub fn cause(&self) -> &Self {
        match self {
            Self::Stage { source, .. } => source,
            error => error,
        }
    }

    /// Adds the stage that failed, and the step that trains its batch. The result is an argument
    /// for `map_err`.
    pub(crate) fn in_stage(stage: Stage, step: u64) -> impl FnOnce(Self) -> Self {
        move |source| Self::Stage { stage, step, source: Box::new(source) }
    }

    /// Adds the attempted action and the path to an I/O error. The result is an argument for
    /// `map_err`.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}

fn last_saved(checkpoint: Option<&Path>) -> String {
    match checkpoint {
        Some(folder) => format!("the last checkpoint is {}", folder.display()),
        None => "no checkpoint was written".to_owned(),
    }
}

fn listed(mismatches: &[Mismatch]) -> String {
    mismatches.iter().map(|mismatch| format!("\n  {mismatch}")).collect()
}
