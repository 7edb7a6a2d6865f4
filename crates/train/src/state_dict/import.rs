//! Imports another library's state dict to a checkpoint, a piece of a table at a time.

use std::collections::BTreeMap;
use std::path::Path;

use device::Weights;
use device::weights::WeightsView;
use schema::{DataType, JobConfig, Optimizers, Rank, RowScope, ShardingPlan, TableId};

use super::{DenseName, Dialect, Mismatch, archive, dense_names, optimizer, table_name};
use crate::checkpoint::{
    CheckpointWriter, Committed, Meta, SeenData, TensorContent, TensorEntry, TensorReader,
    TensorWriter, WrittenFile, dtype, float_bytes, rank_file,
};
use crate::parameter::{DenseParameter, Spot};
use crate::{Error, RuleChange};

/// Number of values copied at a time, which is 4 MiB of f32.
const PIECE: usize = 1 << 20;

/// A request to import a state dict as a checkpoint.
#[derive(Clone, Debug)]
pub struct ImportRequest<'a> {
    /// A safetensors file or a file of `torch.save`, with floating-point tensors.
    pub path: &'a Path,
    /// The library whose names the file uses.
    pub source: Dialect,
    /// Configuration of the job that continues training with these weights.
    pub config: &'a JobConfig,
    /// The transforms fitted on the training data, which the checkpoint stores. The value is null
    /// if the transforms are unknown.
    pub fitted: serde_json::Value,
    pub run_folder: &'a Path,
    /// A safetensors file of f32 optimizer states in the form of [`super::export_optimizer`].
    /// Without this file, states are zero.
    pub optimizer: Option<&'a Path>,
    /// Whether to accept states of another optimizer whose states have the same names.
    pub rule_change: RuleChange,
    /// Number of training steps taken so far.
    pub step: u64,
}

/// The open files of an import.
struct ImportFiles<'a> {
    request: &'a ImportRequest<'a>,
    names: Vec<DenseName>,
    weights: TensorReader,
    states: Option<TensorReader>,
}

/// The expected shape and data type of each tensor of a file.
type ExpectedTensors = BTreeMap<String, (Vec<usize>, DataType)>;

/// Writes a checkpoint with the weights of a state dict, and with its optimizer states or zeros.
/// The checkpoint's position is null, so training starts at the beginning of the data.
///
/// # Errors
/// [`Error::StateDict`] lists every tensor that is missing, unexpected or of another shape, before
/// anything is written. [`Error::OtherRule`] if the states belong to another optimizer.
/// [`Error::Value`] names a value that is not finite, exceeds the table's data type, or is a
/// negative square. [`Error::NotExpressible`] if the other library cannot express the model.
/// [`Error::Io`] names the file that cannot be read or written.
pub fn import(request: &ImportRequest<'_>) -> Result<Committed, Error> {
    let config = request.config;
    let names = dense_names(&config.model, request.source)?;
    let open = |path: &Path| -> Result<TensorReader, Error> {
        let reader = archive::open(path)?;
        Ok(match wrapper(&names, &reader).map(str::to_owned) {
            Some(prefix) => reader.without_prefix(&prefix),
            None => reader,
        })
    };
    let (weights, states) = (open(request.path)?, request.optimizer.map(open).transpose()?);
    let source = ImportFiles { request, names, weights, states };
    // Compare all names and shapes before writing anything, so that one error lists every mismatch.
    check(request.path, source.weight_shapes(), &source.weights)?;
    if let (Some(path), Some(states)) = (request.optimizer, &source.states) {
        check_rules(&source, states)?;
        check(path, source.state_shapes(), states)?;
    }
    let writer = CheckpointWriter::begin(request.run_folder, request.step, &config.model.tables)?;
    let plan = ShardingPlan::table_wise(&config.model.tables, 1);
    let tables = write_tables(&source, &plan, &writer)?;
    let mut parameters = Vec::new();
    for name in &source.names {
        parameters.push(read_dense(&source, name)?);
    }
    let dense = writer.write_dense(&parameters, config.optimizer.dense.kind)?;
    let Optimizers { row_scope, sparse, .. } = config.optimizer;
    let all = &config.model.tables;
    let scope = RowScope::new(sparse.kind, row_scope, plan.tiles(), all);
    let row_scope = match (scope, request.optimizer) {
        // If no states are imported, all states are zero, so a later run may use any row scope.
        (RowScope::WholeRows, None) => RowScope::Undecided,
        (scope, _) => scope,
    };
    let meta = Meta {
        samples: 0,
        config,
        plan: &plan,
        row_scope,
        fitted: request.fitted.clone(),
        position: serde_json::Value::Null,
        data: SeenData::default(),
    };
    writer.commit(&meta, vec![tables, dense])
}

