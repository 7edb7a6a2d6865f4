//! Finds which rank arrived last at the collectives, how long the others waited for it, and why it
//! was late.

use std::collections::{BTreeMap, HashMap};

use schema::TableRow;
use serde::Serialize;

use crate::facts::collectives::{Collectives, Matched};
use crate::facts::scope::Scope;
use crate::graph::critical_path::{
    PathCategory, Reach, RelaxedGraph, StretchPlace, WalkStretch, walk_back_from,
};
use crate::graph::measured::MeasuredGraph;
use crate::graph::{NodeId, NodeKind};
use crate::percent::percent;

/// Ranks that arrived last, and the collectives that waited for them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Stragglers {
    /// All ranks, sorted by how often they arrived last and by caused delay, both in descending
    /// order, then by rank.
    pub ranks: Vec<Straggler>,
    /// All collectives that were seen on several ranks, sorted by index.
    pub arrivals: Vec<LateArrival>,
}

/// How often one rank arrived last at a collective, and why.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct Straggler {
    pub rank: u32,
    /// Number of collectives at which the rank arrived last.
    pub times_last: u64,
    /// Number of collectives in which the rank took part.
    pub collectives: u64,
    pub last_pct: Option<f64>,
    /// Sum of the times by which the rank arrived later than the second last, which is an upper
    /// bound of what the job could save.
    pub caused_delay_ns: i64,
    /// Time that the rank itself waited for other ranks.
    pub wait_ns: i64,
    /// Time by which the rank's window began later than that of any other rank. Set only if this
    /// time exceeds the rank's mean lateness and so explains it, because a host that lags keeps
    /// lagging.
    pub began_late_ns: Option<i64>,
    /// Category with the largest excess over the other ranks before the rank arrived late, summed
    /// over [`LateArrival::cause`].
    pub cause: Option<PathCategory>,
    /// Excess of the category `cause` over the other ranks.
    pub cause_ns: i64,
    /// The name on which the rank spent most time in the category `cause`.
    pub cause_name: String,
}

/// The reason why the last rank arrived last at one collective.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct LateArrival {
    pub index: u32,
    pub name: String,
    pub last_rank: u32,
    /// Time by which the last rank arrived later than the second last.
    pub late_by_ns: i64,
    /// Time from the previous meeting of all ranks, or from the start of the window, to the arrival
    /// of the last rank.
    pub since_ns: i64,
    /// Time by which the last rank's window began later than that of any other rank, if the ranks
    /// had not met before. A rank whose window began late was late before the recording began.
    pub began_late_ns: i64,
    /// Category in which the critical path of the last rank exceeds the mean of the other ranks
    /// most. The category is `None` if no category exceeds the mean, if the rank began late by more
    /// than the excess, or if the clocks disagree.
    pub cause: Option<PathCategory>,
    /// Excess of the category `cause` over the mean of the other ranks.
    pub cause_ns: i64,
    /// The name on which the last rank spent most time in the category `cause`.
    pub cause_name: String,
}

