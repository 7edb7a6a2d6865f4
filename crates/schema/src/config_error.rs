//! The error type of configurations.

/// Error of an invalid configuration. The message names the key, and its line where that is known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The text is not valid TOML.
    #[error("{message}")]
    Syntax {
        /// Message of the TOML parser, with the line if the parser knows it.
        message: String,
    },
    /// Some keys are unknown or missing, or values have the wrong type. All problems are listed,
    /// one per line.
    #[error("{}", numbered(problems))]
    Keys {
        /// One message for each problem.
        problems: Vec<String>,
    },
    /// An override of the option `--set` cannot be applied.
    #[error("--set {key}: {problem}")]
    Override {
        /// Key of the override, as the user wrote it.
        key: String,
        problem: String,
    },
    /// A shape or a value is outside its valid range.
    #[error("{key}: {problem}")]
    Shape {
        key: String,
        /// Description of the problem, with the layer and the two numbers that disagree.
        problem: String,
    },
}

/// Formats a single problem as it is, and several problems as their number followed by one per
/// line.
fn numbered(problems: &[String]) -> String {
    match problems {
        [one] => one.clone(),
        several => format!("{} problems:\n  {}", several.len(), several.join("\n  ")),
    }
}

impl ConfigError {
    pub(crate) fn shape(key: impl Into<String>, problem: String) -> Self {
        Self::Shape { key: key.into(), problem }
    }
}
