//! Reads how much memory this process may use. The available memory is the free memory of the
//! machine, or less if a control group of the process has less left. These figures come from Linux:
//! `/proc/meminfo` and the memory files of control groups.
//!
//! Page cache that the kernel can drop counts as free in both. `MemAvailable` already includes it,
//! and `inactive_file` and `active_file` are subtracted from a control group's usage. Memory that
//! this process already holds counts as available to it.

use std::fs;
use std::path::{Path, PathBuf};

use schema::Bytes;
use serde::Serialize;

/// The memory that this process may use, with the limit that determines it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AvailableMemory {
    /// Available memory, including the memory that the process already holds.
    pub bytes: Bytes,
    pub limit: MemoryLimit,
}

/// The limit on the memory of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryLimit {
    /// The free memory of the machine.
    Machine,
    /// The limit of a control group, which is identified by the folder of its files.
    ControlGroup(PathBuf),
}

impl std::fmt::Display for MemoryLimit {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Machine => out.write_str("this machine's available memory"),
            Self::ControlGroup(folder) => {
                write!(out, "left by the memory limit of control group {}", folder.display())
            }
        }
    }
}

/// Reads the memory that this process may use. Returns `None` on machines without `/proc`.
pub fn read() -> Option<AvailableMemory> {
    read_from(Path::new("/proc"))
}

fn read_from(proc: &Path) -> Option<AvailableMemory> {
    let held = read_held_memory(proc);
    let machine = read_free_memory(proc).map(|free| AvailableMemory {
        bytes: Bytes(free.saturating_add(held)),
        limit: MemoryLimit::Machine,
    });
    let groups = groups(proc).into_iter().filter_map(|group| group.available(held));
    machine.into_iter().chain(groups).min_by_key(|available| available.bytes)
}

/// Returns the memory that can be used without swapping, in bytes.
fn read_free_memory(proc: &Path) -> Option<u64> {
    parse_kib(&fs::read_to_string(proc.join("meminfo")).ok()?, "MemAvailable:")
}

/// Returns the anonymous memory of this process, in bytes.
fn read_held_memory(proc: &Path) -> u64 {
    let status = fs::read_to_string(proc.join("self/status")).unwrap_or_default();
    parse_kib(&status, "RssAnon:").unwrap_or(0)
}

fn parse_kib(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The versions of the kernel's interface to control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// A control group of the process, which may have a memory limit.
#[derive(Debug)]
struct MemoryGroup {
    version: Version,
    folder: PathBuf,
}

/// Finds the control groups that contain the process, directly or through nested groups, in every
/// hierarchy that limits memory.
fn groups(proc: &Path) -> Vec<MemoryGroup> {
    let read = |name: &str| fs::read_to_string(proc.join("self").join(name)).unwrap_or_default();
    let mounts = mounts(&read("mountinfo"));
    let mut groups = Vec::new();
    for line in read("cgroup").lines() {
        // Lines have the form `hierarchy:controllers:path`. In version 2 of control groups, the
        // line is `0::path`.
        let mut fields = line.splitn(3, ':');
        let (Some(hierarchy), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let version = match controllers {
            "" if hierarchy == "0" => Version::Two,
            _ if controllers.split(',').any(|name| name == "memory") => Version::One,
            _ => continue,
        };
        let mounts = mounts.iter().filter(|mount| mount.version == version);
        // A hierarchy may be mounted more than once. The mount that shows most of the path is used.
        let candidates = mounts.filter_map(|mount| Some((mount, mount.inside(path)?)));
        let Some((mount, inside)) =
            candidates.max_by_key(|(_, inside)| inside.components().count())
        else {
            continue;
        };
        let folders = inside.ancestors().map(|part| mount.point.join(part));
        groups.extend(folders.map(|folder| MemoryGroup { version, folder }));
    }
    groups
}

/// A mounted hierarchy of control groups.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    version: Version,
    /// The control group that is mounted at `point`.
    root: PathBuf,
    point: PathBuf,
}

impl Mount {
    /// Returns the group `path` relative to the mount point. Returns the mount point itself if
    /// `path` leads out of the mounted part, as it does in some containers.
    fn inside(&self, path: &str) -> Option<PathBuf> {
        let path = Path::new(path);
        let inside = path.strip_prefix(&self.root).or_else(|_| path.strip_prefix("/")).ok()?;
        let leads_out = inside.components().any(|part| part.as_os_str() == "..");
        Some(if leads_out { PathBuf::new() } else { inside.to_owned() })
    }
}

fn mounts(mountinfo: &str) -> Vec<Mount> {
    mountinfo.lines().filter_map(mount).collect()
}

/// Parses a line `id parent device root point options [tags…] - type source options`, see proc(5).
fn mount(line: &str) -> Option<Mount> {
    let (place, kind) = line.split_once(" - ")?;
    let mut place = place.split(' ').skip(3);
    let (root, point) = (unescaped(place.next()?), unescaped(place.next()?));
    let mut kind = kind.split(' ');
    let version = match kind.next()? {
        "cgroup2" => Version::Two,
        "cgroup" if kind.nth(1)?.split(',').any(|name| name == "memory") => Version::One,
        _ => return None,
    };
    Some(Mount { version, root: root.into(), point: point.into() })
}

/// Decodes the escapes of `/proc`, which writes spaces, tabs, line ends and backslashes as `\` and
/// three octal digits.
fn unescaped(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                out.push(char::from(code));
                out.push_str(&part[3..]);
            }
            None => {
                out.push('\\');
                out.push_str(part);
            }
        }
    }
    out
}

