//! Compares 1,999 rows of Criteo with an independent implementation in Python.

use std::path::Path;
use std::process::Command;

use data::{Dataset, scan_criteo_files};
use schema::{Batch, DataConfig};
use serde_json::{Value, json};
use testkit::ProgramOutput;

use crate::fixture::{Folder, bytes_of, criteo, request, whole};

const TINY: &str = "criteo/train.tiny.txt.gz";
const THRESHOLD: u64 = 3;

/// Reads the rows with the Python implementation. Without Python, the test is skipped.
fn python_reading(input: &Path) -> Option<Vec<Value>> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/criteo_reading.py");
    if !testkit::has_program("python3", "Criteo rows read by Python") {
        return None;
    }
    let mut python = Command::new("python3");
    python.arg(script).arg(input).arg(THRESHOLD.to_string());
    Some(ProgramOutput::collect(&mut python).expect_code(0, "criteo_reading.py").lines())
}

fn check_dense(batch: &Batch, rows: &[Value], key: &str) {
    assert_eq!(batch.size, rows.len());
    assert_eq!(batch.dense.len(), rows.len() * 13);
    for (row, (got, expected)) in batch.dense.chunks(13).zip(rows).enumerate() {
        assert_eq!(Some(f64::from(batch.labels[row])), expected["label"].as_f64(), "row {row}");
        for (column, &value) in got.iter().enumerate() {
            let truth = expected[key][column].as_f64().unwrap();
            assert!((f64::from(value) - truth).abs() < 1e-6, "row {row} I{}", column + 1);
        }
    }
}

fn check_ids(batch: &Batch, rows: &[Value], expected: impl Fn(&Value, usize) -> i64) {
    assert_eq!(batch.sparse.features, 26);
    for (sample, row) in rows.iter().enumerate() {
        for column in 0..26 {
            let got = &batch.sparse.values[batch.sparse.bag(column, sample)];
            assert_eq!(got, [expected(row, column)], "row {sample} C{}", column + 1);
        }
    }
}

#[test]
fn labels_dense_values_and_ids_match_an_independent_implementation() {
    let Some(input) = testkit::fixture::path(TINY) else { return };
    let Some(rows) = python_reading(&input) else { return };
    assert_eq!(rows.len(), 1999);
    let inputs = [input.to_str().unwrap().to_owned()];
    let folder = Folder::new();

    let modulo = json!({"mode": "modulo"});
    let dlrm = folder.prepare("dlrm", &inputs, &criteo("criteo-dlrm", &modulo)).dataset;
    for table_rows in [1000, 100_003, 1 << 40] {
        let batch = whole(&dlrm, table_rows);
        check_dense(&batch, &rows, "dlrm");
        check_ids(&batch, &rows, |row, c| row["raw"][c].as_i64().unwrap() % table_rows as i64);
    }

    let exact = json!({"mode": "exact", "threshold": THRESHOLD});
    let torchrec = folder.prepare("torchrec", &inputs, &criteo("criteo-torchrec", &exact)).dataset;
    let batch = whole(&torchrec, 1_000_000);
    check_dense(&batch, &rows, "torchrec");
    check_ids(&batch, &rows, |row, c| row["exact"][c].as_i64().unwrap());
}

