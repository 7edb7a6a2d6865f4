//! Reads facts about a process from the kernel: start time, parent, user, environment and
//! libraries.
//!
//! The source is `/proc`. A process may end at any moment, and most facts about another user's
//! process are not accessible.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use memchr::memmem;
use schema::Bytes;

use crate::credentials::{self, Credentials};
use crate::untrusted::{Expected, Owner, UntrustedError, UntrustedFolder};

pub use crate::credentials::{own_uid, uid_of};

/// The environment variables that are kept. All other variables are dropped, because a process may
/// have any number of them.
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
/// Maximum sizes in bytes: of the environment that is read, of one variable, and of all variables
/// that are kept.
const ENVIRONMENT_MAX: u64 = 1 << 20;
const VALUE_MAX: usize = 4096;
const VALUES_MAX: usize = 8192;
/// Number of bytes that are kept of a command line.
const COMMAND_MAX: u64 = 2048;
/// Number of bytes that are read of a list of mapped files.
const MAPS_MAX: u64 = 16 << 20;
/// Maximum size of a file that is searched. The largest library of PyTorch has about a gigabyte.
const SEARCHED_MAX: Bytes = Bytes(8 << 30);

/// A process as `/proc` described it at the time of reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    /// Start time in clock ticks since boot. The start time distinguishes the process from a later
    /// process with the same id.
    pub started: u64,
    pub parent: u32,
    /// State of the process as in `/proc/PID/stat`, such as `R` for running, `T` for stopped and
    /// `Z` for a zombie.
    pub state: char,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub command: Vec<String>,
    /// The kept environment variables as they were at the start of the process; `None` if they are
    /// not accessible.
    pub environment: Option<BTreeMap<String, String>>,
}

impl Process {
    /// Reads the facts about a process. Returns `None` if the process does not exist.
    pub fn read(pid: u32) -> Option<Self> {
        let place = folder(pid);
        let (parent, state, started) = stat(&fs::read_to_string(place.join("stat")).ok()?)?;
        // The owner of the folder in `/proc` is not used, because it is root for a process that
        // protects its memory.
        let owner = credentials::parse(&fs::read_to_string(place.join("status")).ok()?)?;
        let mut command = Vec::new();
        let opened = fs::File::open(place.join("cmdline"));
        // An unreadable command line is treated as empty, which is also the command line of a
        // kernel thread.
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

    /// Returns the value of a kept environment variable.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.environment.as_ref()?.get(name).map(String::as_str)
    }

    /// Returns the rank set by the launcher.
    pub fn rank(&self) -> Option<u32> {
        self.variable("RANK")?.parse().ok()
    }

    /// Returns the number of ranks set by the launcher.
    pub fn world_size(&self) -> Option<u32> {
        self.variable("WORLD_SIZE")?.parse().ok()
    }

    /// Whether the process only starts other processes, as `torchrun` does.
    pub fn is_launcher(&self) -> bool {
        const MODULES: [&str; 3] =
            ["torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"];
        let is_program = |word: &String| word.rsplit('/').next() == Some("torchrun");
        self.command.iter().take(3).any(is_program)
            || self.command.iter().any(|word| MODULES.contains(&word.as_str()))
    }

    /// Whether this process is still running, and not another one with the same id.
    pub fn is_alive(&self) -> bool {
        let text = fs::read_to_string(folder(self.pid).join("stat")).ok();
        let now = text.as_deref().and_then(stat);
        now.is_some_and(|(_, state, started)| {
            // A zombie (Z) or dead (X) process no longer runs. If the start time differs, another
            // process has the same id.
            started == self.started && !matches!(state, 'Z' | 'X')
        })
    }

    /// Returns the credentials with which the process opens and creates files.
    pub fn credentials(&self) -> Credentials {
        Credentials { uid: self.uid, gid: self.gid, groups: self.groups.clone() }
    }

    /// Returns the path at which this program sees the process's root folder. This path differs
    /// from `/` if the process has its own mounts.
    pub fn root(&self) -> PathBuf {
        let ours = fs::read_link("/proc/self/ns/mnt").ok();
        let theirs = fs::read_link(folder(self.pid).join("ns/mnt")).ok();
        // If the mount namespace is not accessible, the process is assumed to share our mounts.
        if theirs.is_none() || ours == theirs {
            return PathBuf::from("/");
        }
        folder(self.pid).join("root")
    }

    /// Converts a path that the process sees to a path that this program sees.
    pub fn path(&self, inside: &Path) -> PathBuf {
        self.root().join(inside.strip_prefix("/").unwrap_or(inside))
    }

    /// Whether the process shares a namespace (`net`, `mnt`, `pid`) with this program; `None` if
    /// that is not accessible.
    pub fn shares(&self, space: &str) -> Option<bool> {
        let ours = fs::read_link(format!("/proc/self/ns/{space}")).ok()?;
        Some(fs::read_link(folder(self.pid).join("ns").join(space)).ok()? == ours)
    }

