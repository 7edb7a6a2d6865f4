//! Tests of training, evaluation and scoring on small data, with text output and with
//! `--format json`.

use std::os::unix::net::UnixDatagram;
use std::process::Stdio;
use std::time::Duration;

use fleet::steps;
use serde_json::Value;

use crate::fixture::{Place, ROWS};

#[test]
fn the_last_json_line_is_the_result() {
    let place = Place::new();
    let ran = place.done("train job.toml --train train.csv --run run --format json");
    let lines = ran.lines();
    let (last, earlier) = lines.split_last().unwrap();
    let steps = 2 * (ROWS * 4 / 5).div_ceil(32);
    assert_eq!(last["step"], steps, "{last}");
    assert!(last["samples_per_second"].as_f64().unwrap() > 0.0, "{last}");
    assert!(last["loss"].as_f64().unwrap() < 0.69, "{last}");
    let evaluation = &last["evaluation"];
    assert!(evaluation["auc"].as_f64().unwrap() > 0.7, "{last}");
    for name in ["normalized_entropy", "calibration", "accuracy", "loss"] {
        assert!(evaluation[name].is_number(), "{name}: {last}");
    }
    assert!(place.path(last["checkpoint"].as_str().unwrap()).join("manifest.json").exists());
    for event in ["started", "interval", "evaluation", "checkpoint"] {
        assert!(earlier.iter().any(|line| line["event"] == event), "{event}: {}", ran.stdout);
    }
}

