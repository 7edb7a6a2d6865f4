//! Tests of arrays in the layout of TorchRec and MLPerf: they must give the same samples as text,
//! and specific errors.

use std::io::{Seek, Write};

use data::{Begin, BlockPace, Error, Strictness, prepare, read_for_scoring};
use schema::DataConfig;
use serde_json::json;

use crate::fixture::{Folder, all_features, bags, config, request, whole};

const ROWS: usize = 20_000;

fn dense(row: usize, column: usize) -> f32 {
    (row * 13 + column) as f32 * 0.25
}

fn category(row: usize, column: usize) -> i32 {
    (row * 31 + column * 7) as i32 % 1000
}

/// Builds a `.npy` file of format 1.0 with this header text.
pub fn npy(header: &str, content: &[u8]) -> Vec<u8> {
    let padded = format!("{header:<117}\n");
    let length = (padded.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\0", &length[..], padded.as_bytes(), content].concat()
}

pub fn header(kind: &str, shape: &str) -> String {
    format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({shape}), }}")
}

fn write_dense(folder: &Folder) -> String {
    let each = (0..ROWS).flat_map(|row| (0..13).map(move |column| dense(row, column)));
    let content: Vec<u8> = each.flat_map(f32::to_le_bytes).collect();
    let labels: Vec<u8> = (0..ROWS).flat_map(|row| (row as i32 % 2).to_le_bytes()).collect();
    folder.file("day_0_labels.npy", &npy(&header("<i4", &format!("{ROWS}, 1")), &labels));
    folder.file("day_0_dense.npy", &npy(&header("<f4", &format!("{ROWS}, 13")), &content))
}

fn criteo_arrays() -> DataConfig {
    config(json!({"format": "npy", "preset": "criteo-torchrec"}))
}

fn check(folder: &Folder, name: &str, input: &str) {
    let dataset = folder.prepare(name, &[input.to_owned()], &criteo_arrays()).dataset;
    let batch = whole(&dataset, 1 << 40);
    assert_eq!(batch.size, ROWS);
    for row in [0, 1, 8191, 8192, ROWS - 1] {
        assert_eq!(batch.labels[row], (row % 2) as f32);
        let expected: Vec<f32> = (0..13).map(|column| dense(row, column)).collect();
        assert_eq!(batch.dense[row * 13..][..13], expected, "as it is, without a logarithm");
        for column in 0..26 {
            assert_eq!(bags(&batch, column)[row][0], i64::from(category(row, column)));
        }
    }
}

#[test]
fn sets_of_arrays_with_32_and_64_bit_ids() {
    for (kind, wide) in [("<i4", false), ("<i8", true)] {
        let folder = Folder::new();
        let input = write_dense(&folder);
        let each = (0..ROWS).flat_map(|row| (0..26).map(move |column| category(row, column)));
        let content: Vec<u8> = if wide {
            each.flat_map(|id| i64::from(id).to_le_bytes()).collect()
        } else {
            each.flat_map(i32::to_le_bytes).collect()
        };
        folder.file("day_0_sparse.npy", &npy(&header(kind, &format!("{ROWS}, 26")), &content));
        check(&folder, "out", &input);
    }
}

/// Builds an archive of multi-hot arrays `[rows, 1 + column % 3]`, not in the order of the columns.
fn archive(deflated: bool) -> Vec<u8> {
    let mut out = std::io::Cursor::new(Vec::new());
    let mut directory = Vec::new();
    for column in (0..26usize).rev() {
        let hot = 1 + column % 3;
        let content: Vec<u8> = (0..ROWS)
            .flat_map(|row| (0..hot).map(move |i| category(row, column) + i as i32))
            .flat_map(i32::to_le_bytes)
            .collect();
        let plain = npy(&header("<i4", &format!("{ROWS}, {hot}")), &content);
        let mut sum = flate2::Crc::new();
        sum.update(&plain);
        let mut packed = plain.clone();
        if deflated {
            let level = flate2::Compression::fast();
            let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), level);
            encoder.write_all(&plain).unwrap();
            packed = encoder.finish().unwrap();
        }
        let name = format!("{column}.npy");
        let mut about = vec![20, 0, 0, 0, if deflated { 8 } else { 0 }, 0, 0, 0, 0x21, 0];
        about.extend(sum.sum().to_le_bytes());
        about.extend((packed.len() as u32).to_le_bytes());
        about.extend((plain.len() as u32).to_le_bytes());
        about.extend((name.len() as u16).to_le_bytes());
        about.extend([0, 0]);
        let start = out.stream_position().unwrap() as u32;
        out.write_all(b"PK\x03\x04").unwrap();
        out.write_all(&about).unwrap();
        out.write_all(name.as_bytes()).unwrap();
        out.write_all(&packed).unwrap();
        directory.extend(b"PK\x01\x02\x14\0");
        directory.extend(&about);
        directory.extend([0; 10]);
        directory.extend(start.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let start = out.stream_position().unwrap() as u32;
    out.write_all(&directory).unwrap();
    out.write_all(b"PK\x05\x06\0\0\0\0\x1a\0\x1a\0").unwrap();
    out.write_all(&(directory.len() as u32).to_le_bytes()).unwrap();
    out.write_all(&start.to_le_bytes()).unwrap();
    out.write_all(&[0, 0]).unwrap();
    out.into_inner()
}

