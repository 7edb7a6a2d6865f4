//! The layouts that each table may have, under the constraints and on the hosts of a topology.

use std::collections::BTreeSet;

use schema::reference::listed;
use schema::unit::counted;
use schema::{HostLayout, Rank, TableConfig};

use crate::constraints::TableConstraints;
use crate::error::Error;
use crate::layout::{Layout, LayoutKind};
use crate::placement::Placement;
use crate::problem::{PlanProblem, PlanTarget};

/// Least number of columns of a column part, if no constraint gives one: a memory transaction has
/// 32 bytes, and rows of less than two waste bandwidth.
const LEAST_COLUMNS: usize = 16;

/// A layout with its number of row blocks, before ranks are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutChoice {
    pub layout: Layout,
    /// Number of row blocks of each column part. Those of a part are on one host under
    /// [`Layout::TableRow`] and [`Layout::Grid`].
    pub blocks: u32,
}

impl LayoutChoice {
    /// Returns the number of parts of the table. A replicated table counts as one.
    #[must_use]
    pub fn parts(self) -> usize {
        self.layout.column_parts() as usize * self.blocks as usize
    }

    /// Whether TorchRec has a sharding type for the layout of a table.
    fn exists_in_torchrec(self, table: &TableConfig, hosts: &HostLayout) -> bool {
        let parts = self.layout.column_parts() as usize;
        let has_equal_columns = parts < 2 || table.dim.is_multiple_of(4 * parts);
        let covers_ranks = self.layout != Layout::Row || self.blocks as usize == hosts.world_size();
        has_equal_columns && covers_ranks
    }

    /// Chooses the ranks with the least load, or the hosts whose ranks have the least load. Row
    /// blocks are placed in the order of ranks, so that a host can add up their sums.
    #[must_use]
    pub fn place(self, hosts: &HostLayout, load: impl Fn(Rank) -> f64) -> Placement {
        let parts = self.layout.column_parts() as usize;
        let layout = self.layout;
        let ranks = match layout {
            Layout::Replicated => Vec::new(),
            Layout::TableRow | Layout::Grid { .. } => {
                let sum = |host: usize| hosts.ranks_of(host).iter().map(|rank| load(*rank)).sum();
                let chosen = least(hosts.host_count(), parts, sum);
                chosen.into_iter().flat_map(|host| hosts.ranks_of(host).iter().copied()).collect()
            }
            Layout::Table | Layout::Row | Layout::Column { .. } => {
                let count = self.parts();
                let rank_load = |rank: usize| load(Rank(rank as u32));
                let mut ranks = least(hosts.world_size(), count, rank_load);
                if parts == 1 {
                    ranks.sort_unstable();
                }
                ranks.into_iter().map(|rank| Rank(rank as u32)).collect()
            }
        };
        Placement { layout, ranks }
    }
}

/// Returns the `count` numbers below `all` with the least load, in the order of their loads.
fn least(all: usize, count: usize, load: impl Fn(usize) -> f64) -> Vec<usize> {
    let mut order: Vec<(f64, usize)> = (0..all).map(|at| (load(at), at)).collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    order.into_iter().cycle().take(count).map(|one| one.1).collect()
}

/// The constraints on each table, checked against the model and the hosts.
#[derive(Clone, Debug)]
pub struct AllowedLayouts {
    /// Choices of each table, in the order of [`LayoutKind`]. A pinned table has none.
    choices: Vec<Vec<LayoutChoice>>,
    pinned: Vec<Option<Placement>>,
}

impl AllowedLayouts {
    /// Lists the layouts of every table.
    ///
    /// # Errors
    /// [`Error::UnknownTable`] for a constraint on a table that the model lacks,
    /// [`Error::NoLayout`] if no layout of a table is possible, and [`Error::Pinned`] for a
    /// placement that the hosts or the table do not allow.
    pub fn new(problem: &PlanProblem<'_>, hosts: &HostLayout) -> Result<Self, Error> {
        let tables = &problem.config.model.tables;
        let constraints = problem.constraints;
        let is_unknown = |name: &&String| !tables.iter().any(|table| table.name == **name);
        if let Some(name) = constraints.tables.keys().find(is_unknown) {
            return Err(Error::UnknownTable { name: name.clone(), tables: tables.len() });
        }
        let least_columns = constraints.least_columns.unwrap_or(LEAST_COLUMNS).max(1);
        let (mut choices, mut pinned) = (Vec::new(), Vec::new());
        for table in tables {
            let own = constraints.for_table(&table.name);
            if let Some(placement) = &own.pinned {
                let beside = constraints.tables.get(&table.name);
                let beside = beside.filter(|own| own.pinned.is_some());
                check_placement(placement, table, hosts)?;
                check_agreement(placement, table, beside.unwrap_or(&constraints.every_table))?;
                choices.push(Vec::new());
            } else {
                let mut own_choices = list_choices(table, &own, hosts, least_columns)?;
                if problem.target == PlanTarget::Torchrec {
                    own_choices.retain(|choice| choice.exists_in_torchrec(table, hosts));
                }
                if own_choices.is_empty() {
                    let missing = "TorchRec has none of those that [plan] allows".to_owned();
                    return Err(Error::NoLayout { table: table.name.clone(), missing });
                }
                choices.push(own_choices);
            }
            pinned.push(own.pinned);
        }
        Ok(Self { choices, pinned })
    }

