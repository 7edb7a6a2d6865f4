//! The ways in which a tensor of another library's state dict fails to fit the model.

use std::fmt;

/// One tensor of a state dict that does not fit the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// The model has the tensor, but the file does not.
    Missing {
        /// Name of the tensor in the state dict.
        name: String,
        expected: Vec<usize>,
    },
    /// The file has the tensor, but the model does not.
    Unexpected {
        /// Name of the tensor in the state dict.
        name: String,
        got: Vec<usize>,
    },
    /// The model and the file have the tensor in different shapes.
    Shape {
        /// Name of the tensor in the state dict.
        name: String,
        expected: Vec<usize>,
        got: Vec<usize>,
    },
    /// The values of the tensor are not floating-point numbers.
    Kind {
        /// Name of the tensor in the state dict.
        name: String,
        expected: &'static str,
        got: String,
    },
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { name, expected } => {
                write!(f, "{name}: missing, expected shape {expected:?}")
            }
            Self::Unexpected { name, got } => {
                write!(f, "{name}: the model has no such parameter, got shape {got:?}")
            }
            Self::Shape { name, expected, got } => {
                write!(f, "{name}: expected shape {expected:?}, got {got:?}")
            }
            Self::Kind { name, expected, got } => {
                write!(f, "{name}: expected dtype {expected}, got {got}")
            }
        }
    }
}
