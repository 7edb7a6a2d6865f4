//! Tests of the generator: reproducible bytes, correct probabilities, and files that are read
//! without losses.

use std::io::Read;

use data::Error;
use data::synthetic::{
    self, Hotness, PlantedConfig, RowLayout, SyntheticConfig, SyntheticFeature, SyntheticReport,
};
use schema::IndexDistribution;
use serde_json::json;

use crate::fixture::{self, Folder, config};

fn text(config: &SyntheticConfig, threads: usize) -> (Vec<u8>, SyntheticReport) {
    let mut out = Vec::new();
    let report = synthetic::write_to(config, &mut out, threads, &mut |_| {}).unwrap();
    (out, report)
}

/// Configures three dense columns and four features with several ids.
fn bags(rows: u64) -> SyntheticConfig {
    let feature = |(index, cardinality)| SyntheticFeature {
        name: format!("f{index}"),
        cardinality,
        distribution: IndexDistribution::Zipf { exponent: 1.1 },
        hotness: Hotness { min: 1, max: 4 },
    };
    SyntheticConfig {
        rows,
        seed: 3,
        dense: 3,
        features: [(0, 30), (1, 40), (2, 50), (3, 1_000_000)].map(feature).to_vec(),
        missing_share: 0.1,
        click_rate: 0.3,
        layout: RowLayout::Csv,
        planted: PlantedConfig::pair_neighbors(4),
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bytes() {
    let config = SyntheticConfig::criteo(20_000, 7);
    let (one, report) = text(&config, 1);
    for threads in [2, 5] {
        let (bytes, other) = text(&config, threads);
        assert!(bytes == one, "{threads} threads");
        assert_eq!(other, report, "{threads} threads");
    }
    assert!(text(&SyntheticConfig::criteo(20_000, 8), 2).0 != one, "another seed");
}

#[test]
fn a_shorter_file_is_a_prefix_of_a_longer_one() {
    let (short, _) = text(&SyntheticConfig::criteo(10_000, 7), 2);
    let (long, _) = text(&SyntheticConfig::criteo(10_001, 7), 2);
    assert!(long.starts_with(&short));
    assert_eq!(long.iter().filter(|&&byte| byte == b'\n').count(), 10_001);
}

#[test]
fn any_part_can_be_generated_on_its_own() {
    let config = bags(1);
    let whole = synthetic::draw_rows(&config, 0..200).unwrap();
    let part = synthetic::draw_rows(&config, 150..200).unwrap();
    assert_eq!((part.rows(), part.first_row), (50, 150));
    assert_eq!(part.labels, whole.labels[150..]);
    assert_eq!(part.probabilities, whole.probabilities[150..]);
    assert_eq!(part.dense, whole.dense[150 * 3..]);
    for bag in 0..50 * 4 {
        assert_eq!(part.bag(bag), whole.bag(150 * 4 + bag));
    }
}

#[test]
fn the_quickstart_data_needs_interactions() {
    for seed in [1, 2] {
        let (_, report) = text(&SyntheticConfig::criteo(100_000, seed), 2);
        assert!((0.77..0.83).contains(&report.ceiling_auc), "{report:?}");
        assert!(report.linear_auc < report.ceiling_auc - 0.03, "{report:?}");
        assert!(report.linear_auc > 0.7, "{report:?}");
        assert!((report.click_rate - 0.25).abs() < 0.01, "{report:?}");
        assert!(report.ceiling_normalized_entropy < 0.85, "{report:?}");
    }
}

#[test]
fn a_linear_model_learns_almost_nothing_from_interactions() {
    let mut config = SyntheticConfig::criteo(100_000, 5);
    // At other click rates, the length of an id's vector would shift its mean probability.
    config.click_rate = 0.5;
    config.planted.dense_deviation = 0.0;
    config.planted.additive_deviation = 0.0;
    config.planted.interaction_deviation = 1.3;
    let (_, report) = text(&config, 2);
    assert!(report.ceiling_auc > 0.7, "{report:?}");
    assert!((report.linear_auc - 0.5).abs() < 0.02, "{report:?}");
}

#[test]
fn without_interactions_the_linear_model_reaches_the_ceiling() {
    let mut config = SyntheticConfig::criteo(50_000, 5);
    config.planted.interaction_deviation = 0.0;
    let (_, report) = text(&config, 2);
    assert!((report.ceiling_auc - report.linear_auc).abs() < 1e-3, "{report:?}");
}

#[test]
fn labels_follow_their_probabilities() {
    let block = synthetic::draw_rows(&SyntheticConfig::criteo(1, 9), 0..50_000).unwrap();
    for tenth in 0..10 {
        let low = f64::from(tenth) / 10.0;
        let (mut rows, mut expected, mut clicks) = (0.0, 0.0, 0.0);
        for (&probability, &label) in block.probabilities.iter().zip(&block.labels) {
            if (low..low + 0.1).contains(&probability) {
                rows += 1.0;
                expected += probability;
                clicks += f64::from(u8::from(label));
            }
        }
        let (got, expected): (f64, f64) = (clicks / rows, expected / rows);
        // The bound is four standard errors of the click rate.
        let bound = 4.0 * (expected * (1.0 - expected) / rows).sqrt();
        assert!((got - expected).abs() < bound, "from {low}: {got} for {expected} of {rows}");
    }
}

#[test]
fn the_ceiling_of_a_part_is_computed_on_its_rows() {
    let config = SyntheticConfig::criteo(30_000, 4);
    let (_, report) = text(&config, 2);
    let whole = synthetic::ceiling_auc(&config, 0..30_000, 2).unwrap();
    assert_eq!(whole, report.ceiling_auc);
    let part = synthetic::ceiling_auc(&config, 20_000..30_000, 1).unwrap();
    assert!(part != whole && (part - whole).abs() < 0.03, "{part} and {whole}");
}

#[test]
fn compressed_files_hold_the_same_text() {
    let folder = Folder::new();
    let config = SyntheticConfig::criteo(5_000, 7);
    let (plain, _) = text(&config, 1);
    for name in ["rows.tsv", "rows.tsv.gz", "rows.tsv.zst"] {
        let path = folder.path(name);
        let mut seen = 0;
        synthetic::write(&config, &path, 2, &mut |written| seen = written.rows).unwrap();
        assert_eq!(seen, 5_000);
        let file = std::fs::File::open(&path).unwrap();
        let mut bytes = Vec::new();
        match name.rsplit('.').next() {
            Some("gz") => flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).unwrap(),
            Some("zst") => zstd::Decoder::new(file).unwrap().read_to_end(&mut bytes).unwrap(),
            _ => { file }.read_to_end(&mut bytes).unwrap(),
        };
        assert!(bytes == plain, "{name}");
    }
    assert_eq!(
        std::fs::read_dir(folder.path("")).unwrap().count(),
        3,
        "no temporary files are left"
    );
}

#[test]
fn a_missing_folder_is_named() {
    let config = SyntheticConfig::criteo(10, 1);
    let path = std::path::Path::new("/nonexistent/rows.tsv");
    let error = synthetic::write(&config, path, 1, &mut |_| {}).unwrap_err();
    assert!(matches!(&error, Error::Io { path: got, .. } if got == path), "{error}");
}

#[test]
fn impossible_configurations_are_refused() {
    let refused = |change: &dyn Fn(&mut SyntheticConfig), word: &str| {
        let mut config = SyntheticConfig::criteo(10, 1);
        change(&mut config);
        let error = synthetic::draw_rows(&config, 0..1).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    };
    refused(&|config| config.dense = 12, "12 dense");
    refused(&|config| config.click_rate = 0.0, "click_rate");
    refused(&|config| config.missing_share = f64::NAN, "missing_share");
    refused(&|config| config.features[3].cardinality = 0, "C4");
    refused(&|config| config.features[3].hotness.max = 2, "C4");
    refused(&|config| config.planted.pairs.push((4, 4)), "(4, 4)");
    refused(&|config| config.planted.pairs.push((0, 26)), "(0, 26)");
}

#[test]
fn criteo_text_has_the_properties_of_criteo() {
    let (bytes, _) = text(&SyntheticConfig::criteo(20_000, 7), 2);
    let text = String::from_utf8(bytes).unwrap();
    let (mut missing, mut fields, mut negatives) = (0, 0, 0);
    for line in text.lines() {
        let columns: Vec<&str> = line.split('\t').collect();
        assert_eq!(columns.len(), 40);
        assert!(columns[0] == "0" || columns[0] == "1");
        negatives += usize::from(columns[2].starts_with('-'));
        for column in &columns[14..] {
            let hexadecimal = column.bytes().all(|byte| b"0123456789abcdef".contains(&byte));
            assert!(column.is_empty() || column.len() == 8 && hexadecimal, "{column:?}");
        }
        fields += 39;
        missing += columns[1..].iter().filter(|column| column.is_empty()).count();
    }
    let share = f64::from(missing as u32) / f64::from(fields);
    assert!((share - 0.04).abs() < 0.002, "{share}");
    assert!(negatives > 1000, "{negatives}");
}

#[test]
fn both_layouts_are_read_without_losses() {
    let folder = Folder::new();
    let dense = [1, 2, 3].map(|i| json!({"column": format!("I{i}")}));
    let lists = [0, 1, 2, 3]
        .map(|i| json!({"column": format!("f{i}"), "kind": "integer", "separator": "|"}));
    let csv = config(json!({
        "format": "csv", "label": {"column": "label"}, "dense": dense, "categorical": lists,
    }));
    let criteo = fixture::criteo("criteo-dlrm", &json!({"mode": "modulo"}));
    let cases = [("criteo", SyntheticConfig::criteo(3_000, 2), criteo), ("csv", bags(3_000), csv)];
    for (name, synthetic, data) in cases {
        let path = folder.path(&format!("{name}.txt"));
        synthetic::write(&synthetic, &path, 2, &mut |_| {}).unwrap();
        let prepared = folder.prepare(name, &[path.to_str().unwrap().to_owned()], &data);
        assert_eq!((prepared.dataset.rows(), prepared.losses.malformed_lines), (3_000, 0));
    }
}

#[test]
fn ids_follow_a_published_histogram_of_reuse() {
    let name = "dlrm_datasets/embedding_bag_2021_locality_stats.txt.gz";
    let Some(file) = testkit::fixture::path(name) else { return };
    let file = file.to_str().unwrap();
    let distribution = synthetic::reuse_histogram(file, None).unwrap();
    let IndexDistribution::Reuse(histogram) = distribution else { panic!("{distribution:?}") };
    let cardinality = 20_000;
    let window = histogram.on(cardinality).window();
    let mut config = bags(1);
    config.missing_share = 0.0;
    for feature in &mut config.features {
        (feature.cardinality, feature.distribution) = (cardinality, distribution);
        feature.hotness = Hotness::ONE;
    }
    // The second window is drawn, to check that any part can be generated on its own.
    let block = synthetic::draw_rows(&config, window..2 * window).unwrap();
    for feature in 0..4 {
        let mut uses = vec![0u64; cardinality as usize];
        for row in 0..window as usize {
            uses[block.bag(row * 4 + feature)[0] as usize] += 1;
        }
        // Only classes of up to 512 uses are checked, because only those have many rows in this
        // table.
        for class in 0..10 {
            let of_class = |&count: &u64| (1u64 << class) / 2 < count && count <= 1 << class;
            let got: u64 = uses.iter().copied().filter(of_class).sum();
            let (got, expected) = (got as f64 / window as f64, histogram.use_shares[class]);
            assert!((got - expected).abs() < 0.01, "{feature}, class {class}: {got}, {expected}");
        }
    }
    let other = synthetic::reuse_histogram(file, Some("fbgemm_t856_bs65536_7.pt")).unwrap();
    assert_ne!(other, distribution);
    let error = synthetic::reuse_histogram(file, Some("none.pt")).unwrap_err().to_string();
    assert!(error.contains("no section \"none.pt\""), "{error}");
}

#[test]
fn an_invalid_reuse_histogram_names_the_expected_format() {
    let folder = Folder::new();
    for (bytes, got) in [
        (&b""[..], "no text"),
        (b"label\tI1\n0\t1\n", "other text"),
        (b"\x80PNG\0", "bytes that are not text"),
    ] {
        let file = folder.file("reuse", bytes);
        let error = synthetic::reuse_histogram(&file, None).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{file}: expected locality statistics")), "{error}");
        assert!(error.ends_with(&format!("; got {got}")), "{error}");
    }
}