    /// Returns the same choices, of which tables keep only those of some kinds if they have any.
    #[must_use]
    pub fn only(&self, kinds: &BTreeSet<LayoutKind>) -> Self {
        let is_kind = |choice: &LayoutChoice| kinds.contains(&choice.layout.kind());
        let mut only = self.clone();
        for choices in only.choices.iter_mut().filter(|choices| choices.iter().any(is_kind)) {
            choices.retain(is_kind);
        }
        only
    }

    /// Returns the choices of a table. A pinned table has an empty list.
    ///
    /// # Panics
    /// Panics if the table does not exist.
    #[must_use]
    pub fn choices(&self, table: usize) -> &[LayoutChoice] {
        &self.choices[table]
    }

    /// Returns the placement that a table keeps.
    ///
    /// # Panics
    /// Panics if the table does not exist.
    #[must_use]
    pub fn pinned(&self, table: usize) -> Option<&Placement> {
        self.pinned[table].as_ref()
    }

    /// Returns the choice of a table with the fewest parts of a kind.
    #[must_use]
    pub fn first(&self, table: usize, kind: LayoutKind) -> Option<LayoutChoice> {
        self.choices[table].iter().copied().find(|choice| choice.layout.kind() == kind)
    }
}

fn list_choices(
    table: &TableConfig,
    constraints: &TableConstraints,
    hosts: &HostLayout,
    least_columns: usize,
) -> Result<Vec<LayoutChoice>, Error> {
    let ranks = hosts.world_size() as u32;
    let host_count = hosts.host_count() as u32;
    let most = constraints.most_ranks.unwrap_or(ranks).min(ranks);
    let per_host = hosts.ranks_per_host().unwrap_or(1) as u32;
    let most_parts = ((table.dim / least_columns) as u32).max(1);
    let powers = |last: u32| {
        let doubled = std::iter::successors(Some(2u32), |count| count.checked_mul(2));
        doubled.take_while(move |count| *count < last).chain((last > 1).then_some(last))
    };
    let allowed = constraints.layouts.as_deref().unwrap_or(&LayoutKind::ALL);
    let mut choices = Vec::new();
    for kind in allowed {
        let choice = |layout: Layout, blocks: u32| LayoutChoice { layout, blocks };
        match kind {
            LayoutKind::Table if most > 0 => choices.push(choice(Layout::Table, 1)),
            LayoutKind::Row => {
                let last = most.min(u32::try_from(table.rows).unwrap_or(u32::MAX));
                choices.extend(powers(last).map(|blocks| choice(Layout::Row, blocks)));
            }
            LayoutKind::Column => {
                let last = most.min(most_parts);
                choices.extend(powers(last).map(|parts| choice(Layout::Column { parts }, 1)));
            }
            LayoutKind::TableRow if host_count > 1 && per_host > 1 && most >= per_host => {
                choices.push(choice(Layout::TableRow, per_host));
            }
            LayoutKind::Grid if per_host > 1 => {
                let last = (most / per_host).min(host_count).min(most_parts);
                let grid = |columns| choice(Layout::Grid { columns }, per_host);
                choices.extend(powers(last).map(grid));
            }
            LayoutKind::Replicated if ranks > 1 => choices.push(choice(Layout::Replicated, 1)),
            _ => {}
        }
    }
    if choices.is_empty() {
        let site = LayoutSite { table, most, ranks, host_count, per_host, least_columns };
        let missing: Vec<String> =
            allowed.iter().map(|kind| site.describe_missing(*kind)).collect();
        let (table, missing) = (table.name.clone(), missing.join(", "));
        return Err(Error::NoLayout { table, missing });
    }
    Ok(choices)
}

/// What decides whether a layout of a table is possible.
struct LayoutSite<'a> {
    table: &'a TableConfig,
    /// Most ranks that the table may use, and all ranks.
    most: u32,
    ranks: u32,
    host_count: u32,
    per_host: u32,
    least_columns: usize,
}

