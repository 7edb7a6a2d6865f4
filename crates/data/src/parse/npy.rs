//! Reads the NumPy arrays in which TorchRec and MLPerf store Criteo's days: `X_dense.npy` f32 `[N,
//! 13]`, already transformed; `X_labels.npy` i32 `[N, 1]`; and the categories as `X_sparse.npy` i32
//! or i64 `[N, 26]`, or multi-hot as `X_sparse_multi_hot.npz`, 26 arrays i32 `[N, hot]`.
//!
//! Each of the three names refers to the whole set. Columns are named as in Criteo's layout:
//! `label`, `I1`…, `C1`…. Rows are streamed from all arrays at the same time. The module `array`
//! reads one array, and `archive` opens the arrays of an `.npz`.

mod archive;
mod array;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::Error;
use crate::input::origin::ReadObserver;
use crate::input::remote::is_remote;
use crate::loss::RowRefusal;
use crate::parse::block::{CellText, RecordSink, Records};
use crate::parse::field::{self, FieldProblem};
use crate::parse::layout::{LabelNeed, PlacedColumns, WantedColumns};
use crate::parse::parsed_row::ParsedRow;
use crate::parse::reader::{FormatReader, InputColumns, InputReading, SendBlock};
use crate::parse::text_record::{label_from_count, malformed_field, missing_label};
use array::{Array, ArrayValues, ElementKind};

const BLOCK_ROWS: u64 = 8192;
/// Suffixes of the file names of a set.
const ENDS: [&str; 4] = ["_dense.npy", "_labels.npy", "_sparse.npy", "_sparse_multi_hot.npz"];

/// The files of one set of arrays.
struct ArraySet {
    dense: PathBuf,
    labels: PathBuf,
    sparse: PathBuf,
}

impl ArraySet {
    /// Finds the set that `input` belongs to.
    fn named_by(input: &str) -> Result<Self, Error> {
        if is_remote(input) {
            let problem = "expected local files, because arrays are read together; copy them first"
                .to_owned();
            return Err(Error::Array { path: input.into(), problem });
        }
        let end = ENDS.iter().find(|end| input.ends_with(*end));
        let Some(start) = end.and_then(|end| input.strip_suffix(end)) else {
            let problem = format!("expected a name that ends in {}", ENDS.join(", "));
            return Err(Error::Array { path: input.into(), problem });
        };
        let [dense, labels, single, multi] = ENDS.map(|end| PathBuf::from(format!("{start}{end}")));
        let named_multi = Path::new(input) == multi;
        let named_single = Path::new(input) == single;
        let sparse = if named_multi || !named_single && !single.exists() && multi.exists() {
            multi
        } else {
            single
        };
        Ok(Self { dense, labels, sparse })
    }

    fn is_multi_hot(&self) -> bool {
        self.sparse.extension().is_some_and(|extension| extension == "npz")
    }
}

/// The reader of sets of NumPy arrays.
pub(crate) struct Arrays;

impl FormatReader for Arrays {
    fn has_name(&self, input: &str) -> bool {
        input.ends_with(".npy") || input.ends_with(".npz")
    }

    fn columns(&self, input: &str) -> Result<Option<InputColumns>, Error> {
        let names = column_names(input)?;
        let is_list = ArraySet::named_by(input)?.is_multi_hot();
        let lists = names.iter().map(|name| is_list && name.starts_with('C')).collect();
        Ok(Some(InputColumns { names, lists, unreadable: Vec::new() }))
    }

    /// Returns all files of the sets that `inputs` name.
    fn files(&self, inputs: &[String]) -> Result<Vec<String>, Error> {
        let mut files = Vec::with_capacity(3 * inputs.len());
        for input in inputs {
            let ArraySet { dense, labels, sparse } = ArraySet::named_by(input)?;
            files.extend([dense, sparse].map(|path| path.display().to_string()));
            if labels.exists() {
                files.push(labels.display().to_string());
            }
        }
        Ok(files)
    }

    fn reads_streams(&self) -> bool {
        false
    }

