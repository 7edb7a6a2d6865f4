//! Tests of issue 23, items 10 and 12: ids outside their table, missing numbers, and the same rows
//! in every format.

use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{Float64Builder, Int64Builder, ListBuilder};
use arrow_array::{ArrayRef, Float32Array, Float64Array, Int64Array, StringArray, UInt64Array};
use data::{
    BlockPace, Error, FeaturePlan, Fitted, Losses, ScoreRequest, Strictness, read_for_scoring,
};
use proptest::prelude::*;
use schema::{Batch, DataConfig};
use serde_json::{Value, json};

use crate::columns::parquet_file;
use crate::fixture::{Folder, bags, config, whole};
use crate::npy::{header, npy};

const TABLE_ROWS: u64 = 100;

/// Configures rows with a label, a number, an id and a list of ids. `rule` holds the keys of both
/// columns of ids.
fn shop(format: &str, rule: &Value) -> DataConfig {
    let column = |mut keys: Value| {
        let rule = rule.as_object().unwrap().clone();
        keys.as_object_mut().unwrap().extend(rule);
        keys
    };
    let mut config = config(json!({
        "format": format, "label": {"column": "label"}, "dense": [{"column": "I1"}],
        "categorical": [
            column(json!({"column": "C1", "kind": "integer"})),
            column(json!({"column": "C2", "kind": "integer", "separator": "|"})),
        ],
    }));
    config.table_rows =
        [("C1", TABLE_ROWS), ("C2", TABLE_ROWS)].map(|(name, rows)| (name.to_owned(), rows)).into();
    config
}

const HEADER: &str = "label,I1,C1,C2\n";

/// Prepares `text`. Returns its single ids, its lists of ids, and the losses.
fn prepared(rule: &Value, text: &str) -> (Vec<i64>, Vec<Vec<i64>>, Losses) {
    let folder = Folder::new();
    let inputs = [folder.file("a.csv", format!("{HEADER}{text}").as_bytes())];
    let prepared = folder.prepare("out", &inputs, &shop("csv", rule));
    let batch = whole(&prepared.dataset, TABLE_ROWS);
    let scored = score(&inputs[0], &shop("csv", rule), prepared.dataset.fitted());
    assert_eq!(scored.sparse, batch.sparse, "scored as trained");
    (bags(&batch, 0).concat(), bags(&batch, 1), prepared.losses)
}

fn score(input: &str, config: &DataConfig, fitted: &Fitted) -> Batch {
    let columns = ["C1", "C2"].map(|name| (name.to_owned(), TABLE_ROWS)).into();
    let request = ScoreRequest {
        inputs: vec![input.to_owned()],
        config: config.clone(),
        fitted: fitted.clone(),
        features: FeaturePlan { columns },
        batch_size: 1 << 20,
        pace: BlockPace::FullBlocks,
        strictness: Strictness::ANY,
        threads: 1,
    };
    read_for_scoring(request).unwrap().next().unwrap().unwrap().batch
}

const IDS: &str = "1,1,-1,-1|5|100\n0,1,100,\n1,1,99,-101\n0,1,,7\n1,1,-200,\n";

#[test]
fn ids_outside_their_table_wrap_as_in_python_and_are_counted() {
    for rule in [json!({}), json!({"out_of_range": "modulo"})] {
        let (single, lists, losses) = prepared(&rule, IDS);
        assert_eq!(single, [99, 0, 99, 0, 0]);
        assert_eq!(lists, [vec![99, 5, 0], vec![], vec![99], vec![7], vec![]]);
        let counts = |at: usize| {
            let count = losses.ids[at];
            (count.rows, count.ids, count.outside, count.negative, count.large)
        };
        assert_eq!(counts(0), (Some(100), 4, 3, 2, 0));
        assert_eq!(counts(1), (Some(100), 5, 3, 2, 0));
    }
}

#[test]
fn ids_outside_their_table_can_count_as_missing() {
    let (single, lists, losses) = prepared(&json!({"out_of_range": "missing"}), IDS);
    assert_eq!(single, [0, 0, 99, 0, 0]);
    assert_eq!(lists, [vec![5], vec![], vec![], vec![7], vec![]]);
    assert_eq!((losses.ids[0].outside, losses.ids[1].outside), (3, 3));
}

#[test]
fn one_id_can_stand_for_a_missing_one() {
    let (single, lists, losses) = prepared(&json!({"missing": -1}), IDS);
    assert_eq!(single, [0, 0, 99, 0, 0]);
    assert_eq!(lists, [vec![5, 0], vec![], vec![99], vec![7], vec![]]);
    assert_eq!((losses.ids[0].ids, losses.ids[0].outside, losses.ids[0].negative), (3, 2, 1));
}

