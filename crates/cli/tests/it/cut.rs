//! Tests of cut recordings. Every command must report first what is missing, no figure may cover
//! the missing part, and `--fail-on` must never pass.

use std::fmt::Write as _;
use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::Stdio;

use serde_json::Value;
use testkit::{ProgramOutput, fixture};

use crate::fixture::Place;

/// Commands that read a recording and print a table.
const TABLES: [&str; 15] = [
    "",
    "breakdown",
    "idle",
    "overlap",
    "kernels",
    "ops",
    "launches",
    "queue",
    "memory",
    "steps",
    "collectives",
    "stragglers",
    "critical-path",
    "findings",
    "doctor",
];
const STEPS: usize = 40;

/// A recording of 40 steps with one launch each. The rows are in Kineto's order: first the
/// operators, then calls and device rows alternately.
fn recording() -> String {
    let mut rows = Vec::new();
    let row = |category: &str, name: &str, track: (u32, u32), span: (usize, usize), id: usize| {
        format!(
            r#"{{"ph":"X","cat":"{category}","name":"{name}","pid":{},"tid":{},"ts":{},"dur":{},"args":{{"correlation":{id}}}}}"#,
            track.0, track.1, span.0, span.1
        )
    };
    for step in 0..STEPS {
        let name = format!("ProfilerStep#{step}");
        rows.push(row("user_annotation", &name, (9, 9), (1000 * step, 1000), 0));
        rows.push(row("cpu_op", "aten::mm", (9, 9), (1000 * step + 100, 100), 0));
    }
    for step in 0..STEPS {
        rows.push(row(
            "cuda_runtime",
            "cudaLaunchKernel",
            (9, 9),
            (1000 * step + 110, 20),
            step + 1,
        ));
        rows.push(row("kernel", "gemm", (0, 7), (1000 * step + 200, 500), step + 1));
    }
    let mut text = String::from(
        "{\"schemaVersion\": 1, \"distributedInfo\": {\"rank\": 0}, \"traceEvents\": [\n",
    );
    write!(text, "{}\n]}}", rows.join(",\n")).unwrap();
    text
}

/// Returns the recording up to the launch of a step. The kernel of that launch is cut off.
fn cut_at(step: usize) -> String {
    let text = recording();
    let launch = format!("\"correlation\":{}}}}}", step + 1);
    let end = text.find(&launch).unwrap() + launch.len();
    text[..end + 30].to_owned()
}

fn place() -> Place {
    let place = Place::new();
    fs::write(place.path("whole.json"), recording()).unwrap();
    fs::write(place.path("most.json"), cut_at(30)).unwrap();
    fs::write(place.path("little.json"), cut_at(10)).unwrap();
    place
}

fn says_first(ran: &ProgramOutput, words: &str) {
    let first = ran.stderr.lines().next().unwrap_or_default();
    assert!(first.contains("was cut at byte"), "{words}: {first}");
}

/// Checks that every command reports the cut in each of its output formats.
fn owes(place: &Place, file: &str) {
    for verb in TABLES {
        let words = format!("trace {verb} {file}");
        for format in ["table", "md", "json", "csv"] {
            let ran = place.run(&format!("{words} --format {format}"));
            let has_no_rows = verb.is_empty() && matches!(format, "csv" | "md");
            let expected = match verb {
                _ if has_no_rows => 2,
                "doctor" => 4,
                _ => 0,
            };
            assert_eq!(ran.code, Some(expected), "{words} {format}: {}", ran.stderr);
            // A command that has no rows in this format is refused before it reads anything.
            if has_no_rows {
                continue;
            }
            says_first(&ran, &words);
            let first = ran.stdout.lines().next().unwrap_or_default();
            match format {
                "table" | "md" => assert!(first.contains("was cut at byte"), "{words}: {first}"),
                "csv" => assert!(first.contains("recording_cut"), "{words}: {first}"),
                _ => assert!(is_marked(&ran.last()), "{words}: {}", ran.stdout),
            }
        }
    }
    for level in ["critical", "high", "medium", "info"] {
        let ran = place.run(&format!("trace findings {file} --fail-on {level}"));
        assert_eq!(ran.code, Some(4), "{file} --fail-on {level}: {}", ran.stdout);
    }
    let verdict = place.run(&format!("trace {file} --format json")).last()["verdict"].clone();
    assert_eq!(verdict, "broken", "{file}");
}

#[test]
fn a_closed_output_pipe_does_not_change_the_exit_code() {
    let place = place();
    for (words, code) in [
        ("trace findings most.json --fail-on high", 4),
        ("trace findings whole.json --fail-on info --format csv", 3),
        ("trace doctor most.json", 4),
        ("trace breakdown whole.json", 0),
    ] {
        let mut command = place.command(words);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        drop(child.stdout.take());
        assert_eq!(child.wait().unwrap().code(), Some(code), "{words}");
    }
}

