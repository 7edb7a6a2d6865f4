//! Tests that interrupted preparations resume to the same bytes, and that exact ids do not depend
//! on the memory limit.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use data::synthetic::{self, SyntheticConfig};
use data::{Begin, DataProgress, Error, Prepared, prepare};
use schema::DataConfig;
use serde_json::json;

use crate::fixture::{Folder, bytes_of, config, criteo, request};

const ROWS: u64 = 20_000;
/// A part has 64 row groups of the 64 rows that `request` sets.
const PART_ROWS: u64 = 4096;

fn rows_file(folder: &Folder) -> Vec<String> {
    let path = folder.path("rows.tsv");
    synthetic::write(&SyntheticConfig::criteo(ROWS, 3), &path, 2, &mut |_| {}).unwrap();
    vec![path.to_str().unwrap().to_owned()]
}

/// Prepares until `stop` returns true, then panics. Like a kill, this leaves everything as it is.
fn interrupted(
    (inputs, config): (&[String], &DataConfig),
    out: &Path,
    stop: impl Fn(DataProgress) -> bool,
) {
    let mut watch = |progress: DataProgress| assert!(!stop(progress), "stopped on purpose");
    let run = AssertUnwindSafe(|| prepare(&request(inputs, config, None, out), &mut watch));
    assert!(catch_unwind(run).is_err(), "it was to be interrupted");
    assert!(!out.exists());
}

fn again(
    (inputs, config): (&[String], &DataConfig),
    out: &Path,
    begin: Begin,
) -> Result<Prepared, Error> {
    let mut request = request(inputs, config, None, out);
    request.begin = begin;
    prepare(&request, &mut |_| {})
}

#[test]
fn an_interruption_at_any_point_gives_the_same_bytes() {
    let folder = Folder::new();
    let inputs = rows_file(&folder);
    let config = criteo("criteo-dlrm", &json!({"mode": "exact", "threshold": 2}));
    let whole = bytes_of(&folder.prepare("whole", &inputs, &config).dataset);
    let out = folder.path("cut");
    let mut most = 0;
    // Three interruptions take place during fitting, and three during writing.
    for tenths in [1, 5, 9, 11, 15, 18] {
        let at = |p: DataProgress| p.bytes_done * 20 >= p.bytes_total.unwrap_or(0) * tenths;
        interrupted((&inputs, &config), &out, at);
        if tenths % 2 == 0 {
            // The resumed preparation is interrupted a second time.
            interrupted((&inputs, &config), &out, |p| p.rows > ROWS / 2);
        }
        let kept = folder.path("cut.partial").exists();
        assert_eq!(kept, tenths > 10, "{tenths}");
        let prepared = again((&inputs, &config), &out, Begin::Resume).unwrap();
        assert_eq!(prepared.resumed_rows % PART_ROWS, 0);
        most = most.max(prepared.resumed_rows);
        assert!(bytes_of(&prepared.dataset) == whole, "{tenths}");
        assert!(!folder.path("cut.partial").exists() && !folder.path("cut.counting").exists());
        std::fs::remove_dir_all(&out).unwrap();
    }
    assert!(most >= PART_ROWS, "nothing was taken over");
}

/// Returns a text with a header and rows, some of which are malformed.
fn text(rows: std::ops::Range<u64>) -> Vec<u8> {
    let mut text = b"\xef\xbb\xbflabel\tx\tpadding\tc\r\n".to_vec();
    for row in rows {
        let x = if row % 3001 == 3000 { "bad".to_owned() } else { (row % 97).to_string() };
        let padding = "p".repeat(200 + row as usize % 50);
        text.extend(format!("{}\t{x}\t{padding}\t{}\r\n", row % 2, row * 7 % 1000).bytes());
    }
    text
}

#[test]
fn reading_resumes_where_the_last_part_ended() {
    let folder = Folder::new();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&text(20_000..40_000)).unwrap();
    let inputs = [
        folder.file("a.tsv", &text(0..20_000)),
        folder.file("b.tsv.gz", &packed.finish().unwrap()),
        folder.file("c.tsv", &text(40_000..60_000)),
    ];
    let config = config(json!({
        "format": "tsv", "label": {"column": "label"}, "dense": [{"column": "x"}],
        "categorical": [{"column": "c", "kind": "integer"}],
    }));
    let whole = folder.prepare("whole", &inputs, &config);
    assert_eq!(whole.losses.malformed_lines, 19);
    let out = folder.path("cut");
    for rows in [15_000, 30_000, 45_000, 55_000] {
        interrupted((&inputs, &config), &out, |p| p.rows > rows);
        let mut first = None;
        let mut watch = |progress: DataProgress| {
            first.get_or_insert(progress.rows);
        };
        let prepared = prepare(&request(&inputs, &config, None, &out), &mut watch).unwrap();
        assert_eq!(prepared.losses, whole.losses);
        assert!(bytes_of(&prepared.dataset) == bytes_of(&whole.dataset), "{rows}");
        // A block has about 4,500 rows, and reading resumes at the start of a block.
        let (first, resumed) = (first.unwrap(), prepared.resumed_rows);
        assert!(resumed > PART_ROWS && first > resumed - 5000, "{first} of {resumed}");
        std::fs::remove_dir_all(&out).unwrap();
    }
}

