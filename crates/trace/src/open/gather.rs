//! Reads many files in parallel. The order of the results does not depend on the timing of threads.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::capture;
use super::find::{self, By, ListedFile};
use super::pump::{EarlyEnd, PumpShared};
use super::rank;
use super::request::{JobReading, ReadControl, ReadProgress, ReadRequest, Skipped, no_traces};
use super::sniff::{self, TextKind};
use super::stream::{StreamPart, StreamReader, TextStream};
use super::whole_file;
use crate::Error;
use crate::format::kineto;
use crate::format::timeline::ReadTimeline;
use crate::store::{CutRecording, Ending, Loss, Trace};

/// The traces of one file or archive, and the parts of it that were skipped.
#[derive(Default)]
struct FileTraces {
    traces: Vec<Trace>,
    skipped: Vec<Skipped>,
    /// Damage that lies between the members of the archive.
    failures: Vec<EarlyEnd>,
}

/// Reads all traces under the request's paths, chooses one per rank and assigns the ranks.
pub fn traces(request: &ReadRequest, control: &ReadControl<'_>) -> Result<JobReading, Error> {
    let listed = find::files(request, find::may_be_timeline)?;
    let bytes_total = listed.units.iter().map(|unit| unit.bytes).sum();
    let bytes = Arc::new(AtomicU64::new(0));
    let tell = || {
        let bytes_read = bytes.load(Ordering::Relaxed);
        (control.progress)(ReadProgress { bytes_read, bytes_total });
    };
    let cancelled = control.cancelled;
    let reader = StreamReader { wanted: find::may_be_timeline, cancelled, progress: &tell };
    let contents = each(&listed.units, request.threads, |unit, threads| {
        let shared = PumpShared { all_bytes: Arc::clone(&bytes), ..PumpShared::default() };
        let content = file(unit, threads, shared, reader);
        if cancelled.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { content }
    })?;
    let mut reading = JobReading::default();
    let mut counts = vec![0; request.paths.len()];
    let mut skipped = listed.skipped;
    for (unit, content) in listed.units.iter().zip(contents) {
        counts[unit.request] += content.traces.len();
        reading.job.traces.extend(content.traces);
        skipped.extend(content.skipped.into_iter().map(|one| (unit.request, one)));
    }
    // Each path that the user named must have a trace. A path without a trace is probably a mistake
    // of the user.
    if let Some(empty) = counts.iter().position(|count| *count == 0) {
        let rejected = skipped.into_iter().filter(|(request, _)| *request == empty);
        let rejected: Vec<Skipped> = rejected.map(|(_, one)| one).collect();
        return Err(no_traces(&request.paths[empty], &rejected));
    }
    reading.skipped = skipped.into_iter().map(|(_, one)| one).collect();
    capture::keep_one_per_rank(&mut reading.job.traces);
    rank::assign(&mut reading.job.traces);
    count_lost_files(&mut reading);
    Ok(reading)
}

/// Counts unreadable files that should have been traces as losses of the job's first trace.
fn count_lost_files(reading: &mut JobReading) {
    let Some(first) = reading.job.traces.first_mut() else { return };
    for file in reading.skipped.iter().filter(|file| file.is_lost) {
        let member = file.member.as_ref().map_or(String::new(), |member| format!(":{member}"));
        let what =
            || format!("{}{member}: expected a trace, got {}", file.path.display(), file.reason);
        first.losses.count(Loss::LostFile, what);
    }
}

