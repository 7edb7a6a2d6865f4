//! The error type of the crate. Messages name the place, what was expected and what was found.

use std::io;
use std::path::{Path, PathBuf};

use schema::Share;
use schema::unit::{count, listed};

use crate::checksum::Checksum;
use crate::loss::{Losses, Malformed};

/// Reasons why data could not be read, prepared or loaded. The variants are specific, so that the
/// command line can add a hint to each.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot open {}: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
    /// A file ends early, is damaged or cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    /// A Parquet file is damaged or cannot be written.
    #[error("{}: {source}", path.display())]
    Parquet { path: PathBuf, source: ::parquet::errors::ParquetError },
    #[error("{}: already exists", path.display())]
    OutExists { path: PathBuf },
    /// `dataset.json` cannot be parsed or contradicts the parts beside it.
    #[error("{}: {problem}", path.display())]
    Manifest { path: PathBuf, problem: String },
    /// The length of a part differs from the manifest.
    #[error("{}: expected {expected} bytes, got {got}", path.display())]
    PartSize { path: PathBuf, expected: u64, got: u64 },
    /// Bytes of a dataset differ from their recorded checksum.
    #[error("{}: {place}: expected checksum {expected}, got {got}", path.display())]
    Checksum {
        path: PathBuf,
        /// The damaged place: a column with its rows, the footer, or the text.
        place: String,
        expected: Checksum,
        got: Checksum,
    },
    #[error("{}: the file is empty", path.display())]
    EmptyInput { path: PathBuf },
    #[error("{}: expected rows after the header, got only a header of {columns} columns", path.display())]
    HeaderOnly { path: PathBuf, columns: usize },
    /// The content is neither text nor a supported compressed form of it.
    #[error("{}: expected text, plain or compressed, got {form}", path.display())]
    OtherForm { path: PathBuf, form: &'static str },
    #[error("{}: expected a zip archive with one file, got {got}", path.display())]
    Archive {
        path: PathBuf,
        /// Names of the files in the archive, or the kind of document that it is.
        got: String,
    },
    #[error("{}: lines end with CR, expected LF or CR LF", path.display())]
    CarriageReturns { path: PathBuf },
    #[error("{}: expected a folder with data files, got none in it", path.display())]
    EmptyFolder { path: PathBuf },
    #[error("{}: no usable rows, {malformed} malformed{}", path.display(), first_of(first.as_deref()))]
    NoGoodRows { path: PathBuf, malformed: u64, first: Option<Box<Malformed>> },
    #[error("{}", too_many(*rows, losses, *max, *read))]
    TooManyMalformed {
        /// Number of rows that were read successfully.
        rows: u64,
        losses: Box<Losses>,
        /// Largest allowed share of malformed rows.
        max: Share,
        /// Share of the inputs that was read before giving up; `None` if they were read to the end.
        read: Option<Share>,
    },
    /// An id outside its table, in a column configured with `out_of_range = "error"`.
    #[error("{place}: column {column:?}: expected an id from 0 to {} (out_of_range = \"error\"), got {id}", rows - 1)]
    IdOutOfRange {
        /// File and line of the id, or the folder of the dataset.
        place: String,
        column: String,
        id: i64,
        rows: u64,
    },
    /// A column has both negative ids and unsigned ids from 2^63 on, which have the same bit
    /// patterns.
    #[error(
        "column {column:?}: expected signed or unsigned 64-bit ids, got both: {negative} below \
         0 and {large} from 2^63 on"
    )]
    IdsOfBothSigns { column: String, negative: u64, large: u64 },
    /// A malformed record in strict mode, which allows none.
    #[error("{0}")]
    Malformed(Malformed),
    /// A record exceeds the length limit, usually because of an unclosed quote or a binary file.
    #[error("{}:{line}: record longer than {limit} bytes (an unclosed quote, or not a text file?)", path.display())]
    RecordTooLong { path: PathBuf, line: u64, limit: u64 },
    #[error("{}:{line}: the record's quoted field has no closing quote", path.display())]
    UnclosedQuote { path: PathBuf, line: u64 },
    #[error("{}: no column {column:?}; there are {}", path.display(), listed(available))]
    MissingColumn { path: PathBuf, column: String, available: Vec<String> },
    #[error("{}: {count} columns are named {column:?}, expected one", path.display())]
    AmbiguousColumn {
        /// The file with the columns, or `[data]` for the configuration.
        path: PathBuf,
        column: String,
        count: usize,
    },
    /// A Parquet column has a type that its role in the configuration does not support.
    #[error("{}: column {column:?}: expected {expected}, got {got}", path.display())]
    ColumnType { path: PathBuf, column: String, expected: &'static str, got: String },
    /// A Parquet column uses a compression codec that is not supported.
    #[error(
        "{}: column {column:?}: expected pages that are plain or compressed with Snappy, gzip, \
         Zstandard or LZ4, got {codec}", path.display()
    )]
    Codec { path: PathBuf, column: String, codec: &'static str },
    #[error("standard input {problem}")]
    Stdin { problem: &'static str },
    #[error("{key}: {problem}")]
    Config { key: &'static str, problem: String },
    #[error(
        "data.ids.memory_mib: {allowed_mib} MiB allowed, {needed_mib} MiB needed for the ids of \
         {categories} categories or more in {rows} rows; allow more, raise data.ids.min_count or \
         use mode = \"modulo\""
    )]
    VocabularyMemory {
        allowed_mib: u64,
        /// Number of MiB that the columns counted so far need.
        needed_mib: u64,
        categories: u64,
        rows: u64,
    },
    /// The disk has too little space for the temporary files of counting categories.
    #[error(
        "{}: counting categories needs about {needed} of temporary disk space, got {available}",
        folder.display()
    )]
    Disk { folder: PathBuf, needed: schema::Bytes, available: schema::Bytes },
    /// The unfinished preparation in the folder belongs to a different request.
    #[error("{}: the folder holds an interrupted preparation with different {what}", folder.display())]
    OtherPreparation { folder: PathBuf, what: String },
    /// An input changed since the unfinished preparation read it.
    #[error(
        "{}: {} has changed since the interrupted preparation in this folder read it",
        folder.display(), path.display()
    )]
    InputChanged { folder: PathBuf, path: PathBuf },
    /// A [`crate::Fitted`] does not match the configuration or the dataset.
    #[error("fitted {what}: expected {expected}, got {got}")]
    FittedMismatch { what: &'static str, expected: String, got: String },
    #[error(
        "column {column:?}: expected a table of at least {ids} rows for its exact ids, got {rows}"
    )]
    TableTooSmall {
        column: String,
        /// Number of ids in use, including the two reserved ones.
        ids: u64,
        rows: u64,
    },
    #[error("resume position: {what}: expected {expected}, got {got}")]
    PositionMismatch {
        what: &'static str,
        /// Value of the setting in the saved position.
        expected: String,
        /// Value of the setting in this run.
        got: String,
    },
    #[error("{}: {source}", path.display())]
    Io {
        /// Path of the file, or `-` for a stream.
        path: PathBuf,
        source: io::Error,
    },
    #[error("{}: {problem}", path.display())]
    Array {
        /// Path of the array. For an array in an archive, it is the archive's path joined with the
        /// array's name.
        path: PathBuf,
        problem: String,
    },
    #[error("{}: {source}", path.display())]
    Reuse { path: PathBuf, source: schema::distribution::ReuseError },
    #[error("synthetic {what}: expected {expected}, got {got}")]
    Synthetic { what: &'static str, expected: &'static str, got: String },
    /// A loader thread panicked, so that no error of its own arrived.
    #[error("a loader thread for {} stopped unexpectedly", path.display())]
    LoaderStopped { path: PathBuf },
    /// The other ranks that share the reading of a dataset could not be reached.
    #[error("exchange of rows: {source}")]
    RowExchange { source: Box<dyn std::error::Error + Send + Sync> },
    /// Another rank could not read its part of a dataset.
    #[error("rank {rank} cannot read its part of the data: {problem}")]
    PeerInput {
        rank: u32,
        /// The error of that rank.
        problem: String,
    },
    /// Another rank sent rows in an unknown form, for example because it runs another version.
    #[error("exchange of rows: expected rows from rank {rank}, got {bytes} bytes of another form")]
    RowMessage { rank: u32, bytes: usize },
}

fn first_of(first: Option<&Malformed>) -> String {
    first
        .map(|first| format!("; first at line {}: {}", first.line, first.reason))
        .unwrap_or_default()
}

/// Describes the malformed rows by their share, the most common reason and the first examples.
fn too_many(rows: u64, losses: &Losses, max: Share, read: Option<Share>) -> String {
    let malformed = losses.malformed_lines;
    let all = rows + malformed;
    let share = Share::from_parts(malformed, all);
    let (lost, rows) = (count(malformed), count(all));
    let mut text = format!("{lost} of {rows} rows are malformed ({share}), expected at most {max}");
    if let Some(read) = read {
        text += &format!(
            "; stopped after {read} of the input, because the rest cannot bring the share below the limit"
        );
    }
    if let Some((reason, times)) = losses.most_common_reason() {
        text += &format!("\n  most often ({} times): {reason}", count(times));
    }
    text += "\n  first examples:";
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
