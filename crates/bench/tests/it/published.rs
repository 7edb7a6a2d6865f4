//! Tests of `rowmill-bench published`, which prints the errors of published methods.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking")]

use std::fs;

use serde_json::Value;

use crate::Place;

fn number(row: &Value, field: &str) -> f64 {
    row[field].as_f64().unwrap_or_else(|| panic!("{field}: {row}"))
}

/// Runs a command, which must end with exit code 2 and an error that contains `expected`.
fn refused(place: &Place, words: &str, expected: &str) {
    let ran = place.run(words).expect_code(2, words);
    assert!(ran.stderr.contains(expected), "{}", ran.stderr);
}

/// Writes a suite of an H200 whose kernel times follow formulas, with 2 % of noise.
fn write_suite(place: &Place) {
    fs::create_dir_all(place.path("suite/microbench")).unwrap();
    let header = "op,shape,dtype,kernel,median_us,p5_us,p95_us,samples,timer,kernels\n";
    let mut files = Vec::new();
    let mut add = |op: &str, dtype: &str, shapes: Vec<(String, f64)>| {
        let mut text = header.to_owned();
        for (at, (shape, ns)) in shapes.into_iter().enumerate() {
            let us = 1e-3 * ns * (1.0 + 0.02 * (7.0 * at as f64).sin());
            text += &format!("{op},{shape},{dtype},k,{us},1,1,30,device,\n");
        }
        fs::write(place.path(&format!("suite/microbench/{op}.csv")), text).unwrap();
        files.push(format!("microbench/{op}.csv"));
    };
    let passes = (10..27).map(|power| 1u64 << power);
    let passes = passes.map(|n| (format!("n={n}"), 2_000.0 + (12 * n) as f64 / 700.0)).collect();
    add("add", "float32", passes);
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
    write_suite(&place);
    let report = place.done("published --kernels suite --format json").last();
    assert_eq!(report["device"], "NVIDIA H200");
    let table = report["table"].as_array().unwrap();
    let named = |name: &str| table.iter().find(|row| row["kernel"] == name).unwrap();
    let names = ["EL-F", "EL-FL", "EL-FH", "EL-FHL", "EL-B", "EL-BL", "EL-BH", "EL-BHL", "concat"];
    let others = ["memcpy", "transpose", "tril-F", "tril-B"];
    for name in names.into_iter().chain(others) {
        let row = named(name);
        // The errors must be little larger than the noise of 2 %.
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
    // The shipped models were trained on times that include the host, unlike the times of this
    // suite.
    for name in ["GEMM", "element_wise"] {
        let row = named(name);
        assert!(number(&row["all"], "mape_pct") < 5.0, "{row}");
        assert!(number(&row["no_rows"], "mape_pct") > 20.0, "{row}");
    }
    // The row `EL-FL` covers only the tables that are larger than the L2 cache.
    assert!(number(named("EL-FL"), "shapes") < number(named("EL-F"), "shapes"));
    assert_eq!(number(named("EL-F"), "shapes"), 108.0);
    let text = place.done("published --kernels suite").stdout;
    assert!(text.contains("EL-BHL") && text.contains("20 rows %"), "{text}");
    refused(&place, "published --kernels suite job.toml", "a recorded suite alone");
    let list = fs::read_to_string(place.path("suite/suite.json")).unwrap();
    let cpu = list.replace("\"gpu\"", "\"cpu\"");
    fs::write(place.path("suite/suite.json"), cpu).unwrap();
    refused(&place, "published --kernels suite", "expected a suite that was recorded on a GPU");
}

#[test]
fn options_of_kernels_are_refused_without_kernels() {
    let place = Place::new();
    refused(&place, "published t.json --grid small", "--kernels");
    refused(&place, "published t.json --models m", "--kernels");
}

#[test]
fn published_methods_are_far_off_on_a_rank_left_out() {
    let Some(trace) = testkit::fixture::path("traces/dlrm8/dlrm_kineto.tar.gz") else { return };
    let place = Place::new();
    let rows = place.done(&format!("published {} --format json", trace.display())).last();
    let last = &rows[7];
    let error = |field: &str| number(last, field);
    let cost = error("trimmed_error_pct").abs() - error("one_mean_error_pct").abs();
    assert!(cost >= 10.0, "trimming costs {cost} points: {last}");
    // The last rank waits for no other rank, so waiting does not explain the error of the published
    // methods there.
    assert!(error("published_error_pct") < -10.0, "{last}");
    assert!(error("published_code_error_pct") < -10.0, "{last}");
}
