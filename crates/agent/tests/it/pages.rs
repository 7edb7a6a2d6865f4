//! Tests of the pages in both text formats, and of invalid configurations. The real Prometheus
//! reads the pages if it is installed.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use fleet::steps;

use testkit::certificate::create_certificate;
use testkit::has_program;

use crate::fixture::{Agent, trained, value};
use crate::ownership::Poller;

const GPU: &str = "gpu=0 util=50 gpm=1 smactive=0.25 power=200000 energy=1000\n";

#[test]
fn both_formats_are_served_by_accept_header() {
    let agent = Agent::start("", Some(GPU));
    agent.until("counters", |agent| {
        let page = agent.page("/metrics", "*/*").body;
        value(&page, "rowmill_gpu_reads_total", &["gpu=\"0\""])
    });
    let text = agent.page("/metrics", "text/plain");
    assert!(text.head.contains("text/plain; version=0.0.4"), "{}", text.head);
    assert!(!text.body.contains("# EOF"));
    let open = agent.page("/metrics", "application/openmetrics-text; version=1.0.0");
    assert!(open.head.contains("application/openmetrics-text"), "{}", open.head);
    assert!(open.body.ends_with("# EOF\n"));
    assert_eq!(agent.page("/none", "*/*").status, 404);
    if !has_program("promtool", "a check of the pages by promtool") {
        return;
    }
    for page in [&text.body, &agent.page("/metrics/dcgm", "*/*").body] {
        let mut child = Command::new("promtool")
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        // promtool objects to the names of dcgm-exporter's metrics, so on that page only parse
        // errors fail the test.
        let is_dcgm = page.contains("DCGM_FI_");
        assert!(output.status.success() || (is_dcgm && !said.contains("error")), "{said}\n{page}");
    }
}

/// Names and types of the fields in the default list of dcgm-exporter.
const OF_DCGM_EXPORTER: [(&str, &str); 20] = [
    ("DCGM_FI_DEV_SM_CLOCK", "gauge"),
    ("DCGM_FI_DEV_MEM_CLOCK", "gauge"),
    ("DCGM_FI_DEV_GPU_TEMP", "gauge"),
    ("DCGM_FI_DEV_POWER_USAGE", "gauge"),
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter"),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter"),
    ("DCGM_FI_DEV_GPU_UTIL", "gauge"),
    ("DCGM_FI_DEV_XID_ERRORS", "gauge"),
    ("DCGM_FI_DEV_FB_FREE", "gauge"),
    ("DCGM_FI_DEV_FB_USED", "gauge"),
    ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gauge"),
    ("DCGM_FI_PROF_SM_ACTIVE", "gauge"),
    ("DCGM_FI_PROF_SM_OCCUPANCY", "gauge"),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gauge"),
    ("DCGM_FI_PROF_PIPE_FP64_ACTIVE", "gauge"),
    ("DCGM_FI_PROF_PIPE_FP32_ACTIVE", "gauge"),
    ("DCGM_FI_PROF_PIPE_FP16_ACTIVE", "gauge"),
    ("DCGM_FI_PROF_DRAM_ACTIVE", "gauge"),
    ("DCGM_FI_PROF_PCIE_TX_BYTES", "gauge"),
    ("DCGM_FI_PROF_PCIE_RX_BYTES", "gauge"),
];
/// Labels of a whole GPU in dcgm-exporter. The label of the host was renamed in 2026, so both names
/// occur.
const ITS_LABELS: [&str; 7] =
    ["gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname", "hostname"];

#[test]
fn the_dcgm_page_has_names_types_and_labels_of_dcgm_exporter() {
    let agent = Agent::start("", Some(GPU));
    let page = agent.until("a second sample", |agent| {
        let page = agent.page("/metrics/dcgm", "*/*").body;
        value(&page, "DCGM_FI_PROF_SM_ACTIVE", &[]).is_some().then_some(page)
    });
    let types: Vec<(&str, &str)> =
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    assert_eq!(types, OF_DCGM_EXPORTER, "{page}");
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (_, labels) = line.split_once('{').unwrap();
        let labels = labels.rsplit_once('}').unwrap().0;
        let names: Vec<&str> =
            labels.split("\",").map(|label| label.split_once('=').unwrap().0).collect();
        assert_eq!(names, ITS_LABELS, "{line}");
    }
}

