//! User-facing errors of training, saving and loading. Knows nothing of display; the front ends add
//! hints.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use data::Fingerprint;
use schema::row_scope::ScopeDifference;
use schema::{ConfigError, Optimizer};

use crate::checkpoint::Checksum;
use crate::metric::NotFinite;
use crate::parameter::Spot;
use crate::state_dict::{Dialect, Mismatch};

/// Why the trainer refused to go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused a file operation.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A configuration inside a checkpoint, or to be written into one, is not valid.
    #[error("{}: configuration: {source}", path.display())]
    Config {
        path: PathBuf,
        /// What is wrong with it.
        source: ConfigError,
    },
    /// A manifest that is not a checkpoint's, or cut, or of an impossible content.
    #[error("{}: not a checkpoint manifest: {problem}", path.display())]
    Manifest {
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A manifest written by a program that knows a format this one does not.
    #[error("{}: checkpoint format: expected version {expected}, got {got}", path.display())]
    ManifestVersion {
        path: PathBuf,
        /// The version this program reads.
        expected: u32,
        got: u64,
    },
    /// A file's length differs from what the manifest says: it was cut or replaced.
    #[error("{}: expected {expected} bytes, got {got}", path.display())]
    FileLength {
        path: PathBuf,
        /// Bytes according to the manifest.
        expected: u64,
        /// Bytes on disk.
        got: u64,
    },
    /// A file that is not in the safetensors format.
    #[error("{}: not a safetensors file: {problem}", path.display())]
    TensorFile {
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A file of `torch.save` that holds no state dict, or one that cannot be read without running
    /// what is in it.
    #[error("{}: not a state dict: {problem}", path.display())]
    Pickled {
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The bytes on disk are not the bytes written.
    #[error("{}: {tensor}: expected checksum {expected}, got {got}", path.display())]
    Checksum {
        path: PathBuf,
        /// The damaged tensor, or `header` or `manifest`.
        tensor: String,
        expected: Checksum,
        /// XXH3-64 of what is there.
        got: Checksum,
    },
    /// A tensor is not in the checkpoint.
    #[error("{}: {tensor}: missing, expected shape {expected:?}", path.display())]
    TensorMissing {
        /// The checkpoint's folder or file.
        path: PathBuf,
        tensor: String,
        /// The shape asked for.
        expected: Vec<usize>,
    },
    /// A tensor of the checkpoint is not in the model.
    #[error("{}: {tensor}: the model has no such parameter, got shape {got:?}", path.display())]
    TensorUnexpected {
        /// The checkpoint's folder or file.
        path: PathBuf,
        tensor: String,
        got: Vec<usize>,
    },
    /// A tensor has another shape than the model's.
    #[error("{}: {tensor}: expected shape {expected:?}, got {got:?}", path.display())]
    TensorShape {
        /// The checkpoint's folder or file.
        path: PathBuf,
        tensor: String,
        expected: Vec<usize>,
        got: Vec<usize>,
    },
    /// The chunks of a checkpoint do not cover what was asked for, or not all of a table.
    #[error("{}: table {table:?}: expected chunks over {expected} values, got {got}", path.display())]
    Uncovered {
        path: PathBuf,
        table: String,
        expected: u64,
        /// Values the chunks cover.
        got: u64,
    },
    /// The optimizer state saved belongs to another optimizer.
    #[error(
        "{}: table {table:?}: optimizer state: expected {expected}, got {got}", path.display()
    )]
    StateKind {
        path: PathBuf,
        table: String,
        /// The optimizer asked for.
        expected: Optimizer,
        /// The optimizer that wrote the state.
        got: Optimizer,
    },
    /// The plan makes another rule of the optimizer than the state was taken under.
    #[error(
        "{}: table {:?}: state of {optimizer}: expected one over {}, got one over {}: another rule",
        path.display(), difference.table, difference.after, difference.before
    )]
    OtherRowScope {
        path: PathBuf,
        /// The optimizer of the tables.
        optimizer: Optimizer,
        /// The first table that differs.
        difference: ScopeDifference,
    },
    /// A file of states says that they are another rule's.
    #[error("{}: states of the {of}: expected those of {expected}, got those of {got}", path.display())]
    OtherRule {
        path: PathBuf,
        of: &'static str,
        /// The rule of the job.
        expected: Optimizer,
        /// The rule in the file.
        got: String,
    },
    /// An id does not name a row of its table; no weight has changed.
    #[error(
        "table {table:?}, sample {sample}, feature {feature}: expected an id in 0..{rows}, got {id}"
    )]
    RowOutOfRange {
        table: String,
        /// Sample in the batch of all ranks.
        sample: usize,
        /// Feature in the model's order.
        feature: usize,
        id: i64,
        /// Rows of the table.
        rows: u64,
    },
    /// A batch does not have the model's shape.
    #[error("batch: {what}: expected {expected}, got {got}")]
    BatchShape {
        what: &'static str,
        /// Values the model expects.
        expected: usize,
        /// Values in the batch.
        got: usize,
    },
    /// A kernel refused its arguments.
    #[error(transparent)]
    Device(#[from] device::Error),
    #[error(transparent)]
    Communication(#[from] comm::Error),
    /// A rank was asked for another run than rank 0.
    #[error("rank {rank}: its {subject} differs from that of rank 0")]
    OtherRequest { rank: u32, subject: &'static str },
    /// A rank does not see the run folder of rank 0.
    #[error(
        "{}: expected a folder that all ranks share; rank {rank} on {host} does not see a file that \
         rank 0 wrote there", path.display()
    )]
    NotShared { path: PathBuf, rank: u32, host: String },
    /// The data of a rank ended before that of rank 0.
    #[error("rank {rank}: no batch is left where rank 0 has one: its data is another")]
    NoBatch { rank: u32 },
    /// A rank said something that no rank of this version says.
    #[error("rank {rank}: expected {expected}, got {bytes} bytes of something else")]
    Reply {
        rank: u32,
        expected: &'static str,
        /// How long the message is.
        bytes: usize,
    },
    /// The input could not be read.
    #[error(transparent)]
    Data(#[from] data::Error),
    /// A checkpoint of another model, or of other optimizers.
    #[error("{}: {key}: the checkpoint has {expected}, got {got}", path.display())]
    OtherModel {
        path: PathBuf,
        /// The first key that differs.
        key: String,
        /// Its value in the checkpoint.
        expected: String,
        /// Its value in the configuration.
        got: String,
    },
    /// A run goes on with data that was transformed otherwise: its ids and values mean other
    /// things.
    #[error(
        "{}: the checkpoint's fitted transforms differ from those of the training data {}",
        path.display(), data.display()
    )]
    OtherTransforms { path: PathBuf, data: PathBuf },
    /// A run is resumed on other rows.
    #[error(
        "{}: expected the {which} rows that the run began with, fingerprint {expected}; {} has {got}",
        path.display(), data.display()
    )]
    OtherRows {
        path: PathBuf,
        which: &'static str,
        data: PathBuf,
        /// Of the rows that the run began with.
        expected: Fingerprint,
        /// Of the dataset's rows.
        got: String,
    },
    /// Training left the finite numbers: what follows would be worth nothing, and is not saved.
    #[error("step {step}: {what}; {}", last_saved(checkpoint.as_deref()))]
    Diverged {
        step: u64,
        /// The loss, or where the first such value stands.
        what: String,
        /// The last checkpoint, which can be resumed.
        checkpoint: Option<PathBuf>,
    },
    /// A checkpoint or a file has a value that no model can be computed with.
    #[error("{}: {spot}, expected {expected}", path.display())]
    Value {
        /// The checkpoint or the file.
        path: PathBuf,
        spot: Spot,
        /// The value expected there.
        expected: &'static str,
    },
    /// A model does not give probabilities on data that is to be evaluated.
    #[error("{}: {spoilt}", data.display())]
    NotEvaluated { data: PathBuf, spoilt: NotFinite },
    /// No step of the run lies in the window to record.
    #[error(
        "steps to record: expected some of {}..{}, which are left of the run, got {}..{}",
        left.start, left.end, asked.start, asked.end
    )]
    NothingToTrace {
        /// The steps that the run has left.
        left: Range<u64>,
        /// The steps asked for.
        asked: Range<u64>,
    },
    /// Another process trains in this run folder.
    #[error("{}: another rowmill trains in this run folder", path.display())]
    RunBusy { path: PathBuf },
    /// A trace could not be written.
    #[error(transparent)]
    Trace(#[from] trace::Error),
    /// A foreign state dict does not fit the model.
    #[error("{}: does not fit the model:{}", path.display(), listed(mismatches))]
    StateDict {
        path: PathBuf,
        /// Every tensor that does not fit.
        mismatches: Vec<Mismatch>,
    },
    /// The model cannot be said in the other library's state dict.
    #[error("{target} has no such model: {problem}")]
    NotExpressible {
        target: Dialect,
        /// Which part of the model, and what the library has instead.
        problem: String,
    },
}

impl Error {
    /// For `map_err`: what was tried on which path.
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
