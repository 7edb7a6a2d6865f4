//! Tests that inputs over a network give the same rows as files on disk, whatever fails on the way.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

use data::{Begin, Error, InputOrigin, RemoteProblem, profile};
use serde_json::json;
use testkit::object_server::{ObjectServer, ServerBehavior};

use crate::fixture::{Folder, config, criteo, request};

/// Returns a few megabytes of rows, so that several parts are fetched.
fn rows() -> Vec<u8> {
    let mut text = b"y,u,a\n".to_vec();
    for i in 0..120_000u64 {
        writeln!(text, "{},{}.25,name-{}", i % 2, i % 977, i * 7919 % 1000).unwrap();
    }
    text
}

/// Returns the bytes of the rows, which do not depend on the names of the inputs.
fn bytes_of(dataset: &data::Dataset) -> Vec<(String, Vec<u8>)> {
    let mut files = crate::fixture::bytes_of(dataset);
    files.retain(|(name, _)| name.ends_with(".parquet"));
    assert!(!files.is_empty());
    files
}

fn columns(format: &str) -> schema::DataConfig {
    config(json!({
        "format": format, "label": {"column": "y"}, "dense": [{"column": "u"}],
        "categorical": [{"column": "a", "kind": "string"}],
    }))
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(content).unwrap();
    packed.finish().unwrap()
}

#[test]
fn issue_28_text_over_http_gives_the_rows_of_files() {
    let folder = Folder::new();
    let (text, config) = (rows(), columns("csv"));
    let file = folder.file("rows.csv", &text);
    let expected = bytes_of(&folder.prepare("of-file", &[file], &config).dataset);
    let manners = [
        ServerBehavior::default(),
        ServerBehavior { break_every: Some(3), busy_every: Some(5), ..ServerBehavior::default() },
        ServerBehavior { no_ranges: true, ..ServerBehavior::default() },
        ServerBehavior {
            no_ranges: true,
            no_length: true,
            no_version: true,
            ..ServerBehavior::default()
        },
        ServerBehavior { no_ranges: true, break_every: Some(4), ..ServerBehavior::default() },
    ];
    for (i, manners) in manners.into_iter().enumerate() {
        let server = ObjectServer::start(manners.clone());
        for (name, content) in [("plain", text.clone()), ("packed", gzip(&text))] {
            let url = server.put(&format!("/{name}"), &content);
            let made = folder.prepare(&format!("{name}-{i}"), &[url], &config);
            assert!(bytes_of(&made.dataset) == expected, "{name} {manners:?}");
            assert_eq!(made.origins.len(), usize::from(!manners.no_version));
            assert!(made.origins.iter().all(InputOrigin::is_untouched), "{:?}", made.origins);
        }
    }
}

#[test]
fn issue_28_parquet_over_http_fetches_only_the_wanted_columns() {
    let folder = Folder::new();
    // A part of a dataset serves as a Parquet file with several row groups.
    let file = folder.file("rows.csv", &rows());
    let made = folder.prepare("parts", &[file], &columns("csv")).dataset;
    let part = std::fs::read_dir(made.dir()).unwrap().map(|entry| entry.unwrap().path());
    let part = part.filter(|path| path.extension().is_some_and(|end| end == "parquet"));
    let part = part.min().unwrap();
    let content = std::fs::read(&part).unwrap();
    let config = config(json!({
        "format": "parquet", "label": {"column": "label"}, "dense": [],
        "categorical": [{"column": "categorical_a", "kind": "integer"}],
    }));
    let path = part.to_str().unwrap().to_owned();
    let expected = bytes_of(&folder.prepare("of-file", &[path], &config).dataset);
    for (i, break_every) in [None, Some(3)].into_iter().enumerate() {
        let server =
            ObjectServer::start(ServerBehavior { break_every, ..ServerBehavior::default() });
        let url = server.put("/part.parquet", &content);
        let made = folder.prepare(&format!("of-object-{i}"), &[url], &config);
        assert!(bytes_of(&made.dataset) == expected, "{break_every:?}");
        assert!(made.origins[0].is_untouched());
    }
    let server =
        ObjectServer::start(ServerBehavior { no_ranges: true, ..ServerBehavior::default() });
    let url = server.put("/part.parquet", &content);
    let error = folder.try_prepare("no", &[url], &config, None).unwrap_err();
    assert!(error.to_string().contains("supports range requests"), "{error}");
}

