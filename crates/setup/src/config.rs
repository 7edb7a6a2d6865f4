//! Finds the configuration with a given name, which is a TOML file or a ready-made configuration
//! built into the program.

use std::path::Path;

use schema::JobConfig;

use crate::error::{Error, UsageError};

/// Name and text of every ready-made configuration, sorted by name. `build.rs` embeds
/// `configs/*.toml`.
pub const READY_MADE: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/ready_made.rs"));

/// A configuration to which all overrides have been applied.
#[derive(Clone, Debug)]
pub struct ResolvedJob {
    /// The path or the ready-made name that the user gave.
    pub origin: String,
    pub config: JobConfig,
}

/// Reads the configuration `name` and applies `overrides` in their order.
pub fn job(name: &str, overrides: &[(String, String)]) -> Result<ResolvedJob, Error> {
    let text = text(name)?;
    let config = JobConfig::parse(&text, overrides).map_err(|source| UsageError::Config {
        origin: name.to_owned(),
        source: Box::new(source),
    })?;
    Ok(ResolvedJob { origin: name.to_owned(), config })
}

/// Combines the overrides of `--delimiter` and `--set`. The former come first, so that `--set`
/// takes precedence.
pub fn overrides(delimiter: Option<&str>, set: &[(String, String)]) -> Vec<(String, String)> {
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let csv = delimiter.map(|text| [pair("data.format", "csv"), pair("data.delimiter", text)]);
    csv.into_iter().flatten().chain(set.iter().cloned()).collect()
}

/// Parses all ready-made configurations, in the order of their names.
pub fn ready_made() -> Result<Vec<ResolvedJob>, Error> {
    READY_MADE.iter().map(|(name, _)| job(name, &[])).collect()
}

fn text(name: &str) -> Result<String, Error> {
    let path = Path::new(name);
    if path.is_file() {
        return text_of(path);
    }
    if let Some((_, text)) = READY_MADE.iter().find(|(known, _)| *known == name) {
        return Ok((*text).to_owned());
    }
    let known = READY_MADE.iter().map(|(known, _)| *known).collect();
    Err(UsageError::UnknownConfig { name: name.to_owned(), known }.into())
}

/// Largest accepted size of a configuration in bytes. A larger file is assumed to be data.
const BYTES_MAX: u64 = 16 << 20;

fn text_of(path: &Path) -> Result<String, Error> {
    let about = std::fs::metadata(path).map_err(Error::io(path, "read"))?;
    let data = || Error::from(UsageError::NotAConfig { path: path.to_owned() });
    if about.len() > BYTES_MAX {
        return Err(data());
    }
    let bytes = std::fs::read(path).map_err(Error::io(path, "read"))?;
    let text = String::from_utf8(bytes).map_err(|_| data())?;
    // A file with another name is a configuration only if its first line looks like TOML.
    let is_named = path.extension().is_some_and(|extension| extension == "toml");
    let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty());
    let is_key = |line: &str| line.starts_with(['#', '[']) || line.contains('=');
    if !is_named && !lines().next().is_none_or(is_key) {
        return Err(data());
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::ready_made;

    #[test]
    fn every_ready_made_configuration_is_valid() {
        let jobs = ready_made().unwrap();
        assert!(jobs.iter().any(|job| job.origin == "dlrm-default"), "{jobs:?}");
    }
}
