//! What the kernel knows of a process: its start, parents, user, environment and libraries.
//!
//! Reads `/proc`; a process may end at any moment, and another user's hides most of it. Knows
//! nothing of traces.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use memchr::memmem;
use schema::Bytes;

use crate::untrusted::{Credentials, Expected, Owner, UntrustedError, UntrustedFolder};

/// The variables of a process that are kept. Their owner sets any number of others of any length.
const VARIABLES: [&str; 29] = [
    "KINETO_IPC_SOCKET_DIR",
    "KINETO_ONDEMAND_TRACE_DIR",
    "KINETO_USE_DAEMON",
    "LOCAL_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "POD_NAME",
    "POD_NAMESPACE",
    "POD_UID",
    "PT_PROFILER_JOB_NAME",
    "RANK",
    "ROWMILL_WORKFLOW",
    "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
    "SLURM_JOBID",
    "SLURM_JOB_ACCOUNT",
    "SLURM_JOB_GPUS",
    "SLURM_JOB_ID",
    "SLURM_JOB_NAME",
    "SLURM_JOB_PARTITION",
    "SLURM_JOB_USER",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_PROCID",
    "SLURM_RESTART_COUNT",
    "SLURM_STEP_GPUS",
    "SLURM_STEP_ID",
    "TORCHELASTIC_RUN_ID",
    "WORLD_SIZE",
];
/// Bytes of an environment that are read, of one variable, and of all that are kept.
const ENVIRONMENT_MAX: u64 = 1 << 20;
const VALUE_MAX: usize = 4096;
const VALUES_MAX: usize = 8192;
/// Bytes of a command line that are kept.
const COMMAND_MAX: u64 = 2048;
/// Bytes of a list of mapped files that are read.
const MAPS_MAX: u64 = 16 << 20;
/// Larger files are not searched: the largest library of PyTorch has about a gigabyte.
const SEARCHED_MAX: Bytes = Bytes(8 << 30);

/// What a process is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    /// Clock ticks from boot to its start: distinguishes it from a later process of the same id.
    pub started: u64,
    pub parent: u32,
    /// `R`, `S`, `T` for stopped, `Z` for ended but not collected.
    pub state: char,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub command: Vec<String>,
    /// The variables of its environment that are of use, as they were when it started; `None` where
    /// we may not look.
    pub environment: Option<BTreeMap<String, String>>,
}

