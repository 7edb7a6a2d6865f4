//! Truncates and corrupts every fixture. Reading must not panic, and the result must be consistent.
//!
//! `ROWMILL_CORRUPTION=full`, which `cargo xtask ci --full` sets, tests whole files and more cases.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use trace::chakra;
use trace::execution_trace;
use trace::open::{self, ReadRequest};
use trace::store::{Job, Sparse, StringId, Trace, TrackId};

/// The number of cases per fixture, and the size to which fixtures are shortened.
struct Effort {
    cuts: u64,
    flips: u64,
    /// Texts that are longer than this number of bytes are shortened to it.
    text_bytes: usize,
}

const EVERYDAY: Effort = Effort { cuts: 20, flips: 50, text_bytes: 2 << 20 };
const FULL: Effort = Effort { cuts: 200, flips: 1000, text_bytes: usize::MAX };

/// A fixture to be damaged, and the reader for it.
struct Victim {
    name: String,
    bytes: Vec<u8>,
    form: Form,
}

enum Form {
    /// A file as it is on disk.
    File,
    Text,
}

#[test]
fn damaged_fixtures_never_panic() {
    let Some(folder) = testkit::fixture::path("traces") else { return };
    let is_full = std::env::var("ROWMILL_CORRUPTION").is_ok_and(|value| value == "full");
    let effort = if is_full { FULL } else { EVERYDAY };
    let mut files = Vec::new();
    find(&folder, &mut files);
    assert!(files.len() > 10, "{} files in {}", files.len(), folder.display());
    let victims: Vec<Victim> = files.iter().flat_map(|path| victims(path, &effort)).collect();
    let cases = effort.cuts + effort.flips;
    let (next, runs) = (AtomicUsize::new(0), AtomicU64::new(0));
    let failures = Mutex::new(Vec::new());
    let work = || {
        let scratch = tempfile::tempdir().unwrap();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(victim) = victims.get(at) else { return };
            let mut bytes = victim.bytes.clone();
            for case in 0..cases {
                let damaged = damage(&mut bytes, case, &effort, at as u64);
                let run = || victim.read(&bytes[..damaged.end], scratch.path());
                let outcome = catch_unwind(AssertUnwindSafe(run));
                runs.fetch_add(1, Ordering::Relaxed);
                if outcome.is_err() {
                    failures.lock().unwrap().push(format!("{} with {damaged:?}", victim.name));
                }
                for (place, byte) in damaged.flips.iter().rev() {
                    bytes[*place] = *byte;
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} panics:\n{}", failures.len(), failures.join("\n"));
    assert_eq!(runs.into_inner(), cases * victims.len() as u64);
}

#[test]
fn broken_key_before_the_events_loses_only_the_header() {
    let event =
        r#"{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 2}"#;
    for key in [
        "\"traceEvents\" # [",
        "\"traceEvents\"x\n[",
        "\"traceEvents\" \"x\" [",
        "y \"traceEvents\": [",
    ] {
        let text = format!("{{\"schemaVersion\": 1, {key}\n{event}, {event}]}}");
        let trace = open::parse(text.as_bytes()).unwrap();
        assert_eq!(trace.slices.len(), 2, "{text}: {:?}", trace.losses);
        assert!(!trace.losses.is_empty());
    }
    // Without a list of events, there is nothing to find.
    assert!(open::parse(b"{\"traceEvents\" # {}, \"traceEvents\" # 1}").is_err());
}

/// A case of damage: the number of bytes kept, and the changed bytes with their former values.
#[derive(Debug)]
struct Damage {
    end: usize,
    flips: Vec<(usize, u8)>,
}

/// Damages the bytes in the way that the case number selects.
fn damage(bytes: &mut [u8], case: u64, effort: &Effort, seed: u64) -> Damage {
    let mut state = (seed << 32) | case;
    let mut random = |below: usize| (splitmix(&mut state) % below.max(1) as u64) as usize;
    let mut damage = Damage { end: bytes.len(), flips: Vec::new() };
    if case < effort.cuts {
        damage.end = random(bytes.len());
        return damage;
    }
    // Usually one byte is changed, and sometimes five are. Every fourth case changes the beginning,
    // where the headers are.
    for _ in 0..if case.is_multiple_of(8) { 5 } else { 1 } {
        let reach = if case.is_multiple_of(4) { bytes.len().min(512) } else { bytes.len() };
        let at = random(reach);
        let Some(byte) = bytes.get_mut(at) else { break };
        damage.flips.push((at, *byte));
        *byte ^= 1 + random(255) as u8;
    }
    damage
}

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn find(folder: &Path, files: &mut Vec<PathBuf>) {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() { find(&path, files) } else { files.push(path) }
    }
}

/// Returns a file and the texts that it contains, each to be damaged separately.
fn victims(path: &Path, effort: &Effort) -> Vec<Victim> {
    let mut file = fs::read(path).unwrap();
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    let mut texts = texts(&file);
    let unpacked: usize = texts.iter().map(|(_, text)| text.len()).sum();
    if unpacked > effort.text_bytes {
        // Keeps the part of the compressed file that unpacks to about the wanted size.
        file.truncate((file.len() as u64 * effort.text_bytes as u64 / unpacked as u64) as usize);
        texts.truncate(1);
    }
    let mut victims = vec![Victim { name: name.clone(), bytes: file, form: Form::File }];
    for (member, mut bytes) in texts {
        bytes.truncate(effort.text_bytes);
        victims.push(Victim { name: format!("{name} {member}"), bytes, form: Form::Text });
    }
    victims
}

fn texts(file: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut text = Vec::new();
    if !file.starts_with(&[0x1f, 0x8b]) {
        text.extend_from_slice(file);
    } else {
        flate2::read::MultiGzDecoder::new(file).read_to_end(&mut text).unwrap();
    }
    if text.get(257..262) != Some(b"ustar") {
        return vec![("text".to_owned(), text)];
    }
    let mut members = Vec::new();
    for entry in tar::Archive::new(text.as_slice()).entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().display().to_string();
        let mut text = Vec::new();
        entry.read_to_end(&mut text).unwrap();
        if text.len() > 1000 {
            members.push((name, text));
        }
    }
    members
}

