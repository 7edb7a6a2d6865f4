//! Ctrl-C (or `kill`, or the SIGUSR1 that schedulers send ahead of the end): a command that can
//! stop is asked to finish what it is at. Any other one clears up what is half done, and ends; so
//! does one that can stop at the second Ctrl-C.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use crate::error::EXIT_INTERRUPTED;

/// What a training run does at the first Ctrl-C.
pub const SAVING: &str = "finishing the step, then saving";

/// An action to run when the process is interrupted.
type Handle = Box<dyn Fn() + Send>;
/// Whether the command is given time to stop; else it ends now.
type Stop = Box<dyn Fn() -> bool + Send>;

/// What Ctrl-C does now.
struct InterruptPlan {
    /// Asks the command to stop.
    stop: Option<Stop>,
    /// Else: what is cleared up. First what has no scope (0), then the last scope first.
    clear: Vec<(u64, Handle)>,
}

static PLAN: Mutex<InterruptPlan> = Mutex::new(InterruptPlan { stop: None, clear: Vec::new() });
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// Something to clear up; forgotten when this is dropped.
#[derive(Debug)]
pub struct CleanupScope(u64);

impl Drop for CleanupScope {
    fn drop(&mut self) {
        plan().clear.retain(|(id, _)| *id != self.0);
    }
}

/// A flag that the first Ctrl-C (or `kill`) sets; `then` says what follows.
///
/// Where no handler can be installed the flag stays unset and Ctrl-C ends the process as usual.
pub fn stop_flag(then: &'static str) -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&stop);
    plan().stop = Some(Box::new(move || {
        let is_first = !seen.swap(true, Ordering::SeqCst);
        if is_first {
            eprintln!("{then}; press Ctrl-C again to stop at once");
        }
        is_first
    }));
    install();
    stop
}

/// A flag as [`stop_flag`] gives it, for one of several processes: a signal never ends it at once,
/// because a terminal and the launcher may both pass on the same Ctrl-C. The launcher ends all at
/// the second.
pub fn stop_flag_of_ranks(then: Option<&'static str>) -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&stop);
    plan().stop = Some(Box::new(move || {
        if let (false, Some(then)) = (seen.swap(true, Ordering::SeqCst), then) {
            eprintln!("{then}");
        }
        true
    }));
    install();
    stop
}

/// From now on Ctrl-C has `clear` remove what is half done, and ends the process.
pub fn clear_up(clear: impl Fn() + Send + 'static) {
    plan().clear.push((0, Box::new(clear)));
    install();
}

/// Until the value is dropped, Ctrl-C has `clear` remove what is half done, and ends the process.
#[must_use]
pub fn scoped(clear: impl Fn() + Send + 'static) -> CleanupScope {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    plan().clear.push((id, Box::new(clear)));
    install();
    CleanupScope(id)
}

/// Until the value is dropped, Ctrl-C says that nothing is kept of the work it ends.
#[must_use]
pub fn nothing_kept(work: &'static str) -> CleanupScope {
    scoped(move || eprintln!("interrupted while {work}; nothing of it is kept, start again"))
}

/// Waits for the end of the process while Ctrl-C cleans up, so that failures caused by the cleanup
/// are not reported as errors.
pub fn let_it_end() {
    while IS_ENDING.load(Ordering::SeqCst) {
        std::thread::park();
    }
}

fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let caught = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGUSR1]).and_then(|mut signals| {
            let wait = move || signals.forever().for_each(|_| handle());
            std::thread::Builder::new().name("signals".to_owned()).spawn(wait)
        });
        if let Err(error) = caught {
            eprintln!("warning: Ctrl-C cannot be caught, it ends the command at once: {error}");
        }
    });
}

fn handle() {
    let plan = plan();
    if plan.stop.as_ref().is_some_and(|stop| stop()) {
        return;
    }
    IS_ENDING.store(true, Ordering::SeqCst);
    // Inner scopes say what is kept: by then what is not has to be gone.
    let (outright, scoped): (Vec<_>, Vec<_>) = plan.clear.iter().partition(|(id, _)| *id == 0);
    outright.into_iter().chain(scoped.into_iter().rev()).for_each(|(_, clear)| clear());
    std::process::exit(i32::from(EXIT_INTERRUPTED));
}

fn plan() -> MutexGuard<'static, InterruptPlan> {
    PLAN.lock().unwrap_or_else(PoisonError::into_inner)
}
