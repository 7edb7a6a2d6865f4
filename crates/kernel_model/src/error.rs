//! Errors of kernel descriptions, measurements and model files.

/// Reasons why a kernel time cannot be predicted, or why a model cannot be trained or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{kind}: expected {expected}, got {}", listed(sizes))]
    Shape { kind: &'static str, sizes: Vec<u64>, expected: String },
    #[error("operation {name:?}: expected one of {}", known.join(", "))]
    Operation { name: String, known: Vec<&'static str> },
    #[error("expected a column {column:?}, got {}", names(got))]
    Column { column: &'static str, got: Vec<String> },
    /// Some rows of a table are not measurements.
    #[error(
        "{count} of {rows} rows are not measurements; line {line}: expected {expected}, got {got:?}"
    )]
    Rows {
        count: usize,
        rows: usize,
        /// Line number of the first row that is not a measurement.
        line: u64,
        expected: String,
        got: String,
    },
    #[error("{kind}: expected at least {expected} rows to learn from, got {got}")]
    TooFew { kind: &'static str, expected: usize, got: usize },
    /// The times of a device are so far from those of other devices that their unit is wrong.
    #[error(
        "{kind} on {device}: expected about {expected_ns:.0} ns (median of the rows, by the data \
         sheet), got {got_ns:.0} ns"
    )]
    Unlikely { kind: &'static str, device: String, expected_ns: f64, got_ns: f64 },
    #[error("kernel model: expected {expected}, got {got}")]
    Model { expected: String, got: String },
    #[error("expected measurements of one machine, {expected}, got {got}")]
    OtherCpu { expected: String, got: String },
    #[error(transparent)]
    Hardware(#[from] schema::topology::HardwareError),
}

/// Shortens and escapes the column names of a table for a message, because the file may be binary.
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
