//! What the kernel knows of a process: its start, parents, user, environment and libraries.
//!
//! Reads `/proc`; a process may end at any moment, and another user's hides most of it. Knows
//! nothing of traces.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use memchr::memmem;

/// What a process is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Clock ticks from boot to its start: tells it from a later one of the same number.
    pub started: u64,
    /// Its parent.
    pub parent: u32,
    /// `R`, `S`, `T` for stopped, `Z` for ended but not collected.
    pub state: char,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its command line.
    pub command: Vec<String>,
    /// Its environment when it started; `None` where we may not look.
    pub environment: Option<BTreeMap<String, String>>,
}

impl Process {
    /// Looks at a process; `None` if there is none.
    pub fn of(pid: u32) -> Option<Self> {
        let place = folder(pid);
        let (parent, state, started) = stat(&fs::read_to_string(place.join("stat")).ok()?)?;
        let owner = fs::metadata(&place).ok()?;
        let command = fs::read(place.join("cmdline")).unwrap_or_default();
        let environment = fs::read(place.join("environ")).ok();
        Some(Self {
            pid,
            started,
            parent,
            state,
            uid: owner.uid(),
            gid: owner.gid(),
            command: texts(&command).collect(),
            environment: environment.map(|bytes| variables(&bytes)),
        })
    }

    /// A variable of its environment.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.environment.as_ref()?.get(name).map(String::as_str)
    }

    /// Its rank, as launchers tell it.
    pub fn rank(&self) -> Option<u32> {
        self.variable("RANK")?.parse().ok()
    }

    /// Whether it only starts others: `torchrun` and its kin.
    pub fn is_launcher(&self) -> bool {
        const MODULES: [&str; 3] =
            ["torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"];
        let is_program = |word: &String| word.rsplit('/').next() == Some("torchrun");
        self.command.iter().take(3).any(is_program)
            || self.command.iter().any(|word| MODULES.contains(&word.as_str()))
    }

    /// Whether it still runs.
    pub fn is_alive(&self) -> bool {
        let text = fs::read_to_string(folder(self.pid).join("stat")).ok();
        let now = text.as_deref().and_then(stat);
        now.is_some_and(|(_, state, started)| {
            started == self.started && !matches!(state, 'Z' | 'X')
        })
    }

    /// A path of the process as we reach it: through its root where it sees other disks.
    pub fn path(&self, inside: &Path) -> PathBuf {
        let ours = fs::read_link("/proc/self/ns/mnt").ok();
        let theirs = fs::read_link(folder(self.pid).join("ns/mnt")).ok();
        if theirs.is_none() || ours == theirs {
            return inside.to_owned();
        }
        let rest = inside.strip_prefix("/").unwrap_or(inside);
        folder(self.pid).join("root").join(rest)
    }

    /// Whether it has a name space (`net`, `mnt`, `pid`) in common with us; `None` if hidden.
    pub fn shares(&self, space: &str) -> Option<bool> {
        let ours = fs::read_link(format!("/proc/self/ns/{space}")).ok()?;
        Some(fs::read_link(folder(self.pid).join("ns").join(space)).ok()? == ours)
    }

    /// Files it has mapped whose names contain a word; `None` where we may not look.
    pub fn libraries(&self, word: &str) -> Option<Vec<PathBuf>> {
        let maps = fs::read_to_string(folder(self.pid).join("maps")).ok()?;
        let mut found: Vec<PathBuf> = maps
            .lines()
            .filter_map(|line| line.find('/').map(|at| &line[at..]))
            .filter(|path| path.rsplit('/').next().is_some_and(|name| name.contains(word)))
            .map(PathBuf::from)
            .collect();
        found.sort();
        found.dedup();
        Some(found)
    }
}

/// Every process there is.
pub fn all() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids: Vec<u32> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    pids
}

/// Whether a file contains some bytes; `None` if it cannot be read.
pub fn contains(path: &Path, needle: &[u8]) -> Option<bool> {
    const BLOCK: usize = 1 << 20;
    let mut file = fs::File::open(path).ok()?;
    let finder = memmem::Finder::new(needle);
    let keep = needle.len().saturating_sub(1);
    let mut block = vec![0; BLOCK + keep];
    let mut held = 0;
    loop {
        let read = file.read(&mut block[held..]).ok()?;
        if read == 0 {
            return Some(false);
        }
        let end = held + read;
        if finder.find(&block[..end]).is_some() {
            return Some(true);
        }
        held = keep.min(end);
        block.copy_within(end - held..end, 0);
    }
}

fn folder(pid: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}"))
}

/// Parent, state and start of a line of `/proc/PID/stat`; the program's name may hold anything.
fn stat(line: &str) -> Option<(u32, char, u64)> {
    let mut fields = line[line.rfind(')')? + 1..].split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    Some((parent, state, fields.nth(17)?.parse().ok()?))
}

fn texts(bytes: &[u8]) -> impl Iterator<Item = String> {
    let parts = bytes.split(|&byte| byte == 0).filter(|part| !part.is_empty());
    parts.map(|part| String::from_utf8_lossy(part).into_owned())
}

fn variables(bytes: &[u8]) -> BTreeMap<String, String> {
    let pair = |text: String| text.split_once('=').map(|(a, b)| (a.to_owned(), b.to_owned()));
    texts(bytes).filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Process, all, contains, stat};

    #[test]
    fn our_own_process_is_known() {
        let own = Process::of(std::process::id()).unwrap();
        assert!(own.is_alive() && all().contains(&own.pid));
        assert_eq!(own.variable("PATH"), std::env::var("PATH").ok().as_deref());
        assert_eq!(own.path(Path::new("/tmp/x")), Path::new("/tmp/x"));
        assert_eq!(own.shares("net"), Some(true));
        assert!(!own.libraries("libc").unwrap().is_empty());
        assert!(!Process { started: own.started + 1, ..own.clone() }.is_alive());
        assert_eq!(Process::of(u32::MAX), None);
    }

    #[test]
    fn a_name_with_parentheses_does_not_confuse() {
        let line = "7 (a) b (c) S 3 7 7 0 -1 4 1 2 3 4 5 6 7 8 20 0 1 0 12345 1 2 3";
        assert_eq!(stat(line), Some((3, 'S', 12345)));
        assert_eq!(stat("7 (a"), None);
    }

    #[test]
    fn launchers_are_told_from_workers() {
        let own = Process::of(std::process::id()).unwrap();
        let with = |words: &[&str]| {
            let command = words.iter().map(ToString::to_string).collect();
            Process { command, ..own.clone() }.is_launcher()
        };
        assert!(with(&["/usr/bin/python3", "/opt/bin/torchrun", "train.py"]));
        assert!(with(&["python", "-m", "torch.distributed.run", "train.py"]));
        assert!(!with(&["python", "-u", "train.py", "--data", "x", "torchrun"]));
    }

    #[test]
    fn bytes_are_found_across_blocks() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut bytes = vec![b'x'; (1 << 20) - 3];
        bytes.extend_from_slice(b"KINETO_USE_DAEMON");
        std::fs::write(file.path(), &bytes).unwrap();
        assert_eq!(contains(file.path(), b"KINETO_USE_DAEMON"), Some(true));
        assert_eq!(contains(file.path(), b"KINETO_USE_NOTHING"), Some(false));
        assert_eq!(contains(Path::new("/no/such"), b"x"), None);
    }
}
