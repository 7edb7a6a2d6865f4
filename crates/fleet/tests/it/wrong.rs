//! Fuzzes the messages of processes, commands and a hub. A damaged message must be rejected or
//! decoded consistently.

use std::time::Duration;

use fleet::capture::Capture;
use fleet::ipc::message::ProcessMessage;
use fleet::ipc::socket::Peer;
use fleet::proto::{
    Body, Entry, EntryBatch, GpuInterval, Order, Orders, TraceOrder, TracePart, VERSION, Wanted,
};
use fleet::steps::{self, ReportedSteps};
use fleet::wire::{self, RecordWhen};
use prost::Message as _;

use testkit::mutate::fuzz_parser;

#[test]
fn datagrams() {
    let poll = ProcessMessage::Poll { free: 2, job: 7, pids: vec![4242, 17] }.to_bytes();
    let register = ProcessMessage::Register { device: 0, pid: 3, job: 1 }.to_bytes();
    fuzz_parser("datagram", &[&poll, &register], |bytes| {
        let parsed = ProcessMessage::parse(bytes);
        // The table of processes gets any message, valid or not, and must not panic.
        let mut capture = Capture::new(0);
        let answer = capture.answer(Duration::ZERO, Peer { pid: 9, uid: 0 }, bytes);
        assert_eq!(answer.is_some(), parsed.is_ok(), "{parsed:?}");
        let Ok(message) = parsed else { return false };
        assert_eq!(ProcessMessage::parse(&message.to_bytes()).as_ref(), Ok(&message));
        true
    });
    let step = steps::StepMessage {
        phase: steps::Phase::Train,
        own_pid: 1,
        step: 9,
        monotonic_ns: 1_000_000,
        samples: 32,
        exposed_ns: None,
    };
    fuzz_parser("step", &[&step.to_bytes()], |bytes| {
        let Ok(message) = steps::StepMessage::parse(bytes) else { return false };
        let mut steps = ReportedSteps::default();
        let peer = Peer { pid: 9, uid: 0 };
        for at in 0..3 {
            steps.receive(Duration::from_secs(at), peer, &message);
            steps.receive(Duration::from_secs(at), peer, &step);
        }
        let progress = steps.progress(9).unwrap();
        assert!(progress.step_time().is_none_or(|time| !progress.is_hung(time, 0.5)));
        true
    });
}

#[test]
fn requests() {
    let when = RecordWhen::Iterations { count: 5, align: 100 };
    let order = wire::TraceOrder {
        token: "a".into(),
        pids: vec![1],
        job: Some(7),
        run: Some("slurm/7".into()),
        when,
        with: vec!["shapes".into()],
        size_max: 1 << 30,
        patience_ms: 1,
        not_before_unix_ms: None,
    };
    let span = RecordWhen::Duration { length_ms: 5, warmup_s: 1, start_unix_ms: 2 };
    let other = wire::TraceOrder { when: span, ..order.clone() };
    let texts = [&order, &other].map(|order| serde_json::to_vec(order).unwrap());
    fuzz_parser("request", &[&texts[0], &texts[1]], |bytes| {
        let _ = serde_json::from_slice::<wire::Pause>(bytes);
        let Ok(order) = serde_json::from_slice::<wire::TraceOrder>(bytes) else { return false };
        let text = serde_json::to_vec(&order).unwrap();
        let again: wire::TraceOrder = serde_json::from_slice(&text).unwrap();
        assert_eq!(serde_json::to_vec(&again).unwrap(), text);
        true
    });
}

#[test]
fn protobuf() {
    let interval = GpuInterval {
        start_unix_s: 1_700_000_000,
        uuid: "GPU-1".into(),
        observed_s: 9.5,
        sums: [("busy_s".to_owned(), 4.75)].into(),
        errors: [("xid_79".to_owned(), 1)].into(),
        ..GpuInterval::default()
    };
    let entry = Entry { sequence: 7, body: Some(Body::Gpu(Box::new(interval))) };
    let entries = vec![entry];
    let batch = EntryBatch {
        version: VERSION,
        host: "a".into(),
        queue: vec![3; 16],
        gone_through: 6,
        sent_unix_ms: None,
        entries,
    };
    let trace = TraceOrder { token: "a".into(), iterations: 5, ..TraceOrder::default() };
    let order = Order { id: 1, wanted: Some(Wanted::Trace(trace)) };
    let orders = Orders { orders: vec![order] };
    let corpus = [batch.encode_to_vec(), orders.encode_to_vec()];
    fuzz_parser("protobuf", &[&corpus[0], &corpus[1]], |bytes| {
        let _ = TracePart::decode(bytes);
        if let Ok(orders) = Orders::decode(bytes) {
            for order in orders.orders {
                if let Some(Wanted::Trace(trace)) = order.wanted {
                    let _ = wire::TraceOrder::from(trace);
                }
            }
        }
        let Ok(batch) = EntryBatch::decode(bytes) else { return Orders::decode(bytes).is_ok() };
        let again = batch.encode_to_vec();
        // NaN is not equal to itself, so encoded bytes are compared instead of messages.
        assert_eq!(EntryBatch::decode(again.as_slice()).unwrap().encode_to_vec(), again);
        true
    });
}