#[test]
fn every_run_reports_its_steps_to_the_agent() {
    let place = Place::new();
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let socket = UnixDatagram::bind(folder.path().join(steps::NAME)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let mut command = place.command("train job.toml --train train.csv --run run");
    command.env("KINETO_IPC_SOCKET_DIR", folder.path());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut heard = Vec::new();
    loop {
        let has_ended = child.try_wait().unwrap().is_some();
        let mut bytes = [0; 64];
        match socket.recv(&mut bytes) {
            Ok(length) => heard.push(steps::StepMessage::parse(&bytes[..length]).unwrap()),
            Err(_) if has_ended => break,
            Err(_) => {}
        }
    }
    assert!(child.wait().unwrap().success());
    // Messages that are not read in time are lost. The first message finds an empty queue, so it
    // must arrive.
    assert_eq!((heard[0].phase, heard[0].step), (steps::Phase::Setup, 0));
    assert!(heard.iter().any(|message| message.phase == steps::Phase::Train), "{heard:?}");
    assert!(heard.iter().all(|message| message.own_pid == child.id()), "{heard:?}");
    assert!(heard.is_sorted_by_key(|message| message.step), "{heard:?}");
}

#[test]
fn the_same_run_is_the_same_to_the_bit_for_any_number_of_threads() {
    let place = Place::new();
    let result = |threads: u32| {
        let words = format!(
            "train job.toml --train train.csv --run t{threads} --threads {threads} --format json"
        );
        let last = place.done(&words).last();
        (last["loss"].clone(), last["evaluation"].clone())
    };
    assert_eq!(result(1), result(3));
}

#[test]
fn several_ranks_reach_the_loss_of_one_under_every_sharding() {
    let place = Place::new();
    let loss = |run: &str, more: &str| {
        let words = format!("train job.toml --train train.csv --run {run} --format json {more}");
        place.done(&words).last()["evaluation"]["loss"].as_f64().unwrap()
    };
    let one = loss("one", "--set optimizer.sparse.kind=sgd");
    let two = ["table", "row", "column", "mixed"].map(|sharding| (sharding, "--ranks 2"));
    let four = ["table-row", "grid"].map(|sharding| (sharding, "--ranks 4 --ranks-per-host 2"));
    for (sharding, ranks) in two.into_iter().chain(four) {
        let more = format!("--set optimizer.sparse.kind=sgd {ranks} --sharding {sharding}");
        let several = loss(sharding, &more);
        assert!((one - several).abs() < 1e-4, "{sharding}: {one} and {several}");
    }
}

#[test]
fn ranks_that_do_not_fit_their_hosts_are_refused_before_a_file_is_written() {
    let place = Place::new();
    let job = "train job.toml --train train.csv";
    let refused = |words: &str, run: &str, problem: &str, hint: &str| {
        let ran = place.run(&format!("{words} --run {run}"));
        assert_eq!(ran.code, Some(2), "{words}: {}", ran.stderr);
        assert!(ran.stderr.contains(problem), "{words}: {}", ran.stderr);
        assert!(ran.stderr.contains(&format!("hint: {hint}")), "{words}: {}", ran.stderr);
    };
    let indivisible = "ranks per host: expected a divisor of the 4 ranks, got 3";
    let divisor = "give --ranks-per-host a divisor of the ranks";
    let one_host = "expected several hosts, got one host with 4 ranks";
    let row = "group ranks into hosts (--ranks-per-host N of train";
    let one_rank = "the option '--ranks-per-host' applies only to several ranks";
    for (more, problem, hint) in [
        ("--ranks 4 --ranks-per-host 3", indivisible, divisor),
        ("--ranks 4 --ranks-per-host 3 --sharding grid", indivisible, divisor),
        ("--ranks 4 --sharding table-row", one_host, row),
        ("--ranks 4 --ranks-per-host 4 --sharding grid", one_host, row),
        ("--ranks 1 --ranks-per-host 1", one_rank, "leave the option out"),
    ] {
        refused(&format!("{job} {more}"), "refused", problem, hint);
        assert!(!place.path("refused").exists(), "{more}");
    }
    // A run can be resumed on other hosts, but every host must have equally many ranks.
    let hosts = "--ranks 4 --ranks-per-host 2 --sharding table-row";
    place.done(&format!("{job} {hosts} --set steps=2 --run run"));
    let resume = "train --resume --set steps=3";
    refused(&format!("{resume} --ranks-per-host 3"), "run", indivisible, divisor);
    refused(&format!("{resume} --sharding grid"), "run", one_host, row);
    place.done(&format!("{resume} --run run"));
    place.done("train --resume --set steps=4 --ranks-per-host 1 --run run");
}

#[test]
fn evaluating_a_run_gives_what_training_reported() {
    let place = Place::new();
    let trained = place.done("train job.toml --train train.csv --run run --format json").last();
    let evaluated = place.done("eval run --format json").last();
    for name in ["samples", "auc", "loss"] {
        let value = evaluated["evaluation"].get(name).unwrap_or(&Value::Null);
        let (a, b) = (value.as_f64().unwrap(), trained["evaluation"][name].as_f64().unwrap());
        // Evaluation uses batches of another size, so f32 sums are rounded differently.
        assert!((a - b).abs() < 1e-6, "{name}: {a} and {b}");
    }
}

#[test]
fn tables_are_formatted_for_people() {
    let place = Place::new();
    let ran = place.done("train job.toml --train train.csv --run run");
    assert!(ran.stdout.contains("AUC") && ran.stdout.contains("checkpoint"), "{}", ran.stdout);
    assert!(ran.stderr.contains("rowmill score"), "{}", ran.stderr);
}

#[test]
fn prepared_data_is_reused_and_a_run_is_never_overwritten() {
    let place = Place::new();
    place.done("train job.toml --train train.csv --run run");
    let again = place.run("train job.toml --train train.csv --run run");
    assert_eq!(again.code, Some(2), "{}", again.stderr);
    assert!(again.stderr.contains("already has checkpoints"), "{}", again.stderr);
    assert!(again.stderr.contains("--resume"), "{}", again.stderr);
    let more = place.done("train job.toml --train train.csv --run run --resume --set epochs=3");
    assert!(more.stderr.contains("prepared earlier"), "{}", more.stderr);
}

#[test]
fn a_run_that_cannot_learn_ends_with_a_warning() {
    let place = Place::new();
    let said = |words: &str, expected: &str| {
        let ran = place.done(&format!("train job.toml --train train.csv {words}"));
        assert!(ran.stderr.contains(expected), "{words}: {}", ran.stderr);
    };
    let text = std::fs::read_to_string(place.path("train.csv")).unwrap();
    let clicked = |(row, line): &(usize, &str)| *row == 0 || line.starts_with('1');
    let clicks = text.lines().enumerate().filter(clicked).map(|(_, line)| format!("{line}\n"));
    std::fs::write(place.path("clicks.csv"), clicks.collect::<String>()).unwrap();
    said("--run b --evaluation clicks.csv", "all held-out labels are the same");
    said("--run c --set steps=40", "saved c/checkpoints/step-000000000040");
    said("--run c --set steps=40 --resume", "nothing to train: 40 of 40 steps done");
}

#[test]
fn a_run_that_diverges_ends_with_an_error_that_names_the_last_checkpoint() {
    let place = Place::new();
    let job = "train job.toml --train train.csv --run a";
    place.done(&format!("{job} --set steps=4"));
    let words = "--resume --set optimizer.dense.learning_rate=1e30 --set checkpoint_every=1";
    let ran = place.run(&format!("{job} {words}"));
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    for part in [
        "the loss on the same batch after the step is ",
        "the last checkpoint is a/checkpoints/step-000000000004",
        "hint: lower the",
    ] {
        assert!(ran.stderr.contains(part), "{part}: {}", ran.stderr);
    }
}

#[test]
fn divergence_in_the_first_step_is_an_error_without_a_warning_about_labels() {
    let place = Place::new();
    let wild = "--set steps=1 --set optimizer.dense.learning_rate=1e30";
    for (run, more) in [("a", ""), ("b", "--set hold_out=0.0"), ("c", "--ranks 2")] {
        let words = format!("train job.toml --train train.csv --run {run} {wild} {more}");
        let ran = place.run(&words);
        assert_eq!(ran.code, Some(1), "{}", ran.stderr);
        assert!(ran.stderr.contains("error: step 1: the loss"), "{}", ran.stderr);
        assert!(ran.stderr.contains("no checkpoint was written"), "{}", ran.stderr);
        assert!(!ran.stderr.contains("labels are the same"), "{}", ran.stderr);
        assert!(!place.path(run).join("checkpoints/step-000000000001").exists());
    }
    let ran = place
        .run("train job.toml --train train.csv --run d --set optimizer.sparse.learning_rate=1e39");
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("optimizer.sparse.learning_rate: expected at most 3.4"), "{ran:?}");
}