#[test]
fn issue_28_an_interrupted_preparation_resumes_without_reading_again() {
    let folder = Folder::new();
    let path = folder.path("rows.tsv");
    let made = data::synthetic::SyntheticConfig::criteo(60_000, 3);
    data::synthetic::write(&made, &path, 2, &mut |_| {}).unwrap();
    let content = std::fs::read(&path).unwrap();
    let config = criteo("criteo-dlrm", &json!({"mode": "modulo"}));
    let whole = folder.prepare("whole", &[path.to_str().unwrap().to_owned()], &config);
    let server = ObjectServer::start(ServerBehavior::default());
    let inputs = [server.put("/rows.tsv", &content)];
    let out = folder.path("cut");
    let mut watch = |p: data::DataProgress| assert!(p.rows < 45_000, "stopped on purpose");
    let request = request(&inputs, &config, None, &out);
    assert!(catch_unwind(AssertUnwindSafe(|| data::prepare(&request, &mut watch))).is_err());
    let before = server.requests().len();
    let resumed = data::prepare(&request, &mut |_| {}).unwrap();
    assert!(bytes_of(&resumed.dataset) == bytes_of(&whole.dataset));
    let asked = server.requests().split_off(before);
    let mut ranges = asked.iter().map(|request| {
        let range = request.headers["range"].trim_start_matches("bytes=");
        let (first, last) = range.split_once('-').unwrap();
        (first.parse::<usize>().unwrap(), last.parse::<usize>().unwrap())
    });
    // Every reader begins with a short part. One reader must have started after the rows that were
    // already prepared.
    let begins = |&(first, last): &(usize, usize)| last + 1 - first == 256 << 10 && first > 0;
    let began = ranges.find(begins).unwrap().0;
    assert!(began > content.len() / 20, "{began} of {}", content.len());

    // Results that belong to another version of the object must be refused.
    assert!(
        catch_unwind(AssertUnwindSafe(|| {
            let out = folder.path("changed");
            data::prepare(&crate::fixture::request(&inputs, &config, None, &out), &mut watch)
        }))
        .is_err()
    );
    server.put("/rows.tsv", &content[..content.len() / 2]);
    let out = folder.path("changed");
    let mut request = crate::fixture::request(&inputs, &config, None, &out);
    let error = data::prepare(&request, &mut |_| {}).map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::InputChanged { .. }), "{error}");
    request.begin = Begin::Restart;
    data::prepare(&request, &mut |_| {}).unwrap();
}

#[test]
fn issue_28_network_errors_name_the_cause() {
    let folder = Folder::new();
    let config = columns("csv");
    let text = rows();
    let denied = "<Error><Code>AccessDenied</Code><Message>Access Denied.</Message></Error>";
    type Is = fn(&RemoteProblem) -> bool;
    let cases: [(ServerBehavior, Is, &str); 4] = [
        (
            ServerBehavior { refuse: Some((404, "")), ..ServerBehavior::default() },
            |problem| matches!(problem, RemoteProblem::NotFound { .. }),
            "not found (HTTP status 404)",
        ),
        (
            ServerBehavior { refuse: Some((403, denied)), ..ServerBehavior::default() },
            |problem| matches!(problem, RemoteProblem::Denied { .. }),
            "access denied (HTTP status 403, AccessDenied: Access Denied)",
        ),
        (
            ServerBehavior { refuse: Some((503, "")), ..ServerBehavior::default() },
            |problem| matches!(problem, RemoteProblem::Unreachable { .. }),
            "after 4 tries: HTTP status 503",
        ),
        (
            ServerBehavior { change_after: Some(5), ..ServerBehavior::default() },
            |problem| matches!(problem, RemoteProblem::Changed { .. }),
            "changed while it was being read",
        ),
    ];
    for (i, (manners, is, said)) in cases.into_iter().enumerate() {
        let server = ObjectServer::start(manners);
        let url = server.put("/rows.csv", &text);
        let error = folder
            .try_prepare(&format!("out-{i}"), std::slice::from_ref(&url), &config, None)
            .unwrap_err();
        let (Error::Open { source, .. } | Error::Read { source, .. }) = &error else {
            panic!("{error}")
        };
        assert!(is(RemoteProblem::find_in(source).unwrap()), "{error}");
        assert!(error.to_string().contains(said) && error.to_string().contains(&url), "{error}");
    }
    // No server listens on this port.
    let url = "http://127.0.0.1:1/rows.csv".to_owned();
    let error = folder.try_prepare("nobody", &[url], &config, None).unwrap_err().to_string();
    assert!(error.contains("no answer from 127.0.0.1:1"), "{error}");
    let url = "http://no-such-host.invalid/rows.csv".to_owned();
    let error = folder.try_prepare("no-host", &[url], &config, None).unwrap_err().to_string();
    assert!(error.contains("no answer from no-such-host.invalid"), "{error}");
    let error = folder.try_prepare("no-key", &["s3://b".to_owned()], &config, None).unwrap_err();
    assert!(error.to_string().contains("expected a bucket and the name of one object"), "{error}");
    let error =
        profile::profile_files(&["http://127.0.0.1:1/x.npy".to_owned()], None, 1, &mut |_| {});
    assert!(error.map(|_| ()).unwrap_err().to_string().contains("copy them first"));
}

#[test]
fn issue_28_an_unchanged_object_is_recognized_and_an_empty_one_refused() {
    let server = ObjectServer::start(ServerBehavior::default());
    let url = server.put("/rows.csv", b"y,u,a\n1,2,x\n");
    let origin = InputOrigin::read(&url, &mut |_| {}).unwrap().unwrap();
    assert!(origin.is_untouched());
    assert_eq!(origin.bytes(), 12);
    let asked = server.requests();
    assert!(asked.iter().all(|request| request.method == "GET" && request.body.is_empty()));
    server.set_behavior(ServerBehavior { refuse: Some((503, "")), ..ServerBehavior::default() });
    assert!(!origin.is_untouched(), "nobody vouches for it");
    server.set_behavior(ServerBehavior::default());
    server.put("/rows.csv", b"y,u,a\n1,3,x\n");
    assert!(!origin.is_untouched());
    let now = InputOrigin::read(&url, &mut |_| {}).unwrap().unwrap();
    assert!(!now.has_content_of(&origin));
    let text = serde_json::to_string(&now).unwrap();
    assert_eq!(serde_json::from_str::<InputOrigin>(&text).unwrap(), now);
    let folder = Folder::new();
    let empty = server.put("/empty.csv", b"");
    let error = folder.try_prepare("out", &[empty], &columns("csv"), None).unwrap_err();
    assert!(matches!(error, Error::EmptyInput { .. }), "{error}");
}
