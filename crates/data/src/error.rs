//! The crate's one error type: what, where, expected, got.

use std::io;
use std::path::{Path, PathBuf};

use schema::Share;
use schema::unit::{count, listed};

use crate::checksum::Checksum;
use crate::loss::{Losses, Malformed};

/// Why data could not be read, prepared or loaded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder could not be opened.
    #[error("cannot open {}: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
    /// A file ends early, is damaged or cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        path: PathBuf,
        /// The system's or the decompressor's answer.
        source: io::Error,
    },
    /// A file could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    /// A Parquet file is damaged or cannot be written.
    #[error("{}: {source}", path.display())]
    Parquet {
        path: PathBuf,
        /// The format library's answer.
        source: ::parquet::errors::ParquetError,
    },
    /// The target of a preparation is already there.
    #[error("{}: already exists", path.display())]
    OutExists { path: PathBuf },
    /// `dataset.json` cannot be understood.
    #[error("{}: {problem}", path.display())]
    Manifest { path: PathBuf, problem: String },
    /// A part of a dataset does not have the length the manifest states.
    #[error("{}: expected {expected} bytes, got {got}", path.display())]
    PartSize {
        path: PathBuf,
        /// Bytes by the manifest.
        expected: u64,
        /// Bytes there.
        got: u64,
    },
    /// Bytes of a dataset are not those that were written.
    #[error("{}: {place}: expected checksum {expected}, got {got}", path.display())]
    Checksum {
        path: PathBuf,
        /// Where in it: the column and its rows, the footer, or the text.
        place: String,
        /// As it was written.
        expected: Checksum,
        /// Of the bytes there.
        got: Checksum,
    },
    /// An input has no bytes at all.
    #[error("{}: the file is empty", path.display())]
    EmptyInput { path: PathBuf },
    /// An input has a header and nothing else.
    #[error("{}: expected rows behind the header, got a header of {columns} columns alone", path.display())]
    HeaderOnly {
        path: PathBuf,
        /// Columns that it names.
        columns: usize,
    },
    /// A file of another form than the text that is expected.
    #[error("{}: expected text, plain or compressed, got {form}", path.display())]
    OtherForm { path: PathBuf, form: &'static str },
    /// A zip archive that is not one file.
    #[error("{}: expected a zip archive of one file, got {got}", path.display())]
    Archive {
        path: PathBuf,
        /// What is in it.
        got: String,
    },
    /// Text whose lines end with CR alone.
    #[error("{}: lines end with CR, expected LF or CR LF", path.display())]
    CarriageReturns { path: PathBuf },
    /// A folder in which there is nothing to read.
    #[error("{}: expected files, got a folder without any", path.display())]
    EmptyFolder { path: PathBuf },
    /// An input has no usable row.
    #[error("{}: no usable rows, {malformed} malformed{}", path.display(), first_of(first.as_deref()))]
    NoGoodRows {
        path: PathBuf,
        /// Records that could not be read.
        malformed: u64,
        /// The first of them.
        first: Option<Box<Malformed>>,
    },
    /// More records could not be read than may be skipped.
    #[error("{}", too_many(*rows, losses, *max, *read))]
    TooManyMalformed {
        /// Rows that could be read.
        rows: u64,
        /// Those that could not.
        losses: Box<Losses>,
        /// The share of all rows that may be malformed.
        max: Share,
        /// How much of the inputs had been read when it was certain; `None` for all.
        read: Option<Share>,
    },
    /// An id that is no row of its table, where the column refuses such ids.
    #[error("{place}: column {column:?}: expected an id from 0 to {} by out_of_range = \"error\", got {id}", rows - 1)]
    IdOutOfRange {
        /// File and line, or the dataset.
        place: String,
        column: String,
        id: i64,
        /// Rows of the table.
        rows: u64,
    },
    /// A column with ids below 0 and from 2^63 on, whose bits are the same.
    #[error(
        "column {column:?}: expected ids of 64 bits, signed or unsigned, got {negative} below 0 \
         and {large} from 2^63 on"
    )]
    IdsOfBothSigns {
        column: String,
        negative: u64,
        /// Ids from 2^63 on.
        large: u64,
    },
    /// A record could not be read and none may be skipped.
    #[error("{0}")]
    Malformed(Malformed),
    /// A record is too long to be one.
    #[error("{}:{line}: record longer than {limit} bytes (an unclosed quote, or not a text file?)", path.display())]
    RecordTooLong {
        path: PathBuf,
        /// Line where the record starts.
        line: u64,
        limit: u64,
    },
    /// A quoted field is not closed by the end of the file.
    #[error("{}:{line}: the record's quoted field has no closing quote", path.display())]
    UnclosedQuote {
        path: PathBuf,
        /// Line where the record starts.
        line: u64,
    },
    /// A column named in the configuration is not in the file or dataset.
    #[error("{}: no column {column:?}; there are {}", path.display(), listed(available))]
    MissingColumn {
        /// The file or dataset.
        path: PathBuf,
        /// The column looked for.
        column: String,
        available: Vec<String>,
    },
    /// A column name is not unique.
    #[error("{}: {count} columns are named {column:?}, expected one", path.display())]
    AmbiguousColumn {
        /// The file, or `[data]`.
        path: PathBuf,
        column: String,
        /// How often it occurs.
        count: usize,
    },
    /// A Parquet column has a type that cannot serve its purpose.
    #[error("{}: column {column:?}: expected {expected}, got {got}", path.display())]
    ColumnType { path: PathBuf, column: String, expected: &'static str, got: String },
    /// A Parquet column is compressed in a way that is not read.
    #[error(
        "{}: column {column:?}: expected pages that are plain or compressed with Snappy, gzip, \
         Zstandard or LZ4, got {codec}", path.display()
    )]
    Codec {
        path: PathBuf,
        column: String,
        /// How it is compressed.
        codec: &'static str,
    },
    /// Standard input cannot be used for this.
    #[error("standard input {problem}")]
    Stdin { problem: &'static str },
    /// A value of the configuration or request is impossible.
    #[error("{key}: {problem}")]
    Config { key: &'static str, problem: String },
    /// The vocabularies do not fit in the memory allowed for exact ids.
    #[error(
        "data.ids.memory_mib: {allowed_mib} MiB allowed, {needed_mib} MiB needed for the ids of \
         {categories} categories or more in {rows} rows; allow more, raise data.ids.min_count or \
         use mode = \"modulo\""
    )]
    VocabularyMemory {
        /// MiB allowed.
        allowed_mib: u64,
        /// MiB for the columns looked at so far.
        needed_mib: u64,
        categories: u64,
        rows: u64,
    },
    /// The disk is too full for the temporary files of counting.
    #[error(
        "{}: counting categories needs some {needed} of temporary disk, got {available}",
        folder.display()
    )]
    Disk {
        /// Where they would lie.
        folder: PathBuf,
        /// Bytes they are expected to take.
        needed: schema::Bytes,
        /// Bytes free.
        available: schema::Bytes,
    },
    /// What an interrupted preparation left belongs to another one.
    #[error("{}: an interrupted preparation with other {what} is there", folder.display())]
    OtherPreparation { folder: PathBuf, what: String },
    /// An input of an interrupted preparation is not what was read.
    #[error(
        "{}: the content of {} is not what the interrupted preparation there has read",
        folder.display(), path.display()
    )]
    InputChanged {
        /// What the preparation left.
        folder: PathBuf,
        path: PathBuf,
    },
    /// A [`crate::Fitted`] does not belong to this configuration or dataset.
    #[error("fitted {what}: expected {expected}, got {got}")]
    FittedMismatch {
        /// The part that differs.
        what: &'static str,
        expected: String,
        /// In the fitted state.
        got: String,
    },
    /// A table is too small for the exact ids of its column.
    #[error("column {column:?}: {ids} exact ids need as many rows, the table has {rows}")]
    TableTooSmall {
        column: String,
        /// Ids in use, the two reserved ones included.
        ids: u64,
        /// Rows of the table.
        rows: u64,
    },
    /// A resume position belongs to another run.
    #[error("resume position: {what}: expected {expected}, got {got}")]
    PositionMismatch {
        what: &'static str,
        /// As the position was saved.
        expected: String,
        /// As this run is set up.
        got: String,
    },
    /// Output could not be written, or an input cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file; `-` for a stream.
        path: PathBuf,
        source: io::Error,
    },
    /// A NumPy array is not as expected.
    #[error("{}: {problem}", path.display())]
    Array {
        /// The file; within an archive, behind its name.
        path: PathBuf,
        problem: String,
    },
    /// A text of locality statistics cannot be understood.
    #[error("{}: {source}", path.display())]
    Reuse { path: PathBuf, source: schema::distribution::ReuseError },
    /// A synthetic configuration cannot be met.
    #[error("synthetic {what}: expected {expected}, got {got}")]
    Synthetic {
        what: &'static str,
        expected: &'static str,
        /// What was asked for.
        got: String,
    },
    /// A thread of the loader ended without saying why.
    #[error("the loader's thread for {} ended early", path.display())]
    LoaderStopped { path: PathBuf },
}