#[test]
fn ids_outside_their_table_can_be_refused_by_file_and_line() {
    let folder = Folder::new();
    let rule = json!({"out_of_range": "error", "missing": -1});
    let config = shop("csv", &rule);
    let good = "1,1,-1,-1|5\n0,1,99,\n";
    let inputs = [folder.file("a.csv", format!("{HEADER}{good}1,1,1,7|100\n").as_bytes())];
    let error = folder.try_prepare("out", &inputs, &config, None).unwrap_err().to_string();
    let expected =
        r#":4: column "C2": expected an id from 0 to 99 (out_of_range = "error"), got 100"#;
    assert_eq!(error, format!("{}{expected}", inputs[0]));
    assert!(!folder.path("out").exists() && !folder.path("out.partial").exists());
    // Data prepared for larger tables is refused by tables that are too small.
    let inputs = [folder.file("b.csv", format!("{HEADER}{good}").as_bytes())];
    let dataset = folder.prepare("out", &inputs, &config).dataset;
    assert_eq!(bags(&whole(&dataset, 100), 0), [[0], [99]]);
    let columns = vec![("C1".to_owned(), 99)];
    let options = crate::fixture::in_order(&dataset, 10);
    let mut loader = data::Loader::start(&dataset, &FeaturePlan { columns }, options).unwrap();
    let error = loader.next().unwrap().unwrap_err();
    assert!(matches!(&error, Error::IdOutOfRange { id: 99, rows: 99, .. }), "{error}");
}

#[test]
fn unsigned_ids_of_64_bits_wrap_as_what_they_are() {
    let text = "1,1,18446744073709551615,9223372036854775808|1\n0,1,5,\n";
    let (single, lists, losses) = prepared(&json!({}), text);
    assert_eq!((single, lists), (vec![15, 5], vec![vec![8, 1], vec![]]));
    assert_eq!((losses.ids[0].large, losses.ids[0].outside, losses.ids[0].negative), (1, 1, 0));
    // In the Parquet file, the large id is in an unsigned column, and −1 in a signed column is a
    // negative id.
    let folder = Folder::new();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("label", Arc::new(Int64Array::from(vec![1, 0]))),
        ("I1", Arc::new(Int64Array::from(vec![1, 1]))),
        ("C1", Arc::new(UInt64Array::from(vec![u64::MAX, 5]))),
        ("C2", Arc::new(Int64Array::from(vec![-1, 7]))),
    ];
    let inputs = [parquet_file(&folder.path("a.parquet"), columns)];
    let mut shop = shop("parquet", &json!({"missing": -1}));
    shop.categorical[1].separator = None;
    let batch = whole(&folder.prepare("out", &inputs, &shop).dataset, TABLE_ROWS);
    assert_eq!(
        (bags(&batch, 0), bags(&batch, 1)),
        (vec![vec![15], vec![5]], vec![vec![0], vec![7]])
    );
}

#[test]
fn negative_and_large_unsigned_ids_in_one_column_are_refused() {
    let folder = Folder::new();
    let text = format!("{HEADER}1,1,-1,\n0,1,18446744073709551615,\n");
    let inputs = [folder.file("a.csv", text.as_bytes())];
    for mode in ["modulo", "exact"] {
        let mut config = shop("csv", &json!({}));
        config.ids = serde_json::from_value(json!({"mode": mode})).unwrap();
        let error = folder.try_prepare("out", &inputs, &config, None).unwrap_err().to_string();
        let expected = r#"column "C1": expected signed or unsigned 64-bit ids, got both: 1 below 0 and 1 from 2^63 on"#;
        assert_eq!(error, expected);
    }
    folder.prepare("out", &inputs, &shop("csv", &json!({"missing": -1})));
}

