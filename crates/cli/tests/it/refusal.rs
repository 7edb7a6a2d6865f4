//! Tests of commands that are refused before any work begins, and of the messages they print.

use testkit::ProgramOutput;

use crate::fixture::Place;

/// Runs a command that must end with the exit code `code`, and print all texts of `expected` on
/// stderr.
fn check(words: &str, code: i32, expected: &[&str]) {
    check_in(&Place::new(), words, code, expected);
}

/// Runs a command like [`check`], but in a folder that contains the files that the command names.
fn check_in(place: &Place, words: &str, code: i32, expected: &[&str]) {
    let ran = place.run(words);
    assert_eq!(ran.code, Some(code), "rowmill {words}\n{}", ran.stderr);
    for text in expected {
        assert!(ran.stderr.contains(text), "rowmill {words}: no {text:?} in\n{}", ran.stderr);
    }
    assert_eq!(ran.stdout, "", "rowmill {words}");
}

#[test]
fn an_unknown_configuration_lists_the_known_ones() {
    check(
        "train dlrm-defualt",
        2,
        &["error: configuration \"dlrm-defualt\"", "did you mean dlrm-default?", "adult-income"],
    );
}

#[test]
fn an_unknown_key_is_named() {
    check("train job.toml --train train.csv --set rows=3", 2, &["error:", "--set rows", "hint:"]);
    check(
        "train job.toml --train train.csv --set training.batchsize=3",
        2,
        &["error: configuration job.toml", "batchsize"],
    );
}

#[test]
fn a_wrong_layer_width_names_the_layer_and_both_widths() {
    check(
        "train job.toml --train train.csv --set bottom=[8,5]",
        2,
        &["model.bottom", "layer 1, width 5", "dim = 4"],
    );
}

#[test]
fn a_run_beyond_the_memory_names_both_sizes_the_largest_parts_and_a_rows_cap() {
    // The run needs more memory than any machine has, so the test gives the same result everywhere.
    let tables = "--set model.tables=[{name=\"C{1..26}\",rows=4000000000000,dim=128}]";
    let words =
        format!("train dlrm-dcnv2 {tables} --set batch_size=256 --synthetic 1000 --run run");
    let place = Place::new();
    let expected = [
        "error: dlrm-dcnv2: expected a run of at most",
        "PiB while",
        "table weights",
        "table optimizer states",
        "hint: --set rows_cap=",
    ];
    check_in(&place, &words, 2, &expected);
    assert!(!place.path("run").exists(), "nothing is written before the check");
}

#[test]
fn training_without_data_suggests_generated_rows() {
    check("train dlrm-ddp --set rows_cap=1000", 2, &["no training data", "--synthetic"]);
}

#[test]
fn a_missing_file_is_named() {
    check("train job.toml --train nowhere.csv", 2, &["nowhere.csv: no such file"]);
    check("score nowhere train.csv", 2, &["nowhere: no such file"]);
    check("eval .", 1, &["found none"]);
}

#[test]
fn a_file_of_another_kind_is_recognised() {
    let place = Place::new();
    let train = |file: &str, text: &[u8], expected: &[&str]| {
        std::fs::write(place.path(file), text).unwrap();
        let ran = place.run(&format!("train job.toml --train {file} --run run"));
        assert_eq!(ran.code, Some(1), "{}", ran.stderr);
        for part in expected {
            assert!(ran.stderr.contains(part), "{file}: no {part:?} in\n{}", ran.stderr);
        }
        let lines_only = |c: char| !c.is_control() || c == '\n';
        assert!(ran.stderr.chars().all(lines_only), "{file}: {:?}", ran.stderr);
    };
    train("a.tsv", b"y\tu\tv\ta\tb\n1\t2\t3\t4\tk5\n", &["y\\tu\\tv", "data.format=tsv"]);
    let parquet = ["got a Parquet file", "hint: data.format = \"parquet\""];
    train("b.parquet", b"PAR1\x15\x04\x15\x00 \xff\n", &parquet);
    train("c.bin", &[0x1b; 5000], &["there are \\u{1b}", "…"]);
    train("d.gz", &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 1], &["hint: the file is cut short"]);
}

#[test]
fn standard_input_that_needs_two_passes_is_refused() {
    check("train job.toml --train -", 1, &["can be read only once", "cat > FILE"]);
}

#[test]
fn counts_above_their_limits_are_refused() {
    check("train job.toml --train train.csv --threads 100000", 2, &["--threads", "1..=1024"]);
    let place = Place::new();
    std::fs::write(place.path("plan.json"), r#"{"world_size": 4000000000, "tiles": []}"#).unwrap();
    let ran = place.run("train job.toml --train train.csv --plan plan.json");
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("world_size: expected 1..=1024, got 4000000000"), "{ran:?}");
}

#[cfg(unix)]
#[test]
fn paths_that_are_not_utf8_are_accepted() {
    use std::os::unix::ffi::OsStrExt;

    let place = Place::new();
    let run = std::ffi::OsStr::from_bytes(b"run-\xff");
    let mut train = place.command("train job.toml --train train.csv --format json --run");
    let ran = ProgramOutput::collect(train.arg(run));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(place.path("").join(run).join("checkpoints").exists(), "{}", ran.stdout);
    assert!(ran.last()["checkpoint"].as_str().unwrap().starts_with("run-\u{fffd}/"), "{ran:?}");
    let mut info = place.command("checkpoint info --format json");
    let ran = ProgramOutput::collect(info.arg(run));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
}

#[test]
fn hosts_are_not_contacted_without_a_token() {
    let words = ["hint: name the file with the secret", "no token for the agents of other hosts"];
    check("fleet hosts --hosts a,b", 2, &words);
    let place = Place::new();
    std::fs::write(place.path("ops.token"), "\n").unwrap();
    let words = ["ops.token: expected the secret", "got an empty file", "hint: write the secret"];
    check_in(&place, "fleet hosts --hosts a --token-file ops.token", 2, &words);
}

#[test]
fn a_viewers_token_is_sent_to_other_hosts_over_tls_only() {
    let place = Place::new();
    std::fs::write(place.path("viewer.token"), "0123456789abcdef\n").unwrap();
    let words = ["expected https://HOST:PORT", "hint: the token would be readable"];
    check_in(&place, "fleet report --hub http://hub:9470 --token-file viewer.token", 2, &words);
    let nobody = "fleet job 7 --hub http://127.0.0.1:9 --token-file viewer.token";
    check_in(&place, nobody, 1, &["the hub at http://127.0.0.1:9", "hint: `rowmill-hub serve`"]);
}

#[test]
fn without_an_agent_the_error_says_how_to_start_one() {
    let place = Place::new();
    let ran = place.run("fleet status --socket-dir .");
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stdout.contains("no answer"), "{}", ran.stdout);
    for wanted in ["/rowmill/agent", "hint: start rowmill-agent", "--socket-dir /run/kineto"] {
        assert!(ran.stderr.contains(wanted), "expected {wanted:?} in {}", ran.stderr);
    }
    let traced = place.run("fleet trace --socket-dir .");
    assert_eq!(traced.code, Some(1), "{}", traced.stderr);
    assert!(traced.stderr.contains("error: no trace was started: this host: no agent answers"));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    std::fs::write(place.path("ops.token"), "0123456789abcdef\n").unwrap();
    let ran = place.run(&format!("fleet status --hosts {address} --token-file ops.token"));
    assert!(ran.stderr.contains("hint: nothing listens at this port"), "{}", ran.stderr);
}
