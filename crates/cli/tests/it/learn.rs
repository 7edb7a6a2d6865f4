//! Tests of `rowmill predict learn`, and of step times that the learned models predict.

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
    // The tables have 8 x 80,000 x 128 values of 4 bytes. The rest of the training needs memory in
    // addition.
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
    // A step of the first run is repeated in the second file. The repeated step must be counted
    // once.
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
    place.refused(&format!("{step} nowhere"), &["similar names are "]);
    place.refused(&format!("{step} empty"), &["\"empty\"", "similar names are "]);
    place.refused(
        &format!("{step} old.json"),
        &["old.json", "version 5, got version 0", "predict learn FOLDER --output NEW"],
    );
    place.refused("predict learn text.jsonl --output out", &["text.jsonl", "line 1"]);
    let missing = place.run("predict learn missing.jsonl --output out");
    assert_eq!(missing.code, Some(1), "{}", missing.stderr);
    assert!(missing.stderr.contains("missing.jsonl: cannot read"), "{}", missing.stderr);
}

/// Writes a recorded suite of a GPU whose matrix products reach 10 TFLOP/s and whose passes over
/// memory reach 700 GB/s.
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
    assert!(number(&own, "device_ns") != number(&usual, "device_ns"));
    assert!((0.3..3.0).contains(&(number(&own, "device_ns") / number(&usual, "device_ns"))));
    place.done("predict step suite/t.json --calibration gpu/calibration.json");
}

#[test]
fn a_suite_of_an_unknown_gpu_or_of_another_version_is_refused() {
    let place = Place::new();
    suite(&place, "Tesla V1000");
    place.refused("predict learn suite --output gpu", &["Tesla V1000", "similar names are "]);
    let list = fs::read_to_string(place.path("suite/suite.json")).unwrap();
    let newer = list.replace("\"version\":1", "\"version\":7");
    fs::write(place.path("suite/suite.json"), newer).unwrap();
    place.refused("predict learn suite --output gpu", &["suite.json", "version 7"]);
    assert!(!place.path("gpu/hardware.json").exists());
}