#[test]
fn another_preparation_is_refused_or_restarted() {
    let folder = Folder::new();
    let inputs = rows_file(&folder);
    let modulo = criteo("criteo-dlrm", &json!({"mode": "modulo"}));
    let out = folder.path("cut");
    let stop = |p: DataProgress| p.rows > ROWS * 3 / 4;
    let refused = |config: &DataConfig, what: &str| {
        let error = again((&inputs, config), &out, Begin::Resume).unwrap_err();
        assert!(matches!(&error, Error::OtherPreparation { what: got, .. } if got == what));
    };
    interrupted((&inputs, &modulo), &out, stop);
    refused(&criteo("criteo-torchrec", &json!({"mode": "modulo"})), "configuration");
    let partial = folder.path("cut.partial");
    // Only root can change the owner of a folder, as happens when root prepares for others.
    if std::os::unix::fs::chown(&partial, Some(54_321), None).is_ok() {
        refused(&modulo, "owner");
        std::os::unix::fs::chown(&partial, Some(0), None).unwrap();
    } else {
        testkit::skip("a partial folder of another user", "root");
    }
    let mut text = std::fs::read(&inputs[0]).unwrap();
    text.truncate(text.len() / 2);
    std::fs::write(&inputs[0], &text).unwrap();
    let cut = again((&inputs, &modulo), &out, Begin::Resume).unwrap_err();
    assert!(matches!(&cut, Error::InputChanged { path, .. } if path == Path::new(&inputs[0])));
    let anew = again((&inputs, &modulo), &out, Begin::Restart).unwrap();
    assert_eq!(anew.resumed_rows, 0);
    let whole = folder.prepare("whole", &inputs, &modulo).dataset;
    assert_eq!(bytes_of(&anew.dataset), bytes_of(&whole));
}

/// With a fitted state, the whole file was hashed before; without one, only its start was hashed.
#[test]
fn an_input_of_equal_size_and_time_with_other_content_is_refused() {
    let folder = Folder::new();
    let inputs = rows_file(&folder);
    let path = Path::new(&inputs[0]);
    let (text, times) = (std::fs::read(path).unwrap(), std::fs::metadata(path).unwrap());
    let write = |text: &[u8]| {
        std::fs::write(path, text).unwrap();
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.set_modified(times.modified().unwrap()).unwrap();
    };
    for (name, mode, part) in [("one", "modulo", 0.1), ("two", "exact", 0.9)] {
        let config = criteo("criteo-dlrm", &json!({"mode": mode}));
        let whole = folder.prepare(&format!("{name}-whole"), &inputs, &config).dataset;
        let out = folder.path(name);
        let passes = if mode == "exact" { ROWS + ROWS * 3 / 4 } else { ROWS * 3 / 4 };
        let seen = std::sync::atomic::AtomicU64::new(0);
        let last = std::sync::atomic::AtomicU64::new(0);
        interrupted((&inputs, &config), &out, |progress| {
            use std::sync::atomic::Ordering::Relaxed;
            let new = progress.rows.saturating_sub(last.swap(progress.rows, Relaxed));
            seen.fetch_add(new, Relaxed) + new > passes
        });
        let mut other = text.clone();
        let line = (text.len() as f64 * part) as usize;
        let at = line + text[line..].iter().position(|&byte| byte == b'\n').unwrap() + 1;
        other[at] ^= 1;
        write(&other);
        let error = again((&inputs, &config), &out, Begin::Resume).unwrap_err();
        assert!(matches!(&error, Error::InputChanged { .. }), "{name}: {error}");
        // Restored content resumes, even if the timestamps of the file differ.
        std::fs::write(path, &text).unwrap();
        let prepared = again((&inputs, &config), &out, Begin::Resume).unwrap();
        assert!(prepared.resumed_rows >= PART_ROWS, "{name}");
        assert!(bytes_of(&prepared.dataset) == bytes_of(&whole), "{name}");
        write(&text);
    }
}

#[test]
fn ids_counted_on_disk_are_those_counted_in_memory() {
    let folder = Folder::new();
    // 60,000 categories in irregular order, of which a quarter recurs later.
    let category = |row: u64| if row % 5 == 4 { row / 4 * 7 % 60_000 } else { row * 7 % 60_000 };
    let text: String =
        (0..90_000).map(|row| format!("0\t{}\t{}\n", category(row), row % 3)).collect();
    let inputs = [folder.file("many.tsv", text.as_bytes())];
    let prepared = |name: &str, threshold: u64, memory_mib: u64, threads: usize| {
        let config = config(json!({
            "format": "tsv", "columns": ["label", "c", "few"], "label": {"column": "label"},
            "categorical": [
                {"column": "c", "kind": "integer"}, {"column": "few", "kind": "integer"},
            ],
            "ids": {"mode": "exact", "threshold": threshold, "memory_mib": memory_mib},
        }));
        let mut temporary = 0;
        let out = folder.path(name);
        let mut request = request(&inputs, &config, None, &out);
        request.threads = threads;
        let mut watch = |progress: DataProgress| temporary = progress.temporary_bytes;
        let dataset = prepare(&request, &mut watch).unwrap().dataset;
        assert!(!folder.path(&format!("{name}.counting")).exists());
        let rows = std::fs::read(out.join("rows-00000.parquet")).unwrap();
        (temporary, dataset.fitted().categorical.clone(), rows)
    };
    for threshold in [0, 2, 3] {
        let (none, vocabularies, rows) = prepared(&format!("m{threshold}"), threshold, 1024, 2);
        assert_eq!(none, 0);
        for threads in [1, 7] {
            let name = format!("d{threshold}-{threads}");
            let (some, on_disk, rows_on_disk) = prepared(&name, threshold, 1, threads);
            assert!(some > 1 << 20, "{some}");
            assert!(on_disk == vocabularies && rows_on_disk == rows, "{threshold}");
        }
    }
}
