//! The one error type of this crate.

/// An invalid request: a pattern, a what-if edit or rule settings that cannot be used.
///
/// Imperfect traces are never an error; they show up as issues of [`crate::quality`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("pattern {pattern:?}: {source}")]
    Pattern { pattern: String, source: regex::Error },
    #[error("what-if {edit:?}: expected {expected}, got {got:?}")]
    Edit { edit: String, expected: &'static str, got: String },
    /// `place` is the key or table of the settings file.
    #[error("rules: {place}: expected {expected}, got {got:?}")]
    Rules { place: String, expected: String, got: String },
}
