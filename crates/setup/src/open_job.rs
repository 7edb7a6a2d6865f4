//! Opens the traces of a job in the same way for all commands. This module reads the traces,
//! reports losses, checks that they are complete, trims cut recordings, and selects ranks, window
//! and classes of work.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::thread;

use analyze::classify::ClassRule;
use analyze::{Classifier, Scope, WindowRule, WorkClass, coverage};
use trace::open::{self, JobReading, ReadControl, ReadProgress, ReadRequest};
use trace::store::{Job, Trace};

use crate::Session;
use crate::args::{ClassifyChoice, OutputFormat, Selection, WindowChoice};
use crate::error::{Error, UsageError, unless_closed};
use crate::progress::{Meter, ProgressUnit};
use crate::render;

/// The traces of a selection, with the window and the classes that analyses use.
pub struct SelectedJob {
    /// The selected ranks, each trimmed to the part that its recording covers.
    pub job: Job,
    /// One line that describes the missing parts of the recordings.
    pub missing: Option<String>,
    rule: WindowRule,
    classifier: Classifier,
    threads: usize,
}

/// Opens the traces of a selection, trims them to the covered part, and determines the window and
/// the classes.
///
/// # Errors
/// Returns an error if a trace cannot be read, a selected rank does not exist, or a class pattern
/// is invalid.
pub fn open_selection(selection: &Selection, session: &Session) -> Result<SelectedJob, Error> {
    let rule = match selection.window {
        Some(WindowChoice::All) => WindowRule::All,
        Some(WindowChoice::Steps) => WindowRule::Steps,
        Some(WindowChoice::Hta) => WindowRule::Hta,
        None => WindowRule::Steps,
    };
    let class_rule = match selection.classify {
        Some(ClassifyChoice::Category) => ClassRule::Category,
        Some(ClassifyChoice::Hta) => ClassRule::Hta,
        None => ClassRule::Category,
    };
    let mut classifier = Classifier::new(class_rule);
    for given in &selection.classes {
        let (class, pattern) = class_pattern(given)?;
        classifier = classifier.with_name(pattern, class)?;
    }
    let OpenedJob { mut job, missing } = open_job(&selection.paths, Extent::Covered, session)?;
    keep_ranks(&mut job, &selection.ranks)?;
    Ok(SelectedJob { job, missing, rule, classifier, threads: session.threads })
}

/// The part of a cut recording that a command receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// The part in which no rows are missing. Every analysis and every prediction uses this part.
    Covered,
    /// All events that were read, for commands that only copy them to another file.
    Everything,
}

/// The traces of a job, with one line about missing parts that has already been printed.
pub struct OpenedJob {
    pub job: Job,
    pub missing: Option<String>,
}

/// Reads the traces at `paths`, judges whether the recordings are complete, reports losses, and
/// trims cut recordings to `extent`.
///
/// # Errors
/// Returns an error if no trace can be read.
pub fn open_job(paths: &[PathBuf], extent: Extent, session: &Session) -> Result<OpenedJob, Error> {
    let request = ReadRequest { paths: paths.to_vec(), threads: session.threads };
    let meter = Mutex::new(Meter::start(session.console, "reading", ProgressUnit::Bytes, None));
    let progress = |progress: ReadProgress| {
        // A poisoned meter belongs to a reader that has already failed, so its progress is not
        // shown.
        if let Ok(mut meter) = meter.lock() {
            meter.set_total(progress.bytes_total);
            meter.advance(progress.bytes_read, "");
        }
    };
    let never = AtomicBool::new(false);
    let read = open::read_with(&request, &ReadControl { progress: &progress, cancelled: &never });
    if let Ok(meter) = meter.into_inner() {
        meter.finish();
    }
    let JobReading { mut job, skipped } = read?;
    coverage::judge_all(&mut job.traces);
    let missing = coverage::missing(&job.traces);
    if let Some(missing) = &missing {
        report_missing(session, missing)?;
    }
    for file in skipped {
        let member = file.member.map_or(String::new(), |member| format!(":{member}"));
        let path = file.path.display();
        session.console.detail(format_args!("{path}{member}: skipped, {}", file.reason));
    }
    for trace in &job.traces {
        report_losses(trace, session);
        if trace.slices.is_empty() && trace.cut.is_none() {
            session.console.warn(format_args!("{}: no event has a duration", trace.origin));
        }
        if let Some(program) = analyze::writer::foreign(trace) {
            session.console.warn(format_args!(
                "{}: not a PyTorch trace, but one of {program}; its rows have no known meaning",
                trace.origin
            ));
        }
        if trace.header.rest.contains_key("ranks") {
            session.console.warn(format_args!(
                "{}: a merged trace; its ranks are taken as the devices of one",
                trace.origin
            ));
        }
    }
    if extent == Extent::Covered {
        job.traces.iter_mut().for_each(coverage::trim);
    }
    Ok(OpenedJob { job, missing })
}

