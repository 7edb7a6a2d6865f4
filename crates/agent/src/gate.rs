//! Limits the connections of each peer to each endpoint of the agent. Every endpoint has its own
//! gate, so a full endpoint does not block the others.
//!
//! A full gate closes the oldest connection whose request has not arrived. A peer that opens many
//! connections and sends nothing thus loses them, while a client that sends its request promptly is
//! served. This module does not touch sockets.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use fleet::quota::{Quotas, Rate};
use tokio::sync::Notify;

/// Limits for commands from this host, by user. A running order or sampling occupies one
/// connection.
const COMMANDS: GateLimits =
    GateLimits { all: 64, peer: 8, arrivals: Some(Rate { burst: 256.0, per_s: 64.0 }) };
/// Limits for scrapers. All users of this host share one address, so one address may have all
/// connections.
const PAGES: GateLimits = GateLimits { all: 64, peer: 64, arrivals: None };
/// Limits for callers from other hosts. Each connection costs a TLS handshake, so the rate of new
/// connections is limited too.
const REMOTE: GateLimits =
    GateLimits { all: 64, peer: 16, arrivals: Some(Rate { burst: 64.0, per_s: 16.0 }) };
/// Limits for connections of dynolog's client tools.
const DYNOLOG: GateLimits = GateLimits { all: 32, peer: 32, arrivals: None };
/// Largest number of peers whose rate of new connections is tracked separately.
const PEERS_MAX: usize = 1024;

/// A user or an address whose connections are limited together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Peer {
    User(u32),
    /// An IP address. IPv6 addresses are reduced to their /64 network, because one host may own all
    /// addresses of a /64.
    Address(IpAddr),
}

/// The connection gates of all endpoints of the agent.
#[derive(Clone, Debug)]
pub struct Gates {
    pub commands: Arc<Gate>,
    pub pages: Arc<Gate>,
    pub remote: Arc<Gate>,
    pub dynolog: Arc<Gate>,
}

impl Default for Gates {
    fn default() -> Self {
        let gate = Gate::new;
        let (commands, pages) = (gate(COMMANDS), gate(PAGES));
        Self { commands, pages, remote: gate(REMOTE), dynolog: gate(DYNOLOG) }
    }
}

impl Gates {
    /// The number of connections that each endpoint refused, or closed to make room for others.
    pub fn refused(&self) -> [(&'static str, u64); 4] {
        [
            ("commands", self.commands.refused()),
            ("pages", self.pages.refused()),
            ("remote", self.remote.refused()),
            ("dynolog", self.dynolog.refused()),
        ]
    }
}

/// The connection limits of one endpoint of the agent.
#[derive(Clone, Copy, Debug)]
pub struct GateLimits {
    pub all: usize,
    /// Largest number of simultaneous connections of one peer.
    pub peer: usize,
    /// Rate limit for new connections of one peer. The limit is set only if a connection is
    /// expensive to set up.
    pub arrivals: Option<Rate>,
}

/// Decides which connections an endpoint accepts, and which it closes to make room.
#[derive(Debug)]
pub struct Gate {
    limits: GateLimits,
    began: Instant,
    table: Mutex<GateTable>,
}

/// The open connections and the rate limits for new ones. The gate locks the table for each arrival
/// and departure.
#[derive(Debug)]
struct GateTable {
    next: u64,
    open: BTreeMap<u64, OpenConnection>,
    arrivals: Option<Quotas<Peer>>,
    refused: u64,
}

/// A connection that the gate has accepted. `ended` notifies the task of the connection to close it
/// when the gate needs the place.
#[derive(Debug)]
struct OpenConnection {
    peer: Peer,
    /// Whether a request on this connection is being answered.
    is_busy: bool,
    ended: Arc<Notify>,
}

/// The permission to keep a connection open. Dropping it frees the place in the gate.
#[derive(Debug)]
pub struct Admission {
    gate: Arc<Gate>,
    id: u64,
    ended: Arc<Notify>,
}

/// Protects a connection from being closed while a request is answered. The gate closes the
/// connection only after this guard is dropped.
#[derive(Debug)]
pub struct Busy<'a>(&'a Admission);

impl Peer {
    /// Returns the peer to which an IP address belongs.
    pub fn at(address: IpAddr) -> Self {
        Self::Address(match address.to_canonical() {
            IpAddr::V6(address) => {
                // A single host usually owns a whole /64 network, so all addresses of a /64 count
                // as one peer.
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)))
            }
            address @ IpAddr::V4(_) => address,
        })
    }
}

impl Gate {
    /// Creates the gate of an endpoint, without connections.
    pub fn new(limits: GateLimits) -> Arc<Self> {
        let arrivals = limits.arrivals.map(|rate| Quotas::new(rate, PEERS_MAX));
        let table = GateTable { next: 0, open: BTreeMap::new(), arrivals, refused: 0 };
        Arc::new(Self { limits, began: Instant::now(), table: Mutex::new(table) })
    }

