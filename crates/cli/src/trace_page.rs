//! Opens the traces of a job, builds its report and writes it as an HTML page.
//!
//! The commands that write a page share this module: `trace report`, `trace serve`, `capture`,
//! `fleet trace` and `quickstart`.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use analyze::findings::RuleSettings;
use analyze::{JobFacts, Scope};
use report::html::{self, PageOrigin};
use report::{JobReport, Options, TimelineSteps};
use serde::Serialize;
use setup::Session;
use setup::args::Selection;
use setup::error::Error;
use setup::findings::find_findings;
use setup::open_job::{SelectedJob, job_title, open_selection};
use setup::{output, render};

use crate::args::ReportContent;

/// The page that was written, with the counts that commands print.
#[derive(Serialize)]
pub struct WrittenPage {
    #[serde(serialize_with = "render::path_text")]
    pub path: PathBuf,
    pub bytes: u64,
    pub ranks: u64,
    pub events: u64,
    pub timeline_events: u64,
    pub timeline_steps: u64,
    /// Describes the missing parts of the recordings. `None` if they are complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recording_cut: Option<String>,
}

/// Opens the traces from which a report is built.
///
/// # Errors
/// The errors of [`open_selection`].
pub fn open_content(content: &ReportContent, session: &Session) -> Result<SelectedJob, Error> {
    let selection = Selection {
        paths: content.paths.clone(),
        window: content.window,
        classify: None,
        classes: content.classes.clone(),
        ranks: content.ranks.clone(),
        top: None,
        output: None,
    };
    open_selection(&selection, session)
}

/// Builds the report of an opened job.
///
/// # Errors
/// A step that the user selected does not exist.
pub fn build_report(
    chosen: &SelectedJob,
    content: &ReportContent,
    session: &Session,
) -> Result<JobReport, Error> {
    session.console.detail("analyzing");
    let scopes: Vec<Scope<'_>> = chosen.scopes();
    let job = JobFacts::new(&scopes);
    let options = Options {
        title: content.title.clone().unwrap_or_else(|| job_title(&content.paths)),
        program: concat!("rowmill ", env!("CARGO_PKG_VERSION")).to_owned(),
        steps: content.steps.clone().unwrap_or(TimelineSteps::Fitting),
        events_max: Options::EVENTS_MAX,
    };
    let found = find_findings(&job, &RuleSettings::default())?;
    Ok(report::build_report(&job, &found, &options)?)
}

/// Writes the page to the file `out`. If writing fails, no partial file remains.
///
/// # Errors
/// The file `out` cannot be written.
pub fn write_page(report: &JobReport, out: &Path) -> Result<WrittenPage, Error> {
    let mut bytes = 0;
    output::put(out, |file| {
        // The bytes are counted while they are written, because the output may be a pipe, whose
        // size cannot be read afterwards.
        let mut counter = CountingWriter { out: BufWriter::new(file), bytes: 0 };
        html::write(report, &PageOrigin::File, &mut counter).map_err(Error::io(out, "write"))?;
        bytes = counter.bytes;
        counter.flush().map_err(Error::io(out, "write"))
    })?;
    Ok(WrittenPage {
        path: out.to_owned(),
        bytes,
        ranks: report.summary.job.rank_count,
        events: report.summary.job.event_count,
        timeline_events: report.timeline.event_count,
        timeline_steps: match report.timeline.steps.len() as u64 {
            0 => report.timeline.step_count,
            some => some,
        },
        recording_cut: report.missing.clone(),
    })
}

/// A writer that counts the bytes that it passes on, because commands print the size.
struct CountingWriter<W> {
    out: W,
    bytes: u64,
}

impl<W: Write> Write for CountingWriter<W> {
    fn write(&mut self, content: &[u8]) -> io::Result<usize> {
        let written = self.out.write(content)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Opens the traces in `folder`, as [`open_content`] does for paths that a user names.
///
/// # Errors
/// The errors of [`open_selection`].
pub fn open_folder(folder: &Path, session: &Session) -> Result<SelectedJob, Error> {
    open_content(&folder_content(folder, None), session)
}

/// Writes the page of the job in `folder` to `out`. Without a `title`, the page is named after the
/// folder.
///
/// # Errors
/// The file `out` cannot be written.
pub fn write_folder_page(
    job: &SelectedJob,
    folder: &Path,
    title: Option<String>,
    out: &Path,
    session: &Session,
) -> Result<(), Error> {
    write_page(&build_report(job, &folder_content(folder, title), session)?, out).map(|_| ())
}

fn folder_content(folder: &Path, title: Option<String>) -> ReportContent {
    ReportContent {
        paths: vec![folder.to_owned()],
        window: None,
        classes: Vec::new(),
        ranks: Vec::new(),
        steps: None,
        title,
    }
}
