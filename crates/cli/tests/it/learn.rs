//! `rowmill predict learn`, and step times predicted with the trained models.

use std::fs;
use std::io::Write;
use std::path::Path;

use serde_json::Value;

use crate::fixture::Place;

/// Steps that were measured on one CPU and are stored in the repository.
const RECORD: &str = "../../testdata/cpu_steps/steps.jsonl";

fn row(place: &Place, words: &str) -> Value {
    let ran = place.done(&format!("{words} --format json"));
    let read: Value = serde_json::from_str(&ran.stdout).unwrap();
    read.get(0).cloned().unwrap_or(read)
}

fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or_else(|| panic!("{key} of {row}"))
}

#[test]
fn measured_steps_become_hardware_that_prices_any_step_without_a_trace() {
    let record = Path::new(env!("CARGO_MANIFEST_DIR")).join(RECORD);
    let place = Place::new();
    fs::copy(record, place.path("steps.jsonl")).unwrap();
    let learned = row(&place, "predict learn steps.jsonl --output cpu");
    let kinds = learned["kinds"].as_array().unwrap();
    let of = |name: &str| kinds.iter().find(|kind| kind["kind"] == name).unwrap();
    for name in ["embedding_forward", "embedding_backward", "gemm_forward", "loss"] {
        let kind = of(name);
        assert!(number(kind, "judged") > 3.0 && number(kind, "gmae_pct") < 60.0, "{kind}");
    }
    let size = fs::metadata(place.path("cpu/hardware.json")).unwrap().len();
    assert!(size < 300_000, "{size} bytes");

    let step = "predict step --model dlrm-ddp --hardware cpu --batch-size";
    let (small, large) =
        (row(&place, &format!("{step} 512")), row(&place, &format!("{step} 2048")));
    assert!(number(&small, "low_ns") < number(&small, "step_ns"));
    assert!(number(&small, "step_ns") < number(&small, "high_ns"));
    let ratio = number(&large, "step_ns") / number(&small, "step_ns");
    assert!((2.0..6.0).contains(&ratio), "{ratio}");
    // Tables of 8 x 80,000 x 128 values, and what is trained beside them.
    assert!((330e6..2e9).contains(&number(&small, "peak_bytes")), "{small}");
    assert!(small["fits"].as_bool().unwrap());
    let ranks = row(&place, &format!("{step} 2048 --ranks 2 --by rank"));
    assert!(number(&ranks, "exchange_ns") > 0.0);
    let mut packed = Vec::new();
    let text = fs::read(place.path("steps.jsonl")).unwrap();
    trace::packed::gzip(&mut packed, |out| out.write_all(&text)).unwrap().flush().unwrap();
    fs::write(place.path("steps.jsonl.gz"), packed).unwrap();
    let again = place.done("predict learn steps.jsonl.gz --output again");
    assert!(again.stdout.contains("embedding_backward"), "{}", again.stdout);
    let both =
        ["cpu", "again"].map(|at| fs::read(place.path(&format!("{at}/hardware.json"))).unwrap());
    assert_eq!(both[0], both[1]);
    place.done("predict sweep --model dlrm-ddp --hardware cpu,a100 --batch-size 512");
}

#[test]
fn several_runs_on_one_machine_are_learned_from_together() {
    let record = Path::new(env!("CARGO_MANIFEST_DIR")).join(RECORD);
    let text = fs::read_to_string(record).unwrap();
    let (head, lines) = text.split_once('\n').unwrap();
    let lines: Vec<&str> = lines.lines().collect();
    let (first, rest) = lines.split_at(lines.len() / 2);
    let place = Place::new();
    fs::create_dir(place.path("run1")).unwrap();
    let run = |lines: &[&str]| format!("{head}\n{}\n", lines.join("\n"));
    fs::write(place.path("run1/steps.jsonl"), run(first)).unwrap();
    // A step of the first run is repeated in the second file, and must count once.
    fs::write(place.path("run2.jsonl"), run(&[&first[..1], rest].concat())).unwrap();
    fs::write(place.path("whole.jsonl"), &text).unwrap();
    place.done("predict learn whole.jsonl --output whole");
    place.done("predict learn run1 run2.jsonl --output joined");
    let learned = |at: &str| fs::read(place.path(at)).unwrap();
    assert_eq!(learned("joined/hardware.json"), learned("whole/hardware.json"));
    let joined = fs::read_to_string(place.path("joined/steps.jsonl")).unwrap();
    assert_eq!(joined.lines().count(), 1 + lines.len(), "the measurements are kept");
    place.done("predict learn joined --output again");
    assert_eq!(learned("again/hardware.json"), learned("whole/hardware.json"));

    let other = head.replacen("\"threads\":2", "\"threads\":3", 1);
    assert_ne!(other, head);
    fs::write(place.path("three.jsonl"), format!("{other}\n{}\n", rest.join("\n"))).unwrap();
    let words = "predict learn run1 three.jsonl --output no";
    let expected = ["three.jsonl", "one machine", "with 2 threads", "with 3 threads", "hint: "];
    place.refused(words, &expected);
    fs::create_dir(place.path("suite")).unwrap();
    fs::write(place.path("suite/suite.json"), "{}").unwrap();
    let words = "predict learn run1 suite --output no";
    place.refused(words, &["suite: ", "expected a recorded suite alone, got run1 too"]);
    assert!(!place.path("no").exists(), "nothing is written");
}