    /// Admits a connection, closing an older one if necessary. Returns `None` if the connection is
    /// refused.
    pub fn enter(self: &Arc<Self>, peer: Peer) -> Option<Admission> {
        let mut table = self.lock();
        let now = self.began.elapsed();
        let may_arrive = table.arrivals.as_mut().is_none_or(|arrivals| arrivals.take(now, &peer));
        if !may_arrive || !table.make_room(peer, self.limits) {
            table.refused += 1;
            return None;
        }
        let (id, ended) = (table.next, Arc::new(Notify::new()));
        table.next += 1;
        table.open.insert(id, OpenConnection { peer, is_busy: false, ended: Arc::clone(&ended) });
        Some(Admission { gate: Arc::clone(self), id, ended })
    }

    fn lock(&self) -> MutexGuard<'_, GateTable> {
        // Every change of the table is complete in itself, so the table is valid even if another
        // task panicked.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of connections that were refused, or closed to make room for others.
    pub fn refused(&self) -> u64 {
        self.lock().refused
    }
}

impl GateTable {
    /// Makes room for one more connection of `peer`. Returns whether that succeeded.
    fn make_room(&mut self, peer: Peer, limits: GateLimits) -> bool {
        let count = |of: Peer| self.open.values().filter(|one| one.peer == of).count();
        let crowded = if count(peer) >= limits.peer {
            Some(peer)
        } else if self.open.len() >= limits.all {
            // The peer with the most connections loses one, so a flood by one peer does not affect
            // the others.
            self.open.values().map(|one| one.peer).max_by_key(|&peer| (count(peer), peer))
        } else {
            return true;
        };
        // Ids ascend with time, so the first match is the oldest connection. Connections on which a
        // request is being answered are not closed.
        let oldest = self.open.iter().find(|(_, one)| Some(one.peer) == crowded && !one.is_busy);
        let Some(id) = oldest.map(|(&id, _)| id) else { return false };
        if let Some(gone) = self.open.remove(&id) {
            self.refused += 1;
            gone.ended.notify_one();
        }
        true
    }
}

impl Admission {
    /// Waits until the gate asks this connection to close.
    pub async fn ended(&self) {
        self.ended.notified().await;
    }

    /// Marks the connection as answering a request, for as long as the returned guard lives.
    pub fn busy(&self) -> Busy<'_> {
        self.mark(true);
        Busy(self)
    }

    fn mark(&self, is_busy: bool) {
        if let Some(own) = self.gate.lock().open.get_mut(&self.id) {
            own.is_busy = is_busy;
        }
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.mark(false);
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.gate.lock().open.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use fleet::quota::Rate;

    use super::{Admission, Gate, GateLimits, Peer};

    fn is_ended(pass: &Admission) -> bool {
        !pass.gate.lock().open.contains_key(&pass.id)
    }

    #[test]
    fn a_peer_with_many_connections_loses_the_oldest() {
        let gate = Gate::new(GateLimits { all: 4, peer: 3, arrivals: None });
        let enter = |uid| gate.enter(Peer::User(uid)).unwrap();
        let first = [enter(1), enter(1), enter(1)];
        let busy = first[0].busy();
        let fourth = enter(1);
        assert_eq!(first.each_ref().map(is_ended), [false, true, false]);
        // A connection of one user must not be closed to make room for another user.
        let other = enter(2);
        let third = enter(3);
        assert!(!is_ended(&other) && !is_ended(&third) && is_ended(&first[2]));
        assert!(!is_ended(&first[0]) && !is_ended(&fourth));
        drop(busy);
        drop((first, fourth, other, third));
        assert!(gate.lock().open.is_empty());
    }

    #[test]
    fn connections_with_a_request_in_progress_are_not_evicted() {
        let gate = Gate::new(GateLimits { all: 2, peer: 2, arrivals: None });
        let passes = [gate.enter(Peer::User(1)).unwrap(), gate.enter(Peer::User(1)).unwrap()];
        let busy = passes.each_ref().map(Admission::busy);
        assert!(gate.enter(Peer::User(1)).is_none() && gate.enter(Peer::User(2)).is_none());
        assert_eq!(gate.refused(), 2);
        drop(busy);
        assert!(gate.enter(Peer::User(2)).is_some());
    }

    #[test]
    fn arrivals_are_counted_by_address_and_network() {
        let arrivals = Some(Rate { burst: 2.0, per_s: 0.0 });
        let gate = Gate::new(GateLimits { all: 9, peer: 9, arrivals });
        let enter = |address: &str| {
            let address: IpAddr = address.parse().unwrap();
            gate.enter(Peer::at(address)).is_some()
        };
        assert!(enter("10.0.0.1") && enter("::ffff:10.0.0.1") && !enter("10.0.0.1"));
        assert!(enter("10.0.0.2"));
        assert!(enter("fd00::1") && enter("fd00::2") && !enter("fd00::3") && enter("fd00:0:0:1::"));
    }
}
