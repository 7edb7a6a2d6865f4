//! The interface of a file format: a [`FormatReader`] sends the records of an input in blocks.

use std::sync::Arc;

use crate::error::Error;
use crate::input::origin::ReadObserver;
use crate::parse::block::{BlockPace, LineStart, Records};
use crate::parse::layout::{FieldLayout, LabelNeed, WantedColumns};

/// Options for reading one input, the same for all formats.
pub(crate) struct InputReading<'a> {
    pub wanted: &'a WantedColumns,
    pub label: LabelNeed,
    pub pace: BlockPace,
    pub observer: &'a ReadObserver,
    /// Position at which reading resumes, in formats that report line starts; `None` for the
    /// beginning.
    pub from: Option<LineStart>,
}

/// Function that receives blocks and returns `false` if no more blocks are wanted.
pub(crate) type SendBlock<'a> = dyn FnMut(Arc<FieldLayout>, Box<dyn Records>) -> bool + 'a;

/// The columns that a file declares, for formats with a schema.
#[derive(Default)]
pub(crate) struct InputColumns {
    pub names: Vec<String>,
    /// Whether each of the columns `names` holds lists.
    pub lists: Vec<bool>,
    /// Names and types of columns that cannot be read.
    pub unreadable: Vec<(String, String)>,
}

/// A file format. Adding a format means implementing this trait and adding a line to `format.rs`.
pub(crate) trait FormatReader {
    /// Whether the name of an input identifies this format.
    fn has_name(&self, _input: &str) -> bool {
        false
    }

    /// Whether the first bytes of an input identify this format.
    fn has_magic(&self, _start: &[u8]) -> bool {
        false
    }

    /// Returns the columns that `input` declares; `None` if they follow only from its records.
    ///
    /// # Errors
    /// Returns any [`Error`] of opening the input.
    fn columns(&self, _input: &str) -> Result<Option<InputColumns>, Error> {
        Ok(None)
    }

    /// Returns the files that `inputs` stand for.
    ///
    /// # Errors
    /// Returns an error if an input does not name any file.
    fn files(&self, inputs: &[String]) -> Result<Vec<String>, Error> {
        Ok(inputs.to_vec())
    }

    /// Whether this format can be read from standard input.
    fn reads_streams(&self) -> bool {
        true
    }

    /// Tells for each wanted categorical column whether it holds lists. A column holds lists if it
    /// has a separator, or if it holds lists in the file `first`, the first input.
    ///
    /// # Errors
    /// Returns any [`Error`] of opening the input.
    fn lists(&self, wanted: &WantedColumns, _first: Option<&str>) -> Result<Vec<bool>, Error> {
        Ok(wanted.separated())
    }

    /// Sends the records of `input` in blocks, until `send` returns `false`.
    ///
    /// # Errors
    /// Returns any [`Error`] of reading the input.
    fn send(
        &self,
        input: &str,
        reading: &InputReading<'_>,
        send: &mut SendBlock<'_>,
    ) -> Result<(), Error>;
}
