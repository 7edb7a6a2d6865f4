//! Tests of the commands of `rowmill trace`, run by the real binary.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;
use testkit::{ProgramOutput, fixture};

use crate::fixture::Place;

/// A trace of two steps, each with one operator, one launch and one kernel.
const TRACE: &str = r#"{"schemaVersion": 1, "distributedInfo": {"rank": 0}, "traceEvents": [
{"ph":"X","cat":"user_annotation","name":"ProfilerStep#0","pid":9,"tid":9,"ts":100,"dur":50,"args":{}},
{"ph":"X","cat":"user_annotation","name":"ProfilerStep#1","pid":9,"tid":9,"ts":150,"dur":50,"args":{}},
{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":9,"tid":9,"ts":101,"dur":20,"args":{"External id":1}},
{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":9,"tid":9,"ts":102,"dur":5,"args":{"correlation":7}},
{"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":7,"ts":110,"dur":10.5,"args":{"correlation":7,"stream":7,"device":0}},
{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":9,"tid":9,"ts":151,"dur":20,"args":{"External id":2}},
{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":9,"tid":9,"ts":152,"dur":5,"args":{"correlation":8}},
{"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":7,"ts":160,"dur":10,"args":{"correlation":8,"stream":7,"device":0}}
]}"#;

fn place() -> Place {
    let place = Place::new();
    fs::write(place.path("t.json"), TRACE).unwrap();
    place
}

#[test]
fn the_summary_says_where_the_time_goes() {
    let text = place().done("trace t.json").stdout;
    for part in
        ["2 whole steps", "compute", "idle", "gemm", "aten::mm", "quality of the trace", "findings"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn every_table_prints_in_every_format() {
    let place = place();
    let verbs = [
        "breakdown",
        "idle",
        "kernels",
        "ops",
        "overlap",
        "launches",
        "queue",
        "memory",
        "steps",
        "collectives",
        "stragglers",
        "critical-path",
        "doctor",
    ];
    for verb in verbs {
        for format in ["table", "json", "csv", "md"] {
            let ran = place.done(&format!("trace {verb} t.json --format {format}"));
            if format == "json" {
                assert!(ran.last().is_array(), "{verb}: {}", ran.stdout);
            }
        }
    }
    place.done("trace breakdown t.json --format parquet --output b.parquet");
    assert!(fs::read(place.path("b.parquet")).unwrap().starts_with(b"PAR1"));
}

#[test]
fn findings_come_in_every_format_and_can_fail_a_build() {
    let place = place();
    let report = place.done("trace findings t.json --format json").last();
    let findings = report["findings"].as_array().unwrap();
    assert_eq!(findings[0]["category"], "quality", "{report}");
    let sarif = place.done("trace findings t.json --format sarif").last();
    let run = &sarif["runs"][0];
    assert_eq!(sarif["version"], "2.1.0");
    assert_eq!(run["results"].as_array().unwrap().len(), findings.len());
    assert_eq!(run["results"][0]["ruleId"], findings[0]["rule"]);
    let rules = run["tool"]["driver"]["rules"].as_array().unwrap();
    assert!(rules.iter().any(|rule| rule["id"] == "Q01"), "{rules:?}");
    let said = place.done("trace findings t.json -v").stderr;
    assert!(said.contains(&format!("{} rules", rules.len())), "{said}");
    let csv = place.done("trace findings t.json --format csv").stdout;
    assert!(csv.starts_with("rule,title,severity,"), "{csv}");
    let markdown = place.done("trace findings t.json --format md").stdout;
    assert!(markdown.starts_with("| severity | rule |"), "{markdown}");
    assert_eq!(place.run("trace findings t.json --fail-on info").code, Some(3));
    assert_eq!(place.run("trace findings t.json --fail-on critical").code, Some(0));
    let ran = place.run("trace kernels t.json --format sarif");
    assert!(ran.code == Some(2) && ran.stderr.contains("findings"), "{}", ran.stderr);
}

#[test]
fn a_saving_within_the_noise_of_the_steps_is_not_offered() {
    let Some(file) = fixture::path("traces/linear/linear_kineto.json.gz") else { return };
    let said = Place::new().done(&format!("trace findings {}", file.display())).stdout;
    assert!(said.contains("no certain gain: steps differ by more than the"), "{said}");
    for promise in [" · saves 7.73 ms", "(30.7 %; 0 ns to"] {
        assert!(!said.contains(promise), "{promise}: {said}");
    }
}

#[test]
fn rules_of_ones_own_and_suppressions_come_from_a_file() {
    let place = place();
    let rules = "[[rule]]\nid = \"own\"\ntitle = \"a product\"\ntable = \"kernels\"\n\
                 where = \"name=gemm\"\nadvice = \"ask\"\nseverity = \"critical\"\n";
    fs::write(place.path("rules.toml"), rules).unwrap();
    let ran = place.run("trace findings t.json --rules rules.toml --fail-on critical");
    assert!(ran.code == Some(3) && ran.stdout.contains("a product"), "{}", ran.stdout);
    let known = "[[suppress]]\nkey = \"own\"\nreason = \"known\"\n";
    fs::write(place.path("rules.toml"), format!("{known}{rules}")).unwrap();
    let ran = place.done("trace findings t.json --rules rules.toml --fail-on critical");
    assert!(ran.stdout.contains("suppressed"), "{}", ran.stdout);
    fs::write(place.path("rules.toml"), "[limit]\n").unwrap();
    let ran = place.run("trace findings t.json --rules rules.toml");
    assert!(ran.code == Some(2) && ran.stderr.contains("hint"), "{}", ran.stderr);
}

#[test]
fn explain_prints_the_page_of_a_rule() {
    let place = place();
    assert!(place.done("explain").stdout.contains("L01"));
    let page = place.done("explain h05").stdout;
    assert!(page.starts_with("# H05 ·") && page.contains("reads_per_step"), "{page}");
    let ran = place.run("explain X99");
    assert!(
        ran.code == Some(2) && ran.stderr.contains("lists the rules, and rowmill explain config"),
        "{}",
        ran.stderr
    );
}

#[cfg(unix)]
#[test]
fn output_follows_links_and_is_written_into_pipes() {
    let place = place();
    // A symbolic link must stay a link, and its target must receive the rows.
    fs::write(place.path("target.csv"), "before").unwrap();
    std::os::unix::fs::symlink(place.path("target.csv"), place.path("link.csv")).unwrap();
    place.done("trace kernels t.json --format csv --output link.csv");
    assert!(fs::symlink_metadata(place.path("link.csv")).unwrap().is_symlink());
    assert!(fs::read_to_string(place.path("target.csv")).unwrap().starts_with("rank,"));
    // The rows must be written into a pipe, which must not be replaced by a file.
    let pipe = place.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let read = std::thread::spawn({
        let pipe = pipe.clone();
        move || fs::read_to_string(pipe).unwrap()
    });
    place.done("trace kernels t.json --format csv --output pipe");
    assert!(read.join().unwrap().starts_with("rank,"));
    assert!(!fs::symlink_metadata(&pipe).unwrap().is_file());
    // A failed command must leave neither a file nor a partial file.
    let ran = place.run("trace kernels t.json --format csv --output nowhere/k.csv");
    assert!(ran.code == Some(1) && ran.stderr.contains("nowhere/k.csv"), "{}", ran.stderr);
}

#[test]
fn a_breakdown_counts_nanoseconds_of_the_whole_steps() {
    let rows = place().done("trace breakdown t.json --format json").last();
    let row = &rows[0];
    let of = |name: &str| row[name].as_i64().unwrap();
    assert_eq!((of("window_ns"), of("busy_ns"), of("idle_ns")), (100_000, 20_500, 79_500));
    assert_eq!((of("compute_ns"), of("communication_ns"), of("memory_ns")), (20_500, 0, 0));
    let csv = place().done("trace breakdown t.json --format csv").stdout;
    assert!(csv.starts_with("rank,device,"), "{csv}");
}

#[test]
fn a_trace_comes_through_standard_input() {
    let place = place();
    let mut command = place.command("trace kernels - --format json");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(TRACE.as_bytes()).unwrap();
    let ran = ProgramOutput::from(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(ran.last()[0]["total_ns"], 20_500);
}

#[test]
fn a_what_if_rescales_the_matching_work() {
    let place = place();
    let mut command = place.command("trace critical-path t.json --format json --window all");
    command.args(["--what-if", "kernel=~gemm x0"]);
    let ran = ProgramOutput::collect(&mut command);
    assert!(ran.stderr.contains("2 pieces of work"), "{}", ran.stderr);
    let saving = ran.last()[0]["saving_ns"].as_i64().unwrap();
    assert!((0..=20_500).contains(&saving), "{saving}");
    let wrong = place.run("trace critical-path t.json --what-if nonsense");
    assert_eq!(wrong.code, Some(2), "{}", wrong.stderr);
    assert!(wrong.stderr.contains("x0.5"), "{}", wrong.stderr);
}

#[test]
fn a_diff_separates_changes_from_noise() {
    let place = place();
    // The second recording is of the same job, with a slower kernel in both steps and a different
    // runtime call.
    let slower = TRACE
        .replace(r#""ts":110,"dur":10.5"#, r#""ts":110,"dur":20.5"#)
        .replace(r#""ts":160,"dur":10"#, r#""ts":160,"dur":20"#)
        .replace("cudaLaunchKernel", "cudaGraphLaunch");
    fs::write(place.path("slow.json"), slower).unwrap();
    let diff = place.done("trace diff t.json slow.json --format json").last();
    assert_eq!((&diff["unit"], &diff["after"]["unit_count"]), (&"step".into(), &2.into()));
    let compute = &diff["parts"][0];
    let figures = ["part", "before_ns", "after_ns", "delta_ns"].map(|key| compute[key].clone());
    assert_eq!(figures, ["compute".into(), 10_250.into(), 20_250.into(), Value::from(10_000)]);
    let text = place.done("trace diff t.json slow.json").stdout;
    for part in
        ["where the time of a step goes", "gemm", "cudaGraphLaunch", "+10.0 µs", "within the noise"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let calls = place.done("trace diff t.json slow.json --by call --format json").last();
    let presence = |at: usize| (calls[at]["name"].as_str(), calls[at]["presence"].as_str());
    assert_eq!(presence(0), (Some("cudaGraphLaunch"), Some("added")));
    assert_eq!(presence(1), (Some("cudaLaunchKernel"), Some("removed")));
    for by in ["part", "kernel", "operator", "path", "host"] {
        let rows = place.done(&format!("trace diff t.json slow.json --by {by} --format csv"));
        assert!(rows.stdout.lines().count() > 1, "{by}: {}", rows.stdout);
    }
    let one = place.run("trace diff t.json");
    assert_eq!(one.code, Some(2));
    assert!(one.stderr.contains("expected two recordings"), "{}", one.stderr);
}

#[test]
fn files_that_are_not_traces_are_named() {
    let place = place();
    fs::write(place.path("empty.json"), "").unwrap();
    fs::write(place.path("image.png"), b"\x89PNG\r\n\x1a\n....").unwrap();
    fs::create_dir(place.path("nothing")).unwrap();
    for (path, says) in
        [("empty.json", "empty"), ("image.png", "PNG"), ("nothing", "none"), ("gone.json", "gone")]
    {
        let ran = place.run(&format!("trace breakdown {path}"));
        assert_eq!(ran.code, Some(1), "{path}: {}", ran.stderr);
        assert!(ran.stderr.starts_with("error:") && ran.stderr.contains(says), "{}", ran.stderr);
        assert!(ran.stdout.is_empty(), "{}", ran.stdout);
    }
}

#[test]
fn unknown_options_are_usage_errors() {
    let place = place();
    for words in [
        "trace breakdown t.json --rank 7",
        "trace breakdown t.json --class compute",
        "trace breakdown t.json --class compute=(",
        "trace breakdown t.json --format parquet",
        "trace t.json --format csv",
        "trace",
        "trace merge t.json --out t.json",
    ] {
        let ran = place.run(words);
        assert_eq!(ran.code, Some(2), "{words}: {}", ran.stderr);
    }
    assert_eq!(fs::read_to_string(place.path("t.json")).unwrap(), TRACE);
}

#[test]
fn a_truncated_trace_is_salvaged_with_a_notice() {
    let place = place();
    fs::write(place.path("cut.json"), &TRACE[..TRACE.len() - 60]).unwrap();
    let ran = place.done("trace kernels cut.json --format json");
    assert_eq!(ran.last()[0]["count"], 1);
    assert!(ran.stderr.contains("truncated"), "{}", ran.stderr);
}

#[test]
fn a_merged_and_a_converted_trace_open_again() {
    let place = place();
    fs::write(place.path("u.json"), TRACE.replace("\"rank\": 0", "\"rank\": 1")).unwrap();
    place.done("trace merge t.json u.json --out merged.json.gz");
    let rows = place.done("trace breakdown merged.json.gz --by device --format json").last();
    assert_eq!(rows.as_array().unwrap().len(), 2);
    place.done("trace convert t.json --out t.pftrace");
    assert!(fs::metadata(place.path("t.pftrace")).unwrap().len() > 200);
    place.done("trace convert t.json u.json --out tables --to parquet");
    for table in ["events", "ops", "kernels"] {
        assert!(place.path(&format!("tables/{table}.parquet")).is_file(), "{table}");
    }
    let several = place.run("trace convert t.json u.json --out both.json");
    assert!(several.code == Some(2) && several.stderr.contains("merge"), "{}", several.stderr);
}

/// The figures of the golden file `exact`, with the names of rowmill's columns for them.
const EXACT: [(&str, &str); 13] = [
    ("kernel_time_ns", "window_ns"),
    ("busy_ns", "busy_ns"),
    ("idle_ns", "idle_ns"),
    ("compute_ns", "compute_ns"),
    ("comm_ns", "communication_ns"),
    ("memory_ns", "memory_ns"),
    ("non_compute_ns", "non_compute_ns"),
    ("comm_comp_overlap_ns", "overlap_ns"),
    ("comm_comp_overlap_pct", "overlap_pct"),
    ("exposed_comm_ns", "exposed_communication_ns"),
    ("idle_pct", "idle_pct"),
    ("compute_pct", "compute_pct"),
    ("non_compute_pct", "non_compute_pct"),
];

#[test]
fn the_binary_prints_the_exact_figures_of_real_traces() {
    let Some(traces) = fixture::path("traces") else { return };
    let files = [
        ("simple_add", "simple_add"),
        ("alexnet", "alexnet"),
        ("linear/linear_kineto.json.gz", "linear_kineto"),
        ("nccl", "nccl"),
        ("timeline_sampled", "timeline_sampled"),
        ("trace_diff/control.json.gz", "trace_diff_control"),
        ("trace_diff/test.json.gz", "trace_diff_test"),
        ("dlrm8/dlrm_kineto.tar.gz", "dlrm8_rank"),
    ];
    let mut compared = 0;
    for (file, truth) in files {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rowmill"));
        command.args(["trace", "breakdown", "--window", "hta", "--classify", "hta"]);
        command.args(["--format", "json"]).arg(traces.join(file));
        let rows = ProgramOutput::collect(&mut command).last();
        for row in rows.as_array().unwrap() {
            let of_rank =
                if truth.ends_with("_rank") { row["rank"].to_string() } else { String::new() };
            let exact = fixture::text(&format!("hta_truth/{truth}{of_rank}.exact.json")).unwrap();
            let exact: Value = serde_json::from_str(&exact).unwrap();
            for (theirs, ours) in EXACT {
                assert_eq!(row[ours], exact["exact"][theirs], "{truth}{of_rank} {ours}");
            }
            compared += 1;
        }
    }
    assert_eq!(compared, 15);
}

#[test]
fn issue_24_summary_and_doctor_give_one_verdict() {
    let place = place();
    let mut paths = vec![place.path("t.json")];
    if let Some(traces) = fixture::path("traces") {
        let names = [
            "dlrm8/dlrm_kineto.tar.gz",
            "linear/linear_kineto.json.gz",
            "odd/rank_non_gpu.json.gz",
        ];
        paths.extend(names.map(|name| traces.join(name)));
    }
    for path in paths {
        let verdict = |verb: &str| {
            let out = place.run(&format!("trace {verb}{}", path.display())).stdout;
            let lines = out.lines().filter(|line| line.starts_with("quality of the trace: "));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        let (summary, doctor) = (verdict(""), verdict("doctor "));
        assert_eq!(summary.len(), 1, "{}", path.display());
        assert_eq!(summary, doctor, "{}", path.display());
    }
}

#[test]
fn issue_24_percentages_say_of_which_ranks_they_are() {
    let Some(path) = fixture::path("traces/dlrm8/dlrm_kineto.tar.gz") else { return };
    let place = Place::new();
    let text = place.done(&format!("trace {}", path.display())).stdout;
    for part in [
        "94.3 % of the device work of all 8 ranks",
        "rank 1: only 80.4 % of the device work has an operator (1 more of 8 ranks has the like)",
        "43.5 % of the windows of all 8 ranks",
        "% of all ranks' windows",
        "rank 1, the slowest: 1 step of 19.9 ms (mean)",
        "its critical path covers all of the window: ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}
