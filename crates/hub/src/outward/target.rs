//! The configuration of a target to which sums are sent.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

use crate::error::Error;
use crate::sums::Dimension;

/// Dimensions of the sums that are sent.
pub const BY: [Dimension; 4] =
    [Dimension::Pool, Dimension::Model, Dimension::Workflow, Dimension::User];
/// Age in seconds from which minutes are not sent any more.
pub const AGE_MAX_S: u64 = 3600;

/// A section `[[outward]]` of the configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutwardTarget {
    pub url: String,
    pub protocol: OutwardProtocol,
    /// File with a bearer token.
    pub token_file: Option<PathBuf>,
    /// CA certificates in PEM, in place of the usual ones.
    pub ca: Option<PathBuf>,
    /// Labels that are added to all samples.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Seconds after the end of a minute in which its rows may arrive.
    #[serde(default = "default_delay_s")]
    pub delay_s: u64,
    /// Largest number of groups per minute. Those with least allocated time share one group.
    #[serde(default = "default_groups_max")]
    pub groups_max: usize,
}

/// How samples are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OutwardProtocol {
    RemoteWrite,
    Otlp,
}

fn default_delay_s() -> u64 {
    60
}

fn default_groups_max() -> usize {
    2000
}

impl OutwardTarget {
    /// Checks the keys.
    ///
    /// # Errors
    /// If a value is out of range, or if a token would be sent without TLS.
    pub fn check(&self) -> Result<(), Error> {
        let wrong = |what: &str, expected, got: String| {
            Err(Error::Value { what: format!("outward: {what}"), expected, got })
        };
        let is_plain = self.url.starts_with("http://");
        if !is_plain && !self.url.starts_with("https://") {
            return wrong("url", "http://… or https://…", self.url.clone());
        }
        if is_plain && self.token_file.is_some() {
            return wrong("url", "https://… beside `token_file`", self.url.clone());
        }
        if self.delay_s > AGE_MAX_S / 2 {
            return wrong("delay_s", "at most 1800", self.delay_s.to_string());
        }
        if !(1..=100_000).contains(&self.groups_max) {
            return wrong("groups_max", "1 to 100000", self.groups_max.to_string());
        }
        let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let is_taken = |name: &str| BY.iter().any(|dimension| dimension.name() == name);
        let is_name = |name: &str| {
            name.chars().all(is_letter)
                && name.starts_with(|letter: char| letter.is_ascii_lowercase())
                && !is_taken(name)
        };
        match self.labels.keys().find(|name| !is_name(name)) {
            Some(name) => wrong("labels", "a new name in lower case", name.clone()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::OutwardTarget;

    #[test]
    fn tokens_are_sent_over_tls_only_and_labels_are_new() {
        let check = |lines: &str| {
            let target: OutwardTarget = toml::from_str(lines).unwrap();
            target.check().map_err(|error| error.to_string())
        };
        let plain = "url = 'http://a/write'\nprotocol = 'remote-write'\n";
        assert_eq!(check(&format!("{plain}labels = {{ cluster = 'a' }}")), Ok(()));
        for (lines, problem) in [
            ("token_file = '/t'", "outward: url: expected https://… beside `token_file`"),
            ("labels = { user = 'a' }", "outward: labels: expected a new name"),
            ("labels = { 'a-b' = 'a' }", "outward: labels: expected a new name"),
            ("groups_max = 0", "outward: groups_max: expected 1 to 100000, got 0"),
            ("delay_s = 3600", "outward: delay_s: expected at most 1800"),
        ] {
            let error = check(&format!("{plain}{lines}")).unwrap_err();
            assert!(error.starts_with(problem), "{error}");
        }
    }
}
