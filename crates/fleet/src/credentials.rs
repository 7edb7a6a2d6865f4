//! The user and groups that determine a process's access to files, as the kernel reports them.

use std::fs;

use rustix::fs::Stat;
use serde::{Deserialize, Serialize};

/// Permission bits for writing and for searching a folder.
pub(crate) const WRITE: u32 = 0o2;
pub(crate) const ENTER: u32 = 0o1;

/// The user and groups with which a process opens and creates files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credentials {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

impl Credentials {
    /// Whether the mode of a file grants the permissions `bits` to these credentials.
    pub(crate) fn may(&self, found: &Stat, bits: u32) -> bool {
        let shift = if found.st_uid == self.uid {
            6
        } else if found.st_gid == self.gid || self.groups.contains(&found.st_gid) {
            3
        } else {
            0
        };
        self.uid == 0 || (found.st_mode >> shift) & bits == bits
    }
}

/// Returns the user id of a process, or `None` if the process does not exist.
pub fn uid_of(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    parse(&status).map(|owner| owner.uid)
}

/// Returns the user id with which this process creates files, or `u32::MAX` if the kernel does not
/// report it.
pub fn own_uid() -> u32 {
    let status = fs::read_to_string("/proc/self/status").ok();
    status.as_deref().and_then(parse).map_or(u32::MAX, |own| own.uid)
}

/// Parses the user and groups that apply to files from the text of `/proc/PID/status`.
pub(crate) fn parse(status: &str) -> Option<Credentials> {
    let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    // The columns are the real, effective, saved and file system id, and the last one applies to
    // files.
    let last = |name| line(name)?.split_ascii_whitespace().nth(3)?.parse().ok();
    let groups = line("Groups:")?.split_ascii_whitespace();
    Some(Credentials {
        uid: last("Uid:")?,
        gid: last("Gid:")?,
        groups: groups.filter_map(|group| group.parse().ok()).collect(),
    })
}
