//! Tests of `rowmill predict` with edits: the examples on the pages of transforms, saved pages, the
//! server, the ranking of what to speed up next, and findings by simulation.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;
use testkit::fixture;

use crate::fixture::Place;
use crate::predict::place;
use crate::report::{get, serve};

/// Reads the examples from the pages of transforms. Returns the kind and the edits file of each
/// example.
fn examples() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/transforms");
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let kind = entry.file_stem().unwrap().to_string_lossy().into_owned();
        if kind == "README" {
            continue;
        }
        let page = fs::read_to_string(&entry).unwrap();
        let (_, rest) =
            page.split_once("```toml\n").unwrap_or_else(|| panic!("{kind}: no example"));
        let (example, _) = rest.split_once("```").unwrap();
        assert!(example.contains(&format!("kind = \"{kind}\"")), "{kind}: {example}");
        found.push((kind, example.to_owned()));
    }
    found.sort();
    found
}

#[test]
fn every_transform_has_a_page_whose_example_runs() {
    let examples = examples();
    let help = place().done("predict what-if --help").stdout;
    for (kind, _) in &examples {
        assert!(help.contains(&format!("\n  {kind} ")), "{kind}: {help}");
    }
    assert_eq!(examples.len(), 16);
    let Some(job) = fixture::path("traces/dlrm8") else { return };
    let job = job.join("dlrm_kineto.tar.gz");
    let place = Place::new();
    fs::write(place.path("none.toml"), "").unwrap();
    let mut words =
        format!("predict what-if {} --draws 1 --format json --edits none.toml", job.display());
    // Recordings do not contain the tensors that `resize` changes.
    for (kind, example) in examples.iter().filter(|(kind, _)| kind != "resize") {
        fs::write(place.path(&format!("{kind}.toml")), example).unwrap();
        words += &format!(" --edits {kind}.toml");
    }
    let ran = place.done(&words);
    let network = "scale-ranks to 16: collectives are priced by the bandwidth and latency";
    assert!(ran.stderr.contains(network), "{}", ran.stderr);
    let rows = ran.json();
    let rows = rows.as_array().unwrap();
    // The host limits the step time of this job, so a changed kernel may change only the device's
    // time.
    let of = |kind: &str| -> Vec<String> {
        let rows = rows.iter().filter(|row| row["edits"] == kind);
        rows.map(|row| format!("{} {} {}", row["step_ns"], row["busy_ns"], row["idle_pct"]))
            .collect()
    };
    for (kind, _) in &examples {
        assert_ne!(of(kind), of("none"), "{kind} changes nothing");
    }
    let ranks: BTreeSet<u64> = rows
        .iter()
        .filter(|row| row["edits"] == "scale-ranks")
        .map(|row| row["rank"].as_u64().unwrap())
        .collect();
    assert_eq!(ranks, (0..16).collect());
}

#[test]
fn a_predicted_step_is_compared_with_measured_ones() {
    let place = place();
    place.done("predict step t.json --calibration c.json --write-trace said");
    let rows = place.done("predict evaluate said --measured t.json --format json").json();
    assert_eq!(
        (&rows[0]["name"], &rows[0]["error_pct"]),
        (&"rank 0".into(), &0.0.into()),
        "{rows}"
    );
    let kernel = &rows[1];
    assert_eq!((&kernel["name"], &kernel["measured_ns"]), (&"gemm".into(), &10_000.into()));
    // In the second recording, the kernel takes twice as long and has another name.
    let text = fs::read_to_string(place.path("t.json")).unwrap();
    let slow = text.replace("\"dur\":10,", "\"dur\":20,").replace("\"gemm\"", "\"mmeg\"");
    fs::write(place.path("slow.json"), slow).unwrap();
    let rows = place.done("predict evaluate said --measured slow.json --format json").json();
    // Kernels of other names are compared by their sum.
    let sum = &rows[1];
    assert_eq!(sum["name"], "all device work", "{rows}");
    assert_eq!((&sum["predicted_ns"], &sum["error_pct"]), (&10_000.into(), &(-50.0).into()));
}

