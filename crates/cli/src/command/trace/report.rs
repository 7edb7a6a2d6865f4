//! `rowmill trace report`: one HTML file to share. `report` decides its content.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use analyze::antipattern::RuleSettings;
use analyze::{JobFacts, Scope};
use report::html::{self, PageOrigin};
use report::{Options, Report, TimelineSteps};
use serde::Serialize;

use super::file::refuse_input;
use crate::args::ReportContent;
use setup::Session;
use setup::args::Selection;
use setup::error::Error;
use setup::findings::find_findings;
use setup::open_job::{SelectedJob, open_selection};
use setup::output;
use setup::render;

/// What was written, for people and programs.
#[derive(Serialize)]
struct WrittenPage {
    #[serde(serialize_with = "render::path_text")]
    path: PathBuf,
    bytes: u64,
    ranks: u64,
    events: u64,
    timeline_events: u64,
    timeline_steps: u64,
    /// What is missing of the recordings.
    #[serde(skip_serializing_if = "Option::is_none")]
    recording_cut: Option<String>,
}

/// Runs the command.
pub fn run(content: &ReportContent, out: &Path, session: &Session) -> Result<(), Error> {
    let chosen = read(content, session)?;
    refuse_input(&chosen.job, out)?;
    let report = report(&chosen, content, session)?;
    // The page takes the memory of the traces.
    drop(chosen);
    let written = write(&report, out)?;
    session.console.report(&written, table)
}

/// Writes the report of our own trace.
pub fn of_run(folder: &Path, out: &Path, session: &Session) -> Result<(), Error> {
    of_folder(folder, out, Some("rowmill quickstart".to_owned()), session).map(|_| ())
}

/// Writes the report of a folder's traces; the traces.
pub fn of_folder(
    folder: &Path,
    out: &Path,
    title: Option<String>,
    session: &Session,
) -> Result<SelectedJob, Error> {
    let content = ReportContent {
        paths: vec![folder.to_owned()],
        window: None,
        classes: Vec::new(),
        ranks: Vec::new(),
        steps: None,
        title,
    };
    let chosen = read(&content, session)?;
    write(&report(&chosen, &content, session)?, out)?;
    Ok(chosen)
}

/// The traces a report is of.
pub fn read(content: &ReportContent, session: &Session) -> Result<SelectedJob, Error> {
    let selection = Selection {
        paths: content.paths.clone(),
        window: content.window,
        classify: None,
        classes: content.classes.clone(),
        compat: None,
        ranks: content.ranks.clone(),
        top: None,
        output: None,
    };
    open_selection(&selection, session)
}

/// The report of traces that were read.
pub fn report(
    chosen: &SelectedJob,
    content: &ReportContent,
    session: &Session,
) -> Result<Report, Error> {
    session.console.detail("analysing");
    let scopes: Vec<Scope<'_>> = chosen.scopes();
    let mut job = JobFacts::new(&scopes);
    let options = Options {
        title: content.title.clone().unwrap_or_else(|| title(&content.paths)),
        program: concat!("rowmill ", env!("CARGO_PKG_VERSION")).to_owned(),
        steps: content.steps.clone().unwrap_or(TimelineSteps::Fitting),
        events_max: Options::EVENTS_MAX,
    };
    let found = find_findings(&mut job, &RuleSettings::default())?;
    Ok(report::of(&job, &found, &options)?)
}

/// The name of what was read: folders above it say where a person keeps things, not what it is.
pub fn title(paths: &[PathBuf]) -> String {
    let name = |path: &PathBuf| {
        let absolute = path.canonicalize().unwrap_or_else(|_| path.clone());
        absolute.file_name().map(|name| name.to_string_lossy().into_owned())
    };
    let first = paths.first().and_then(name).unwrap_or_else(|| "trace".to_owned());
    match paths.len() {
        0 | 1 => first,
        count => format!("{first} and {} more", count - 1),
    }
}

fn write(report: &Report, out: &Path) -> Result<WrittenPage, Error> {
    let mut bytes = 0;
    output::put(out, |file| {
        let mut counted = Counted { out: BufWriter::new(file), bytes: 0 };
        html::write(report, &PageOrigin::File, &mut counted).map_err(Error::io(out, "write"))?;
        bytes = counted.bytes;
        counted.flush().map_err(Error::io(out, "write"))
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

/// Counts bytes written.
struct Counted<W> {
    out: W,
    bytes: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, content: &[u8]) -> io::Result<usize> {
        let written = self.out.write(content)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
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
