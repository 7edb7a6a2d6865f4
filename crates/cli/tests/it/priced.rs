//! Tests of steps that are predicted without a recording: `predict step --model` and
//! `predict sweep`.

use std::fs;

use serde_json::Value;

use crate::fixture::Place;

fn rows(place: &Place, words: &str) -> Vec<Value> {
    let ran = place.done(&format!("{words} --format json"));
    let read: Value = serde_json::from_str(&ran.stdout).unwrap();
    match read {
        Value::Array(rows) => rows,
        row => vec![row],
    }
}

fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or_else(|| panic!("{key} of {row}"))
}

#[test]
fn a_step_is_priced_from_its_configuration_alone() {
    let place = Place::new();
    let step = "predict step --model dlrm-mlperf --hardware a100-sxm4-80gbx8 --batch-size 16384";
    let row = &rows(&place, step)[0];
    assert!(number(row, "low_ns") < number(row, "step_ns"));
    assert!(number(row, "step_ns") < number(row, "high_ns"));
    let speed = 16_384.0 * 1e9 / number(row, "step_ns");
    assert!((number(row, "samples_per_s") / speed - 1.0).abs() < 1e-6);
    assert!(row["fits"].as_bool().unwrap() && number(row, "max_batch_size") > 16_384.0);
    let stages = rows(&place, &format!("{step} --by stage"));
    let sum: f64 = stages.iter().map(|stage| number(stage, "mean_ns")).sum();
    assert!((sum / number(row, "step_ns") - 1.0).abs() < 1e-6, "{stages:?}");
    let waiting = stages.last().unwrap();
    assert_eq!(waiting["stage"], "waiting_for_host");
    let host_ns = number(row, "step_ns") - number(row, "device_ns");
    assert!((number(waiting, "mean_ns") - host_ns).abs() < 1.0, "{waiting}");
    for stage in stages.iter().filter(|stage| number(stage, "mean_ns") > 0.0) {
        assert!(number(stage, "low_ns") < number(stage, "high_ns"), "{stage}");
        assert!(number(stage, "mean_ns") < number(stage, "high_ns"), "{stage}");
    }
    let both = number(row, "device_ns").max(number(row, "host_ns"));
    assert!((both / number(row, "step_ns") - 1.0).abs() < 1e-6, "{row}");
    let ranks = rows(&place, &format!("{step} --by rank"));
    assert_eq!(ranks.len(), 8);
    let peak = ranks.iter().map(|rank| number(rank, "total_bytes")).fold(0.0, f64::max);
    assert_eq!(peak, number(row, "peak_bytes"));
    // The tables have 33,762,577 rows of 32 values, each with 4 bytes.
    let weights: f64 = ranks.iter().map(|rank| number(rank, "weight_bytes")).sum();
    assert_eq!(weights, 33_762_577.0 * 32.0 * 4.0);
    let memory = rows(&place, &format!("{step} --by memory"));
    assert_eq!(memory.iter().map(|part| number(part, "bytes")).sum::<f64>(), peak);
    let kinds = row["bytes_by_kind"].as_object().unwrap();
    assert_eq!(kinds.values().map(|bytes| bytes.as_f64().unwrap()).sum::<f64>(), peak);
    assert_eq!(kinds["table_weights"], number(&memory[0], "bytes") as u64);
    assert_eq!(number(row, "memory_bytes"), 80.0 * f64::from(1u32 << 30));
    let domain = row["domain"].as_object().unwrap();
    let shares: f64 = domain.values().map(|share| share.as_f64().unwrap()).sum();
    assert!((shares - 100.0).abs() < 1e-6, "{row}");
    assert_eq!(domain["measured_pct"], row["measured_pct"]);
    let ops = rows(&place, &format!("{step} --by op"));
    assert!(ops.iter().any(|op| op["op"] == "all_reduce"), "{ops:?}");
    // With a millisecond per launch, the host's launches must determine the step time.
    let slow = &rows(&place, &format!("{step} --launch-us 1000"))[0];
    assert_eq!(number(slow, "step_ns"), 1e6 * number(slow, "launches"));
    let free = &rows(&place, &format!("{step} --launch-us 0"))[0];
    assert_eq!((number(free, "step_ns"), number(free, "host_ns")), (number(row, "device_ns"), 0.0));
    let sweep = "predict sweep --model dlrm-mlperf --hardware a100-sxm4-80gbx8 --batch-size 16384";
    for (option, expected) in [("", row), ("--launch-us 0", free)] {
        let swept = &rows(&place, &format!("{sweep} {option}"))[0];
        for key in ["step_ns", "low_ns", "high_ns", "binds", "samples_per_s"] {
            assert_eq!(swept[key], expected[key], "{key} {option}");
        }
    }
}