#[test]
fn options_for_several_ranks_are_refused_on_one() {
    let place = Place::new();
    for (option, value) in [("bucket", "1M"), ("schedule", "serial")] {
        let words = format!("train job.toml --train train.csv --ranks 1 --{option} {value}");
        let refused = place.run(&words);
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
        let text = format!("the option '--{option}' applies only to several ranks, got 1");
        assert!(refused.stderr.contains(&text), "{}", refused.stderr);
        assert!(refused.stderr.contains("hint: leave the option out"), "{}", refused.stderr);
    }
    place.done("train job.toml --train train.csv --ranks 2 --bucket 1M --sharding row --run two");
}

#[test]
fn a_run_records_its_schedule_and_resumes_with_it() {
    let place = Place::new();
    let job = "train job.toml --train train.csv --ranks 2 --sharding row";
    let recorded = |run: &str| {
        let text = std::fs::read_to_string(place.path(run).join("run.json")).unwrap();
        let record: serde_json::Value = serde_json::from_str(&text).unwrap();
        record["schedule"].as_str().unwrap().to_owned()
    };
    for (option, expected) in [
        ("", "pipelined"),
        ("--schedule serial", "serial"),
        ("--schedule all_reduce,input", "input,all_reduce"),
    ] {
        let run = format!("run-{expected}");
        place.done(&format!("{job} --set steps=2 --run {run} {option}"));
        assert_eq!(recorded(&run), expected);
        place.done(&format!("train --resume --run {run} --set steps=3"));
        assert_eq!(recorded(&run), expected);
    }
    let refused = place.run(&format!("{job} --schedule fast"));
    assert!(refused.stderr.contains("expected serial, pipelined, or a list"), "{refused:?}");
}

