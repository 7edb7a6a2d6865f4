//! Tests of `rowmill report`, `rowmill trace report` and `rowmill trace serve`, run by the real
//! binary.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};

use crate::fixture::{Place, interrupt};

const TRACE: &str = r#"{"distributedInfo": {"rank": 0}, "traceEvents": [
{"ph":"X","cat":"cpu_op","name":"aten::<b>mm</b>","pid":9,"tid":9,"ts":101,"dur":20,"args":{}},
{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":9,"tid":9,"ts":102,"dur":5,"args":{"correlation":7}},
{"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":7,"ts":110,"dur":10.5,"args":{"correlation":7,"stream":7,"device":0}}
]}"#;

fn place() -> Place {
    let place = Place::new();
    fs::write(place.path("t.json"), TRACE).unwrap();
    place
}

#[test]
fn report_writes_the_page_of_a_training_run() {
    let place = Place::new();
    place.done(
        "train job.toml --train train.csv --run run --set steps=60 --set evaluate_every=20 \
         --set keep_best=auc",
    );
    let ran = place.done("report run --format json").last();
    assert_eq!((ran["path"].as_str(), ran["steps"].as_u64()), (Some("run/report.html"), Some(60)));
    assert_eq!(ran["evaluations"], 3, "{ran}");
    let page = fs::read_to_string(place.path("run/report.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("<title>run: small</title>"));
    let data = page.split_once("id=\"data\">").unwrap().1.split_once("</script>").unwrap().0;
    let data: serde_json::Value = serde_json::from_str(data).unwrap();
    let table = &data["tables"][0];
    // The column contains all ids from 0 to 49, so every row of the table changes.
    assert_eq!((table["name"].as_str(), table["rows"].as_u64()), (Some("a"), Some(50)));
    assert_eq!(table["uses"].as_array().unwrap().last().unwrap()["rows_changed"], 50, "{table}");
    assert_eq!(data["lines_lost"], 0);
    assert_eq!(data["placement"], serde_json::json!({ "ranks": 1, "groups": 1, "hosts": 1 }));
    // The folder `part` has the state of a run that is in progress or was killed: its last line is
    // cut, and it has neither run.json nor a checkpoint.
    fs::create_dir(place.path("part")).unwrap();
    let lines = fs::read_to_string(place.path("run/metrics.jsonl")).unwrap();
    fs::write(place.path("part/metrics.jsonl"), &lines[..lines.len() - 9]).unwrap();
    let part = place.done("report part -o part.html").stdout;
    assert!(part.contains("Held-out AUC is best at step"), "{part}");
    for wrong in ["report nowhere", "report train.csv", "report ."] {
        let refused = place.run(wrong);
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
        assert!(refused.stderr.contains("hint: give the folder of a run"), "{}", refused.stderr);
    }
}

#[test]
fn a_report_is_one_file_whose_path_is_printed() {
    let place = place();
    let ran = place.done("trace report t.json -o r.html --format json").last();
    let page = fs::read_to_string(place.path("r.html")).unwrap();
    assert_eq!(
        (ran["path"].as_str(), ran["bytes"].as_u64()),
        (Some("r.html"), Some(page.len() as u64))
    );
    assert_eq!(ran["timeline_events"], 3);
    assert!(page.starts_with("<!doctype html>") && page.contains("<title>t.json</title>"));
    assert!(!page.contains("<b>mm"));
    place.done("trace report t.json -o again.html");
    assert_eq!(fs::read_to_string(place.path("again.html")).unwrap(), page);
    // A failed command must leave no partial file, and must not change its inputs.
    for words in ["trace report t.json -o t.json", "trace report t.json -o nowhere/r.html"] {
        assert!(place.run(words).code.is_some_and(|code| code > 0), "{words}");
    }
    assert_eq!(fs::read_to_string(place.path("t.json")).unwrap(), TRACE);
    for wrong in ["0", "9..3", "3..9"] {
        let steps = place.run(&format!("trace report t.json --steps {wrong}"));
        assert_eq!(steps.code, Some(2), "{}", steps.stderr);
    }
}

#[test]
fn a_comparison_is_one_file_that_begins_with_its_verdict() {
    let place = place();
    let slower =
        TRACE.replace("\"dur\":10.5", "\"dur\":42.0").replace("\"dur\":20,", "\"dur\":60,");
    fs::write(place.path("u.json"), slower).unwrap();
    let shown = place.done("trace diff t.json u.json");
    let verdict = "20.0 → 60.0 µs: slower by 200 %, of which compute +31.5 µs";
    assert!(shown.stdout.starts_with(verdict), "{}", shown.stdout);
    let json = place.done("trace diff t.json u.json --format json").last();
    assert!(json["verdict"]["text"].as_str().unwrap().starts_with(verdict), "{json}");
    assert_eq!(json["verdict"]["outcome"], "slower");
    assert_eq!(json["verdict"]["delta_ns"], 40_000);

    let ran = place.done("trace diff t.json u.json --report d.html --format json").last();
    let page = fs::read_to_string(place.path("d.html")).unwrap();
    assert_eq!(ran["bytes"].as_u64(), Some(page.len() as u64));
    assert_eq!(ran["verdict"]["text"], json["verdict"]["text"]);
    assert_eq!(ran["timeline_events"], serde_json::json!([3, 3]));
    assert!(page.contains("<title>t.json → u.json</title>") && !page.contains("<b>mm"));
    // The report must not overwrite an input, and cannot be combined with a table.
    for words in ["--report t.json", "--report u.json", "--report d.html --by part"] {
        let ran = place.run(&format!("trace diff t.json u.json {words}"));
        assert!(ran.code.is_some_and(|code| code > 0), "{words}");
    }
    assert_eq!(fs::read_to_string(place.path("t.json")).unwrap(), TRACE);
}

/// Words that mean nothing to a user whose ranks are threads on a CPU.
const FOREIGN: [&str; 8] = ["NCCL", "nccl", "Python", "GPU", "CUDA", "cuda", "torch", "NIC"];

#[test]
fn our_own_runs_are_told_of_a_pool_of_threads() {
    let place = Place::new();
    let train =
        "train job.toml --train train.csv --run run --ranks 2 --trace traces --trace-steps 3..9";
    place.done(train);
    for verb in ["", "findings", "doctor"] {
        let shown = place.done(&format!("trace {verb} traces -v"));
        for word in FOREIGN {
            assert!(!shown.stdout.contains(word), "{verb}: {word}\n{}", shown.stdout);
        }
    }
    let shown = place.done("trace traces").stdout;
    for word in ["CPU pools", "pool busy", "operations of the pool", "quality of the trace: "] {
        assert!(shown.contains(word), "{word}\n{shown}");
    }
    // After a conversion to a Perfetto file, the summary must show the same.
    place.done("trace merge traces --out a.pftrace");
    assert!(place.done("trace a.pftrace").stdout.contains("CPU pools"));
}

/// A running command that serves pages. The command is killed on drop, even if a test fails.
pub struct Served {
    child: Child,
    pub address: String,
}

impl Served {
    /// Stops the server with Ctrl-C, which must give exit code 0.
    pub fn interrupt(&mut self) {
        interrupt(&self.child);
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a command that serves pages, and reads the address that it prints.
pub fn serve(place: &Place, words: &str) -> Served {
    let mut command = place.command(words);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    Served { child, address: line.trim().to_owned() }
}

/// Sends a GET request for a path with a given `Host` header, and returns the response.
pub fn get(address: &str, path: &str, host: &str) -> String {
    let mut connection = TcpStream::connect(address).unwrap();
    write!(connection, "GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn the_server_shows_the_report_only_with_the_secret_address() {
    let place = place();
    let mut served = serve(&place, "trace serve t.json");
    let address = served.address.strip_prefix("http://").unwrap();
    let (host, path) = address.split_once('/').unwrap();
    let path = format!("/{path}");
    assert!(host.starts_with("127.0.0.1:"), "{host}");
    let page = get(host, &path, host);
    assert!(page.starts_with("HTTP/1.1 200"), "{page}");
    assert!(page.contains("frame-ancestors 'none'") && page.contains("open in ui.perfetto.dev"));
    let trace = get(host, &format!("{path}trace.pftrace"), host);
    assert!(trace.starts_with("HTTP/1.1 200") && trace.contains("gemm"), "{trace}");
    assert!(get(host, "/", host).starts_with("HTTP/1.1 404"));
    assert!(get(host, &path, "evil.example").starts_with("HTTP/1.1 403"));
    served.interrupt();
}