fn is_marked(page: &Value) -> bool {
    let rows = page.as_array().map_or(std::slice::from_ref(page), Vec::as_slice);
    !rows.is_empty() && rows.iter().all(|row| row["recording_cut"].is_string())
}

#[test]
fn every_command_reports_a_cut_recording_before_its_figures() {
    let place = place();
    owes(&place, "most.json");
    owes(&place, "little.json");
    // A recording that is complete must not be reported as cut.
    let whole = place.done("trace breakdown whole.json --format json");
    assert!(whole.last()[0].get("recording_cut").is_none(), "{}", whole.stdout);
    assert_eq!(place.run("trace findings whole.json --fail-on critical").code, Some(0));
}

#[test]
fn figures_of_a_cut_recording_cover_its_complete_part_only() {
    let place = place();
    let rows =
        |words: &str| place.done(&format!("trace {words} --window all --format json")).last();
    let row = &rows("breakdown most.json")[0];
    // All figures must end at the launch whose kernel was lost.
    assert_eq!((&row["window_ns"], &row["busy_ns"]), (&30_110_000.into(), &15_000_000.into()));
    assert_eq!(rows("kernels most.json")[0]["count"], 30);
    assert_eq!(rows("steps most.json").as_array().unwrap().len(), 31);
    for table in &TABLES[1..13] {
        let rows = rows(&format!("{table} little.json"));
        let rows = rows.as_array().unwrap();
        assert_eq!(rows.len(), 1, "{table}: {rows:?}");
        assert_eq!(rows[0].as_object().unwrap().len(), 1, "{table}: {rows:?}");
    }
    let page = rows("little.json");
    assert!(page["job"]["busy_pct"].is_null() && page["kernels"].as_array().unwrap().is_empty());
    let text = place.done("trace little.json").stdout;
    assert!(!text.contains("no device work was recorded"), "{text}");
}

#[test]
fn a_recording_cut_before_its_device_rows_has_no_device_figures() {
    let place = place();
    let text = recording();
    let calls = text.find("cuda_runtime").unwrap();
    for (name, end) in [("calls", calls - 40), ("operators", calls / 2)] {
        let file = format!("{name}.json");
        fs::write(place.path(&file), &text[..end]).unwrap();
        for verb in ["", "doctor", "findings"] {
            let said = place.run(&format!("trace {verb} {file}"));
            let said = said.stdout + &said.stderr;
            assert!(!said.contains("o device work was recorded"), "{verb} {name}: {said}");
            assert!(!said.contains("work of a device was recorded"), "{verb} {name}: {said}");
        }
        assert_eq!(place.run(&format!("trace findings {file} --fail-on critical")).code, Some(4));
    }
    // A complete recording without a device must not be broken. In each step of 1 ms, 880 µs are
    // outside operators.
    let whole = format!("{}\n]}}", text[..calls].rsplit_once(",\n").unwrap().0);
    fs::write(place.path("host.json"), whole).unwrap();
    let found = place.run("trace findings host.json --fail-on critical");
    assert!(found.code == Some(3) && found.stdout.contains("critical H13"), "{}", found.stdout);
    assert_eq!(place.run("trace doctor host.json").code, Some(0));
}

#[test]
fn a_cut_recording_stays_cut_after_conversion() {
    let place = place();
    for (file, from) in [("most", "most.json"), ("little", "little.json")] {
        let ran = place.done(&format!("trace convert {from} --out {file}.out.json --format json"));
        says_first(&ran, "convert");
        assert!(is_marked(&ran.last()), "{}", ran.stdout);
        let breakdown = |file: &str| {
            let ran = place.done(&format!("trace breakdown {file} --window all --format json"));
            let mut rows = ran.last();
            for row in rows.as_array_mut().unwrap() {
                row.as_object_mut().unwrap().remove("recording_cut");
            }
            rows
        };
        assert_eq!(breakdown(&format!("{file}.out.json")), breakdown(from));
        let ran = place.run(&format!("trace findings {file}.out.json --fail-on high"));
        assert_eq!(ran.code, Some(4), "{}", ran.stdout);
    }
    place.done("trace merge most.json --out merged.json");
    assert_eq!(place.run("trace doctor merged.json").code, Some(4));
    let ran = place.done("trace report most.json -o report.html");
    says_first(&ran, "report");
    let page = fs::read_to_string(place.path("report.html")).unwrap();
    assert!(page.contains("was cut at byte"));
    place.done("trace report little.json -o report.html");
    for (before, after) in [("whole", "most"), ("little", "whole")] {
        let ran = place.done(&format!("trace diff {before}.json {after}.json --by kernel"));
        says_first(&ran, "diff");
    }
}