#[test]
fn a_step_beyond_device_memory_names_the_largest_batch_that_fits() {
    let place = Place::new();
    let ran = place.done("predict step --model dlrm-dcnv2 --hardware v100 --format json");
    let row = &ran.json()[0];
    assert!(ran.stderr.contains("the step does not fit: it needs"), "{}", ran.stderr);
    assert_eq!(row["fits"], false);
    assert!(row["max_batch_size"].is_null());
    let step = "predict step --model dlrm-dcnv2 --hardware h200x8";
    let row = &rows(&place, step)[0];
    let most = number(row, "max_batch_size") as usize;
    let fits = |batch: usize| {
        rows(&place, &format!("{step} --batch-size {batch}"))[0]["fits"].as_bool().unwrap()
    };
    assert!(fits(most) && !fits(most + 8), "{most}");
}

#[test]
fn a_sweep_covers_models_devices_and_batches() {
    let place = Place::new();
    let all = rows(&place, "predict sweep");
    assert_eq!(all.len(), 3 * 6 * 4);
    let best = all.iter().filter(|row| row["is_best"] == true);
    assert!(best.count() >= 3);
    place.done(
        "predict sweep --hardware t4,a100x2 --batch-size 64 --pooling 1,10 --format csv \
         --output s.csv",
    );
    let text = fs::read_to_string(place.path("s.csv")).unwrap();
    assert_eq!(text.lines().count(), 1 + 2 * 2 * 3, "{text}");
    assert!(text.starts_with("pooling,model,hardware,batch_size,ranks"), "{text}");
}

#[test]
fn a_sweep_takes_lists_and_ranges_and_draws_its_front() {
    let place = Place::new();
    let sweep =
        "predict sweep --model dlrm-ddp --hardware t4,h100x1..4 --batch-size 512..2048,4096";
    let all = rows(&place, sweep);
    assert_eq!(all.len(), 4 * 4);
    let best = rows(&place, &format!("{sweep} --best --svg front.svg"));
    assert!(best.iter().all(|row| row["is_best"] == true) && best.len() < all.len());
    // No other step that fits may be faster than a step on the front with fewer ranks and less
    // memory.
    for row in &best {
        let beats = |other: &&Value| {
            other["fits"] == true
                && number(other, "ranks") <= number(row, "ranks")
                && number(other, "samples_per_s") > number(row, "samples_per_s")
                && number(other, "peak_bytes") < number(row, "peak_bytes")
        };
        assert_eq!(all.iter().find(beats), None, "{row}");
    }
    let svg = fs::read_to_string(place.path("front.svg")).unwrap();
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{svg}");
    assert!(best.iter().any(|row| row["hardware"] == "h100x1"), "few devices are good too");
    // The drawing must have a circle for each step, and one for each device in the legend.
    assert_eq!(svg.matches("<circle").count(), 16 + 4);
    assert_eq!(svg.matches("<title>").count(), 16);
    assert!(svg.contains("h100x4, B 4096: "), "{svg}");
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    for (sizes, expected) in [
        ("4096..512", "expected a range that rises"),
        ("512..y", "ranges such as 512..4096"),
        ("0", "expected numbers from 1"),
        ("1..90000:1", "at most 1000 values"),
    ] {
        place.refused(&format!("predict sweep --batch-size {sizes}"), &[expected]);
    }
    let ran = place.run("predict sweep --svg no/where.svg");
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("no/where.svg: cannot be written"), "{}", ran.stderr);
    assert_eq!(ran.stdout, "");
}

#[test]
fn the_published_models_are_swept_over_six_gpus() {
    assert_eq!(rows(&Place::new(), "predict sweep --pooling 1,100").len(), 2 * 3 * 6 * 4);
}

