use std::time::Duration;

use super::{CaptureRequest, Reason, RequestState, Sight, Timing};

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const AT: Timing = Timing::At { start: s(20), warmup: s(2), length: Duration::from_millis(500) };

fn request(timing: Timing) -> CaptureRequest {
    CaptureRequest::new(s(0), "A=1\n".into(), "id".into(), timing, s(30))
}

fn alive() -> Sight {
    Sight { is_alive: true, ..Sight::default() }
}

fn growing(bytes: u64) -> Sight {
    Sight { growing: Some(bytes), ..alive() }
}

fn finished(id: &str) -> Sight {
    Sight { finished: Some(id.to_owned()), ..alive() }
}

fn unwritable() -> Sight {
    Sight { unwritable: Some("no".into()), ..alive() }
}

fn lost(reason: Reason) -> RequestState {
    RequestState::Lost(reason)
}

fn acknowledged(timing: Timing) -> CaptureRequest {
    let mut request = request(timing);
    assert_eq!(request.poll(s(1), true), Some("A=1\n"));
    assert_eq!(request.state(), &RequestState::Sent);
    request.poll(s(6), true);
    assert_eq!(request.state(), &RequestState::Acknowledged);
    request
}

fn started() -> CaptureRequest {
    let mut request = acknowledged(Timing::Iterations);
    request.look(s(7), &growing(0));
    assert_eq!(request.state(), &RequestState::Started);
    request
}

#[test]
fn from_request_to_trace() {
    let mut request = request(Timing::Iterations);
    assert_eq!(request.state(), &RequestState::Requested);
    assert_eq!(request.poll(s(1), true), Some("A=1\n"));
    request.look(s(2), &alive());
    assert_eq!(request.state(), &RequestState::Sent);
    request.look(s(3), &growing(0));
    assert_eq!(request.state(), &RequestState::Started);
    assert_eq!(request.poll(s(6), false), None);
    request.look(s(7), &growing(100));
    request.look(s(8), &finished("id"));
    assert_eq!(request.state(), &RequestState::Finished);
    assert!(!request.is_over());
    request.look(s(38), &Sight::default());
    request.collected();
    assert_eq!(request.state(), &RequestState::Written);
    assert!(request.is_over());
    request.look(s(9), &Sight::default());
    request.lose(Reason::Interrupted);
    assert_eq!(request.poll(s(11), true), None);
    assert_eq!(request.state(), &RequestState::Written);
}

#[test]
fn busy_profiler_is_lost_after_the_timeout() {
    let mut patient = request(Timing::Iterations);
    assert_eq!(patient.poll(s(1), false), None);
    assert_eq!(patient.state(), &RequestState::Requested);
    assert_eq!(patient.poll(s(6), true), Some("A=1\n"));
    let mut refused = request(Timing::Iterations);
    refused.poll(s(1), false);
    refused.look(s(30), &alive());
    assert_eq!(refused.state(), &RequestState::Requested);
    refused.look(s(31), &alive());
    assert_eq!(refused.state(), &lost(Reason::Busy));
    let mut late = request(AT);
    late.poll(s(1), false);
    late.look(s(18), &alive());
    assert_eq!(late.state(), &lost(Reason::Busy));
}

#[test]
fn process_without_polls_is_silent() {
    let mut request = request(Timing::Iterations);
    request.look(s(31), &alive());
    assert_eq!(request.state(), &lost(Reason::Silent));
    let mut request = acknowledged(Timing::Iterations);
    request.look(s(31), &alive());
    assert_eq!(request.state(), &lost(Reason::Silent));
}

#[test]
fn process_may_end_in_any_state() {
    for mut request in [request(AT), acknowledged(AT), started()] {
        request.look(s(8), &Sight::default());
        assert_eq!(request.state(), &lost(Reason::Killed));
    }
    // A process may also end right after it has written its trace.
    let mut request = started();
    request.look(s(8), &Sight { is_alive: false, ..finished("id") });
    assert_eq!(request.state(), &RequestState::Finished);
}

#[test]
fn request_with_a_start_too_soon_is_not_sent() {
    let mut near = request(AT);
    assert_eq!(near.poll(Duration::from_millis(17_001), true), None);
    assert_eq!(near.state(), &lost(Reason::StartTooNear));
    let mut just = request(AT);
    assert!(just.poll(s(17), true).is_some());
    let mut waiting = request(AT);
    waiting.look(s(18), &alive());
    assert_eq!(waiting.state(), &lost(Reason::StartTooNear));
}

#[test]
fn without_steps_the_request_is_repeated_then_lost() {
    let mut request = request(Timing::Iterations);
    for at in (1..30).step_by(5) {
        assert_eq!(request.poll(s(at), true), Some("A=1\n"), "{at}");
        request.look(s(at + 1), &alive());
    }
    request.look(s(31), &alive());
    assert_eq!(request.state(), &lost(Reason::MissingStep));
}

