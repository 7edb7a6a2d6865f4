//! Whose processes someone may ask about. Knows no caller.

/// Whose processes a caller may trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Uids {
    All,
    Only(Vec<u32>),
}

impl Uids {
    /// Whether a user is among them.
    pub fn has(&self, uid: u32) -> bool {
        match self {
            Self::All => true,
            Self::Only(uids) => uids.contains(&uid),
        }
    }

    /// Whether everyone of `other` is among them.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::All, _) => true,
            (Self::Only(_), Self::All) => false,
            (Self::Only(own), Self::Only(other)) => other.iter().all(|uid| own.contains(uid)),
        }
    }
}