#[test]
fn an_ending_agent_removes_its_sockets() {
    let mut agent = Agent::start("", None);
    let pid = agent.child.id().to_string();
    assert!(Command::new("kill").arg(&pid).status().unwrap().success());
    assert_eq!(agent.child.wait().unwrap().code(), Some(0));
    let left: Vec<_> = fs::read_dir(agent.sockets()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn an_invalid_configuration_is_refused_with_its_position_and_a_hint() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("agent.toml");
    let check = |text: &str| {
        fs::write(&file, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_rowmill-agent"));
        let output = command.arg("--check").arg("--config").arg(&file).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, said) = check("metrics = '127.0.0.1:0'");
    let right =
        "the agent would start: configuration, folders, files, sockets and ports are right\n";
    assert!(code == Some(0) && said.starts_with(right), "{said}");
    let (code, said) = check("socket = 'x'");
    assert!(code == Some(2) && said.contains("unknown field `socket`"), "{said}");
    assert!(said.contains("hint: rowmill-agent --help"), "{said}");
    let secret = folder.path().join("token");
    fs::write(&secret, "0123456789abcdef").unwrap();
    let token =
        format!("[[token]]\nname = 'a'\nfile = '{}'\nverbs = ['status']\n", secret.display());
    let listen = "[listen]\naddress = '127.0.0.1:0'\ncertificate = '/none'\nkey = '/none'\n";
    let (_, said) = check(&format!("{listen}{token}"));
    assert!(said.contains("expected mode 0600 at most, got 0644"), "{said}");
    let (_, said) = check(listen);
    assert!(said.contains("expected at least one [[token]]"), "{said}");
    let long = format!("socket_dir = '/{}'\n", "x".repeat(60));
    fs::write(&file, long).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_rowmill-agent"));
    let output = command.arg("--config").arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && said.contains("at most 54 bytes"), "{said}");
}

#[test]
fn a_check_reports_every_problem_with_its_key_and_a_hint() {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let path = |name: &str| folder.path().join(name);
    let secret = |name: &str, text: &str| {
        fs::write(path(name), text).unwrap();
        fs::set_permissions(path(name), fs::Permissions::from_mode(0o600)).unwrap();
        path(name).display().to_string()
    };
    let check = |text: &str| {
        fs::write(path("agent.toml"), text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_rowmill-agent"));
        let command =
            command.args(["--check", "--config", "agent.toml"]).current_dir(folder.path());
        let output = command.args(["--state-dir", "state"]).output().unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let expect = |said: &str, wanted: &[&str]| {
        for words in wanted {
            assert!(said.contains(words), "expected {words:?} in {said}");
        }
        assert_eq!(said.matches("error: agent.toml: ").count(), wanted.len(), "{said}");
    };
    let short = secret("short", "abc\n");
    let said = check(&format!(
        "metrics = '127.0.0.1:0'\nmetrics_token_file = '{short}'\njson = '/nope/x'\ndcgm_page = 'x'\n"
    ));
    expect(
        &said,
        &[
            "metrics_token_file: ",
            "json: /nope",
            "dcgm_page: expected a URL such as http://127.0.0.1:9400/metrics, got \"x\"",
        ],
    );
    let (one, two) = (secret("one", "0123456789abcdef\n"), secret("two", "0123456789abcdef"));
    let lines = secret("lines", "0123456789abcdef\nfedcba9876543210\n");
    let token = |name: &str, file: &str| {
        format!("[[token]]\nname = '{name}'\nfile = '{file}'\nverbs = ['status']\n")
    };
    let tokens = [("a", one.as_str()), ("b", &two), ("c", &lines), ("d", "/none")];
    let tokens: String = tokens.iter().map(|(name, file)| token(name, file)).collect();
    fs::write(path("fields"), "# nothing\n").unwrap();
    fs::write(path("garbage"), "-----BEGIN CERTIFICATE-----\nAAAA\n").unwrap();
    let files = format!(
        "socket_dir = '/none/kineto'\ndcgm_fields = 'fields'\n[listen]\naddress = '127.0.0.1:0'\n\
         certificate = 'garbage'\nkey = '/none'\n{tokens}"
    );
    let said = check(&files);
    expect(
        &said,
        &[
            "token \"b\": file: expected a secret of its own for each token, got the secret of token \"a\"",
            "one line with a secret, got 2 lines",
            "token \"d\": file: /none: cannot read: No such file",
            "dcgm_fields: fields: expected at least one field",
            "certificate in PEM, got a section without its END line",
            "socket_dir: /none",
        ],
    );
    assert!(said.contains("hint: make the socket folder, open to all users: install -d -m 1777"));
    assert!(
        said.contains("hint: make the file with a secret: openssl rand -hex 16 | install -m 0600")
    );
    let said = check("metrics = = 1\n");
    assert!(said.lines().count() > 3 && !said.contains("\\u{a}"), "{said}");
}

#[test]
fn a_key_that_is_not_the_certificates_is_named() {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let [one, two] = ["one", "two"].map(|name| folder.path().join(name));
    [&one, &two].into_iter().for_each(|path| fs::create_dir(path).unwrap());
    let create = |folder: &Path| create_certificate(folder, "a key of another certificate");
    let (Some(first), Some(second)) = (create(&one), create(&two)) else { return };
    let (certificate, key) = (first.certificate, second.key);
    let (token, file) = (folder.path().join("token"), folder.path().join("agent.toml"));
    fs::write(&token, "0123456789abcdef").unwrap();
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
    let text = format!(
        "state_dir = '{}'\n[listen]\naddress = '127.0.0.1:0'\ncertificate = '{}'\nkey = '{}'\n\
         [[token]]\nname = 'a'\nfile = '{}'\nverbs = ['status']\n",
        folder.path().join("state").display(),
        certificate.display(),
        key.display(),
        token.display()
    );
    fs::write(&file, text).unwrap();
    let mut agent = Command::new(env!("CARGO_BIN_EXE_rowmill-agent"));
    let output = agent.arg("--check").arg("--config").arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("two/key.pem: expected the key of ") && said.contains("hint: "),
        "{said}"
    );
}

#[test]
fn the_doctor_names_missing_gpus_and_wrong_mappings() {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    fs::write(folder.path().join("0"), "job=8812 uid=0\n").unwrap();
    let mapping = folder.path().display();
    let agent = Agent::start(
        &format!("expected_gpus = 3\njob_mapping = '{mapping}'\nhost = 'gpu-17'\n"),
        None,
    );
    let status = agent.until("a note about GPUs", |agent| {
        let status = agent.local("GET", "/v1/status", "").body;
        status.contains("expected_gpus: expected 3 GPUs that can be read, got 0").then_some(status)
    });
    assert!(status.contains("/0:1: expected `job`, `job user` or `job user uid`, got"), "{status}");
    assert!(status.contains("\"host\":\"gpu-17\""), "{status}");
    assert!(!agent.page("/metrics", "*/*").body.contains("job=8812"));
}

/// A real Prometheus server that scrapes both pages of an agent. The server is killed on drop.
struct Prometheus {
    child: Child,
    address: String,
}

impl Prometheus {
    /// Starts Prometheus. Returns `None` and prints a line if Prometheus is not installed.
    fn start(agent: &Agent) -> Option<Self> {
        let scrape = "a scrape by Prometheus";
        if !has_program("promtool", scrape) || !has_program("prometheus", scrape) {
            return None;
        }
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let target = &agent.metrics;
        let job = |name: &str, path: &str| {
            format!(
                "  - job_name: {name}\n    metrics_path: {path}\n    static_configs: [{{targets: ['{target}']}}]\n"
            )
        };
        let configuration = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: ['{}']\n\
             scrape_configs:\n{}{}",
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../../deploy/prometheus/rules.yml")
                .display(),
            job("rowmill", "/metrics"),
            job("dcgm", "/metrics/dcgm")
        );
        fs::write(agent.path("prometheus.yml"), configuration).unwrap();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", agent.path("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", agent.path("tsdb").display()))
            .arg(format!("--web.listen-address={port}"))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Some(Self { child, address: port.to_string() })
    }

    /// Checks that an expression returns at least one row. The error is the answer of Prometheus.
    fn has_rows(&self, expression: &str) -> Result<(), String> {
        let path = format!("/api/v1/query?query={}", percent_encoded(expression));
        let answer = crate::fixture::get(&self.address, &path).map(|answer| answer.body);
        let answer = answer.unwrap_or_default();
        if answer.contains("\"value\":[") { Ok(()) } else { Err(answer) }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn percent_encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

#[test]
fn a_real_prometheus_scrapes_both_pages() {
    let agent = Agent::start("", Some(GPU));
    let Some(prometheus) = Prometheus::start(&agent) else { return };
    for expression in
        ["up==1", "rowmill_gpu_reads_total", "DCGM_FI_DEV_POWER_USAGE", "hw_gpu_memory_limit_bytes"]
    {
        agent.until(expression, |_| prometheus.has_rows(expression).ok());
    }
}

/// Returns the expressions of the Grafana dashboard, with variables substituted as Grafana does.
fn expressions_of_the_board() -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/grafana/fleet.json");
    let board: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let panels = board["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    let filled = |target: &serde_json::Value| {
        let text = target["expr"].as_str().unwrap().replace("$__rate_interval", "30s");
        let text = text.replace("$host", ".*");
        assert!(!text.contains('$'), "an unknown variable: {text}");
        text
    };
    targets.map(filled).collect()
}

/// In this scenario, two runs share a GPU, two runs have no GPU, and one run has a GPU for itself.
#[test]
fn every_query_of_the_board_has_rows_and_every_rule_is_evaluated() {
    let mapping = tempfile::tempdir().unwrap();
    fs::write(mapping.path().join("0"), "4711 ada\n4713 eve\n").unwrap();
    fs::write(mapping.path().join("1"), "4712 bob\n").unwrap();
    let configuration = format!("job_mapping = '{}'\n", mapping.path().display());
    let agent = Agent::start(&configuration, Some(&format!("{GPU}gpu=1 util=0\n")));
    let Some(prometheus) = Prometheus::start(&agent) else { return };
    let _pollers = ["one", "two"].map(|run| Poller::start(&agent, &[("TORCHELASTIC_RUN_ID", run)]));
    agent.until("runs without a GPU", |_| {
        let runs = "count(rowmill_run_info{UUID=\"\", scheduler=\"torchrun\"}) == 2";
        prometheus.has_rows(runs).ok()
    });
    let socket = UnixDatagram::unbound().unwrap();
    let target = agent.sockets().join(steps::NAME);
    let step = AtomicU64::new(0);
    let expressions = expressions_of_the_board();
    assert!(expressions.len() > 10, "{expressions:?}");
    for expression in expressions {
        agent.until(&expression, |_| {
            let step = step.fetch_add(1, Ordering::Relaxed);
            // Errors are ignored, because the agent may not listen yet.
            let _ = socket.send_to(&trained(step), &target);
            prometheus.has_rows(&expression).ok()
        });
    }
    let record = "rowmill:run_busy:ratio5m{job_id=\"4713\"}";
    agent.until(record, |_| prometheus.has_rows(record).ok());
    let rules = crate::fixture::get(&prometheus.address, "/api/v1/rules").unwrap().body;
    let rules: serde_json::Value = serde_json::from_str(&rules).unwrap();
    let rules = rules["data"]["groups"][0]["rules"].as_array().unwrap().clone();
    assert!(rules.len() > 10, "{rules:?}");
    for rule in rules {
        assert_eq!((&rule["health"], &rule["lastError"]), (&"ok".into(), &rule["none"]), "{rule}");
    }
}
