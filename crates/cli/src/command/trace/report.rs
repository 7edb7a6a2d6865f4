//! The command `rowmill trace report`, which writes the HTML page of a job. The crate `report`
//! decides the content of the page.

use std::path::Path;

use setup::Session;
use setup::error::Error;
use setup::render;

use crate::args::ReportContent;
use crate::trace_files::refuse_input;
use crate::trace_page::{WrittenPage, build_report, open_content, write_page};

/// Runs `rowmill trace report` and prints its result.
pub fn run(content: &ReportContent, out: &Path, session: &Session) -> Result<(), Error> {
    let chosen = open_content(content, session)?;
    refuse_input(&chosen.job, out)?;
    let report = build_report(&chosen, content, session)?;
    // The traces are freed first, because writing the page needs as much memory again.
    drop(chosen);
    let written = write_page(&report, out)?;
    session.console.report(&written, table)
}

fn table(written: &WrittenPage) -> String {
    let steps = match written.timeline_steps {
        0 => String::new(),
        1 => " of one step".to_owned(),
        steps => format!(" of {} steps", render::count(steps)),
    };
    render::facts(&[
        ("report", written.path.display().to_string()),
        ("size", schema::Bytes(written.bytes).to_string()),
        ("ranks", render::count(written.ranks)),
        ("events", render::count(written.events)),
        ("timeline", format!("{} events{steps}", render::count(written.timeline_events))),
    ])
}
