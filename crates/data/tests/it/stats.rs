//! Compares statistics of files and datasets with the parameters of generated rows.

use data::Strictness;
use data::stats::{self, CountMethod, Stats, ValuesSeen};
use data::synthetic::{self, SyntheticConfig};
use schema::DataConfig;
use serde_json::json;

use crate::fixture::{self, Folder};

const ROWS: u64 = 30_000;

fn write(folder: &Folder) -> (Vec<String>, DataConfig) {
    let path = folder.path("rows.tsv");
    let config = SyntheticConfig::criteo(ROWS, 2);
    synthetic::write(&config, &path, 2, &mut |_| {}).unwrap();
    let data = fixture::criteo("criteo-dlrm", &json!({"mode": "modulo"}));
    (vec![path.to_str().unwrap().to_owned()], data)
}

fn raw(inputs: &[String], config: &DataConfig, threads: usize) -> Stats {
    let (stats, losses) =
        stats::summarize_inputs(inputs, config, Strictness::Stop, threads, &mut |_| {}).unwrap();
    assert_eq!(losses.malformed_lines, 0);
    stats
}

#[test]
fn statistics_of_raw_files_match_the_generator() {
    let folder = Folder::new();
    let (inputs, config) = write(&folder);
    let stats = raw(&inputs, &config, 2);
    assert_eq!((stats.rows, stats.values), (ROWS, ValuesSeen::Raw));
    assert!((stats.click_rate.unwrap() - 0.25).abs() < 0.02);
    assert_eq!((stats.dense.len(), stats.categorical.len()), (13, 26));
    let block = synthetic::draw_rows(&SyntheticConfig::criteo(ROWS, 2), 0..ROWS).unwrap();
    for (column, dense) in stats.dense.iter().enumerate() {
        let mut values: Vec<f64> = (0..ROWS as usize)
            .filter_map(|row| block.dense[row * 13 + column])
            .map(|x| x as f64)
            .collect();
        values.sort_by(f64::total_cmp);
        let missing = 1.0 - values.len() as f64 / ROWS as f64;
        assert!((dense.missing_share - missing).abs() < 1e-12, "{dense:?}");
        assert_eq!(dense.minimum, values.first().copied());
        assert_eq!(dense.maximum, values.last().copied());
        assert_eq!(
            dense.quantiles.unwrap()[2],
            values[(0.5 * (values.len() - 1) as f64).round() as usize]
        );
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        assert!((dense.mean.unwrap() / mean - 1.0).abs() < 1e-9, "{dense:?}");
    }
    for (column, category) in stats.categorical.iter().enumerate() {
        let mut ranks: Vec<u64> =
            (0..ROWS as usize).flat_map(|row| block.bag(row * 26 + column)).copied().collect();
        let hot = ranks.iter().filter(|&&rank| rank == 0).count() as f64 / ranks.len() as f64;
        assert!((category.bag_length_mean - ranks.len() as f64 / ROWS as f64).abs() < 1e-12);
        ranks.sort_unstable();
        ranks.dedup();
        assert_eq!(
            (category.distinct, category.distinct_is),
            (ranks.len() as u64, CountMethod::Exact)
        );
        assert!((category.top_share.unwrap() - hot).abs() < 1e-12, "{category:?}");
    }
    // The generator's distribution starts at an average rank of 1.5, which flattens the head.
    let exponent = stats.categorical[2].zipf_exponent.unwrap();
    assert!((1.2..1.6).contains(&exponent), "{exponent}");
}

#[test]
fn a_dataset_has_the_same_categories_as_its_files() {
    let folder = Folder::new();
    let (inputs, config) = write(&folder);
    let dataset = folder.prepare("prepared", &inputs, &config).dataset;
    let mut seen = 0;
    let stats = stats::summarize_dataset(&dataset, 0..ROWS, 2, &mut |rows| seen = rows).unwrap();
    assert_eq!((stats.rows, seen, stats.values), (ROWS, ROWS, ValuesSeen::Prepared));
    let raw = raw(&inputs, &config, 1);
    assert_eq!(stats.categorical, raw.categorical);
    assert_eq!(stats.click_rate, raw.click_rate);
    assert_eq!(stats.dense[0].missing_share, 0.0, "filled in by the preparation");
    let (got, log) = (stats.dense[4].maximum.unwrap(), raw.dense[4].maximum.unwrap().ln_1p());
    assert!((got - log).abs() < 1e-5, "{got} {log}");
    let one = stats::summarize_dataset(&dataset, 0..ROWS, 1, &mut |_| {}).unwrap();
    assert_eq!(one, stats);
    let part = stats::summarize_dataset(&dataset, 6_999..14_001, 2, &mut |_| {}).unwrap();
    assert_eq!(part.rows, 7_002);
    let value = serde_json::to_value(&part).unwrap();
    assert_eq!(value["categorical"][0]["distinct_is"], "exact");
}
