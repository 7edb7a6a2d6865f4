//! Reads users' Parquet files and verified byte ranges, and writes small tables. The module
//! `dataset::part` builds the files of datasets on it.

pub(crate) mod cells;
pub(crate) mod checked;
pub(crate) mod input;
mod remote;
pub(crate) mod table;