impl Victim {
    /// Reads the damaged bytes. An error is as acceptable as a result.
    fn read(&self, bytes: &[u8], scratch: &Path) {
        match self.form {
            Form::Text => {
                if let Ok(trace) = open::parse(bytes) {
                    check(&trace);
                }
                if self.name.contains("_et") {
                    let _ = execution_trace::read_text(bytes);
                }
                if self.name.ends_with(".et") {
                    let _ = chakra::read_bytes(bytes);
                }
            }
            Form::File => {
                let path = scratch.join("victim");
                fs::write(&path, bytes).unwrap();
                let Ok(job) = open::read(&ReadRequest { paths: vec![path], threads: 1 }) else {
                    return;
                };
                check_job(&job);
            }
        }
    }
}

fn check_job(job: &Job) {
    let ranks: BTreeSet<u32> = job.traces.iter().map(|trace| trace.rank).collect();
    assert_eq!(ranks.len(), job.traces.len(), "two traces of one rank");
    assert!(!job.traces.is_empty());
    for trace in &job.traces {
        check(trace);
        let (first, last) = (0, trace.slices.len().saturating_sub(1) as u32);
        if trace.slices.len() > 1 && trace.slices.offset[0] != u64::MAX {
            // The text of a broken event may give an error, but not a panic.
            let _ = open::arguments(trace, &[first, last, first]);
        }
    }
}

/// Checks the invariants of every trace, however damaged its file was.
fn check(trace: &Trace) {
    let slices = &trace.slices;
    let rows = slices.len();
    assert_eq!(
        [slices.duration.len(), slices.name.len(), slices.category.len(), slices.track.len()],
        [rows; 4]
    );
    assert_eq!(slices.offset.len(), rows);
    for row in trace.rows() {
        let at = row as usize;
        assert!(slices.duration[at] >= 0, "row {row} lasts {} ns", slices.duration[at]);
        assert!(
            slices.start[at].checked_add(slices.duration[at]).is_some(),
            "row {row} never ends"
        );
        assert!(usize::from(slices.category[at]) < trace.categories.len());
        let offset = slices.offset[at];
        assert!(offset == u64::MAX || offset < trace.origin.text_bytes, "row {row} at {offset}");
        is_text(trace, slices.name[at]);
        is_track(trace, slices.track[at]);
        // The columns behind these functions must be as long as the others, else the calls panic.
        let ids = (slices.correlation(row), slices.external_id(row));
        let _ = (ids, slices.stream(row), slices.device(row));
    }
    is_column(&slices.bytes, rows);
    is_column(&slices.bandwidth, rows);
    is_column(&slices.launch_shape, rows);
    is_column(&slices.collective, rows);
    is_column(&slices.sequence, rows);
    is_column(&slices.forward_thread, rows);
    is_column(&slices.record_function, rows);
    is_column(&slices.event_index, rows);
    is_column(&slices.python, rows);
    is_column(&slices.sync, rows);
    is_column(&slices.graph_node, rows);
    is_column(&slices.unfinished, rows);
    for (_, collective) in slices.collective.iter() {
        let texts =
            [collective.name, collective.dtype, collective.splits_in, collective.splits_out];
        texts.iter().for_each(|id| is_text(trace, *id));
        let group = [collective.group, collective.group_description, collective.group_ranks];
        group.iter().for_each(|id| is_text(trace, *id));
    }
    trace.flows.iter().for_each(|flow| {
        is_track(trace, flow.track);
        assert!(usize::from(flow.category) < trace.categories.len());
    });
    trace.counters.iter().for_each(|counter| {
        is_track(trace, counter.track);
        is_text(trace, counter.name);
        is_text(trace, counter.series);
    });
    trace.instants.iter().for_each(|instant| {
        is_track(trace, instant.track);
        is_text(trace, instant.name);
        assert!(usize::from(instant.category) < trace.categories.len());
    });
    trace.allocations.iter().for_each(|allocation| is_track(trace, allocation.track));
}

fn is_text(trace: &Trace, id: StringId) {
    assert!((id.0 as usize) < trace.strings.len(), "text {} of {}", id.0, trace.strings.len());
}

fn is_track(trace: &Trace, id: TrackId) {
    assert!((id.0 as usize) < trace.tracks.len(), "track {} of {}", id.0, trace.tracks.len());
}

fn is_column<T>(column: &Sparse<T>, rows: usize) {
    let mut last = None;
    for (row, _) in column.iter() {
        assert!(last < Some(row) && (row as usize) < rows, "row {row} of {rows} behind {last:?}");
        last = Some(row);
    }
}