    fn lists(&self, wanted: &WantedColumns, first: Option<&str>) -> Result<Vec<bool>, Error> {
        let is_list = match first {
            Some(first) => ArraySet::named_by(first)?.is_multi_hot(),
            None => false,
        };
        Ok(vec![is_list; wanted.categorical.len()])
    }

    fn send(
        &self,
        input: &str,
        reading: &InputReading<'_>,
        send: &mut SendBlock<'_>,
    ) -> Result<(), Error> {
        send_rows(input, reading, send)
    }
}

/// A block of rows from all arrays of a set.
struct ArrayRows {
    first_row: u64,
    rows: usize,
    /// Labels of the rows; empty if the set has no labels.
    labels: ArrayValues,
    /// Dense values, `[rows, dense columns]`.
    dense: ArrayValues,
    /// Categories, as one array `[rows, columns]` for all categorical columns, or as one array
    /// `[rows, hot]` per column.
    sparse: Vec<ArrayValues>,
}

/// Sends the rows of the set that `input` belongs to in blocks, until `send` returns `false`.
fn send_rows(
    input: &str,
    reading: &InputReading<'_>,
    send: &mut SendBlock<'_>,
) -> Result<(), Error> {
    let InputReading { wanted, label: need, observer, .. } = *reading;
    let set = ArraySet::named_by(input)?;
    let mut dense = Array::open(&set.dense, observer)?;
    dense.expect("a two-dimensional array of float32", |kind, width| {
        kind == ElementKind::F32 && width.is_some()
    })?;
    let rows = dense.rows();
    if rows == 0 {
        return Err(Error::EmptyInput { path: set.dense });
    }
    // Scoring accepts a set without labels, but labels that exist are read and checked.
    let mut labels = match need {
        LabelNeed::Optional if !set.labels.exists() => None,
        _ => Some(Array::open(&set.labels, observer)?),
    };
    if let Some(labels) = &mut labels {
        labels.expect("an array [rows] or [rows, 1]", |_, width| width.is_none_or(|w| w == 1))?;
        labels.expect_rows(rows)?;
    }
    let mut sparse = if set.is_multi_hot() {
        archive::open(&set.sparse, observer)?
    } else {
        vec![Array::open(&set.sparse, observer)?]
    };
    for array in &mut sparse {
        array.expect("a two-dimensional array of int32 or int64", |kind, width| {
            matches!(kind, ElementKind::I32 | ElementKind::I64) && width.is_some()
        })?;
        array.expect_rows(rows)?;
    }
    // A multi-hot set has one array per column, and any other set one array for all columns.
    let columns = if set.is_multi_hot() { sparse.len() } else { sparse[0].width() };
    let names = names(labels.is_some(), dense.width(), columns);
    let layout = Arc::new(wanted.place(&names, &set.dense, need)?);
    let mut first_row = 0;
    while first_row < rows {
        let count = BLOCK_ROWS.min(rows - first_row) as usize;
        let block = ArrayRows {
            first_row,
            rows: count,
            labels: match &mut labels {
                Some(labels) => labels.read(count)?,
                None => ArrayValues::default(),
            },
            dense: dense.read(count)?,
            sparse: sparse.iter_mut().map(|array| array.read(count)).collect::<Result<_, _>>()?,
        };
        if !send(Arc::clone(&layout), Box::new(block)) {
            return Ok(());
        }
        first_row += count as u64;
    }
    Ok(())
}

/// Returns the column names of a set.
fn column_names(input: &str) -> Result<Vec<String>, Error> {
    let set = ArraySet::named_by(input)?;
    let observer = ReadObserver::default();
    let dense = Array::open(&set.dense, &observer)?.width();
    let columns = if set.is_multi_hot() {
        archive::open(&set.sparse, &observer)?.len()
    } else {
        Array::open(&set.sparse, &observer)?.width()
    };
    Ok(names(set.labels.exists(), dense, columns))
}

