//! The list of file formats and their readers. No other file lists all formats.

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

/// Returns the reader for the format of a configuration.
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

/// Detects the format of `input` from its name or its first bytes; `None` for text.
///
/// # Errors
/// Returns any [`Error`] of opening the input.
pub(crate) fn announced(input: &str) -> Result<Option<DataFormat>, Error> {
    let find = |is_it: &dyn Fn(&dyn FormatReader) -> bool| {
        DataFormat::ALL.into_iter().find(|format| is_it(&*reader(&DataConfig::new(*format))))
    };
    let by_name = find(&|reader| reader.has_name(input));
    if by_name.is_some() || input == decompress::STDIN {
        return Ok(by_name);
    }
    let start = decompress::read_start(input)?;
    Ok(find(&|reader| reader.has_magic(&start)))
}

/// Returns the first input with content, or the first input if all are empty. The columns of this
/// input are used for all inputs, because the empty parts that Spark writes have no columns.
///
/// # Errors
/// Returns any [`Error`] of opening an input.
pub(crate) fn first_with_content(inputs: &[String]) -> Result<&str, Error> {
    if inputs.len() > 1 {
        for input in inputs.iter().filter(|input| *input != decompress::STDIN) {
            if !decompress::read_start(input)?.is_empty() {
                return Ok(input);
            }
        }
    }
    Ok(inputs.first().map_or("", String::as_str))
}

/// Returns the files that `inputs` stand for: the inputs themselves, or all arrays of the sets they
/// name.
///
/// # Errors
/// Returns [`Error::Array`] for a name that does not belong to a set of arrays.
pub fn input_files(format: DataFormat, inputs: &[String]) -> Result<Vec<String>, Error> {
    reader(&DataConfig::new(format)).files(inputs)
}
