//! Requests that the hub refuses, and how it starts and ends.

use std::io::Write;
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fleet::proto::{Ack, BATCHES, CONTENT_TYPE, Entry, EntryBatch, ORDERS, Orders, OrdersWanted};
use prost::Message;
use testkit::{Folder, ProgramOutput};

use crate::fixture::{
    TestHub, WAIT, add_token, ask, create_configuration, gpu_batch, hour_before, program,
    read_answer, send_batch,
};

fn request(token: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {BATCHES} HTTP/1.1\r\nHost: hub\r\nAuthorization: Bearer {token}\r\n{headers}\
         Connection: close\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

#[test]
fn what_no_agent_sends_is_refused_with_a_reason_and_nothing_is_stored() {
    let (folder, token) = create_configuration("listen = '127.0.0.1:0'");
    let viewer = add_token(&folder, "viewer", "anna");
    let other = add_token(&folder, "agent", "host-2");
    let mut command = program();
    command.args(["serve", "--config"]).arg(folder.path("hub.toml"));
    let (child, address) = crate::fixture::wait_for_start(command);
    let hub = TestHub { folder, child, address, token };
    let good = gpu_batch(1, 1, [hour_before(1)].into_iter());
    let body = good.encode_to_vec();
    let typed = format!("Content-Type: {CONTENT_TYPE}\r\n");
    let sized = |length: usize| format!("{typed}Content-Length: {length}\r\n");
    let with = |batch: &EntryBatch| {
        let body = batch.encode_to_vec();
        request(&hub.token, &sized(body.len()), &body)
    };
    let whole = sized(body.len());
    let bomb = EntryBatch { entries: vec![Entry::default(); 1_000_000], ..good.clone() };
    let empty = EntryBatch { entries: vec![Entry::default()], ..good.clone() };
    let newer = EntryBatch { version: 3, ..good.clone() };
    let untyped = format!("Content-Length: {}\r\n", body.len());
    let packed = format!("{whole}Content-Encoding: gzip\r\n");
    let chunked = format!("{typed}Transfer-Encoding: chunked\r\n");
    let cases = [
        (401, "known token", request("wrong", &whole, &body)),
        (403, "role agent", request(&viewer, &whole, &body)),
        (403, "host \"host-2\", got rows of \"host-1\"", request(&other, &whole, &body)),
        (415, "content type", request(&hub.token, &untyped, &body)),
        (415, "encoding", request(&hub.token, &packed, &body)),
        (411, "length", request(&hub.token, &chunked, b"0\r\n\r\n")),
        (413, "at most 8388608", request(&hub.token, &sized(9 << 20), &[])),
        (413, "parts", with(&bomb)),
        (422, "entry 0", with(&empty)),
        (400, "version 1 to 2, got 3", with(&newer)),
        (400, "cut", request(&hub.token, &sized(body.len() - 3), &body[..body.len() - 3])),
        (401, "known token", b"POST /hub/v1/parts HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_vec()),
        (404, "got \"/hub/v1/none\"", b"POST /hub/v1/none HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_vec()),
    ];
    for (status, reason, bytes) in cases {
        let answer = ask(&hub.address, &bytes).unwrap();
        let refused: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        let text = refused["error"].as_str().unwrap();
        assert!(answer.status == status && text.contains(reason), "{status} {reason}: {answer:?}");
    }
    // A connection that ends within the body.
    let mut stream = TcpStream::connect(&hub.address).unwrap();
    stream.write_all(&request(&hub.token, &whole, &body[..10])).unwrap();
    drop(stream);
    assert_eq!(hub.entries().len(), 0);
    let answer = hub.send(&good).unwrap();
    assert_eq!(answer.status, 200);
    assert_eq!(Ack::decode(answer.body.as_slice()).unwrap(), Ack { through: 1 });
    assert_eq!(hub.entries().len(), 1);
}

#[test]
fn problems_of_rows_and_clocks_are_shown_by_the_status() {
    let hub = TestHub::start("commit_ms = 10");
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    let now_ms = u64::try_from(now_ms).unwrap();
    let send = |batch: &EntryBatch| assert_eq!(hub.send(batch).unwrap().status, 200);
    let late = gpu_batch(1, 1, [hour_before(3), hour_before(2)].into_iter());
    send(&late);
    send(&late);
    // Another agent on the same host has a queue of its own.
    send(&EntryBatch { queue: vec![2; 16], ..late });
    for sequence in 1..=6 {
        let future = gpu_batch(3, sequence, [now_ms / 1000 + 600 + sequence].into_iter());
        send(&EntryBatch { sent_unix_ms: Some(now_ms + 600_000), ..future });
    }
    let began = Instant::now();
    let status = loop {
        let status = hub.status();
        if status["hosts"]["host-3"]["problems"]["clock"].is_object() {
            break status;
        }
        assert!(began.elapsed() < WAIT, "{status}");
        std::thread::sleep(Duration::from_millis(100));
    };
    let problem = |host: &str, problem: &str| status["hosts"][host]["problems"][problem].clone();
    assert_eq!(problem("host-1", "doubled_rows")["rows"], 2, "{status}");
    assert_eq!(problem("host-1", "repeated_rows")["rows"], 2, "{status}");
    let late = problem("host-1", "late_rows");
    assert!(late["rows"].as_u64() >= Some(2) && late["worst_s"].as_f64() >= Some(7000.0), "{late}");
    assert_eq!(problem("host-3", "future_rows")["rows"], 1, "further ones follow: {status}");
    let clock = problem("host-3", "clock")["worst_s"].as_f64().unwrap();
    assert!((500.0..=600.0).contains(&clock), "{status}");
}

#[test]
fn batches_beyond_the_limit_are_asked_to_come_later() {
    let hub = TestHub::start("waiting_mib = 8");
    let mut slow = TcpStream::connect(&hub.address).unwrap();
    let headers = format!("Content-Type: {CONTENT_TYPE}\r\nContent-Length: {}\r\n", 8 << 20);
    slow.write_all(&request(&hub.token, &headers, &[1])).unwrap();
    let batch = gpu_batch(1, 1, [hour_before(1)].into_iter());
    let began = Instant::now();
    let busy = loop {
        let answer = hub.send(&batch).unwrap();
        if answer.status == 429 {
            break answer;
        }
        assert!(began.elapsed() < WAIT, "{answer:?}");
    };
    assert!(busy.head.contains("retry-after: 1"), "{busy:?}");
    drop(slow);
    while hub.send(&batch).unwrap().status != 200 {
        assert!(began.elapsed() < WAIT);
    }
}

#[test]
fn orders_are_answered_so_that_agents_find_the_hub_reachable() {
    let hub = TestHub::start("");
    let wanted = OrdersWanted { version: 1, wait_ms: 300, ..OrdersWanted::default() };
    let body = wanted.encode_to_vec();
    let head = format!(
        "POST {ORDERS} HTTP/1.1\r\nHost: hub\r\nAuthorization: Bearer {}\r\n\
         Content-Type: {CONTENT_TYPE}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        hub.token,
        body.len()
    );
    let began = Instant::now();
    let answer = ask(&hub.address, &[head.as_bytes(), &body].concat()).unwrap();
    assert_eq!(answer.status, 200);
    assert_eq!(Orders::decode(answer.body.as_slice()).unwrap(), Orders::default());
    assert!(began.elapsed() >= Duration::from_millis(300));
}

#[test]
fn a_signal_ends_the_hub_after_the_received_batches_are_stored() {
    let mut hub = TestHub::start("commit_ms = 1500");
    let row = |sequence| gpu_batch(1, sequence, [hour_before(1) + sequence * 10].into_iter());
    assert_eq!(hub.send(&row(1)).unwrap().status, 200);
    let mut stream = TcpStream::connect(&hub.address).unwrap();
    let body = row(2).encode_to_vec();
    let headers = format!("Content-Type: {CONTENT_TYPE}\r\nContent-Length: {}\r\n", body.len());
    stream.write_all(&request(&hub.token, &headers, &body)).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let pid = hub.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert_eq!(read_answer(stream).unwrap().status, 200);
    assert!(hub.child.wait().unwrap().success());
    assert_eq!(hub.entries().len(), 2);
    assert!(send_batch(&hub.address, &hub.token, &row(3)).is_none());
}

#[test]
fn problems_of_the_start_are_named_with_a_hint() {
    let start = |folder: &Folder| {
        let mut command = program();
        command.args(["serve", "--config"]).arg(folder.path("hub.toml"));
        ProgramOutput::collect(&mut command).expect_code(2, "serve").stderr
    };
    let cases = [
        ("listen = '0.0.0.0:9'", "listen: expected a loopback address", "hint: set `certificate`"),
        ("lisen = 1", "unknown field `lisen`", "hint: rowmill-hub serve --help"),
        ("certificate = '/c'\nkey = '/k'", "certificate: /c", ""),
    ];
    for (lines, problem, hint) in cases {
        let text = start(&create_configuration(lines).0);
        assert!(text.contains(problem) && text.contains(hint), "{text}");
    }
    let (folder, _) = create_configuration("");
    folder.write("tokens", "agent my-secret\n");
    let text = start(&folder);
    assert!(
        text.contains("tokens: line 1") && text.contains("hint: rowmill-hub token new"),
        "{text}"
    );
    assert!(!text.contains("my-secret"), "{text}");
    let hub = TestHub::start("");
    let text = start(&hub.folder);
    assert!(text.contains("another hub uses this store") && text.contains("hint: "), "{text}");
}
