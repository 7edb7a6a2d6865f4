//! Tests trace rows by name. A test runs only once for each distinct name, however many rows have
//! that name.

use trace::store::Trace;

/// Runs a test once for each string of a trace and returns the results by string index.
pub(crate) fn names(trace: &Trace, is_meant: impl Fn(&str) -> bool) -> Vec<bool> {
    trace.strings.iter().map(is_meant).collect()
}

/// Returns whether [`names`] marked the name of a given row.
pub(crate) fn is_named(trace: &Trace, names: &[bool], row: u32) -> bool {
    names[trace.slices.name[row as usize].0 as usize]
}
