//! Traces that are ordered through a real hub from a real agent: by a person, and because a run
//! left the band of its history.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fleet::proto::{CONTENT_TYPE, PARTS, TraceFileBytes, TracePart, VERSION};
use prost::Message;
use serde_json::Value;
use testkit::browser::Browser;
use testkit::{Folder, ProgramOutput, has_program, has_time, skip};

use crate::agent::{AgentParts, RealAgent};
use crate::chain::click_to_timeline;
use crate::fixture::{Answer, TestHub, WAIT, add_token, ask, program_beside};

/// A program that polls and reports steps like PyTorch. When a trace is wanted, it writes a
/// recorded one.
const RECORDED_JOB: &str = "
import json, os, socket, struct, sys, time
folder, trace, pid, done = sys.argv[1], sys.argv[2], os.getpid(), None
client = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
client.bind(f'{folder}/dynoconfigclient-{pid}')
for step in range(1 << 30):
    client.sendto(struct.pack('<Q32siiqi', 20, b'req', 2, 1, 0, pid), f'{folder}/dynolog')
    config = client.recv(1 << 16)[40:].decode()
    wanted = dict(line.split('=', 1) for line in config.splitlines() if '=' in line)
    name = wanted.get('REQUEST_TRACE_ID')
    if name and name != done:
        path, done = wanted['ACTIVITIES_LOG_FILE'].replace('.json', f'_{pid}.json'), name
        with open(path + '.tmp', 'w') as out:
            json.dump(dict(json.load(open(trace)), trace_id=name), out)
        os.rename(path + '.tmp', path)
    message = struct.pack('<BBHIQQQQ', 1, 1, 0, pid, step, time.monotonic_ns(), 8, 2**64 - 1)
    client.sendto(message, f'{folder}/rowmill-steps')
    time.sleep(0.05)
";

/// A PyTorch program. Its loader becomes slow when a file appears.
const TORCH_JOB: &str = "
import os, sys, time, torch, rowmill_steps
rowmill_steps.watch()
class Samples(torch.utils.data.Dataset):
    def __len__(self): return 1 << 40
    def __getitem__(self, at):
        if os.path.exists(sys.argv[1]): time.sleep(0.01)
        return torch.zeros(64)
class Order(torch.utils.data.Sampler):
    def __init__(self): pass
    def __iter__(self): return iter(range(1 << 40))
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for batch in torch.utils.data.DataLoader(Samples(), batch_size=16, sampler=Order()):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    time.sleep(0.05)
";

/// A job of a test, which is killed on drop.
struct LoaderJob(Child);

impl Drop for LoaderJob {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a job with a number and name of Slurm, which claims a GPU.
fn start_job(
    python: &Path,
    agent: &RealAgent,
    job: [&str; 3],
    args: &[&Path],
    text: &str,
) -> LoaderJob {
    let [number, name, gpu] = job;
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    let mut command = Command::new(python);
    command.args(["-c", text]).args(args).stdout(Stdio::null()).stderr(Stdio::null());
    command.env("KINETO_USE_DAEMON", "1").env("KINETO_IPC_SOCKET_DIR", agent.folder.path("s"));
    command.env("OMP_NUM_THREADS", "1").env("PYTHONPATH", deploy);
    command.envs([("SLURM_JOB_ID", number), ("SLURM_JOB_NAME", name), ("SLURM_JOB_GPUS", gpu)]);
    LoaderJob(command.spawn().unwrap())
}

/// A hub with TLS, and the program `rowmill` that asks it.
struct AskedHub {
    hub: TestHub,
    rowmill: PathBuf,
    certificate: PathBuf,
}

impl AskedHub {
    /// Starts a hub with the tokens of a viewer, of a tracer and of an administrator.
    fn start(parts: &AgentParts, lines: &str) -> Option<Self> {
        let Some(rowmill) = program_beside("rowmill") else {
            skip("orders", "rowmill, which `cargo xtask ci --only tests` builds");
            return None;
        };
        let mut hub = TestHub::start(&format!("{}\n{lines}", parts.hub_lines));
        for (role, name) in [("viewer", "vera"), ("tracer", "eve"), ("admin", "anna")] {
            let token = add_token(&hub.folder, role, name);
            hub.folder.write(name, token);
        }
        // The hub reads its tokens at its start.
        hub.kill_and_restart();
        Some(Self { hub, rowmill, certificate: parts.certificate.clone() })
    }