#[test]
fn the_best_three_changes_of_a_configuration_are_made() {
    if !testkit::has_time("three changes of a configuration") {
        return;
    }
    let place = Place::new();
    let words = "tune dlrm-ddp --set model.rows_cap=100 --set batch_size=32 --steps 2 --threads 2";
    let ran = place.done(&format!("{words} --format json"));
    let rows = ran.json();
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), 7);
    let number =
        |row: &Value, key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key}: {row}"));
    let speeds: Vec<f64> = rows.iter().map(|row| number(row, "predicted_samples_per_s")).collect();
    assert!(speeds.is_sorted_by(|a, b| a >= b), "{speeds:?}");
    for (at, row) in rows.iter().enumerate() {
        assert!((number(row, "batch_size"), number(row, "ranks")) != (32.0, 1.0), "{row}");
        if at >= 3 {
            assert_eq!(row["measured_ns"], Value::Null, "{row}");
            continue;
        }
        let (said, made) = (number(row, "predicted_ns"), number(row, "measured_ns"));
        assert!((number(row, "error_pct") - 100.0 * (said - made) / made).abs() < 0.01, "{row}");
    }
    assert!(ran.stderr.contains("7 changes predicted before any was run"), "{}", ran.stderr);
    assert!(ran.stderr.contains("verdict: "), "{}", ran.stderr);
}

#[test]
fn what_to_make_faster_next_is_ranked() {
    let rows = place().done("predict next t.json --format json").json();
    let gradients: Vec<i64> =
        rows.as_array().unwrap().iter().map(|row| row["gradient_ns"].as_i64().unwrap()).collect();
    assert!(gradients.is_sorted_by(|a, b| a >= b) && gradients[0] > 0, "{rows}");
    // The host takes longer than the kernel, so a faster kernel must not shorten the step.
    let kernel = rows.as_array().unwrap().iter().find(|row| row["name"] == "gemm").unwrap();
    assert_eq!((&kernel["gradient_ns"], &kernel["subject"]), (&0.into(), &"work".into()));
}

#[test]
fn findings_are_priced_by_a_simulation_that_is_named() {
    let Some(job) = fixture::path("traces/dlrm8") else { return };
    let place = Place::new();
    let ran =
        place.done(&format!("predict next {} --by finding --top 0 --format json", job.display()));
    assert!(ran.stderr.contains("findings by a simulation of step 0"), "{}", ran.stderr);
    let rows = ran.json();
    let rows = rows.as_array().unwrap();
    let key = |row: &Value| (row["severity"].as_str().unwrap().to_owned(), row["source"].clone());
    let sources: BTreeSet<&str> = rows.iter().map(|row| row["source"].as_str().unwrap()).collect();
    assert_eq!(sources, BTreeSet::from(["recording", "simulation"]));
    for pair in rows.windows(2).filter(|pair| key(&pair[0]).0 == key(&pair[1]).0) {
        let is_mixed = pair[0]["source"] == "recording" && pair[1]["source"] == "simulation";
        assert!(!is_mixed, "{pair:?}");
    }
    let kept = rows.iter().filter(|row| row["source"] == "recording");
    kept.for_each(|row| assert_eq!(row["saving_ns"], row["recorded_saving_ns"], "{row}"));
    // All percentages refer to one step.
    let number = |row: &Value, key: &str| row[key].as_f64().unwrap();
    let large = rows.iter().filter(|row| number(row, "saving_pct") > 1.0);
    let steps: Vec<f64> =
        large.map(|row| number(row, "saving_ns") / number(row, "saving_pct")).collect();
    assert!(steps.iter().all(|ns| (ns / steps[0] - 1.0).abs() < 2e-3), "{steps:?}");
}