#[test]
fn missed_start_time_is_reported() {
    let mut request = acknowledged(AT);
    assert_eq!(request.poll(s(11), true), None);
    assert_eq!(request.poll(s(23), true), None);
    assert_eq!(request.state(), &RequestState::Acknowledged);
    request.poll(s(24), true);
    assert_eq!(request.state(), &lost(Reason::NotStarted));
    let mut request = acknowledged(AT);
    request.poll(s(48), true);
    assert_eq!(request.state(), &lost(Reason::NotStarted));
}

#[test]
fn unwritable_folder_is_reported_before_and_after_sending() {
    let mut before = request(Timing::Iterations);
    before.look(s(1), &unwritable());
    assert_eq!(before.state(), &lost(Reason::Unwritable("no".into())));
    // Kineto records, but it silently writes no file if the folder is not writable.
    let mut after = acknowledged(Timing::Iterations);
    after.poll(s(11), false);
    assert_eq!(after.state(), &RequestState::Started);
    after.poll(s(16), true);
    after.look(s(17), &unwritable());
    assert_eq!(after.state(), &RequestState::Started);
    after.look(s(19), &unwritable());
    assert_eq!(after.state(), &lost(Reason::Unwritable("no".into())));
}

#[test]
fn profiler_that_stops_without_a_file_is_reported() {
    let mut request = started();
    request.poll(s(11), true);
    request.look(s(14), &alive());
    assert_eq!(request.state(), &lost(Reason::Stopped));
}

#[test]
fn growing_trace_may_take_long() {
    let mut request = started();
    for at in 1..10 {
        request.poll(s(20 * at), false);
        request.look(s(20 * at), &growing(at << 25));
        assert_eq!(request.state(), &RequestState::Started, "{at}");
    }
    request.look(s(180 + 31), &growing(9 << 25));
    assert_eq!(request.state(), &lost(Reason::Stalled));
}

#[test]
fn slowly_growing_trace_is_lost() {
    // A file that grows by single bytes must count as stalled.
    let mut request = started();
    for at in 8..37 {
        request.look(s(at), &growing(at));
        assert_eq!(request.state(), &RequestState::Started, "{at}");
    }
    request.look(s(38), &growing(38));
    assert_eq!(request.state(), &lost(Reason::Stalled));
    // A file that grows by a block at a time makes progress, but it must be given up if it is below
    // the minimum rate.
    let mut request = started();
    for at in 8..39 {
        request.look(s(at), &growing((at - 7) << 16));
        assert_eq!(request.state(), &RequestState::Started, "{at}");
    }
    for at in 39..60 {
        request.look(s(at), &growing((at - 7) << 16));
    }
    assert_eq!(request.state(), &lost(Reason::Slow));
}

#[test]
fn untrusted_file_is_lost_and_copying_times_out() {
    let mut refused = started();
    refused.look(s(8), &Sight { refused: Some("a pipe".into()), ..finished("id") });
    assert_eq!(refused.state(), &lost(Reason::Refused("a pipe".into())));
    let mut late = started();
    late.look(s(8), &finished("id"));
    late.look(s(38), &finished("id"));
    assert_eq!(late.state(), &RequestState::Finished);
    late.look(s(39), &finished("id"));
    assert_eq!(late.state(), &lost(Reason::Late));
    late.collected();
    assert_eq!(late.state(), &lost(Reason::Late));
}

#[test]
fn foreign_request_id_is_shortened_and_escaped() {
    let long = format!("\x1b[2J{}", "x".repeat(1 << 20));
    let shown = Reason::Foreign(long).to_string();
    assert!(shown.len() < 200 && !shown.contains('\x1b'), "{shown}");
    assert!(Reason::Foreign(String::new()).to_string().contains("names no request"));
}

#[test]
fn file_of_another_request_is_not_accepted() {
    let mut request = started();
    request.look(s(8), &finished("other"));
    assert_eq!(request.state(), &lost(Reason::Foreign("other".into())));
}

#[test]
fn every_reason_has_a_description() {
    for reason in [
        Reason::Busy,
        Reason::Killed,
        Reason::Unwritable("/x: no".into()),
        Reason::MissingStep,
        Reason::StartTooNear,
        Reason::Stopped,
        Reason::NotStarted,
        Reason::Silent,
        Reason::Stalled,
        Reason::Slow,
        Reason::Refused("/x: a pipe".into()),
        Reason::NotCopied("/x: no space".into()),
        Reason::Late,
        Reason::Foreign("b".into()),
        Reason::Interrupted,
    ] {
        assert!(reason.to_string().len() > 20, "{reason:?}");
    }
}
