//! Tests of the configuration reference: explained keys, printed defaults, the JSON schema, and the
//! page in `docs`.

use std::fs;
use std::path::Path;

use crate::fixture::Place;

#[test]
fn the_page_in_docs_is_what_the_binary_prints() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let printed = Place::new().done("explain config --as markdown").stdout;
    let page = fs::read_to_string(path).unwrap();
    assert!(page == printed, "rowmill explain config --as markdown > docs/configuration.md");
}

#[test]
fn a_key_is_explained_by_its_path_or_its_end() {
    let place = Place::new();
    for (key, parts) in [
        ("batch_size", &["training.batch_size", "an integer, at least 1", "required"][..]),
        ("optimizer.sparse", &["optimizer.sparse.learning_rate", "The optimizer of the tables"]),
        ("plan", &["plan.tables.*.pinned.layout", "Layouts that tables may have."]),
        ("learning_rate", &["optimizer.sparse.learning_rate", "optimizer.dense.learning_rate"]),
        ("model.tables.rows", &["\"auto\"", "vocabulary"]),
    ] {
        let text = place.done(&format!("explain config {key}")).stdout;
        for part in parts {
            assert!(text.contains(part), "{key}: no {part:?} in\n{text}");
        }
    }
    let all = place.done("explain config --format json").last();
    assert!(all.as_array().unwrap().len() > 90);
    let ran = place.run("explain config batchsize");
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("did you mean training.batch_size?"), "{}", ran.stderr);
}

#[test]
fn the_schema_is_json_and_knows_every_section() {
    let text = Place::new().done("explain config --as json-schema").stdout;
    let schema: serde_json::Value = serde_json::from_str(&text).unwrap();
    let table = &schema["properties"]["model"]["properties"]["tables"]["items"];
    assert_eq!(table["required"], serde_json::json!(["name", "rows", "dim"]));
    assert_eq!(schema["required"], serde_json::json!(["model", "optimizer", "training", "data"]));
}

#[test]
fn print_config_fills_in_every_default() {
    let place = Place::new();
    let text = place.done("train job.toml --print-config --set model.tables.a.rows=60").stdout;
    for part in ["rows = 60", "epsilon = 0.00000001", "seed = 42", "dense_features = 2"] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    fs::write(place.path("printed.toml"), &text).unwrap();
    assert_eq!(place.done("train printed.toml --print-config").stdout, text);
    let ready_made = place.done("train adult-income --print-config").stdout;
    assert!(ready_made.contains("name = \"adult-income\""), "{ready_made}");
    assert!(!place.path("runs").exists(), "nothing is written");
}

#[test]
fn a_delimiter_is_given_on_the_command_line() {
    let place = Place::new();
    let text = fs::read_to_string(place.path("train.csv")).unwrap().replace(',', ";");
    fs::write(place.path("semicolons.csv"), text).unwrap();
    place.done("train job.toml --train semicolons.csv --delimiter ; --run run");
    let ran = place.run("train job.toml --train semicolons.csv --run other");
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("y;u;v;a;b"), "{}", ran.stderr);
}
