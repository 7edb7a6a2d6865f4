//! Reads one `.npy` array: its header, and its rows as a stream.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::input::origin::ReadObserver;

/// Largest length of a header in bytes; real headers have 118.
const HEADER_BYTES: usize = 1 << 16;
const BUFFER: usize = 256 << 10;

/// The supported element types of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ElementKind {
    F32,
    I32,
    I64,
}

impl ElementKind {
    fn bytes(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::I64 => 8,
        }
    }
}

/// An open array whose rows are read in order.
pub(super) struct Array {
    path: PathBuf,
    /// The text of the header, for messages.
    header: String,
    kind: ElementKind,
    rows: u64,
    /// Elements per row; `None` for an array of one dimension.
    width: Option<usize>,
    left: u64,
    read: Box<dyn Read + Send>,
}

impl Array {
    /// Opens an array file; `observer` counts and hashes its bytes.
    pub(super) fn open(path: &Path, observer: &ReadObserver) -> Result<Self, Error> {
        let file = File::open(path).map_err(Error::open(path))?;
        let observed = observer.observe_file(&path.display().to_string(), file, 0)?;
        Self::new(path.to_owned(), Box::new(BufReader::with_capacity(BUFFER, observed)))
    }

    /// Reads the header of an array from `read`. Errors name `path`.
    pub(super) fn new(path: PathBuf, mut read: Box<dyn Read + Send>) -> Result<Self, Error> {
        let mut limited = read.by_ref().take(u64::MAX);
        let header = read_header(&mut limited).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => {
                let bytes = u64::MAX - limited.limit();
                let problem = format!("expected a NumPy array, got only {bytes} bytes");
                Error::Array { path: path.clone(), problem }
            }
            _ => Error::read(&path)(error),
        })?;
        let problem = |problem: &str| Error::Array {
            problem: format!(
                "expected {problem}, got {}",
                header.as_deref().unwrap_or("no header")
            ),
            path: path.clone(),
        };
        let text = header.as_deref().ok_or_else(|| problem("a NumPy array"))?;
        let kind = match find_value(text, "'descr'").map(|kind| kind.trim_matches(['\'', '"'])) {
            Some("<f4") => ElementKind::F32,
            Some("<i4") => ElementKind::I32,
            Some("<i8") => ElementKind::I64,
            _ => return Err(problem("elements of float32, int32 or int64 (<f4, <i4, <i8)")),
        };
        // Rows are streamed, so the elements of a row must be adjacent in the file.
        if find_value(text, "'fortran_order'") != Some("False") {
            return Err(problem("row-major order (numpy.ascontiguousarray)"));
        }
        let shape: Option<Vec<u64>> = parse_shape(text)
            .map(|shape| shape.map(|n| n.parse().ok()).collect())
            .unwrap_or_default();
        let (rows, width) = match shape.as_deref() {
            Some(&[rows]) => (rows, None),
            Some(&[rows, width]) if (1..=1 << 20).contains(&width) => (rows, Some(width as usize)),
            _ => return Err(problem("one or two dimensions")),
        };
        Ok(Self { header: text.to_owned(), kind, rows, width, left: rows, path, read })
    }

    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    pub(super) fn width(&self) -> usize {
        self.width.unwrap_or(1)
    }

    /// Fails unless `holds` accepts the element type and the width.
    pub(super) fn expect(
        &self,
        expected: &str,
        holds: impl Fn(ElementKind, Option<usize>) -> bool,
    ) -> Result<(), Error> {
        if holds(self.kind, self.width) {
            return Ok(());
        }
        let problem = format!("expected {expected}, got {}", self.header);
        Err(Error::Array { path: self.path.clone(), problem })
    }

    /// Fails unless the array has `rows` rows.
    pub(super) fn expect_rows(&self, rows: u64) -> Result<(), Error> {
        if self.rows == rows {
            return Ok(());
        }
        let problem = format!("expected {rows} rows as in the dense array, got {}", self.rows);
        Err(Error::Array { path: self.path.clone(), problem })
    }

    /// Reads the next `rows` rows. Fails if the array ends before them.
    pub(super) fn read(&mut self, rows: usize) -> Result<ArrayValues, Error> {
        let mut bytes = vec![0; rows * self.width() * self.kind.bytes()];
        self.read.read_exact(&mut bytes).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => {
                let (rows, left) = (self.rows, self.left);
                let problem =
                    format!("expected {rows} rows, got a file that ends within the last {left}");
                Error::Array { path: self.path.clone(), problem }
            }
            _ => Error::read(&self.path)(error),
        })?;
        self.left -= rows as u64;
        if self.left == 0 {
            // The checksum of an archive's member is verified only when the reader reaches the end.
            let end = self.read.read(&mut [0]).map_err(Error::read(&self.path))?;
            if end > 0 {
                let problem =
                    format!("expected the end of the file after {} rows, got more", self.rows);
                return Err(Error::Array { path: self.path.clone(), problem });
            }
        }
        Ok(match self.kind {
            ElementKind::F32 => {
                ArrayValues::F32(elements(&bytes).map(f32::from_le_bytes).collect())
            }
            ElementKind::I32 => {
                ArrayValues::I32(elements(&bytes).map(i32::from_le_bytes).collect())
            }
            ElementKind::I64 => {
                ArrayValues::I64(elements(&bytes).map(i64::from_le_bytes).collect())
            }
        })
    }
}

