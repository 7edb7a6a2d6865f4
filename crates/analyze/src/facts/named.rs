//! Tests rows by name. Each distinct name is tested once.

use trace::store::Trace;

/// Caches a test per text of a trace, so that each name is tested once.
pub(crate) fn names(trace: &Trace, is_meant: impl Fn(&str) -> bool) -> Vec<bool> {
    trace.strings.iter().map(is_meant).collect()
}

/// Returns whether [`names`] marked the name of a row.
pub(crate) fn is_named(trace: &Trace, names: &[bool], row: u32) -> bool {
    names[trace.slices.name[row as usize].0 as usize]
}