#[test]
fn edits_of_execution_traces_follow_tensors() {
    let place = Place::new();
    let suite = "bench/record/nvidia-h100-80gb-hbm3/partial-suite/collect";
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(suite);
    let job = |name: &str| root.join(name).join("execution.json.gz").display().to_string();
    let edit = |text: &str| format!("[[edit]]\nkind = {text}\n");
    let files = [
        ("fuse", "\"fuse\"\noperators = \"aten::embedding_bag\"".to_owned()),
        (
            "back",
            format!(
                "\"resize\"\nfrom = 2048\nto = 4096\n{}",
                edit("\"resize\"\nfrom = 4096\nto = 2048")
            ),
        ),
        ("streams", "\"parallelise\"\noperators = \"aten::embedding_bag\"".to_owned()),
        ("gone", "\"remove\"\noperators = \"aten::embedding_bag\"".to_owned()),
        ("factor", "\"fuse\"\noperators = \"aten::embedding_bag\"\nfactor = 0.5".to_owned()),
        ("width", "\"resize\"\nfrom = 1024\nto = 2048".to_owned()),
        (
            "same",
            "\"replace\"\noperators = \"aten::linear[2..]\"\nwith = \"aten::linear[1]\"".to_owned(),
        ),
        ("other", "\"replace\"\noperators = \"aten::linear\"\nwith = \"aten::relu\"".to_owned()),
    ];
    for (name, text) in &files {
        fs::write(place.path(&format!("{name}.toml")), edit(text)).unwrap();
    }
    let examples = examples();
    let (_, example) = examples.iter().find(|(kind, _)| kind == "resize").unwrap();
    fs::write(place.path("larger.toml"), example).unwrap();
    fs::write(place.path("none.toml"), "").unwrap();
    let words = |name: &str| {
        let job = job(name);
        format!("predict what-if --execution-trace {job} --hardware h100 --draws 1 --format json")
    };
    let all = " --edits fuse.toml --edits larger.toml --edits back.toml --edits streams.toml --edits gone.toml --edits same.toml";
    let rows = place.done(&(words("dlrm-default-p100-bags-b2048") + all)).json();
    let field = |at: usize, name: &str| rows[at][name].as_f64().unwrap();
    let base = field(0, "base_ns");
    // One lookup of eight tables takes less time than eight lookups.
    assert!(field(0, "saving_ns") >= 0.0, "{rows}");
    // This job is bound by its device. Recorded steps take 3.65 ms at 2048 and 6.72 ms at 4096.
    let ratio = field(1, "step_ns") / base;
    assert!((1.6..2.2).contains(&ratio), "{ratio}: {rows}");
    assert!((field(2, "step_ns") / base - 1.0).abs() < 0.01, "{rows}");
    assert!(
        field(3, "step_ns") <= 1.01 * base && field(3, "busy_ns") < field(1, "busy_ns"),
        "{rows}"
    );
    assert!(field(4, "saving_ns") > 0.0, "{rows}");
    // A copy of another layer has the sizes of the layer that it replaces.
    assert_eq!(field(5, "step_ns"), base, "{rows}");
    let refused = words("dlrm-default-p1-bags-b2048");
    place.refused(&format!("{refused} --edits factor.toml"), &["no factor", "0.5"]);
    place.refused(&format!("{refused} --edits width.toml"), &["no parameter", "1024"]);
    let tensors = ["reads 1 tensors and writes 1", "reads 3 tensors and writes 1"];
    place.refused(&format!("{refused} --edits other.toml"), &tensors);
    // Products of weights' gradients have the batch as their last dimension, which is outermost.
    fs::write(place.path("half.toml"), edit("\"resize\"\nfrom = 32\nto = 16")).unwrap();
    let rows = place.done(&format!("{} --edits half.toml", words("transformer-b32"))).json();
    let full = place.done(&format!("{} --edits none.toml", words("transformer-b32"))).json();
    let busy = |rows: &Value| rows[0]["busy_ns"].as_f64().unwrap();
    assert!((0.4..0.7).contains(&(busy(&rows) / busy(&full))), "{rows} {full}");
    // The host binds at one id per bag, so a fused lookup saves the calls of seven.
    let rows = place.done(&format!("{refused} --edits fuse.toml")).json();
    assert!(rows[0]["saving_ns"].as_f64().unwrap() > 100_000.0, "{rows}");
    let Some(job) = fixture::path("traces/dlrm8/dlrm_pytorch_et.tar.gz") else { return };
    fs::write(place.path("bags.toml"), edit("\"resize\"\nfrom = 16\nto = 32")).unwrap();
    let words = format!(
        "predict what-if --execution-trace {} --hardware v100-sxm2x8 --edits bags.toml",
        job.display()
    );
    // The rows of this job's tables are as wide as its batch.
    place.refused(&words, &["no parameter", "16"]);
}

#[test]
fn a_saved_page_shows_a_prediction_without_a_server() {
    let place = place();
    let edits = "[[edit]]\nkind = \"remove\"\noperators = \"aten::mm\"\n";
    fs::write(place.path("e.toml"), edits).unwrap();
    place.done("predict what-if t.json --edits e.toml --page p.html");
    let page = fs::read_to_string(place.path("p.html")).unwrap();
    assert!(page.contains("id=\"server\">null<") && !page.contains("connect-src"), "{page}");
    assert!(page.contains("aten::mm") && page.contains("operators = \\\"aten::mm\\\""), "{page}");
    place.done("predict what-if t.json --edits e.toml --page q.html");
    assert_eq!(page, fs::read_to_string(place.path("q.html")).unwrap());
}

