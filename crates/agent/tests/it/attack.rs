//! What an unprivileged user of the host, or a peer without a token, must not achieve.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Command, Output};

/// A user without rights, as whom the attacks run.
const SOMEBODY: u32 = 54_321;

/// Whether attacks of another user can be made; said loudly where not.
fn can_attack() -> bool {
    let is_root = fleet::process::own_uid() == 0;
    if !is_root {
        println!("SKIPPED an attack of another user: needs root");
    }
    is_root
}

/// Runs an agent that should refuse to start.
fn refused(folder: &Path, words: &[&str]) -> Output {
    let mut agent = Command::new(env!("CARGO_BIN_EXE_rowmill-agent"));
    agent.args(["--socket-dir", "s"]).args(words).current_dir(folder);
    let ended = agent.env("HOME", folder).output().unwrap();
    assert_eq!(ended.status.code(), Some(2), "{ended:?}");
    ended
}

#[test]
fn a_planted_link_in_the_state_folder_deletes_nothing() {
    if !can_attack() {
        return;
    }
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::create_dir(path("s")).unwrap();
    fs::create_dir_all(path("victim/kept")).unwrap();
    // As in a world-writable folder: somebody was there before the agent.
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
