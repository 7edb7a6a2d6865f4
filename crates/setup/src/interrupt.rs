//! Handles Ctrl-C, `kill`, and the SIGUSR1 that schedulers send before they end a job. A command
//! that can stop is asked to finish its current step. All other commands remove their partial files
//! and end at once. At the second Ctrl-C, every command ends at once.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use crate::error::EXIT_INTERRUPTED;

/// The message of a training run at the first Ctrl-C, after which it saves a checkpoint.
pub const SAVING: &str = "finishing the step, then saving";

/// An action that runs when the process is interrupted.
type Handle = Box<dyn Fn() + Send>;
/// A function that asks the command to stop. The function returns whether the process waits until
/// the command stops.
type Stop = Box<dyn Fn() -> bool + Send>;

/// The actions that run at the next Ctrl-C.
struct InterruptPlan {
    /// Asks the command to stop, if the command can stop.
    stop: Option<Stop>,
    /// Cleanups that run if the command is not asked to stop. Cleanups without a scope (number 0)
    /// run first, followed by the scopes from the innermost to the outermost.
    clear: Vec<(u64, Handle)>,
}

static PLAN: Mutex<InterruptPlan> = Mutex::new(InterruptPlan { stop: None, clear: Vec::new() });
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// A registered cleanup, which is removed when this value is dropped.
#[derive(Debug)]
pub struct CleanupScope(u64);

impl Drop for CleanupScope {
    fn drop(&mut self) {
        plan().clear.retain(|(id, _)| *id != self.0);
    }
}

/// Returns a flag that the first Ctrl-C (or `kill`) sets. At that moment the process prints `then`,
/// which says what follows.
///
/// If no handler can be installed, the flag stays unset and Ctrl-C ends the process as usual.
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

/// Returns a flag as [`stop_flag`] does, for one of several processes of a job. A second signal
/// does not end the process, because the terminal and the launcher may both pass on the same
/// Ctrl-C. The launcher ends all processes at the second Ctrl-C.
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

/// Registers `clear`, which removes partial results at Ctrl-C, for the rest of the process.
pub fn clear_up(clear: impl Fn() + Send + 'static) {
    plan().clear.push((0, Box::new(clear)));
    install();
}

/// Registers `clear`, which removes partial results at Ctrl-C, until the returned value is dropped.
#[must_use]
pub fn scoped(clear: impl Fn() + Send + 'static) -> CleanupScope {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    plan().clear.push((id, Box::new(clear)));
    install();
    CleanupScope(id)
}

/// Makes Ctrl-C report that the results of `work` are lost, until the returned value is dropped.
#[must_use]
pub fn nothing_kept(work: &'static str) -> CleanupScope {
    scoped(move || eprintln!("interrupted while {work}; no result of it is kept, start again"))
}

/// Waits until the process ends while Ctrl-C cleans up. Without this wait, failures that the
/// cleanup causes would be reported as errors.
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
            eprintln!("warning: Ctrl-C cannot be caught, so it ends the command at once: {error}");
        }
    });
}

fn handle() {
    let plan = plan();
    if let Some(stop) = &plan.stop {
        if stop() {
            return;
        }
        eprintln!("stopped at once");
    }
    IS_ENDING.store(true, Ordering::SeqCst);
    // Inner scopes report which results are kept, so the partial files must already be removed
    // then.
    let (outright, scoped): (Vec<_>, Vec<_>) = plan.clear.iter().partition(|(id, _)| *id == 0);
    outright.into_iter().chain(scoped.into_iter().rev()).for_each(|(_, clear)| clear());
    std::process::exit(i32::from(EXIT_INTERRUPTED));
}

fn plan() -> MutexGuard<'static, InterruptPlan> {
    PLAN.lock().unwrap_or_else(PoisonError::into_inner)
}
