//! Criteo's layout: `label \t I1 … I13 \t C1 … C26`, no header, as in Kaggle's `train.txt` and the
//! Terabyte `day_0 … day_23`; Kaggle's `test.txt` has the same columns without the label.
//!
//! A missing field is empty; integers may be negative; categories are 32-bit hexadecimal numbers.
//!
//! # The published preparations
//! Both presets read categories as `int(field, 16)` modulo the table's rows (or to exact ids), a
//! missing one as 0, as both publications do before their optional re-numbering. They differ in the
//! dense columns:
//!
//! - `criteo-dlrm`, as facebookresearch/dlrm: missing to 0, negatives to 0, `ln(x + 1)`.
//! - `criteo-torchrec`, as TorchRec, which publishes missing to 0, then `ln(x − min_day + 2)` with
//!   the day's minimum. Here it is `ln(x + 3)`: the minimum is taken as −1, which it is in the
//!   published days; a lower value is raised to −2 so that the logarithm exists.
//!
//! Also different from both: nothing is written as `npz` or `npy` per day, rows are kept in the
//! order of the files, and the modulo is taken when loading, so that one prepared dataset serves
//! any table size.
//!
//! Reading lines is `text`'s. Here are the columns, and the way from text to integers that is as
//! fast as the machine reads ([`scan`]).

mod columns;
mod number;
mod separators;

pub(crate) use columns::{LineForm, TextItem, parse};

/// Number of dense columns.
pub const DENSE: usize = 13;
/// Number of categorical columns.
pub const CATEGORICAL: usize = 26;

/// The column names in the order of the file: `label`, `I1` … `I13`, `C1` … `C26`.
#[must_use]
pub fn column_names() -> Vec<String> {
    let dense = (1..=DENSE).map(|i| format!("I{i}"));
    let categorical = (1..=CATEGORICAL).map(|i| format!("C{i}"));
    std::iter::once("label".to_owned()).chain(dense).chain(categorical).collect()
}
