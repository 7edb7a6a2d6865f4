//! Limits the disk space of completed traces, per user and in total. This module accesses no files.
//! A [`SpoolShare`] reserves a number of bytes until it is dropped.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use schema::Bytes;

/// The limits of disk space for traces, and the bytes that each user has reserved.
#[derive(Debug)]
pub struct SpoolBudget {
    user_max: Bytes,
    all_max: Bytes,
    used: Mutex<BTreeMap<u32, u64>>,
}

/// A reservation of bytes for one user, which is released on drop.
#[derive(Debug)]
pub struct SpoolShare {
    budget: Arc<SpoolBudget>,
    uid: u32,
    bytes: u64,
}

/// The error of a reservation that would exceed a limit of the budget.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{whose} traces on the agent's disk: expected at most {max}, got {got} with this one, room to \
     compress it included; {}raise {key} in the agent's configuration",
    if *is_alone { "" } else { "fetch and remove other traces, or " }
)]
pub struct SpoolFull {
    /// Owner of the exceeded quota: `user 1000's` or `all`.
    pub whose: String,
    pub max: Bytes,
    /// Reserved bytes, including those of the new trace.
    pub got: Bytes,
    /// Configuration key that sets the exceeded limit.
    pub key: &'static str,
    /// Whether the new trace alone exceeds the limit.
    pub is_alone: bool,
}

impl SpoolBudget {
    /// Creates a budget of `user_max` bytes for each user and `all_max` bytes in total.
    pub fn new(user_max: Bytes, all_max: Bytes) -> Arc<Self> {
        Arc::new(Self { user_max, all_max, used: Mutex::default() })
    }

    /// Reserves space for a trace.
    ///
    /// # Errors
    /// Fails if the user's quota or the total quota would be exceeded.
    pub fn reserve(self: &Arc<Self>, uid: u32, bytes: u64) -> Result<SpoolShare, SpoolFull> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let own = used.get(&uid).copied().unwrap_or(0).saturating_add(bytes);
        let all = used.values().sum::<u64>().saturating_add(bytes);
        let full = |whose: String, (key, max): (&'static str, Bytes), got| {
            let is_alone = bytes > max.0;
            Err(SpoolFull { whose, max, got: Bytes(got), key, is_alone })
        };
        if own > self.user_max.0 {
            return full(format!("user {uid}'s"), ("spool_user_mib", self.user_max), own);
        }
        if all > self.all_max.0 {
            return full("all".to_owned(), ("spool_mib", self.all_max), all);
        }
        used.insert(uid, own);
        Ok(SpoolShare { budget: Arc::clone(self), uid, bytes })
    }

    /// Returns the number of reserved bytes.
    pub fn used(&self) -> u64 {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).values().sum()
    }

    fn give_back(&self, uid: u32, bytes: u64) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = used.get_mut(&uid) {
            *own = own.saturating_sub(bytes);
            if *own == 0 {
                used.remove(&uid);
            }
        }
    }
}

impl SpoolShare {
    /// Releases the reservation except for `bytes` bytes.
    pub fn shrink(&mut self, bytes: u64) {
        let rest = self.bytes.saturating_sub(bytes);
        self.budget.give_back(self.uid, rest);
        self.bytes -= rest;
    }
}

impl Drop for SpoolShare {
    fn drop(&mut self) {
        self.budget.give_back(self.uid, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use schema::Bytes;

    use super::SpoolBudget;

    #[test]
    fn one_user_cannot_fill_the_spool() {
        let budget = SpoolBudget::new(Bytes(100), Bytes(150));
        let mut first = budget.reserve(1, 80).unwrap();
        let own = budget.reserve(1, 30).unwrap_err();
        assert_eq!((own.whose.as_str(), own.got), ("user 1's", Bytes(110)));
        assert!(own.to_string().contains("fetch and remove other traces, or raise spool_user_mib"));
        let alone = budget.reserve(3, 120).unwrap_err().to_string();
        assert!(alone.ends_with("included; raise spool_user_mib in the agent's configuration"));
        let all = budget.reserve(2, 90).unwrap_err();
        assert_eq!((all.whose.as_str(), all.key), ("all", "spool_mib"));
        let second = budget.reserve(2, 70).unwrap();
        first.shrink(10);
        assert_eq!(budget.used(), 80);
        assert!(budget.reserve(1, 50).is_ok());
        drop((first, second));
        assert_eq!(budget.used(), 0);
        assert!(budget.reserve(1, u64::MAX).is_err());
    }
}
