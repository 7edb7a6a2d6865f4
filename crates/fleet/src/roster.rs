//! Lists the polling processes with their description from `/proc`. Removes ended processes from
//! the list, and the socket files that they leave behind.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use crate::process::Process;
use crate::server::Server;

/// Prefix of the sockets that PyTorch creates for answers and never removes.
pub const CLIENT: &str = "dynoconfigclient";
/// Maximum number of entries of a socket folder that are read at once. The folder is open to all
/// users, so it may have any number of entries.
const SWEPT_MAX: usize = 4096;

/// The processes that have polled and still exist, with their description.
#[derive(Debug, Default)]
pub struct Roster {
    known: BTreeMap<u32, Process>,
}

impl Roster {
    /// Inspects processes that polled since the last call, and forgets ended ones.
    pub fn refresh(&mut self, server: &Server) {
        let seen = server.seen();
        self.known.retain(|pid, _| seen.iter().any(|seen| seen.pid == *pid));
        for seen in seen {
            if self.known.get(&seen.pid).is_some_and(Process::is_alive) {
                continue;
            }
            match Process::read(seen.pid) {
                // The process is not in the roster yet. If its id was reused, the entry of the
                // previous process was removed first, so old requests do not reach the new process.
                Some(process) if !self.known.contains_key(&seen.pid) => {
                    self.known.insert(seen.pid, process);
                }
                _ => {
                    server.forget(seen.pid);
                    self.known.remove(&seen.pid);
                }
            }
        }
    }

    /// Returns the existing processes by process id.
    pub fn processes(&self) -> Vec<Process> {
        self.known.values().cloned().collect()
    }

    /// Returns one process of the roster by its id.
    pub fn process(&self, pid: u32) -> Option<&Process> {
        self.known.get(&pid)
    }
}

/// Removes the sockets of ended processes from a socket folder and returns how many it removed.
///
/// A socket file without a process refuses connections, which identifies it. Other files with a
/// client's name are kept.
pub fn sweep(folder: &Path) -> usize {
    let Ok(probe) = UnixDatagram::unbound() else { return 0 };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().take(SWEPT_MAX);
    let is_client = |entry: &fs::DirEntry| {
        let named = entry.file_name().to_str().is_some_and(|name| name.starts_with(CLIENT));
        named && entry.file_type().is_ok_and(|kind| kind.is_socket())
    };
    let is_dead = |entry: &fs::DirEntry| {
        let tried = probe.connect(entry.path());
        tried.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    };
    let dead = entries.filter(is_client).filter(is_dead);
    // `remove_file` removes the directory entry itself, never the target of a link.
    dead.filter(|entry| fs::remove_file(entry.path()).is_ok()).count()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;
    use std::path::Path;
    use std::time::{Duration, Instant};

    use super::sweep;

    /// Calls `sweep` until it removes a socket. A process that another test starts holds copies of
    /// all open sockets until it executes its program, and a copied socket still accepts
    /// connections.
    fn sweep_one(folder: &Path) {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            match sweep(folder) {
                0 => assert!(Instant::now() < deadline, "the closed socket is still there"),
                removed => return assert_eq!(removed, 1),
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn only_sockets_without_an_owner_are_removed() {
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let path = |name: &str| folder.path().join(name);
        let alive = UnixDatagram::bind(path("dynoconfigclient-alive")).unwrap();
        drop(UnixDatagram::bind(path("dynoconfigclient-dead")).unwrap());
        drop(UnixDatagram::bind(path("another")).unwrap());
        std::fs::write(path("dynoconfigclient-file"), "x").unwrap();
        std::os::unix::fs::symlink(path("another"), path("dynoconfigclient-link")).unwrap();
        sweep_one(folder.path());
        let mut names: Vec<_> = std::fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        let left =
            ["another", "dynoconfigclient-alive", "dynoconfigclient-file", "dynoconfigclient-link"];
        assert_eq!(names, left);
        drop(alive);
        sweep_one(folder.path());
        assert_eq!(sweep(&path("no-such-folder")), 0);
    }
}
