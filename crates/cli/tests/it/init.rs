//! Tests of `rowmill init` on files of ten kinds, followed by `rowmill train` with the unedited
//! configuration.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use testkit::{ProgramOutput, fixture};

use crate::fixture::Place;

/// Number of rows in the generated files.
const ROWS: u64 = 600;

fn draw(row: u64, salt: u64) -> u64 {
    let x = (row * 13 + salt).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (x ^ (x >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 33
}

/// Draws a label that depends on `cause`, with noise.
fn label(row: u64, cause: u64) -> u64 {
    u64::from(draw(row, 77) % 10 < if cause.is_multiple_of(2) { 8 } else { 2 })
}

/// Proposes a configuration for `file` and trains with it unchanged. Returns the outputs of both
/// commands and the text of the configuration.
fn trained(place: &Place, file: &str, more: &str) -> (ProgramOutput, ProgramOutput, String) {
    let said = place.done(&format!("init {file} --output job.toml --force {more}"));
    let text = fs::read_to_string(place.path("job.toml")).unwrap();
    let run = file.replace(['/', '.'], "_");
    let train = place.run(&format!("train job.toml --run run{run} --format json"));
    assert_eq!(train.code, Some(0), "{file}: {}\n{text}", train.stderr);
    let closing = &train.last()["closing"];
    assert!(closing["test"]["auc"].is_number(), "{file}: {}", train.stdout);
    assert!(closing["baselines"]["base_rate"].is_object(), "{file}: {}", train.stdout);
    (said, train, text)
}

/// Writes a file and proposes a configuration for it. Checks that the configuration contains all
/// texts of `expected`, and trains with it.
fn check(file: &str, content: impl AsRef<[u8]>, expected: &[&str]) -> ProgramOutput {
    let place = Place::new();
    fs::write(place.path(file), content).unwrap();
    let (_, train, text) = trained(&place, file, "");
    for part in expected {
        assert!(text.contains(part), "{file}: no {part:?} in\n{text}");
    }
    train
}

#[test]
fn criteo_is_recognised_by_its_shape() {
    let Some(file) = fixture::path("criteo/train.tiny.txt.gz") else { return };
    let (_, _, text) = trained(&Place::new(), file.to_str().unwrap(), "");
    assert!(text.contains("format = \"criteo\"") && text.contains("\"C26\""), "{text}");
}

#[test]
fn the_census_without_a_header_reaches_its_accuracy() {
    let (Some(train), Some(test)) =
        (fixture::path("adult/adult-train.csv.gz"), fixture::path("adult/adult-test.csv.gz"))
    else {
        return;
    };
    let more = format!("--evaluation {}", test.display());
    let (_, ran, text) = trained(&Place::new(), train.to_str().unwrap(), &more);
    // The held-out file spells its labels with a full stop at the end.
    assert!(text.contains("positive = [\">50K\", \">50K.\"]"), "{text}");
    assert!(text.contains("missing = \"?\""), "{text}");
    let auc = ran.last()["closing"]["test"]["auc"].as_f64().unwrap();
    assert!(auc >= 0.925, "{auc}");
}

#[test]
fn ratings_with_a_header_hold_out_the_newest() {
    let mut text = "userId,movieId,rating,timestamp\n".to_owned();
    for row in 0..ROWS {
        let (user, item) = (row / 20 + 1, draw(row, 1) % 40 + 1);
        let stars = 1 + 3 * label(row, user + item) + draw(row, 3) % 2;
        let time = 1_100_000_000 + draw(row, 2) % 100_000_000;
        writeln!(text, "{user},{item},{stars}.0,{time}").unwrap();
    }
    let expected = ["MovieLens", "hold_out_by = \"timestamp\"", "\"4.0\", \"5.0\""];
    check("ratings.csv", text, &expected);
}

#[test]
fn ratings_with_two_colons_have_the_names_of_the_layout() {
    let mut text = String::new();
    for row in 0..ROWS {
        let (user, item) = (row / 20 + 1, draw(row, 1) % 40 + 1);
        let stars = 1 + 3 * label(row, user + item) + draw(row, 3) % 2;
        writeln!(text, "{user}::{item}::{stars}::{}", 978_300_000 + draw(row, 2) % 9_000_000)
            .unwrap();
    }
    let expected = ["delimiter = \"::\"", "columns = [\"userId\", \"movieId\", \"rating\""];
    check("ratings.dat", text, &expected);
}

#[test]
fn avazu_is_recognised_by_its_header() {
    let mut text = "id,click,hour,C1,banner_pos,site_id,device_ip\n".to_owned();
    for row in 0..ROWS {
        let site = draw(row, 1) % 9;
        writeln!(
            text,
            "{},{},141021{:02},1005,{},site{site:05x},ip{:x}",
            draw(row, 9),
            label(row, site),
            row * 24 / ROWS,
            draw(row, 2) % 3,
            draw(row, 3)
        )
        .unwrap();
    }
    let expected = ["Avazu", "date_format = \"%y%m%d%H\"", "#   id: ", "#   C1: "];
    check("train.csv", text, &expected);
}

#[test]
fn init_reads_semicolons_decimal_commas_and_dates() {
    let mut text = "kunde;betrag;tag;gekauft\n".to_owned();
    for row in 0..ROWS {
        let who = draw(row, 1) % 30;
        writeln!(
            text,
            "k{who};{},{:02} €;{:02}.{:02}.2023;{}",
            draw(row, 2) % 900,
            draw(row, 3) % 100,
            1 + draw(row, 4) % 28,
            1 + draw(row, 5) % 12,
            label(row, who)
        )
        .unwrap();
    }
    let expected = [
        "delimiter = \";\"",
        "number = \"decimal_comma\"",
        "date_format = \"%d.%m.%Y\"",
        "hold_out_by = \"tag\"",
    ];
    check("kauf.csv", text, &expected);
}

#[test]
fn init_reads_quoted_newlines_and_amounts_of_money() {
    let mut text = "\"note\",\"price\",\"shop\",\"bought\"\n".to_owned();
    for row in 0..ROWS {
        let shop = draw(row, 1) % 12;
        writeln!(
            text,
            "\"line one, {}\nline \"\"two\"\"\",\"${},{:03}.50\",shop {shop},{}",
            draw(row, 4) % 7,
            1 + draw(row, 2) % 9,
            draw(row, 3) % 1000,
            if label(row, shop) == 1 { "yes" } else { "no" }
        )
        .unwrap();
    }
    let expected = ["number = \"money\"", "positive = [\"yes\"]", "column = \"note\""];
    check("shop.csv", text, &expected);
}

#[test]
fn init_reads_latin_1_with_tabs() {
    let mut text = b"Stra\xdfe\tgr\xf6\xdfe\tclick\n".to_vec();
    for row in 0..ROWS {
        let street = draw(row, 1) % 25;
        text.extend_from_slice(b"M\xfcllerweg ");
        let rest = format!("{street}\t{}\t{}\n", draw(row, 2) % 500, label(row, street));
        text.extend_from_slice(rest.as_bytes());
    }
    check("wege.tsv", text, &["format = \"tsv\"", "column = \"Straße\"", "column = \"größe\""]);
}

#[test]
fn init_reads_columns_of_lists() {
    let mut text = "user,genres,liked\n".to_owned();
    let genres = ["drama", "comedy", "horror", "action", "crime", "war", "noir"];
    for row in 0..ROWS {
        let (user, first) = (draw(row, 1) % 20, draw(row, 2) as usize % 7);
        let list: Vec<&str> =
            (0..=draw(row, 3) as usize % 3).map(|i| genres[(first + 2 * i) % 7]).collect();
        writeln!(text, "u{user},{},{}", list.join("|"), label(row, first as u64)).unwrap();
    }
    let expected = ["separator = \"|\"", "pooling = \"mean\"", "transform = \"one\""];
    check("films.csv", text, &expected);
}

#[test]
fn init_reads_parquet_with_times() {
    use data::{ColumnValues, TableColumn, encode_table};

    let rows = 0..ROWS;
    let column =
        |name: &str, values| TableColumn { name: name.to_owned(), is_nullable: true, values };
    let city: Vec<u64> = rows.clone().map(|row| draw(row, 1) % 15).collect();
    let names = city.iter().map(|city| Some(format!("c{city}")));
    let sizes = rows.clone().map(|row| Some(draw(row, 2) as f64 / 1e6));
    let counts = rows.clone().map(|row| (row % 9 > 0).then_some(draw(row, 3) % 50));
    let times = rows.clone().map(|row| Some((1_600_000_000 + 60 * row) as i64));
    let labels = rows.map(|row| Some(label(row, city[row as usize])));
    let columns = vec![
        column("city", ColumnValues::Text(names.collect())),
        column("size", ColumnValues::Floats(sizes.collect())),
        column("count", ColumnValues::Unsigned(counts.collect())),
        column("created", ColumnValues::Integers(times.collect())),
        column("label", ColumnValues::Unsigned(labels.collect())),
    ];
    let bytes = encode_table(Path::new("rows.parquet"), columns).unwrap();
    let expected = ["format = \"parquet\"", "name = \"city\"", "in the order of created"];
    check("rows.parquet", bytes, &expected);
}

/// Builds a `.npy` file in format version 1.0.
fn npy(kind: &str, shape: &str, content: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({shape}), }}");
    let padded = format!("{header:<117}\n");
    let length = (padded.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\0", &length[..], padded.as_bytes(), content].concat()
}

#[test]
fn arrays_of_torchrec_are_recognised_by_their_names() {
    let place = Place::new();
    let id = |row: u64, column: u64| draw(row, column) % (3 + column);
    let dense = (0..ROWS).flat_map(|row| (0..13).map(move |c| draw(row, 50 + c) as f32 / 1e9));
    let dense: Vec<u8> = dense.flat_map(f32::to_le_bytes).collect();
    let ids = (0..ROWS).flat_map(|row| (0..26).map(move |column| id(row, column) as i32));
    let ids: Vec<u8> = ids.flat_map(i32::to_le_bytes).collect();
    let labels = (0..ROWS).map(|row| label(row, id(row, 25)) as i32);
    let labels: Vec<u8> = labels.flat_map(i32::to_le_bytes).collect();
    fs::write(place.path("day_0_dense.npy"), npy("<f4", &format!("{ROWS}, 13"), &dense)).unwrap();
    fs::write(place.path("day_0_sparse.npy"), npy("<i4", &format!("{ROWS}, 26"), &ids)).unwrap();
    fs::write(place.path("day_0_labels.npy"), npy("<i4", &format!("{ROWS}, 1"), &labels)).unwrap();
    let (_, train, text) = trained(&place, "day_0_dense.npy", "");
    assert!(text.contains("TorchRec/MLPerf") && text.contains("format = \"npy\""), "{text}");
    assert!(train.stderr.contains("rows of the tables, by the data: C1"), "{}", train.stderr);
}

#[test]
fn init_reads_single_quotes_and_bar_delimiters() {
    let mut text = "'city'|'size'|'clicked'\n".to_owned();
    for row in 0..ROWS {
        let city = draw(row, 1) % 15;
        writeln!(text, "'city |{city}'|{}|'{}'", draw(row, 2) % 90, label(row, city)).unwrap();
    }
    check("bars.txt", text, &["delimiter = \"|\"", "quote = \"'\""]);
}

#[test]
fn configurations_are_not_overwritten_and_data_files_are_refused_as_configurations() {
    let place = Place::new();
    place.done("init train.csv");
    let ran = place.run("init train.csv");
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("train.toml") && ran.stderr.contains("--force"), "{}", ran.stderr);
    let ran = place.run("train train.csv");
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("hint: rowmill init train.csv"), "{}", ran.stderr);
    let printed = place.done("init train.csv --output -").stdout;
    assert_eq!(
        printed.trim_end(),
        fs::read_to_string(place.path("train.toml")).unwrap().trim_end()
    );
}

