//! Replica groups: ranks divided into groups that each hold all tables and train other samples.
//!
//! A sharding plan places tables on the ranks of one group. This file says how many groups repeat
//! the plan, and how often they are made equal.

use std::num::{NonZeroU32, NonZeroU64};

use serde::{Deserialize, Serialize};

use crate::training::TrainingConfig;
use crate::unit::counted;

/// The number of groups that repeat a sharding plan, and how they are kept equal. Group g has
/// neighboring ranks, which come before those of group g + 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaGroups {
    pub count: NonZeroU32,
    /// Number of steps after which groups are equal again. If it is 1, groups sum the gradients of
    /// rows before every update. Otherwise they average weights and optimizer states.
    pub sync_every: NonZeroU64,
}

/// Groups do not fit the ranks or the intervals of a run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplicaGroupsError {
    #[error("replica groups: expected a divisor of {}, got {groups}", counted(u64::from(*ranks), "rank"))]
    Ranks { groups: u32, ranks: u32 },
    #[error(
        "training.{key}: expected a multiple of {sync_every} steps, after which replica groups are \
         equal, got {got}"
    )]
    Interval { key: &'static str, sync_every: u64, got: u64 },
}

impl Default for ReplicaGroups {
    fn default() -> Self {
        Self::SINGLE
    }
}

impl ReplicaGroups {
    /// All ranks form one group.
    pub const SINGLE: Self = Self { count: NonZeroU32::MIN, sync_every: NonZeroU64::MIN };

    /// Whether all ranks form one group.
    #[must_use]
    pub fn is_single(&self) -> bool {
        self.count == NonZeroU32::MIN
    }

    /// Whether groups sum the gradients of rows before every update.
    #[must_use]
    pub fn sums_gradients(self) -> bool {
        !self.is_single() && self.sync_every == NonZeroU64::MIN
    }

    /// Whether groups update alone, and average weights and optimizer states after some steps.
    #[must_use]
    pub fn averages_tables(self) -> bool {
        !self.is_single() && self.sync_every > NonZeroU64::MIN
    }

    /// Whether all groups hold equal tables after so many steps of a run.
    #[must_use]
    pub fn are_equal_after(self, steps: u64) -> bool {
        self.is_single() || steps.is_multiple_of(self.sync_every.get())
    }

    /// Returns the number of ranks of a group.
    ///
    /// # Errors
    /// [`ReplicaGroupsError::Ranks`] if the groups do not divide `ranks`.
    pub fn divide(self, ranks: u32) -> Result<u32, ReplicaGroupsError> {
        let groups = self.count.get();
        let is_divisor = ranks >= groups && ranks.is_multiple_of(groups);
        is_divisor.then_some(ranks / groups).ok_or(ReplicaGroupsError::Ranks { groups, ranks })
    }

    /// Checks that evaluations and checkpoints come only after steps at which groups are equal.
    ///
    /// # Errors
    /// [`ReplicaGroupsError::Interval`] names the key of an interval.
    pub fn check_intervals(self, training: &TrainingConfig) -> Result<(), ReplicaGroupsError> {
        for (key, interval) in [
            ("evaluate_every", training.evaluate_every),
            ("checkpoint_every", training.checkpoint_every),
        ] {
            if let Some(got) = interval.filter(|&steps| !self.are_equal_after(steps)) {
                let sync_every = self.sync_every.get();
                return Err(ReplicaGroupsError::Interval { key, sync_every, got });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{ReplicaGroups, ReplicaGroupsError};

    #[test]
    fn groups_divide_the_ranks() {
        let divided = |count: u32, ranks| {
            let count = count.try_into().unwrap();
            ReplicaGroups { count, ..ReplicaGroups::SINGLE }.divide(ranks)
        };
        assert_eq!((divided(1, 3), divided(2, 4), divided(4, 4)), (Ok(3), Ok(2), Ok(1)));
        for (groups, ranks) in [(2, 3), (4, 2), (2, 1)] {
            assert_eq!(divided(groups, ranks), Err(ReplicaGroupsError::Ranks { groups, ranks }));
        }
    }

    #[test]
    fn a_single_group_is_always_equal_to_itself() {
        let groups = |count: u32, sync_every: u64| ReplicaGroups {
            count: count.try_into().unwrap(),
            sync_every: sync_every.try_into().unwrap(),
        };
        assert!(groups(1, 5).are_equal_after(3) && groups(2, 1).are_equal_after(3));
        assert!(!groups(2, 5).are_equal_after(3) && groups(2, 5).are_equal_after(10));
        assert!(groups(2, 1).sums_gradients() && groups(2, 5).averages_tables());
        assert!(!groups(1, 5).averages_tables() && !groups(1, 1).sums_gradients());
    }
}