/// A model trained with the rules of version 1 is scored with the same rules.
#[test]
fn fitted_state_of_version_1_keeps_its_rule() {
    let folder = Folder::new();
    let config = shop("csv", &json!({}));
    let inputs = [folder.file("a.csv", format!("{HEADER}1,1,-1,5\n0,1,3,\n").as_bytes())];
    let fitted = folder.prepare("out", &inputs, &config).dataset.fitted().clone();
    let mut first = serde_json::to_value(&fitted).unwrap();
    first["version"] = json!(1);
    for column in first["categorical"].as_array_mut().unwrap() {
        column.as_object_mut().unwrap().retain(|key, _| key != "out_of_range");
    }
    let first: Fitted = serde_json::from_value(first).unwrap();
    assert!(first.wraps_unsigned() && !fitted.wraps_unsigned());
    assert_eq!(bags(&score(&inputs[0], &config, &fitted), 0), [[99], [3]]);
    assert_eq!(bags(&score(&inputs[0], &config, &first), 0), [[15], [3]]);
    let dataset = folder.try_prepare("first", &inputs, &config, Some(&first)).unwrap().dataset;
    assert_eq!(bags(&whole(&dataset, TABLE_ROWS), 0), [[15], [3]]);
    let other = shop("csv", &json!({"out_of_range": "missing"}));
    for fitted in [&first, &fitted] {
        let error = folder.try_prepare("x", &inputs, &other, Some(fitted)).unwrap_err();
        assert!(matches!(&error, Error::FittedMismatch { what: "out_of_range", .. }), "{error}");
    }
}

#[test]
fn parquet_text_keeps_its_spaces_only_as_a_category() {
    let folder = Folder::new();
    let column = |values: &[&str]| -> ArrayRef { Arc::new(StringArray::from(values.to_vec())) };
    let columns = vec![
        ("y", column(&["1", " 0 ", "1"])),
        ("x", column(&[" 1.5", "2 ", "3"])),
        ("s", column(&[" a", "a", "a "])),
        ("n", column(&[" 7", "8 ", "9"])),
    ];
    let inputs = [parquet_file(&folder.path("a.parquet"), columns)];
    let config = config(json!({
        "format": "parquet", "label": {"column": "y"}, "dense": [{"column": "x"}],
        "categorical": [{"column": "s"}, {"column": "n", "kind": "integer"}],
    }));
    let prepared = folder.prepare("out", &inputs, &config);
    assert_eq!(prepared.losses.malformed_lines, 0, "{:?}", prepared.losses.first);
    let batch = whole(&prepared.dataset, 1 << 62);
    let id = |text: &str| (xxhash_rust::xxh3::xxh3_64(text.as_bytes()) % (1 << 62)) as i64;
    assert_eq!(bags(&batch, 0), [[id(" a")], [id("a")], [id("a ")]]);
    assert_eq!(
        (bags(&batch, 1), batch.dense),
        (vec![vec![7], vec![8], vec![9]], vec![1.5, 2.0, 3.0])
    );
}

/// The intended values of a row, before they are written in a format.
#[derive(Clone, Debug)]
struct Meant {
    label: bool,
    number: Option<f32>,
    id: Option<i64>,
    list: Vec<Option<i64>>,
    /// Index of the text for missing values, and whether ids have a decimal point.
    style: (usize, bool),
    /// Whether the row has an id with a fraction, which is malformed.
    broken: bool,
}

fn meant() -> impl Strategy<Value = Meant> {
    let number = proptest::option::of((-4000i32..4000).prop_map(|quarters| quarters as f32 / 4.0));
    let id = || proptest::option::weighted(0.8, -300i64..300);
    let list = proptest::collection::vec(id(), 0..4);
    let style = (0usize..4, any::<bool>());
    let broken = proptest::bool::weighted(0.1);
    (any::<bool>(), number, id(), list, style, broken).prop_map(
        |(label, number, id, list, style, broken)| Meant { label, number, id, list, style, broken },
    )
}

fn text(rows: &[Meant], separator: char) -> String {
    let mut text = HEADER.replace(',', &separator.to_string());
    for row in rows {
        let (style, pointed) = row.style;
        let missing = ["", "NaN", "null", "-nan"][style];
        let end = if pointed { ".0" } else { "" };
        let id = |id: &Option<i64>| id.map_or(missing.to_owned(), |id| format!("{id}{end}"));
        let number = row.number.map_or(missing.to_owned(), |number| number.to_string());
        let single = if row.broken { "4.5".to_owned() } else { id(&row.id) };
        let list: Vec<String> = row.list.iter().map(id).collect();
        let fields = [u8::from(row.label).to_string(), number, single, list.join("|")];
        text += &fields.join(&separator.to_string());
        text.push('\n');
    }
    text
}

