//! Tests how paths are opened as jobs: which files are found, unpacked, numbered, rejected and
//! reread.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Map, Value};
use trace::Error;
use trace::open::{self, ReadControl, ReadProgress, ReadRequest, TraceRows};
use trace::store::{Job, Loss, Trace};

/// Creates the text of a trace with `count` kernels, and with `rank` in its content if given.
fn text(rank: Option<u32>, count: usize) -> String {
    let event = |at: usize| {
        format!(
            "{{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"k{}\", \"pid\": 0, \"tid\": 7, \
             \"ts\": {}, \"dur\": 5, \"args\": {{\"stream\": 7, \"number\": {at}, \"q\": \"}}\"}}}}",
            at % 10,
            1_000_000 + 10 * at
        )
    };
    let events: Vec<String> = (0..count).map(event).collect();
    let rank = rank.map(|rank| format!(", \"distributedInfo\": {{\"rank\":{rank}}}"));
    let rank = rank.unwrap_or_default();
    format!("{{\"schemaVersion\": 1, \"traceEvents\": [\n{}\n]{rank}}}", events.join(",\n"))
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn tar(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, bytes) in members {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, *bytes).unwrap();
    }
    archive.into_inner().unwrap()
}

fn read(path: &Path) -> Result<Job, Error> {
    open::read(&ReadRequest { paths: vec![path.to_path_buf()], threads: 2 })
}

fn write(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, bytes).unwrap();
    path
}

/// Lists the path below `folder`, the member, the rank and the number of slices of each trace.
fn listed(job: &Job, folder: &Path) -> Vec<String> {
    let line = |trace: &Trace| {
        let path = trace.origin.path.strip_prefix(folder).unwrap().display();
        let member = trace.origin.member.as_deref().unwrap_or("-");
        format!("{path} {member} {} {}", trace.rank, trace.slices.len())
    };
    job.traces.iter().map(line).collect()
}

#[test]
fn formats_are_detected_by_content_not_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let plain = text(Some(3), 40);
    let archive = tar(&[("x.json", plain.as_bytes())]);
    let forms: [(&str, Vec<u8>, Option<&str>); 9] = [
        ("plain", plain.clone().into_bytes(), None),
        ("gzip", gzip(plain.as_bytes()), None),
        ("two", [gzip(&plain.as_bytes()[..99]), gzip(&plain.as_bytes()[99..])].concat(), None),
        ("zstd", zstd::encode_all(plain.as_bytes(), 1).unwrap(), None),
        ("tar", archive.clone(), Some("x.json")),
        ("tar gzip", gzip(&archive), Some("x.json")),
        ("tar zstd", zstd::encode_all(archive.as_slice(), 1).unwrap(), Some("x.json")),
        ("inside", tar(&[("y.json.gz", &gzip(plain.as_bytes()))]), Some("y.json.gz")),
        ("nested", tar(&[("a.tar", &archive)]), Some("a.tar/x.json")),
    ];
    for (name, bytes, member) in forms {
        let path = write(folder.path(), name, &bytes);
        let job = read(&path).unwrap();
        let trace = &job.traces[0];
        assert_eq!((job.traces.len(), trace.rank, trace.slices.len()), (1, 3, 40), "{name}");
        assert_eq!(trace.origin.member.as_deref(), member, "{name}");
        assert_eq!(trace.origin.text_bytes, plain.len() as u64, "{name}");
        assert!(trace.losses.is_empty(), "{name}: {:?}", trace.losses);
    }
}

