use std::collections::BTreeMap;

use fleet::proto::{
    Body, Entry, EntryBatch, GpuInterval, GpuRun, HostEvent, RunReport, StepInterval, VERSION,
};
use prost::Message;

use super::{BatchRefusal, CheckedBatch, DAMAGED, REFUSED, TOO_LARGE, decode};
use crate::tokens::{TokenGrant, TokenRole};

/// Decodes a batch that was sent with the token of its host.
fn decode_all(bytes: &[u8]) -> Result<CheckedBatch, BatchRefusal> {
    decode(bytes, &TokenGrant::new(TokenRole::Agent, "gpu-1"))
}

fn batch(entries: Vec<Entry>) -> EntryBatch {
    let host = "gpu-1".to_owned();
    let (version, queue, sent_unix_ms) = (VERSION, vec![7; 16], None);
    EntryBatch { version, host, queue, gone_through: 2, entries, sent_unix_ms }
}

fn gpu(change: impl FnOnce(&mut GpuInterval)) -> EntryBatch {
    let mut row = GpuInterval { length_s: 10, observed_s: 10.0, ..GpuInterval::default() };
    change(&mut row);
    batch(vec![Entry { sequence: 3, body: Some(Body::Gpu(Box::new(row))) }])
}

fn check(batch: &EntryBatch) -> Result<u64, (u16, String)> {
    let checked = decode_all(&batch.encode_to_vec());
    checked.map(|batch| batch.through).map_err(|refusal| (refusal.status, refusal.reason))
}

#[test]
fn an_empty_batch_confirms_what_is_gone() {
    assert_eq!(check(&batch(Vec::new())), Ok(2));
    assert_eq!(check(&gpu(|_| ())), Ok(3));
}

#[test]
fn impossible_rows_are_refused_for_good_with_a_reason() {
    type Change = fn(&mut GpuInterval);
    let cases: [(Change, &str); 6] = [
        (|row| row.length_s = 0, "expected an interval of 1 to 3600 s, got 0"),
        (|row| row.observed_s = f64::NAN, "observed, got NaN"),
        (|row| row.observed_s = 30.0, "observed, got 30"),
        (|row| row.start_unix_s = u64::MAX, "year 10000"),
        (|row| row.uuid = "x".repeat(2000), "texts of at most 1024 bytes, got 2000"),
        (|row| row.sums = BTreeMap::from([("busy_s".to_owned(), -1.0)]), "\"busy_s\": expected"),
    ];
    for (change, reason) in cases {
        let (status, got) = check(&gpu(change)).unwrap_err();
        assert_eq!(status, REFUSED);
        assert!(got.starts_with("entry 3: ") && got.contains(reason), "{got}");
    }
    let entry = Entry { sequence: 9, body: None };
    assert_eq!(check(&batch(vec![entry])).unwrap_err().0, REFUSED);
    let queue = EntryBatch { queue: vec![1], ..batch(Vec::new()) };
    assert_eq!(check(&queue).unwrap_err().0, REFUSED);
}

#[test]
fn another_version_is_kept_by_the_agent() {
    let version = |version| check(&EntryBatch { version, ..gpu(|_| ()) });
    assert_eq!((version(1), version(2)), (Ok(3), Ok(3)));
    for wrong in [0, 3] {
        let reason = format!("expected version 1 to 2, got {wrong}");
        assert_eq!(version(wrong), Err((DAMAGED, reason)));
    }
}

