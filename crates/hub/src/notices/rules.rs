//! When owners of idle GPUs are told, and how, which the configuration sets.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::idle::IdleRun;
use crate::error::Error;
use crate::pattern::matches_pattern;
use crate::time::{DAY_S, deserialize_span, deserialize_time};

/// A section `[notices]` of the configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NoticeRules {
    /// Whether notices are only listed, and nothing is sent or cancelled.
    pub dry_run: bool,
    /// Observed time without work of a GPU from which on its owner is told.
    #[serde(deserialize_with = "deserialize_span")]
    pub after: Duration,
    /// Shortest time between two notices about a run.
    #[serde(deserialize_with = "deserialize_span")]
    pub again: Duration,
    /// Seconds between two searches for idle GPUs.
    pub interval_s: u64,
    /// Largest number of notices in 24 hours to one user, and to all.
    pub per_user: usize,
    pub per_day: usize,
    pub webhook: Option<NoticeWebhook>,
    /// A program with its arguments, in which `{user}` stands for the owner. The text is its input.
    pub command: Vec<String>,
    /// Observed time without work since a notice after which a job of Slurm is cancelled.
    #[serde(deserialize_with = "deserialize_time")]
    pub cancel_after: Option<Duration>,
    /// Whether jobs are really cancelled.
    pub cancel: bool,
    /// Runs whose owners are not told.
    #[serde(rename = "except")]
    pub exceptions: Vec<NoticeException>,
}

/// Where notices are posted as JSON.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoticeWebhook {
    pub url: String,
    /// File with a bearer token.
    pub token_file: Option<PathBuf>,
    /// CA certificates in PEM, in place of the usual ones.
    pub ca: Option<PathBuf>,
}

/// Runs that match one pattern of each list that has any. A `*` at the end stands for any letters.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NoticeException {
    pub users: Vec<String>,
    pub accounts: Vec<String>,
    pub partitions: Vec<String>,
    pub workflows: Vec<String>,
}

impl Default for NoticeRules {
    fn default() -> Self {
        Self {
            dry_run: true,
            after: Duration::from_secs(30 * 60),
            again: Duration::from_secs(6 * 3600),
            interval_s: 300,
            per_user: 5,
            per_day: 200,
            webhook: None,
            command: Vec::new(),
            cancel_after: None,
            cancel: false,
            exceptions: Vec::new(),
        }
    }
}

impl NoticeRules {
    /// Checks the values. `has_slurm` tells whether the hub asks Slurm.
    ///
    /// # Errors
    /// If a value is out of its range, or if keys contradict each other.
    pub fn check(&self, has_slurm: bool) -> Result<(), Error> {
        let wrong = |key: &str, expected, got: String| {
            Err(Error::Value { what: format!("notices: {key}"), expected, got })
        };
        let second = Duration::from_secs(1);
        if !(second..=Duration::from_secs(DAY_S / 2)).contains(&self.after) {
            return wrong("after", "1s to 12h", format!("{} s", self.after.as_secs()));
        }
        if self.again < self.after {
            return wrong("again", "at least `after`", format!("{} s", self.again.as_secs()));
        }
        if !(1..=3600).contains(&self.interval_s) {
            return wrong("interval_s", "1 to 3600", self.interval_s.to_string());
        }
        if !(1..=1000).contains(&self.per_day) {
            return wrong("per_day", "1 to 1000", self.per_day.to_string());
        }
        if self.per_user == 0 {
            return wrong("per_user", "at least 1", "0".to_owned());
        }
        if let Some(NoticeWebhook { url, token_file, .. }) = &self.webhook {
            let is_plain = url.starts_with("http://");
            if !is_plain && !url.starts_with("https://") {
                return wrong("webhook: url", "http://… or https://…", url.clone());
            }
            if is_plain && token_file.is_some() {
                return wrong("webhook: url", "https://… beside `token_file`", url.clone());
            }
        }
        if self.command.first().is_some_and(String::is_empty) {
            return wrong("command", "a program and its arguments", "an empty name".to_owned());
        }
        if !self.dry_run && self.webhook.is_none() && self.command.is_empty() {
            let got = "none of them".to_owned();
            return wrong("dry_run", "`webhook` or `command` if it is false", got);
        }
        if self.cancel && (self.cancel_after.is_none() || !has_slurm) {
            let got = "true without them".to_owned();
            return wrong("cancel", "`cancel_after` and a section [slurm] if it is true", got);
        }
        if self.cancel_after.is_some_and(|after| after < second) {
            return wrong("cancel_after", "at least 1s", "0 s".to_owned());
        }
        if self
            .exceptions
            .iter()
            .any(|one| one.lists(["", "", "", ""]).all(|list| list.0.is_empty()))
        {
            let got = "none".to_owned();
            return wrong("except", "users, accounts, partitions or workflows", got);
        }
        Ok(())
    }

    /// Returns why the owner of a run is not told, if a rule says so.
    pub fn exception(&self, run: &IdleRun) -> Option<String> {
        let names = [&run.user, &run.account, &run.partition, &run.workflow].map(String::as_str);
        let at = self.exceptions.iter().position(|one| {
            one.lists(names).all(|(patterns, name)| {
                patterns.is_empty() || patterns.iter().any(|one| matches_pattern(one, name))
            })
        });
        at.map(|at| format!("excepted by rule {} of [[notices.except]]", at + 1))
    }
}

impl NoticeException {
    /// Returns the patterns of each list with the name that they are compared with.
    fn lists<'a>(&'a self, names: [&'a str; 4]) -> impl Iterator<Item = (&'a [String], &'a str)> {
        let lists = [&self.users, &self.accounts, &self.partitions, &self.workflows];
        lists.into_iter().map(Vec::as_slice).zip(names)
    }
}