impl MemoryGroup {
    /// Returns the memory that the group leaves to a process which already holds `held` bytes of
    /// it. Returns `None` if the group has no limit.
    fn available(&self, held: u64) -> Option<AvailableMemory> {
        let limit = self.limit()?;
        let used = self.usage().saturating_sub(self.reclaimable());
        // `held` may exceed the usage that the group counts, because pages from before the process
        // joined count in its former group. The result must not exceed the limit.
        let bytes = limit.saturating_sub(used.saturating_sub(held));
        Some(AvailableMemory {
            bytes: Bytes(bytes),
            limit: MemoryLimit::ControlGroup(self.folder.clone()),
        })
    }

    fn limit(&self) -> Option<u64> {
        // Without a limit, version 1 shows the largest number of whole pages, and version 2 shows
        // "max", which does not parse as a number.
        const NONE: u64 = i64::MAX as u64 / (1 << 20) * (1 << 20);
        let limit = match self.version {
            Version::Two => self.number("memory.max"),
            Version::One => {
                // Enclosing groups may lie outside the mounted part, so their limit is read from
                // the statistics.
                let around = self.statistic("hierarchical_memory_limit");
                self.number("memory.limit_in_bytes").into_iter().chain(around).min()
            }
        };
        limit.filter(|&limit| limit < NONE)
    }

    fn usage(&self) -> u64 {
        let file = match self.version {
            Version::One => "memory.usage_in_bytes",
            Version::Two => "memory.current",
        };
        self.number(file).unwrap_or(0)
    }

    /// Returns the page cache of the group and of nested groups, which the kernel drops when memory
    /// runs short.
    fn reclaimable(&self) -> u64 {
        let cache_bytes = |name: &str| match self.version {
            Version::One => {
                self.statistic(&format!("total_{name}")).or_else(|| self.statistic(name))
            }
            Version::Two => self.statistic(name),
        };
        ["inactive_file", "active_file"].into_iter().filter_map(cache_bytes).sum()
    }

    fn number(&self, file: &str) -> Option<u64> {
        fs::read_to_string(self.folder.join(file)).ok()?.trim().parse().ok()
    }

    fn statistic(&self, name: &str) -> Option<u64> {
        let text = fs::read_to_string(self.folder.join("memory.stat")).ok()?;
        let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok();
        text.lines().find_map(value)
    }
}

#[cfg(test)]
mod tests;
