//! Tests of the help, the completion scripts and the list of configurations.

use crate::fixture::Place;

#[test]
fn help_names_every_verb_and_where_to_start() {
    let ran = Place::new().done("--help");
    for verb in [
        "quickstart",
        "train",
        "eval",
        "score",
        "data",
        "checkpoint",
        "trace",
        "predict",
        "completions",
    ] {
        assert!(ran.stdout.contains(verb), "{verb}: {}", ran.stdout);
    }
    assert!(
        ran.stdout.contains("Start here") && ran.stdout.contains("Exit codes"),
        "{}",
        ran.stdout
    );
}

#[test]
fn the_help_of_a_verb_shows_examples() {
    let place = Place::new();
    for verb in [
        "quickstart",
        "train",
        "eval",
        "score",
        "data synth",
        "data convert",
        "data stats",
        "data cache",
        "checkpoint info",
        "checkpoint verify",
        "checkpoint export",
        "checkpoint import",
        "trace",
        "trace breakdown",
        "trace idle",
        "trace kernels",
        "trace ops",
        "trace overlap",
        "trace launches",
        "trace queue",
        "trace memory",
        "trace steps",
        "trace diff",
        "trace collectives",
        "trace stragglers",
        "trace critical-path",
        "trace merge",
        "trace convert",
        "trace doctor",
        "trace report",
        "trace serve",
        "trace execution-trace",
        "trace findings",
        "predict",
        "predict calibrate",
        "predict step",
        "predict sweep",
        "predict learn",
        "predict what-if",
        "predict next",
        "predict serve",
        "predict resize",
        "predict evaluate",
        "predict kernels",
        "tune",
        "capture",
        "doctor capture",
        "doctor links",
        "explain",
        "completions",
    ] {
        let ran = place.done(&format!("{verb} --help"));
        assert!(ran.stdout.contains("Example"), "{verb}: {}", ran.stdout);
        assert!(!ran.stdout.contains('\u{1b}'), "{verb}: colour on a pipe");
    }
}

#[test]
fn completions_print_a_shell_script() {
    let ran = Place::new().done("completions bash");
    assert!(ran.stdout.contains("_rowmill") && ran.stdout.contains("quickstart"));
}

#[test]
fn the_list_names_the_ready_made_models() {
    let place = Place::new();
    let table = place.done("train --list").stdout;
    let json = place.done("train --list --format json").last();
    let listed: Vec<&str> =
        json.as_array().unwrap().iter().map(|job| job["name"].as_str().unwrap()).collect();
    for name in ["adult-income", "dlrm-criteo-kaggle", "dlrm-dcnv2", "dlrm-default", "dlrm-mlperf"]
    {
        assert!(listed.contains(&name) && table.contains(name), "{name}: {table}");
    }
}

#[test]
fn a_wrong_option_is_a_usage_error() {
    let ran = Place::new().run("train --nonsense");
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("--nonsense"), "{}", ran.stderr);
}
