//! Tests of `data synth`, `data convert`, `data stats` and `score`.

use std::fs;
use std::io::Write;
use std::process::Stdio;

use testkit::ProgramOutput;

use crate::fixture::{Place, ROWS, STATS};

#[test]
fn synth_reports_the_ceiling_auc_and_that_of_a_linear_model() {
    let place = Place::new();
    let made = place.done("data synth made.tsv --rows 20000 --format json").last();
    let (ceiling, linear) =
        (made["ceiling_auc"].as_f64().unwrap(), made["linear_auc"].as_f64().unwrap());
    assert!(0.5 < linear && linear < ceiling && ceiling < 0.9, "{made}");
    let text = fs::read_to_string(place.path("made.tsv")).unwrap();
    assert_eq!(text.lines().count(), 20_000);
    assert!(text.lines().all(|line| line.split('\t').count() == 40));
}

#[test]
fn convert_once_then_train_on_the_folder() {
    let place = Place::new();
    place.done("data convert train.csv --config job.toml --out prepared");
    let direct = place.done("train job.toml --train train.csv --run a --format json").last();
    let prepared = place.done("train job.toml --train prepared --run b --format json").last();
    assert_eq!(direct["loss"], prepared["loss"]);
    let again = place.run("data convert train.csv --config job.toml --out prepared");
    assert_eq!(again.code, Some(2), "{}", again.stderr);
}

#[test]
fn remains_of_another_conversion_are_refused_or_restarted() {
    let place = Place::new();
    fs::create_dir(place.path("a.partial")).unwrap();
    let left = r#"{"version": 1, "job": {"hold_out": 0.5}, "parts": []}"#;
    fs::write(place.path("a.partial/progress.json"), left).unwrap();
    let refused = place.run("data convert train.csv --config job.toml --out a");
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains("--restart"), "{}", refused.stderr);
    place.done("data convert train.csv --config job.toml --out a --memory 64MiB --restart");
    assert!(!place.path("a.partial").exists());
    let wrong = place.run("data convert train.csv --config job.toml --out b --memory 3");
    assert_eq!(wrong.code, Some(2), "{}", wrong.stderr);
}

#[test]
fn the_law_of_generated_ids_can_be_chosen() {
    let place = Place::new();
    let text = |law: &str| {
        place.done(&format!("data synth made.tsv --rows 3000{law}"));
        fs::read_to_string(place.path("made.tsv")).unwrap()
    };
    let [default, zipf, uniform] =
        ["", " --distribution zipf:1.5", " --distribution uniform"].map(text);
    assert_eq!(default, zipf);
    assert_ne!(default, uniform);
    for law in ["zipf:-1", "zipf", "reuse:", "normal"] {
        let ran = place.run(&format!("data synth made.tsv --rows 10 --distribution {law}"));
        assert_eq!(ran.code, Some(2), "{law}: {}", ran.stderr);
    }
    let ran = place.run("data synth made.tsv --rows 10 --distribution reuse:train.csv");
    assert!(ran.stderr.contains("train.csv: expected locality statistics"), "{}", ran.stderr);
}

#[test]
fn the_synthetic_section_sets_the_id_distribution() {
    let place = Place::new();
    fs::write(place.path("stats.txt"), STATS).unwrap();
    let rows = |set: &str| {
        let words = format!("data synth made.csv --layout csv --config {set} --rows 2000");
        place.done(&words);
        fs::read_to_string(place.path("made.csv")).unwrap()
    };
    let job = fs::read_to_string(place.path("job.toml")).unwrap();
    let with = |name: &str, section: &str| {
        fs::write(place.path(name), format!("{job}\n[synthetic]\n{section}\n")).unwrap();
        name.to_owned()
    };
    let reuse = "ids = { kind = \"reuse\", file = \"stats.txt\" }";
    let plain = rows("job.toml");
    let reused = rows(&with("reuse.toml", reuse));
    assert_ne!(plain, reused);
    assert_eq!(reused, rows("job.toml --distribution reuse:stats.txt"));
    let absent = with("absent.toml", "ids = { kind = \"reuse\", file = \"absent.txt\" }");
    let ran = place.run(&format!("data synth made.csv --layout csv --config {absent} --rows 20"));
    assert!(ran.stderr.contains("absent.txt"), "{}", ran.stderr);
    let unknown = with("unknown.toml", "tables = { nowhere = { kind = \"uniform\" } }");
    let ran = place.run(&format!("train {unknown} --synthetic 2000 --run r"));
    assert!(ran.stderr.contains("synthetic.tables.nowhere"), "{}", ran.stderr);
    // Rows that were generated with one id distribution must not be reused for another one.
    for config in ["job.toml", "reuse.toml"] {
        place.done(&format!("train {config} --synthetic 2000 --run r --set epochs=1"));
        fs::remove_dir_all(place.path("r/checkpoints")).unwrap();
    }
    let made = |entry: std::io::Result<fs::DirEntry>| {
        entry.unwrap().file_name().to_string_lossy().starts_with("synthetic-2000")
    };
    assert_eq!(fs::read_dir(place.path("r/data")).unwrap().map(made).filter(|&m| m).count(), 2);
}

