use expect_test::{Expect, expect};

use super::JobConfig;
use crate::training::Precision;

const JOB: &str = r#"
[model]
name = "tiny"
dense_features = 2
bottom = [8, 4]
top = [8, 1]
interaction = { kind = "dot" }
loss = "bce_with_logits"
tables = [{ name = "a", rows = 100, dim = 4 }, { name = "b", rows = 10, dim = 4, pooling = "mean" }]

[optimizer]
sparse = { kind = "rowwise_adagrad", learning_rate = 0.1 }
dense = { kind = "sgd", learning_rate = 0.1 }

[training]
batch_size = 16

[data]
format = "csv"
label = { column = "y" }
dense = [{ column = "u" }, { column = "v", transform = "log1p" }]
categorical = [{ column = "a" }, { column = "b", kind = "integer" }]
"#;

fn job(overrides: &[(&str, &str)]) -> Result<JobConfig, super::ConfigError> {
    let overrides: Vec<_> =
        overrides.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    JobConfig::parse(JOB, &overrides)
}

fn check(overrides: &[(&str, &str)], expected: Expect) {
    let shown = match job(overrides) {
        Ok(_) => "ok".to_owned(),
        Err(error) => error.to_string(),
    };
    expected.assert_eq(&shown);
}

#[test]
fn overrides_by_path_and_by_short_key() {
    let config = job(&[("batch_size", "32"), ("rows_cap", "50"), ("model.name", "x")]).unwrap();
    assert_eq!(config.training.batch_size, 32);
    assert_eq!(config.model.tables[0].rows, 50);
    assert_eq!(config.model.name, "x");
}

#[test]
fn default_precision_is_f32() {
    assert_eq!(job(&[]).unwrap().training.precision, Precision::F32);
    assert_eq!(job(&[("precision", "bf16")]).unwrap().training.precision, Precision::Bf16);
    check(
        &[("training.precision", "f16")],
        expect![[
            r#"training.precision: expected "f32" or "bf16", got "f16"; did you mean "bf16"?"#
        ]],
    );
}

#[test]
fn job_round_trips_as_toml() {
    let config = job(&[]).unwrap();
    assert_eq!(JobConfig::parse(&config.to_toml().unwrap(), &[]).unwrap(), config);
}

#[test]
fn unknown_keys_are_errors() {
    let text = JOB.replace("batch_size", "batchsize");
    let error = JobConfig::parse(&text, &[]).unwrap_err().to_string();
    assert!(error.contains("batchsize") && error.contains("line 16"), "{error}");
    check(
        &[("rows", "3")],
        expect!["--set rows: expected the entry's name too: model.tables.NAME.rows"],
    );
}

#[test]
fn width_errors_name_layer_and_both_numbers() {
    check(
        &[("bottom", "[8, 5]")],
        expect![[
            r#"model.bottom: the dot interaction needs the bottom MLP's last layer (layer 1, width 5) to be as wide as table "a" (model.tables[0].dim = 4)"#
        ]],
    );
    check(
        &[("top", "[8, 2]")],
        expect!["model.top: layer 1 gives the one logit, expected width 1, got width 2"],
    );
    check(
        &[("top", "[1]"), ("wide", "true")],
        expect![
            "model.wide: expected false, or a hidden layer in model.top: without one, the logit already reads the interaction's output"
        ],
    );
    check(
        &[("dense_features", "3")],
        expect![
            "model.dense_features: the bottom MLP's input has width 3, but the data has 2 dense columns"
        ],
    );
}