/// Prints which parts of the recordings are missing. The line is printed on stderr, and again
/// before a table on standard output, because that may be piped to a file that is read later.
pub fn report_missing(session: &Session, missing: &str) -> Result<(), Error> {
    session.console.warn(missing);
    // If the reader of standard output has gone, the exit code still reports the missing parts.
    unless_closed(match session.console.format {
        OutputFormat::Table => session.console.print(missing),
        OutputFormat::Md => session.console.print(&format!("{missing}\n")),
        _ => Ok(()),
    })
}

impl SelectedJob {
    /// Keeps the scopes whose recordings are complete enough for an analysis.
    pub fn usable<'a>(scopes: Vec<Scope<'a>>) -> Vec<Scope<'a>> {
        scopes.into_iter().filter(|scope| scope.trace.is_usable()).collect()
    }

    /// Creates one scope per rank with the selected window, in rank order.
    pub fn scopes(&self) -> Vec<Scope<'_>> {
        self.scopes_of(self.rule)
    }

    /// Creates one scope per rank over the whole recording, in rank order.
    pub fn whole(&self) -> Vec<Scope<'_>> {
        self.scopes_of(WindowRule::All)
    }

    fn scopes_of(&self, rule: WindowRule) -> Vec<Scope<'_>> {
        let traces = &self.job.traces;
        let each = traces.len().div_ceil(self.threads).max(1);
        let scope = |trace| Scope::new(trace, rule, &self.classifier);
        let scope = &scope;
        thread::scope(|threads| {
            let parts: Vec<_> = traces
                .chunks(each)
                .map(|part| threads.spawn(move || part.iter().map(scope).collect::<Vec<_>>()))
                .collect();
            // A panic in a thread is a defect of rowmill, so it must not be hidden.
            let joined = parts.into_iter().map(|part| match part.join() {
                Ok(scopes) => scopes,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            joined.flatten().collect()
        })
    }
}

/// Returns the title of a job, which is the name of its first path without parent folders.
pub fn job_title(paths: &[PathBuf]) -> String {
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

fn class_pattern(given: &str) -> Result<(WorkClass, &str), Error> {
    let wrong = || Error::from(UsageError::ClassPattern { given: given.to_owned() });
    let (class, pattern) = given.split_once('=').ok_or_else(wrong)?;
    let class = match class {
        "compute" => WorkClass::Compute,
        "communication" => WorkClass::Communication,
        "memory" => WorkClass::Memory,
        "other" => WorkClass::Other,
        _ => return Err(wrong()),
    };
    Ok((class, pattern))
}

/// Keeps the traces of the selected ranks, or of all ranks if none were selected.
pub fn keep_ranks(job: &mut Job, ranks: &[u32]) -> Result<(), Error> {
    let known: Vec<u32> = job.traces.iter().map(|trace| trace.rank).collect();
    if let Some(rank) = ranks.iter().find(|rank| !known.contains(rank)) {
        let known: Vec<String> = known.iter().map(u32::to_string).collect();
        return Err(UsageError::NoSuchRank { rank: *rank, known: known.join(", ") }.into());
    }
    if !ranks.is_empty() {
        job.traces.retain(|trace| ranks.contains(&trace.rank));
    }
    Ok(())
}

fn report_losses(trace: &Trace, session: &Session) {
    for (loss, counted) in trace.losses.iter() {
        let name = serde_json::to_value(loss).ok();
        let name = name.as_ref().and_then(|name| name.as_str()).unwrap_or_default();
        session.console.warn(format_args!(
            "{}: {} × {}: {}",
            trace.origin,
            render::count(counted.count),
            name.replace('_', " "),
            counted.first.first().map_or("", String::as_str)
        ));
        for more in counted.first.iter().skip(1) {
            session.console.detail(format_args!("  {more}"));
        }
    }
}