#[test]
fn the_synthetic_section_sets_bag_sizes() {
    let place = Place::new();
    let job = fs::read_to_string(place.path("job.toml")).unwrap();
    let sized = format!("{job}\n[synthetic.bag_sizes]\na = 2\nb = 3\n");
    fs::write(place.path("sized.toml"), sized).unwrap();
    place.done("data synth made.csv --layout csv --config sized.toml --rows 50");
    let text = fs::read_to_string(place.path("made.csv")).unwrap();
    for line in text.lines().skip(1) {
        let ids: Vec<usize> = line.split(',').map(|field| field.split('|').count()).collect();
        assert_eq!(ids[ids.len() - 2..], [2, 3], "{line}");
    }
    let train = "--synthetic 2000 --run sized --set epochs=1";
    place.done(&format!("train sized.toml {train}"));
    // Criteo's format has one id per feature, so rows with bags are generated as CSV.
    let small = "--set rows_cap=100 --set batch_size=64 --synthetic 512 --run dcn --set steps=2";
    place.done(&format!("train dlrm-dcnv2 {small}"));
    fs::write(place.path("none.toml"), format!("{job}\n[synthetic.bag_sizes]\nz = 2\n")).unwrap();
    let ran = place.run("train none.toml --synthetic 2000 --run none");
    assert!(ran.stderr.contains("synthetic.bag_sizes.z: no such feature"), "{}", ran.stderr);
}

#[test]
fn malformed_lines_are_counted_or_refused() {
    let place = Place::new();
    let mut text = fs::read_to_string(place.path("train.csv")).unwrap();
    text.push_str("1,not a number,3,4,k5\n");
    fs::write(place.path("train.csv"), text).unwrap();
    let line = format!("train.csv:{}", ROWS + 2);
    let ran = place.done("data convert train.csv --config job.toml --out a");
    assert!(ran.stderr.contains("1 malformed") && ran.stderr.contains(&line), "{}", ran.stderr);
    let strict = place.run("data convert train.csv --config job.toml --out b --strict");
    assert_eq!(strict.code, Some(1), "{}", strict.stderr);
    assert!(strict.stderr.contains(&line), "{}", strict.stderr);
}

#[test]
fn stats_of_files_and_of_a_prepared_folder_agree() {
    let place = Place::new();
    place.done("data convert train.csv --config job.toml --out prepared");
    let files = place.done("data stats train.csv --config job.toml --format json").last();
    let folder = place.done("data stats prepared --format json").last();
    assert_eq!(files["rows"], ROWS, "{files}");
    assert_eq!(folder["rows"], ROWS, "{folder}");
    assert_eq!(files["click_rate"], folder["click_rate"]);
}

#[test]
fn one_probability_per_row_in_order() {
    let place = Place::new();
    place.done("train job.toml --train train.csv --run run");
    let all = place.done("score run train.csv").stdout;
    let scores: Vec<f64> = all.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(scores.len() as u64, ROWS);
    assert!(scores.iter().all(|score| (0.0..=1.0).contains(score)));
    assert!(mean_of_label(&place, &scores, "1") > mean_of_label(&place, &scores, "0") + 0.1);

    let text = fs::read_to_string(place.path("train.csv")).unwrap();
    assert_eq!(all, pipe(&place, "score run -", text.as_bytes()).stdout);
    place.done("score run train.csv --output scores.txt");
    assert_eq!(fs::read_to_string(place.path("scores.txt")).unwrap(), all);
}