#[test]
fn calibrated_host_time_is_a_lower_bound_of_a_step() {
    let place = Place::new();
    fs::write(place.path("t.json"), crate::predict::trace("Tesla V100-SXM2-32GB")).unwrap();
    place.done("predict calibrate t.json --output host.json");
    let step = "predict step --model dlrm-ddp --hardware h100 --batch-size 64";
    let bound = &rows(&place, &format!("{step} --calibration host.json"))[0];
    assert_eq!(bound["binds"], "host");
    assert_eq!(bound["host_ns"], bound["step_ns"]);
    assert!(number(bound, "device_ns") < number(bound, "host_ns"), "{bound}");
    let of_launch = number(bound, "host_ns") / number(bound, "launches");
    let typed = &rows(&place, &format!("{step} --launch-us {}", of_launch / 1e3))[0];
    assert!((number(typed, "step_ns") / number(bound, "step_ns") - 1.0).abs() < 1e-9, "{typed}");
    // By default, the host is that of the nearest GPU whose overheads are shipped.
    let ran = place.done(&format!("{step} --format json"));
    assert!(ran.stderr.contains("host: overheads h100-suite of h100"), "{}", ran.stderr);
    let named = &rows(&place, &format!("{step} --overheads rtx2080ti-linear"))[0];
    assert!(number(named, "host_ns") > number(&ran.json()[0], "host_ns"), "{named}");
    place.done("predict calibrate t.json --output own.json --host-only");
    let own = &rows(&place, &format!("{step} --overheads own.json"))[0];
    assert!(number(own, "host_ns") > 0.0, "{own}");
    place.refused(&format!("{step} --overheads h100-sweet"), &["h100-sweet", "h100-suite"]);
    let both = format!("{step} --calibration host.json --launch-us 5");
    place.refused(&both, &["--launch-us", "does not apply with --calibration"]);
    let ran = place.run(&format!("{step} --calibration none.json"));
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("none.json: cannot read"), "{}", ran.stderr);
}

