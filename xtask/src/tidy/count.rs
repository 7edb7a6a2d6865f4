//! Counts by package that may only shrink: older excess stands in a table of
//! `xtask/ratchet.toml`, and what it no longer has is lowered there.

use std::collections::BTreeMap;

use crate::error::Error;
use crate::tidy::violation::Violation;
use crate::tree::SourceTree;

const LIST: &str = "xtask/ratchet.toml";

/// One thing that is counted.
pub struct Count {
    pub rule: &'static str,
    /// Its table of the list.
    pub table: &'static str,
    /// What is counted, for messages.
    pub what: &'static str,
}

impl Count {
    /// Judges the places found in each package, which may be none. A count that is as listed is no
    /// breach.
    ///
    /// # Errors
    /// The list is no table of numbers.
    pub fn check(
        &self,
        tree: &SourceTree,
        found: &BTreeMap<String, Vec<String>>,
    ) -> Result<Vec<Violation>, Error> {
        let mut listed = self.listed(tree)?;
        let mut breaches = Vec::new();
        for (package, places) in found {
            let Some(problem) = self.judge(package, places.len(), listed.remove(package)) else {
                continue;
            };
            let problem = format!("{problem}: {}", places.join(", "));
            breaches.push(Violation::new(self.rule, package, 0, problem));
        }
        for package in listed.into_keys() {
            let problem = format!("{}: {package:?} is no package; remove it", self.table);
            breaches.push(Violation::new(self.rule, LIST, 0, problem));
        }
        Ok(breaches)
    }

    fn judge(&self, package: &str, got: usize, listed: Option<usize>) -> Option<String> {
        let Self { table, what, .. } = self;
        match listed {
            None if got > 0 => Some(format!("expected no {what}, got {got}")),
            Some(before) if got > before => {
                Some(format!("{before} {what} are listed and may only shrink, got {got}"))
            }
            Some(before) if got < before || got == 0 => {
                let entry = match got {
                    0 => format!("remove \"{package}\""),
                    _ => format!("set \"{package}\" = {got}"),
                };
                Some(format!("shrunk to {got} {what}; {entry} in [{table}] of {LIST}"))
            }
            _ => None,
        }
    }

    fn listed(&self, tree: &SourceTree) -> Result<BTreeMap<String, usize>, Error> {
        let wrong = |problem: String| Error::Toml { path: LIST.to_owned(), problem };
        let text = tree.text(LIST).unwrap_or_default();
        let table: toml::Table =
            text.parse().map_err(|error: toml::de::Error| wrong(error.message().to_owned()))?;
        let Some(listed) = table.get(self.table) else { return Ok(BTreeMap::new()) };
        listed.clone().try_into().map_err(|error| wrong(error.message().to_owned()))
    }
}