impl Process {
    /// Looks at a process; `None` if there is none.
    pub fn read(pid: u32) -> Option<Self> {
        let place = folder(pid);
        let (parent, state, started) = stat(&fs::read_to_string(place.join("stat")).ok()?)?;
        // Not the owner of the folder: that is root for a process that hides its memory.
        let owner = credentials(&fs::read_to_string(place.join("status")).ok()?)?;
        let mut command = Vec::new();
        let opened = fs::File::open(place.join("cmdline"));
        // What cannot be read is empty, as that of a thread of the kernel.
        let _ = opened.and_then(|file| file.take(COMMAND_MAX).read_to_end(&mut command));
        let environment = fs::File::open(place.join("environ")).and_then(variables).ok();
        Some(Self {
            pid,
            started,
            parent,
            state,
            uid: owner.uid,
            gid: owner.gid,
            groups: owner.groups,
            command: texts(&command).collect(),
            environment,
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

    /// The number of ranks of its job, as launchers tell it.
    pub fn world_size(&self) -> Option<u32> {
        self.variable("WORLD_SIZE")?.parse().ok()
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

    /// As whom it opens and makes files.
    pub fn credentials(&self) -> Credentials {
        Credentials { uid: self.uid, gid: self.gid, groups: self.groups.clone() }
    }

    /// Where its paths begin as we reach them: its own root where it sees other disks.
    pub fn root(&self) -> PathBuf {
        let ours = fs::read_link("/proc/self/ns/mnt").ok();
        let theirs = fs::read_link(folder(self.pid).join("ns/mnt")).ok();
        if theirs.is_none() || ours == theirs {
            return PathBuf::from("/");
        }
        folder(self.pid).join("root")
    }

    /// A path of the process as we reach it.
    pub fn path(&self, inside: &Path) -> PathBuf {
        self.root().join(inside.strip_prefix("/").unwrap_or(inside))
    }

    /// Whether it has a name space (`net`, `mnt`, `pid`) in common with us; `None` if hidden.
    pub fn shares(&self, space: &str) -> Option<bool> {
        let ours = fs::read_link(format!("/proc/self/ns/{space}")).ok()?;
        Some(fs::read_link(folder(self.pid).join("ns").join(space)).ok()? == ours)
    }

    /// Files it has mapped whose names contain a word; `None` where we may not look.
    pub fn libraries(&self, word: &str) -> Option<Vec<PathBuf>> {
        let mut maps = String::new();
        let file = fs::File::open(folder(self.pid).join("maps")).ok()?;
        file.take(MAPS_MAX).read_to_string(&mut maps).ok()?;
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

/// Whether a file that a process has mapped contains some bytes; `None` if it cannot be read.
///
/// The path is the process's word: whatever it names by now is opened without blocking.
pub fn contains(process: &Process, path: &Path, needle: &[u8]) -> Option<bool> {
    let (folder, name) = (path.parent()?, path.file_name()?.to_str()?);
    let folder = UntrustedFolder::open(&process.root(), folder, &process.credentials()).ok()?;
    let expected = Expected { owner: Owner::Anyone, size_max: SEARCHED_MAX };
    let file: Result<_, UntrustedError> = folder.file(name, &expected);
    search(file.ok()??.into_reader(), needle)
}

fn search(mut file: impl Read, needle: &[u8]) -> Option<bool> {
    const BLOCK: usize = 1 << 20;
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

/// Allows this process as many open files as the system lets it: a trace holds two, and so does a
/// connection of anyone.
pub fn raise_descriptor_limit() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
    // It goes on with fewer where that is refused.
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, raised);
}

/// The user of a process; `None` if there is none.
pub fn uid_of(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(folder(pid).join("status")).ok()?;
    credentials(&status).map(|owner| owner.uid)
}

/// The user that this process makes files as; nobody where the kernel does not say.
pub fn own_uid() -> u32 {
    let status = fs::read_to_string("/proc/self/status").ok();
    status.as_deref().and_then(credentials).map_or(u32::MAX, |own| own.uid)
}

/// The user and groups of `/proc/PID/status` that count for files.
fn credentials(status: &str) -> Option<Credentials> {
    let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    // Real, effective, saved, and that of files.
    let last = |name| line(name)?.split_ascii_whitespace().nth(3)?.parse().ok();
    let groups = line("Groups:")?.split_ascii_whitespace();
    Some(Credentials {
        uid: last("Uid:")?,
        gid: last("Gid:")?,
        groups: groups.filter_map(|group| group.parse().ok()).collect(),
    })
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

/// The variables that are kept, read piece by piece.
fn variables(file: impl Read) -> io::Result<BTreeMap<String, String>> {
    let mut kept = BTreeMap::new();
    let (mut left, mut pair) = (VALUES_MAX, Vec::new());
    let mut file = BufReader::new(file.take(ENVIRONMENT_MAX));
    while file.read_until(0, &mut pair)? > 0 {
        let text = pair.strip_suffix(&[0]).unwrap_or(&pair);
        let at = text.iter().position(|&byte| byte == b'=').unwrap_or(0);
        let (name, value) = (&text[..at], text.get(at + 1..).unwrap_or_default());
        let known = VARIABLES.iter().find(|known| known.as_bytes() == name);
        if let Some(name) = known
            && value.len() <= VALUE_MAX.min(left)
        {
            left -= value.len();
            kept.insert((*name).to_owned(), String::from_utf8_lossy(value).into_owned());
        }
        pair.clear();
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Process, all, contains, credentials, own_uid, stat, variables};

    #[test]
    fn our_own_process_is_known() {
        let own = Process::read(std::process::id()).unwrap();
        assert!(own.is_alive() && all().contains(&own.pid));
        // Only what is of use is kept.
        assert!(own.environment.is_some() && own.variable("PATH").is_none());
        assert_eq!(own.path(Path::new("/tmp/x")), Path::new("/tmp/x"));
        assert_eq!(own.shares("net"), Some(true));
        assert!(!own.libraries("libc").unwrap().is_empty());
        assert!(!Process { started: own.started + 1, ..own.clone() }.is_alive());
        assert_eq!(Process::read(u32::MAX), None);
    }

    #[test]
    fn a_large_environment_takes_little_memory() {
        let mut bytes = vec![b'x'; 600_000];
        bytes.extend_from_slice(b"\0RANK=3\0SLURM_JOB_NAME=");
        bytes.extend(std::iter::repeat_n(b'y', 200_000));
        bytes.extend_from_slice(b"\0=\0\0WORLD_SIZE\0RANKS=1\0SLURM_JOB_ID=7\0");
        bytes.extend(std::iter::repeat_n(b'z', 600_000));
        bytes.extend_from_slice(b"\0WORLD_SIZE=4");
        let kept: Vec<(String, String)> =
            variables(bytes.as_slice()).unwrap().into_iter().collect();
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(kept, [pair("RANK", "3"), pair("SLURM_JOB_ID", "7")]);
    }

    #[test]
    fn a_name_with_parentheses_does_not_confuse() {
        let line = "7 (a) b (c) S 3 7 7 0 -1 4 1 2 3 4 5 6 7 8 20 0 1 0 12345 1 2 3";
        assert_eq!(stat(line), Some((3, 'S', 12345)));
        assert_eq!(stat("7 (a"), None);
    }

    #[test]
    fn launchers_are_told_from_workers() {
        let own = Process::read(std::process::id()).unwrap();
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
        let own = Process::read(std::process::id()).unwrap();
        assert_eq!(contains(&own, file.path(), b"KINETO_USE_DAEMON"), Some(true));
        assert_eq!(contains(&own, file.path(), b"KINETO_USE_NOTHING"), Some(false));
        assert_eq!(contains(&own, Path::new("/no/such"), b"x"), None);
    }

    #[test]
    fn the_user_is_that_of_files() {
        let status = "Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t9 10 \n";
        let found = credentials(status).unwrap();
        assert_eq!((found.uid, found.gid, found.groups), (4, 8, vec![9, 10]));
        assert_eq!(credentials("Uid:\t1\n"), None);
        let own = Process::read(std::process::id()).unwrap();
        assert_eq!((own.uid, own.credentials().uid), (own_uid(), own_uid()));
    }
}