fn first_of(first: Option<&Malformed>) -> String {
    first
        .map(|first| format!("; the first at line {}: {}", first.line, first.reason))
        .unwrap_or_default()
}

/// What is wrong with most rows, and with the first ones.
fn too_many(rows: u64, losses: &Losses, max: Share, read: Option<Share>) -> String {
    let malformed = losses.malformed_lines;
    let all = rows + malformed;
    let share = Share::from_parts(malformed, all);
    let (lost, rows) = (count(malformed), count(all));
    let mut text = format!("{lost} of {rows} rows are malformed ({share}), expected {max} at most");
    if let Some(read) = read {
        text += &format!("; stopped after {read} of the input, the rest cannot make up for them");
    }
    if let Some((reason, times)) = losses.most_common_reason() {
        text += &format!("\n  most often ({} times): {reason}", count(times));
    }
    text += "\n  the first of them:";
    for malformed in &losses.first {
        text += &format!("\n    {malformed}");
    }
    text
}

impl Error {
    pub(crate) fn open(path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Open { path, source }
    }

    pub(crate) fn read(path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Read { path, source }
    }

    pub(crate) fn write(path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Write { path, source }
    }

    pub(crate) fn parquet(
        path: &Path,
    ) -> impl FnOnce(::parquet::errors::ParquetError) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Parquet { path, source }
    }
}
