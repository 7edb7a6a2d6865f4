//! From another library's state dict to a checkpoint of step 0, a piece of a table at a time.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use device::Weights;
use schema::{DataType, JobConfig, Rank, ShardingPlan, TableId};

use super::{DenseName, Target, dense_names, table_name};
use crate::Error;
use crate::checkpoint::{
    Committed, Content, Meta, TensorReader, TensorWriter, Writer, Written, dtype, rank_file,
};
use crate::parameter::DenseParameter;

/// Values copied at a time: 4 MiB.
const PIECE: usize = 1 << 20;

/// What to import and where to.
#[derive(Clone, Debug)]
pub struct ImportRequest<'a> {
    /// A safetensors file of f32 tensors; a table may also be in its data type.
    pub path: &'a Path,
    /// Whose names it has.
    pub source: Target,
    /// The job to train on with these weights.
    pub config: &'a JobConfig,
    /// The transforms fitted on the training data, to be kept in the checkpoint; null if unknown.
    pub fitted: serde_json::Value,
    /// The run that gets the checkpoint.
    pub run_folder: &'a Path,
}

/// One tensor of a state dict that does not fit the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// The model has it, the file does not.
    Missing {
        /// Name in the state dict.
        name: String,
        /// The model's shape.
        expected: Vec<usize>,
    },
    /// The file has it, the model does not.
    Unexpected {
        /// Name in the state dict.
        name: String,
        /// Its shape.
        got: Vec<usize>,
    },
    /// Both have it, in different shapes.
    Shape {
        /// Name in the state dict.
        name: String,
        /// The model's shape.
        expected: Vec<usize>,
        /// The file's shape.
        got: Vec<usize>,
    },
    /// Its values are neither f32 nor in the format that the model has.
    Kind {
        /// Name in the state dict.
        name: String,
        /// The model's dtype.
        expected: &'static str,
        /// The file's dtype.
        got: String,
    },
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { name, expected } => {
                write!(f, "{name}: missing, expected shape {expected:?}")
            }
            Self::Unexpected { name, got } => {
                write!(f, "{name}: the model has no such parameter, got shape {got:?}")
            }
            Self::Shape { name, expected, got } => {
                write!(f, "{name}: expected shape {expected:?}, got {got:?}")
            }
            Self::Kind { name, expected, got } => {
                write!(f, "{name}: expected dtype {expected}, got {got}")
            }
        }
    }
}

/// Writes a checkpoint of step 0 with the weights of a state dict and optimizer states of zero. Its
/// position is null: training starts at the beginning of the data.
///
/// # Errors
/// [`Error::StateDict`] lists every tensor that is missing, unexpected or of another shape, before
/// anything is written; [`Error::NotExpressible`] if the other library has no such model;
/// [`Error::Io`] naming the file.
pub fn import(request: &ImportRequest<'_>) -> Result<Committed, Error> {
    let config = request.config;
    let names = dense_names(&config.model, request.source)?;
    let reader = TensorReader::open(request.path)?;
    check(request, &names, &reader)?;
    let writer = Writer::begin(request.run_folder, 0, &config.model.tables)?;
    let plan = ShardingPlan::table_wise(&config.model.tables, 1);
    let tables = write_tables(request, &plan, &reader, &writer)?;
    let mut parameters = Vec::new();
    for name in &names {
        parameters.push(read_dense(request, name, &reader)?);
    }
    let dense = writer.write_dense(&parameters, config.optimizer.dense.kind)?;
    let meta = Meta {
        samples: 0,
        config,
        plan: &plan,
        fitted: request.fitted.clone(),
        position: serde_json::Value::Null,
    };
    writer.commit(&meta, vec![tables, dense])
}

