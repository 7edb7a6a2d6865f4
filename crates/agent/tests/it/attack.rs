//! Attacks on the agent by an unprivileged user of the host, or by a peer without a token. Every
//! attack must fail.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use fleet::ipc::message::ProcessMessage;

use crate::fixture::{Agent, value};

/// User id of the unprivileged user who runs the attacks.
const SOMEBODY: u32 = 54_321;

const ATTACK: &str = "an attack of another user";

/// Runs an agent that must refuse to start, and returns what it printed.
fn refused(folder: &Path, words: &[&str]) -> Output {
    let mut agent = Command::new(env!("CARGO_BIN_EXE_rowmill-agent"));
    agent.args(["--socket-dir", "s"]).args(words).current_dir(folder);
    let ended = agent.env("HOME", folder).output().unwrap();
    assert_eq!(ended.status.code(), Some(2), "{ended:?}");
    ended
}

#[test]
fn a_planted_link_in_the_state_folder_deletes_nothing() {
    if !testkit::has_root(ATTACK) {
        return;
    }
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::create_dir(path("s")).unwrap();
    fs::create_dir_all(path("victim/kept")).unwrap();
    // In the test, every user may write to the folder, and another user created links in it before
    // the agent started.
    for (name, owner) in [("theirs", SOMEBODY), ("ours", 0)] {
        fs::create_dir(path(name)).unwrap();
        symlink(path("victim"), path(name).join("traces")).unwrap();
        std::os::unix::fs::lchown(path(name).join("traces"), Some(SOMEBODY), None).unwrap();
        chown(path(name), Some(owner), None).unwrap();
        for check in [&["--check"][..], &[]] {
            let told = refused(folder.path(), &[&["--state-dir", name], check].concat());
            let told = String::from_utf8(told.stderr).unwrap();
            assert!(told.contains(&format!("/{name}")) && told.contains("hint: "), "{told}");
        }
    }
    fs::create_dir(path("open")).unwrap();
    fs::set_permissions(path("open"), fs::Permissions::from_mode(0o777)).unwrap();
    let told = refused(folder.path(), &["--state-dir", "open/state"]);
    let told = String::from_utf8(told.stderr).unwrap();
    assert!(told.contains("open: expected a folder that only its owner may write"), "{told}");
    assert!(path("victim/kept").exists());
}

