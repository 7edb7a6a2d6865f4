//! Tests of trace orders, sent through the agent's Unix socket, and through its TLS port with curl.
//! The test's own process plays the role of PyTorch.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fleet::ipc::message::{HEADER, ProcessMessage};
use fleet::steps;

use testkit::certificate::create_certificate;

use crate::fixture::{Agent, trained, value};
use crate::periodic::{Training, steps_of};

const ORDER: &str = r#"{"token": "TOKEN", "pids": [], "job": null,
  "when": {"kind": "iterations", "count": 5, "align": 100}, "with": ["shapes"],
  "size_max": 1048576, "patience_ms": 20000, "not_before_unix_ms": null}"#;

/// A simulated process that polls like PyTorch and writes the requested traces, until it is
/// dropped.
pub struct Job {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Job {
    pub fn start(sockets: &Path, write: impl Fn(&str, &str) + Send + 'static) -> Self {
        Self::start_as(sockets, 2, write)
    }

    /// Starts a job that polls with the mask `free`. A mask of 0 means that its profiler is busy.
    pub fn start_as(
        sockets: &Path,
        free: i32,
        write: impl Fn(&str, &str) + Send + 'static,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (own, sockets) = (Arc::clone(&stop), sockets.to_owned());
        let thread = std::thread::spawn(move || {
            let client = UnixDatagram::bind(sockets.join("dynoconfigclient-job")).unwrap();
            client.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
            let pid = i32::try_from(std::process::id()).unwrap();
            let mut done = String::new();
            while !own.load(Ordering::SeqCst) {
                let poll = ProcessMessage::Poll { free, job: 0, pids: vec![pid, 2] }.to_bytes();
                let mut bytes = vec![0; 4096];
                let asked = client.send_to(&poll, sockets.join("dynolog"));
                let length = asked.and_then(|_| client.recv(&mut bytes)).unwrap_or_default();
                if length > HEADER {
                    let config = String::from_utf8(bytes[HEADER..length].to_vec()).unwrap();
                    let value = |key: &str| {
                        let line = config
                            .lines()
                            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
                        line.unwrap().to_owned()
                    };
                    let id = value("REQUEST_TRACE_ID");
                    if id != done {
                        let path = value("ACTIVITIES_LOG_FILE");
                        write(&path.replace(".json", &format!("_{pid}.json")), &id);
                        done = id;
                    }
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

pub fn honest(path: &str, id: &str) {
    write(path, &format!("{{\"trace_id\": \"{id}\", \"traceEvents\": []}}"));
}

/// Writes a file under another name first, as Kineto does, so that it is never seen in part.
fn write(path: &str, text: &str) {
    fs::write(format!("{path}.tmp"), text).unwrap();
    fs::rename(format!("{path}.tmp"), path).unwrap();
}

fn order(agent: &Agent, token: &str) -> String {
    order_by(agent, token, &ORDER.replace("TOKEN", token))
}

fn order_by(agent: &Agent, token: &str, text: &str) -> String {
    // The order is repeated, because the job may need a moment until its first poll.
    agent.until("a job that asks", |agent| {
        let begun = agent.local("POST", "/v1/traces", text);
        (begun.status == 201).then_some(())
    });
    agent.until("the end of the order", |agent| {
        let state = agent.local("GET", &format!("/v1/traces/{token}"), "").body;
        state.contains("\"is_over\":true").then_some(state)
    })
}

#[test]
fn an_order_yields_a_compressed_trace_to_fetch_and_remove() {
    let agent = Agent::start("", None);
    let job = Job::start(&agent.sockets(), honest);
    let state = order(&agent, "first");
    let name = format!("pid-{}.json.gz", std::process::id());
    assert!(state.contains("\"state\":\"written\"") && state.contains(&name), "{state}");
    let path = format!("/v1/traces/first/{name}");
    let whole = agent.local("GET", &path, "");
    assert_eq!(whole.status, 200);
    assert!(agent.local("GET", &format!("{path}?from=1000000"), "").body.is_empty());
    for wrong in
        ["/v1/traces/first/..%2F..%2Fagent.toml", "/v1/traces/none", "/v1/traces/first/x.gz"]
    {
        assert_eq!(agent.local("GET", wrong, "").status, 404, "{wrong}");
    }
    let again = agent.local("POST", "/v1/traces", &ORDER.replace("TOKEN", "first"));
    assert!(again.status == 409 && again.body.contains("the name is already in use"), "{again:?}");
    assert_eq!(agent.local("DELETE", "/v1/traces/first", "").status, 204);
    assert_eq!(agent.local("GET", "/v1/traces/first", "").status, 404);
    assert_eq!(fs::read_dir(agent.path("state/traces")).unwrap().count(), 0);
    let audit = fs::read_to_string(agent.path("audit.json")).unwrap();
    assert!(audit.contains("\"verb\":\"trace\"") && audit.contains(" of user "), "{audit}");
    drop(job);
}

fn is_lost(state: &str, reason: &str) {
    assert!(state.contains("\"state\":\"lost\"") && state.contains(reason), "{reason}: {state}");
}

#[test]
fn leftovers_of_a_killed_agent_are_removed_by_the_next() {
    let mut agent = Agent::start("", None);
    // The job writes only a part of its trace and never finishes it.
    let job =
        Job::start(&agent.sockets(), |path, _| fs::write(format!("{path}.tmp"), "{").unwrap());
    let text = ORDER.replace("TOKEN", "killed");
    agent.until("a job that asks", |agent| {
        (agent.local("POST", "/v1/traces", &text).status == 201).then_some(())
    });
    let folder = format!("/tmp/rowmill-killed-{}", std::process::id());
    agent.until("a part of the trace", |_| fs::read_dir(&folder).ok()?.next().map(drop));
    agent.kill();
    assert!(Path::new(&folder).exists());
    agent.restart();
    assert!(!Path::new(&folder).exists());
    assert_eq!(fs::read_dir(agent.path("state/traces")).unwrap().count(), 0);
    drop(job);
}

#[test]
fn a_trace_beyond_the_quota_of_its_user_is_lost() {
    let agent = Agent::start("spool_mib = 1", None);
    let job = Job::start(&agent.sockets(), |path, id| {
        write(path, &format!("{{\"trace_id\": \"{id}\"{}}}", " ".repeat(800_000)));
    });
    is_lost(&order(&agent, "large"), "traces on the agent's disk: expected at most");
    let page = agent.page("/metrics", "*/*").body;
    assert_eq!(value(&page, "rowmill_spool_bytes", &[]), Some(0.0));
    drop(job);
}

#[test]
fn an_invalid_trace_file_is_lost_with_its_reason() {
    let agent = Agent::start("", None);
    type Write = fn(&str, &str);
    let cases: [(&str, &str, Write); 3] = [
        ("link", "symbolic link", |path, _| {
            std::os::unix::fs::symlink("/etc/passwd", path).unwrap();
        }),
        ("pipe", "named pipe", |path, _| {
            assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
        }),
        ("large", "expected at most", |path, id| {
            write(path, &format!("{{\"trace_id\": \"{id}\"{}}}", " ".repeat(2 << 20)));
        }),
    ];
    for (token, reason, write) in cases {
        let job = Job::start(&agent.sockets(), write);
        is_lost(&order(&agent, token), reason);
        drop(job);
        fs::remove_file(agent.sockets().join("dynoconfigclient-job")).unwrap();
    }
}

#[test]
fn a_request_without_result_times_out_with_its_reason() {
    let agent = Agent::start("", None);
    let impatient = |token: &str| {
        ORDER.replace("TOKEN", token).replace("\"patience_ms\": 20000", "\"patience_ms\": 1500")
    };
    let job = Job::start(&agent.sockets(), |_, _| {});
    is_lost(&order_by(&agent, "stepless", &impatient("stepless")), "makes no step");
    let near = impatient("near").replace(
        "{\"kind\": \"iterations\", \"count\": 5, \"align\": 100}",
        "{\"kind\": \"duration\", \"length_ms\": 100, \"warmup_s\": 5, \"start_unix_ms\": 1}",
    );
    is_lost(&order_by(&agent, "near", &near), "too near");
    drop(job);
    fs::remove_file(agent.sockets().join("dynoconfigclient-job")).unwrap();
    let job = Job::start_as(&agent.sockets(), 0, honest);
    // The order must be sent only after the agent has seen a poll of the busy job.
    agent.until("a busy job", |agent| {
        agent.local("GET", "/v1/status", "").body.contains("\"is_free\":false").then_some(())
    });
    is_lost(&order_by(&agent, "busy", &impatient("busy")), "busy");
    drop(job);
}

#[test]
fn a_cancelled_order_leaves_no_files() {
    let agent = Agent::start("", None);
    let job = Job::start(&agent.sockets(), |_, _| {});
    agent.until("an open order", |agent| {
        let begun = agent.local("POST", "/v1/traces", &ORDER.replace("TOKEN", "open"));
        (begun.status == 201).then_some(())
    });
    assert_eq!(agent.local("DELETE", "/v1/traces/open", "").status, 204);
    agent.until("its end", |agent| {
        (agent.local("GET", "/v1/traces/open", "").status == 404).then_some(())
    });
    assert_eq!(fs::read_dir(agent.path("state/traces")).unwrap().count(), 0);
    // After the cancellation, the process must be free for the next order.
    let again = agent.local("POST", "/v1/traces", &ORDER.replace("TOKEN", "open"));
    assert_eq!(again.status, 201, "{again:?}");
    drop(job);
}

#[test]
fn contradictory_arguments_are_refused() {
    let agent = Agent::start("", None);
    let nobody = agent.local("POST", "/v1/traces", &ORDER.replace("TOKEN", "a"));
    assert!(nobody.status == 409 && nobody.body.contains("no process polls"), "{nobody:?}");
    let named = ORDER.replace("TOKEN", "b").replace("\"pids\": []", "\"pids\": [1]");
    let absent = agent.local("POST", "/v1/traces", &named);
    assert!(absent.body.contains("no process to trace: 1 does not poll for traces"), "{absent:?}");
    let path = agent.local("POST", "/v1/traces", &ORDER.replace("TOKEN", "../a"));
    assert!(path.body.contains("expected 1 to 64 letters"), "{path:?}");
    let with = agent.local("POST", "/v1/traces", &ORDER.replace("shapes", "colours"));
    assert!(with.body.contains("got \\\"colours\\\"") || with.body.contains("token"), "{with:?}");
    assert_eq!(agent.local("POST", "/v1/traces", "{").status, 400);
    let many = ORDER.replace("TOKEN", "c").replace("\"count\": 5", "\"count\": 100000");
    let many = agent.local("POST", "/v1/traces", &many);
    assert!(many.body.contains("expected at most 1000 iterations, got 100000"), "{many:?}");
    let long = ORDER.replace("TOKEN", &"x".repeat(100_000));
    assert_eq!(agent.local("POST", "/v1/traces", &long).status, 413);
}

#[test]
fn iterations_beyond_the_timeout_are_refused() {
    let agent = Agent::start("", None);
    let _training = Training::start(&agent, &steps_of(5_000_000));
    let _job = Job::start(&agent.sockets(), honest);
    let order = |token: &str, align: u32| {
        let align = format!("\"align\": {align}");
        let order = ORDER.replace("TOKEN", token).replace("\"align\": 100", &align);
        agent.local("POST", "/v1/traces", &order)
    };
    // Both refusals have status 409. At first the reason is an unknown step time, and then a step
    // time of 5 ms.
    agent.until("a refusal by the step time", |_| {
        let said = order("far", 1_000_000);
        assert_eq!(said.status, 409, "{said:?}");
        said.body.contains("whose step takes 5.0 ms").then_some(())
    });
    let near = order("timely", 10);
    assert_eq!(near.status, 201, "{near:?}");
}

#[test]
fn steps_are_attributed_by_kernel_credentials() {
    let agent = Agent::start("", None);
    let socket = UnixDatagram::unbound().unwrap();
    let target = agent.sockets().join(steps::NAME);
    agent.until("the socket", |_| target.exists().then_some(()));
    for step in 1..=5_u64 {
        socket.send_to(&trained(step), &target).unwrap();
    }
    socket.send_to(b"nonsense", &target).unwrap();
    let pid = format!("pid=\"{}\"", std::process::id());
    let page = agent.until("five steps", |agent| {
        let page = agent.page("/metrics", "*/*").body;
        (value(&page, "rowmill_steps_total", &[&pid]) == Some(5.0)).then_some(page)
    });
    assert_eq!(value(&page, "rowmill_samples_total", &[&pid]), Some(160.0));
    assert_eq!(value(&page, "rowmill_step_seconds", &[&pid]), Some(0.001));
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_port_requires_a_token_over_tls() {
    if !testkit::has_program("curl", "the TLS port") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let Some(files) = create_certificate(folder.path(), "the TLS port") else { return };
    let words = |path: &Path| path.display().to_string();
    let (certificate, key) = (words(&files.certificate), words(&files.key));
    let token = words(&folder.path().join("token"));
    fs::write(&token, "0123456789abcdef\n").unwrap();
    run(Command::new("chmod").args(["600", &token]));
    let of_user = words(&folder.path().join("of-user"));
    fs::write(&of_user, "fedcba9876543210\n").unwrap();
    run(Command::new("chmod").args(["600", &of_user, &key]));
    let configuration = format!(
        "[listen]\naddress = '127.0.0.1:0'\ncertificate = '{certificate}'\nkey = '{key}'\n\
         [[token]]\nname = 'reader'\nfile = '{token}'\nverbs = ['status']\nhosts = ['127.0.0.0/8']\n\
         [[token]]\nname = 'ada'\nfile = '{of_user}'\nverbs = ['status']\nhosts = ['127.0.0.0/8']\n\
         users = [1001]\n"
    );
    let agent = Agent::start(&configuration, None);
    let curl = |secret: &str, path: &str, more: &[&str]| {
        let header = format!("Authorization: Bearer {secret}");
        let url = format!("{}{path}", agent.secured);
        let mut curl = Command::new("curl");
        curl.args(["-s", "--cacert", &certificate, "-H", &header, "-w", "%{http_code}", &url])
            .args(more);
        run(&mut curl)
    };
    let status = curl("0123456789abcdef", "/v1/status", &[]);
    assert!(status.ends_with("200") && status.contains("\"unix_ns\":"), "{status}");
    let unknown = curl("0123456789abcdeF", "/v1/status", &[]);
    let words = "valid from 127.0.0.1, got one that is unknown or not valid for this address";
    assert!(unknown.ends_with("401") && unknown.contains(words), "{unknown}");
    let json = ["-H", "Content-Type: application/json", "-d", &ORDER.replace("TOKEN", "a")];
    let refused = curl("0123456789abcdef", "/v1/traces", &json);
    assert!(refused.ends_with("403") && refused.contains("not granted"), "{refused}");
    assert!(curl("0123456789abcdef", "/metrics", &[]).ends_with("200"));
    assert!(curl("0123456789abcdeF", "/metrics", &[]).ends_with("401"));
    // The pages show the jobs of all users, so the token of a caller with access to some users must
    // not open them.
    assert!(curl("fedcba9876543210", "/v1/status", &[]).ends_with("200"));
    assert!(curl("fedcba9876543210", "/metrics", &[]).ends_with("403"));
    let plain = Command::new("curl")
        .args(["-s", &agent.secured.replace("https", "http")])
        .output()
        .unwrap();
    assert!(!plain.status.success(), "{plain:?}");
    let audit = fs::read_to_string(agent.path("audit.json")).unwrap();
    assert!(
        audit.contains("refused: no valid token") && audit.contains("reader@127.0.0.1"),
        "{audit}"
    );
}