#[test]
fn folders_are_searched_recursively_without_hidden_and_other_files() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    write(at, "rank_1.json", text(None, 1).as_bytes());
    write(at, "deep/er/rank_0.json.gz", &gzip(text(None, 2).as_bytes()));
    let member = text(None, 3);
    write(
        at,
        "more.tgz",
        &gzip(&tar(&[
            ("._rank_2.json", b"x"),
            ("rank_2.json", member.as_bytes()),
            ("notes.txt", b"x"),
        ])),
    );
    write(at, ".hidden.json", text(None, 1).as_bytes());
    write(at, ".cache/rank_9.json", text(None, 1).as_bytes());
    write(at, "._rank_1.json", b"\0\x05\x16\x07");
    write(at, "dataset.json", b"{\"columns\": []}");
    write(at, "et.json", b"{\"schema\": \"1.0.1\", \"nodes\": []}");
    write(at, "picture.png", b"\x89PNG\r\n\x1a\n");
    write(at, "zero.json", b"");
    let never = AtomicBool::new(false);
    let control = ReadControl { progress: &|_| {}, cancelled: &never };
    let request = ReadRequest { paths: vec![at.to_path_buf()], threads: 3 };
    let reading = open::read_with(&request, &control).unwrap();
    assert_eq!(
        listed(&reading.job, at),
        ["deep/er/rank_0.json.gz - 0 2", "rank_1.json - 1 1", "more.tgz rank_2.json 2 3"]
    );
    let skipped: Vec<String> = reading
        .skipped
        .iter()
        .map(|one| {
            let name = one.path.strip_prefix(at).unwrap().display();
            let member = one.member.as_deref().unwrap_or("-");
            format!("{name} {member}: {}", one.reason)
        })
        .collect();
    assert_eq!(
        skipped,
        [
            "picture.png -: not a trace by its name",
            "dataset.json -: a JSON object with the keys \"columns\"",
            "et.json -: a PyTorch execution trace",
            "more.tgz notes.txt: not a trace by its name",
            "zero.json -: an empty file",
        ]
    );
}

#[test]
fn traces_of_several_paths_are_ordered_by_rank() {
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<PathBuf> = (0..9)
        .map(|rank| {
            let name = format!("{}.json", (b'z' - rank) as char);
            let bytes = text(Some(u32::from(rank)), usize::from(rank) + 1);
            write(folder.path(), &name, bytes.as_bytes())
        })
        .collect();
    let read = |threads| {
        listed(&open::read(&ReadRequest { paths: paths.clone(), threads }).unwrap(), folder.path())
    };
    let expected = read(1);
    assert_eq!(expected[0], "z.json - 0 1");
    assert_eq!(expected[8], "r.json - 8 9");
    assert_eq!(read(2), expected);
    assert_eq!(read(7), expected);
}

#[test]
fn two_files_of_one_rank_are_kept_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "t10.json", text(Some(0), 1).as_bytes());
    write(folder.path(), "t9.json", text(Some(0), 2).as_bytes());
    let job = read(folder.path()).unwrap();
    assert_eq!(listed(&job, folder.path()), ["t9.json - 0 2", "t10.json - 1 1"]);
    let (loss, count) = job.traces[1].losses.iter().next().unwrap();
    assert_eq!((loss, count.count), (Loss::RankConflict, 1));
    assert!(
        count.first[0].contains("rank 0 is") && count.first[0].ends_with("numbered 1"),
        "{count:?}"
    );
}

#[test]
fn ranks_can_be_assigned_by_the_caller() {
    let folder = tempfile::tempdir().unwrap();
    let a = write(folder.path(), "a.json", text(None, 1).as_bytes());
    let b = write(folder.path(), "b.json", text(None, 2).as_bytes());
    let request = ReadRequest { paths: vec![b, a], threads: 1 };
    let mut job = open::read(&request).unwrap();
    open::assign_ranks(&mut job, &request, &[4, 7]).unwrap();
    assert_eq!(listed(&job, folder.path()), ["b.json - 4 2", "a.json - 7 1"]);
    assert!(job.traces.iter().all(|trace| trace.losses.is_empty()));
    for wrong in [&[1, 1][..], &[1], &[1, 2, 3]] {
        let error = open::assign_ranks(&mut job, &request, wrong).unwrap_err().to_string();
        assert!(error.starts_with("ranks: expected 2 different numbers"), "{error}");
    }
}