#[test]
fn impossible_values_are_errors() {
    let text = expect!["training.batch_size: expected 1 to 2147483647, got 0"];
    check(&[("batch_size", "0")], text);
    let text = expect!["training.batch_size: expected 1 to 2147483647, got 9223372036854775807"];
    check(&[("batch_size", "9223372036854775807")], text);
    check(&[("rows_cap", "0")], expect!["model.rows_cap: expected at least 1, got 0"]);
    check(
        &[("training.evaluate_samples", "0")],
        expect!["training.evaluate_samples: expected at least 1, got 0"],
    );
    check(
        &[("optimizer.sparse.epsilon", "0.0")],
        expect![
            "optimizer.sparse.epsilon: expected above 0: a weight without a gradient would become 0/0, got 0"
        ],
    );
    check(
        &[("optimizer.dense.learning_rate", "-1.0")],
        expect!["optimizer.dense.learning_rate: expected a finite number ≥ 0, got -1"],
    );
    check(
        &[("model.tables", r#"[{ name = "c", rows = 1, dim = 4 }]"#)],
        expect![[
            r#"model.tables "c": feature "c" is not among the 2 categorical columns of [data]"#
        ]],
    );
}

#[test]
fn sequence_gives_one_vector_per_position() {
    let tables = |second: &str| {
        let shape = "rows = 9, dim = 4";
        format!(r#"[{{ name = "a", {shape} }}, {{ name = "b", {shape}, {second} }}]"#)
    };
    let sequence = tables(r#"pooling = "none", sequence_length = 5"#);
    let model = job(&[("model.tables", &sequence)]).unwrap().model;
    assert_eq!((model.sparse_vectors(), model.pooled_width()), (6, 24));
    assert_eq!(model.interaction_width(), 4 + 7 * 6 / 2);
    let bags = crate::JaggedTensor::from_lengths(2, &[7, 1, 5, 8], vec![0; 21]);
    assert_eq!(model.ids_left_out(&bags), 3);
    for (second, expected) in [
        (
            r#"pooling = "none""#,
            expect![[
                r#"model.tables[1] "b".sequence_length: missing: expected the number of ids of a bag to look up, because pooling is "none""#
            ]],
        ),
        (
            r#"pooling = "none", sequence_length = 0"#,
            expect![[r#"model.tables[1] "b".sequence_length: expected 1 to 65536, got 0"#]],
        ),
        (
            r#"pooling = "mean", sequence_length = 5"#,
            expect![[
                r#"model.tables[1] "b".sequence_length: expected pooling = "none" beside it, because a pooled bag may have any length, got 5"#
            ]],
        ),
    ] {
        check(&[("model.tables", &tables(second))], expected);
    }
}

#[test]
fn shipped_configurations_are_valid() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs");
    let mut shown = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let config = JobConfig::parse(&text, &[]).unwrap();
        let model = &config.model;
        let bytes = model.table_bytes(crate::Optimizer::Sgd);
        shown.push(format!("{} top {} tables {bytes}", model.name, model.interaction_width()));
    }
    shown.sort();
    expect![[r#"
        adult-income top 86 tables 15.8 KiB
        dlrm-1000-tables top 16016 tables 610.4 MiB
        dlrm-criteo-kaggle top 367 tables 2.0 GiB
        dlrm-dcnv2 top 3456 tables 97.4 GiB
        dlrm-ddp top 164 tables 312.5 MiB
        dlrm-default top 100 tables 1.9 GiB
        dlrm-mlperf top 383 tables 4.0 GiB"#]]
    .assert_eq(&shown.join("\n"));
}

#[test]
fn bag_sizes_belong_to_features() {
    let config = job(&[("synthetic.bag_sizes", "{ a = 3 }")]).unwrap();
    assert_eq!(config.synthetic.bag_sizes.get("a"), Some(&3));
    let features = crate::FeatureStats::with_bag_sizes(&config, 2);
    assert_eq!(features.iter().map(|one| one.longest_bag).collect::<Vec<_>>(), [3, 2]);
    for (value, expected) in [
        ("{ z = 3 }", "synthetic.bag_sizes.z: no such feature among the 2 of the model"),
        ("{ a = 0 }", "expected a section with a positive integer per name"),
        ("{ a = 200000 }", "synthetic.bag_sizes.a: expected 1 to 100000 ids, got 200000"),
        ("7", "expected a section with a positive integer per name, got 7"),
    ] {
        let error = job(&[("synthetic.bag_sizes", value)]).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn synthetic_ids_follow_the_law_of_their_table() {
    let file = [("synthetic.ids", r#"{ kind = "reuse", file = "stats.txt.gz" }"#)];
    assert_eq!(job(&file).unwrap().synthetic.law("a").unwrap().to_string(), "reuse:stats.txt.gz");
    assert_eq!(job(&[]).unwrap().synthetic.law("a"), None);
    let zipf = |table: &str| (format!("synthetic.tables.{table}.kind"), "zipf".to_owned());
    let exponent =
        |table: &str, text: &str| (format!("synthetic.tables.{table}.exponent"), text.to_owned());
    let config = JobConfig::parse(JOB, &[zipf("b"), exponent("b", "1.5")]).unwrap();
    assert_eq!(config.synthetic.law("a"), None);
    assert_eq!(config.synthetic.law("b").unwrap().to_string(), "zipf:1.5");
    let again = JobConfig::parse(&config.to_toml().unwrap(), &[]).unwrap();
    assert_eq!(again, config);
    let refused = |table: &str, text: &str| {
        JobConfig::parse(JOB, &[zipf(table), exponent(table, text)]).unwrap_err().to_string()
    };
    expect![[r#"
        synthetic.tables.c: no such table among the 2 of the model
        synthetic.tables.b: expected an exponent of 0 or more, got -1"#]]
    .assert_eq(&[refused("c", "1.5"), refused("b", "-1.0")].join("\n"));
}

#[test]
fn storage_names_f32_tables_of_the_model() {
    let folder = ("storage.folder", "/mnt");
    let cache = ("storage.cache_mib", "64");
    let config = job(&[folder, cache]).unwrap();
    let storage = config.storage.as_ref().unwrap();
    assert!(config.model.tables.iter().all(|table| storage.includes(table)));
    assert_eq!(JobConfig::parse(&config.to_toml().unwrap(), &[]).unwrap(), config);
    check(&[folder], expect!["storage.cache_mib is missing: expected an integer, at least 1"]);
    check(
        &[folder, cache, ("storage.tables", "[\"c\"]")],
        expect![[r#"storage.tables: expected the names of tables, got "c""#]],
    );
    check(
        &[folder, cache, ("model.tables.b.data_type", "f16")],
        expect![[
            r#"storage.tables: expected tables of data_type "f32", got "b" with data_type "f16""#
        ]],
    );
    check(
        &[folder, cache, ("storage.tables", "[\"a\"]"), ("model.tables.b.data_type", "f16")],
        expect!["ok"],
    );
}
