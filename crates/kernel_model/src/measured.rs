//! Parses measured latencies from the fields of a table.

use schema::HardwareSpec;
use schema::topology::hardware;
use serde::{Deserialize, Serialize};

use super::Error;
use super::work::{Element, Kind, Work};

/// One measured latency of an operation on a device.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    pub work: Work,
    pub device: &'static HardwareSpec,
    pub latency_ns: f64,
    pub timed: Timed,
    /// Position of the row in its table, because launch overhead may drift from row to row.
    pub place: u32,
}

/// Whether a measured time includes the host's launch overhead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Timed {
    /// The time of a whole call, which includes the launch overhead.
    #[default]
    Call,
    /// The time of the kernels alone, as a profiler records it.
    Kernel,
}

impl Timed {
    /// Returns whether the time includes the launch overhead.
    #[must_use]
    pub fn is_call(&self) -> bool {
        *self == Self::Call
    }
}

/// Columns that every table has.
const NAME: &str = "OPName";
const LATENCY: &str = "Latency";
const DEVICE: &str = "Device";

/// Reads the rows of one table of measurements, whose columns have the names that NeuSight uses.
pub struct Table {
    header: Vec<String>,
    name: usize,
    latency: usize,
    device: usize,
    rows: usize,
    refused: usize,
    first: Option<(u64, String, String)>,
    measured: Vec<Measured>,
}

/// The expected and the actual value of a row that is not a measurement.
type Refusal = (String, String);

impl Table {
    /// Creates a reader from the names of the columns.
    ///
    /// # Errors
    /// [`Error::Column`] if the column for name, latency or device is missing.
    pub fn new(header: Vec<String>) -> Result<Self, Error> {
        let at = |column: &'static str| {
            let found = header.iter().position(|name| name.eq_ignore_ascii_case(column));
            found.ok_or_else(|| Error::Column { column, got: header.clone() })
        };
        let (name, latency, device) = (at(NAME)?, at(LATENCY)?, at(DEVICE)?);
        let (rows, refused, first, measured) = (0, 0, None, Vec::new());
        Ok(Self { header, name, latency, device, rows, refused, first, measured })
    }

    /// Reads one row. A row that is not a measurement is counted and reported by [`Table::finish`].
    ///
    /// # Errors
    /// [`Error::Column`] if a column of the operation's sizes is missing, [`Error::Hardware`] if
    /// the device is unknown, [`Error::Operation`] if the operation is unknown.
    pub fn add(&mut self, line: u64, fields: &[&str]) -> Result<(), Error> {
        let place = self.rows as u32;
        self.rows += 1;
        let read = self.read(fields, place)?;
        match read {
            Ok(row) => self.measured.push(row),
            Err((expected, got)) => {
                self.refused += 1;
                self.first.get_or_insert((line, expected, got));
            }
        }
        Ok(())
    }

    /// Returns the measurements of the table.
    ///
    /// # Errors
    /// [`Error::Rows`] if some rows are not measurements. The error contains the number of these
    /// rows. [`Error::TooFew`] if there is only a header.
    pub fn finish(self) -> Result<Vec<Measured>, Error> {
        if self.rows == 0 {
            return Err(Error::TooFew { kind: "table", expected: 1, got: 0 });
        }
        let Some((line, expected, got)) = self.first else { return Ok(self.measured) };
        Err(Error::Rows { count: self.refused, rows: self.rows, line, expected, got })
    }

    fn read(&self, fields: &[&str], place: u32) -> Result<Result<Measured, Refusal>, Error> {
        let refused = |expected: &str, got: &str| Ok(Err((expected.to_owned(), got.to_owned())));
        if fields.len() != self.header.len() {
            let expected = format!("{} fields", self.header.len());
            return refused(&expected, &format!("{} fields", fields.len()));
        }
        let latency = fields[self.latency].trim().parse::<f64>().ok();
        let latency = latency.filter(|latency| *latency > 0.0 && latency.is_finite());
        let Some(milliseconds) = latency else {
            return refused("a latency in milliseconds above 0", fields[self.latency]);
        };
        let device = hardware(fields[self.device].trim())?;
        let operation = operation(fields[self.name].trim())?;
        let mut sizes = Vec::new();
        for column in columns(operation) {
            let found = self.header.iter().position(|name| name.eq_ignore_ascii_case(column));
            let at = found.ok_or_else(|| Error::Column { column, got: self.header.clone() })?;
            let Ok(size) = fields[at].trim().parse::<u64>() else {
                return refused("a whole number", fields[at]);
            };
            sizes.push(size);
        }
        Ok(match work(operation, &sizes) {
            Ok(work) => {
                let (latency_ns, timed) = (1e6 * milliseconds, Timed::Call);
                Ok(Measured { work, device, latency_ns, timed, place })
            }
            Err(Error::Shape { expected, sizes, .. }) => {
                let got: Vec<String> = sizes.iter().map(u64::to_string).collect();
                Err((expected, got.join(" ")))
            }
            Err(error) => return Err(error),
        })
    }
}

/// An operation that was looked up by the name in a table or on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    kind: Kind,
    element: Option<Element>,
}

/// Finds the operation with the given name.
///
/// # Errors
/// [`Error::Operation`] lists all known names if the name is unknown.
pub fn operation(name: &str) -> Result<Operation, Error> {
    let kind = match name {
        "linear" => Kind::Linear,
        "bmm" => Kind::Bmm,
        "conv" => Kind::Conv,
        "ln" | "layer_norm" => Kind::LayerNorm,
        "softmax" => Kind::Softmax,
        _ => {
            let element = Element::ALL.into_iter().find(|element| element.name() == name);
            let Some(element) = element else {
                let kinds = Kind::ALL.iter().filter(|kind| **kind != Kind::ElementWise);
                let elements = Element::ALL.iter().map(|element| element.name());
                let known = kinds.map(|kind| kind.name()).chain(elements).collect();
                return Err(Error::Operation { name: name.to_owned(), known });
            };
            return Ok(Operation { kind: Kind::ElementWise, element: Some(element) });
        }
    };
    Ok(Operation { kind, element: None })
}

impl Operation {
    /// Creates a kernel description with sizes in the order of [`Kind::sizes`].
    ///
    /// # Errors
    /// [`Error::Shape`] if the sizes are wrong for the kind.
    pub fn work(self, sizes: &[u64]) -> Result<Work, Error> {
        Work::checked(self.kind, self.element, sizes)
    }
}

/// Returns the names of the columns that contain an operation's sizes.
fn columns(operation: Operation) -> &'static [&'static str] {
    match operation.kind {
        Kind::Linear | Kind::Bmm => &["B", "M", "N", "K"],
        Kind::Conv => &[
            "B",
            "Input_Channel",
            "Output_Channel",
            // NeuSight's tables misspell this column.
            "Kernel_Szie",
            "Input_Size",
            "Stride",
            "Padding",
        ],
        Kind::LayerNorm | Kind::Softmax | Kind::ElementWise => &["B", "H"],
    }
}

/// Creates a kernel description from the sizes in the columns of a table.
fn work(operation: Operation, sizes: &[u64]) -> Result<Work, Error> {
    match (operation.kind, sizes) {
        // A linear layer treats all rows of a batch alike, so batch and rows form one size.
        (Kind::Linear, &[batch, m, n, k]) => operation.work(&[batch.saturating_mul(m), n, k]),
        (Kind::ElementWise, &[rows, columns]) => operation.work(&[rows.saturating_mul(columns)]),
        _ => operation.work(sizes),
    }
}
