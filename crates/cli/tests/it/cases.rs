//! Tests of `rowmill init` and `rowmill train` on files with properties from public bug reports, in
//! the folder `cases` of the fixtures. Most files contain the same 6,000 rows in different formats.

use std::fs;

use testkit::{ProgramOutput, fixture};

use crate::fixture::Place;

/// The AUC of the test rows that training reaches on the same rows in a plain CSV file, as the mean
/// of nine seeds. With one seed it is between 0.821 and 0.834, so tests train with three.
const PLAIN: f64 = 0.8263;
/// The same for prices that are 20 lower. Some of these are negative, so they get no logarithm.
const PLAIN_WITH_NEGATIVE_PRICES: f64 = 0.8204;

/// A file of the cases on which `init` was run.
struct Case {
    place: Place,
    init: ProgramOutput,
    /// Text of the configuration, if `init` wrote one.
    text: String,
}

/// Runs `init` on files of the cases, with additional options.
fn init(files: &[&str], words: &str) -> Option<Case> {
    let place = Place::new();
    let mut command = place.command("init --output case.toml");
    for file in files {
        command.arg(fixture::path(&format!("cases/{file}"))?);
    }
    command.args(words.split_whitespace());
    let init = ProgramOutput::collect(&mut command);
    let text = fs::read_to_string(place.path("case.toml")).unwrap_or_default();
    Some(Case { place, init, text })
}

impl Case {
    /// Checks that `init` wrote a configuration, trains with it and three seeds, and compares the
    /// mean AUC of the test rows. Returns the output of the first training.
    fn trains_to(&self, auc: f64) -> ProgramOutput {
        assert_eq!(self.init.code, Some(0), "{}", self.init.stderr);
        let train = |seed: u32| {
            let words = format!("--run run{seed} --set training.seed={seed} --format json");
            let ran = self.place.run(&format!("train case.toml {words}"));
            assert_eq!(ran.code, Some(0), "{}\n{}", ran.stderr, self.text);
            ran
        };
        let runs = [0, 1, 2].map(train);
        let tested =
            runs.each_ref().map(|ran| ran.last()["closing"]["test"]["auc"].as_f64().unwrap());
        let mean = tested.iter().sum::<f64>() / tested.len() as f64;
        assert!((mean - auc).abs() < 0.004, "{tested:?}, expected {auc}\n{}", self.text);
        let [first, ..] = runs;
        first
    }

    /// Checks that the table that `init` prints has these lines. Several spaces in a row count as
    /// one.
    fn shows(&self, lines: &[&str]) {
        let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let shown: Vec<String> = self.init.stdout.lines().map(squeezed).collect();
        for line in lines {
            assert!(shown.iter().any(|shown| shown == line), "{line}\n{}", shown.join("\n"));
        }
    }

    /// Checks that `init` refused the file. The message must have a bounded length and contain
    /// these parts.
    fn is_refused(&self, parts: &[&str]) {
        let stderr = &self.init.stderr;
        assert!(matches!(self.init.code, Some(1 | 2)), "{:?}\n{}", self.init.code, self.text);
        assert!(stderr.len() < 3000, "{} bytes", stderr.len());
        for part in parts {
            assert!(stderr.contains(part), "no {part:?} in {stderr}");
        }
    }
}

#[test]
fn case_11_an_index_column_without_a_name_is_a_column() {
    let Some(case) = init(&["11-pandas-index-column/t28c-index-column/x.csv"], "") else { return };
    case.shows(&["label label by its name", "c1 left out 6,000 different values in 6,000 rows"]);
    case.trains_to(PLAIN);
}

#[test]
fn case_13_decimals_of_parquet_are_numbers() {
    let Some(case) = init(&["13-parquet-decimals/p03-decimal/x.parquet"], "") else { return };
    case.shows(&["price number 0.58 to 577.78"]);
    case.trains_to(PLAIN);
    let file = ["13-parquet-decimals/p03c-snowflake-decimals/x.parquet"];
    let Some(case) = init(&file, "") else { return };
    case.shows(&["LABEL label by its name"]);
    case.trains_to(PLAIN);
}

#[test]
fn case_15_decimal_commas_are_numbers_and_no_lists() {
    let file = ["15-decimal-comma/t08-decimal-comma-semicolon/x.csv"];
    let Some(case) = init(&file, "") else { return };
    case.shows(&["price number 0.58 to 577.78, amounts such as 49,83"]);
    case.trains_to(PLAIN);
}

