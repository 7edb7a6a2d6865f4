//! The columns over which an optimizer takes a row's mean or norm: the whole row, or each column
//! tile separately. With column tiles, row-wise Adagrad and LAMB give other results than with whole
//! rows. Over whole rows, ranks that split columns exchange terms of each row in every step.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::config::Optimizers;
use crate::model::TableConfig;
use crate::optimizer::{Optimizer, SplitRowRule};
use crate::plan::{ShardingPlan, Tile};

/// The columns over which an update rule takes its mean or norm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowScope {
    /// The rule treats each weight separately, so the sharding plan does not affect it.
    EachWeight,
    /// The rule depends on rows, but there is no state yet, so training may start with any scope.
    Undecided,
    /// The mean or norm covers all columns of a row, in every table.
    WholeRows,
    /// The mean or norm covers only the columns of one tile in rows whose columns are split, and
    /// whole rows elsewhere. The list is not empty, and is ordered by table and first row.
    ColumnTiles(Vec<ColumnSplit>),
}

/// Rows of a table whose columns are split.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnSplit {
    pub table: String,
    pub rows: Range<u64>,
    /// Columns of each tile in ascending order; there are at least two tiles.
    pub columns: Vec<Range<usize>>,
}

/// A table that two scopes treat differently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopeDifference {
    pub table: String,
    /// Description of the table's scope in the first of the two scopes.
    pub before: String,
    /// Description of the table's scope in the second of the two scopes.
    pub after: String,
}

/// Largest number of tables or tiles that a message lists.
const LISTED: usize = 6;

impl RowScope {
    /// Determines the scope of an optimizer under a tiling of `tables`.
    #[must_use]
    pub fn new(
        optimizer: Optimizer,
        rule: SplitRowRule,
        tiles: &[Tile],
        tables: &[TableConfig],
    ) -> Self {
        if !optimizer.looks_at_rows() {
            return Self::EachWeight;
        }
        if rule == SplitRowRule::WholeRows {
            return Self::WholeRows;
        }
        let splits: Vec<ColumnSplit> =
            (0..).zip(tables).flat_map(|(id, table)| splits_of(id, table, tiles)).collect();
        if splits.is_empty() { Self::WholeRows } else { Self::ColumnTiles(splits) }
    }

    /// Whether ranks exchange terms of rows, because the rule is that of whole rows and the plan
    /// splits the columns of some.
    #[must_use]
    pub fn exchanges_terms(optimizers: &Optimizers, plan: &ShardingPlan) -> bool {
        // A table without split columns has one tile per row, so its tiles cover disjoint rows.
        let shares_rows =
            |pair: &[Tile]| pair[0].table == pair[1].table && pair[1].rows.start < pair[0].rows.end;
        Self::covers_whole_rows(optimizers) && plan.tiles().windows(2).any(shares_rows)
    }

    /// Whether updates depend on whole rows even where their columns are split.
    #[must_use]
    pub fn covers_whole_rows(optimizers: &Optimizers) -> bool {
        optimizers.sparse.kind.looks_at_rows() && optimizers.row_scope == SplitRowRule::WholeRows
    }

    /// Whether optimizer state of this scope can continue under `other` without changing the update
    /// rule.
    #[must_use]
    pub fn continues_as(&self, other: &Self) -> bool {
        *self == Self::Undecided || self == other
    }

    /// Returns the rows whose columns are split.
    #[must_use]
    pub fn splits(&self) -> &[ColumnSplit] {
        match self {
            Self::ColumnTiles(splits) => splits,
            Self::EachWeight | Self::Undecided | Self::WholeRows => &[],
        }
    }

    /// Returns the names of tables with split columns, in order.
    #[must_use]
    pub fn split_tables(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.splits().iter().map(|split| &split.table[..]).collect();
        names.dedup();
        names
    }

    /// Describes the scope in one table, such as `whole rows` or `2 column tiles of 8 columns`.
    #[must_use]
    pub fn text_of(&self, table: &str) -> String {
        let splits: Vec<_> = self.splits().iter().filter(|split| split.table == table).collect();
        match &splits[..] {
            [] => "whole rows".to_owned(),
            [split] if split.rows.start == 0 => tiles_text(&split.columns),
            splits => {
                let part = |split: &&ColumnSplit| {
                    let Range { start, end } = split.rows;
                    format!("{} in rows {start}..{end}", tiles_text(&split.columns))
                };
                splits.iter().map(part).collect::<Vec<_>>().join(", ")
            }
        }
    }

