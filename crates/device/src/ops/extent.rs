//! The length checks of all dense operations: a slice must have as many elements as its shape
//! implies.

use crate::error::Error;

/// Returns an error if a slice has `got` elements but `op` needs `expected`.
pub(crate) fn check(
    op: &'static str,
    what: &'static str,
    expected: usize,
    got: usize,
) -> Result<(), Error> {
    if expected == got { Ok(()) } else { Err(Error::Shape { op, what, expected, got }) }
}

/// Returns an error if `got` elements are more than the buffer can hold.
pub(crate) fn within(
    op: &'static str,
    what: &'static str,
    room: usize,
    got: usize,
) -> Result<(), Error> {
    if got <= room { Ok(()) } else { Err(Error::Shape { op, what, expected: room, got }) }
}