#[test]
fn errors_describe_files_that_are_not_traces() {
    let folder = tempfile::tempdir().unwrap();
    let check = |name: &str, bytes: &[u8], expected: &str| {
        let path = write(folder.path(), name, bytes);
        let error = read(&path).unwrap_err().to_string();
        let expected = format!("{}: {expected}", path.display());
        assert!(error.starts_with(&expected), "expected {expected}\n     got {error}");
    };
    check("zero.json", b"", "expected a trace, got an empty file");
    check("zero.json.gz", &gzip(b""), "expected a trace, got an empty file");
    check("photo.json", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "expected a trace, got a PNG image");
    check("rows.parquet", b"PAR1\x15\x04", "expected a trace, got a Parquet file");
    check("x.txt", b"step 1", "expected a trace, got text that begins with \"step 1\"");
    check(
        "et.json.gz",
        &gzip(b"{\"schema\": \"1.0.1\", \"pid\": 1, \"nodes\": []}"),
        "expected a trace, got a PyTorch execution trace",
    );
    check("head.gz", &gzip(b"{}")[..9], "expected a trace, got data that ends early: ");
    check(
        "dust.gz",
        b"\x1f\x8b\x08\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff",
        "expected a trace, got damaged data: ",
    );
    let files: [(&str, &[u8]); 2] =
        [("a_eg_0.json", b"{\"schema\": \"1\", \"nodes\": []}"), ("b.txt", b"")];
    check(
        "et.tar",
        &tar(&files),
        "expected trace files, found none among 2 files (first: a_eg_0.json: a PyTorch execution trace)",
    );
    check(
        "none.tar.gz",
        &gzip(&tar(&[("b/", b"")])),
        "expected trace files, found none among 0 files",
    );
    fs::create_dir(folder.path().join("empty")).unwrap();
    let error = read(&folder.path().join("empty")).unwrap_err();
    assert!(matches!(error, Error::NoTraces { files: 0, .. }), "{error}");
}

#[test]
fn unreadable_files_give_the_system_error() {
    let folder = tempfile::tempdir().unwrap();
    let absent = folder.path().join("absent.json");
    let error = read(&absent).unwrap_err();
    let expected =
        format!("{}: cannot read the trace: No such file or directory", absent.display());
    assert!(error.to_string().starts_with(&expected), "{error}");
    // Reading this file fails for every user, including root.
    #[cfg(target_os = "linux")]
    {
        let error = read(Path::new("/proc/self/mem")).unwrap_err();
        assert!(matches!(error, Error::Read { .. }), "{error}");
    }
}

#[test]
fn folder_without_traces_is_an_error_even_beside_others() {
    let folder = tempfile::tempdir().unwrap();
    let good = write(folder.path(), "good/a.json", text(None, 1).as_bytes());
    write(folder.path(), "bad/dataset.json", b"{\"a\": 1}");
    let bad = folder.path().join("bad");
    let request = ReadRequest { paths: vec![good, bad.clone()], threads: 1 };
    let error = open::read(&request).unwrap_err().to_string();
    let expected = format!(
        "{}: expected trace files, found none among 1 files (first: dataset.json: a JSON object \
         with the keys \"a\")",
        bad.display()
    );
    assert_eq!(error, expected);
}

#[test]
fn truncated_file_is_read_and_the_loss_counted() {
    let folder = tempfile::tempdir().unwrap();
    let plain = text(None, 50_000);
    let archive = tar(&[("a.json", text(None, 5).as_bytes()), ("b.json", plain.as_bytes())]);
    let cut = |bytes: Vec<u8>| bytes[..bytes.len() * 3 / 4].to_vec();
    for (name, bytes, traces) in [
        ("a.json.gz", cut(gzip(plain.as_bytes())), 1),
        ("a.json.zst", cut(zstd::encode_all(plain.as_bytes(), 1).unwrap()), 1),
        ("a.tar", cut(archive.clone()), 2),
        ("a.tar.gz", cut(gzip(&archive)), 2),
    ] {
        let job = read(&write(folder.path(), name, &bytes)).unwrap();
        assert_eq!(job.traces.len(), traces, "{name}");
        let last = job.traces.last().unwrap();
        assert_eq!(last.losses.count_of(Loss::Truncated), 1, "{name}: {:?}", last.losses);
        assert!((20_000..50_000).contains(&last.slices.len()), "{name}: {}", last.slices.len());
    }
}

