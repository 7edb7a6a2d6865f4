//! Ctrl-C: the first asks the command to finish what it is at, the second ends the process at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::EXIT_INTERRUPTED;

/// What a training run does at the first Ctrl-C.
pub const SAVING: &str = "finishing the step, then saving";

/// A flag that the first Ctrl-C (or `kill`) sets; `then` says what follows.
///
/// Where no handler can be installed the flag stays unset and Ctrl-C ends the process as usual.
pub fn stop_flag(then: &'static str) -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&stop);
    catch(move || {
        if seen.swap(true, Ordering::SeqCst) {
            std::process::exit(i32::from(EXIT_INTERRUPTED));
        }
        eprintln!("{then}; press Ctrl-C again to stop at once");
    });
    stop
}

/// From now on Ctrl-C has `clear` remove what is half done, and ends the process.
pub fn clear_up(clear: impl Fn() + Send + 'static) {
    catch(move || {
        clear();
        std::process::exit(i32::from(EXIT_INTERRUPTED));
    });
}

fn catch(handle: impl Fn() + Send + 'static) {
    if let Err(error) = ctrlc::set_handler(handle) {
        eprintln!("warning: Ctrl-C cannot be caught, it ends the command at once: {error}");
    }
}
