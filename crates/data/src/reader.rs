//! What the pipeline knows of a format: a [`Reader`], which sends an input in blocks.

use std::sync::Arc;

use crate::block::{Pace, Place, Records};
use crate::error::Error;
use crate::layout::{LabelNeed, Layout, Wanted};
use crate::origin::Tap;

/// What is read of an input.
pub(crate) struct Reading<'a> {
    pub wanted: &'a Wanted,
    pub label: LabelNeed,
    pub pace: Pace,
    /// Notes what was read.
    pub tap: &'a Tap,
    /// Where to begin, of inputs whose records said where they started; at the beginning if none.
    pub from: Option<Place>,
}

/// Takes blocks; `false` where it wants no more.
pub(crate) type Send<'a> = dyn FnMut(Arc<Layout>, Box<dyn Records>) -> bool + 'a;

/// Reads a format.
pub(crate) trait Reader {
    /// Whether standard input can be read.
    fn reads_streams(&self) -> bool {
        true
    }

    /// Which of the wanted categorical columns hold lists: those with a separator, or those that
    /// are lists in `first`, the first input, if that is a file.
    ///
    /// # Errors
    /// Those of opening it.
    fn lists(&self, wanted: &Wanted, _first: Option<&str>) -> Result<Vec<bool>, Error> {
        Ok(wanted.separated())
    }

    /// Sends `input` in blocks, until `send` wants no more.
    ///
    /// # Errors
    /// What cannot be read.
    fn send(&self, input: &str, reading: &Reading<'_>, send: &mut Send<'_>) -> Result<(), Error>;
}
