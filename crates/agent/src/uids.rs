//! Sets of users whose processes a caller may access.

/// The users whose processes a caller may trace or sample. The set contains all users, or only the
/// listed ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Uids {
    All,
    Only(Vec<u32>),
}

impl Uids {
    /// Whether the set contains the given user.
    pub fn has(&self, uid: u32) -> bool {
        match self {
            Self::All => true,
            Self::Only(uids) => uids.contains(&uid),
        }
    }

    /// Whether the set contains every user of `other`.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::All, _) => true,
            (Self::Only(_), Self::All) => false,
            (Self::Only(own), Self::Only(other)) => other.iter().all(|uid| own.contains(uid)),
        }
    }
}
