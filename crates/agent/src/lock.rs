//! Locks that survive a panic of their owner.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex even if its last owner panicked: every change under a lock is complete in itself,
/// so the data stays valid.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