/// Finds which ranks were late and why, in the graph that was built from the same scopes and
/// collectives.
///
/// # Cost
/// The cost is linear in the critical paths of all ranks.
pub fn find_stragglers(
    scopes: &[Scope<'_>],
    collectives: &Collectives,
    measured: &MeasuredGraph,
) -> Stragglers {
    let job = StragglerJob { scopes, measured, arrivals: arrivals(measured) };
    let mut met: Vec<i64> = scopes.iter().map(|scope| scope.window.start).collect();
    let mut late = Vec::new();
    let mut found = Stragglers::default();
    for one in collectives.matched.iter().filter(|one| one.participants.len() > 1) {
        let Some(last_rank) = one.last_rank else { continue };
        let (arrival, ways) = job.explain(one, last_rank, &mut met);
        late.push((last_rank, ways));
        found.arrivals.push(arrival);
    }
    found.ranks = scopes.iter().map(|scope| rank(scope, collectives, &late, &found)).collect();
    found.ranks.sort_by_key(|one| {
        let reversed = (one.times_last, one.caused_delay_ns);
        (std::cmp::Reverse(reversed), one.rank)
    });
    found
}

fn rank(
    scope: &Scope<'_>,
    collectives: &Collectives,
    late: &[(u32, Excess)],
    found: &Stragglers,
) -> Straggler {
    let rank = scope.trace.rank;
    let own = |one: &&LateArrival| one.last_rank == rank;
    let shared = collectives.matched.iter().filter(|one| one.participants.len() > 1);
    let parts = shared.flat_map(|one| one.participants.iter().filter(|p| p.rank == rank));
    let waits: Vec<i64> = parts.map(|part| part.wait_ns).collect();
    let times_last = found.arrivals.iter().filter(own).count() as u64;
    let mut total = Excess::default();
    for (_, excess) in late.iter().filter(|(last, _)| *last == rank) {
        total.add(excess);
    }
    let caused_delay_ns: i64 = found.arrivals.iter().filter(own).map(|one| one.late_by_ns).sum();
    let began = found.arrivals.iter().filter(own).map(|one| one.began_late_ns).max();
    // A late start explains the delays only if it is at least as large as the mean delay, because a
    // host that lags keeps lagging.
    let began_late_ns =
        began.filter(|began| *began > 0 && began * times_last as i64 >= caused_delay_ns);
    let (cause, cause_ns, cause_name) = total.most();
    Straggler {
        rank,
        times_last,
        collectives: waits.len() as u64,
        last_pct: percent(times_last as i64, waits.len() as i64),
        caused_delay_ns,
        began_late_ns,
        wait_ns: waits.iter().sum(),
        cause,
        cause_ns,
        cause_name,
    }
}

/// Time by category in excess of the mean of the other ranks, with the time by name behind it.
#[derive(Debug, Default)]
struct Excess {
    more: BTreeMap<PathCategory, i64>,
    names: BTreeMap<(PathCategory, String), i64>,
}

impl Excess {
    fn add(&mut self, other: &Self) {
        for (category, ns) in &other.more {
            *self.more.entry(*category).or_insert(0) += ns;
        }
        for (key, ns) in &other.names {
            *self.names.entry(key.clone()).or_insert(0) += ns;
        }
    }

    fn most(&self) -> (Option<PathCategory>, i64, String) {
        let most = self.more.iter().filter(|(_, ns)| **ns > 0);
        let Some((category, ns)) =
            most.max_by_key(|(category, ns)| (**ns, std::cmp::Reverse(**category)))
        else {
            return (None, 0, String::new());
        };
        let of_it = self.names.iter().filter(|((of, _), _)| of == category);
        let longest = of_it.max_by_key(|((_, name), ns)| (**ns, std::cmp::Reverse(name.clone())));
        (Some(*category), *ns, longest.map_or_else(String::new, |((_, name), _)| name.clone()))
    }
}

/// Inputs of the straggler analysis, with an index from collective kernels to nodes of the graph.
struct StragglerJob<'a, 'b> {
    scopes: &'a [Scope<'b>],
    measured: &'a MeasuredGraph,
    /// Node of the arrival for each (index of the rank among the scopes, row).
    arrivals: HashMap<(u32, u32), NodeId>,
}

fn arrivals(measured: &MeasuredGraph) -> HashMap<(u32, u32), NodeId> {
    let nodes = measured.origins.iter().enumerate();
    let is_arrival =
        |at: usize| measured.graph.node(NodeId(at as u32)).kind == NodeKind::Collective;
    let arrivals = nodes.filter(|(at, origin)| {
        origin.category == PathCategory::CommunicationWait && is_arrival(*at)
    });
    arrivals
        .filter_map(|(at, origin)| Some(((origin.scope, origin.row()?), NodeId(at as u32))))
        .collect()
}