#[test]
fn garbage_after_a_compressed_file_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = [gzip(text(None, 9).as_bytes()), b"garbage, not a header".to_vec()].concat();
    let job = read(&write(folder.path(), "a.json.gz", &bytes)).unwrap();
    assert_eq!(job.traces[0].slices.len(), 9);
    assert_eq!(job.traces[0].losses.count_of(Loss::Damaged), 1);
}

#[test]
fn a_wrong_checksum_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = gzip(text(None, 9).as_bytes());
    let at = bytes.len() - 6;
    bytes[at] ^= 1;
    let job = read(&write(folder.path(), "a.json.gz", &bytes)).unwrap();
    assert_eq!(job.traces[0].slices.len(), 9);
    assert_eq!(job.traces[0].losses.count_of(Loss::Damaged), 1);
}

#[test]
fn progress_reaches_the_total_and_cancellation_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = gzip(text(None, 100_000).as_bytes());
    let paths = vec![
        write(folder.path(), "a.json.gz", &bytes),
        write(folder.path(), "b.json", text(None, 100).as_bytes()),
    ];
    let total = paths.iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    let (seen, cancelled) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    let note = |progress: ReadProgress| seen.lock().unwrap().push(progress);
    let control = ReadControl { progress: &note, cancelled: &cancelled };
    let request = ReadRequest { paths, threads: 2 };
    open::read_with(&request, &control).unwrap();
    let seen = seen.into_inner().unwrap();
    assert!(seen.iter().all(|progress| progress.bytes_total == Some(total)));
    assert_eq!(seen.iter().map(|progress| progress.bytes_read).max(), Some(total));
    let stop = |_: ReadProgress| cancelled.store(true, Ordering::Relaxed);
    let control = ReadControl { progress: &stop, cancelled: &cancelled };
    assert!(matches!(open::read_with(&request, &control), Err(Error::Cancelled)));
}

#[test]
fn event_texts_are_reread_from_any_kind_of_file() {
    let folder = tempfile::tempdir().unwrap();
    let plain = text(Some(0), 30_000);
    let other = text(Some(1), 3);
    let archive = tar(&[("o.json", other.as_bytes()), ("x.json", plain.as_bytes())]);
    for (name, bytes) in [
        ("a.json", plain.clone().into_bytes()),
        ("a.json.gz", gzip(plain.as_bytes())),
        ("a.tar.zst", zstd::encode_all(archive.as_slice(), 1).unwrap()),
    ] {
        let job = read(&write(folder.path(), name, &bytes)).unwrap();
        let trace = &job.traces[0];
        if trace.slices.offset[0] == u64::MAX {
            testkit::skip("texts of events", "a reader that notes offsets");
            return;
        }
        let rows = [29_999, 0, 17_000, 0];
        let texts = open::event_texts(trace, &rows).unwrap();
        let numbers: Vec<u64> = open::arguments(trace, &rows)
            .unwrap()
            .iter()
            .map(|arguments| arguments["number"].as_u64().unwrap())
            .collect();
        assert_eq!(numbers, [29_999, 0, 17_000, 0], "{name}");
        assert!(
            texts[0].starts_with("{\"ph\": \"X\"") && texts[0].ends_with("\"}\"}}"),
            "{name}: {}",
            texts[0]
        );
        assert_eq!(open::event_texts(trace, &[]).unwrap(), [""; 0]);
    }
}