impl LayoutSite<'_> {
    /// Describes the first need of a layout that is not met.
    fn describe_missing(&self, kind: LayoutKind) -> String {
        use LayoutKind::{Column, Grid, Replicated, Row, Table, TableRow};
        let is_by_host = matches!(kind, TableRow | Grid);
        let ranks = match kind {
            Table => 1,
            TableRow => self.per_host,
            Grid => 2 * self.per_host,
            Row | Column | Replicated => 2,
        };
        let is_limited = self.most < self.ranks && kind != Replicated;
        let columns = 2 * self.least_columns as u64;
        let needs = [
            (is_by_host, "hosts", 2, u64::from(self.host_count)),
            (is_by_host, "ranks per host", 2, u64::from(self.per_host)),
            (is_limited, "ranks of most_ranks", u64::from(ranks), u64::from(self.most)),
            (!is_limited, "ranks", u64::from(ranks), u64::from(self.ranks)),
            (matches!(kind, Column | Grid), "columns", columns, self.table.dim as u64),
            (kind == Row, "rows", 2, self.table.rows),
        ];
        let unmet = needs.iter().find(|(applies, _, least, got)| *applies && got < least);
        match unmet {
            Some((_, what, least, got)) => {
                format!("{} needs {least} {what}, got {got}", kind.name())
            }
            None => kind.name().to_owned(),
        }
    }
}

fn check_placement(
    placement: &Placement,
    table: &TableConfig,
    hosts: &HostLayout,
) -> Result<(), Error> {
    let refuse = |expected: String, got: String| {
        Err(Error::Pinned { table: table.name.clone(), expected, got })
    };
    let (ranks, parts) = (&placement.ranks, placement.layout.column_parts() as usize);
    let count = ranks.len();
    if let Some(rank) = ranks.iter().find(|rank| rank.index() >= hosts.world_size()) {
        return refuse(format!("ranks below {}", hosts.world_size()), rank.to_string());
    }
    let is_count_valid = match placement.layout {
        Layout::Table => count == 1,
        Layout::Replicated => count == 0,
        Layout::Column { .. } => parts > 0 && count == parts,
        _ => parts > 0 && count > 0 && count.is_multiple_of(parts),
    };
    if !is_count_valid || parts > table.dim {
        let expected =
            format!("one rank for each part of the layout {}", placement.layout.kind().name());
        return refuse(expected, counted(count as u64, "rank"));
    }
    let blocks = count / parts.max(1);
    let mut rows = ranks.chunks(blocks.max(1));
    if let Some(part) = rows.find(|part| (1..blocks).any(|at| part[..at].contains(&part[at]))) {
        let expected = "each row block of a column part on another rank".to_owned();
        return refuse(expected, format!("ranks {}", rank_list(part)));
    }
    let kind = placement.layout.kind();
    let is_cut = !matches!(placement.layout, Layout::Table | Layout::Replicated);
    if is_cut && ranks.iter().all(|rank| *rank == ranks[0]) {
        let expected = format!("several ranks for the parts of the layout {}", kind.name());
        let got = format!("rank {} alone, where the layout is table", ranks[0].0);
        return refuse(expected, got);
    }
    let is_by_host = matches!(placement.layout, Layout::TableRow | Layout::Grid { .. });
    let host_count = hosts.host_count() as u64;
    if is_by_host && host_count < 2 {
        let expected = format!("several hosts for the layout {}", kind.name());
        return refuse(
            expected,
            format!("{}, where the layout is row or column", counted(host_count, "host")),
        );
    }
    let spans_hosts =
        |part: &[Rank]| part.iter().any(|rank| hosts.host(*rank) != hosts.host(part[0]));
    if is_by_host && ranks.chunks(blocks.max(1)).any(spans_hosts) {
        return refuse(
            "the rows of a column part on one host".to_owned(),
            format!("ranks {}", rank_list(ranks)),
        );
    }
    Ok(())
}

fn rank_list(ranks: &[Rank]) -> String {
    let numbers: Vec<String> = ranks.iter().map(|rank| rank.0.to_string()).collect();
    format!("[{}]", numbers.join(", "))
}

/// Checks that a pinned placement satisfies the constraints in the section that pins it.
fn check_agreement(
    placement: &Placement,
    table: &TableConfig,
    beside: &TableConstraints,
) -> Result<(), Error> {
    let (kind, count) = (placement.layout.kind(), placement.ranks.len() as u64);
    let layouts = beside.layouts.as_deref().filter(|layouts| !layouts.contains(&kind));
    let most_ranks = beside.most_ranks.filter(|most| count > u64::from(*most));
    let (expected, got) = if let Some(layouts) = layouts {
        let names: Vec<String> = layouts.iter().map(|kind| kind.name().to_owned()).collect();
        (format!("one of the layouts {}", listed(&names)), kind.name().to_owned())
    } else if let Some(most) = most_ranks {
        (format!("at most the {most} ranks of most_ranks"), counted(count, "rank"))
    } else {
        return Ok(());
    };
    Err(Error::Pinned { table: table.name.clone(), expected, got })
}