impl StragglerJob<'_, '_> {
    /// Explains why the last rank arrived last at one collective. `met` holds the time at which
    /// each rank last met the others, and is updated.
    fn explain(&self, one: &Matched, last_rank: u32, met: &mut [i64]) -> (LateArrival, Excess) {
        let mut ways: Vec<(u32, Way)> = Vec::new();
        let (mut since_ns, mut began) = (0, Vec::new());
        for part in &one.participants {
            let Some(at) = self.scopes.iter().position(|s| s.trace.rank == part.rank) else {
                continue;
            };
            if let Some(node) = self.arrivals.get(&(at as u32, part.row)) {
                ways.push((part.rank, self.way(*node, met[at])));
                if part.rank == last_rank {
                    since_ns = part.arrival_ns - met[at];
                }
                began.push((part.rank == last_rank, met[at]));
                // The ranks leave a collective together, so the next search for causes begins
                // there.
                met[at] = met[at].max(part.arrival_ns + part.wait_ns);
            }
        }
        let began_late_ns = beyond(&began).max(0);
        let mut excess = excess(&ways, last_rank);
        // If the rank began late by more than any excess, the cause lies before the recording.
        if began_late_ns > excess.most().1 {
            excess = Excess::default();
        }
        let (cause, cause_ns, cause_name) = excess.most();
        let (index, name) = (one.index, one.name.clone());
        let late_by_ns = one.late_by_ns;
        let arrival = LateArrival {
            index,
            name,
            last_rank,
            late_by_ns,
            since_ns,
            began_late_ns,
            cause,
            cause_ns,
            cause_name,
        };
        (arrival, excess)
    }

    /// Returns the time by category and name on a rank's critical path, from a given time to its
    /// arrival.
    fn way(&self, arrival: NodeId, since: i64) -> Way {
        let measured = self.measured;
        let graph = RelaxedGraph::recorded(measured);
        let mut way = Way::default();
        for stretch in walk_back_from(graph, arrival, Reach::Rank, since) {
            let duration = stretch.end - stretch.start.max(since);
            if duration > 0 {
                *way.entry((stretch.category, self.name(&stretch))).or_insert(0) += duration;
            }
        }
        way
    }

    /// Names a stretch by its row. Untraced time is named by the annotation around its end, Python
    /// time by its frame, and a wait by the row that waited.
    fn name(&self, stretch: &WalkStretch) -> String {
        let node = match stretch.what {
            StretchPlace::Node(node) => node,
            StretchPlace::Edge(edge) => self.measured.graph.edge(edge).target,
        };
        let origin = self.measured.origins[node.index()];
        let scope = &self.scopes[origin.scope as usize];
        if let (PathCategory::PythonFrame, Some(track)) = (stretch.category, origin.track())
            && let Some(frame) = scope.frames().at(track, stretch.end - 1)
        {
            let name = scope.frames().all()[frame as usize].name;
            return scope.trace.strings.get(name).to_owned();
        }
        let row = match origin.track() {
            Some(track) if stretch.category == PathCategory::UntracedHost => {
                self.measured.label(origin.scope, track, stretch.end - 1)
            }
            _ => origin.row(),
        };
        row.map_or_else(String::new, |row| scope.trace.name(row).to_owned())
    }
}

/// Time by category and name on a critical path.
type Way = BTreeMap<(PathCategory, String), i64>;

/// Returns by how much the value of the last rank exceeds the largest value of the other ranks.
fn beyond(values: &[(bool, i64)]) -> i64 {
    let own = values.iter().find(|(is_last, _)| *is_last).map_or(0, |(_, value)| *value);
    let others = values.iter().filter(|(is_last, _)| !is_last);
    others.map(|(_, value)| own - value).min().unwrap_or_default()
}

/// Returns the time on the last rank's path in excess of the mean of the other ranks, by category.
fn excess(ways: &[(u32, Way)], last_rank: u32) -> Excess {
    let mut excess = Excess::default();
    let others = ways.iter().filter(|(rank, _)| *rank != last_rank).count() as i64;
    let own = ways.iter().find(|(rank, _)| *rank == last_rank);
    let Some((_, own)) = own.filter(|_| others > 0) else { return excess };
    for ((category, _), ns) in own {
        *excess.more.entry(*category).or_insert(0) += ns;
    }
    let mut rest: BTreeMap<PathCategory, i64> = BTreeMap::new();
    for (_, way) in ways.iter().filter(|(rank, _)| *rank != last_rank) {
        for ((category, _), ns) in way {
            *rest.entry(*category).or_insert(0) += ns;
        }
    }
    for (category, ns) in rest {
        *excess.more.entry(category).or_insert(0) -= ns / others;
    }
    excess.names = own.clone();
    excess
}
