//! The ratchet compares numbers of rule violations with `xtask/ratchet.toml`, which lists them by
//! package. The numbers may only shrink, and a number that has shrunk must be lowered in the file.

use std::collections::BTreeMap;

use crate::error::Error;
use crate::tidy::violation::Violation;
use crate::tree::SourceTree;

pub const LIST: &str = "xtask/ratchet.toml";

/// The places that violate a rule, by package. Every package has an entry, which may be empty.
pub type Places = BTreeMap<String, Vec<String>>;

/// The places that violate one rule, for all packages.
pub struct Count {
    pub rule: &'static str,
    /// Name of the rule's table in the ratchet.
    pub table: &'static str,
    /// Description of the counted places, for messages.
    pub what: &'static str,
    pub places: Places,
}

impl Count {
    /// Compares the number of places in each package with the listed number. Every difference is a
    /// violation: a larger number must be reduced in the code, and a smaller one must be entered in
    /// the list.
    ///
    /// # Errors
    /// Fails if the ratchet is not a table of numbers.
    pub fn check(&self, tree: &SourceTree) -> Result<Vec<Violation>, Error> {
        let mut listed = self.listed(tree)?;
        let mut breaches = Vec::new();
        for (package, places) in &self.places {
            let Some(problem) = self.judge_count(package, places.len(), listed.remove(package))
            else {
                continue;
            };
            let problem = format!("{problem}: {}", places.join(", "));
            breaches.push(Violation::new(self.rule, package, 0, problem));
        }
        for package in listed.into_keys() {
            let problem = format!("{}: {package:?} is not a package; remove it", self.table);
            breaches.push(Violation::new(self.rule, LIST, 0, problem));
        }
        Ok(breaches)
    }

    /// Returns the text of the ratchet with the smaller numbers of this count. The line of a number
    /// that became 0 is removed, and no line is added.
    pub fn lower(&self, ratchet: &str) -> String {
        let header = format!("[{}]", self.table);
        // The lines are edited as text, because writing a parsed table would drop the comments of
        // the file.
        let mut is_own = false;
        let mut kept = String::new();
        for line in ratchet.lines() {
            is_own = if line.starts_with('[') { line == header } else { is_own };
            let entry = line.split_once('=').filter(|_| is_own && line.starts_with('"'));
            let Some((package, listed)) = entry else {
                kept += &format!("{line}\n");
                continue;
            };
            let package = package.trim().trim_matches('"');
            let got = self.places.get(package).map_or(0, Vec::len);
            match got.min(listed.trim().parse().unwrap_or(got)) {
                0 => {}
                lowered => kept += &format!("\"{package}\" = {lowered}\n"),
            }
        }
        kept
    }

    fn judge_count(&self, package: &str, got: usize, listed: Option<usize>) -> Option<String> {
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

#[cfg(test)]
mod tests {
    use super::Count;

    #[test]
    fn numbers_are_lowered_and_never_raised() {
        let places = [("crates/a", 2), ("crates/b", 0), ("crates/c", 9)]
            .map(|(package, count)| (package.to_owned(), vec![String::new(); count]));
        let count = Count { rule: "", table: "tuples", what: "", places: places.into() };
        let ratchet = "# Head\n[tuples]\n\"crates/a\" = 5\n\"crates/b\" = 1\n\"crates/c\" = 8\n\
                       \n[of]\n\"crates/a\" = 7\n";
        let lowered = "# Head\n[tuples]\n\"crates/a\" = 2\n\"crates/c\" = 8\n\
                       \n[of]\n\"crates/a\" = 7\n";
        assert_eq!(count.lower(ratchet), lowered);
    }
}