/// Over column tiles, a plan that splits columns changes the rule of row-wise Adagrad and LAMB.
/// Over whole rows, which is the default, it does not.
#[test]
fn a_plan_that_splits_columns_warns_of_another_rule_over_column_tiles() {
    let place = Place::new();
    let job = "train job.toml --train train.csv --set steps=2 --ranks 2";
    for kind in ["sgd", "adagrad", "rowwise_adagrad", "adam", "sparse_adam", "lamb"] {
        let looks_at_rows = ["rowwise_adagrad", "lamb"].contains(&kind);
        let job = format!("{job} --set optimizer.sparse.kind={kind}");
        let whole = place.done(&format!("{job} --sharding column --run {kind}-whole")).stderr;
        assert!(!whole.contains("another rule"), "{whole}");
        let more = "--set steps=3 --resume --sharding table --run";
        place.done(&format!("{job} {more} {kind}-whole"));
        let tiles = "--set optimizer.row_scope=column_tiles";
        let refused = place.run(&format!("{job} {tiles} --sharding column --run {kind}-refused"));
        assert_eq!(refused.code == Some(0), looks_at_rows, "{}", refused.stderr);
        let job = if looks_at_rows { format!("{job} {tiles}") } else { job };
        let said = |sharding: &str| {
            let run = format!("{kind}-{sharding}");
            place.done(&format!("{job} --sharding {sharding} --run {run}")).stderr
        };
        let expected = format!("warning: {kind} on 2 tables with split columns is another rule");
        assert_eq!(said("column").contains(&expected), looks_at_rows, "{kind}");
        assert!(!said("row").contains("another rule"), "{kind}");
        let info = place.done(&format!("checkpoint info {kind}-column")).stdout;
        let text = "over column tiles (a: 2 column tiles of 2 columns; b: 2 column";
        assert_eq!(info.contains(text), looks_at_rows, "{info}");
        if !looks_at_rows {
            continue;
        }
        let refused = place.run(&format!("{job} {more} {kind}-column"));
        assert_eq!(refused.code, Some(1), "{}", refused.stderr);
        let text = format!("table \"a\": state of {kind}: expected one over whole rows, got");
        assert!(refused.stderr.contains(&text), "{}", refused.stderr);
        assert!(
            refused.stderr.contains("hint: ") && refused.stderr.contains("--accept-rule-change")
        );
        let accepted = place.done(&format!("{job} {more} {kind}-column --accept-rule-change"));
        assert!(accepted.stderr.contains("continues as another rule"), "{}", accepted.stderr);
        // After the accepted step, the run uses the new rule, so no warning is printed.
        let more = "--set steps=4 --resume --sharding row --run";
        let next = place.done(&format!("{job} {more} {kind}-column"));
        assert!(!next.stderr.contains("another rule"), "{}", next.stderr);
        let export = format!("checkpoint export {kind}-row --to torchrec w --optimizer s");
        place.done(&export);
        let refused = place.run(&export.replace("-row", "-column"));
        assert_eq!(refused.code, Some(0), "{}", refused.stderr);
    }
}