#[test]
fn case_17_the_minus_of_unicode_is_a_minus() {
    for (file, auc) in [
        ("17-unicode-minus/plain.csv", 0.912),
        // The expected AUC is the one of the same rows with hyphens, because plain.csv contains
        // other rows.
        ("17-unicode-minus/uminus.csv", 0.8714),
        ("17-unicode-minus/t61-unicode-minus-nbsp/x.csv", PLAIN_WITH_NEGATIVE_PRICES),
    ] {
        let Some(case) = init(&[file], "") else { return };
        case.trains_to(auc);
    }
}

#[test]
fn case_18_columns_of_further_files_are_found_by_name() {
    let folder = "18-multi-file-order/t41-multi-csv-reordered";
    let files = [&*format!("{folder}/a.csv"), &*format!("{folder}/b.csv")];
    let Some(case) = init(&files, "") else { return };
    case.shows(&["shop category 40 values", "price number 0.58 to 577.78"]);
    case.trains_to(PLAIN);
}

#[test]
fn case_20_compressed_text_is_read_and_other_formats_are_named() {
    for file in ["t02-utf16/x.csv", "t36-xz/x.csv.xz", "t36b-bz2/x.csv.bz2", "t36c-zip/x.csv.zip"] {
        let Some(case) = init(&[&format!("20-binary-files-called-parquet/{file}")], "") else {
            return;
        };
        case.trains_to(PLAIN);
    }
    for (file, form, reader) in [
        ("f01-feather/x.feather", "got an Arrow or Feather file", "pd.read_feather(FILE)"),
        ("f02-orc/x.orc", "got an ORC file", "pd.read_orc(FILE)"),
    ] {
        let Some(case) = init(&[&format!("20-binary-files-called-parquet/{file}")], "") else {
            return;
        };
        case.is_refused(&[form, reader]);
        let path = fixture::path(&format!("cases/20-binary-files-called-parquet/{file}")).unwrap();
        let ran = case.place.run(&format!("train job.toml --train {} --run run", path.display()));
        assert!(ran.stderr.contains(form), "{}", ran.stderr);
    }
}

#[test]
fn case_21_json_is_named() {
    for (file, form) in [
        ("21-json-lines-as-csv/f04-jsonl/x.jsonl", "got JSON lines"),
        ("21-json-lines-as-csv/f04b-json-array/x.json", "got a JSON array"),
    ] {
        let Some(case) = init(&[file], "") else { return };
        case.is_refused(&[form, "pd.read_json(FILE"]);
    }
}

#[test]
fn case_22_malformed_rows_are_reported_and_repeated_headers_are_skipped() {
    let file = ["22-all-rows-malformed-hidden/t32b-trailing-delimiter/x.csv"];
    let Some(case) = init(&file, "") else { return };
    case.is_refused(&["6,000 of 6,000 rows", "expected 6 fields, got 7", "x.csv:2:"]);
    let file = ["22-all-rows-malformed-hidden/t43-header-repeated-inside/x.csv"];
    let Some(case) = init(&file, "") else { return };
    let said = &case.init.stderr;
    assert!(
        said.contains("repeated header lines: left out 1") && said.contains("x.csv:3002"),
        "{said}"
    );
    let ran = case.trains_to(PLAIN);
    assert!(ran.stderr.contains("prepared 6,000 rows"), "{}", ran.stderr);
}

#[test]
fn case_24_rows_without_a_label_are_left_out_as_proposed() {
    let file = ["24-init-promises-left-out/t21-label-missing-some/x.csv"];
    let Some(case) = init(&file, "") else { return };
    let said = &case.init.stderr;
    assert!(said.contains("600 rows without a label will be left out"), "{said}");
    let ran = case.place.run("train case.toml --run run --format json");
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains("prepared 5,400 rows"), "{}", ran.stderr);
    assert!(ran.stderr.contains("rows without a label: left out 600"), "{}", ran.stderr);
}

