//! Operating-system calls for CPUs and threads: a thread's affinity, current CPU and CPU time. On
//! systems other than Linux, queries return nothing and changes have no effect.
//!
//! This module does not depend on thread pools or NUMA nodes.
#![cfg_attr(target_os = "linux", expect(unsafe_code, reason = "calls the operating system"))]

use std::time::Duration;

/// A thread id of the operating system, or [`SELF`] for the calling thread.
pub(super) type ThreadId = i32;

/// Thread id that stands for the calling thread.
pub(super) const SELF: ThreadId = 0;

/// Returns the thread id of the calling thread.
#[cfg(target_os = "linux")]
pub(super) fn thread_id() -> ThreadId {
    // SAFETY: `gettid` takes no arguments and does not access our memory.
    unsafe { libc::gettid() }
}

/// Returns the CPUs that `thread` may use, in ascending order, or an empty list if they are
/// unknown.
#[cfg(target_os = "linux")]
pub(super) fn allowed(thread: ThreadId) -> Vec<usize> {
    // SAFETY: a `cpu_set_t` of zero bits is a valid empty set, and the call writes only into
    // `set`.
    let (set, result) = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let result = libc::sched_getaffinity(thread, size_of::<libc::cpu_set_t>(), &raw mut set);
        (set, result)
    };
    // SAFETY: `cpu` is below `CPU_SETSIZE`, which is the number of bits of `set`.
    let is_set = |cpu: &usize| unsafe { libc::CPU_ISSET(*cpu, &set) };
    if result == 0 { (0..libc::CPU_SETSIZE as usize).filter(is_set).collect() } else { Vec::new() }
}

/// Returns the CPU that runs the calling thread, or 0 if it is unknown.
#[cfg(target_os = "linux")]
pub(super) fn current() -> usize {
    // SAFETY: `sched_getcpu` takes no arguments and does not access our memory.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or_default()
}

/// Restricts `thread` to these CPUs. If the system refuses, only speed suffers.
#[cfg(target_os = "linux")]
pub(super) fn bind(thread: ThreadId, cpus: &[usize]) {
    // SAFETY: a `cpu_set_t` of zero bits is a valid empty set, the CPU numbers lie within it, and
    // the call only reads `set`.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        for &cpu in cpus.iter().filter(|cpu| **cpu < libc::CPU_SETSIZE as usize) {
            libc::CPU_SET(cpu, &mut set);
        }
        libc::sched_setaffinity(thread, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}

/// Returns the CPU time that a thread of this process has used so far.
#[cfg(target_os = "linux")]
pub(super) fn run_time(thread: ThreadId) -> Option<Duration> {
    // The id of a thread's CPU clock is the complement of its thread id, above three bits: per
    // thread (4), and scheduler time (2). See MAKE_THREAD_CPUCLOCK in Linux's posix-timers.h.
    let clock = (!thread << 3) | 6;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `clock_gettime` writes only into `time`, which lives on our stack.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    (result == 0).then_some(Duration::new(seconds.ok()?, nanos.ok()?))
}

#[cfg(not(target_os = "linux"))]
pub(super) fn thread_id() -> ThreadId {
    SELF
}

#[cfg(not(target_os = "linux"))]
pub(super) fn allowed(_: ThreadId) -> Vec<usize> {
    Vec::new()
}

#[cfg(not(target_os = "linux"))]
pub(super) fn current() -> usize {
    0
}

#[cfg(not(target_os = "linux"))]
pub(super) fn bind(_: ThreadId, _: &[usize]) {}

#[cfg(not(target_os = "linux"))]
pub(super) fn run_time(_: ThreadId) -> Option<Duration> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::time::{Duration, Instant};

    use super::{SELF, allowed, bind, current, run_time, thread_id};

    #[test]
    fn a_thread_runs_where_it_is_bound_and_its_clock_stands_while_it_sleeps() {
        std::thread::spawn(|| {
            let last = *allowed(SELF).last().unwrap();
            bind(SELF, &[last]);
            assert_eq!((allowed(thread_id()), current()), (vec![last], last));

            let thread = thread_id();
            let before = run_time(thread).unwrap();
            while run_time(thread).unwrap() < before + Duration::from_millis(2) {}
            let (ran, start) = (run_time(thread).unwrap(), Instant::now());
            std::thread::sleep(Duration::from_millis(20));
            assert!(run_time(thread).unwrap() - ran < start.elapsed() / 2);
        })
        .join()
        .unwrap();
        assert_eq!((run_time(i32::MAX >> 4), allowed(-1)), (None, Vec::new()));
    }
}