#[test]
fn wrong_runs_steps_and_events_are_refused_for_good_with_a_reason() {
    let run = GpuRun { job: "7".to_owned(), ..GpuRun::default() };
    let report = RunReport { run: Some(run), ..RunReport::default() };
    let steps = StepInterval { length_s: 10, steps: 2, timed_steps: 1, ..StepInterval::default() };
    let (kind, details) = ("hang".to_owned(), "{}".to_owned());
    let event = HostEvent { kind, details, ..HostEvent::default() };
    let refusal = |body: Body| {
        check(&batch(vec![Entry { sequence: 3, body: Some(body) }])).map_err(|(status, reason)| {
            assert_eq!(status, REFUSED);
            reason
        })
    };
    let report_with = |change: fn(&mut RunReport)| {
        let mut report = report.clone();
        change(&mut report);
        refusal(Body::Run(Box::new(report)))
    };
    let steps_with = |change: fn(&mut StepInterval)| {
        let mut steps = steps.clone();
        change(&mut steps);
        refusal(Body::Steps(Box::new(steps)))
    };
    let event_with = |change: fn(&mut HostEvent)| {
        let mut event = event.clone();
        change(&mut event);
        refusal(Body::Event(Box::new(event)))
    };
    assert_eq!([report_with(|_| ()), steps_with(|_| ()), event_with(|_| ())], [const { Ok(3) }; 3]);
    let cases = [
        (report_with(|report| report.run = None), "a run with a job"),
        (report_with(|report| report.ended_unix_s = Some(u64::MAX)), "year 10000"),
        (report_with(|report| report.gpus = vec!["x".repeat(2000)]), "at most 1024 bytes"),
        (steps_with(|steps| steps.length_s = 0), "1 to 3600 s"),
        (steps_with(|steps| steps.timed_steps = 3), "at most 2 steps with a known time, got 3"),
        (steps_with(|steps| steps.step_p95_s = Some(f64::NAN)), "\"step_p95_s\": expected"),
        (event_with(|event| event.kind = "a hang".to_owned()), "lowercase letters"),
        (event_with(|event| event.start_unix_ms = u64::MAX), "year 10000"),
        (event_with(|event| event.details = "[1]".to_owned()), "a JSON object"),
        (
            event_with(|event| event.details = format!("{{\"a\":\"{}\"}}", "x".repeat(20_000))),
            "details of at most",
        ),
    ];
    for (outcome, reason) in cases {
        let got = outcome.unwrap_err();
        assert!(got.starts_with("entry 3: ") && got.contains(reason), "{got}");
    }
}

#[test]
fn rows_of_another_host_are_refused_before_they_are_checked() {
    // Even if the rows are wrong, the agent must keep them until its token is corrected.
    let wrong = gpu(|row| row.length_s = 0);
    let bytes = EntryBatch { host: "gpu-2".to_owned(), ..wrong }.encode_to_vec();
    let refusal = decode_all(&bytes).unwrap_err();
    assert_eq!(refusal.status, 403);
    assert!(refusal.reason.contains("host \"gpu-1\", got rows of \"gpu-2\""), "{refusal}");
}

#[test]
fn a_batch_cut_anywhere_never_panics_nor_changes_its_entries() {
    let whole = gpu(|row| row.runs = vec![GpuRun { job: "1".to_owned(), ..GpuRun::default() }]);
    let bytes = whole.encode_to_vec();
    for length in 0..bytes.len() {
        if let Ok(checked) = decode_all(&bytes[..length]) {
            assert!(checked.entries.is_empty(), "{length}");
        }
    }
}

#[test]
fn bombs_are_refused_before_they_are_decoded() {
    let entries = vec![Entry::default(); 1_000_000];
    assert_eq!(check(&batch(entries)).unwrap_err().0, TOO_LARGE);
    let runs = gpu(|row| row.runs = vec![GpuRun::default(); 1_000_000]);
    assert_eq!(check(&runs).unwrap_err().0, TOO_LARGE);
    let gpus = vec![String::new(); 1_000_000];
    let report = Body::Run(Box::new(RunReport { gpus, ..RunReport::default() }));
    let entry = Entry { sequence: 1, body: Some(report) };
    assert_eq!(check(&batch(vec![entry])).unwrap_err().0, TOO_LARGE);
    let entry = Entry { sequence: 1, body: Some(Body::Host(Box::default())) };
    assert_eq!(check(&batch(vec![entry; 5000])).unwrap_err().0, TOO_LARGE);
    assert_eq!(decode_all(&vec![0; (8 << 20) + 1]).unwrap_err().status, TOO_LARGE);
}
