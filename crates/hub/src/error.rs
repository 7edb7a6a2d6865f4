//! The errors of the hub.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use arrow_schema::ArrowError;
use fleet::untrusted::UntrustedError;
use parquet::errors::ParquetError;

use crate::similar::describe_similar;

/// An error of the hub's configuration, of its start, or of its store.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{}: cannot {action}: {source}", path.display())]
    Io { path: PathBuf, action: &'static str, source: std::io::Error },
    /// A file that other users could have changed or read.
    #[error("{key}: {source}")]
    File { key: &'static str, source: UntrustedError },
    #[error("{}: {}", path.display(), source.to_string().trim_end())]
    Toml { path: PathBuf, source: Box<toml::de::Error> },
    #[error("{what}: expected {expected}, got {got}")]
    Value { what: String, expected: &'static str, got: String },
    /// A run or a host that a query names.
    #[error(
        "{kind}: expected a {kind} with rows or reports, got {name:?}{}",
        describe_similar(similar)
    )]
    UnknownName { kind: &'static str, name: String, similar: Vec<String> },
    #[error("{}: expected {expected} in PEM, got {got}", path.display())]
    Pem { path: PathBuf, expected: &'static str, got: String },
    #[error("{}: {}: expected a certificate and its key, got an error: {source}", certificate.display(), key.display())]
    Tls { certificate: PathBuf, key: PathBuf, source: rustls::Error },
    #[error("{address}: cannot listen: {source}")]
    Listen { address: std::net::SocketAddr, source: std::io::Error },
    #[error("{}: another hub uses this store", path.display())]
    Locked { path: PathBuf },
    #[error("{}: cannot read or write Parquet: {source}", path.display())]
    Parquet { path: PathBuf, source: ParquetError },
    #[error("{}: expected rows of version {expected}, got {got}", path.display())]
    Version { path: PathBuf, expected: &'static str, got: String },
    #[error("{}: expected the column {column}, got none of its type", path.display())]
    Column { path: PathBuf, column: &'static str },
    #[error("bucket: {key}: cannot {action}: {source}")]
    Bucket { key: String, action: &'static str, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("cannot convert rows to columns: {0}")]
    Arrow(#[from] ArrowError),
    #[error("cannot draw random bytes: {0}")]
    Random(#[from] getrandom::Error),
}

impl Error {
    /// Returns a closure for `map_err` that adds the path and the failed action.
    pub fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, action, source }
    }

    /// Returns a closure for `map_err` that adds the path of a Parquet file.
    pub fn parquet(path: &Path) -> impl FnOnce(ParquetError) -> Self {
        let path = path.to_owned();
        move |source| Self::Parquet { path, source }
    }

    /// Whether a file was missing. A compaction removes files that a reader has just listed.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == ErrorKind::NotFound)
    }

    /// Returns a hint for the user on how to fix the problem.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Locked { .. } => Some("end the other hub, or name another folder with `store`"),
            Self::File { source: UntrustedError::Open { .. }, .. } => {
                Some("whoever may read this file could act as the hub: chmod 600 FILE")
            }
            Self::Toml { .. } => Some("rowmill-hub serve --help shows every key of the file"),
            Self::Value { what, .. } if what == "listen" => Some(
                "set `certificate` and `key`, because agents send tokens; or listen at 127.0.0.1",
            ),
            Self::Value { what, .. } if what.starts_with("tokens") => {
                Some("rowmill-hub token new agent NAME prints a token and its line of this file")
            }
            _ => None,
        }
    }
}
