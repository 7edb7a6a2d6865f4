//! A hub on a full disk, which is a small file system in memory that only the hub sees.

use std::fs;
use std::process::{Child, Command};

use testkit::skip;

use crate::fixture::{
    count_entries, create_configuration, gpu_batch, hour_before, program, send_batch,
    wait_for_start,
};

/// A hub in a namespace of its own, which is killed on drop.
struct IsolatedHub(Child);

impl Drop for IsolatedHub {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn isolate() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--map-root-user"]);
    command
}

#[test]
fn a_full_disk_confirms_nothing_and_loses_nothing() {
    let mount = "mount -t tmpfs -o size=1m tmpfs";
    let (folder, token) = create_configuration("listen = '127.0.0.1:0'");
    let store = folder.path("store");
    fs::create_dir(&store).unwrap();
    let script = format!("{mount} {}", store.display());
    let is_possible = isolate().args(["sh", "-c", &script]).output();
    if !is_possible.is_ok_and(|output| output.status.success()) {
        skip("a full disk", "unshare --mount");
        return;
    }
    let mut command = isolate();
    let script = format!("{script} && exec \"$0\" serve --config \"$1\"");
    command.args(["sh", "-c", &script]).arg(program().get_program()).arg(folder.path("hub.toml"));
    let (child, address) = wait_for_start(command);
    let hub = IsolatedHub(child);
    // The hub's file system is visible through its process.
    let inner = format!("/proc/{}/root{}", hub.0.id(), store.display());
    let inner = std::path::Path::new(&inner);
    let hour_s = hour_before(0);
    let batch = |at: u64| {
        let starts = (0..300).map(|row| hour_s - (at + 1) * 3600 + row * 10);
        gpu_batch(1, 1 + at * 300, starts)
    };
    let mut sent = 0;
    fs::write(inner.join("filler"), vec![1; 900_000]).unwrap();
    let full = loop {
        let answer = send_batch(&address, &token, &batch(sent)).unwrap();
        if answer.status != 200 {
            break answer;
        }
        sent += 1;
        assert!(sent < 100, "the disk is never full");
    };
    assert_eq!(full.status, 503, "{full:?}");
    assert!(full.head.contains("retry-after: 5"), "{full:?}");
    assert_eq!(count_entries(inner).len() as u64, sent * 300);
    fs::remove_file(inner.join("filler")).unwrap();
    for at in 0..=sent {
        assert_eq!(send_batch(&address, &token, &batch(at)).unwrap().status, 200);
    }
    let entries = count_entries(inner);
    assert_eq!(entries.len() as u64, (sent + 1) * 300);
    assert!(entries.values().all(|count| *count == 1));
}