    fn run(&self, verb: &str, token: &str, more: &[&str]) -> ProgramOutput {
        let mut command = Command::new(&self.rowmill);
        command.args(["fleet", verb, "--format", "json", "--hub"]);
        command.arg(format!("https://{}", self.hub.address)).arg("--ca").arg(&self.certificate);
        command.arg("--token-file").arg(self.hub.folder.path(token)).args(more);
        ProgramOutput::collect(&mut command)
    }

    /// Repeats a query until its answer satisfies a condition.
    fn until(&self, verb: &str, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            let answer = self.run(verb, "vera", &[]).expect_code(0, verb).json();
            if is_it(&answer) {
                return answer;
            }
            assert!(began.elapsed() < 3 * WAIT, "not in time: {what}: {answer:#}");
            std::thread::sleep(Duration::from_millis(500));
        }
    }
}

fn get(hub: &TestHub, token: &str, path: &str) -> Answer {
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\
         Connection: close\r\n\r\n"
    );
    ask(&hub.address, request.as_bytes()).unwrap()
}

fn send_part(hub: &TestHub, token: &str, body: &[u8]) -> u32 {
    let head = format!(
        "POST {PARTS} HTTP/1.1\r\nHost: hub\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: {CONTENT_TYPE}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    ask(&hub.address, &[head.as_bytes(), body].concat()).unwrap().status
}

#[test]
fn a_trace_is_ordered_analyzed_and_shown_and_wrong_callers_are_refused() {
    if !has_program("python3", "orders through a hub") {
        return;
    }
    let Some(parts) = AgentParts::create() else { return };
    let Some(mut asked) = AskedHub::start(&parts, "") else { return };
    let agent = RealAgent::start(&parts, &asked.hub, "");
    let trace =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/antipattern/H02.fires.json");
    let args = [agent.folder.path("s"), trace];
    let args: Vec<&Path> = args.iter().map(PathBuf::as_path).collect();
    let job = ["7", "ranking", "0"];
    let job = start_job(Path::new("python3"), &agent, job, &args, RECORDED_JOB);
    agent.folder.write("scenario", format!("gpu=0 util=50 pid={}\ngpu=1 util=0\n", job.0.id()));
    let began = Instant::now();
    let order = loop {
        let ran = asked.run("trace", "anna", &["--job", "7@root", "--steps", "3"]);
        // The run must be known first.
        if ran.code == Some(0) {
            break ran.json();
        }
        let is_early = ran.stderr.contains("expected a run that lasts");
        assert!(is_early && began.elapsed() < WAIT, "{}", ran.stderr);
        std::thread::sleep(Duration::from_millis(300));
    };
    assert_eq!(order["progress"][0]["state"], "done", "{order:#}");
    assert_eq!((&order["run"], &order["workflow"]), (&"slurm/7@root".into(), &"ranking".into()));
    let found = order["analysis"]["findings"].as_array().unwrap();
    assert!(found.iter().any(|finding| finding["rule"] == "H02"), "{order:#}");
    // A tracer traces the runs of the user after whom the token is named.
    let refused = asked.run("trace", "eve", &["--job", "7@root"]);
    assert!(refused.stderr.contains("may trace the run slurm/7@root"), "{}", refused.stderr);
    let refused = asked.run("trace", "vera", &["--host", "gpu-1"]);
    assert!(
        refused.stderr.contains("expected a caller with the role tracer"),
        "{}",
        refused.stderr
    );
    let losses = asked.until("findings", "GPU hours", |losses| {
        losses["findings"][0]["lost_gpu_hours"].as_f64() > Some(0.0)
    });
    assert_eq!(losses["workflows"][0]["workflow"], "ranking", "{losses:#}");
    assert_eq!(asked.run("orders", "vera", &[]).json().as_array().unwrap().len(), 1);
    // A hub without room refuses the trace, and the agent says so.
    let path = asked.hub.folder.path("hub.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("{text}\n[traces]\ntotal_mib = 0\n")).unwrap();
    asked.hub.kill_and_restart();
    let full = asked.run("trace", "anna", &["--job", "7@root"]).expect_code(1, "full").json();
    assert_eq!(full["progress"][0]["state"], "failed", "{full:#}");
    let reason = full["progress"][0]["reason"].as_str().unwrap();
    assert!(reason.starts_with("the hub refuses its trace: status 422"), "{reason}");
    drop((job, agent));
    // The same store without TLS, for a plain client and a browser.
    let text = std::fs::read_to_string(&path).unwrap();
    let is_open = |line: &&str| !line.starts_with("certificate") && !line.starts_with("key");
    std::fs::write(&path, text.lines().filter(is_open).collect::<Vec<_>>().join("\n")).unwrap();
    asked.hub.kill_and_restart();
    check_report(&asked.hub, &order);
    let viewer = std::fs::read_to_string(asked.hub.folder.path("vera")).unwrap();
    click_to_timeline(&asked.hub, &viewer, &order);
    check_wrong_parts(&asked.hub, &order);
}

/// Checks the report by its link, and the page of findings.
fn check_report(hub: &TestHub, order: &Value) {
    let token = std::fs::read_to_string(hub.folder.path("vera")).unwrap();
    let link = order["report"].as_str().unwrap();
    let report = get(hub, "", link);
    assert_eq!(report.status, 200, "{}", report.head);
    let policy = "content-security-policy: sandbox allow-scripts; default-src 'none'";
    assert!(report.head.contains(policy), "{}", report.head);
    assert!(String::from_utf8_lossy(&report.body).contains("H02"));
    let (plain, _) = link.split_once('?').unwrap();
    assert_eq!(get(hub, "", plain).status, 401);
    assert_eq!(get(hub, "", &format!("{plain}?key=hub-0")).status, 401);
    assert_eq!(get(hub, &token, plain).status, 200);
    let file = order["traces"][0]["path"].as_str().unwrap();
    assert_eq!((get(hub, &token, file).status, get(hub, "", file).status), (200, 401));
    assert_eq!(get(hub, &token, &file.replace("pid", "..%2Fpid")).status, 404);
    let url = format!("http://{}/findings", hub.address);
    let Some(mut browser) = Browser::open_url(&url, "light") else { return };
    browser.value(&format!(
        "new Promise((done) => {{ document.getElementById('token').value = '{token}'; \
         document.querySelector('#login button').click(); const look = () => \
         document.body.dataset.shown ? done(1) : setTimeout(look, 20); look(); }})"
    ));
    let shown = browser.value("document.body.innerText");
    let shown = shown.as_str().unwrap();
    assert!(shown.contains("H02 data loading stall") && shown.contains("ranking"), "{shown}");
    if let Some(folder) = std::env::var_os("ROWMILL_PICTURES") {
        browser.picture(&Path::new(&folder).join("hub-findings-light.png"));
    }
    browser.load(&format!("http://{}{link}", hub.address));
    let shown = browser.value("document.body.innerText");
    assert!(shown.as_str().unwrap().contains("data loading stall"), "{shown}");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

/// Checks that cut, oversized, damaged and forged parts of traces leave nothing.
fn check_wrong_parts(hub: &TestHub, order: &Value) {
    let files = |hub: &TestHub| hub::store::walk_sizes(&hub.folder.path("store/trace")).unwrap();
    let before = files(hub);
    let file = TraceFileBytes {
        name: "pid-1.json.gz".to_owned(),
        bytes: 4,
        bytes_unpacked: 4,
        checksum: "0".repeat(16),
    };
    let part = TracePart {
        version: VERSION,
        host: "gpu-1".to_owned(),
        queue: vec![1; 16],
        token: order["report"].as_str().unwrap().rsplit_once("key=").unwrap().1.to_owned(),
        file: Some(file),
        offset: 0,
        bytes: vec![1; 4],
    };
    let body = part.encode_to_vec();
    let viewer = std::fs::read_to_string(hub.folder.path("vera")).unwrap();
    let later = TracePart { version: VERSION + 1, ..part }.encode_to_vec();
    for (status, token, body) in [
        (422, hub.token.as_str(), body.as_slice()),
        (400, hub.token.as_str(), &body[..body.len() - 2]),
        (400, hub.token.as_str(), &later),
        (413, hub.token.as_str(), &vec![0; (8 << 20) + 1]),
        (403, viewer.as_str(), &body),
        (401, "wrong", &body),
    ] {
        assert_eq!(send_part(hub, token, body), status);
    }
    assert_eq!(files(hub), before);
}

/// Finds a Python with PyTorch.
fn torch_python() -> Option<PathBuf> {
    let python = std::env::var_os("ROWMILL_TORCH_PYTHON").map_or("python3".into(), PathBuf::from);
    let imported = Command::new(&python).args(["-c", "import torch"]).output();
    if imported.is_ok_and(|output| output.status.success()) {
        return Some(python);
    }
    skip("a slow loader that is found", "PyTorch: ROWMILL_TORCH_PYTHON names a Python with it");
    None
}

#[test]
fn a_run_that_leaves_its_band_is_traced_and_its_loader_is_found() {
    if !has_time("a slow loader that is found") {
        return;
    }
    let Some(python) = torch_python() else { return };
    let Some(parts) = AgentParts::create() else { return };
    let watch = "[watch]\ninterval_s = 5\nhistory_min = 5\nintervals = 2\nshare_min = 0.6\n";
    let Some(asked) = AskedHub::start(&parts, watch) else { return };
    let agent = RealAgent::start(&parts, &asked.hub, "");
    let files = Folder::new();
    let start = |job: [&str; 3], slow: &str| {
        start_job(&python, &agent, job, &[&files.path(slow)], TORCH_JOB)
    };
    let slowed = start(["7", "ranking", "0"], "slow");
    let healthy = start(["8", "speech", "1"], "never");
    let pids = (slowed.0.id(), healthy.0.id());
    let scenario = format!("gpu=0 util=50 pid={}\ngpu=1 util=50 pid={}\n", pids.0, pids.1);
    agent.folder.write("scenario", scenario);
    // Both runs need a history of some intervals.
    std::thread::sleep(Duration::from_secs(50));
    let orders = asked.run("orders", "vera", &[]).json();
    assert_eq!(orders.as_array().unwrap().len(), 0, "{orders:#}");
    files.write("slow", "");
    let orders =
        asked.until("orders", "an order that is over", |orders| orders[0]["is_over"] == true);
    assert_eq!(orders.as_array().unwrap().len(), 1, "{orders:#}");
    let order = &orders[0];
    assert_eq!((&order["by"], &order["run"]), (&"watch".into(), &"slurm/7@root".into()));
    assert!(order["why"].as_str().unwrap().starts_with("step time in s: "), "{order:#}");
    let losses = asked.until("findings", "the cost of the loader", |losses| {
        losses["findings"][0]["lost_gpu_hours"].as_f64() > Some(0.0)
    });
    let (found, workflow) = (&losses["findings"][0], &losses["workflows"][0]);
    assert_eq!((&found["rule"], &found["run"]), (&"H02".into(), &"slurm/7@root".into()));
    assert_eq!((&workflow["workflow"], &workflow["user"]), (&"ranking".into(), &"root".into()));
    // The healthy run is left alone.
    assert_eq!(
        (losses["traces"].as_u64(), losses["workflows"].as_array().unwrap().len()),
        (Some(1), 1)
    );
    drop((slowed, healthy));
}
