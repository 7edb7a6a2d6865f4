//! Owners of idle GPUs are told, as the truth of a simulated fleet demands, by a real webhook and a
//! real program.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde_json::Value;
use testkit::{Folder, ProgramOutput};

use crate::fixture::{TestHub, WAIT, add_token, program_beside};
use crate::simulate::start;
use crate::view::get;

/// Seconds after which the owners of idle GPUs are told.
const AFTER_S: f64 = 1800.0;
/// A web server that refuses its first request for a moment, and writes the body of all others to
/// files.
const SERVER: &str = "
import http.server, sys
class Hook(http.server.BaseHTTPRequestHandler):
    count = 0
    def do_POST(self):
        body = self.rfile.read(int(self.headers['Content-Length']))
        Hook.count += 1
        self.send_response(503 if Hook.count == 1 else 204)
        self.end_headers()
        if Hook.count > 1:
            open(f'{sys.argv[1]}/{Hook.count}', 'wb').write(body)
    def log_message(self, *words):
        pass
server = http.server.HTTPServer(('127.0.0.1', 0), Hook)
print(server.server_port, flush=True)
server.serve_forever()
";

/// A web server in Python, which is killed on drop.
pub struct WebHook {
    folder: Folder,
    child: Child,
    pub url: String,
}

impl WebHook {
    pub fn start() -> Self {
        let folder = Folder::new();
        let mut command = Command::new("python3");
        command.args(["-c", SERVER]).arg(folder.root()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { folder, child, url: format!("http://127.0.0.1:{}/hook", line.trim()) }
    }

    /// Returns the bodies that arrived, in no order.
    pub fn bodies(&self) -> Vec<String> {
        let files = std::fs::read_dir(self.folder.root()).unwrap();
        files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap()).collect()
    }
}