#[test]
fn multi_hot_archives_stored_and_deflated() {
    for deflated in [false, true] {
        let folder = Folder::new();
        write_dense(&folder);
        let input = folder.file("day_0_sparse_multi_hot.npz", &archive(deflated));
        check(&folder, "out", &input);
        let dataset = data::Dataset::open(&folder.path("out")).unwrap();
        let batch = whole(&dataset, 1 << 40);
        for column in 0..26 {
            let first = i64::from(category(77, column));
            let expected: Vec<i64> = (0..=column as i64 % 3).map(|i| first + i).collect();
            assert_eq!(bags(&batch, column)[77], expected);
        }
    }
}

#[test]
fn scoring_reads_arrays_without_labels() {
    let folder = Folder::new();
    let inputs = [write_dense(&folder)];
    let content = vec![0; ROWS * 26 * 4];
    folder.file("day_0_sparse.npy", &npy(&header("<i4", &format!("{ROWS}, 26")), &content));
    let dataset = folder.prepare("out", &inputs, &criteo_arrays()).dataset;
    std::fs::remove_file(folder.path("day_0_labels.npy")).unwrap();
    let refused = folder.try_prepare("again", &inputs, &criteo_arrays(), None);
    assert!(refused.unwrap_err().to_string().contains("day_0_labels.npy"));
    let request = data::ScoreRequest {
        inputs: inputs.to_vec(),
        config: criteo_arrays(),
        fitted: dataset.fitted().clone(),
        features: all_features(&dataset, 100),
        batch_size: ROWS,
        pace: BlockPace::FullBlocks,
        strictness: Strictness::Stop,
        threads: 1,
    };
    let batch = read_for_scoring(request).unwrap().next().unwrap().unwrap();
    assert_eq!((batch.batch.size, batch.lines[ROWS - 1]), (ROWS, ROWS as u64));
    assert!(batch.batch.labels.iter().all(|label| label.is_nan()));
}

#[test]
fn errors_describe_what_is_wrong_with_an_array() {
    let folder = Folder::new();
    let input = write_dense(&folder);
    let inputs = [input];
    let config = criteo_arrays();
    let check = |file: &str, bytes: &[u8], said: &str| {
        let before = std::fs::read(folder.path(file)).unwrap_or_default();
        folder.file(file, bytes);
        let out = folder.path("out");
        let mut request = request(&inputs, &config, None, &out);
        // Without a restart, the preparation would resume with what it read before the error.
        request.begin = Begin::Restart;
        let error = prepare(&request, &mut |_| {}).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(file) && text.contains(said), "{text}");
        assert!(!out.exists());
        folder.file(file, &before);
    };
    let sparse = npy(&header("<i4", &format!("{ROWS}, 26")), &vec![0; ROWS * 26 * 4]);
    folder.file("day_0_sparse.npy", &sparse);
    check("day_0_dense.npy", &npy(&header("<f8", "5, 13"), b""), "float32");
    check("day_0_dense.npy", &npy(&header("<i4", "5, 13"), b""), "float32");
    check("day_0_dense.npy", b"text, not an array", "NumPy array");
    check("day_0_labels.npy", &npy(&header("<i4", "7, 1"), &[0; 28]), "expected 20000 rows");
    check("day_0_labels.npy", &npy(&header("<i4", "20000, 2"), b""), "[rows, 1]");
    check("day_0_sparse.npy", &npy(&header("<f4", "20000, 26"), b""), "int32 or int64");
    check("day_0_sparse.npy", &npy(&header("<i4", "20000, 26, 2"), b""), "dimensions");
    let fortran = header("<i4", "20000, 26").replace("False", "True");
    check("day_0_sparse.npy", &npy(&fortran, b""), "ascontiguousarray");
    let cut = &sparse[..sparse.len() - 1];
    check(
        "day_0_sparse.npy",
        cut,
        "expected 20000 rows, got a file that ends within the last 3616",
    );
    check("day_0_dense.npy", b"", "expected a NumPy array, got only 0 bytes");
    check("day_0_sparse.npy", &sparse[..50], "expected a NumPy array, got only 50 bytes");
    check("day_0_sparse.npy", &[&sparse[..], b"x"].concat(), "expected the end");
    std::fs::remove_file(folder.path("day_0_sparse.npy")).unwrap();
    let mut damaged = archive(false);
    damaged[1000] ^= 1;
    check("day_0_sparse_multi_hot.npz", &damaged, "checksum");
    check("day_0_sparse_multi_hot.npz", b"no archive", "cannot read");
    let named = folder.try_prepare("out", &["day_0.npy".to_owned()], &config, None).unwrap_err();
    assert!(matches!(named, Error::Array { .. }), "{named}");
}
