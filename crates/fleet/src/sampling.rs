//! Samples the activity of processes from `/proc`: the places where their threads run or wait, and
//! the resources that they use. Nothing is attached to the processes, so they only wait while the
//! kernel holds locks to read these files. The caller decides when to sample. Inaccessible values
//! are `None`, never 0.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::process::Process;
use crate::wire::{Sampled, Used, Waiting};

/// Maximum number of threads that are sampled per process.
const THREADS_MAX: usize = 1024;
/// Maximum number of distinct places that are counted per process.
const PLACES_MAX: usize = 4096;
/// Maximum number of places that are reported per process.
const TOLD_MAX: usize = 40;
/// Number of functions of a kernel stack that identify a place.
const FRAMES: usize = 3;

/// Takes samples of several processes and counts what their threads do.
#[derive(Debug)]
pub struct Sampler {
    targets: Vec<SampledProcess>,
}

/// The process being sampled, and its samples so far.
#[derive(Debug)]
struct SampledProcess {
    process: Process,
    looks: u32,
    places: BTreeMap<ThreadPlace, u32>,
    before: Used,
    rss_peak: Option<u64>,
    is_ended: bool,
}

/// The name, state and place of a thread in one sample.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ThreadPlace {
    thread: String,
    state: char,
    at: Option<String>,
}

impl Sampler {
    /// Starts sampling the given processes and reads their counters for the first time.
    pub fn begin(processes: Vec<Process>) -> Self {
        let target = |process: Process| {
            let before = used(&folder(&process));
            let (places, rss_peak) = (BTreeMap::new(), before.rss_bytes);
            SampledProcess { process, looks: 0, places, before, rss_peak, is_ended: false }
        };
        Self { targets: processes.into_iter().map(target).collect() }
    }

    /// Takes one sample of all threads of all processes that still run.
    pub fn look(&mut self) {
        for target in self.targets.iter_mut().filter(|target| !target.is_ended) {
            if !target.process.is_alive() {
                target.is_ended = true;
                continue;
            }
            target.looks += 1;
            for thread in threads(&folder(&target.process)) {
                let Some(place) = place(&thread) else { continue };
                // Beyond the limit, only places that are already counted grow. A process chooses
                // the names of its threads, so it could otherwise use up the agent's memory.
                let is_known = target.places.contains_key(&place);
                if is_known || target.places.len() < PLACES_MAX {
                    *target.places.entry(place).or_default() += 1;
                }
            }
            target.rss_peak = target.rss_peak.max(rss(&folder(&target.process)));
        }
    }

    /// Ends the sampling and returns the results per process.
    pub fn end(self) -> Vec<Sampled> {
        self.targets.into_iter().map(SampledProcess::end).collect()
    }
}

impl SampledProcess {
    fn end(self) -> Sampled {
        let is_ended = self.is_ended || !self.process.is_alive();
        // The id of an ended process may belong to another process by now, so its counters are not
        // read.
        let after = if is_ended { Used::default() } else { used(&folder(&self.process)) };
        let mut waiting: Vec<Waiting> = self
            .places
            .into_iter()
            .map(|(place, looks)| Waiting {
                thread: place.thread,
                state: place.state.to_string(),
                at: place.at,
                looks,
            })
            .collect();
        // A process that started just before the first sample had no command line yet.
        let process = match is_ended {
            true => self.process,
            false => Process::read(self.process.pid).unwrap_or(self.process),
        };
        // The sort is stable, so places with equal counts keep the order of their names.
        waiting.sort_by_key(|row| std::cmp::Reverse(row.looks));
        waiting.truncate(TOLD_MAX);
        Sampled {
            pid: process.pid,
            rank: process.rank(),
            command: process.command.join(" "),
            looks: self.looks,
            is_ended,
            used: since(&after, &self.before),
            rss_peak_bytes: self.rss_peak,
            waiting,
        }
    }
}

