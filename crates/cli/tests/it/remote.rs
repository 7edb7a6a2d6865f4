//! Tests of training and scoring on data in an object store, by the real binary.

use std::fs;
use std::process::Command;

use testkit::ProgramOutput;
use testkit::object_server::{ObjectServer, ServerBehavior};

use crate::fixture::Place;
use crate::processes::files;

/// Returns a command that finds no credentials except the test's own keys, and no object store
/// except `server`.
fn alone(place: &Place, words: &[&str], server: &ObjectServer, keys: bool) -> Command {
    let mut command = place.command("");
    command.args(words).env("AWS_ENDPOINT_URL", format!("http://{}", server.host));
    command.env("AWS_EC2_METADATA_DISABLED", "true").env("HOME", place.path("."));
    if keys {
        command.env("AWS_ACCESS_KEY_ID", "ID").env("AWS_SECRET_ACCESS_KEY", "secret");
    }
    command
}

#[test]
fn issue_28_training_data_may_lie_in_a_store() {
    let place = Place::new();
    let server =
        ObjectServer::start(ServerBehavior { busy_every: Some(7), ..ServerBehavior::default() });
    let rows = fs::read(place.path("train.csv")).unwrap();
    server.put("/bucket/day%201/train.csv", &rows);
    let of = |input: &str, run: &str| {
        let words = ["train", "job.toml", "--train", input, "--run", run, "--format", "json"];
        let ran = ProgramOutput::collect(&mut alone(&place, &words, &server, true));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let last = ran.last();
        let checkpoint = files(&place.path(last["checkpoint"].as_str().unwrap()));
        let weights = |name: &String| name.ends_with(".safetensors");
        let weights: Vec<_> = checkpoint.into_iter().filter(|(name, _)| weights(name)).collect();
        assert!(!weights.is_empty());
        (last["loss"].clone(), last["evaluation"].clone(), weights)
    };
    let url = "s3://bucket/day 1/train.csv";
    assert!(of(url, "there") == of("train.csv", "here"));
    // The commands score, init and stats must read from the object store, too.
    let words = ["score", "there", url, "--output", "there.txt"];
    let ran = ProgramOutput::collect(&mut alone(&place, &words, &server, true));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    place.done("score here train.csv --output here.txt");
    assert_eq!(
        fs::read(place.path("there.txt")).unwrap(),
        fs::read(place.path("here.txt")).unwrap()
    );
    for words in [&["init", url][..], &["data", "stats", url]] {
        let ran = ProgramOutput::collect(&mut alone(&place, words, &server, true));
        assert_eq!(ran.code, Some(0), "{words:?} {}", ran.stderr);
    }
    assert!(fs::read_to_string(place.path("train.toml")).unwrap().contains(url));
    // The same version of the object must not be prepared again, but a new version must be.
    let resumed = |steps: &str| {
        let steps = format!("training.epochs={steps}");
        let words = ["train", "job.toml", "--train", url, "--run", "there", "--resume"];
        let words = [&words[..], &["--set", &steps]].concat();
        ProgramOutput::collect(&mut alone(&place, &words, &server, true)).stderr
    };
    assert!(resumed("3").contains("using the data prepared earlier"));
}

#[test]
fn issue_28_a_store_that_refuses_is_reported_with_a_way_out() {
    let place = Place::new();
    let cases = [
        (Some((403, "")), false, 2, "access denied (HTTP status 403)", "AWS_ACCESS_KEY_ID"),
        (
            Some((403, "")),
            true,
            2,
            "with the key ID of AWS_ACCESS_KEY_ID",
            "need the right to read",
        ),
        (None, true, 2, "not found (HTTP status 404)", "compare the address with a listing"),
        (Some((503, "")), true, 1, "after 4 tries: HTTP status 503", "AWS_ENDPOINT_URL"),
    ];
    for (refuse, keys, code, said, hint) in cases {
        let server = ObjectServer::start(ServerBehavior { refuse, ..ServerBehavior::default() });
        let words = ["train", "job.toml", "--train", "s3://bucket/none.csv", "--run", "run"];
        let ran = ProgramOutput::collect(&mut alone(&place, &words, &server, keys));
        assert_eq!(ran.code, Some(code), "{}", ran.stderr);
        assert!(
            ran.stderr.contains(said) && ran.stderr.contains("s3://bucket/none.csv"),
            "{}",
            ran.stderr
        );
        assert!(ran.stderr.contains("hint:") && ran.stderr.contains(hint), "{}", ran.stderr);
    }
}