/// Requests the arguments of traces in archives, uncompressed files and standard input, in any
/// order. Each trace must get the arguments of its own events, or its own error.
#[test]
fn arguments_of_a_job_equal_those_of_its_traces() {
    let folder = tempfile::tempdir().unwrap();
    let members: Vec<String> = (0..3).map(|rank| text(Some(rank), 50 + rank as usize)).collect();
    let archive = tar(&[
        ("r0.json", members[0].as_bytes()),
        ("r1.json", members[1].as_bytes()),
        ("r2.json", members[2].as_bytes()),
    ]);
    let ranks = write(folder.path(), "ranks.tar.gz", &gzip(&archive));
    let plain = write(folder.path(), "a.json", text(Some(7), 20).as_bytes());
    let traces = read(&ranks).unwrap().traces;
    let single = read(&plain).unwrap().traces;
    let mut of_stdin = single[0].clone();
    of_stdin.origin.path = "-".into();
    let mut of_lost_member = traces[1].clone();
    of_lost_member.origin.member = Some("gone.json".to_owned());
    let asked = [
        TraceRows { trace: &traces[2], rows: &[51, 3, 51] },
        TraceRows { trace: &of_stdin, rows: &[1] },
        TraceRows { trace: &traces[0], rows: &[0] },
        TraceRows { trace: &single[0], rows: &[19, 0] },
        TraceRows { trace: &of_lost_member, rows: &[0] },
        TraceRows { trace: &traces[2], rows: &[7] },
        TraceRows { trace: &traces[1], rows: &[] },
    ];
    let found = open::selected_arguments(&asked, &|_| true);
    assert_eq!(found.len(), asked.len());
    for (events, found) in asked.iter().zip(&found) {
        match (open::arguments(events.trace, events.rows), found) {
            (Ok(alone), Ok(found)) => assert_eq!(&alone, found),
            (Err(alone), Err(found)) => assert_eq!(alone.to_string(), found.to_string()),
            (alone, found) => panic!("alone {alone:?}, together {found:?}"),
        }
    }
    let numbers = |of: &[Map<String, Value>]| -> Vec<u64> {
        of.iter().map(|arguments| arguments["number"].as_u64().unwrap()).collect()
    };
    assert_eq!(numbers(found[0].as_ref().unwrap()), [51, 3, 51]);
    assert_eq!(numbers(found[3].as_ref().unwrap()), [19, 0]);
    assert_eq!(numbers(found[5].as_ref().unwrap()), [7]);
    assert!(found[1].as_ref().unwrap_err().to_string().contains("standard input"));
    assert!(found[4].as_ref().unwrap_err().to_string().contains("changed"));
}

#[test]
fn event_texts_of_standard_input_or_changed_files_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "a.json", text(None, 10).as_bytes());
    let mut trace = read(&path).unwrap().traces.remove(0);
    trace.origin.path = "-".into();
    let error = open::event_texts(&trace, &[1]).unwrap_err().to_string();
    assert!(error.contains("standard input can be read only once"), "{error}");
    trace.origin.path = path.clone();
    fs::write(&path, vec![b'x'; 5000]).unwrap();
    let error = open::event_texts(&trace, &[1]).unwrap_err().to_string();
    assert!(error.contains("changed") || error.contains("never were"), "{error}");
}

/// Every fixture folder must have the expected traces and ranks.
#[test]
fn fixtures_contain_the_expected_traces() {
    let Some(traces) = testkit::fixture::path("traces") else { return };
    let job = read(&traces.join("dlrm8")).unwrap();
    let ranks: Vec<u32> = job.traces.iter().map(|trace| trace.rank).collect();
    assert_eq!(ranks, (0..8).collect::<Vec<_>>());
    for trace in &job.traces {
        let name = format!("worker{}_step_12", trace.rank);
        assert!(trace.origin.member.as_ref().unwrap().contains(&name));
        assert!(trace.losses.is_empty(), "{:?}", trace.losses);
    }
    let odd = traces.join("odd");
    let job = read(&odd.join("rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz")).unwrap();
    assert_eq!(job.traces[0].rank, 34);
    let error = read(&odd.join("1.0.2-chakra.0.0.4.tgz")).unwrap_err().to_string();
    assert!(
        error.contains("(first: 1.0.2-chakra.0.0.4.json: a PyTorch execution trace)"),
        "{error}"
    );
}
