//! Defines the error type of this crate, which covers invalid requests and never imperfect traces.

/// An invalid request: a classification pattern, a what-if edit or rule settings that cannot be
/// used.
///
/// An imperfect trace never causes an error; its defects are reported as issues of
/// [`crate::quality`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("pattern {pattern:?}: {source}")]
    Pattern { pattern: String, source: regex::Error },
    #[error("what-if {edit:?}: expected {expected}, got {got:?}")]
    Edit { edit: String, expected: &'static str, got: String },
    /// `place` is the key or table of the settings file that has an invalid value.
    #[error("rules: {place}: expected {expected}, got {got:?}")]
    Rules { place: String, expected: String, got: String },
}
