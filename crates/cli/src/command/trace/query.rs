//! Opens the selected traces of a `rowmill trace` command, and prints its table or page.

use std::path::PathBuf;

use analyze::job::{JobFacts, RankFacts};
use schema::TableRow;
use serde::Serialize;
use setup::Session;
use setup::args::{OutputFormat, Selection};
use setup::error::Error;
use setup::open_job::{SelectedJob, open_selection};
use setup::table_output::{self, TableTarget, WithCutNotice};

use crate::trace_files::refuse_input;

/// The job that a command selects, and the destination of the rows that it prints.
pub struct TraceQuery<'a> {
    pub chosen: SelectedJob,
    pub session: &'a Session,
    pub target: TableTarget<'a>,
}

impl<'a> TraceQuery<'a> {
    /// Opens the traces that the command line selects.
    ///
    /// # Errors
    /// The errors of [`open_selection`].
    pub fn new(selection: &'a Selection, session: &'a Session) -> Result<Self, Error> {
        let target = TableTarget { output: selection.output.as_deref(), top: selection.top };
        Ok(Self { chosen: open_selection(selection, session)?, session, target })
    }

    /// Writes rows as a table. Each row is marked if parts of the recordings are missing.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn put<T: Serialize + TableRow>(&self, rows: &[T]) -> Result<(), Error> {
        if let Some(output) = self.target.output {
            refuse_input(&self.chosen.job, output)?;
        }
        let missing = self.chosen.missing.as_deref();
        table_output::write_rows_with_cut_notice(self.session.console, rows, self.target, missing)
    }

    /// Adds to a page the line about missing parts of the recordings.
    pub fn with_cut_notice<'p, T>(&'p self, page: &'p T) -> WithCutNotice<'p, T> {
        WithCutNotice { content: Some(page), recording_cut: self.chosen.missing.as_deref() }
    }

    /// Prints or writes a page, either as JSON or as the text that the function `table` formats.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn report<T: Serialize>(
        &self,
        page: &T,
        table: impl FnOnce(&T) -> String,
    ) -> Result<(), Error> {
        let console = self.session.console;
        let page = &self.with_cut_notice(page);
        let table = |page: &WithCutNotice<'_, T>| page.content.map(table).unwrap_or_default();
        let Some(output) = self.target.output else { return console.report(page, table) };
        refuse_input(&self.chosen.job, output)?;
        table_output::deliver(Some(output), |out| {
            let text = match console.format {
                OutputFormat::Json => serde_json::to_string(page)?,
                _ => table(page),
            };
            writeln!(out, "{text}").map_err(Error::io(output, "write"))
        })
    }
}

/// Collects the rows that the function `rows` computes for each rank, in rank order.
pub fn rows_of_ranks<'j, 'a, R: IntoIterator>(
    job: &'j JobFacts<'a>,
    rows: impl FnMut(&'j RankFacts<'a>) -> R,
) -> Vec<R::Item> {
    job.ranks.iter().flat_map(rows).collect()
}

/// Joins the names of paths for a message.
pub fn path_names(paths: &[PathBuf]) -> String {
    let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    names.join(", ")
}