#[test]
fn a_job_with_an_empty_trace_is_broken() {
    let place = place();
    let ranked = |rank: usize| recording().replace("\"rank\": 0", &format!("\"rank\": {rank}"));
    let zeros = "\0".repeat(4096);
    let header = "{\"schemaVersion\": 1, \"deviceProp";
    for (name, text) in [("empty", ""), ("zeros", &zeros), ("header", header)] {
        fs::create_dir(place.path(name)).unwrap();
        for rank in [0, 1] {
            fs::write(place.path(&format!("{name}/rank-{rank}.json")), ranked(rank)).unwrap();
        }
        fs::write(place.path(&format!("{name}/rank-2.json")), text).unwrap();
        let ran = place.run(&format!("trace findings {name} --fail-on critical"));
        assert_eq!(ran.code, Some(4), "{name}: {}", ran.stdout);
        assert!(ran.stdout.lines().next().unwrap().contains("rank-2.json"), "{}", ran.stdout);
    }
    // A cut recording must affect only its own rank. The other ranks must keep their figures.
    fs::write(place.path("empty/rank-2.json"), cut_at(10).replace("\"rank\": 0", "\"rank\": 2"))
        .unwrap();
    let rows = place.done("trace breakdown empty --format json").last();
    assert_eq!(rows.as_array().unwrap().len(), 2, "{rows}");
}

#[test]
fn zeros_after_gzip_data_are_not_damage() {
    let place = place();
    place.done("trace convert whole.json --out padded.json.gz");
    let mut bytes = fs::read(place.path("padded.json.gz")).unwrap();
    let whole = place.done("trace breakdown padded.json.gz --format json").last();
    let packed = bytes.len();
    bytes.resize(bytes.len().next_multiple_of(10_240), 0);
    fs::write(place.path("padded.json.gz"), &bytes).unwrap();
    let ran = place.done("trace breakdown padded.json.gz --format json");
    assert_eq!(ran.last(), whole);
    assert!(!ran.stderr.contains("damaged"), "{}", ran.stderr);
    // A file that ends within the gzip member must be reported as cut.
    fs::write(place.path("cut.json.gz"), &bytes[..packed - packed / 8]).unwrap();
    let ran = place.run("trace findings cut.json.gz --fail-on high");
    assert_eq!(ran.code, Some(4), "{}", ran.stderr);
}

#[test]
fn lost_events_in_the_middle_make_a_recording_broken() {
    let place = place();
    let mut bytes = recording().into_bytes();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 1000].fill(0);
    fs::write(place.path("hole.json"), bytes).unwrap();
    let ran = place.run("trace findings hole.json --fail-on critical");
    assert_eq!(ran.code, Some(4), "{}", ran.stdout);
    let rows = place.done("trace breakdown hole.json --format json").last();
    assert_eq!(rows[0].as_object().unwrap().len(), 1, "{rows}");
}

#[test]
fn a_cut_execution_trace_is_reported_before_its_figures() {
    let Some(path) = fixture::path("traces/odd/benchmark_simple_add_et.json.gz") else { return };
    let text = unpacked(&path);
    let place = place();
    fs::write(place.path("et.json"), &text[..text.len() * 3 / 4]).unwrap();
    let ran = place.done("trace execution-trace et.json --format json");
    assert!(ran.stderr.lines().next().unwrap().contains("was cut"), "{}", ran.stderr);
    assert!(is_marked(&ran.last()), "{}", ran.stdout);
}

#[test]
fn real_recordings_cut_at_any_place_are_reported_as_cut() {
    let is_full = std::env::var("ROWMILL_CORRUPTION").is_ok_and(|value| value == "full");
    let mut names = vec!["simple_add/benchmark_result_493459_1694039959_trace.json.gz"];
    if is_full {
        names.extend([
            "alexnet/benchmark_result_2869224_1695835535_trace.json.gz",
            "linear/linear_kineto.json.gz",
            "nccl/nccl_data.json.gz",
            "modern/sglang_decode.json.gz",
            "modern/mtia_inference.json.gz",
            "modern/h100_timesformer.json.gz",
            "modern/mi300_resnet_act_checkpoint.json.gz",
            "odd/mi250_minitoy_train_ROCm6_2_kineto.json.gz",
            "odd/rank_non_gpu.json.gz",
            "odd/triton_example.json.gz",
            "timeline_sampled/sampled_rank-0.json.gz",
        ]);
    }
    let place = place();
    for name in names {
        let Some(path) = fixture::path(&format!("traces/{name}")) else { return };
        let text = unpacked(&path);
        for percent in [25, 50, 75, 95] {
            fs::write(place.path("cut.json"), &text[..text.len() * percent / 100]).unwrap();
            println!("{name} at {percent} %");
            owes(&place, "cut.json");
            place.done("trace convert cut.json --out again.json");
            assert_eq!(place.run("trace findings again.json --fail-on info").code, Some(4));
            place.done("trace report cut.json -o cut.html");
        }
    }
}

fn unpacked(path: &PathBuf) -> Vec<u8> {
    let mut text = Vec::new();
    let mut file = trace::packed::unpacked(fs::File::open(path).unwrap()).unwrap();
    file.read_to_end(&mut text).unwrap();
    text
}