/// Finds the prefix that a wrapper such as `DistributedDataParallel` added to the names of all
/// tensors. The prefix may be `module.`, `model.`, or several of them.
fn wrapper<'a>(names: &[DenseName], reader: &'a TensorReader) -> Option<&'a str> {
    let wanted = &names.first()?.external;
    let mut found = reader.entries().map(|(name, _)| name);
    let prefix = found.find_map(|name| name.strip_suffix(wanted.as_str()))?;
    let is_whole =
        prefix.ends_with('.') && reader.entries().all(|(name, _)| name.starts_with(prefix));
    is_whole.then_some(prefix)
}

impl ImportFiles<'_> {
    /// Returns the weights that the model expects.
    fn weight_shapes(&self) -> ExpectedTensors {
        let dense = |name: &DenseName| (name.external.clone(), (name.shape.clone(), DataType::F32));
        self.table_shapes().chain(self.names.iter().map(dense)).collect()
    }

    /// Returns the optimizer states that the job expects.
    fn state_shapes(&self) -> ExpectedTensors {
        let rules = &self.request.config.optimizer;
        let tables = self
            .table_shapes()
            .flat_map(|(name, (shape, _))| optimizer::tensors(rules.sparse.kind, &name, &shape));
        let dense = self
            .names
            .iter()
            .flat_map(|name| optimizer::tensors(rules.dense.kind, &name.external, &name.shape));
        tables.chain(dense).map(|(name, shape)| (name, (shape, DataType::F32))).collect()
    }

    fn table_shapes(&self) -> impl Iterator<Item = (String, (Vec<usize>, DataType))> {
        let (model, source) = (&self.request.config.model, self.request.source);
        (0..).zip(&model.tables).map(move |(id, table)| {
            let shape = vec![table.rows as usize, table.dim];
            (table_name(model, TableId(id), source), (shape, table.data_type))
        })
    }
}

/// Fails if the file's metadata names another optimizer than the job's.
fn check_rules(source: &ImportFiles<'_>, states: &TensorReader) -> Result<(), Error> {
    let request = source.request;
    for ((of, note), expected) in
        optimizer::NOTES.into_iter().zip(optimizer::kinds(&request.config.optimizer))
    {
        let got = states.note(note).filter(|got| *got != expected.name());
        if let (Some(got), RuleChange::Refuse) = (got, request.rule_change) {
            let (path, got) = (states.path().to_owned(), got.to_owned());
            return Err(Error::OtherRule { path, of, expected, got });
        }
    }
    Ok(())
}

fn check(path: &Path, mut wanted: ExpectedTensors, reader: &TensorReader) -> Result<(), Error> {
    let mut mismatches = Vec::new();
    for (name, entry) in reader.entries() {
        let (name, got) = (name.to_owned(), entry.shape.clone());
        match wanted.remove(&name) {
            None => mismatches.push(Mismatch::Unexpected { name, got }),
            Some((expected, _)) if expected != got => {
                mismatches.push(Mismatch::Shape { name, expected, got });
            }
            Some((_, kind)) if float_bytes(&entry.dtype).is_none() => {
                let (expected, got) = (dtype(kind), entry.dtype.clone());
                mismatches.push(Mismatch::Kind { name, expected, got });
            }
            Some(_) => {}
        }
    }
    let missing =
        wanted.into_iter().map(|(name, (expected, _))| Mismatch::Missing { name, expected });
    mismatches.extend(missing);
    if mismatches.is_empty() {
        return Ok(());
    }
    Err(Error::StateDict { path: path.to_owned(), mismatches })
}

