//! The command `rowmill trace PATH`, which prints the summary of a job on one page.

use setup::Session;
use setup::args::Selection;
use setup::error::Error;

use super::query::TraceQuery;
use crate::trace_summary::{TOP, summarize, summary_text};

/// Opens the selected traces and prints the summary of the job.
pub fn run(selection: &Selection, session: &Session) -> Result<(), Error> {
    let query = TraceQuery::new(selection, session)?;
    let page = summarize(&query.chosen, selection.top.unwrap_or(TOP))?;
    query.report(&page, summary_text)
}
