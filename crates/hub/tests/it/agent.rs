//! A real agent sends rows of a stub of NVML to a real hub over TLS, and both are killed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use testkit::certificate::{CertificateFiles, create_certificate};
use testkit::compiler::compile_library;
use testkit::{Folder, skip};

use crate::fixture::{TestHub, WAIT, program_beside};

/// An agent with two stub GPUs, which is killed on drop.
struct RealAgent {
    program: PathBuf,
    folder: Folder,
    stub: PathBuf,
    child: Child,
}

impl RealAgent {
    fn start(program: PathBuf, stub: PathBuf, hub: &TestHub, certificate: &Path) -> Self {
        let folder = Folder::new();
        fs::create_dir(folder.path("s")).unwrap();
        let token = folder.write("token", &hub.token);
        fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
        folder.write("scenario", "gpu=0 util=50\ngpu=1 util=100\n");
        let root = folder.root().display();
        let configuration = format!(
            "socket_dir = '{root}/s'\nstate_dir = '{root}/state'\naudit = '{root}/audit.json'\n\
             host = 'gpu-1'\ninterval_s = 1\n[hub]\nurl = 'https://{}'\nca = '{}'\n\
             token_file = '{root}/token'\nverbs = ['trace']\n",
            hub.address,
            certificate.display()
        );
        folder.write("agent.toml", configuration);
        let child = Self::spawn(&program, &folder, &stub);
        Self { program, folder, stub, child }
    }

    fn spawn(program: &Path, folder: &Folder, stub: &Path) -> Child {
        let mut command = Command::new(program);
        command.arg("--config").arg(folder.path("agent.toml")).arg("--nvml").arg(stub);
        command.env("ROWMILL_STUB_NVML", folder.path("scenario"));
        command.stderr(Stdio::null()).spawn().unwrap()
    }

    fn kill_and_restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = Self::spawn(&self.program, &self.folder, &self.stub);
    }
}

impl Drop for RealAgent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn rows_of_a_real_agent_arrive_once_although_both_are_killed() {
    let Some(program) = program_beside("rowmill-agent") else {
        skip("a real agent", "rowmill-agent, which `cargo xtask ci --only hub` builds");
        return;
    };
    let folder = Folder::new();
    let Some(CertificateFiles { certificate, key }) = create_certificate(folder.root(), "a hub")
    else {
        return;
    };
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../agent/tests/it/stub_nvml.c");
    let stub = folder.path("stub.so");
    if !compile_library(&stub, &source, &["-O1"], "a stub of NVML") {
        return;
    }
    let lines = format!("certificate = '{}'\nkey = '{}'", certificate.display(), key.display());
    let mut hub = TestHub::start(&format!("{lines}\ncommit_ms = 50"));
    let mut agent = RealAgent::start(program, stub, &hub, &certificate);
    let wait_for = |hub: &TestHub, count: usize| {
        let began = Instant::now();
        while hub.entries().len() < count {
            assert!(began.elapsed() < WAIT, "{} rows, expected {count}", hub.entries().len());
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    let mut count = 6;
    wait_for(&hub, count);
    for _ in 0..2 {
        hub.kill_and_restart();
        agent.kill_and_restart();
        count = hub.entries().len() + 6;
        wait_for(&hub, count);
    }
    let entries = hub.entries();
    assert!(entries.values().all(|copies| *copies == 1), "{entries:?}");
    let sums = hub.sums("model");
    let deployed_s = sums["total"]["deployed_s"].as_f64().unwrap();
    assert!(deployed_s >= 8.0, "{sums}");
    // Nobody holds the GPUs of the stub.
    assert_eq!(sums["total"]["allocated_s"], 0.0);
    assert_eq!(sums["shares_percent"]["idle hosts"], 100.0, "{sums}");
}
