//! An agent that runs in a folder of its own, and functions that send requests to it.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fleet::steps;
use tempfile::TempDir;
use testkit::compiler::compile_library;

/// Timeout of every wait in the tests, long enough for a loaded machine.
pub const WAIT: Duration = Duration::from_secs(60);

/// A running agent, which is killed on drop.
pub struct Agent {
    pub folder: TempDir,
    pub child: Child,
    pub metrics: String,
    pub secured: String,
    pub dynolog: String,
    is_stubbed: bool,
}

/// The status and the body of an HTTP answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u32,
    pub head: String,
    pub body: String,
}

impl Agent {
    /// Starts an agent with additional lines of configuration and, if given, a scenario of GPUs for
    /// the NVML stub.
    pub fn start(configuration: &str, scenario: Option<&str>) -> Self {
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let path = folder.path();
        fs::create_dir(path.join("s")).unwrap();
        let text = format!(
            "socket_dir = '{0}/s'\nmetrics = '127.0.0.1:0'\nstate_dir = '{0}/state'\njson = '{0}/rows.json'\n\
             audit = '{0}/audit.json'\ninterval_s = 1\n{configuration}",
            path.display()
        );
        fs::write(path.join("agent.toml"), text).unwrap();
        if let Some(scenario) = scenario {
            fs::write(path.join("scenario"), scenario).unwrap();
        }
        let is_stubbed = scenario.is_some();
        let (child, [metrics, secured, dynolog]) = run(path, is_stubbed);
        Self { folder, child, metrics, secured, dynolog, is_stubbed }
    }

    /// Kills the agent with SIGKILL, so that it cannot clean up.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts the agent again in the same folder.
    pub fn restart(&mut self) {
        let doors;
        (self.child, doors) = run(self.folder.path(), self.is_stubbed);
        [self.metrics, self.secured, self.dynolog] = doors;
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn sockets(&self) -> PathBuf {
        self.path("s")
    }

    /// Replaces the scenario of GPUs that the NVML stub reports.
    pub fn scenario(&self, text: &str) {
        let beside = self.path("scenario.new");
        fs::write(&beside, text).unwrap();
        fs::rename(beside, self.path("scenario")).unwrap();
    }

    /// Fetches a page from the agent's port for scrapers.
    pub fn page(&self, path: &str, accept: &str) -> Answer {
        let stream = TcpStream::connect(&self.metrics).unwrap();
        stream.set_read_timeout(Some(WAIT)).unwrap();
        ask(
            stream,
            &format!(
                "GET {path} HTTP/1.1\r\nHost: a\r\nAccept: {accept}\r\nConnection: close\r\n\r\n"
            ),
        )
    }

    /// Sends a request to the agent's Unix socket.
    pub fn local(&self, method: &str, path: &str, body: &str) -> Answer {
        let stream = UnixStream::connect(self.sockets().join("rowmill/agent")).unwrap();
        stream.set_read_timeout(Some(WAIT)).unwrap();
        let length = body.len();
        ask(
            stream,
            &format!(
                "{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n\
                 Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            ),
        )
    }

    /// Returns the counter rows that the agent has written.
    pub fn rows(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("rows.json")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Repeats `look` until it returns a value.
    pub fn until<T>(&self, what: &str, look: impl Fn(&Self) -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            assert!(began.elapsed() < WAIT, "not within {WAIT:?}: {what}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Starts the agent in its folder. Returns the addresses of its pages, its TLS port and dynolog's
/// port.
fn run(path: &Path, is_stubbed: bool) -> (Child, [String; 3]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rowmill-agent"));
    command.arg("--config").arg(path.join("agent.toml"));
    if is_stubbed {
        command.arg("--nvml").arg(stub()).env("ROWMILL_STUB_NVML", path.join("scenario"));
    }
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    // Once it runs, the agent prints one line with all its addresses. Notes may precede that line.
    let mut line = String::new();
    while !line.starts_with("rowmill-agent ") {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "the agent ended: {:?}", child.wait());
    }
    let place = |words: &str| {
        let part = line.trim().split("; ").find_map(|part| part.strip_prefix(words));
        part.unwrap_or_default().trim_end_matches("/metrics").to_owned()
    };
    let doors = ["metrics at http://", "traces at ", "dynolog's requests at "].map(place);
    std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
    (child, doors)
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The step message of a job that trains 32 samples per step, at one millisecond per step.
pub fn trained(step: u64) -> [u8; steps::LENGTH] {
    let message = steps::StepMessage {
        phase: steps::Phase::Train,
        own_pid: 1,
        step,
        monotonic_ns: step * 1_000_000,
        samples: 32,
        exposed_ns: None,
    };
    message.to_bytes()
}

/// Fetches a page from a server of this machine. Returns `None` if no server listens at the
/// address.
pub fn get(address: &str, path: &str) -> Option<Answer> {
    let stream = TcpStream::connect(address).ok()?;
    // HTTP version 1.0 has no chunked answers, which this client could not read.
    Some(ask(stream, &format!("GET {path} HTTP/1.0\r\nHost: a\r\nConnection: close\r\n\r\n")))
}

fn ask(mut stream: impl Read + Write, request: &str) -> Answer {
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = Vec::new();
    stream.read_to_end(&mut text).unwrap();
    let text = String::from_utf8_lossy(&text);
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_lowercase(), body: body.to_owned() }
}

/// Builds the stub of the NVML library, once per test run.
fn stub() -> PathBuf {
    static STUB: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    STUB.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/stub_nvml.c");
        let target =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("stub-{}.so", std::process::id()));
        assert!(compile_library(&target, &source, &["-O1"], "a stub of NVML"));
        target
    })
    .clone()
}

/// Returns the value of a sample on a page. The sample is selected by its name and by words of its
/// labels.
pub fn value(page: &str, name: &str, labels: &[&str]) -> Option<f64> {
    let is_it = |line: &&str| {
        let is_name = line.starts_with(name) && line[name.len()..].starts_with(['{', ' ']);
        is_name && labels.iter().all(|label| line.contains(label))
    };
    page.lines().find(is_it)?.rsplit(' ').next()?.parse().ok()
}
