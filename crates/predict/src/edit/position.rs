//! Which edit an error is about.

use crate::Error;

/// Number and kind of an edit, for messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct EditPosition {
    pub number: usize,
    pub kind: &'static str,
}

impl EditPosition {
    /// The error of an edit that cannot be applied.
    pub fn error(self, expected: &str, got: impl ToString) -> Error {
        let Self { number, kind } = self;
        Error::Edit { number, kind, expected: expected.to_owned(), got: got.to_string() }
    }
}
