//! Locks a mutex without failing if a thread panicked while it held the lock.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex even if its last owner panicked. Every change under a lock of the agent is
/// complete in itself, so the data stays valid.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
