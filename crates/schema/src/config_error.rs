//! The error type of configurations.

/// A configuration is invalid. The texts name the key, and the line if it is known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The text is not valid TOML.
    #[error("{message}")]
    Syntax {
        /// Message of the parser, with the line if it is known.
        message: String,
    },
    /// Some keys are unknown or missing, or values have the wrong type. All problems are listed,
    /// one per line.
    #[error("{}", numbered(problems))]
    Keys {
        /// One text per problem.
        problems: Vec<String>,
    },
    /// An override cannot be applied.
    #[error("--set {key}: {problem}")]
    Override {
        /// As given by the user.
        key: String,
        problem: String,
    },
    /// A shape or value is impossible.
    #[error("{key}: {problem}")]
    Shape {
        key: String,
        /// The problem, with the layer and both numbers.
        problem: String,
    },
}

/// Formats a single problem, or the number of problems with one per line.
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
