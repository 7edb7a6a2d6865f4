//! Tests of the messages about mistyped configurations. Each message must name the key and the fix,
//! and must not contain the name of a Rust type.

use super::JOB;
use crate::JobConfig;

/// Returns the error message for the job in which `from` is replaced by `to`.
fn said(from: &str, to: &str) -> String {
    assert!(JOB.contains(from), "{from}");
    match JobConfig::parse(&JOB.replacen(from, to, 1), &[]) {
        Ok(_) => "fine".to_owned(),
        Err(error) => error.to_string(),
    }
}

/// Returns the error message for the job with one override.
fn set(key: &str, value: &str) -> String {
    match JobConfig::parse(JOB, &[(key.to_owned(), value.to_owned())]) {
        Ok(_) => "fine".to_owned(),
        Err(error) => error.to_string(),
    }
}

const EDITS: [(&str, &str, &str); 27] = [
    ("batch_size", "batchsize", "did you mean batch_size?"),
    ("batch_size = 16", "batch_size = \"16\"", "expected an integer, at least 1, got \"16\""),
    ("batch_size = 16", "batch_size = 16\nlr = 1", "the possible keys are precision"),
    ("batch_size = 16", "batch_size = 16\nepoch = 1", "did you mean epochs?"),
    ("batch_size = 16", "", "training.batch_size is missing"),
    ("[training]", "[trainig]", "did you mean training?"),
    ("kind = \"sgd\"", "kind = \"addam\"", "did you mean \"adam\"?"),
    (
        "kind = \"sgd\", ",
        "",
        "optimizer.sparse.kind is missing (line 10): expected \"sgd\", \"adagrad\"",
    ),
    ("learning_rate = 0.1", "lr = 0.1", "optimizer.sparse.learning_rate is missing"),
    ("learning_rate = 0.1", "learning_rate = \"0.1\"", "expected a number, 0 or more"),
    ("kind = \"dot\"", "kind = \"dcn\"", "expected \"dot\", \"cat\" or \"dcn_v2\""),
    ("kind = \"dot\"", "kind = \"dcn_v2\"", "model.interaction.layers is missing"),
    ("kind = \"dot\"", "kind = \"cat\", itself = true", "only with \"dot\""),
    ("loss = \"mse\"\n", "", "expected \"bce_with_logits\" or \"mse\""),
    ("loss = \"mse\"", "loss = \"bce\"", "expected \"bce_with_logits\" or \"mse\""),
    ("top = [1]", "top = 1", "expected a list of integers"),
    ("top = [1]", "top = [\"1\"]", "expected a list of integers"),
    ("rows = 10", "rows = 0", "at least 1, or \"auto\", got 0"),
    ("rows = 10", "rows = \"many\"", "or \"auto\", got \"many\""),
    ("dim = 4", "dims = 4", "did you mean dim?"),
    ("tables = [{ name = \"a\", rows = 10, dim = 4 }]", "", "model.tables is missing"),
    ("format = \"csv\"", "format = \"cvs\"", "did you mean \"csv\"?"),
    ("label = { column = \"y\" }", "label = \"y\"", "expected a section of keys, got \"y\""),
    ("dense = [{ column = \"u\" }]", "dense = [\"u\"]", "expected an entry { … }, got \"u\""),
    ("column = \"u\"", "name = \"u\"", "data.dense[0].column is missing"),
    ("column = \"u\"", "column = \"u\", transform = \"logp\"", "did you mean \"log1p\"?"),
    ("mode = \"exact\"", "mode = \"exact\", min_counts = 2", "did you mean min_count?"),
];