/// Returns the resources that a process used between two readings. Memory values are those of the
/// later reading.
fn since(after: &Used, before: &Used) -> Used {
    // If a thread ended, its usage is no longer part of the sum, so a counter may decrease. The
    // difference is unknown in that case.
    let count = |pick: fn(&Used) -> Option<u64>| pick(after)?.checked_sub(pick(before)?);
    let grown = after.anonymous_bytes.zip(before.anonymous_bytes);
    let grown = grown.map(|(now, then)| now.cast_signed() - then.cast_signed());
    Used {
        cpu_ns: count(|used| used.cpu_ns),
        run_delay_ns: count(|used| used.run_delay_ns),
        switches_voluntary: count(|used| used.switches_voluntary),
        switches_forced: count(|used| used.switches_forced),
        faults_minor: count(|used| used.faults_minor),
        faults_major: count(|used| used.faults_major),
        read_bytes: count(|used| used.read_bytes),
        written_bytes: count(|used| used.written_bytes),
        read_calls: count(|used| used.read_calls),
        write_calls: count(|used| used.write_calls),
        threads: after.threads,
        rss_bytes: after.rss_bytes,
        anonymous_bytes: after.anonymous_bytes,
        anonymous_grown_bytes: grown,
        swap_bytes: after.swap_bytes,
    }
}

fn folder(process: &Process) -> PathBuf {
    PathBuf::from(format!("/proc/{}", process.pid))
}

fn threads(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder.join("task")).into_iter().flatten().flatten();
    entries.take(THREADS_MAX).map(|entry| entry.path()).collect()
}

/// Reads all counters of a process. The usage of threads that have ended is not included.
fn used(folder: &Path) -> Used {
    let text = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
    let (stat, io, rollup) = (text("stat"), text("io"), text("smaps_rollup"));
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split(' ').collect();
    let field = |at: usize| fields.get(at)?.parse().ok();
    let threads = threads(folder);
    let (mut cpu_ns, mut run_delay_ns) = (None, None);
    let (mut voluntary, mut forced) = (None, None);
    for thread in &threads {
        let text = |name: &str| fs::read_to_string(thread.join(name)).unwrap_or_default();
        let schedule = text("schedstat");
        let mut numbers = schedule.split_ascii_whitespace().map(|number| number.parse().ok());
        add(&mut cpu_ns, numbers.next().flatten());
        add(&mut run_delay_ns, numbers.next().flatten());
        let status = text("status");
        // The file `status` of a process counts only its main thread, so the values of all threads
        // are added up.
        add(&mut voluntary, named(&status, "voluntary_ctxt_switches:"));
        add(&mut forced, named(&status, "nonvoluntary_ctxt_switches:"));
    }
    let bytes = |kib: Option<u64>| kib.map(|kib| kib * 1024);
    Used {
        cpu_ns,
        run_delay_ns,
        switches_voluntary: voluntary,
        switches_forced: forced,
        // Field numbers count from the closing parenthesis of the program's name, where field 0 is
        // the empty text before the first space.
        faults_minor: field(8),
        faults_major: field(10),
        read_bytes: named(&io, "read_bytes:"),
        written_bytes: named(&io, "write_bytes:"),
        read_calls: named(&io, "syscr:"),
        write_calls: named(&io, "syscw:"),
        threads: Some(threads.len() as u64).filter(|count| *count > 0),
        // `smaps_rollup` is readable only with the right to inspect the process, `status` always.
        rss_bytes: bytes(named(&rollup, "Rss:")).or_else(|| rss(folder)),
        anonymous_bytes: bytes(named(&rollup, "Anonymous:")),
        anonymous_grown_bytes: None,
        swap_bytes: bytes(named(&rollup, "Swap:")),
    }
}

fn add(sum: &mut Option<u64>, more: Option<u64>) {
    if let Some(more) = more {
        *sum = Some(sum.unwrap_or(0) + more);
    }
}

/// Parses the number after a name at the start of a line.
fn named(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_ascii_whitespace().next()?.parse().ok()
}

/// Reads the resident memory in bytes from the cheapest file that reports it.
fn rss(folder: &Path) -> Option<u64> {
    let status = fs::read_to_string(folder.join("status")).ok()?;
    named(&status, "VmRSS:").map(|kib| kib * 1024)
}

fn place(thread: &Path) -> Option<ThreadPlace> {
    let stat = fs::read_to_string(thread.join("stat")).ok()?;
    let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
    let state = rest.trim_start().chars().next()?;
    let name = name.chars().filter(|c| !c.is_control()).collect();
    let at = if state == 'R' { None } else { waits_at(thread) };
    Some(ThreadPlace { thread: name, state, at })
}