#[test]
fn files_are_described_without_a_configuration() {
    let place = Place::new();
    let ran = place.done("data stats train.csv");
    for part in ["4,000", "u ", "numbers", "lists"] {
        assert!(ran.stdout.contains(part), "{part}: {}", ran.stdout);
    }
    let json = place.done("data stats train.csv --format json").last();
    assert_eq!(json["columns"][3]["name"], "a", "{json}");
    assert_eq!(json["columns"][3]["distinct"], 50, "{json}");
}

#[test]
fn init_asks_for_the_label_if_no_column_looks_like_one() {
    let place = Place::new();
    let mut text = "a,b,c,d\n".to_owned();
    (0..ROWS).for_each(|row| {
        let (a, b) = (draw(row, 1) % 2, draw(row, 2) % 2);
        writeln!(text, "{},{a},{b},{}", draw(row, 3) % 9, draw(row, 4) % 9).unwrap();
    });
    fs::write(place.path("two.csv"), text).unwrap();
    let ran = place.run("init two.csv");
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("these have two values: b, c"), "{}", ran.stderr);
    assert!(ran.stderr.contains("hint: name it with --label COLUMN"), "{}", ran.stderr);
    place.done("init two.csv --label b");
}

/// A function that formats a day and an hour as text.
type Writing<'a> = &'a dyn Fn(u64, u64) -> String;