#[test]
fn the_dataset_does_not_depend_on_compression_or_threads() {
    let Some(input) = testkit::fixture::path(TINY) else { return };
    let folder = Folder::new();
    let packed = std::fs::read(&input).unwrap();
    let mut text = Vec::new();
    std::io::Read::read_to_end(&mut flate2::bufread::MultiGzDecoder::new(&packed[..]), &mut text)
        .unwrap();
    // The dataset records the name of its input, so all files have the same name. The compression
    // is detected from the content.
    let name = "day_0";
    let config = criteo("criteo-dlrm", &json!({"mode": "exact"}));
    let two_members = {
        let cut = text.len() / 2;
        let pack = |part: &[u8]| {
            let level = flate2::Compression::fast();
            let mut encoder = flate2::read::GzEncoder::new(part, level);
            let mut out = Vec::new();
            std::io::Read::read_to_end(&mut encoder, &mut out).unwrap();
            out
        };
        [pack(&text[..cut]), pack(&text[cut..])].concat()
    };
    let zstd = zstd::encode_all(&text[..], 3).unwrap();
    let unended = text.strip_suffix(b"\n").unwrap().to_vec();
    let contents = [("plain", &text), ("gz", &packed), ("members", &two_members), ("zst", &zstd)];
    let mut expected = None;
    for (out, content) in contents.into_iter().chain([("unended", &unended)]) {
        let inputs = [folder.file(name, content)];
        let bytes = bytes_of(&folder.prepare(out, &inputs, &config).dataset);
        assert_eq!(expected.get_or_insert(bytes.clone()), &bytes, "{out}");
    }
    let inputs = [folder.file(name, &text)];
    for threads in [1, 7] {
        let out = folder.path(&format!("threads{threads}"));
        let mut request = request(&inputs, &config, None, &out);
        request.threads = threads;
        let dataset = data::prepare(&request, &mut |_| {}).unwrap().dataset;
        assert_eq!(expected, Some(bytes_of(&dataset)), "{threads} threads");
    }
}

#[test]
fn windows_line_ends_and_a_byte_order_mark_change_nothing() {
    let folder = Folder::new();
    let line = |label: u32| {
        let dense: Vec<String> = (0..13).map(|i| format!("{}", i - 2)).collect();
        let ids: Vec<String> = (0..26).map(|i| format!("{:08x}", i * 77 + label)).collect();
        format!("{label}\t{}\t{}", dense.join("\t"), ids.join("\t"))
    };
    let text = [line(0), line(1), line(1)].join("\n");
    let windows = format!("\u{feff}{}\r\n", text.replace('\n', "\r\n\r\n"));
    let config = criteo("criteo-torchrec", &json!({"mode": "modulo"}));
    let read = |out: &str, text: &str| {
        let inputs = [folder.file("train.txt", text.as_bytes())];
        let prepared = folder.prepare(out, &inputs, &config);
        assert_eq!(prepared.losses.malformed_lines, 0);
        whole(&prepared.dataset, 1 << 32)
    };
    let batch = read("unix", &text);
    assert_eq!(batch.labels, [0.0, 1.0, 1.0]);
    // −2 is the smallest integer whose logarithm exists after adding 3.
    assert_eq!(&batch.dense[..3], [0.0, 2f32.ln(), 3f32.ln()]);
    assert_eq!(batch, read("windows", &windows));
}

/// Returns lines of which some have an unusual field, valid or not, at some position.
fn odd_lines() -> String {
    const ODD: [&str; 24] = [
        "",
        "0",
        "-1",
        "-0",
        "+5",
        "1.5",
        " 7",
        "7 ",
        "12345678",
        "123456789",
        "-12345678901",
        "1e3",
        "nan",
        "-",
        "0x1f",
        "FfFfFfFf",
        "abcdefg",
        "123456789a",
        "0123456789abcdef",
        "12345678901234567",
        "\u{e9}",
        "0.5",
        "2147483648",
        "x\ty",
    ];
    let mut text = String::new();
    for line in 0..2000usize {
        let mut fields: Vec<String> = vec![(line % 2).to_string()];
        fields.extend((0..13).map(|i| (line * 31 + i * 7).to_string()));
        fields.extend((0..26).map(|i| format!("{:08x}", (line * 77 + i) as u32 * 2_654_435_761)));
        if line % 3 != 0 {
            fields[line * 7 % 40] = ODD[line / 3 % ODD.len()].to_owned();
        }
        if line % 101 == 50 {
            fields.pop();
        }
        text += &fields.join("\t");
        text += ["\n", "\r\n", "\n\n", "\n\r\n"][line % 4];
    }
    text.trim_end().to_owned()
}