fn check(
    request: &ImportRequest<'_>,
    names: &[DenseName],
    reader: &TensorReader,
) -> Result<(), Error> {
    let model = &request.config.model;
    let mut wanted: BTreeMap<String, (Vec<usize>, DataType)> = BTreeMap::new();
    for (id, table) in (0..).zip(&model.tables) {
        let name = table_name(model, TableId(id), request.source);
        wanted.insert(name, (vec![table.rows as usize, table.dim], table.data_type));
    }
    let dense = |name: &DenseName| (name.external.clone(), (name.shape.clone(), DataType::F32));
    wanted.extend(names.iter().map(dense));
    let mut mismatches = Vec::new();
    for (name, entry) in reader.entries() {
        let (name, got) = (name.to_owned(), entry.shape.clone());
        match wanted.remove(&name) {
            None => mismatches.push(Mismatch::Unexpected { name, got }),
            Some((expected, _)) if expected != got => {
                mismatches.push(Mismatch::Shape { name, expected, got });
            }
            Some((_, kind)) if ![dtype(kind), "F32"].contains(&entry.dtype.as_str()) => {
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
    Err(Error::StateDict { path: request.path.to_owned(), mismatches })
}

fn write_tables(
    request: &ImportRequest<'_>,
    plan: &ShardingPlan,
    reader: &TensorReader,
    writer: &Writer,
) -> Result<Written, Error> {
    let (model, optimizer) = (&request.config.model, request.config.optimizer.sparse.kind);
    let mut chunks = Vec::new();
    let mut names = BTreeMap::new();
    for tile in plan.tiles() {
        chunks.extend(writer.plan_tile(tile, optimizer));
        let table = &model.tables[tile.table.index()].name;
        names.insert(table.clone(), table_name(model, tile.table, request.source));
    }
    let mut buffer = vec![0.0; PIECE];
    writer.write_file(&rank_file(Rank(0)), chunks, |chunk, file| match &chunk.content {
        Content::TableWeight(part) => {
            let first = part.rows.start * part.columns.len() as u64;
            let values = first..first + part.cells();
            let table = (names[&part.table].as_str(), chunk.data_type);
            copy((reader, table), values, file, &mut buffer)
        }
        _ => write_zeros(chunk.shape.iter().product(), file, &mut buffer),
    })
}

/// Copies values of a table, to the nearest of its data type where the file has f32.
fn copy(
    (reader, (name, data_type)): (&TensorReader, (&str, DataType)),
    values: std::ops::Range<u64>,
    file: &mut TensorWriter,
    buffer: &mut [f32],
) -> Result<(), Error> {
    let entry = reader.expect_entry(name)?;
    let size = data_type.bytes();
    let mut narrow = Weights::zeroed(data_type, buffer.len());
    let mut first = values.start;
    while first < values.end {
        let count = (values.end - first).min(buffer.len() as u64) as usize;
        if entry.dtype == dtype(data_type) {
            let bytes = &mut narrow.view_mut().into_bytes()[..count * size];
            reader.read_bytes(entry, first * size as u64, bytes)?;
        } else {
            reader.read(entry, first, &mut buffer[..count])?;
            narrow.view_mut().fill_from(buffer);
        }
        file.write_bytes(&narrow.view().bytes()[..count * size])?;
        first += count as u64;
    }
    Ok(())
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

fn read_dense(
    request: &ImportRequest<'_>,
    name: &DenseName,
    reader: &TensorReader,
) -> Result<DenseParameter, Error> {
    let optimizer = request.config.optimizer.dense.kind;
    let mut parameter = DenseParameter::zeros(&name.own, &name.shape, optimizer);
    let entry = reader.expect_entry(&name.external)?;
    reader.read(entry, 0, &mut parameter.weight)?;
    if let Some(columns) = &name.columns {
        let external = parameter.weight.clone();
        let rows = parameter.weight.chunks_exact_mut(columns.len());
        for (own, external) in rows.zip(external.chunks_exact(columns.len())) {
            for (&column, &value) in columns.iter().zip(external) {
                own[column] = value;
            }
        }
    }
    Ok(parameter)
}
