//! Classifies device work as compute, communication or memory.

mod communication;

use regex::Regex;
use schema::CellType;
use serde::Serialize;
use trace::store::{EventKind, Trace};

use crate::error::Error;

/// Purpose of device work. Every breakdown divides time by this class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, CellType)]
#[serde(rename_all = "snake_case")]
pub enum WorkClass {
    Compute,
    /// A collective or a peer-to-peer message between devices.
    Communication,
    /// A copy or a memset.
    Memory,
    /// Device work that belongs to no other class, which only the rules of [`ClassRule::Hta`]
    /// produce.
    Other,
}

/// Classifies device work by a built-in rule set and the name patterns that a user adds.
#[derive(Clone, Debug)]
pub struct Classifier {
    rule: ClassRule,
    names: Vec<(Regex, WorkClass)>,
}

/// The rule set that decides the class of a device row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassRule {
    /// Tries the user's patterns first, then the row's category, then the arguments of a
    /// collective, then known kernel names.
    Category,
    /// Classifies device work by name alone, with the rules of Holistic Trace Analysis 0.6.1.
    Hta,
}

impl Classifier {
    /// Creates a classifier without user patterns.
    pub fn new(rule: ClassRule) -> Self {
        Self { rule, names: Vec::new() }
    }

    /// Adds a user's pattern, which may match anywhere in a name; the first pattern that matches
    /// decides.
    ///
    /// # Errors
    /// Returns [`Error::Pattern`] for an invalid regular expression.
    pub fn with_name(mut self, pattern: &str, class: WorkClass) -> Result<Self, Error> {
        let compiled = Regex::new(pattern)
            .map_err(|source| Error::Pattern { pattern: pattern.to_owned(), source })?;
        self.names.push((compiled, class));
        Ok(self)
    }

    /// Returns the rule set of this classifier.
    pub fn rule(&self) -> ClassRule {
        self.rule
    }

    /// Returns the class of each device row. Each distinct name is classified only once, however
    /// many rows have it.
    pub fn classes(&self, trace: &Trace, rows: &[u32]) -> Vec<WorkClass> {
        let mut by_name: Vec<Option<NameClass>> = vec![None; trace.strings.len()];
        let class_of = |row: &u32| {
            let name = trace.slices.name[*row as usize];
            let cached = &mut by_name[name.0 as usize];
            match *cached.get_or_insert_with(|| self.by_name(trace.strings.get(name))) {
                NameClass::Decided(class) => class,
                NameClass::OfKernels(class) => by_category(trace, *row, class),
            }
        };
        rows.iter().map(class_of).collect()
    }

    /// Returns the class of all rows with a name, or the rule by which the row's category decides.
    fn by_name(&self, name: &str) -> NameClass {
        let user = self.names.iter().find(|(pattern, _)| pattern.is_match(name));
        match (user, self.rule) {
            (Some((_, class)), _) => NameClass::Decided(*class),
            (None, ClassRule::Hta) => NameClass::Decided(hta(name)),
            (None, ClassRule::Category) if communication::is_name_of(name) => {
                NameClass::OfKernels(WorkClass::Communication)
            }
            (None, ClassRule::Category) => NameClass::OfKernels(WorkClass::Compute),
        }
    }
}

/// The class of all rows with one name, or the rule by which a row's category decides.
#[derive(Clone, Copy)]
enum NameClass {
    /// The class of every row with this name.
    Decided(WorkClass),
    /// The class of kernels with this name, unless the category or the arguments of the row decide.
    OfKernels(WorkClass),
}

fn by_category(trace: &Trace, row: u32, of_kernels: WorkClass) -> WorkClass {
    if matches!(trace.kind(row), EventKind::Memcpy | EventKind::Memset) {
        return WorkClass::Memory;
    }
    match trace.slices.collective.get(row) {
        Some(_) => WorkClass::Communication,
        None => of_kernels,
    }
}

/// Reproduces the classes of Holistic Trace Analysis, including its errors: every kernel named
/// `hip…` is communication, and a compute kernel with `Sync` or `dma` in its name is neither
/// compute nor communication.
///
/// # Source
/// The rules come from traceinsight 0.6.1, `hta/utils/utils.py` and `hta/common/types.py`.
fn hta(name: &str) -> WorkClass {
    let begins = |texts: &[&str]| texts.iter().any(|text| name.starts_with(text));
    let contains = |texts: &[&str]| texts.iter().any(|text| name.contains(text));
    if begins(&["nccl", "hip", "hccl"]) || contains(&["ncclKernel"]) {
        return WorkClass::Communication;
    }
    if begins(&["Memcpy", "Memset", "dma"]) {
        return WorkClass::Memory;
    }
    let launch = name.starts_with("cuda") && name.contains("LaunchKernel");
    let none = contains(&["Memcpy", "Memset", "dma", "Sync"])
        || launch
        || begins(&["Stream Wait Event", "runFunction", "job_exe", "packet", "pe_exe"])
        || begins(&["cpum_exe_subgraph", "collective_subgraph_execution"]);
    if none { WorkClass::Other } else { WorkClass::Compute }
}

#[cfg(test)]
mod tests;