/// Returns the kernel functions in which a thread waits: several functions of its stack if we are
/// root, otherwise only the innermost one.
fn waits_at(thread: &Path) -> Option<String> {
    let stack = fs::read_to_string(thread.join("stack")).unwrap_or_default();
    let frames: Vec<&str> = stack.lines().filter_map(function).take(FRAMES).collect();
    if !frames.is_empty() {
        return Some(frames.join(" < "));
    }
    let innermost = fs::read_to_string(thread.join("wchan")).ok()?;
    Some(innermost).filter(|name| !name.is_empty() && name != "0")
}

/// Extracts the function name: `[<0>] futex_wait+0x51/0xe0` → `futex_wait`.
fn function(line: &str) -> Option<&str> {
    line.split("] ").nth(1)?.split('+').next()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::{Sampler, function, named};
    use crate::process::Process;
    use crate::wire::Sampled;

    fn sample(pid: u32, meanwhile: impl FnOnce()) -> Sampled {
        let mut sampler = Sampler::begin(vec![Process::read(pid).unwrap()]);
        for _ in 0..20 {
            sampler.look();
            std::thread::sleep(Duration::from_millis(10));
        }
        meanwhile();
        sampler.look();
        sampler.end().remove(0)
    }

    #[test]
    fn sleeping_process_waits_and_uses_no_cpu() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        // Waits until the child has loaded its program and sleeps.
        let sleeps = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap();
        for _ in 0..200 {
            if sleeps(child.id()).contains("sleep") {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let seen = sample(child.id(), || {});
        let [row] = seen.waiting.as_slice() else { panic!("{seen:?}") };
        assert_eq!((row.thread.as_str(), row.state.as_str(), row.looks), ("sleep", "S", 21));
        match &row.at {
            Some(at) => assert!(at.contains("sleep"), "{at}"),
            None => testkit::skip("where it waits", "a kernel with /proc/PID/wchan"),
        }
        assert!(seen.used.cpu_ns.is_none_or(|ns| ns < 10_000_000) && !seen.is_ended, "{seen:?}");
        assert_eq!((seen.used.threads, seen.used.read_bytes.unwrap_or(0)), (Some(1), 0));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn computing_thread_is_seen() {
        let stop = Arc::new(AtomicBool::new(false));
        let own = Arc::clone(&stop);
        let spins = std::thread::Builder::new().name("spins".to_owned());
        let (began, begins) = std::sync::mpsc::channel();
        let work = move || {
            began.send(()).unwrap();
            while !own.load(Ordering::Relaxed) {}
        };
        let spins = spins.spawn(work).unwrap();
        begins.recv().unwrap();
        let seen = sample(std::process::id(), || ());
        stop.store(true, Ordering::Relaxed);
        spins.join().unwrap();
        let row = seen.waiting.iter().find(|row| row.thread == "spins").unwrap();
        assert_eq!((row.state.as_str(), row.at.as_ref(), row.looks), ("R", None, 21));
        assert!(seen.used.cpu_ns.is_some_and(|ns| ns > 1_000_000), "{seen:?}");
    }

    /// Samples a separate process, because other tests free memory of this process meanwhile.
    #[test]
    fn growing_memory_is_seen() {
        let script = r"read go; held=$(head -c 67108864 /dev/zero | tr '\0' x); echo; read go";
        let mut child = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut go, mut told) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let seen = sample(child.id(), || {
            go.write_all(b"\n").unwrap();
            told.read_exact(&mut [0]).unwrap();
        });
        child.kill().unwrap();
        child.wait().unwrap();
        let grown = seen.used.anonymous_grown_bytes;
        assert!(grown.is_none_or(|bytes| bytes > 60 << 20), "{grown:?}");
        assert!(seen.used.faults_minor.is_some_and(|faults| faults > 0), "{:?}", seen.used);
    }

    #[test]
    fn ended_process_is_marked_and_has_no_values() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let seen = sample(child.id(), || {
            let pid = child.id().to_string();
            Command::new("kill").args(["-9", &pid]).status().unwrap();
            std::thread::sleep(Duration::from_millis(100));
        });
        child.wait().unwrap();
        assert!(seen.is_ended && seen.looks == 20 && seen.used.cpu_ns.is_none(), "{seen:?}");
    }

    #[test]
    fn lines_of_proc_are_read() {
        assert_eq!(function("[<0>] futex_wait_queue+0x60/0x90"), Some("futex_wait_queue"));
        assert_eq!(function("nonsense"), None);
        assert_eq!(named("a: 1\nRss:   17 kB\n", "Rss:"), Some(17));
        assert_eq!(named("a: 1\n", "Rss:"), None);
    }
}
