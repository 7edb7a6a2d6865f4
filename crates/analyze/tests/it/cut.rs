//! Cuts every trace fixture at shares of its text and where its kinds of rows begin and end. The
//! busy share of a cut recording must agree with that of the whole recording over the same time.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};

use analyze::classify::ClassRule;
use analyze::quality::QualityVerdict;
use analyze::{Classifier, Scope, WindowRule, breakdown, coverage, interval, window};
use trace::open;
use trace::store::{Covered, Trace};

use crate::fixture;

/// Maximum difference between the busy share of a cut recording and that of the whole one, in
/// percentage points.
const POINTS: f64 = 2.0;
/// Texts longer than this many bytes are cut at every place only in the full test.
const LONG: usize = 6 << 20;

#[test]
fn a_cut_recording_gives_the_busy_share_of_the_same_time_or_none() {
    let Some(folder) = fixture::path("traces") else { return };
    let is_full = std::env::var("ROWMILL_CORRUPTION").is_ok_and(|value| value == "full");
    let (mut cuts, mut covered, mut worst) = (0, 0, (0.0_f64, String::new()));
    let mut wrong = Vec::new();
    for (name, text) in texts(&folder) {
        let Ok(whole) = open::parse(&text) else { continue };
        let mut judged = whole.clone();
        coverage::judge(&mut judged);
        assert_eq!(judged.cut, None, "{name} is whole");
        let is_sampled = !is_full && text.len() > LONG;
        for cut in places(&whole, &text) {
            // Everyday checks cut the long traces at one place only.
            if is_sampled && cut.1 != "75 %" {
                continue;
            }
            cuts += 1;
            match check(&whole, &text[..cut.0]) {
                Ok(None) => {}
                Ok(Some((points, share))) => {
                    covered += 1;
                    if points > worst.0 {
                        worst = (points, format!("{name} at {}", cut.1));
                    }
                    println!("{name} at {}: {share:.1} % covered, {points:.3} points", cut.1);
                }
                Err(what) => wrong.push(format!("{name} at {} (byte {}): {what}", cut.1, cut.0)),
            }
        }
    }
    println!("{cuts} cuts, {covered} with figures, at most {:.3} points off: {}", worst.0, worst.1);
    assert!(wrong.is_empty(), "{} of {cuts}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(covered > 0 || cuts == 0, "no cut recording has figures");
}

/// Returns the error of the busy share in percentage points and the covered share, or `None` if the
/// cut recording has no figures.
fn check(whole: &Trace, text: &[u8]) -> Result<Option<(f64, f64)>, String> {
    // A text that ends before its first event is not a trace, and the parser rejects it.
    let Ok(mut cut) = open::parse(text) else { return Ok(None) };
    coverage::judge(&mut cut);
    let Some(found) = cut.cut.clone() else { return Err("passes as a whole recording".into()) };
    if coverage::missing([&cut]).is_none() {
        return Err("has no line that says so".into());
    }
    coverage::trim(&mut cut);
    let classifier = Classifier::new(ClassRule::Category);
    let scopes = [Scope::new(&cut, WindowRule::All, &classifier)];
    let job = analyze::JobFacts::new(&scopes);
    if job.verdict() != QualityVerdict::Broken {
        return Err(format!("is {:?}", job.verdict()));
    }
    if let Some(claim) = job.issues().iter().find(|issue| issue.id == "no-device-work") {
        return Err(format!("claims {:?}", claim.what));
    }
    if found.covered == Some(Covered::Nothing) {
        let rows = scopes[0].device_rows.len();
        return if rows == 0 { Ok(None) } else { Err(format!("has {rows} device rows")) };
    }
    let row = breakdown::compute_breakdown(&scopes[0]);
    let Some(busy) = row.busy_pct.filter(|_| row.device_row_count > 0) else { return Ok(None) };
    let span = (scopes[0].window.start, scopes[0].window.end);
    // Some writers put the base time after the events, so a cut file lacks it and its times are
    // shifted.
    let base = whole.header.base_time_ns - cut.header.base_time_ns;
    let expected = busy_pct(whole, (span.0 + base, span.1 + base));
    let points = (busy - expected).abs();
    let (start, end) = window::recorded(whole).ok_or("an empty trace")?;
    let share = 100.0 * (span.1 - span.0) as f64 / (end - start) as f64;
    if points > POINTS {
        return Err(format!(
            "busy {busy:.2} %, {expected:.2} % of the whole; {share:.1} % covered"
        ));
    }
    Ok(Some((points, share)))
}

/// Returns the share of a time span in which any device work of a trace runs, in percent.
fn busy_pct(trace: &Trace, (start, end): (i64, i64)) -> f64 {
    let lost = window::lost_start(trace);
    let spans = trace
        .rows()
        .filter(|row| trace.kind(*row).is_device_work())
        .filter(|row| Some(trace.slices.start(*row)) != lost)
        .map(|row| (trace.slices.start(row).max(start), trace.slices.end(row).min(end)))
        .filter(|(from, to)| from < to)
        .collect();
    100.0 * interval::length(&interval::union(spans)) as f64 / (end - start) as f64
}

/// Returns the bytes at which a text is cut, each with a name for the place.
fn places(whole: &Trace, text: &[u8]) -> Vec<(usize, String)> {
    let share = |percent: usize| (text.len() * percent / 100, format!("{percent} %"));
    let mut places: Vec<(usize, String)> = [25, 50, 75, 95].map(share).to_vec();
    let mut seen = BTreeSet::new();
    for (category, kind) in whole.categories.iter().enumerate() {
        let rows_of_kind =
            |row: &u32| usize::from(whole.slices.category[*row as usize]) == category;
        let rows = || {
            whole.rows().filter(rows_of_kind).map(|row| whole.slices.offset[row as usize] as usize)
        };
        let Some((first, last)) = rows().min().zip(rows().max()) else { continue };
        for (at, edge) in
            [(first, "begins"), (last, "is about to end"), (event_end(text, last), "ends")]
        {
            places.push((at, format!("where {} {edge}", kind.name)));
        }
    }
    for flow in ["\"ac2g\"", "\"fwdbwd\"", "\"async\""] {
        let first = text.windows(flow.len()).position(|part| part == flow.as_bytes());
        let last = text.windows(flow.len()).rposition(|part| part == flow.as_bytes());
        places.extend(first.map(|at| (at, format!("in the first {flow}"))));
        places.extend(last.map(|at| (at, format!("in the last {flow}"))));
    }
    places.retain(|(at, _)| seen.insert(*at) && *at < text.len());
    places
}

/// Returns the index of the byte after the JSON object that starts at a given byte.
fn event_end(text: &[u8], start: usize) -> usize {
    let (mut depth, mut in_text, mut at) = (0, false, start);
    loop {
        match text[at] {
            b'\\' if in_text => at += 1,
            b'"' => in_text = !in_text,
            b'{' if !in_text => depth += 1,
            b'}' if !in_text => depth -= 1,
            _ => {}
        }
        at += 1;
        if depth == 0 || at >= text.len() {
            return at;
        }
    }
}

/// Returns the unpacked texts of all traces below a folder, each with its name.
pub fn texts(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut texts = Vec::new();
    for path in files(folder) {
        let mut text = Vec::new();
        let file = std::fs::File::open(&path).unwrap();
        trace::packed::unpacked(file).unwrap().read_to_end(&mut text).unwrap();
        let name = path.strip_prefix(folder).unwrap().display().to_string();
        if name.contains(".tar") || name.ends_with(".tgz") {
            let members = members(&text).into_iter();
            texts.extend(members.map(|(member, text)| (format!("{name}:{member}"), text.to_vec())));
        } else {
            texts.push((name, text));
        }
    }
    texts
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(self::files(&path));
        } else if trace_name(&path) {
            files.push(path);
        }
    }
    files.sort();
    files
}

fn trace_name(path: &Path) -> bool {
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    [".json", ".json.gz", ".tar.gz", ".tgz"].iter().any(|end| name.ends_with(end))
}

/// Returns the files of a tar archive, each with its name.
fn members(archive: &[u8]) -> Vec<(String, &[u8])> {
    let (mut members, mut at) = (Vec::new(), 0);
    while let Some(header) = archive.get(at..at + 512).filter(|header| header[0] != 0) {
        let text = |range: std::ops::Range<usize>| {
            let field = String::from_utf8_lossy(&header[range]).into_owned();
            field.trim_matches(|c: char| c == '\0' || c == ' ').to_owned()
        };
        let size = usize::from_str_radix(&text(124..136), 8).unwrap();
        at += 512;
        if matches!(header[156], b'0' | 0) {
            members.push((text(0..100), &archive[at..at + size]));
        }
        at += size.next_multiple_of(512);
    }
    members
}