#[test]
fn measurements_are_kept_if_they_are_too_few_to_train_on() {
    if !testkit::has_time("measuring two configurations and three tables") {
        return;
    }
    let place = Place::new();
    let words = "predict learn --configurations 2 --tables 3 --output few";
    place.refused(words, &["expected at least 20", "got "]);
    let text = fs::read_to_string(place.path("few/steps.jsonl")).unwrap();
    assert_eq!(text.lines().count(), 6, "{text}");
    assert!(text.lines().nth(1).unwrap().contains("embedding_forward"), "{text}");
    let tables: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(tables["rounds"].as_array().unwrap().len(), 6, "{tables}");
    assert!(!place.path("few/hardware.json").exists());
}

#[test]
fn unknown_hardware_is_refused_with_a_list_of_the_known() {
    let place = Place::new();
    fs::create_dir(place.path("empty")).unwrap();
    fs::write(place.path("old.json"), r#"{"rowmill_cpu": 0}"#).unwrap();
    fs::write(place.path("text.jsonl"), "no steps\n").unwrap();
    let step = "predict step --model dlrm-ddp --hardware";
    place.refused(&format!("{step} nowhere"), &["like it: "]);
    place.refused(&format!("{step} empty"), &["\"empty\"", "like it: "]);
    place.refused(
        &format!("{step} old.json"),
        &["old.json", "version 3, got version 0", "predict learn FOLDER --output NEW"],
    );
    place.refused("predict learn text.jsonl --output out", &["text.jsonl", "line 1"]);
    let missing = place.run("predict learn missing.jsonl --output out");
    assert_eq!(missing.code, Some(1), "{}", missing.stderr);
    assert!(missing.stderr.contains("missing.jsonl: cannot read"), "{}", missing.stderr);
}

/// A suite of a V100 whose products reach 10 TFLOP/s and whose passes over memory 700 GB/s.
fn suite(place: &Place, gpu: &str) {
    fs::create_dir_all(place.path("suite/microbench")).unwrap();
    let header = "op,shape,dtype,kernel,median_us,p5_us,p95_us,samples,timer,kernels\n";
    let (mut gemm, mut add) = (header.to_owned(), header.to_owned());
    for m in [128u64, 512, 2048, 8192] {
        for (n, k) in [(256u64, 256u64), (1024, 512), (2048, 2048), (512, 4096), (4096, 1024)] {
            let us = 5.0 + (2 * m * n * k) as f64 / 10e6;
            gemm += &format!("gemm,m={m} n={n} k={k},float32,sgemm,{us},1,1,30,device,\n");
            gemm += &format!("gemm,m={m} n={n} k={k},bfloat16,hgemm,1,1,1,30,device,\n");
        }
    }
    for n in (10..27).map(|power| 1u64 << power) {
        let us = 2.0 + (12 * n) as f64 / 700e3;
        add += &format!("add,n={n},float32,add,{us},1,1,30,device,\n");
    }
    fs::write(place.path("suite/microbench/gemm.csv"), gemm).unwrap();
    fs::write(place.path("suite/microbench/add.csv"), add).unwrap();
    fs::write(place.path("suite/t.json"), crate::predict::trace(gpu)).unwrap();
    let list = serde_json::json!({
        "schema": "rowmill-suite", "version": 1, "device": "cuda",
        "environments": {"kernels": {"gpu": {"name": gpu}}},
        "files": [
            {"path": "microbench/gemm.csv", "kind": "microbench"},
            {"path": "microbench/add.csv", "kind": "microbench"},
            {"path": "t.json", "kind": "kineto"},
        ],
    });
    fs::write(place.path("suite/suite.json"), list.to_string()).unwrap();
}

#[test]
fn a_recorded_suite_becomes_kernel_models_rates_and_overheads_of_its_gpu() {
    let place = Place::new();
    suite(&place, "Tesla V100-SXM2-32GB");
    let learned = row(&place, "predict learn suite --output gpu");
    assert_eq!(learned["device"], "Tesla V100-SXM2-32GB", "{learned}");
    assert!(number(&learned, "overheads") > 0.0 && number(&learned, "recordings") == 1.0);
    let text = fs::read_to_string(place.path("gpu/hardware.json")).unwrap();
    let spec: Value = serde_json::from_str::<Value>(&text).unwrap()["spec"].clone();
    assert!((9e12..=10e12).contains(&number(&spec, "sustained_f32")), "{spec}");
    assert!((650e9..=700e9).contains(&number(&spec, "dram_sustained")), "{spec}");
    for name in ["linear.kernels", "element_wise.kernels", "calibration.json"] {
        assert!(place.path(&format!("gpu/{name}")).exists(), "{name}");
    }
    let step = "predict step --model dlrm-ddp --batch-size 2048 --hardware";
    let (own, usual) = (row(&place, &format!("{step} gpu")), row(&place, &format!("{step} v100")));
    assert!(number(&own, "step_ns") != number(&usual, "step_ns"));
    assert!((0.3..3.0).contains(&(number(&own, "step_ns") / number(&usual, "step_ns"))));
    place.done("predict step suite/t.json --calibration gpu/calibration.json");
}

/// Adds kernels with known times, plus or minus 2 % of noise, to a suite of an H200.
fn planted(place: &Place) {
    suite(place, "NVIDIA H200");
    let header = "op,shape,dtype,kernel,median_us,p5_us,p95_us,samples,timer,kernels\n";
    let mut files = vec!["microbench/add.csv".to_owned()];
    let mut add = |op: &str, dtype: &str, shapes: Vec<(String, f64)>| {
        let mut text = header.to_owned();
        for (at, (shape, ns)) in shapes.into_iter().enumerate() {
            let us = 1e-3 * ns * (1.0 + 0.02 * (7.0 * at as f64).sin());
            text += &format!("{op},{shape},{dtype},k,{us},1,1,30,device,\n");
        }
        fs::write(place.path(&format!("suite/microbench/{op}.csv")), text).unwrap();
        files.push(format!("microbench/{op}.csv"));
    };
    let mut lookups = Vec::new();
    for e in [1_000, 100_000, 1_000_000] {
        for t in [1, 8] {
            for b in [128, 512, 2048] {
                for l in [1, 10, 100] {
                    for d in [32, 128] {
                        let bags = f64::from(b * t);
                        let ns = 4_000.0 + bags * (0.5 + 0.1 * f64::from(l));
                        lookups.push((format!("e={e} t={t} b={b} l={l} d={d}"), ns));
                    }
                }
            }
        }
    }
    let twice = lookups.iter().map(|(shape, ns)| (shape.clone(), 2.0 * ns)).collect();
    add("embedding_forward", "float32", lookups);
    add("embedding_backward", "float32", twice);
    let sizes = || (7..14).flat_map(|power| [9, 27, 65].map(|t| (1 << power, t)));
    let wide: Vec<(String, f64)> = sizes()
        .flat_map(|(b, t)| [32, 64, 128].map(|d| (format!("b={b} t={t} d={d}"), b * t * d)))
        .map(|(shape, count)| (shape, 2_500.0 + 8.0 * f64::from(count) / 3_500.0))
        .collect();
    add("concat", "float32", wide.clone());
    add("transpose", "float32", wide);
    let pairs: Vec<(String, f64)> =
        sizes().map(|(b, t)| (format!("b={b} t={t}"), 3_000.0 + 0.5 * f64::from(b))).collect();
    add("tril_forward", "float32", pairs.clone());
    add("tril_backward", "float32", pairs);
    let copies = (8..28).map(|power| f64::from(1u32 << power));
    let copies = copies.map(|bytes| (format!("bytes={bytes}"), 1_500.0 + bytes / 50.0)).collect();
    add("memcpy_to_device_pinned", "uint8", copies);
    let mut products = Vec::new();
    for m in (7..14).map(|power| 1u64 << power) {
        for (n, k) in [(256u64, 256u64), (1024, 512), (2048, 2048), (512, 4096), (4096, 1024)] {
            let ns = 5_000.0 + (2 * m * n * k) as f64 / 10e3;
            products.push((format!("m={m} n={n} k={k}"), ns));
        }
    }
    add("gemm", "float32", products);
    let file = |path: &String| serde_json::json!({"path": path, "kind": "microbench"});
    let list = serde_json::json!({
        "schema": "rowmill-suite", "version": 1,
        "environments": {"kernels": {"gpu": {"name": "NVIDIA H200"}}},
        "files": files.iter().map(file).collect::<Vec<_>>(),
    });
    fs::write(place.path("suite/suite.json"), list.to_string()).unwrap();
}

#[test]
fn a_recorded_suite_gives_the_published_table_of_its_gpu() {
    let place = Place::new();
    planted(&place);
    let report = row(&place, "predict evaluate --kernels suite");
    assert_eq!(report["device"], "NVIDIA H200");
    let table = report["table"].as_array().unwrap();
    let named = |name: &str| table.iter().find(|row| row["kernel"] == name).unwrap();
    let names = ["EL-F", "EL-FL", "EL-FH", "EL-FHL", "EL-B", "EL-BL", "EL-BH", "EL-BHL", "concat"];
    let others = ["memcpy", "transpose", "tril-F", "tril-B"];
    for name in names.into_iter().chain(others) {
        let row = named(name);
        // The noise that was added.
        assert!(number(&row["all"], "mape_pct") < 3.0, "{row}");
        assert!(number(&row["twenty"], "mape_pct") < 6.0, "{row}");
        assert!(number(&row["no_rows"], "mape_pct") > number(&row["all"], "mape_pct"), "{row}");
        assert!((0.0..=100.0).contains(&number(row, "covered_pct")), "{row}");
        let paper = number(&row["paper"], "gmae_pct");
        let is_met = number(&row["all"], "gmae_pct") <= paper
            && number(&row["all"], "mape_pct") <= number(&row["paper"], "mape_pct");
        assert_eq!(row["is_met"], is_met, "{row}");
    }
    assert_eq!(named("EL-F")["is_met"], true);
    assert!(named("transpose")["published"].is_null(), "the paper has an MLP");
    // Models that expect the host's time in every row, which these rows lack.
    for name in ["GEMM", "element_wise"] {
        let row = named(name);
        assert!(number(&row["all"], "mape_pct") < 5.0, "{row}");
        assert!(number(&row["no_rows"], "mape_pct") > 20.0, "{row}");
    }
    // Fewer tables are beyond L2.
    assert!(number(named("EL-FL"), "shapes") < number(named("EL-F"), "shapes"));
    assert_eq!(number(named("EL-F"), "shapes"), 108.0);
    let text = place.done("predict evaluate --kernels suite").stdout;
    assert!(text.contains("EL-BHL") && text.contains("20 rows %"), "{text}");
    let words = "predict evaluate --kernels suite --leave-out";
    place.refused(words, &["a recorded suite alone"]);
    let list = fs::read_to_string(place.path("suite/suite.json")).unwrap();
    let cpu = list.replace("\"gpu\"", "\"cpu\"");
    fs::write(place.path("suite/suite.json"), cpu).unwrap();
    place.refused("predict evaluate --kernels suite", &["suite.json", "recorded on a GPU"]);
}

#[test]
fn a_suite_of_an_unknown_gpu_or_of_another_version_is_refused() {
    let place = Place::new();
    suite(&place, "Tesla V1000");
    place.refused("predict learn suite --output gpu", &["Tesla V1000", "like it: "]);
    let list = fs::read_to_string(place.path("suite/suite.json")).unwrap();
    let newer = list.replace("\"version\":1", "\"version\":7");
    fs::write(place.path("suite/suite.json"), newer).unwrap();
    place.refused("predict learn suite --output gpu", &["suite.json", "version 7"]);
    assert!(!place.path("gpu/hardware.json").exists());
}