/// Generates ids, labels and hours in Avazu's format, under column names that do not reveal their
/// meaning.
fn hourly(write: impl Fn(u64, u64) -> String) -> String {
    let mut text = "a,b,w\n".to_owned();
    for row in 0..8 * ROWS {
        let (day, hour) = (1 + draw(row, 9) % 27, draw(row, 8) % 24);
        writeln!(text, "{},{},{}", draw(row, 1) % 9, label(row, hour / 12), write(day, hour))
            .unwrap();
    }
    text
}

#[test]
fn hours_are_learned_from_digits_and_from_log_dates() {
    let forms: [(&str, Writing<'_>); 3] = [
        ("%Y%m%d%H", &|day, hour| format!("201410{day:02}{hour:02}")),
        ("%y%m%d%H", &|day, hour| format!("1410{day:02}{hour:02}")),
        ("%d/%b/%Y:%H:%M:%S %z", &|day, hour| format!("{day:02}/Oct/2014:{hour:02}:30:00 +0000")),
    ];
    for (format, write) in forms {
        let expected = format!("date_format = \"{format}\"");
        let ran = check("hours.csv", hourly(write), &[&expected]);
        let auc = ran.last()["evaluation"]["auc"].as_f64().unwrap();
        assert!(auc > 0.7, "{format}: {auc}");
    }
}

#[test]
fn guesses_leaks_and_empty_parts_are_reported() {
    let place = Place::new();
    let mut text = "click,day,price,refund\n".to_owned();
    for row in 0..ROWS {
        let click = draw(row, 1) % 2;
        let (day, month) = (1 + draw(row, 2) % 12, 1 + draw(row, 3) % 12);
        let price = format!("\"{},{:03}\"", 1 + draw(row, 4) % 9, draw(row, 5) % 1000);
        writeln!(text, "{click},{day:02}/{month:02}/2023,{price},{}", 5 * click).unwrap();
    }
    fs::create_dir(place.path("parts")).unwrap();
    fs::write(place.path("parts/part-0.csv"), "").unwrap();
    fs::write(place.path("parts/part-1.csv"), text).unwrap();
    let ran = place.done("init parts");
    for part in [
        "skipped 1 file without rows, the first parts/part-0.csv",
        "column day: every value is a time both as",
        "column price: in every value the comma may part thousands",
        "column refund: it alone predicts click almost perfectly",
    ] {
        assert!(ran.stderr.contains(part), "no {part:?} in\n{}", ran.stderr);
    }
    place.done("train parts.toml --run run");
}

/// Runs `init` on the files below `name`, and returns its remarks about columns that predict the
/// label by themselves.
fn leaks_of(place: &Place, name: &str) -> Vec<String> {
    let ran = place.done(&format!("init {name} --output leaks.toml --force"));
    let is_leak = |line: &&str| line.contains("it alone predicts");
    ran.stderr.lines().filter(is_leak).map(str::to_owned).collect()
}

#[test]
fn columns_of_paths_that_predict_the_label_are_reported() {
    let place = Place::new();
    for outcome in [0, 1] {
        for part in 0..3 {
            let folder = place.path(&format!("events/outcome={outcome}/part={part}"));
            fs::create_dir_all(&folder).unwrap();
            let mut text = "click,price\n".to_owned();
            for row in 0..100 {
                writeln!(text, "{outcome},{}", draw(row, 7 + part) % 50).unwrap();
            }
            fs::write(folder.join("rows.csv"), text).unwrap();
        }
    }
    let leaks = leaks_of(&place, "events");
    assert_eq!(leaks.len(), 1, "{leaks:?}");
    assert!(leaks[0].contains("column outcome: it alone predicts click"), "{leaks:?}");
}

#[test]
fn leaks_of_published_layouts_without_a_header_are_reported() {
    let place = Place::new();
    let (mut criteo, mut movielens) = (String::new(), String::new());
    for row in 0..ROWS {
        let label = draw(row, 90) % 2;
        let dense = (1..=13).map(|at| match at {
            3 => 10 * label + 1,
            at => draw(row, at) % 100,
        });
        let dense: Vec<String> = dense.map(|value| value.to_string()).collect();
        let sparse: Vec<String> =
            (1..=26).map(|at| format!("{:08x}", draw(row, 20 + at) % 40)).collect();
        writeln!(criteo, "{label}\t{}\t{}", dense.join("\t"), sparse.join("\t")).unwrap();
        let (user, rating) = (1 + 2 * (draw(row, 50) % 20) + label, 1 + 4 * label);
        let time = 880_000_000 + draw(row, 51) % 1_000_000;
        writeln!(movielens, "{user}\t{}\t{rating}\t{time}", 1 + draw(row, 52) % 30).unwrap();
    }
    fs::write(place.path("day.tsv"), criteo).unwrap();
    fs::write(place.path("u.data"), movielens).unwrap();
    let leaks = leaks_of(&place, "day.tsv");
    assert_eq!(leaks.len(), 1, "{leaks:?}");
    assert!(leaks[0].contains("column I3: it alone predicts label"), "{leaks:?}");
    let leaks = leaks_of(&place, "u.data");
    assert!(leaks.iter().any(|leak| leak.contains("column userId: it alone predicts rating")));
}

#[test]
fn hints_of_init_name_what_init_has() {
    let place = Place::new();
    fs::write(place.path("good.csv"), "label,x\n1,2\n0,3\n1,4\n").unwrap();
    fs::write(place.path("other.csv"), "u,v\n1,2\n0,3\n").unwrap();
    fs::write(place.path("long.csv"), format!("label,x\n1,2\n{}", "0,1,2,3\n".repeat(9))).unwrap();
    fs::write(place.path("b.csv"), b"PAR1\x15\x04\x15\x00 \xff\n").unwrap();
    fs::write(place.path("ones.csv"), "label,x\n1,2\n1,3\n1,4\n").unwrap();
    for (words, hint) in [
        ("good.csv other.csv", "hint: give files with the same columns"),
        ("long.csv", "hint: correct the rows, or name the separator of fields with --delimiter"),
        ("good.csv b.csv", "hint: give files of one format"),
        ("ones.csv --label label", "hint: choose another with --label COLUMN"),
        ("ones.csv", "which column is the label?"),
    ] {
        let ran = place.run(&format!("init {words} --output -"));
        assert!(ran.code != Some(0) && ran.stderr.contains(hint), "{words}: {}", ran.stderr);
        for absent in ["--set", "--malformed-max", "data.format", "data.columns"] {
            assert!(!ran.stderr.contains(absent), "{words}: {absent}: {}", ran.stderr);
        }
    }
}