#[test]
fn steps_that_cannot_be_priced_are_refused() {
    let place = Place::new();
    let step = "predict step --model dlrm-ddp";
    place.refused(&format!("{step} --hardware h1000"), &["h1000", "h100"]);
    place.refused(&format!("{step} --hardware a100x2 --ranks 3"), &["2 ranks", "a plan of 3"]);
    place.refused(&format!("{step} --hardware 400xa100x8"), &["at most 1024 ranks", "3200"]);
    place.refused(&format!("{step} --hardware a100 --batch-size 0"), &["batch_size"]);
    let most = u64::MAX;
    place.refused(&format!("{step} --hardware a100 --batch-size {most}"), &["batch_size"]);
    let table = format!("model.tables=[{{name=\"a\",rows={most},dim=128}}]");
    place.refused(&format!("{step} --hardware a100 --set {table}"), &["rows"]);
    place.refused(step, &["--hardware"]);
    place.refused("predict step --hardware a100", &["--model"]);
    place.refused(&format!("{step} --hardware a100 --launch-us=-1"), &["microseconds"]);
    place.refused("predict step --model none --hardware a100", &["none"]);
    place.refused("predict step", &["PATH"]);
    let recorded = "predict step t.json --calibration c.json";
    place.refused(&format!("{recorded} --pooling 3"), &["--pooling", "applies only with --model"]);
    place.refused(&format!("{recorded} --by rank"), &["--model"]);
    fs::write(place.path("p.json"), r#"{"world_size": 1, "tiles": []}"#).unwrap();
    place.refused(&format!("{step} --hardware a100 --plan p.json"), &["p.json", "tiles over"]);
}

#[test]
fn a_step_takes_formats_schedules_and_kernels() {
    let place = Place::new();
    let step = "predict step --model dlrm-mlperf --batch-size 65536";
    let ns = |words: &str| number(&rows(&place, &format!("{step} {words}"))[0], "device_ns");
    let f32 = ns("--hardware dgx-a100");
    assert_eq!(ns("--hardware dgx-a100 --precision f32"), f32);
    let bf16 = ns("--hardware dgx-a100 --precision bf16");
    assert!(bf16 < ns("--hardware dgx-a100 --precision tf32"));
    // The precision of the configuration holds without the option.
    assert_eq!(ns("--hardware dgx-a100 --set training.precision=bf16"), bf16);
    assert!(ns("--hardware dgx-1 --schedule serial") > ns("--hardware dgx-1"));
    assert!(ns("--hardware a100 --dense-kernels compiled") < ns("--hardware a100"));
    assert!(ns("--hardware v100 --precision fp16") < ns("--hardware v100"));
    let refused = |words: &str, expected: &[&str]| {
        place.refused(&format!("{step} {words}"), expected);
    };
    refused("--hardware v100 --precision bf16", &["v100", "f32, fp16", "got bf16"]);
    refused("--hardware a100 --precision f64", &["f64"]);
    refused("--hardware a100 --schedule quick", &["serial, pipelined"]);
    let cross = "predict step --model dlrm-dcnv2 --hardware h100x8 --dense-kernels";
    place.refused(&format!("{cross} fused-interaction"), &["a model with a dot interaction"]);
    refused("--calibration c.json --precision bf16", &["applies only with --model and --hardware"]);
    let sweep = rows(&place, "predict sweep --hardware v100,a100 --precision fp16");
    assert_eq!(sweep.len(), 3 * 2 * 4);
    place.refused("predict sweep --precision tf32", &["v100", "got tf32"]);
}

#[test]
fn hardware_may_be_a_topology_file() {
    let place = Place::new();
    let step = "predict step --model dlrm-mlperf --batch-size 65536 --schedule serial";
    let write = |text: &str| fs::write(place.path("cluster.toml"), text).unwrap();
    let ns = || number(&rows(&place, &format!("{step} --hardware cluster.toml"))[0], "device_ns");
    write("hardware = \"4xdgx-a100\"\n");
    let cards = ns();
    assert_eq!(
        cards,
        number(&rows(&place, &format!("{step} --hardware 4xdgx-a100"))[0], "device_ns")
    );
    write("hardware = \"4xdgx-a100\"\n[between]\nnics_per_host = 1\ngbit_per_s = 100\n");
    assert!(ns() > 2.0 * cards);
    write("hardware = \"4xdgx-a100\"\n[between]\nnics_per_host = 1\n");
    let expected = &["cluster.toml", "nics_per_host and gbit_per_s"];
    place.refused(&format!("{step} --hardware cluster.toml"), expected);
    write("hardware = \"dgx-a100\"\n[between]\nnics_per_host = 1\ngbit_per_s = 100\n");
    let expected = &["cluster.toml", "several hosts with [between]"];
    place.refused(&format!("{step} --hardware cluster.toml"), expected);
    let links = "doctor links --verbs all_to_all --sizes 1K 64K --repeats 1";
    let ran = place.run(&format!("{links} --write-topology cluster.toml --hardware 2xdgx-a100x1"));
    assert!(ran.code == Some(0) || ran.stderr.contains("trusted"), "{}", ran.stderr);
    assert!(fs::read_to_string(place.path("cluster.toml")).unwrap().contains("points = ["));
    assert!(ns() > 0.0);
    place.refused("doctor links --write-topology x.toml", &["--hardware"]);
}

#[test]
fn published_steps_are_compared_with_predictions() {
    let place = Place::new();
    let ran = place.done("predict evaluate --published --format json");
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    let steps = report["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 21);
    for step in steps {
        assert!(number(step, "low_ns") < number(step, "predicted_ns"), "{step}");
        assert!(number(step, "host_ns") > 0.0, "{step}");
        let ratio = number(step, "predicted_ns") / number(step, "published_ns");
        assert!((number(step, "ratio") / ratio - 1.0).abs() < 1e-9, "{step}");
    }
    assert_eq!(report["errors"].as_array().unwrap().len(), 2);
    let ran = place.done("predict evaluate --published");
    assert!(ran.stdout.contains("table-wise, bottom MLP on rank 0"), "{}", ran.stdout);
    assert!(ran.stdout.contains("typical factor"), "{}", ran.stdout);
    place.refused("predict evaluate --published t.json", &["--published"]);
}