const OVERRIDES: [(&str, &str, &str); 13] = [
    (
        "learning_rate",
        "0.1",
        "means optimizer.sparse.learning_rate or optimizer.dense.learning_rate; give one of them",
    ),
    ("seed", "1", "means model.seed or training.seed"),
    ("batchsize", "1", "did you mean training.batch_size?"),
    ("rows", "1", "expected the entry's name too: model.tables.NAME.rows"),
    ("model.tables.b.rows", "1", "model.tables has no entry \"b\" among its 1"),
    ("model.tables.a", "1", "expected a key of the entry too, such as rows"),
    ("training.", "1", "expected a key such as training.batch_size"),
    ("training.batch_size.x", "1", "training.batch_size is not a section"),
    ("plan.layouts", "row", "got \"row\"; did you mean [\"row\"]?"),
    (
        "plan.tables.a.pinned",
        "{ layout = \"column\", ranks = [0, 1] }",
        "plan.tables.a.pinned.parts is missing: expected an integer, at least 1",
    ),
    (
        "plan.tables.a.pinned",
        "{ layout = \"table\", ranks = [0], parts = 2 }",
        "plan.tables.a.pinned.parts: not allowed with \"table\", only with \"column\"",
    ),
    ("epochs", "many", "training.epochs: expected an integer, 0 or more, got \"many\""),
    ("batch_size", "-5", "training.batch_size: expected an integer, at least 1, got -5"),
];

/// Words that would reveal a Rust type in a message.
const TYPES: [&str; 12] = [
    "struct",
    "Config",
    "enum",
    "variant",
    "u64",
    "usize",
    "f64",
    "i64",
    "Option",
    "Vec<",
    "expected field",
    "TableConfig",
];

#[test]
fn every_message_names_the_fix_and_no_type() {
    let edits =
        EDITS.map(|(from, to, expected)| (format!("{from} → {to}"), said(from, to), expected));
    let overrides = OVERRIDES
        .map(|(key, value, expected)| (format!("{key}={value}"), set(key, value), expected));
    for (what, message, expected) in edits.iter().chain(&overrides) {
        assert!(message.contains(expected), "{what}: no {expected:?} in\n{message}");
        for word in TYPES {
            assert!(!message.contains(word), "{what}: {word:?} in\n{message}");
        }
    }
}

#[test]
fn all_that_is_missing_is_said_at_once_with_lines() {
    let message = JobConfig::parse("[model]\nname = \"x\"\n[data]\nfromat = \"csv\"\n", &[]);
    let message = message.unwrap_err().to_string();
    for part in [
        "data.fromat (line 4): no such key; did you mean format?",
        "model.top is missing (line 1)",
        "model.interaction.kind is missing",
        "model.loss is missing",
        "model.tables is missing",
        "optimizer.sparse.kind is missing",
        "optimizer.dense.learning_rate is missing",
        "training.batch_size is missing",
        "data.format is missing",
    ] {
        assert!(message.contains(part), "no {part:?} in\n{message}");
    }
    assert!(message.starts_with("11 problems:"), "{message}");
}

#[test]
fn entries_of_lists_are_reached_by_name() {
    let rows = |key: &str| {
        JobConfig::parse(JOB, &[(key.to_owned(), "77".to_owned())]).unwrap().model.tables[0].rows
    };
    assert_eq!((rows("model.tables.a.rows"), rows("model.tables.0.rows")), (77, 77));
    let many = JOB
        .replace("name = \"a\"", "name = \"t{0..3}\"")
        .replace("column = \"a\"", "column = \"t{0..3}\"")
        .replace("tables = { a =", "tables = { t1 =");
    let set = [("model.tables.t2.rows".to_owned(), "5".to_owned())];
    let tables = JobConfig::parse(&many, &set).unwrap().model.tables;
    assert_eq!(tables.iter().map(|table| table.rows).collect::<Vec<_>>(), [10, 10, 5, 10]);
}

#[test]
fn rows_come_from_the_data_or_are_refused() {
    let auto = |more: &str| {
        let text = JOB.replace("rows = 10", "rows = \"auto\"");
        JobConfig::parse(&text.replace("mode = \"exact\"", more), &[])
    };
    let mut job = auto("mode = \"exact\"").unwrap();
    assert!(job.model.has_auto_tables() && job.data.table_rows.is_empty());
    assert!(job.to_toml().unwrap().contains("rows = \"auto\""));
    job.size_tables(|_| 9);
    assert_eq!((job.model.tables[0].rows, job.data.table_rows["a"]), (9, 9));
    let refused = auto("mode = \"modulo\"").unwrap_err().to_string();
    assert!(refused.contains("model.tables.a.rows") && refused.contains("exact"), "{refused}");
}
