//! Criteo's layout: `label \t I1 … I13 \t C1 … C26` without a header, as in Kaggle's `train.txt`
//! and the Terabyte files `day_0 … day_23`. Kaggle's `test.txt` has the same columns without the
//! label.
//!
//! Missing fields are empty, integers may be negative, and categories are 32-bit hexadecimal
//! numbers.
//!
//! # The published preparations
//! Both presets read categories as `int(field, 16)` modulo the table's rows (or as exact ids), and
//! missing ones as 0, as both publications do before their optional renumbering. The two presets
//! differ in the dense columns:
//!
//! - `criteo-dlrm` follows facebookresearch/dlrm: missing and negative values become 0, and then
//!   `ln(x + 1)` is computed.
//! - `criteo-torchrec` follows TorchRec, which replaces missing values by 0 and computes `ln(x −
//!   min_day + 2)` with the day's minimum. The minimum is −1 in all published days, so this crate
//!   computes `ln(x + 3)`. Lower values are raised to −2 so that the logarithm exists.
//!
//! Unlike in both publications, rows stay in the order of the files, and the modulo is taken when
//! loading, so that one prepared dataset serves tables of any size.
//!
//! `text` splits files into lines. This module has the column names and a fast path that parses the
//! usual lines directly into integers.

mod columns;
mod number;
mod separators;

pub(crate) use columns::{LineForm, TextItem, parse};

/// Number of dense columns in Criteo's layout, `I1` … `I13`.
pub const DENSE: usize = 13;
/// Number of categorical columns in Criteo's layout, `C1` … `C26`.
pub const CATEGORICAL: usize = 26;

/// Returns the column names in the order of the file: `label`, `I1` … `I13`, `C1` … `C26`.
#[must_use]
pub fn column_names() -> Vec<String> {
    let dense = (1..=DENSE).map(|i| format!("I{i}"));
    let categorical = (1..=CATEGORICAL).map(|i| format!("C{i}"));
    std::iter::once("label".to_owned()).chain(dense).chain(categorical).collect()
}
