//! Issue 23, item 10: ids outside their table must be counted, and a run must keep its rule for
//! them.

use std::fs;

use testkit::ProgramOutput;

use crate::fixture::Place;

/// A folder whose training file has ids outside the table of column `a`. In every ten rows, one row
/// has the id 100, and the row after it has −1.
fn place() -> Place {
    let place = Place::new();
    let text = fs::read_to_string(place.path("train.csv")).unwrap();
    let line = |(row, line): (usize, &str)| {
        let mut fields: Vec<&str> = line.split(',').collect();
        match row % 10 {
            _ if row == 0 => {}
            3 => fields[3] = "100",
            4 => fields[3] = "-1.0",
            _ => {}
        }
        fields.join(",") + "\n"
    };
    fs::write(place.path("train.csv"), text.lines().enumerate().map(line).collect::<String>())
        .unwrap();
    place
}

/// Writes the job with additional configuration keys for column `a`.
fn with(place: &Place, keys: &str) {
    let job = fs::read_to_string(place.path("job.toml")).unwrap();
    let column = r#"{ column = "a", kind = "integer""#;
    fs::write(place.path("other.toml"), job.replace(column, &format!("{column}, {keys}"))).unwrap();
}

fn contains(ran: &ProgramOutput, expected: &[&str]) {
    for part in expected {
        assert!(ran.stderr.contains(part), "no {part:?} in\n{}", ran.stderr);
    }
}

#[test]
fn ids_outside_their_tables_are_counted_everywhere() {
    let place = place();
    let warning = [
        "warning: column \"a\": 800 of 4,000 ids are outside their table of 50 rows",
        "400 of them below 0, and wrap around, -1 to the last row",
    ];
    contains(&place.done("data convert train.csv --config job.toml --out prepared"), &warning);
    let stats = place.done("data stats train.csv --config job.toml --format json");
    contains(&stats, &warning);
    assert_eq!(stats.last()["categorical"][0]["ids_outside"], 800);
    assert_eq!(stats.last()["categorical"][1]["ids_outside"], serde_json::Value::Null);
    let ran = place.done("train job.toml --train train.csv --run r --format json");
    contains(&ran, &warning);
    let outside = &ran.last()["ids_outside"];
    assert_eq!(outside[0]["column"], "a");
    // The counts cover the first of two epochs, over the four fifths of the rows that are not held
    // out.
    assert_eq!((&outside[0]["ids"], &outside[0]["outside"]), (&3200.into(), &640.into()));
    let ran = place.done("train job.toml --train prepared --run s");
    contains(&ran, &warning);
    let row = "a: 640 of 3,200 in the first epoch wrapped";
    assert!(ran.stdout.contains(row), "{}", ran.stdout);
    contains(&place.done("score r train.csv --output scores.txt"), &warning);
    // The preparation counted ids for tables of another size, so its counts must not be reported.
    let ran = place.done("train job.toml --train prepared --run t --set rows_cap=40");
    assert!(!ran.stderr.contains("outside their table of 50"), "{}", ran.stderr);
}

#[test]
fn out_of_range_decides_how_ids_outside_their_table_are_treated() {
    let place = place();
    with(&place, "out_of_range = \"error\"");
    for words in [
        "train other.toml --train train.csv --run r",
        "data convert train.csv --config other.toml --out out",
        "data stats train.csv --config other.toml",
    ] {
        let before = place.names("");
        let ran = place.run(words);
        assert_eq!(ran.code, Some(1), "{words}\n{}", ran.stderr);
        contains(
            &ran,
            &["train.csv:4: column \"a\": expected an id from 0 to 49", "got 100", "hint:"],
        );
        assert_eq!(place.names(""), before, "{words}");
    }
    with(&place, "out_of_range = \"missing\", missing = -1");
    let ran = place.done("train other.toml --train train.csv --run r");
    contains(&ran, &["400 of 3,600 ids are outside", "and count as missing"]);
    assert!(ran.stdout.contains("in the first epoch taken as missing"), "{}", ran.stdout);
    // Rows that were prepared under one rule must be refused by a job with another rule.
    place.done("data convert train.csv --config job.toml --out prepared");
    let ran = place.run("train other.toml --train prepared --run s");
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    contains(&ran, &["fitted missing: expected -1 for column \"a\"", "got none"]);
}

#[test]
fn rules_without_a_range_are_refused() {
    let place = place();
    let refused = |words: &str, expected: &[&str]| {
        let ran = place.run(&format!("train {words} --train train.csv --run r"));
        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        contains(&ran, expected);
    };
    with(&place, "out_of_range = \"missing\"");
    refused("other.toml --set data.ids.mode=exact", &["out_of_range", "ids.mode = \"modulo\""]);
    with(&place, "out_of_range = \"wrap\"");
    refused("other.toml", &["expected \"modulo\", \"error\" or \"missing\", got \"wrap\""]);
    with(&place, "missing = \"none\"");
    refused("other.toml", &["expected an integer, got \"none\""]);
    let job = fs::read_to_string(place.path("job.toml")).unwrap();
    let text = job.replace("separator = \"|\"", "separator = \"|\", missing = -1");
    fs::write(place.path("other.toml"), text).unwrap();
    refused("other.toml", &["data.categorical \"b\": missing", "got kind string"]);
}

#[test]
fn configuration_errors_name_the_expected_value() {
    let place = Place::new();
    for (set, expected) in [
        ("batch_size=many", "batch_size: expected an integer, at least 1"),
        ("batch_size=-5", "batch_size: expected an integer, at least 1"),
        ("data.hold_out=most", "expected a number"),
        ("drop_last=3", "expected true or false"),
        ("bottom=8", "expected a list of integers, such as [64, 16]"),
        ("training.log_every=[1]", "expected an integer, at least 1"),
    ] {
        let ran = place.run(&format!("train job.toml --train train.csv --set {set}"));
        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        contains(&ran, &[expected]);
        for rust in ["u64", "usize", "i64", "f64", "struct"] {
            assert!(!ran.stderr.contains(rust), "{}", ran.stderr);
        }
    }
}