impl Drop for WebHook {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until the hub has looked for idle GPUs, and returns its notices.
pub fn notices(hub: &TestHub, viewer: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
    let began = Instant::now();
    loop {
        let answer = get(hub, viewer, "/hub/v1/notices?since=1h", "localhost");
        assert_eq!(answer.status, 200, "{answer:?}");
        let value: Value = serde_json::from_slice(&answer.body).unwrap();
        if value["looked_unix_s"].is_u64() && is_wanted(&value) {
            return value;
        }
        assert!(began.elapsed() < WAIT, "{value:#}");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

/// Replaces the section of notices, and restarts the hub.
fn restart_with(hub: &mut TestHub, section: &str) {
    let path = hub.folder.path("hub.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let others = text.split("[notices]").next().unwrap();
    std::fs::write(&path, format!("{others}[notices]\ninterval_s = 1\n{section}\n")).unwrap();
    hub.kill_and_restart();
}

/// The owner, the number of idle GPUs and their hours by run, in the form of the API.
fn listed(notices: &Value) -> BTreeMap<String, (String, u64, f64)> {
    let row = |one: &Value| {
        let hours = one["idle_gpu_s"].as_f64().unwrap() / 3600.0;
        let user = one["user"].as_str().unwrap().to_owned();
        (one["run"].as_str().unwrap().to_owned(), (user, one["idle_gpus"].as_u64().unwrap(), hours))
    };
    notices.as_array().unwrap().iter().map(row).collect()
}

#[test]
fn owners_of_the_truly_idle_gpus_of_a_fleet_are_told_once() {
    let mut hub = TestHub::start("");
    let viewer = add_token(&hub.folder, "viewer", "viewer");
    hub.kill_and_restart();
    // The simulated fleet differs with the time of day. In 400 hosts, some GPUs are always idle.
    assert!(start(&hub, ["400", "600", "6h"]).wait().unwrap().success());
    let text = std::fs::read_to_string(hub.folder.path("truth.json")).unwrap();
    let truth: Value = serde_json::from_str(&text).unwrap();
    let idle = truth["held_idle"].as_object().unwrap().iter().map(|(run, held)| {
        let seconds = held["idle_s"].as_array().unwrap().iter().map(|one| one.as_f64().unwrap());
        let seconds: Vec<f64> = seconds.filter(|idle_s| *idle_s >= AFTER_S).collect();
        let user = held["user"].as_str().unwrap().to_owned();
        (run.clone(), (user, seconds.len() as u64, seconds.iter().sum::<f64>() / 3600.0))
    });
    let idle: BTreeMap<_, _> = idle.filter(|(_, (_, gpus, _))| *gpus > 0).collect();
    assert!(idle.len() > 1, "{}", truth["held_idle"]);

    // A dry run lists what would be sent, and sends nothing. A limit holds some back at first.
    let hook = WebHook::start();
    let mail = hub.folder.write("mail.sh", "#!/bin/sh\ncat > \"$(dirname $0)/mail-$2\"\n");
    std::fs::set_permissions(&mail, std::fs::Permissions::from_mode(0o755)).unwrap();
    let ways = format!(
        "per_user = 1000\nwebhook = {{ url = '{}' }}\ncommand = ['{}', '-s', '{{user}}']",
        hook.url,
        mail.display()
    );
    restart_with(&mut hub, &ways.replace("per_user = 1000", "per_user = 1"));
    let limited = notices(&hub, &viewer, |_| true);
    let users: BTreeSet<&String> = idle.values().map(|(user, ..)| user).collect();
    assert_eq!(limited["notices"].as_array().unwrap().len(), users.len());
    let held = limited["held_back"].as_array().unwrap();
    assert_eq!(held.len(), idle.len() - users.len());
    assert!(held.iter().all(|one| one["why"].as_str().unwrap().contains("(per_user)")), "{held:?}");
    restart_with(&mut hub, &ways);
    let dry = notices(&hub, &viewer, |_| true);
    assert_eq!((listed(&dry["notices"]), &dry["is_dry_run"]), (idle.clone(), &true.into()));
    assert!(hook.bodies().is_empty());

    // One user is excepted, and the others are told once, also over a restart.
    let (excepted, (user, ..)) = idle.first_key_value().unwrap();
    let rules = format!("dry_run = false\n{ways}\n[[notices.except]]\nusers = ['{user}']");
    restart_with(&mut hub, &rules);
    let expected: BTreeMap<_, _> = idle
        .iter()
        .filter(|(_, (other, ..))| other != user)
        .map(|(a, b)| (a.clone(), b.clone()))
        .collect();
    let sent = notices(&hub, &viewer, |_| true);
    let real = |value: &Value| -> Value {
        let all = value["notices"].as_array().unwrap().iter();
        all.filter(|one| one["is_dry_run"] == false).cloned().collect()
    };
    assert_eq!(listed(&real(&sent)), expected);
    let held = sent["held_back"].as_array().unwrap();
    let held = held.iter().find(|one| one["run"] == excepted.as_str()).unwrap();
    assert!(held["why"].as_str().unwrap().contains("excepted by rule 1"), "{held}");
    restart_with(&mut hub, &rules);
    let again = notices(&hub, &viewer, |_| true);
    assert_eq!(again["notices"], sent["notices"]);
    // The simulated fleet differs with the time of day. If every idle run belongs to the excepted
    // user, nobody is told.
    let is_told = again["held_back"].to_string().contains("the owner was told");
    assert_eq!(is_told, !expected.is_empty());
    // The first request was refused for a moment, and was repeated.
    let bodies = hook.bodies();
    assert_eq!(bodies.len(), expected.len());
    for body in &bodies {
        let body: Value = serde_json::from_str(body).unwrap();
        let (owner, gpus, hours) = &expected[body["run"]["run"].as_str().unwrap()];
        assert_eq!(
            (&body["run"]["user"], &body["run"]["idle_gpus"]),
            (&owner.as_str().into(), &(*gpus).into())
        );
        assert!((body["idle_gpu_hours"].as_f64().unwrap() - hours).abs() < 1e-9);
        assert!(body["text"].as_str().unwrap().contains("Please end it"), "{body}");
        assert!(hub.folder.path(&format!("mail-{owner}")).exists(), "{owner}");
    }
    let audit = std::fs::read_to_string(hub.folder.path("store/audit/audit.jsonl")).unwrap();
    let lines = audit.lines().filter(|line| line.contains("\"NOTICE\""));
    assert_eq!(lines.count(), idle.len() + expected.len());

    let unknown = get(&hub, &viewer, "/hub/v1/notices?by=user", "localhost");
    assert_eq!(unknown.status, 400, "{unknown:?}");
    check_texts(&hub, &viewer, [idle.len(), expected.len()]);
}

/// Compares what `rowmill fleet` says with the numbers of notices in dry runs and sent ones.
fn check_texts(hub: &TestHub, viewer: &str, [dry, sent]: [usize; 2]) {
    let Some(program) = program_beside("rowmill") else {
        testkit::skip("notices in the report", "the program rowmill beside the hub");
        return;
    };
    let token = hub.folder.write("viewer.token", viewer);
    let run = |words: &[&str]| {
        let mut command = Command::new(&program);
        command.arg("fleet").args(words).args(["--hub", &format!("http://{}", hub.address)]);
        ProgramOutput::collect(command.arg("--token-file").arg(&token)).expect_code(0, "fleet")
    };
    let list = run(&["notices", "--format", "json"]).json();
    assert_eq!(list["notices"].as_array().unwrap().len(), dry + sent);
    let text = run(&["notices"]).stdout;
    println!("{text}");
    assert!(text.contains("dry run") && text.contains("webhook, command"), "{text}");
    let report = run(&["report", "--format", "json"]).json();
    let counts = [dry, sent, 0].map(Value::from);
    let names = ["would_be_sent", "sent", "cancelled"];
    assert_eq!(names.map(|name| report["notices"][name].clone()), counts);
}
