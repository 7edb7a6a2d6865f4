//! Classifies device work as compute, communication or memory.

mod communication;

use regex::Regex;
use schema::CellType;
use serde::Serialize;
use trace::store::{EventKind, Trace};

use crate::error::Error;

/// Purpose of device work, the unit of every breakdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, CellType)]
#[serde(rename_all = "snake_case")]
pub enum WorkClass {
    Compute,
    /// A collective or a peer-to-peer message.
    Communication,
    /// A copy or a set.
    Memory,
    /// Work without another class. Only [`ClassRule::Hta`] yields it.
    Other,
}

/// Classifies device work by a rule and the patterns that a user adds.
#[derive(Clone, Debug)]
pub struct Classifier {
    rule: ClassRule,
    names: Vec<(Regex, WorkClass)>,
}

/// The rule set that decides the class of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassRule {
    /// Tries the user's patterns, then the category, then the arguments of a collective, then known
    /// names.
    Category,
    /// Classifies by name alone, with the rules of Holistic Trace Analysis 0.6.1.
    Hta,
}

impl Classifier {
    /// Creates a classifier without patterns of the user.
    pub fn new(rule: ClassRule) -> Self {
        Self { rule, names: Vec::new() }
    }

    /// Adds a user's pattern, looked for anywhere in the name; the first match wins.
    ///
    /// # Errors
    /// [`Error::Pattern`] for an invalid regular expression.
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

    /// Returns the class of each row. Each distinct name is classified once.
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

    /// The class of all rows with a name, or the reason why a row's category decides.
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

/// The class of all rows with one name, or the rule that a row's category decides.
#[derive(Clone, Copy)]
enum NameClass {
    /// The class of every such row.
    Decided(WorkClass),
    /// The class of a kernel of this name, unless the category or the arguments of the row decide.
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

/// The classes of Holistic Trace Analysis, traps included: any kernel named `hip…` is
/// communication, and a compute kernel with `Sync` or `dma` in its name is neither.
///
/// # Source
/// traceinsight 0.6.1, `hta/utils/utils.py` and `hta/common/types.py`.
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