fn write_tables(
    source: &ImportFiles<'_>,
    plan: &ShardingPlan,
    writer: &CheckpointWriter,
) -> Result<WrittenFile, Error> {
    let request = source.request;
    let (model, kind) = (&request.config.model, request.config.optimizer.sparse.kind);
    let state_names = optimizer::names(kind);
    let mut chunks = Vec::new();
    let mut names = BTreeMap::new();
    for tile in plan.tiles() {
        chunks.extend(writer.plan_tile(tile, kind));
        let table = &model.tables[tile.table.index()].name;
        names.insert(table.clone(), table_name(model, tile.table, request.source));
    }
    let mut buffer = vec![0.0; PIECE];
    writer.write_file(&rank_file(Rank(0)), chunks, |chunk, file| {
        let (Some(part), states) = (chunk.content.part(), source.states.as_ref()) else {
            return Ok(());
        };
        let (reader, suffix) = match &chunk.content {
            TensorContent::TableState(_) => (states, state_names.first()),
            TensorContent::TableMeanSquare(_) => (states, state_names.get(1)),
            TensorContent::TableWeight(_)
            | TensorContent::DenseWeight(_)
            | TensorContent::DenseState(_)
            | TensorContent::DenseMeanSquare(_) => (Some(&source.weights), None),
        };
        let values = chunk.shape.iter().product();
        let Some(reader) = reader else { return write_zeros(values, file, &mut buffer) };
        let weight = &names[&part.table];
        let name = suffix.map_or(weight.clone(), |suffix| format!("{weight}.{suffix}"));
        let first = part.rows.start * chunk.shape[1] as u64;
        let squares = suffix.is_some_and(|suffix| optimizer::is_of_squares(suffix));
        let tensor =
            FileTensor { reader, entry: reader.expect_entry(&name)?, name: &name, squares };
        let values = first..first + values as u64;
        tensor.copy(values, chunk.data_type, file, &mut buffer)
    })
}

/// A tensor of the other library's file.
struct FileTensor<'a> {
    reader: &'a TensorReader,
    entry: &'a TensorEntry,
    name: &'a str,
    /// Whether the values are sums or means of squares, and thus never negative.
    squares: bool,
}

impl FileTensor<'_> {
    /// Copies values of a table or its state, rounded to `data_type` if the file has another
    /// format.
    fn copy(
        &self,
        values: std::ops::Range<u64>,
        data_type: DataType,
        file: &mut TensorWriter,
        buffer: &mut [f32],
    ) -> Result<(), Error> {
        let size = data_type.bytes();
        let mut narrow = Weights::zeroed(data_type, buffer.len());
        let mut first = values.start;
        while first < values.end {
            let count = (values.end - first).min(buffer.len() as u64) as usize;
            if self.entry.dtype == dtype(data_type) {
                let bytes = &mut narrow.view_mut().into_bytes()[..count * size];
                self.reader.read_bytes(self.entry, first * size as u64, bytes)?;
                self.check(first, narrow.view(), count)?;
            } else {
                self.read(first, &mut buffer[..count])?;
                narrow.view_mut().fill_from(buffer);
                // Rounding to 16 bits may overflow, although the f32 value is finite.
                if let Some((at, _)) = narrow.view().first_not_finite(0..count) {
                    return Err(self.refused(first, at, buffer[at], range_of(data_type)));
                }
            }
            file.write_bytes(&narrow.view().bytes()[..count * size])?;
            first += count as u64;
        }
        Ok(())
    }

    /// Reads the values that start at `first`, rounded to f32.
    fn read(&self, first: u64, out: &mut [f32]) -> Result<(), Error> {
        let narrow = match self.entry.dtype.as_str() {
            "F64" => return self.read_wide(first, out),
            "F16" => DataType::F16,
            "BF16" => DataType::Bf16,
            _ => DataType::F32,
        };
        if narrow == DataType::F32 {
            self.reader.read(self.entry, first, out)?;
        } else {
            let mut values = Weights::zeroed(narrow, out.len());
            let start = first * narrow.bytes() as u64;
            self.reader.read_bytes(self.entry, start, values.view_mut().into_bytes())?;
            out.copy_from_slice(&values.view().to_f32());
        }
        self.check(first, WeightsView::F32(out), out.len())
    }

    /// Reads f64 values, a piece at a time. Values beyond the range of f32 are errors.
    fn read_wide(&self, first: u64, out: &mut [f32]) -> Result<(), Error> {
        let mut bytes = vec![0; 8 * out.len().min(PIECE)];
        for (piece, out) in out.chunks_mut(PIECE).enumerate() {
            let bytes = &mut bytes[..8 * out.len()];
            let start = first + (piece * PIECE) as u64;
            self.reader.read_bytes(self.entry, start * 8, bytes)?;
            let values = bytes.as_chunks::<8>().0.iter().map(|&value| f64::from_le_bytes(value));
            for (at, (out, value)) in out.iter_mut().zip(values).enumerate() {
                *out = value as f32;
                // The conversion to f32 turns a magnitude beyond its range into infinity.
                if value.is_finite() && !out.is_finite() {
                    return Err(self.refused(start, at, *out, "a magnitude that f32 can hold"));
                }
            }
            self.check(start, WeightsView::F32(out), out.len())?;
        }
        Ok(())
    }

    /// Fails if one of the values, which begin at `first` in the tensor, is not finite or is a
    /// negative square.
    fn check(&self, first: u64, values: WeightsView<'_>, count: usize) -> Result<(), Error> {
        if let Some((at, value)) = values.first_not_finite(0..count) {
            return Err(self.refused(first, at, value, "a finite number"));
        }
        if let (true, WeightsView::F32(values)) = (self.squares, values)
            && let Some(at) = values[..count].iter().position(|&value| value < 0.0)
        {
            return Err(self.refused(first, at, values[at], "at least 0, a sum of squares"));
        }
        Ok(())
    }

    fn refused(&self, first: u64, at: usize, value: f32, expected: &'static str) -> Error {
        let width = self.entry.shape.get(1..).unwrap_or_default().iter().product::<usize>().max(1);
        let at = first + at as u64;
        let spot = Spot {
            tensor: self.name.to_owned(),
            row: at / width as u64,
            column: (at % width as u64) as usize,
            part: "value",
            value,
        };
        Error::Value { path: self.reader.path().to_owned(), spot, expected }
    }
}

