//! The bucket of an S3 server to which files of the store are copied. Which files are copied and
//! when is decided by [`crate::store::copies`]. A hub that was built without the feature `s3`
//! refuses the configuration of a bucket.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use crate::error::Error;

#[cfg(feature = "s3")]
mod s3;
#[cfg(feature = "s3")]
pub use s3::StoreBucket;

/// Shortest time for which rows are kept on the local disk in seconds.
const KEPT_MIN_S: u64 = 86_400;

/// The section `[bucket]` of the configuration. Keys are read from `AWS_ACCESS_KEY_ID` and
/// `AWS_SECRET_ACCESS_KEY`, or come from the instance.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BucketConfig {
    pub name: String,
    /// What the keys of all objects begin with.
    #[serde(default)]
    pub prefix: String,
    /// URL of the server, if it is not AWS.
    pub endpoint: Option<String>,
    #[serde(default = "default_region")]
    pub region: String,
    /// CA certificates in PEM, in place of the usual ones.
    pub ca: Option<PathBuf>,
    /// For how long copied rows stay on the local disk. Without it, they stay there.
    #[serde(default, deserialize_with = "crate::time::deserialize_time")]
    pub keep_local: Option<Duration>,
    /// Largest size in MiB of the files that queries fetch from the bucket.
    #[serde(default = "default_cache_mib")]
    pub cache_mib: u64,
    /// Time between two searches for files to copy.
    #[serde(default = "default_interval_s")]
    pub interval_s: u64,
}

fn default_region() -> String {
    "us-east-1".to_owned()
}

fn default_cache_mib() -> u64 {
    4096
}

fn default_interval_s() -> u64 {
    300
}

impl BucketConfig {
    /// Checks the values.
    ///
    /// # Errors
    /// If a value is out of range.
    pub fn check(&self) -> Result<(), Error> {
        let wrong = |what: &str, expected, got: String| {
            Err(Error::Value { what: format!("bucket: {what}"), expected, got })
        };
        if self.name.is_empty() {
            return wrong("name", "the name of a bucket", "none".to_owned());
        }
        let is_part = |part: &str| !part.is_empty() && part != "." && part != "..";
        if !self.prefix.is_empty() && !self.prefix.split('/').all(is_part) {
            return wrong("prefix", "words between slashes", self.prefix.clone());
        }
        if let Some(kept) = self.keep_local.filter(|kept| kept.as_secs() < KEPT_MIN_S) {
            return wrong("keep_local", "at least 1d", format!("{} s", kept.as_secs()));
        }
        if self.interval_s == 0 {
            return wrong("interval_s", "at least 1", "0".to_owned());
        }
        Ok(())
    }
}

/// A bucket, which no hub without the feature `s3` has.
#[cfg(not(feature = "s3"))]
#[derive(Debug)]
pub enum StoreBucket {}

#[cfg(not(feature = "s3"))]
impl StoreBucket {
    /// Refuses the configuration.
    ///
    /// # Errors
    /// Always.
    pub fn open(_config: &BucketConfig) -> Result<Self, Error> {
        let (what, got) = ("bucket".to_owned(), "a hub without it".to_owned());
        Err(Error::Value { what, expected: "a hub that was built with `--features s3`", got })
    }

    /// Copies a file to the bucket.
    ///
    /// # Errors
    /// Never, because no bucket exists.
    pub fn put(&self, _key: &str, _path: &std::path::Path) -> Result<(), Error> {
        match *self {}
    }

    /// Copies an object to a new file.
    ///
    /// # Errors
    /// Never, because no bucket exists.
    pub fn get(&self, _key: &str, _path: &std::path::Path) -> Result<(), Error> {
        match *self {}
    }

    /// Deletes an object, which may be missing.
    ///
    /// # Errors
    /// Never, because no bucket exists.
    pub fn delete(&self, _key: &str) -> Result<(), Error> {
        match *self {}
    }

    /// Lists the keys of all objects.
    ///
    /// # Errors
    /// Never, because no bucket exists.
    pub fn list(&self) -> Result<Vec<String>, Error> {
        match *self {}
    }
}
