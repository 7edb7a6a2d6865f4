//! The one check that every dense operation makes: a slice has as many elements as its shape says.

use crate::error::Error;

/// Refuses a slice of `got` elements where `op` needs `expected`.
pub(crate) fn check(
    op: &'static str,
    what: &'static str,
    expected: usize,
    got: usize,
) -> Result<(), Error> {
    if expected == got { Ok(()) } else { Err(Error::Shape { op, what, expected, got }) }
}

/// Refuses more elements than there is room for.
pub(crate) fn within(
    op: &'static str,
    what: &'static str,
    room: usize,
    got: usize,
) -> Result<(), Error> {
    if got <= room { Ok(()) } else { Err(Error::Shape { op, what, expected: room, got }) }
}
