//! Errors of works, measurements and models.

/// Why a kernel cannot be priced, or a model be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Sizes that make no work.
    #[error("{kind}: expected {expected}, got {}", listed(sizes))]
    Shape { kind: &'static str, sizes: Vec<u64>, expected: String },
    /// An operation that no model is for.
    #[error("operation {name:?}: expected one of {}", known.join(", "))]
    Operation { name: String, known: Vec<&'static str> },
    /// A table of measurements without a column.
    #[error("expected a column {column:?}, got {}", names(got))]
    Column { column: &'static str, got: Vec<String> },
    /// Rows of a table that are no measurements.
    #[error(
        "{count} of {rows} rows are no measurements; line {line}: expected {expected}, got {got:?}"
    )]
    Rows {
        count: usize,
        rows: usize,
        /// The line of the first.
        line: u64,
        /// The value expected there.
        expected: String,
        got: String,
    },
    /// Too few rows to learn from.
    #[error("{kind}: expected at least {expected} rows to learn from, got {got}")]
    TooFew {
        kind: &'static str,
        /// How many are needed.
        expected: usize,
        /// How many there are.
        got: usize,
    },
    /// A file that is no model of this version.
    #[error("kernel model: expected {expected}, got {got}")]
    Model { expected: String, got: String },
    /// Measurements of different machines.
    #[error("expected measurements of one machine, {expected}, got {got}")]
    OtherCpu { expected: String, got: String },
    /// A device that is not known.
    #[error(transparent)]
    Hardware(#[from] schema::topology::HardwareError),
}

/// Names of a table's columns as they may stand in a message: the file may be none of text.
fn names(all: &[String]) -> String {
    const SHOWN: usize = 20;
    const LETTERS: usize = 40;
    let name = |name: &String| {
        let shown: String = name.chars().take(LETTERS).flat_map(char::escape_debug).collect();
        if name.chars().nth(LETTERS).is_some() { shown + "…" } else { shown }
    };
    let mut shown: Vec<String> = all.iter().take(SHOWN).map(name).collect();
    if all.len() > SHOWN {
        shown.push(format!("and {} more", all.len() - SHOWN));
    }
    shown.join(", ")
}

fn listed(sizes: &[u64]) -> String {
    let words: Vec<String> = sizes.iter().map(u64::to_string).collect();
    if words.is_empty() { "none".to_owned() } else { words.join(" ") }
}
