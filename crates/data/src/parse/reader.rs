//! What the pipeline knows of a format: a [`FormatReader`], which sends an input in blocks.

use std::sync::Arc;

use crate::error::Error;
use crate::input::origin::ReadObserver;
use crate::parse::block::{BlockPace, LineStart, Records};
use crate::parse::layout::{FieldLayout, LabelNeed, WantedColumns};

/// What is read of an input.
pub(crate) struct InputReading<'a> {
    pub wanted: &'a WantedColumns,
    pub label: LabelNeed,
    pub pace: BlockPace,
    /// Notes what was read.
    pub observer: &'a ReadObserver,
    /// Where to begin, of inputs whose records said where they started; at the beginning if none.
    pub from: Option<LineStart>,
}

/// Takes blocks; `false` where it wants no more.
pub(crate) type SendBlock<'a> = dyn FnMut(Arc<FieldLayout>, Box<dyn Records>) -> bool + 'a;

/// The columns that an input says it has.
#[derive(Default)]
pub(crate) struct InputColumns {
    /// Those that can be read.
    pub names: Vec<String>,
    /// Which of them hold lists.
    pub lists: Vec<bool>,
    /// Those that cannot be read, with their type.
    pub unreadable: Vec<(String, String)>,
}

/// Reads a format.
pub(crate) trait FormatReader {
    /// Whether the name of an input says that it is of this format.
    fn has_name(&self, _input: &str) -> bool {
        false
    }

    /// Whether the first four bytes of an input say so.
    fn has_magic(&self, _start: &[u8]) -> bool {
        false
    }

    /// The columns that `input` says it has; `None` where that takes a look at its records.
    ///
    /// # Errors
    /// Those of opening it.
    fn columns(&self, _input: &str) -> Result<Option<InputColumns>, Error> {
        Ok(None)
    }

    /// The files that `inputs` stand for.
    ///
    /// # Errors
    /// For an input that stands for none.
    fn files(&self, inputs: &[String]) -> Result<Vec<String>, Error> {
        Ok(inputs.to_vec())
    }

    /// Whether standard input can be read.
    fn reads_streams(&self) -> bool {
        true
    }

    /// Which of the wanted categorical columns hold lists: those with a separator, or those that
    /// are lists in `first`, the first input, if that is a file.
    ///
    /// # Errors
    /// Those of opening it.
    fn lists(&self, wanted: &WantedColumns, _first: Option<&str>) -> Result<Vec<bool>, Error> {
        Ok(wanted.separated())
    }

    /// Sends `input` in blocks, until `send` wants no more.
    ///
    /// # Errors
    /// What cannot be read.
    fn send(
        &self,
        input: &str,
        reading: &InputReading<'_>,
        send: &mut SendBlock<'_>,
    ) -> Result<(), Error>;
}
