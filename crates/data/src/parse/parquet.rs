//! Parquet: user files as input, verified byte ranges, and small tables as output. `dataset::part`
//! builds the files of datasets on it.

pub(crate) mod cells;
pub(crate) mod checked;
pub(crate) mod input;
mod remote;
pub(crate) mod table;