fn table(rows: &[Meant], floats: bool, path: &Path) -> String {
    let null_or_nan = |row: &Meant| (row.style.0.is_multiple_of(2)).then_some(f64::NAN);
    let single = |row: &Meant| match (row.broken, row.id) {
        (true, _) => Some(4.5),
        (false, Some(id)) => Some(id as f64),
        (false, None) => null_or_nan(row),
    };
    let numbers = rows.iter().map(|row| row.number.map(f64::from).or_else(|| null_or_nan(row)));
    let list: ArrayRef = if floats {
        let mut builder = ListBuilder::new(Float64Builder::new());
        for row in rows {
            let id = |id: &Option<i64>| id.map(|id| id as f64).or_else(|| null_or_nan(row));
            builder.append_value(row.list.iter().map(id));
        }
        Arc::new(builder.finish())
    } else {
        let mut builder = ListBuilder::new(Int64Builder::new());
        rows.iter().for_each(|row| builder.append_value(row.list.iter().copied()));
        Arc::new(builder.finish())
    };
    let labels = rows.iter().map(|row| f32::from(u8::from(row.label)));
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("label", Arc::new(Float32Array::from_iter_values(labels))),
        ("I1", Arc::new(numbers.collect::<Float64Array>())),
        ("C1", Arc::new(rows.iter().map(single).collect::<Float64Array>())),
        ("C2", list),
    ];
    parquet_file(path, columns)
}

/// The result of preparing rows in one format: samples, and the losses with their counts.
type Made = (Vec<f32>, Vec<u32>, Vec<Vec<i64>>, Vec<Vec<i64>>, Losses);

fn made(folder: &Folder, name: &str, input: String, config: &DataConfig) -> Option<Made> {
    let mut prepared = folder.try_prepare(name, &[input], config, None).ok()?;
    let batch = whole(&prepared.dataset, TABLE_ROWS);
    // Text files have a header, and their messages show fields as written, so examples may differ.
    prepared.losses.first.clear();
    let dense = batch.dense.iter().map(|value| value.to_bits()).collect();
    let single = bags(&batch, 0);
    Some((batch.labels.clone(), dense, single, bags(&batch, 1), prepared.losses))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_same_rows_are_the_same_in_every_format(
        rows in proptest::collection::vec(meant(), 1..40),
        rule in prop_oneof![
            Just(json!({})), Just(json!({"out_of_range": "missing"})),
            Just(json!({"missing": -1})), Just(json!({"missing": 7, "out_of_range": "missing"})),
        ],
    ) {
        let folder = Folder::new();
        let csv = folder.file("a.csv", text(&rows, ',').as_bytes());
        let csv = made(&folder, "csv", csv, &shop("csv", &rule));
        let tsv = folder.file("a.tsv", text(&rows, '\t').as_bytes());
        prop_assert_eq!(&csv, &made(&folder, "tsv", tsv, &shop("tsv", &rule)));
        for floats in [false, true] {
            let input = table(&rows, floats, &folder.path("a.parquet"));
            let name = format!("parquet-{floats}");
            prop_assert_eq!(&csv, &made(&folder, &name, input, &shop("parquet", &rule)));
        }
    }

    #[test]
    fn arrays_and_text_give_the_same_rows(
        rows in proptest::collection::vec(meant(), 1..40),
        rule in prop_oneof![Just(json!({"missing": -1})), Just(json!({"missing": 7}))],
    ) {
        // Arrays have neither missing values nor lists, so an id represents a missing value.
        let stands = rule["missing"].as_i64().unwrap();
        let rows: Vec<Meant> = rows
            .into_iter()
            .map(|row| Meant { broken: false, list: vec![row.id], ..row })
            .collect();
        let folder = Folder::new();
        let csv = folder.file("a.csv", text(&rows, ',').as_bytes());
        let mut columns = ["csv", "npy"].map(|format| shop(format, &rule));
        columns.iter_mut().for_each(|config| config.categorical[1].separator = None);
        let shape = |width: usize| format!("{}, {width}", rows.len());
        let numbers = rows.iter().flat_map(|row| row.number.unwrap_or(f32::NAN).to_le_bytes());
        let labels = rows.iter().flat_map(|row| i32::from(row.label).to_le_bytes());
        let ids = rows.iter().flat_map(|row| [row.id.unwrap_or(stands); 2]);
        let ids = ids.flat_map(i64::to_le_bytes);
        let array = |end: &str, kind: &str, width: usize, content: Vec<u8>| {
            folder.file(&format!("day{end}.npy"), &npy(&header(kind, &shape(width)), &content))
        };
        array("_labels", "<i4", 1, labels.collect());
        array("_sparse", "<i8", 2, ids.collect());
        let input = array("_dense", "<f4", 1, numbers.collect());
        let csv = made(&folder, "csv", csv, &columns[0]);
        prop_assert_eq!(csv, made(&folder, "npy", input, &columns[1]));
    }
}