/// Calls `work` for each file with its share of the threads. If several files fail, the error of
/// the first one in order is returned, independently of timing.
fn each<T: Send>(
    units: &[ListedFile],
    threads: usize,
    work: impl Fn(&ListedFile, usize) -> Result<T, Error> + Sync,
) -> Result<Vec<T>, Error> {
    let workers = threads.min(units.len()).max(1);
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    let run = |worker: usize| {
        // Threads are divided evenly among the workers, and the first workers get the remainder.
        let share = (threads / workers + usize::from(worker < threads % workers)).max(1);
        loop {
            // Workers take files one by one, so that a large file does not delay the others.
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(unit) = units.get(at) else { return };
            let result = work(unit, share);
            if result.is_err() {
                // All earlier files have been started already, so their errors are still collected.
                // The results of later files are not needed.
                next.store(units.len(), Ordering::Relaxed);
            }
            results.lock().unwrap_or_else(PoisonError::into_inner).push((at, result));
        }
    };
    std::thread::scope(|scope| {
        let run = &run;
        for worker in 1..workers {
            scope.spawn(move || run(worker));
        }
        run(0);
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

fn file(
    unit: &ListedFile,
    threads: usize,
    shared: PumpShared,
    reader: StreamReader<'_>,
) -> Result<FileTraces, Error> {
    let path = &unit.path;
    let mut stream = TextStream::open(path, shared, reader).map_err(Error::read(path))?;
    let mut content = FileTraces::default();
    loop {
        match stream.part() {
            StreamPart::Text(member) => {
                let by = if member.is_some() { By::Folder } else { unit.by };
                text(&mut stream, &mut content, path, member, by, threads)?;
            }
            StreamPart::Skipped(member, reason) => {
                let reason = reason.to_owned();
                let (path, member) = (path.clone(), Some(member));
                content.skipped.push(Skipped { path, member, reason, is_lost: false });
            }
            // An error of the operating system ends the reading of all files. Damage concerns only
            // this file.
            StreamPart::Failed(EarlyEnd::System(source)) => {
                return Err(Error::Read { path: path.clone(), source });
            }
            StreamPart::Failed(failure) => content.failures.push(failure),
            StreamPart::Done => break,
        }
    }
    let FileTraces { traces, skipped, failures } = &mut content;
    for failure in failures.drain(..) {
        match traces.last_mut() {
            Some(trace) if matches!(failure, EarlyEnd::Trailing(_)) => count(trace, &failure),
            // The rest of the archive is lost, and it may have contained other ranks.
            Some(trace) => trace.losses.count(Loss::LostFile, || failure.loss().1),
            None => {
                let (reason, path) = (failure.loss().1, path.clone());
                skipped.push(Skipped { path, member: None, reason, is_lost: true });
            }
        }
    }
    Ok(content)
}

/// Reads one text of the stream as a trace. A text that is not a trace is skipped, or it is an
/// error if the request names the file.
fn text(
    stream: &mut TextStream<'_>,
    content: &mut FileTraces,
    path: &PathBuf,
    member: Option<String>,
    by: By,
    threads: usize,
) -> Result<(), Error> {
    let look = sniff::sniff(stream.head());
    let is_empty = stream.head().is_empty();
    let format = match (&look, by) {
        (TextKind::Timeline(format), By::Folder) if format.extensions.is_empty() => {
            let reason =
                format!("a {} trace, which is read only if the user names it", format.name);
            content.skipped.push(Skipped { path: path.clone(), member, reason, is_lost: false });
            return Ok(());
        }
        (TextKind::Timeline(format), _) => Some(*format),
        // Damage at the beginning prevents detection. The user named the file, so it is read as
        // Kineto JSON.
        (TextKind::Other(_), By::Name) if !is_empty => Some(&kineto::TIMELINE),
        _ => None,
    };
    let parsed = match format.map(|format| (format, &format.read)) {
        Some((format, ReadTimeline::Whole(reader))) => {
            let file = whole_file::WholeText { path, member, format, reader };
            content.traces.extend(whole_file::read(stream, file)?);
            return Ok(());
        }
        Some((_, ReadTimeline::Blocks(read))) => Some(read(stream, threads)),
        None => None,
    };
    let text_bytes = stream.text_bytes();
    // A defect of the stream is the likely cause of a failed parse, so the defect is checked first.
    let failure = stream.finish();
    if let Some(EarlyEnd::System(source)) = failure {
        return Err(Error::Read { path: path.clone(), source });
    }
    let problem = match parsed {
        Some(Ok(mut trace)) => {
            trace.origin.path.clone_from(path);
            trace.origin.member = member;
            trace.origin.text_bytes = text_bytes;
            if let Some(failure) = failure {
                cut(&mut trace, &failure);
                count(&mut trace, &failure);
            }
            content.traces.push(trace);
            return Ok(());
        }
        Some(Err(reason)) => format!("{} ({reason})", sniff::describe(&look)),
        None => sniff::describe(&look),
    };
    let is_timeline = matches!(look, TextKind::Timeline(_));
    let is_lost = failure.is_some() || is_empty || is_timeline || is_blank(&look);
    let reason = match failure {
        Some(failure) if is_empty => failure.loss().1,
        Some(failure) => format!("{problem}; {}", failure.loss().1),
        None => problem,
    };
    let path = path.clone();
    match by {
        By::Name if is_empty && text_bytes == 0 && reason == "an empty file" => {
            Err(Error::Empty { path })
        }
        By::Name => Err(Error::NotATrace { path, reason: format!("got {reason}") }),
        By::Folder => {
            content.skipped.push(Skipped { path, member, reason, is_lost });
            Ok(())
        }
    }
}

/// Whether a text has no content. Full disks and killed jobs leave files without content.
fn is_blank(look: &TextKind) -> bool {
    let TextKind::Other(words) = look else { return false };
    ["an empty file", "white space only", "zero bytes only"].contains(&words.as_str())
}

/// Marks a trace as truncated if its compressed stream could not be unpacked completely.
fn cut(trace: &mut Trace, failure: &EarlyEnd) {
    let (_, why) = failure.loss();
    match (&mut trace.cut, failure) {
        (Some(cut), _) => cut.why = why,
        // The text has its full length, but it differs from the text that was compressed.
        (None, EarlyEnd::Damaged(_)) => {
            let byte = trace.origin.text_bytes;
            trace.cut = Some(CutRecording {
                ending: Ending::Damaged,
                byte,
                why,
                covered: None,
                span: None,
            });
        }
        (None, _) => {}
    }
}

/// Counts the damage of a stream as a loss of its trace. If the text ended early because of the
/// damage, the two count as one loss.
fn count(trace: &mut Trace, failure: &EarlyEnd) {
    let (loss, mut text) = failure.loss();
    if loss == Loss::Truncated {
        let truncation = trace.losses.iter().find(|(kind, _)| *kind == loss);
        if let Some(first) = truncation.and_then(|(_, count)| count.first.first()) {
            text = format!("{first}; {text}");
        }
        trace.losses.remove(loss);
    }
    trace.losses.count(loss, || text);
}