/// Runs a Python script as an unprivileged user, with the agent's folder as its argument. Returns
/// `None` and prints a line if Python is not installed.
fn somebody(script: &str, agent: &Agent) -> Option<Child> {
    let script = format!(
        "import encodings.idna, os, socket, struct, sys, time\nos.setuid({SOMEBODY})\nos.chdir(sys.argv[1])\n{script}\nprint('ready', flush=True)\ntime.sleep(600)"
    );
    if !testkit::has_program("python3", ATTACK) {
        return None;
    }
    let mut python = Command::new("python3");
    let python = python.args(["-c", &script]).arg(agent.folder.path()).stdout(Stdio::piped());
    let mut child = python.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    Some(child)
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Makes the agent's folders accessible to all users, as they are on a real host.
fn open_up(agent: &Agent) {
    let mode = |path: &Path, mode| fs::set_permissions(path, PermissionsExt::from_mode(mode));
    mode(agent.folder.path(), 0o755).unwrap();
    mode(&agent.sockets(), 0o1777).unwrap();
}

#[test]
fn incomplete_requests_do_not_block_complete_ones() {
    if !testkit::has_root(ATTACK) {
        return;
    }
    let agent = Agent::start("", None);
    open_up(&agent);
    let script = format!(
        "held = []
host, port = '{}'.rsplit(':', 1)
for number in range(200):
    try:
        one = socket.socket(socket.AF_UNIX)
        one.connect('s/rowmill/agent')
        one.send(b'GET /v1/status HTTP/1.1\\r\\nHost: a\\r\\n')
        other = socket.create_connection((host, int(port)))
        other.send(b'GET /metrics HTTP/1.1\\r\\nHost: a\\r\\n')
        held += [one, other]
    except OSError:
        pass",
        agent.metrics
    );
    let Some(child) = somebody(&script, &agent) else { return };
    for _ in 0..3 {
        assert_eq!(agent.local("GET", "/v1/status", "").status, 200);
        let page = agent.page("/metrics", "*/*");
        assert_eq!(page.status, 200);
        let refused = |endpoint: &str| {
            value(&page.body, "rowmill_connections_refused_total", &[endpoint]).unwrap()
        };
        assert!(refused("commands") > 100.0 && refused("pages") > 100.0, "{}", page.body);
    }
    end(child);
}

#[test]
fn a_flood_of_datagrams_does_not_silence_other_processes() {
    if !testkit::has_root(ATTACK) {
        return;
    }
    let agent = Agent::start("", None);
    open_up(&agent);
    let script = "if os.fork() == 0:
    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    s.bind('s/dynoconfigclient-flood')
    s.connect('s/dynolog')
    message = struct.pack('<Q32siiqi', 20, b'req', 2, 1, 0, 7)
    while os.getppid() != 1:
        try:
            s.send(message)
        except OSError:
            break
    os._exit(0)";
    let Some(child) = somebody(script, &agent) else { return };
    let client = UnixDatagram::bind(agent.sockets().join("dynoconfigclient-ours")).unwrap();
    client.set_read_timeout(Some(Duration::from_millis(90))).unwrap();
    client.set_write_timeout(Some(Duration::from_millis(10))).unwrap();
    let pid = i32::try_from(std::process::id()).unwrap();
    let poll = ProcessMessage::Poll { free: 2, job: 0, pids: vec![pid, 2] }.to_bytes();
    let mut answered = 0;
    for _ in 0..12 {
        // Like Kineto, the client retries ten times with growing pauses if the queue is full.
        for pause in (0..10).map(|turn| Duration::from_millis(10 << turn)) {
            if client.send_to(&poll, agent.sockets().join("dynolog")).is_ok() {
                answered += usize::from(client.recv(&mut [0; 4096]).is_ok());
                break;
            }
            std::thread::sleep(pause);
        }
    }
    let dropped = |page: &str| value(page, "rowmill_polls_total", &["outcome=\"dropped\""]);
    agent.until("drops are counted", |agent| {
        dropped(&agent.page("/metrics", "*/*").body).filter(|&count| count > 1000.0)
    });
    end(child);
    // On a busy machine, the agent may answer one or two polls too late.
    assert!(answered >= 9, "{answered} of 12 polls were answered");
}

#[test]
fn pages_require_a_configured_token() {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let token = folder.path().join("token");
    fs::write(&token, "0123456789abcdef").unwrap();
    fs::set_permissions(&token, PermissionsExt::from_mode(0o600)).unwrap();
    let agent = Agent::start(&format!("metrics_token_file = '{}'", token.display()), None);
    let with = |token: &str| {
        agent.page("/metrics", &format!("*/*\r\nAuthorization: Bearer {token}")).status
    };
    assert_eq!(agent.page("/metrics", "*/*").status, 401);
    assert_eq!((with("0123456789abcdeF"), with("0123456789abcdef")), (401, 200));
}

#[test]
fn a_check_finds_every_error_of_the_start() {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    fs::create_dir(folder.path().join("s")).unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for check in [&["--check"][..], &[]] {
        let words = ["--state-dir", "state", "--metrics", &address];
        let told = refused(folder.path(), &[&words, check].concat());
        let told = String::from_utf8(told.stderr).unwrap();
        assert!(told.contains(&format!("{address}: cannot listen")), "{told}");
        assert!(!folder.path().join("state").exists(), "a refused agent has changed nothing");
    }
    let mut agent = Command::new(env!("CARGO_BIN_EXE_rowmill-agent"));
    // The agent binds a port that the kernel chooses, because another process may hold any fixed
    // port.
    let words = ["--socket-dir", "s", "--state-dir", "state", "--metrics", "127.0.0.1:0"];
    let checked = agent.args(words).arg("--check").current_dir(folder.path()).output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
    assert!(!folder.path().join("state").exists());
}

#[test]
fn a_second_agent_is_told_that_root_owns_the_folder() {
    if !testkit::has_root(ATTACK) {
        return;
    }
    let agent = Agent::start("", None);
    open_up(&agent);
    let program = agent.path("rowmill-agent");
    // The second agent runs as a user who may lack access to the build folder, so the program is
    // copied. `cp` copies it instead of `fs::copy`, because a program that another test starts at
    // that moment would inherit the open file, and Linux does not run a file that is open for
    // writing.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_rowmill-agent")).arg(&program).status();
    assert!(copied.unwrap().success());
    fs::create_dir(agent.path("home")).unwrap();
    chown(agent.path("home"), Some(SOMEBODY), Some(SOMEBODY)).unwrap();
    let mut second = Command::new(program);
    second.args(["--check", "--socket-dir", "s"]).current_dir(agent.folder.path());
    let ended = second.env("HOME", agent.path("home")).uid(SOMEBODY).gid(SOMEBODY).output();
    let told = String::from_utf8(ended.unwrap().stderr).unwrap();
    let expected = format!("s/rowmill: expected a folder of user {SOMEBODY}, got one of user 0");
    assert!(told.contains(&expected), "{told}");
    assert!(told.contains("hint: root's agent has this socket folder"), "{told}");
}