fn elements<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> {
    bytes.as_chunks().0.iter().copied()
}

/// Reads the text of a header; `None` if the file is not an array.
fn read_header(read: &mut impl Read) -> std::io::Result<Option<String>> {
    let mut start = [0; 8];
    read.read_exact(&mut start)?;
    if !start.starts_with(b"\x93NUMPY") {
        return Ok(None);
    }
    let length = if start[6] == 1 {
        let mut length = [0; 2];
        read.read_exact(&mut length)?;
        usize::from(u16::from_le_bytes(length))
    } else {
        let mut length = [0; 4];
        read.read_exact(&mut length)?;
        u32::from_le_bytes(length) as usize
    };
    if length > HEADER_BYTES {
        return Ok(None);
    }
    let mut text = vec![0; length];
    read.read_exact(&mut text)?;
    Ok(Some(String::from_utf8_lossy(text.trim_ascii()).into_owned()))
}

/// Finds the value of a key in the header, which is the text of a Python dictionary.
fn find_value<'a>(header: &'a str, key: &str) -> Option<&'a str> {
    let rest = header.split_once(key)?.1.trim_start().strip_prefix(':')?;
    rest.split([',', '}']).next().map(str::trim)
}

fn parse_shape(header: &str) -> Option<impl Iterator<Item = &str>> {
    let rest = header.split_once("'shape'")?.1.split_once('(')?.1.split_once(')')?.0;
    Some(rest.split(',').map(str::trim).filter(|number| !number.is_empty()))
}

/// The elements of a block of rows.
pub(super) enum ArrayValues {
    F32(Vec<f32>),
    I32(Vec<i32>),
    I64(Vec<i64>),
}

impl Default for ArrayValues {
    fn default() -> Self {
        Self::F32(Vec::new())
    }
}

/// The elements of one row.
pub(super) enum ArrayRow<'a> {
    F32(&'a [f32]),
    I32(&'a [i32]),
    I64(&'a [i64]),
}

impl ArrayValues {
    /// Returns the number of elements per row if there are `rows` rows.
    pub(super) fn width(&self, rows: usize) -> usize {
        let length = match self {
            Self::F32(values) => values.len(),
            Self::I32(values) => values.len(),
            Self::I64(values) => values.len(),
        };
        length / rows.max(1)
    }

    /// Returns row `index` of `rows` rows.
    pub(super) fn row(&self, rows: usize, index: usize) -> ArrayRow<'_> {
        let width = self.width(rows);
        let range = index * width..(index + 1) * width;
        match self {
            Self::F32(values) => ArrayRow::F32(&values[range]),
            Self::I32(values) => ArrayRow::I32(&values[range]),
            Self::I64(values) => ArrayRow::I64(&values[range]),
        }
    }
}

impl ArrayRow<'_> {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::I32(values) => values.len(),
            Self::I64(values) => values.len(),
        }
    }

    pub(super) fn number(&self, at: usize) -> f64 {
        match self {
            Self::F32(values) => f64::from(values[at]),
            Self::I32(values) => f64::from(values[at]),
            Self::I64(values) => values[at] as f64,
        }
    }

    pub(super) fn integer(&self, at: usize) -> i64 {
        match self {
            Self::F32(values) => values[at] as i64,
            Self::I32(values) => i64::from(values[at]),
            Self::I64(values) => values[at],
        }
    }
}