    /// Returns the paths of mapped files whose names contain a word; `None` if the list is not
    /// accessible.
    pub fn libraries(&self, word: &str) -> Option<Vec<PathBuf>> {
        let mut maps = String::new();
        let file = fs::File::open(folder(self.pid).join("maps")).ok()?;
        // A process may map any number of files, so only the start of the list is read.
        file.take(MAPS_MAX).read_to_string(&mut maps).ok()?;
        let mut libraries: Vec<PathBuf> = maps
            .lines()
            // The path is the last column, and no earlier column contains a slash.
            .filter_map(|line| line.find('/').map(|at| &line[at..]))
            .filter(|path| path.rsplit('/').next().is_some_and(|name| name.contains(word)))
            .map(PathBuf::from)
            .collect();
        libraries.sort();
        libraries.dedup();
        Some(libraries)
    }
}

/// Lists the ids of all processes.
pub fn all() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids: Vec<u32> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    pids
}

/// Whether a file that a process has mapped contains the bytes `needle`; `None` if the file cannot
/// be read.
///
/// The process controls the path and may have replaced the file, so it is opened as an untrusted
/// file.
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
    // The end of each block is searched again together with the next block, so that a match across
    // the border is found.
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

/// Raises this process's limit of open files to the maximum. Each trace keeps two files open, and
/// each connection one.
pub fn raise_descriptor_limit() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
    // If raising the limit fails, the program continues with the lower limit.
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, raised);
}

fn folder(pid: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}"))
}

/// Parses parent, state and start time from a line of `/proc/PID/stat`. The fields are counted from
/// the last parenthesis, because the program's name may contain any characters.
fn stat(line: &str) -> Option<(u32, char, u64)> {
    let mut fields = line[line.rfind(')')? + 1..].split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    // The start time is field 22 of `stat`. State and parent (fields 3 and 4) were already taken,
    // so it is the 17th field after them, counted from 0.
    Some((parent, state, fields.nth(17)?.parse().ok()?))
}

fn texts(bytes: &[u8]) -> impl Iterator<Item = String> {
    let parts = bytes.split(|&byte| byte == 0).filter(|part| !part.is_empty());
    parts.map(|part| String::from_utf8_lossy(part).into_owned())
}

/// Reads the variables to keep from an environment, without loading all of it into memory.
fn variables(file: impl Read) -> io::Result<BTreeMap<String, String>> {
    let mut kept = BTreeMap::new();
    let (mut left, mut pair) = (VALUES_MAX, Vec::new());
    let mut file = BufReader::new(file.take(ENVIRONMENT_MAX));
    while file.read_until(0, &mut pair)? > 0 {
        let text = pair.strip_suffix(&[0]).unwrap_or(&pair);
        let at = text.iter().position(|&byte| byte == b'=').unwrap_or(0);
        let (name, value) = (&text[..at], text.get(at + 1..).unwrap_or_default());
        let variable = VARIABLES.iter().find(|variable| variable.as_bytes() == name);
        if let Some(name) = variable
            // A value that is too long is skipped instead of truncated, because a truncated value
            // could be another valid value.
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

    use super::{Process, all, contains, own_uid, stat, variables};
    use crate::credentials;

    #[test]
    fn own_process_can_be_read() {
        let own = Process::read(std::process::id()).unwrap();
        assert!(own.is_alive() && all().contains(&own.pid));
        // `PATH` is not in `VARIABLES`, so it must not be kept.
        assert!(own.environment.is_some() && own.variable("PATH").is_none());
        assert_eq!(own.path(Path::new("/tmp/x")), Path::new("/tmp/x"));
        assert_eq!(own.shares("net"), Some(true));
        assert!(!own.libraries("libc").unwrap().is_empty());
        assert!(!Process { started: own.started + 1, ..own.clone() }.is_alive());
        assert_eq!(Process::read(u32::MAX), None);
    }

    #[test]
    fn large_environment_needs_little_memory() {
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
    fn program_name_may_contain_parentheses() {
        let line = "7 (a) b (c) S 3 7 7 0 -1 4 1 2 3 4 5 6 7 8 20 0 1 0 12345 1 2 3";
        assert_eq!(stat(line), Some((3, 'S', 12345)));
        assert_eq!(stat("7 (a"), None);
    }

    #[test]
    fn launchers_are_distinguished_from_workers() {
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
    fn file_system_user_id_is_used() {
        let status = "Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t9 10 \n";
        let found = credentials::parse(status).unwrap();
        assert_eq!((found.uid, found.gid, found.groups), (4, 8, vec![9, 10]));
        assert_eq!(credentials::parse("Uid:\t1\n"), None);
        let own = Process::read(std::process::id()).unwrap();
        assert_eq!((own.uid, own.credentials().uid), (own_uid(), own_uid()));
    }
}
