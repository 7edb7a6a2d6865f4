//! Why a configuration is refused.

/// Why a configuration was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The text is not TOML.
    #[error("{message}")]
    Syntax {
        /// What the parser said, with the line where it is known.
        message: String,
    },
    /// Keys are unknown or missing, or values are of another kind: all there are, one a line.
    #[error("{}", numbered(problems))]
    Keys {
        /// What is wrong with each.
        problems: Vec<String>,
    },
    /// An override could not be applied.
    #[error("--set {key}: {problem}")]
    Override {
        /// The key as given.
        key: String,
        problem: String,
    },
    /// A shape or value is impossible.
    #[error("{key}: {problem}")]
    Shape {
        key: String,
        /// What is wrong, with the layer and both numbers.
        problem: String,
    },
}

/// A single problem, or how many there are and each on a line.
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
