//! The result of a check, which is one violation of a rule.

/// One violation of a rule, with its place and the expected correction.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    pub path: String,
    /// Line of the violation, counted from 1, or 0 for the whole file.
    pub line: usize,
    /// Name of the rule, as in the help text.
    pub rule: &'static str,
    /// Description of the problem and of what is expected.
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
