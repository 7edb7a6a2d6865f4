//! The result of a check: one breach of a rule.

/// One breach of a rule, with its place and the correction.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    pub path: String,
    /// The line, from 1; 0 for the whole file.
    pub line: usize,
    /// The rule's name, as in the help.
    pub rule: &'static str,
    /// What is wrong, and what is expected.
    pub problem: String,
}

impl Violation {
    /// Creates a violation; `line` is 0 for the whole file.
    pub fn new(rule: &'static str, path: &str, line: usize, problem: String) -> Self {
        Self { path: path.to_owned(), line, rule, problem }
    }
}

/// Formats violations as `path:line rule: problem`, for the tests of the rules.
#[cfg(test)]
pub fn shown(violations: &[Violation]) -> Vec<String> {
    let show = |v: &Violation| format!("{}:{} {}: {}", v.path, v.line, v.rule, v.problem);
    violations.iter().map(show).collect()
}
