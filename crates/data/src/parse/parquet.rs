//! The only place that knows Parquet: users' files in, dataset parts in and out, small tables out.

pub(crate) mod cells;
pub(crate) mod checked;
pub(crate) mod input;
mod remote;
pub(crate) mod table;
