//! A job and its ranks, with facts that are computed on first use and only once. Every analysis of
//! a whole job takes a [`JobFacts`].

mod copies;
mod kernel;
mod kernels;
mod rank;
mod stalls;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use crate::facts::collectives::{self, Collectives};
use crate::facts::quality::{self, Issue, QualityVerdict};
use crate::facts::scope::Scope;
use crate::graph::critical_path::{self, CriticalPath, PathJob};
use crate::graph::measured::{self, MeasuredGraph, Pauses, RowNodes};
use crate::tables::stragglers::{self, Stragglers};

pub(crate) use copies::Copy;
pub(crate) use kernel::WindowKernel;
pub use rank::{OperatorTensors, RankFacts, Tensors};

/// Facts of a job that several analyses share. Each fact is computed on first use, and
/// [`RankFacts`] holds the facts of one rank.
#[derive(Debug)]
pub struct JobFacts<'a> {
    /// Facts of each rank, in the order of the scopes.
    pub ranks: Vec<RankFacts<'a>>,
    scopes: &'a [Scope<'a>],
    collectives: OnceLock<Collectives>,
    measured: OnceLock<MeasuredGraph>,
    row_nodes: OnceLock<RowNodes>,
    pauses: OnceLock<Pauses>,
    paths: OnceLock<CriticalPath>,
    stragglers: OnceLock<Stragglers>,
    issues: OnceLock<Vec<Issue>>,
}

impl<'a> JobFacts<'a> {
    /// Creates the facts of a job from its ranks' windows, without computing any fact yet.
    pub fn new(scopes: &'a [Scope<'a>]) -> Self {
        Self {
            ranks: scopes.iter().map(RankFacts::new).collect(),
            scopes,
            collectives: OnceLock::new(),
            measured: OnceLock::new(),
            row_nodes: OnceLock::new(),
            pauses: OnceLock::new(),
            paths: OnceLock::new(),
            stragglers: OnceLock::new(),
            issues: OnceLock::new(),
        }
    }

    /// Sets the tensors of operators, which no column of a trace contains. The caller reads the
    /// tensors from the trace file, and calls this function at most once.
    pub fn know_shapes(&self, shapes: OperatorTensors) {
        let mut by_rank: BTreeMap<u32, BTreeMap<u32, Tensors>> = BTreeMap::new();
        for ((rank, row), tensors) in shapes {
            by_rank.entry(rank).or_default().insert(row, tensors);
        }
        for (rank, tensors) in by_rank {
            if let Some(facts) = self.rank(rank) {
                facts.know_tensors(tensors);
            }
        }
    }

    /// Returns the analyzed windows, one per rank.
    pub fn scopes(&self) -> &'a [Scope<'a>] {
        self.scopes
    }

    /// Returns the facts of the rank with a given number.
    pub fn rank(&self, rank: u32) -> Option<&RankFacts<'a>> {
        self.ranks.iter().find(|facts| facts.rank() == rank)
    }

    /// Returns the collectives of the job, matched across its ranks.
    pub fn collectives(&self) -> &Collectives {
        self.collectives.get_or_init(|| collectives::match_collectives(self.scopes))
    }

    /// Returns the dependency graph of all ranks.
    pub fn measured(&self) -> &MeasuredGraph {
        let apart = Collectives::default();
        let build = || match self.is_one_job() {
            true => measured::build_measured_graph(&self.ranks, self.collectives()),
            false => measured::build_measured_graph(&self.ranks, &apart),
        };
        self.measured.get_or_init(build)
    }

    /// Returns the nodes of the dependency graph, indexed by the trace row from which they were
    /// built.
    pub fn row_nodes(&self) -> &RowNodes {
        self.row_nodes.get_or_init(|| RowNodes::new(self.scopes, self.measured()))
    }

    /// Returns the pauses of all threads: the edges of the dependency graph that an edit may
    /// shorten in part.
    pub fn pauses(&self) -> &Pauses {
        self.pauses.get_or_init(|| Pauses::new(self.measured()))
    }

    /// Returns the critical paths of the job and of each rank, with everything that contributes to
    /// them.
    pub fn paths(&self) -> &CriticalPath {
        self.paths.get_or_init(|| critical_path::find_critical_paths(self.scopes, self.measured()))
    }

    /// Returns what a walk along one of [`Self::paths`] reads.
    pub fn path_job(&self) -> PathJob<'_, 'a> {
        PathJob { scopes: self.scopes, measured: self.measured() }
    }

    /// Returns which ranks arrived late at collectives, and why.
    pub fn stragglers(&self) -> &Stragglers {
        let find = || stragglers::find_stragglers(self.scopes, self.collectives(), self.measured());
        self.stragglers.get_or_init(find)
    }

    /// Returns whether the ranks belong to one job and were recorded at the same time. Collectives
    /// are matched across ranks only in that case.
    pub fn is_one_job(&self) -> bool {
        const APART: [&str; 3] = ["mixed-jobs", "ranks-apart", "duplicate-ranks"];
        self.ranks.len() < 2 || !self.issues().iter().any(|issue| APART.contains(&issue.id))
    }

    /// Returns the defects of the recordings, sorted from worst to least.
    pub fn issues(&self) -> &[Issue] {
        self.issues.get_or_init(|| quality::find_issues(&self.ranks))
    }

    /// Returns the overall quality verdict of the recordings.
    pub fn verdict(&self) -> QualityVerdict {
        quality::verdict(self.issues())
    }

    /// Returns the mean step time of the slowest rank, or the length of its window if it has no
    /// steps.
    pub fn step_ns(&self) -> i64 {
        self.ranks.iter().map(RankFacts::step_ns).max().unwrap_or_default()
    }

    /// Passes each rank the times that its collectives waited for other ranks.
    pub(crate) fn tell_waits(&self) {
        for facts in self.ranks.iter().filter(|_| self.ranks.len() > 1 && self.is_one_job()) {
            let parts = self.collectives().matched.iter().flat_map(|one| &one.participants);
            let own = parts.filter(|part| part.rank == facts.rank());
            facts.know_waits(own.map(|part| (part.row, part.wait_ns)));
        }
    }
}
