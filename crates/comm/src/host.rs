//! Communicators of the ranks on one host, and of ranks on different hosts: one from each host, the
//! first of all hosts together, then the second, and so on.
//!
//! The exchanges over both levels are in `verb/by_host.rs`.

use schema::{HostLayout, Rank};

use crate::communicator::{Communicator, Flight};
use crate::error::Error;

impl Communicator {
    /// Gathers the names of the hosts of all ranks, as the transport reports them. All ranks get
    /// the same layout. Threads of one process are on one host.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::all_gather`].
    pub fn gather_host_layout(&mut self) -> Result<HostLayout, Error> {
        let own_name = self.host_name().as_bytes().to_vec();
        Ok(HostLayout::from_hosts(&self.all_gather(&own_name)?))
    }
}

/// The two levels of a job over several hosts, as seen by one rank.
///
/// The communicator `within` joins the ranks of this rank's host. The communicator `between` joins
/// the ranks that have the same place on their hosts as this rank has on its own. An exchange that
/// first reduces `within` the host sends fewer bytes `between` hosts.
pub struct HostCommunicators {
    pub(crate) layout: HostLayout,
    pub(crate) rank: Rank,
    pub(crate) within: Communicator,
    pub(crate) between: Communicator,
    /// Position in `between` of the rank on each host. Communicators number their members in rank
    /// order, in which the ranks of a place need not be in the order of their hosts.
    pub(crate) positions: Vec<usize>,
}

impl HostCommunicators {
    /// Splits a communicator by host and by place. All ranks must call it at the same point of the
    /// program.
    ///
    /// # Errors
    /// [`Error::Hosts`] if hosts have different numbers of ranks, [`Error::HostMismatch`] if ranks
    /// have different layouts, and the errors of [`Communicator::split`].
    /// # Panics
    /// Panics if `layout` and `comm` have different numbers of ranks.
    pub fn split(comm: &mut Communicator, layout: &HostLayout) -> Result<Self, Error> {
        assert_eq!(layout.world_size(), comm.world_size(), "the layout has all ranks");
        let rank = comm.rank();
        // The layouts are compared before anything else, so that all ranks return the same error.
        let hosts: Vec<i32> = layout.hosts().iter().map(|&host| host as i32).collect();
        let layouts = comm.all_gather(&hosts)?;
        for (there, got) in (0..).zip(&layouts) {
            let differs = |(expected, got): (&i32, &i32)| expected != got;
            if let Some(rank) = layouts[0].iter().zip(got).position(differs) {
                let (expected, got) = (layouts[0][rank] as u32, got[rank] as u32);
                let rank = rank as u32;
                return Err(Error::HostMismatch { here: 0, there, rank, expected, got });
            }
        }
        layout.ranks_per_host()?;
        let within = comm.split(layout.host(rank) as u32)?;
        let between = comm.split(layout.place(rank) as u32)?;
        let same_place = |host| layout.ranks_of(host)[layout.place(rank)];
        let earlier = |host| {
            let is_earlier = |&other: &usize| same_place(other) < same_place(host);
            (0..layout.host_count()).filter(is_earlier).count()
        };
        let positions = (0..layout.host_count()).map(earlier).collect();
        Ok(Self { layout: layout.clone(), rank, within, between, positions })
    }

    /// Creates other communicators of the same ranks. All ranks must call it at the same point of
    /// the program.
    #[must_use]
    pub fn duplicate(&self) -> Self {
        let (within, between) = (self.within.duplicate(), self.between.duplicate());
        let (layout, positions) = (self.layout.clone(), self.positions.clone());
        Self { layout, rank: self.rank, within, between, positions }
    }

    /// Copies tags and timeout from a communicator of any of the ranks.
    pub fn copy_settings(&mut self, other: &Communicator) {
        for comm in [&mut self.within, &mut self.between] {
            comm.copy_settings(other);
            // A transport sums over all ranks only.
            comm.set_native(false);
        }
    }

    /// Returns the interval in which the messages since the last call were under way on either
    /// communicator; see [`Communicator::take_flight`].
    pub fn take_flight(&mut self) -> Option<Flight> {
        let flights = [self.within.take_flight(), self.between.take_flight()];
        flights.into_iter().flatten().reduce(Flight::join)
    }

    /// Returns the hosts of all ranks.
    #[must_use]
    pub fn layout(&self) -> &HostLayout {
        &self.layout
    }

    /// Returns the communicator of the ranks of this rank's host.
    pub fn within(&mut self) -> &mut Communicator {
        &mut self.within
    }

    /// Returns the communicator of the ranks that have this rank's place on their hosts.
    pub fn between(&mut self) -> &mut Communicator {
        &mut self.between
    }
}
