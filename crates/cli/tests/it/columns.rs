//! Checks that the tables of `rowmill trace` have the columns that `docs/trace-columns.md` lists,
//! with and without rows, in every format.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;
use testkit::ProgramOutput;

use crate::fixture::Place;

const PAGE: &str = include_str!("../../../../docs/trace-columns.md");

/// Events of the trace of a rank, in which `RANK` stands for its number. The trace has two steps
/// with an operator, an annotation, a copy, kernels, a collective and memory events.
const EVENTS: &str = r#"
{"ph":"X","cat":"user_annotation","name":"ProfilerStep#0","pid":9,"tid":9,"ts":100,"dur":50,"args":{}},
{"ph":"X","cat":"user_annotation","name":"ProfilerStep#1","pid":9,"tid":9,"ts":150,"dur":50,"args":{}},
{"ph":"X","cat":"user_annotation","name":"forward","pid":9,"tid":9,"ts":101,"dur":30,"args":{}},
{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":9,"tid":9,"ts":101,"dur":20,"args":{"External id":1}},
{"ph":"i","s":"t","cat":"cpu_instant_event","name":"[memory]","pid":9,"tid":9,"ts":101.5,"args":{"Total Reserved":4096,"Total Allocated":1024,"Bytes":1024,"Addr":1,"Device Id":0,"Device Type":1}},
{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":9,"tid":9,"ts":102,"dur":2,"args":{"correlation":7}},
{"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":7,"ts":110,"dur":10.5,"args":{"correlation":7,"stream":7,"device":0}},
{"ph":"X","cat":"cuda_runtime","name":"cudaMemcpyAsync","pid":9,"tid":9,"ts":105,"dur":2,"args":{"correlation":9}},
{"ph":"X","cat":"gpu_memcpy","name":"Memcpy HtoD (Pinned -> Device)","pid":0,"tid":7,"ts":121,"dur":3,"args":{"correlation":9,"stream":7,"device":0,"bytes":4096}},
{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":9,"tid":9,"ts":108,"dur":2,"args":{"correlation":10}},
{"ph":"X","cat":"kernel","name":"relu","pid":0,"tid":7,"ts":125,"dur":2,"args":{"correlation":10,"stream":7,"device":0}},
{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":9,"tid":9,"ts":151,"dur":20,"args":{"External id":2}},
{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":9,"tid":9,"ts":152,"dur":2,"args":{"correlation":8}},
{"ph":"X","cat":"kernel","name":"ncclDevKernel_AllReduce_Sum_f32_RING_LL","pid":0,"tid":7,"ts":16RANK,"dur":10,"args":{"correlation":8,"stream":7,"device":0,"Collective name":"allreduce","In msg nelems":100,"Out msg nelems":100,"Group size":2,"dtype":"Float","Process Group Name":"0"}}"#;

/// A recording without operators, runtime calls or device work.
const EMPTY: &str =
    r#"{"ph":"i","s":"t","cat":"python_function","name":"a","pid":9,"tid":9,"ts":100,"args":{}}"#;

/// Writes a recording for each of two ranks into a folder.
fn record(place: &Place, folder: &str, events: &str) {
    fs::create_dir(place.path(folder)).unwrap();
    for rank in ["0", "1"] {
        let events = events.replace("RANK", rank);
        let text = format!(
            r#"{{"schemaVersion":1,"distributedInfo":{{"rank":{rank},"world_size":2}},"traceEvents":[{events}]}}"#
        );
        fs::write(place.path(&format!("{folder}/rank{rank}.json")), text).unwrap();
    }
}

/// Reads the page. Returns the arguments of each table with the names of its columns and of its
/// nested columns.
fn listed() -> Vec<(&'static str, Vec<&'static str>, Vec<&'static str>)> {
    let line = |line: &'static str| {
        let (arguments, columns) = line.strip_prefix("| `")?.split_once("` | ")?;
        let columns = columns.strip_suffix(" |")?.split(", ").map(|one| one.split_once(' '));
        let columns: Vec<(&str, &str)> = columns.collect::<Option<_>>()?;
        let (nested, flat): (Vec<_>, Vec<_>) =
            columns.into_iter().partition(|(_, value_type)| value_type.starts_with("nested"));
        let names = |columns: Vec<(&'static str, &str)>| {
            columns.into_iter().map(|(name, _)| name.trim_matches('`')).collect()
        };
        Some((arguments, names(flat), names(nested)))
    };
    PAGE.lines()
        .filter_map(line)
        .filter(|(arguments, ..)| !arguments.starts_with("rowmill"))
        .collect()
}

/// Formats the command that prints a table of `folder`. The caller adds an output format.
fn words(arguments: &str, folder: &str) -> String {
    let (verb, rest) = arguments.split_once(' ').unwrap_or((arguments, ""));
    let inputs = if verb == "diff" { format!("{folder} {folder}") } else { folder.to_owned() };
    format!("trace {verb} {inputs} {rest} --window all")
}

/// Runs a command. The edit of `--what-if` contains a space, so it is passed as a single argument.
fn run(place: &Place, words: &str) -> ProgramOutput {
    let edited = |word| if word == "EDIT" { "kernel=~gemm x0.5" } else { word };
    ProgramOutput::collect(place.command("").args(words.split_whitespace().map(edited)))
}

#[test]
fn tables_have_the_listed_columns_with_and_without_rows() {
    let place = Place::new();
    record(&place, "full", EVENTS);
    record(&place, "empty", EMPTY);
    let mut without_rows = BTreeSet::new();
    for (arguments, flat, nested) in listed() {
        if arguments.starts_with("convert") || arguments == "execution-trace" {
            continue;
        }
        for folder in ["full", "empty"] {
            let words = words(arguments, folder);
            let output = |format: &str| run(&place, &format!("{words} --format {format}"));
            let csv = output("csv");
            assert_eq!(
                csv.stdout.lines().next(),
                Some(flat.join(",").as_str()),
                "{words}\n{}",
                csv.stderr
            );
            let rows = output("json").last();
            if arguments != "findings" {
                let markdown = format!("| {} |", flat.join(" | "));
                assert_eq!(output("md").stdout.lines().next(), Some(markdown.as_str()), "{words}");
                let keys = |row: &Value| -> BTreeSet<String> {
                    row.as_object().unwrap().keys().cloned().collect()
                };
                let mut expected: BTreeSet<String> =
                    flat.iter().chain(&nested).map(|name| (*name).to_owned()).collect();
                for row in rows.as_array().unwrap() {
                    // The field `loss` is written only if there is a loss, so it is not compared.
                    expected.remove("loss");
                    let mut keys = keys(row);
                    keys.remove("loss");
                    assert_eq!(keys, expected, "{words}");
                }
                if arguments != "doctor" {
                    let title = flat[0].trim_end_matches("_ns").replace('_', " ");
                    let text = output("table").stdout;
                    assert!(text.contains(&title), "{words}: no header\n{text}");
                }
                if rows.as_array().unwrap().is_empty() {
                    without_rows.insert((folder, arguments));
                }
            }
            run(&place, &format!("{words} --format parquet --output t.parquet"));
            assert!(fs::read(place.path("t.parquet")).unwrap().starts_with(b"PAR1"), "{words}");
            fs::remove_file(place.path("t.parquet")).unwrap();
        }
    }
    let full: Vec<_> = without_rows.iter().filter(|(folder, _)| *folder == "full").collect();
    assert!(full.is_empty(), "the full recording has no rows for {full:?}");
}

#[test]
fn converted_tables_without_rows_are_files() {
    let place = Place::new();
    record(&place, "empty", EMPTY);
    place.done("trace convert empty --to parquet --out tables");
    for name in ["events", "ops", "kernels", "collectives"] {
        let bytes = fs::read(place.path(&format!("tables/{name}.parquet"))).unwrap();
        assert!(bytes.starts_with(b"PAR1"), "{name}");
    }
}
