//! Position of an edit in its file, from which errors about the edit are built.

use crate::Error;

/// Number and kind of an edit, for error messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct EditPosition {
    /// Number in the file, from 1; 0 for a command of its own.
    pub number: usize,
    pub kind: &'static str,
}

impl EditPosition {
    /// Builds the error of an edit that cannot be applied.
    pub fn error(self, expected: &str, got: impl ToString) -> Error {
        let Self { number, kind } = self;
        Error::Edit { number, kind, expected: expected.to_owned(), got: got.to_string() }
    }
}