/// Percent-encodes a text, as browsers do in addresses.
fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

#[test]
fn the_server_answers_edits_only_with_the_secret_address() {
    let place = place();
    let mut served = serve(&place, "predict serve t.json");
    let address = served.address.strip_prefix("http://").unwrap().to_owned();
    let (host, path) = address.split_once('/').unwrap();
    assert!(host.starts_with("127.0.0.1:"), "{host}");
    let page = get(host, &format!("/{path}"), host);
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("connect-src 'self'"), "{page}");
    let ask = |edits: &str| -> Value {
        let answer = get(host, &format!("/{path}edit?{}", encoded(edits)), host);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    };
    let row = |answer: &Value| answer["ranks"][0]["row"].clone();
    let none = row(&ask("[]"));
    assert_eq!((&none["saving_ns"], &none["step_ns"]), (&0.into(), &50_000.into()));
    let removed = ask(r#"[{"kind":"remove","operators":"aten::mm"}]"#);
    assert!(row(&removed)["saving_ns"].as_i64().unwrap() > 20_000, "{removed}");
    assert!(removed["edits"].as_str().unwrap().contains("kind = \"remove\""), "{removed}");
    let wrong = ask(r#"[{"kind":"remove","operators":"aten::m"}]"#);
    assert!(wrong["error"].as_str().unwrap().contains("similar: aten::mm"), "{wrong}");
    assert!(ask("remove all")["error"].as_str().unwrap().contains("expected a list of edits"));
    assert!(get(host, "/edit?%5B%5D", host).starts_with("HTTP/1.1 404"));
    assert!(get(host, &format!("/{path}"), "evil.example").starts_with("HTTP/1.1 403"));
    served.interrupt();
}

/// The remedy of a rule becomes edits, whose predicted gain is that of the change that was really
/// made to the recorded job: one lookup for all tables.
#[test]
fn the_remedy_of_a_finding_is_predicted_as_it_was_measured() {
    let place = Place::new();
    let predicted = |path: &Path| {
        let path = path.display();
        place.done(&format!("trace findings {path} --write-edit K10 --output k10.toml"));
        let words = format!("predict what-if {path} --edits k10.toml --draws 1 --format json");
        let row = place.done(&words).json()[0].clone();
        (row["saving_ns"].as_f64().unwrap() / 1e3, row["saving_pct"].as_f64().unwrap())
    };
    let record = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/record");
    let h100 = record.join("nvidia-h100-80gb-hbm3/partial-suite/collect");
    for model in ["dlrm-default", "dlrm-ddp"] {
        let median_us = |form: &str| {
            let path = h100.join(format!("{model}-p1-{form}-b2048/times.json"));
            let times: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
            times["step_us"]["median"].as_f64().unwrap()
        };
        let measured = 100.0 * (1.0 - median_us("batched") / median_us("bags"));
        let (_, gain) = predicted(&h100.join(format!("{model}-p1-bags-b2048/kineto.json.gz")));
        assert!((gain / measured - 1.0).abs() < 0.25, "{gain} % instead of {measured} %");
    }
    let cases = record.join("amd-epyc-2cpu/suite/cases");
    let before = cases.join("many-embedding-bags/before.json.gz");
    let table = fs::read_to_string(cases.join("antipatterns.csv")).unwrap();
    let median_us = |variant: &str| -> f64 {
        let line =
            table.lines().find(|line| line.starts_with(&format!("many-embedding-bags,{variant},")));
        line.unwrap().split(',').nth(4).unwrap().parse().unwrap()
    };
    let measured = median_us("before") - median_us("after");
    // The profiler makes steps of this small job a third longer, so times are compared, not shares.
    let (gain, _) = predicted(&before);
    assert!((gain / measured - 1.0).abs() < 0.25, "{gain} us instead of {measured} us");
    let path = before.display();
    let unknown = place.run(&format!("trace findings {path} --write-edit C01"));
    assert!(unknown.stderr.contains("expected a rule with a finding, got H11"), "{unknown:?}");
}
