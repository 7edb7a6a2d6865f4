//! Locks that survive a panic of their owner.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A lock whose last owner panicked holds what it held: every change is small and whole.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
