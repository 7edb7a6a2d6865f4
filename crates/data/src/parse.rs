//! Turns the bytes of one input into rows. `format` lists the file formats (text, CSV, Parquet and
//! NumPy arrays), and `field`, `number_form` and `datetime` parse single values. The module `scan`
//! reads several inputs in order.

pub(crate) mod block;
pub mod criteo_tsv;
pub(crate) mod csv;
pub(crate) mod datetime;
pub(crate) mod field;
pub(crate) mod format;
pub(crate) mod header;
pub(crate) mod ids;
pub(crate) mod integer_columns;
pub(crate) mod layout;
pub(crate) mod npy;
pub(crate) mod number_form;
pub(crate) mod parquet;
pub(crate) mod parsed_columns;
pub(crate) mod parsed_row;
pub(crate) mod reader;
pub(crate) mod row_sink;
pub mod small_table;
pub(crate) mod text;
pub(crate) mod text_record;
