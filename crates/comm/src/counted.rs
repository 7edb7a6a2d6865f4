//! Wraps a transport to count the messages that it sends within a host and between hosts.

use std::sync::{Mutex, PoisonError};

use schema::HostLayout;

use crate::element::{ElementType, Pool};
use crate::message::{RankMessage, Verb};
use crate::pass_to_inner;
use crate::transport::{Deadline, SharedTransport, Transport, TransportFailure};

/// One rank's end of a transport, which counts what the rank sends to others. Messages to itself
/// are left out, because they take no link.
pub struct Counted {
    inner: SharedTransport,
    layout: HostLayout,
    /// HostTraffic by verb and element type, in the order of their codes.
    traffic: Mutex<[[HostTraffic; ElementType::ALL.len()]; Verb::ALL.len()]>,
}

/// Messages that a rank has sent over the links within its host and between hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostTraffic {
    pub within: LinkTraffic,
    pub between: LinkTraffic,
}

/// The number of messages that were sent, and the size of their payloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkTraffic {
    pub messages: u64,
    /// Size of the payloads in bytes. Each message has a header of [`crate::HEADER_BYTES`] more.
    pub bytes: u64,
}

impl LinkTraffic {
    fn add(&mut self, other: Self) {
        self.messages += other.messages;
        self.bytes += other.bytes;
    }
}

impl HostTraffic {
    fn add(&mut self, other: Self) {
        self.within.add(other.within);
        self.between.add(other.between);
    }
}

impl Counted {
    /// Wraps `inner`, whose ranks are on the hosts of `layout`.
    ///
    /// # Panics
    /// Panics if the layout has another number of ranks than the transport.
    #[must_use]
    pub fn new(inner: SharedTransport, layout: HostLayout) -> Self {
        assert_eq!(layout.world_size(), inner.world_size(), "the layout has all ranks");
        Self { inner, layout, traffic: Mutex::default() }
    }

    /// Returns the traffic of the messages whose verb and element type `is_wanted` accepts.
    #[must_use]
    pub fn traffic(&self, is_wanted: impl Fn(Verb, ElementType) -> bool) -> HostTraffic {
        let traffic = self.traffic.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sum = HostTraffic::default();
        for (verb, by_element) in Verb::ALL.into_iter().zip(traffic.iter()) {
            for (element, &part) in ElementType::ALL.into_iter().zip(by_element) {
                if is_wanted(verb, element) {
                    sum.add(part);
                }
            }
        }
        sum
    }
}

impl Transport for Counted {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    pass_to_inner!();

    fn send(&self, to: usize, message: RankMessage) -> Result<(), TransportFailure> {
        let own = self.rank();
        if to != own {
            let bytes = message.payload.payload().bytes().len() as u64;
            let sent = LinkTraffic { messages: 1, bytes };
            let operation = message.header.operation;
            let mut traffic = self.traffic.lock().unwrap_or_else(PoisonError::into_inner);
            let part = &mut traffic[operation.verb as usize][operation.element as usize];
            let hosts = self.layout.hosts();
            let is_within = hosts[to] == hosts[own];
            if is_within { part.within.add(sent) } else { part.between.add(sent) }
        }
        self.inner.send(to, message)
    }

    fn sums(&self) -> bool {
        self.inner.sums()
    }

    fn sum(&self, values: Vec<f32>, deadline: Deadline) -> Result<Vec<f32>, TransportFailure> {
        self.inner.sum(values, deadline)
    }
}