#[test]
fn a_malformed_row_gets_nan_and_shifts_no_other_row() {
    let place = Place::new();
    place.done("train job.toml --train train.csv --run run");
    let text = fs::read_to_string(place.path("train.csv")).unwrap();
    let mut lines: Vec<&str> = text.lines().take(11).collect();
    let good = pipe(&place, "score run -", lines.join("\n").as_bytes());
    lines.insert(4, "0,not a number,1,2,k3");
    let ran = pipe(&place, "score run -", lines.join("\n").as_bytes());
    let mut scores: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(scores.remove(3), "nan", "{}", ran.stdout);
    assert_eq!(scores, good.stdout.lines().collect::<Vec<_>>());
    assert!(ran.stderr.contains("1 row"), "{}", ran.stderr);
    let strict = pipe(&place, "score run - --strict", lines.join("\n").as_bytes());
    assert_eq!(strict.code, Some(1), "{}", strict.stderr);
}

#[test]
fn score_keeps_its_input_and_on_failure_its_output() {
    let place = Place::new();
    place.done("train job.toml --train train.csv --run run");
    let text = fs::read_to_string(place.path("train.csv")).unwrap();
    let refused = place.run("score run train.csv --output ./train.csv");
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert_eq!(fs::read_to_string(place.path("train.csv")).unwrap(), text);

    fs::write(place.path("bad.csv"), format!("{text}1,not a number,3,4,k5\n")).unwrap();
    fs::write(place.path("scores.txt"), "of yesterday").unwrap();
    let failed = place.run("score run bad.csv --output scores.txt --strict");
    assert_eq!(failed.code, Some(1), "{}", failed.stderr);
    assert_eq!(fs::read_to_string(place.path("scores.txt")).unwrap(), "of yesterday");
    assert_eq!(place.names("scores.txt"), ["scores.txt"]);
    place.done("score run bad.csv --output scores.txt");
    let scores = fs::read_to_string(place.path("scores.txt")).unwrap();
    assert_eq!(scores.lines().count() as u64, ROWS + 1);
    place.done("score run train.csv --output /dev/null");
}

fn pipe(place: &Place, words: &str, input: &[u8]) -> ProgramOutput {
    let mut command = place.command(words);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        // A command that refuses its input closes the pipe before all of it is written, so errors
        // are ignored.
        scope.spawn(move || drop(stdin.write_all(input)));
        ProgramOutput::from(child.wait_with_output().unwrap())
    })
}

fn mean_of_label(place: &Place, scores: &[f64], label: &str) -> f64 {
    let text = fs::read_to_string(place.path("train.csv")).unwrap();
    let labels = text.lines().skip(1).map(|line| line.split(',').next().unwrap());
    let chosen: Vec<f64> =
        labels.zip(scores).filter(|(l, _)| *l == label).map(|(_, &score)| score).collect();
    chosen.iter().sum::<f64>() / chosen.len() as f64
}

#[test]
fn simulated_caches_miss_less_with_more_rows() {
    let place = Place::new();
    place.done("data convert train.csv --config job.toml --out prepared");
    let words = "data cache prepared --config job.toml --set model.tables.a.rows=3000";
    for policy in ["lru", "lfu"] {
        let sizes = "--sizes 2.2%,20% --svg misses.svg --format json";
        let got = place.done(&format!("{words} --policy {policy} {sizes}")).last();
        let table = &got["tables"][0];
        assert_eq!((&table["table"], &table["rows"]), (&"a".into(), &3000.into()), "{got}");
        // Column `a` has 50 distinct ids, which all fit into the larger cache after the first half
        // of the batches.
        assert_eq!(table["points"][1]["miss_ratio"], 0.0, "{got}");
        let [few, many] = [0, 1].map(|at| table["points"][at]["missed"].as_u64().unwrap());
        assert!(few >= many, "{got}");
        assert_eq!(got["small_tables"], serde_json::json!(["b"]), "{got}");
        let svg = fs::read_to_string(place.path("misses.svg")).unwrap();
        assert_eq!(svg.matches("<polyline").count(), 1, "{svg}");
    }
    let text = place.done(&format!("{words} --sizes 20%")).stdout;
    assert!(text.contains("0.00 %"), "{text}");
    place.refused(&format!("{words} --sizes 1"), &["write 1% or 100%"]);
    place.refused(&format!("{words} --sizes 0%"), &["without rows"]);
    let missing = place.run("data cache train.csv --config job.toml");
    assert_eq!(missing.code, Some(1), "{}", missing.stderr);
}
