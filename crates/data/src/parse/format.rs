//! Every format there is, and what reads it: the one place that names them all.

use schema::DataConfig;
use schema::source::DataFormat;

use crate::error::Error;
use crate::input::decompress;
use crate::parse::criteo_tsv;
use crate::parse::csv::{Csv, Punctuation};
use crate::parse::npy::Arrays;
use crate::parse::parquet::input::ParquetReader;
use crate::parse::reader::FormatReader;
use crate::parse::text::TsvReader;

/// What reads inputs of a configuration.
pub(crate) fn reader(config: &DataConfig) -> Box<dyn FormatReader> {
    let names = config.columns.clone();
    match config.format {
        DataFormat::Criteo => Box::new(TsvReader { names: criteo_tsv::column_names() }),
        DataFormat::Tsv => Box::new(TsvReader { names }),
        DataFormat::Csv => Box::new(Csv { names, punctuation: Punctuation::new(config) }),
        DataFormat::Parquet => Box::new(ParquetReader),
        DataFormat::Npy => Box::new(Arrays),
    }
}

/// The format that the name of `input` or its first bytes announce; of text `None`.
///
/// # Errors
/// That of opening it.
pub(crate) fn announced(input: &str) -> Result<Option<DataFormat>, Error> {
    let find = |is_it: &dyn Fn(&dyn FormatReader) -> bool| {
        DataFormat::ALL.into_iter().find(|format| is_it(&*reader(&DataConfig::new(*format))))
    };
    let by_name = find(&|reader| reader.has_name(input));
    if by_name.is_some() || input == decompress::STDIN {
        return Ok(by_name);
    }
    let start = decompress::start(input)?;
    Ok(find(&|reader| reader.has_magic(&start)))
}

/// The first of several inputs that has any bytes, or the first of all. Its columns are those of
/// all; the empty parts that Spark writes have none.
///
/// # Errors
/// That of opening one.
pub(crate) fn first_with_content(inputs: &[String]) -> Result<&str, Error> {
    if inputs.len() > 1 {
        for input in inputs.iter().filter(|input| *input != decompress::STDIN) {
            if !decompress::start(input)?.is_empty() {
                return Ok(input);
            }
        }
    }
    Ok(inputs.first().map_or("", String::as_str))
}

/// The files that `inputs` stand for: themselves, or all arrays of the sets they name.
///
/// # Errors
/// [`Error::Array`] for the name of no set.
pub fn input_files(format: DataFormat, inputs: &[String]) -> Result<Vec<String>, Error> {
    reader(&DataConfig::new(format)).files(inputs)
}