#[test]
fn case_25_dates_with_slashes_hold_out_the_newest() {
    for (file, format) in [
        ("t30-dates-dmy", "%d/%m/%Y %H:%M"),
        ("t30b-dates-mdy", "%m/%d/%Y %I:%M %p"),
        ("t30g-dates-12h-nopad", "%m/%d/%Y %H:%M"),
    ] {
        let file = format!("25-dates-with-slashes/{file}/x.csv");
        let Some(case) = init(&[&file], "") else { return };
        let expected = case.text.contains(&format!("date_format = \"{format}\""));
        assert!(expected && case.text.contains("in the order of time"), "{file}\n{}", case.text);
        let path = fixture::path(&format!("cases/{file}")).unwrap();
        let stats = case.place.done(&format!("data stats {} --format json", path.display())).last();
        let times = &stats["columns"][5]["times"];
        let day = |key: &str| (times[key].as_f64().unwrap() / 86_400.0).floor();
        // The expected days are 2024-05-01 and 2024-05-21, as days since 1970.
        assert_eq!((day("least"), day("greatest")), (19_844.0, 19_864.0), "{file}");
    }
}

#[test]
fn case_27_whole_numbers_beyond_64_bits_are_ids() {
    let Some(case) = init(&["27-ids-above-u64/t17-ids-above-2^64/x.csv"], "") else { return };
    case.shows(&["shop category 40 values", "user category 899 values"]);
    case.trains_to(PLAIN);
}

#[test]
fn case_33_the_entry_model_is_the_state_dict() {
    let (Some(folder), Some(rows)) =
        (fixture::path("cases/33-checkpoint-with-rng"), fixture::path("criteo/train.tiny.txt.gz"))
    else {
        return;
    };
    let place = Place::new();
    let (file, config) = (folder.join("with_opt.pt"), folder.join("c.toml"));
    place.done(&format!(
        "checkpoint import {} --from torch --config {} --run run",
        file.display(),
        config.display()
    ));
    let scores = place.done(&format!("score run {}", rows.display())).stdout;
    let expected = fs::read_to_string(folder.join("base.txt")).unwrap();
    assert_eq!(scores.lines().count(), expected.lines().count());
    for (score, expected) in scores.lines().zip(expected.lines()) {
        let (score, expected): (f64, f64) = (score.parse().unwrap(), expected.parse().unwrap());
        assert!((score - expected).abs() < 1e-6, "{score}, expected {expected}");
    }
}

#[test]
fn case_34_a_count_of_clicks_is_a_click_from_one_on() {
    for words in ["", "--label clicks"] {
        let Some(case) = init(&["34-click-counts/t23-click-counts/x.csv"], words) else { return };
        assert!(case.text.contains("positive_from = 1"), "{}\n{}", case.init.stderr, case.text);
        let file = fixture::path("cases/34-click-counts/t23-click-counts/x.csv").unwrap();
        let words = "data stats --config case.toml --format json";
        let stats = format!("{words} {}", file.display());
        let rate = case.place.done(&stats).last()["click_rate"].as_f64().unwrap();
        assert!((rate - 0.3433).abs() < 0.0001, "{rate}");
        case.trains_to(PLAIN);
    }
}

#[test]
fn case_35_folders_are_read_with_the_columns_of_their_names() {
    let hive = "35-hive-and-spark-folders/p21-hive";
    for folder in ["35-hive-and-spark-folders/p20-spark-folder", hive] {
        let Some(case) = init(&[folder], "") else { return };
        case.shows(&["device category 3 values"]);
        case.trains_to(PLAIN);
    }
    let Some(folder) = fixture::path(&format!("cases/{hive}")) else { return };
    let place = Place::new();
    let words =
        format!("init {0}/device=desk {0}/device=phone {0}/device=tablet", folder.display());
    place.done(&format!("{words} --output case.toml"));
    let text = fs::read_to_string(place.path("case.toml")).unwrap();
    assert!(text.contains("name = \"device\""), "{text}");
    let Some(spark) = fixture::path("cases/35-hive-and-spark-folders/p20-spark-folder") else {
        return;
    };
    let entries = fs::read_dir(spark).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<String> = entries
        .filter(|path| !path.file_name().unwrap().to_string_lossy().starts_with('.'))
        .map(|path| path.display().to_string())
        .collect();
    assert!(files.iter().any(|file| file.ends_with("_SUCCESS")));
    place.done(&format!("init {} --output case.toml --force", files.join(" ")));
}

#[test]
fn case_43_lines_that_end_with_cr_alone_are_named() {
    let Some(case) = init(&["43-cr-only-message/t04-cr-only/x.csv"], "") else { return };
    case.is_refused(&["lines end with CR", "tr '\\r' '\\n'"]);
}
