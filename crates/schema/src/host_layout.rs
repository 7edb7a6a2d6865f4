//! The hosts of a job: which ranks share a host. The speed of the links within and between hosts is
//! in [`crate::topology`].

use crate::unit::Rank;

/// The host of every rank. Hosts are numbered in the order of their first ranks. The place of a
/// rank is its position among the ranks of its host.
///
/// A layout decides only which links messages take. Results do not depend on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostLayout {
    /// Ranks of each host, in rank order.
    ranks: Vec<Vec<Rank>>,
    /// Host of each rank.
    hosts: Vec<usize>,
    /// Place of each rank.
    places: Vec<usize>,
}

/// Errors of a host layout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostLayoutError {
    /// The number of ranks per host does not divide the number of ranks.
    #[error("ranks per host: expected a divisor of the {ranks} ranks, got {ranks_per_host}")]
    Indivisible { ranks: usize, ranks_per_host: u32 },
    /// Two hosts have different numbers of ranks.
    #[error(
        "host {host}: expected {expected} ranks as on host 0, got {got}; \
         hierarchical plans need equally many ranks on every host"
    )]
    Unequal { host: usize, expected: usize, got: usize },
}

impl HostLayout {
    /// Creates the layout in which each `ranks_per_host` consecutive ranks share a host.
    ///
    /// # Errors
    /// [`HostLayoutError::Indivisible`] if the hosts would have different numbers of ranks.
    pub fn with_ranks_per_host(ranks: usize, ranks_per_host: u32) -> Result<Self, HostLayoutError> {
        if ranks_per_host == 0 || !ranks.is_multiple_of(ranks_per_host as usize) {
            return Err(HostLayoutError::Indivisible { ranks, ranks_per_host });
        }
        let hosts: Vec<usize> = (0..ranks).map(|rank| rank / ranks_per_host as usize).collect();
        Ok(Self::from_hosts(&hosts))
    }

    /// Creates the layout in which all ranks share a host.
    #[must_use]
    pub fn on_one_host(ranks: usize) -> Self {
        Self::from_hosts(&vec![0; ranks])
    }

    /// Creates the layout in which ranks share a host if their host has the same name. `names[r]`
    /// is the name, or any other identity, of the host of rank r.
    #[must_use]
    pub fn from_hosts<T: PartialEq>(names: &[T]) -> Self {
        let mut first_ranks: Vec<usize> = Vec::new();
        let mut ranks: Vec<Vec<Rank>> = Vec::new();
        let (mut hosts, mut places) = (Vec::new(), Vec::new());
        for (rank, name) in names.iter().enumerate() {
            let known = first_ranks.iter().position(|&first| names[first] == *name);
            let host = known.unwrap_or_else(|| {
                first_ranks.push(rank);
                ranks.push(Vec::new());
                ranks.len() - 1
            });
            hosts.push(host);
            places.push(ranks[host].len());
            ranks[host].push(Rank(rank as u32));
        }
        Self { ranks, hosts, places }
    }

    /// Returns the hosts of a group if each `group_size` consecutive ranks form a group. If groups
    /// lie on hosts differently, the layout has a single host, so that exchanges do not use hosts.
    #[must_use]
    pub fn group_layout(&self, group_size: usize) -> Self {
        let mut groups = self.hosts.chunks(group_size.max(1)).map(Self::from_hosts);
        let first = groups.next().unwrap_or_else(|| Self::on_one_host(group_size));
        if groups.all(|group| group == first) { first } else { Self::on_one_host(group_size) }
    }

    /// Returns the number of ranks over all hosts.
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.hosts.len()
    }

    /// Returns the number of hosts.
    #[must_use]
    pub fn host_count(&self) -> usize {
        self.ranks.len()
    }

    /// Returns the host of each rank.
    #[must_use]
    pub fn hosts(&self) -> &[usize] {
        &self.hosts
    }

    /// Returns the host of a rank.
    ///
    /// # Panics
    /// Panics if the layout does not have the rank.
    #[must_use]
    pub fn host(&self, rank: Rank) -> usize {
        self.hosts[rank.index()]
    }

    /// Returns the position of a rank among the ranks of its host.
    ///
    /// # Panics
    /// Panics if the layout does not have the rank.
    #[must_use]
    pub fn place(&self, rank: Rank) -> usize {
        self.places[rank.index()]
    }

    /// Returns the ranks of a host, in rank order.
    ///
    /// # Panics
    /// Panics if the layout does not have the host.
    #[must_use]
    pub fn ranks_of(&self, host: usize) -> &[Rank] {
        &self.ranks[host]
    }

    /// Returns the number of ranks on every host.
    ///
    /// # Errors
    /// [`HostLayoutError::Unequal`] names the first host that has another number than host 0.
    pub fn ranks_per_host(&self) -> Result<usize, HostLayoutError> {
        let expected = self.ranks.first().map_or(0, Vec::len);
        match self.ranks.iter().position(|ranks| ranks.len() != expected) {
            None => Ok(expected),
            Some(host) => {
                Err(HostLayoutError::Unequal { host, expected, got: self.ranks[host].len() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{HostLayout, HostLayoutError};
    use crate::unit::Rank;

    #[test]
    fn consecutive_ranks_share_a_host() {
        let layout = HostLayout::with_ranks_per_host(6, 2).unwrap();
        assert_eq!(layout.hosts(), [0, 0, 1, 1, 2, 2]);
        assert_eq!((layout.host(Rank(3)), layout.place(Rank(3))), (1, 1));
        assert_eq!((layout.host_count(), layout.ranks_per_host()), (3, Ok(2)));
        for ranks_per_host in [0, 4, 7] {
            let error = HostLayout::with_ranks_per_host(6, ranks_per_host).unwrap_err();
            assert_eq!(error, HostLayoutError::Indivisible { ranks: 6, ranks_per_host });
        }
    }

    #[test]
    fn hosts_are_numbered_by_their_first_rank() {
        let layout = HostLayout::from_hosts(&["b", "a", "a", "b"]);
        assert_eq!(layout.hosts(), [0, 1, 1, 0]);
        assert_eq!(layout.ranks_of(0), [Rank(0), Rank(3)]);
        assert_eq!(layout.ranks_per_host(), Ok(2));
    }

    #[test]
    fn hosts_with_other_numbers_of_ranks_are_named() {
        let error = HostLayout::from_hosts(&["a", "a", "b"]).ranks_per_host().unwrap_err();
        assert_eq!(error, HostLayoutError::Unequal { host: 1, expected: 2, got: 1 });
        assert!(error.to_string().starts_with("host 1: expected 2 ranks as on host 0, got 1"));
    }
}
