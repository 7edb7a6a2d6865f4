//! Every format there is, and what reads it: the one place that names them all.

use schema::DataConfig;
use schema::source::Format;

use crate::csv::{Csv, Punctuation};
use crate::error::Error;
use crate::parquet::input::Tables;
use crate::reader::Reader;
use crate::text::Lines;
use crate::{criteo_tsv, npy};

/// What reads inputs of a configuration.
pub(crate) fn reader(config: &DataConfig) -> Box<dyn Reader> {
    let names = config.columns.clone();
    match config.format {
        Format::Criteo => Box::new(Lines { names: criteo_tsv::column_names() }),
        Format::Tsv => Box::new(Lines { names }),
        Format::Csv => Box::new(Csv { names, punctuation: Punctuation::of(config) }),
        Format::Parquet => Box::new(Tables),
        Format::Npy => Box::new(npy::Arrays),
    }
}

/// The files that `inputs` stand for: themselves, or all arrays of the sets they name.
///
/// # Errors
/// [`Error::Array`] for the name of no set.
pub fn input_files(format: Format, inputs: &[String]) -> Result<Vec<String>, Error> {
    if format == Format::Npy { npy::files(inputs) } else { Ok(inputs.to_vec()) }
}