    /// Returns the first table that `self` and `other` treat differently. The split tables of
    /// `self` are compared first, then the split tables of `other`.
    #[must_use]
    pub fn first_difference(&self, other: &Self) -> Option<ScopeDifference> {
        let splits = |scope: &Self, table: &str| -> Vec<ColumnSplit> {
            scope.splits().iter().filter(|split| split.table == table).cloned().collect()
        };
        let mut names = self.split_tables().into_iter().chain(other.split_tables());
        let table = names.find(|table| splits(self, table) != splits(other, table))?;
        let (before, after) = (self.text_of(table), other.text_of(table));
        Some(ScopeDifference { table: table.to_owned(), before, after })
    }
}

impl fmt::Display for RowScope {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EachWeight => out.write_str("each weight alone"),
            Self::Undecided => out.write_str("no state yet"),
            Self::WholeRows => out.write_str("whole rows"),
            Self::ColumnTiles(_) => {
                let tables = self.split_tables();
                let listed = tables.iter().take(LISTED);
                let texts = listed.map(|table| format!("{table}: {}", self.text_of(table)));
                out.write_str(&texts.collect::<Vec<_>>().join("; "))?;
                match tables.len().saturating_sub(LISTED) {
                    0 => Ok(()),
                    more => write!(out, "; and {more} more"),
                }
            }
        }
    }
}

fn tiles_text(columns: &[Range<usize>]) -> String {
    let (count, width) = (columns.len(), columns.first().map_or(0, Range::len));
    if columns.iter().all(|columns| columns.len() == width) {
        let plural = if width == 1 { "" } else { "s" };
        return format!("{count} column tiles of {width} column{plural}");
    }
    let ranges = columns.iter().take(LISTED).map(|range| format!("{}..{}", range.start, range.end));
    let more = if count > LISTED { ", …" } else { "" };
    format!("{count} column tiles ({}{more})", ranges.collect::<Vec<_>>().join(", "))
}