/// Describes the range of a data type in words, for error messages.
fn range_of(data_type: DataType) -> &'static str {
    match data_type {
        DataType::F32 => "a finite number",
        DataType::F16 => "a magnitude of at most 65504, the largest number of F16",
        DataType::Bf16 => "a magnitude of at most 3.3895e38, the largest number of BF16",
    }
}

fn write_zeros(count: usize, file: &mut TensorWriter, buffer: &mut [f32]) -> Result<(), Error> {
    buffer.fill(0.0);
    let mut left = count;
    while left > 0 {
        let now = left.min(buffer.len());
        file.write(&buffer[..now])?;
        left -= now;
    }
    Ok(())
}

fn read_dense(source: &ImportFiles<'_>, name: &DenseName) -> Result<DenseParameter, Error> {
    let kind = source.request.config.optimizer.dense.kind;
    let mut parameter = DenseParameter::zeros(&name.own, &name.shape, kind);
    let DenseParameter { weight, state, .. } = &mut parameter;
    let columns = name.columns.as_deref().unwrap_or_default();
    let read = |reader: &TensorReader, (tensor, squares): (&str, bool), out: &mut [f32]| {
        let entry = reader.expect_entry(tensor)?;
        FileTensor { reader, entry, name: tensor, squares }.read(0, out)
    };
    read(&source.weights, (&name.external, false), weight)?;
    reorder(weight, columns);
    if let Some(states) = &source.states {
        let suffixes = optimizer::names(kind);
        let len = (state.len() / suffixes.len().max(1)).max(1);
        for (suffix, part) in suffixes.iter().zip(state.chunks_exact_mut(len)) {
            let tensor = format!("{}.{suffix}", name.external);
            read(states, (&tensor, optimizer::is_of_squares(suffix)), part)?;
            if part.len() == weight.len() {
                reorder(part, columns);
            }
        }
    }
    Ok(parameter)
}

/// Permutes columns of the other library into our order: `own[row, columns[c]] = external[row, c]`.
/// An empty `columns` means that the orders agree.
fn reorder(values: &mut [f32], columns: &[usize]) {
    if columns.is_empty() {
        return;
    }
    let external = values.to_vec();
    let rows = values.chunks_exact_mut(columns.len());
    for (own, external) in rows.zip(external.chunks_exact(columns.len())) {
        for (&column, &value) in columns.iter().zip(external) {
            own[column] = value;
        }
    }
}