#[test]
fn training_writes_a_trace() {
    let place = Place::new();
    let refused =
        "train job.toml --train train.csv --run none --trace nothing --trace-steps 900..910";
    let ran = place.run(refused);
    assert!(ran.stderr.contains("--trace-steps A..B"), "{}", ran.stderr);
    assert!(!place.path("none/checkpoints").exists() && !place.path("nothing").exists());
    place.done("train job.toml --train train.csv --run run --trace traces --trace-steps 3..6");
    let files: Vec<String> = std::fs::read_dir(place.path("traces"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    assert!(files.iter().any(|name| name.contains(".json")), "{files:?}");
}

#[test]
fn generated_rows_fit_the_columns_of_a_job() {
    let place = Place::new();
    let ran = place.done("train job.toml --synthetic 3000 --run run --format json");
    assert!(ran.stderr.contains("generated 3,000 rows"), "{}", ran.stderr);
    assert!(ran.last()["evaluation"]["auc"].is_number(), "{}", ran.stdout);
    // A resumed run must find the prepared rows instead of generating them again.
    let more = place.done("train job.toml --synthetic 3000 --run run --resume --set epochs=3");
    assert!(!more.stderr.contains("generated"), "{}", more.stderr);
    place.done("eval run");
}

#[test]
fn rows_are_generated_for_numbers_that_also_look_up_vectors() {
    let place = Place::new();
    let ran = place.done("train adult-income --synthetic 2000 --set epochs=1 --run run");
    assert!(ran.stderr.contains("generated 2,000 rows"), "{}", ran.stderr);
    place.done("eval run");
}

#[test]
fn generating_zero_rows_is_refused() {
    let place = Place::new();
    for words in ["train adult-income --synthetic 0 --run run", "data synth rows.txt --rows 0"] {
        let ran = place.run(words);
        assert_eq!(ran.code, Some(2), "{words}: {}", ran.stderr);
        assert!(ran.stderr.contains("0 is not in 1.."), "{}", ran.stderr);
    }
    assert!(!place.path("run").exists() && !place.path("rows.txt").exists());
}

#[test]
fn a_plan_file_is_followed_or_refused_with_the_wrong_tile() {
    let place = Place::new();
    let tile = |table: u32, rows: &str, rank: u32| {
        format!(
            r#"{{"table": {table}, "rows": {rows}, "columns": {{"start": 0, "end": 4}}, "rank": {rank}}}"#
        )
    };
    let plan = |last: &str| {
        let first = r#"{"start": 0, "end": 30}"#;
        let second = r#"{"start": 30, "end": 50}"#;
        let tiles = [tile(0, first, 0), tile(0, second, 1), tile(1, last, 1)].join(",");
        std::fs::write(
            place.path("plan.json"),
            format!(r#"{{"world_size": 2, "tiles": [{tiles}]}}"#),
        )
        .unwrap();
    };
    plan(r#"{"start": 0, "end": 20}"#);
    place.done("train job.toml --train train.csv --run run --plan plan.json");
    let info = place.done("checkpoint info run --format json").last();
    assert_eq!(info["world_size"], 2, "{info}");

    plan(r#"{"start": 0, "end": 19}"#);
    let refused = place.run("train job.toml --train train.csv --run other --plan plan.json");
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(
        refused.stderr.contains("expected tiles over 80 weights, got 76"),
        "{}",
        refused.stderr
    );

    let replicate = |tables: &str| {
        let tile = tile(1, r#"{"start": 0, "end": 20}"#, 1);
        let plan = format!(r#"{{"world_size": 2, "tiles": [{tile}], "replicated": {tables}}}"#);
        std::fs::write(place.path("plan.json"), plan).unwrap();
    };
    replicate("[0]");
    place.done("train job.toml --train train.csv --run replicated --plan plan.json");
    let text = place.done("checkpoint info replicated").stdout;
    assert!(text.contains("; 1 of them on every rank"), "{text}");
    // A run that is resumed by its folder alone keeps the replicated table.
    place.done("train --run replicated --resume --set epochs=3");
    assert_eq!(place.done("checkpoint info replicated --format json").last()["replicated"], 1);
    replicate("[0, 1]");
    let refused = place.run("train job.toml --train train.csv --run both --plan plan.json");
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    let text = "table \"b\" is replicated: expected no tile of it, got tile 0";
    assert!(refused.stderr.contains(text), "{}", refused.stderr);
    assert!(!place.path("both").exists());
}

#[test]
fn a_run_records_its_replica_groups_and_resumes_with_them() {
    let place = Place::new();
    let job = "train job.toml --train train.csv --ranks 4 --sharding row --set steps=4";
    let recorded = |run: &str| {
        let text = std::fs::read_to_string(place.path(run).join("run.json")).unwrap();
        let record: serde_json::Value = serde_json::from_str(&text).unwrap();
        (record["world_size"].clone(), record["groups"].clone())
    };
    let groups = |sync_every: u64| serde_json::json!({ "count": 2, "sync_every": sync_every });
    let ran = place.done(&format!("{job} --groups 2 --run sums"));
    assert!(ran.stderr.contains("2 replica groups of 2 ranks sum their gradients"), "{ran:?}");
    assert_eq!(recorded("sums"), (2.into(), groups(1)));
    place.done("train --resume --run sums --set steps=6");
    assert_eq!(recorded("sums"), (2.into(), groups(1)));
    place.done("train --resume --run sums --set steps=10 --sync-every 5");
    assert_eq!(recorded("sums"), (2.into(), groups(5)));
    place.done("train --resume --run sums --set steps=12 --groups 1");
    assert_eq!(recorded("sums"), (4.into(), serde_json::Value::Null));
}

#[test]
fn replica_groups_that_do_not_fit_are_refused_before_a_file_is_touched() {
    let place = Place::new();
    for (options, expected) in [
        ("--ranks 3 --groups 2", "replica groups: expected a divisor of 3 ranks, got 2"),
        ("--groups 2", "replica groups: expected a divisor of 1 rank, got 2"),
        ("--ranks 2 --sync-every 3", "'--sync-every' applies only to several replica groups"),
        ("--ranks 2 --groups 2 --sync-every 0", "invalid value '0' for '--sync-every <N>'"),
        ("--ranks 2 --groups 0", "invalid value '0' for '--groups <N>'"),
        (
            "--ranks 2 --groups 2 --sync-every 10",
            "training.checkpoint_every: expected a multiple of 10 steps",
        ),
        ("--ranks 2 --groups 2 --sync-every 10", "set training.checkpoint_every=30"),
        (
            "--ranks 2 --groups 2 --sync-every 5 --sharding replicated",
            "--sync-every 5: expected a table that groups train apart",
        ),
    ] {
        let refused = place.run(&format!("train job.toml --train train.csv --run run {options}"));
        assert_eq!(refused.code, Some(2), "{options}: {}", refused.stderr);
        assert!(refused.stderr.contains(expected), "{options}: {}", refused.stderr);
        assert!(!place.path("run").exists(), "{options}");
    }
    let words = "train job.toml --train train.csv --run run --ranks 2 --groups 2 --sync-every 5";
    let ran = place.done(&format!("{words} --set steps=3"));
    let once = "average their tables once, at the end, because --sync-every 5 is more than the 3 \
                steps of the run";
    assert!(ran.stderr.contains(once), "{}", ran.stderr);
}

#[test]
fn a_run_keeps_its_kind_of_sharding_on_another_number_of_ranks() {
    let place = Place::new();
    let record = |run: &str| -> serde_json::Value {
        let text = std::fs::read(place.path(run).join("run.json")).unwrap();
        serde_json::from_slice(&text).unwrap()
    };
    let job = "train job.toml --train train.csv --set steps=4";
    place.done(&format!("{job} --ranks 2 --sharding row --run rows"));
    let tiles_of_two = record("rows")["tiles"].clone();
    for (steps, more, world_size) in [(5, "--ranks 3", 3), (6, "", 3), (7, "--ranks 1", 1)] {
        place.done(&format!("train --resume --run rows --set steps={steps} {more}"));
        let record = record("rows");
        assert_eq!(
            (&record["sharding"], &record["world_size"]),
            (&"row".into(), &world_size.into())
        );
        let tiles = record["tiles"].as_array().unwrap().len();
        assert_eq!(tiles, 2 * world_size, "a tile of both tables on each of {world_size} ranks");
    }
    // The plan of a file, and those of runs that earlier versions recorded, have no rule.
    let plan = serde_json::json!({ "world_size": 2, "tiles": tiles_of_two });
    std::fs::write(place.path("plan.json"), plan.to_string()).unwrap();
    place.done(&format!("{job} --plan plan.json --run file"));
    let resume = "train --resume --run file --set steps=5";
    let refused = place.run(&format!("{resume} --ranks 3"));
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("the sharding plan of the run is for 2 ranks"), "{refused:?}");
    assert!(refused.stderr.contains("hint: choose how to split the tables"), "{refused:?}");
    place.done(&format!("{resume} --ranks 2"));
    place.done(&format!("{resume} --ranks 3 --sharding column --set steps=6"));
}

#[test]
fn a_run_says_that_its_data_ended_before_its_steps() {
    let place = Place::new();
    let job = "train job.toml --train train.csv --set epochs=1";
    let ended = place.done(&format!("{job} --set steps=9000 --run short")).stdout;
    let early = "after 1 epoch (training.epochs), before 9,000 steps";
    assert!(ended.contains(early), "{ended}");
    let whole = place.done(&format!("{job} --set steps=3 --run whole")).stdout;
    assert!(!whole.contains("ended early"), "{whole}");
}

#[test]
fn tables_in_files_train_to_the_same_loss() {
    let place = Place::new();
    let words = "train job.toml --train train.csv --format json --run";
    let memory = place.done(&format!("{words} a")).last();
    let storage = "--set storage.folder=files --set storage.cache_mib=1";
    let missing = place.run(&format!("{words} b {storage}"));
    assert_ne!(missing.code, Some(0));
    assert!(
        missing.stderr.contains("expected an existing folder, got files"),
        "{}",
        missing.stderr
    );
    std::fs::create_dir(place.path("files")).unwrap();
    let stored = place.done(&format!("{words} b {storage}")).last();
    assert_eq!(memory["loss"], stored["loss"]);
    assert_eq!(memory["evaluation"], stored["evaluation"]);
    assert!(memory.get("caches").is_none(), "{memory}");
    let tables: Vec<&str> =
        stored["caches"].as_array().unwrap().iter().map(|c| c["table"].as_str().unwrap()).collect();
    assert_eq!(tables, ["a", "b"]);
    // The configuration in the checkpoint names the folder, which inference does not need.
    std::fs::remove_dir(place.path("files")).unwrap();
    place.done("eval b");
    std::fs::create_dir(place.path("files")).unwrap();
    let resumed = place.done("train --resume --run b --set epochs=3").stdout;
    assert!(resumed.contains("of the rows of batches missed"), "{resumed}");
    let refused = place.run(&format!("{words} c {storage} --device emulated"));
    assert_ne!(refused.code, Some(0));
    assert!(refused.stderr.contains("expected training on CPUs"), "{}", refused.stderr);
}
