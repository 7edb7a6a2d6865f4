//! Tests that scoring raw files gives the same samples as a prepared dataset, with their lines.

use data::{BlockPace, FeaturePlan, ScoreRequest, ScoringBatch, Strictness, read_for_scoring};
use serde_json::json;

use crate::fixture::{Folder, all_features, config, criteo, whole};

fn score(request: ScoreRequest) -> Vec<ScoringBatch> {
    read_for_scoring(request).unwrap().map(Result::unwrap).collect()
}

#[test]
fn unlabeled_criteo_rows_match_the_labeled_file() {
    let Some(input) = testkit::fixture::path("criteo/train.tiny.txt.gz") else { return };
    let folder = Folder::new();
    let config = criteo("criteo-dlrm", &json!({"mode": "exact", "threshold": 2}));
    let inputs = [input.to_str().unwrap().to_owned()];
    let dataset = folder.prepare("out", &inputs, &config).dataset;
    let mut text = String::new();
    let file = std::fs::File::open(&input).unwrap();
    std::io::Read::read_to_string(&mut flate2::read::MultiGzDecoder::new(file), &mut text).unwrap();
    let unlabeled: String =
        text.lines().map(|line| format!("{}\n", line.split_once('\t').unwrap().1)).collect();
    let request = ScoreRequest {
        inputs: vec![folder.file("test.txt", unlabeled.as_bytes()), inputs[0].clone()],
        config,
        fitted: dataset.fitted().clone(),
        features: all_features(&dataset, 10_000),
        batch_size: 1000,
        pace: BlockPace::FullBlocks,
        strictness: Strictness::Stop,
        threads: 2,
    };
    let batches = score(request);
    let sizes: Vec<(usize, usize)> = batches.iter().map(|b| (b.input, b.batch.size)).collect();
    assert_eq!(sizes, [(0, 1000), (0, 999), (1, 1000), (1, 999)]);
    let expected = whole(&dataset, 10_000);
    for (batch, range) in batches.iter().zip([0..1000, 1000..1999, 0..1000, 1000..1999]) {
        let expected = expected.slice(range.clone());
        assert_eq!(batch.batch.sparse, expected.sparse);
        assert_eq!(batch.batch.dense, expected.dense);
        if batch.input == 0 {
            assert!(batch.batch.labels.iter().all(|label| label.is_nan()));
        } else {
            assert_eq!(batch.batch.labels, expected.labels);
        }
        let lines: Vec<u64> = range.map(|row| row as u64 + 1).collect();
        assert_eq!(batch.lines, lines);
    }
}

#[test]
fn lines_of_skipped_records_are_left_out() {
    let folder = Folder::new();
    let config = config(json!({
        "format": "csv", "label": {"column": "y"},
        "dense": [{"column": "x", "transform": "standardise"}], "categorical": [{"column": "c"}],
    }));
    let inputs = [folder.file("train.csv", b"x,c,y\n1,a,0\n3,b,1\n")];
    let fitted = folder.prepare("out", &inputs, &config).dataset.fitted().clone();
    let request = ScoreRequest {
        inputs: vec![folder.file("new.csv", b"c,x\na,5\nb,five\n\nc,1\n")],
        config,
        fitted,
        features: FeaturePlan { columns: vec![("c".to_owned(), 100)] },
        batch_size: 10,
        pace: BlockPace::FullBlocks,
        strictness: Strictness::ANY,
        threads: 1,
    };
    let mut reader = read_for_scoring(request.clone()).unwrap();
    let batch = reader.next().unwrap().unwrap();
    assert_eq!((batch.lines, batch.batch.dense), (vec![2, 5], vec![3.0, -1.0]));
    assert!(reader.next().is_none());
    assert_eq!(reader.losses().malformed_lines, 1);

    let inputs = vec![folder.path("absent").to_str().unwrap().to_owned()];
    let mut reader = read_for_scoring(ScoreRequest { inputs, ..request }).unwrap();
    assert!(reader.next().unwrap().is_err());
    assert!(reader.next().is_none());
}
