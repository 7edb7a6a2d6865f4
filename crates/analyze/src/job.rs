//! A job: its ranks, and facts of each and of all together, computed once, on first use. Every
//! analysis of a whole job takes one. Knows no rule, no page and no file.

mod copies;
mod kernel;
mod kernels;
mod rank;
mod stalls;

use std::sync::OnceLock;

use crate::collectives::{self, Collectives};
use crate::critical_path::{self, CriticalPath};
use crate::graph::measured::{self, MeasuredGraph};
use crate::quality::{self, Issue, QualityVerdict};
use crate::scope::Scope;
use crate::stragglers::{self, Stragglers};

pub(crate) use copies::Copy;
pub(crate) use kernel::WindowKernel;
pub use rank::{OperatorTensors, RankFacts, Tensors};

/// What is known of a job.
#[derive(Debug)]
pub struct JobFacts<'a> {
    /// Each rank, in the order of the scopes.
    pub ranks: Vec<RankFacts<'a>>,
    scopes: &'a [Scope<'a>],
    collectives: OnceLock<Collectives>,
    measured: OnceLock<MeasuredGraph>,
    paths: OnceLock<CriticalPath>,
    stragglers: OnceLock<Stragglers>,
    issues: OnceLock<Vec<Issue>>,
}

impl<'a> JobFacts<'a> {
    /// The job of some ranks' windows; nothing is computed yet.
    pub fn new(scopes: &'a [Scope<'a>]) -> Self {
        Self {
            ranks: scopes.iter().map(RankFacts::new).collect(),
            scopes,
            collectives: OnceLock::new(),
            measured: OnceLock::new(),
            paths: OnceLock::new(),
            stragglers: OnceLock::new(),
            issues: OnceLock::new(),
        }
    }

    /// The tensors of operators, which no column of a trace holds: the door reads them.
    pub fn know_shapes(&mut self, shapes: OperatorTensors) {
        for ((rank, row), tensors) in shapes {
            if let Some(facts) = self.ranks.iter_mut().find(|facts| facts.rank() == rank) {
                facts.know_tensors(row, tensors);
            }
        }
    }

    /// The windows, one per rank.
    pub fn scopes(&self) -> &'a [Scope<'a>] {
        self.scopes
    }

    /// The facts of a rank.
    pub fn rank(&self, rank: u32) -> Option<&RankFacts<'a>> {
        self.ranks.iter().find(|facts| facts.rank() == rank)
    }

    /// Matched collectives.
    pub fn collectives(&self) -> &Collectives {
        self.collectives.get_or_init(|| collectives::of(self.scopes))
    }

    /// The dependency graph of all ranks.
    pub fn measured(&self) -> &MeasuredGraph {
        let apart = Collectives::default();
        let of = || match self.is_one_job() {
            true => measured::of(&self.ranks, self.collectives()),
            false => measured::of(&self.ranks, &apart),
        };
        self.measured.get_or_init(of)
    }

    /// The critical paths of the job and of each rank, with all contributors.
    pub fn paths(&self) -> &CriticalPath {
        self.paths.get_or_init(|| critical_path::of(self.scopes, self.measured()))
    }

    /// Who arrived late at collectives, and why.
    pub fn stragglers(&self) -> &Stragglers {
        let of = || stragglers::of(self.scopes, self.collectives(), self.measured());
        self.stragglers.get_or_init(of)
    }

    /// Whether the ranks belong to one job that was recorded at one time: else the collectives of
    /// one are not those of another.
    pub fn is_one_job(&self) -> bool {
        const APART: [&str; 3] = ["mixed-jobs", "ranks-apart", "duplicate-ranks"];
        self.ranks.len() < 2 || !self.issues().iter().any(|issue| APART.contains(&issue.id))
    }

    /// What is wrong with the recordings, worst first.
    pub fn issues(&self) -> &[Issue] {
        self.issues.get_or_init(|| quality::of(&self.ranks))
    }

    /// What the issues amount to.
    pub fn verdict(&self) -> QualityVerdict {
        quality::verdict(self.issues())
    }

    /// The mean step of the slowest rank; the window where there are no steps.
    pub fn step_ns(&self) -> i64 {
        self.ranks.iter().map(RankFacts::step_ns).max().unwrap_or_default()
    }

    /// Lets each rank know how long its collectives waited for others.
    pub(crate) fn tell_waits(&self) {
        for facts in self.ranks.iter().filter(|_| self.ranks.len() > 1 && self.is_one_job()) {
            let parts = self.collectives().matched.iter().flat_map(|one| &one.participants);
            let own = parts.filter(|part| part.rank == facts.rank());
            facts.know_waits(own.map(|part| (part.row, part.wait_ns)));
        }
    }
}