/// Finds the rows of one table whose columns are split. Adjacent rows with the same split are
/// merged, so that the tiling of rows does not matter.
fn splits_of(id: u32, table: &TableConfig, tiles: &[Tile]) -> Vec<ColumnSplit> {
    let own: Vec<&Tile> = tiles.iter().filter(|tile| tile.table.0 == id).collect();
    let mut cuts: Vec<u64> = own.iter().flat_map(|t| [t.rows.start, t.rows.end]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let mut splits: Vec<ColumnSplit> = Vec::new();
    // Between two cuts, all rows have the same tiles.
    for rows in cuts.windows(2).map(|cut| cut[0]..cut[1]) {
        let here = own.iter().filter(|tile| tile.rows.contains(&rows.start));
        let mut columns: Vec<Range<usize>> = here.map(|tile| tile.columns.clone()).collect();
        columns.sort_unstable_by_key(|columns| columns.start);
        match splits.last_mut() {
            Some(last) if last.rows.end == rows.start && last.columns == columns => {
                last.rows.end = rows.end;
            }
            _ => splits.push(ColumnSplit { table: table.name.clone(), rows, columns }),
        }
    }
    // Rows with a single tile are whole rows.
    splits.retain(|split| split.columns.len() > 1);
    splits
}

#[cfg(test)]
mod tests {
    use super::{ColumnSplit, Optimizers, RowScope, Tile};
    use crate::model::{DataType, Pooling, TableConfig};
    use crate::optimizer::{Optimizer, OptimizerConfig, SplitRowRule};
    use crate::plan::ShardingPlan;

    fn tables() -> Vec<TableConfig> {
        let table = |(name, rows, dim): (&str, u64, usize)| TableConfig {
            name: name.to_owned(),
            rows,
            dim,
            pooling: Pooling::Sum,
            sequence_length: None,
            data_type: DataType::F32,
            features: vec![name.to_owned()],
        };
        [("a", 10, 6), ("b", 7, 6), ("c", 9, 6), ("d", 8, 6), ("one", 5, 1)].map(table).to_vec()
    }

    fn scope(kind: Optimizer, plan: &ShardingPlan) -> RowScope {
        RowScope::new(kind, SplitRowRule::ColumnTiles, plan.tiles(), &tables())
    }

    #[test]
    fn only_column_tilings_split_rows() {
        let rule = Optimizer::RowwiseAdagrad;
        for ranks in 1..5 {
            let plans = [ShardingPlan::table_wise, ShardingPlan::row_wise];
            for plan in plans.map(|make| make(&tables(), ranks)) {
                assert_eq!(scope(rule, &plan), RowScope::WholeRows);
            }
        }
        let two = scope(rule, &ShardingPlan::column_wise(&tables(), 2));
        // A table of one column cannot be split.
        assert_eq!(two.split_tables(), ["a", "b", "c", "d"]);
        let three = scope(rule, &ShardingPlan::column_wise(&tables(), 3));
        assert!(!two.continues_as(&three) && two.continues_as(&two));
        assert!(RowScope::Undecided.continues_as(&three));
        let difference = two.first_difference(&three).unwrap();
        let texts = (&difference.table[..], &difference.before[..], &difference.after[..]);
        assert_eq!(texts, ("a", "2 column tiles of 3 columns", "3 column tiles of 2 columns"));
    }

    #[test]
    fn row_tiling_does_not_affect_the_scope() {
        let plan = ShardingPlan::mixed(&tables(), 2);
        let RowScope::ColumnTiles(splits) = scope(Optimizer::Lamb, &plan) else { panic!() };
        let split = |table: &str, rows| ColumnSplit {
            table: table.to_owned(),
            rows: 0..rows,
            columns: vec![0..3, 3..6],
        };
        // The plan splits `c` by columns. The plan splits `d` as a grid of 2 × 2, whose two halves
        // have the same columns and therefore count as one split.
        assert_eq!(splits, [split("c", 9), split("d", 8)]);
    }

    #[test]
    fn rules_of_single_weights_do_not_depend_on_rows() {
        let plan = ShardingPlan::column_wise(&tables(), 2);
        for kind in Optimizer::ALL {
            let alone = scope(kind, &plan) == RowScope::EachWeight;
            assert_eq!(alone, !matches!(kind, Optimizer::RowwiseAdagrad | Optimizer::Lamb));
        }
    }

    #[test]
    fn terms_are_exchanged_where_whole_rows_have_split_columns() {
        let optimizers = |kind| {
            let config = OptimizerConfig::new(kind, 0.1);
            Optimizers { row_scope: SplitRowRule::WholeRows, sparse: config, dense: config }
        };
        let exchanges =
            |kind, plan: &ShardingPlan| RowScope::exchanges_terms(&optimizers(kind), plan);
        let column = ShardingPlan::column_wise(&tables(), 2);
        assert!(exchanges(Optimizer::Lamb, &column));
        assert!(!exchanges(Optimizer::Adam, &column));
        let row_scope = SplitRowRule::ColumnTiles;
        let tiles = Optimizers { row_scope, ..optimizers(Optimizer::Lamb) };
        assert!(!RowScope::exchanges_terms(&tiles, &column));
        let mixed = ShardingPlan::mixed(&tables(), 1);
        assert!(exchanges(Optimizer::RowwiseAdagrad, &mixed));
        for plan in [ShardingPlan::table_wise, ShardingPlan::row_wise, ShardingPlan::replicate] {
            assert!(!exchanges(Optimizer::RowwiseAdagrad, &plan(&tables(), 3)));
        }
    }

    #[test]
    fn scopes_are_described_as_text() {
        let plan = ShardingPlan::column_wise(&tables()[..1], 4);
        let text = |tiles: &[Tile]| {
            let rule = SplitRowRule::ColumnTiles;
            RowScope::new(Optimizer::Lamb, rule, tiles, &tables()[..1]).to_string()
        };
        assert_eq!(text(plan.tiles()), "a: 3 column tiles of 2 columns");
        let mut tiles = plan.tiles().to_vec();
        tiles[1].columns = 2..5;
        tiles[2].columns = 5..6;
        assert_eq!(text(&tiles), "a: 3 column tiles (0..2, 2..5, 5..6)");
    }
}