#[test]
fn the_fast_path_gives_the_same_rows_as_the_field_parser() {
    let folder = Folder::new();
    let inputs = [folder.file("train.txt", odd_lines().as_bytes())];
    for ids in [json!({"mode": "modulo"}), json!({"mode": "exact", "threshold": 2})] {
        let config = criteo("criteo-torchrec", &ids);
        // A configured text for missing values disables the fast path.
        let plain = DataConfig { missing: Some("never".to_owned()), ..config.clone() };
        let [fast, plain] = [("fast", config), ("plain", plain)].map(|(name, config)| {
            let out = format!("{name}-{}", ids["mode"]);
            folder.prepare(&out, &inputs, &config)
        });
        assert_eq!(fast.losses, plain.losses);
        assert!(fast.losses.malformed_lines > 400, "{}", fast.losses.malformed_lines);
        assert!(whole(&fast.dataset, 1 << 50) == whole(&plain.dataset, 1 << 50));
    }
}

#[test]
fn a_scan_returns_the_written_values() {
    let folder = Folder::new();
    let odd = odd_lines();
    let inputs = [folder.file("train.txt", odd.as_bytes())];
    for threads in [1, 7] {
        let mut rows = Vec::new();
        let losses = scan_criteo_files(&inputs, threads, |columns| {
            for row in 0..columns.len() {
                let dense: Vec<i32> = columns.dense.iter().map(|column| column[row]).collect();
                let ids: Vec<u32> = columns.categories.iter().map(|column| column[row]).collect();
                let missing = columns.missing[row];
                rows.push((columns.lines[row], columns.labels[row], dense, ids, missing));
            }
            Ok(())
        });
        assert_eq!(rows.len() as u64 + losses.unwrap().malformed_lines, 2000);
        for (number, label, dense, ids, missing) in rows {
            let line = odd.lines().nth(number as usize - 1).unwrap();
            let fields: Vec<&str> = line.split('\t').map(str::trim).collect();
            assert_eq!(fields[0].parse(), Ok(label), "{line}");
            for (field, value) in fields[1..14].iter().zip(dense) {
                let written = field.parse().ok().filter(|value: &f64| !value.is_nan());
                assert_eq!(written.unwrap_or(0.0), f64::from(value), "{line}");
            }
            for (field, value) in fields[14..].iter().zip(ids) {
                let digits = field.trim_start_matches("0x");
                assert_eq!(u32::from_str_radix(digits, 16).unwrap_or(0), value, "{line}");
            }
            let is_missing = |field: &str| field.is_empty() || field == "nan";
            let missing_fields = fields[1..].iter().rev();
            let expected = missing_fields.fold(0, |m, f| m << 1 | u64::from(is_missing(f)));
            assert_eq!(missing, expected, "{line}");
        }
    }
}

#[test]
fn the_memory_limit_for_exact_ids_names_both_sizes() {
    let folder = Folder::new();
    let columns = ["label", "c"];
    let text: String = (0..100_000).map(|i| format!("0\t{i}\n")).collect();
    let config = crate::fixture::config(json!({
        "format": "tsv", "columns": columns, "label": {"column": "label"},
        "categorical": [{"column": "c", "kind": "integer"}],
        "ids": {"mode": "exact", "memory_mib": 1},
    }));
    let inputs = [folder.file("many.tsv", text.as_bytes())];
    let error = folder.try_prepare("out", &inputs, &config, None).unwrap_err().to_string();
    expect_test::expect![[r#"data.ids.memory_mib: 1 MiB allowed, 2 MiB needed for the ids of 100000 categories or more in 100000 rows; allow more, raise data.ids.min_count or use mode = "modulo""#]]
        .assert_eq(&error);
    assert!(!folder.path("out").exists());
    assert!(Dataset::open(&folder.path("out")).is_err());
}