/// Calls `take` with every cell of the column at position `at`, in rows that have a label.
fn each_text(rows: &ArrayRows, at: usize, take: &mut dyn FnMut(CellText<'_>)) {
    let dense = rows.dense.width(rows.rows);
    for index in 0..rows.rows {
        let mut number = |value: f64| match value.is_nan() {
            true => take(CellText::Missing),
            false => take(CellText::Text(value.to_string().as_bytes())),
        };
        // Column 0 is the label, followed by the dense columns and the categorical ones.
        match at.checked_sub(1 + dense) {
            None if at == 0 => number(rows.labels.row(rows.rows, index).number(0)),
            None => number(rows.dense.row(rows.rows, index).number(at - 1)),
            Some(column) => match &rows.sparse[..] {
                [single] => {
                    let id = single.row(rows.rows, index).integer(column);
                    take(CellText::Text(id.to_string().as_bytes()));
                }
                several => {
                    let bag = several[column].row(rows.rows, index);
                    let ids: Vec<String> =
                        (0..bag.len()).map(|at| bag.integer(at).to_string()).collect();
                    ids.iter().for_each(|id| take(CellText::Element(id.as_bytes())));
                    take(CellText::List(ids.join("|").as_bytes()));
                }
            },
        }
    }
}

fn names(label: bool, dense: usize, categorical: usize) -> Vec<String> {
    let label = label.then(|| "label".to_owned());
    let dense = (1..=dense).map(|i| format!("I{i}"));
    label.into_iter().chain(dense).chain((1..=categorical).map(|i| format!("C{i}"))).collect()
}

impl Records for ArrayRows {
    fn send_rows(&self, columns: PlacedColumns<'_>, take: &mut dyn RecordSink) {
        for index in 0..self.rows {
            let line = self.first_row + index as u64 + 1;
            take.take_row(line, &mut |row| read_row(row, columns, self, index));
        }
    }

    fn for_each_cell(&self, at: usize, _: PlacedColumns<'_>, take: &mut dyn FnMut(CellText<'_>)) {
        each_text(self, at, take);
    }
}

/// Copies row `index` of a block into `row`.
fn read_row(
    row: &mut ParsedRow,
    PlacedColumns { wanted, layout }: PlacedColumns<'_>,
    rows: &ArrayRows,
    index: usize,
) -> Result<(), RowRefusal> {
    let refuse = |column: &str, problem: FieldProblem, value: f64| {
        malformed_field(column, problem, value.to_string().as_bytes())
    };
    let first_dense = usize::from(layout.label.is_some());
    row.label = match layout.label {
        None => f32::NAN,
        Some(_) => {
            let value = rows.labels.row(rows.rows, index).number(0);
            match (value.is_nan(), wanted.label.positive_from) {
                (true, _) => missing_label(wanted)?,
                (false, Some(least)) => label_from_count(value, least),
                (false, None) => {
                    field::parse_label(value).map_err(|p| refuse(&wanted.label.column, p, value))?
                }
            }
        }
    };
    let dense = rows.dense.row(rows.rows, index);
    for (column, &at) in wanted.dense.iter().zip(&layout.dense) {
        let value = dense.number(at - first_dense);
        // NaN is allowed, because it represents a missing value.
        if value.is_infinite() {
            return Err(refuse(&column.column, FieldProblem::Number, value));
        }
        row.dense.push(value);
    }
    let first = layout.fields
        - match &rows.sparse[..] {
            [single] => single.width(rows.rows),
            several => several.len(),
        };
    for (column, &at) in wanted.categorical.iter().zip(&layout.categorical) {
        let present = |id: i64| (column.missing != Some(id)).then_some(id);
        match &rows.sparse[..] {
            [single] => {
                row.categories.push(present(single.row(rows.rows, index).integer(at - first)));
            }
            several => {
                let bag = several[at - first].row(rows.rows, index);
                let ids = (0..bag.len()).filter_map(|i| present(bag.integer(i)));
                row.categories.extend(ids.map(Some));
            }
        }
        row.ends.push(row.categories.len());
    }
    Ok(())
}
