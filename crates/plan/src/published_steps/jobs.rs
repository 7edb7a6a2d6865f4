//! Models and plans of the published jobs.

use std::fmt::Write;

use schema::{
    HostLayout, JobConfig, Rank, Schedule, ShardingPlan, TableConfig, TableId, Tile, stage::Overlap,
};

use predict::Error;

/// Rows of the tables with which ids occurring at least 15 times get a row of their own.
const SMALL: [u64; 26] = [
    7_912_889, 33_823, 17_139, 7_339, 20_046, 4, 7_105, 1_382, 63, 5_554_114, 582_469, 245_828, 11,
    2_209, 10_667, 104, 4, 968, 15, 8_165_896, 2_675_940, 7_156_453, 302_516, 12_022, 97, 35,
];
/// Rows of the tables of the HugeCTR sparse operation kit. Those of NVIDIA's large model, with at
/// least 3 occurrences, are not published; it has 22.8 instead of 24 billion weights.
const LARGE: [u64; 26] = [
    39_884_406, 39_043, 17_289, 7_420, 20_263, 3, 7_120, 1_543, 63, 38_532_951, 2_953_546, 403_346,
    10, 2_208, 11_938, 155, 4, 976, 14, 39_979_771, 25_641_295, 39_664_984, 585_935, 12_972, 108,
    36,
];
/// The ready-made configuration of MLPerf's model.
const DCNV2: &str = include_str!("../../../../configs/dlrm-dcnv2.toml");

/// The model of a published job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishedModel {
    /// DLRM on Criteo Terabyte with 4.2 billion weights.
    Small,
    /// DLRM on Criteo Terabyte with 24 billion weights.
    Large,
    Dcnv2,
}

impl PublishedModel {
    /// Returns the name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Large => "large",
            Self::Dcnv2 => "dcnv2",
        }
    }

    /// Returns the configuration of the model.
    ///
    /// # Errors
    /// [`Error::Workload`] for a batch size that is not valid.
    pub fn config(self, batch_size: usize) -> Result<JobConfig, Error> {
        let text = match self {
            Self::Small => dlrm(&SMALL),
            Self::Large => dlrm(&LARGE),
            Self::Dcnv2 => DCNV2.to_owned(),
        };
        let set = [("training.batch_size".to_owned(), batch_size.to_string())];
        JobConfig::parse(&text, &set).map_err(|error| Error::Workload {
            expected: "a valid configuration".to_owned(),
            got: error.to_string(),
        })
    }
}

/// Writes the configuration of a DLRM whose tables have the given rows.
fn dlrm(rows: &[u64]) -> String {
    let mut text = "[model]\nname = \"dlrm\"\ndense_features = 13\nbottom = [512, 256, 128]\n\
                    top = [1024, 1024, 512, 256, 1]\ninteraction = { kind = \"dot\" }\n\
                    loss = \"bce_with_logits\"\n[optimizer]\n\
                    sparse = { kind = \"sgd\", learning_rate = 24.0 }\n\
                    dense = { kind = \"sgd\", learning_rate = 24.0 }\n[training]\n\
                    batch_size = 1\n[data]\nformat = \"criteo\"\npreset = \"criteo-dlrm\"\n"
        .to_owned();
    for (at, rows) in (1..).zip(rows) {
        // Writing to a text cannot fail.
        let _ = write!(text, "[[model.tables]]\nname = \"C{at}\"\nrows = {rows}\ndim = 128\n");
    }
    text
}

/// The way in which a published job places tables on ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishedPlan {
    OneRank,
    /// Rank 0 computes the bottom MLP for all samples. The other ranks hold whole tables, each at
    /// most ⌈tables ÷ ranks⌉, the largest first where the fewest weights are.
    TablesBesideBottomMlp,
    /// Rows are distributed over all ranks by id. Ids go to the owner of their row, and vectors
    /// back. With one id per bag, a plan by columns has the same bytes and balance.
    RowsByOwner,
    /// Each table is on one host, with its rows on all ranks of that host.
    TableRow,
}

impl PublishedPlan {
    /// Returns the name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::OneRank => "one rank",
            Self::TablesBesideBottomMlp => "table-wise, bottom MLP on rank 0",
            Self::RowsByOwner => "rows by id, priced as columns",
            Self::TableRow => "table-row-wise",
        }
    }

    /// Returns the schedule of the job's framework. Horovod and DDP sum gradients of dense weights
    /// beside the backward pass.
    #[must_use]
    pub fn schedule(self) -> Schedule {
        match self {
            Self::TableRow => Schedule::PIPELINED,
            _ => Schedule::SERIAL.with(Overlap::AllReduce),
        }
    }

    /// Returns the sharding plan on a number of ranks.
    ///
    /// # Errors
    /// [`Error::Workload`] if the plan is not valid for the tables.
    pub fn tiling(self, tables: &[TableConfig], ranks: u32) -> Result<ShardingPlan, Error> {
        let wrong = |error: &dyn std::fmt::Display| Error::Workload {
            expected: "a valid plan".to_owned(),
            got: error.to_string(),
        };
        match self {
            Self::OneRank => Ok(ShardingPlan::table_wise(tables, ranks)),
            Self::RowsByOwner => Ok(ShardingPlan::column_wise(tables, ranks)),
            Self::TableRow => {
                let hosts = HostLayout::with_ranks_per_host(ranks as usize, 8)
                    .map_err(|error| wrong(&error))?;
                Ok(ShardingPlan::table_row_wise(tables, &hosts))
            }
            Self::TablesBesideBottomMlp => {
                let tiles = tables_beside_bottom_mlp(tables, ranks);
                ShardingPlan::new(ranks, tiles, tables).map_err(|error| wrong(&error))
            }
        }
    }
}

fn tables_beside_bottom_mlp(tables: &[TableConfig], ranks: u32) -> Vec<Tile> {
    let others = ranks.saturating_sub(1).max(1) as usize;
    let most = tables.len().div_ceil(others);
    let mut order: Vec<usize> = (0..tables.len()).collect();
    order.sort_by_key(|table| std::cmp::Reverse(tables[*table].rows));
    let mut held = vec![(0u64, 0usize); others];
    let mut tiles = Vec::new();
    for table in order {
        let rooms = (0..others).filter(|rank| held[*rank].1 < most);
        let Some(rank) = rooms.min_by_key(|rank| held[*rank].0) else { break };
        held[rank].0 += tables[table].rows;
        held[rank].1 += 1;
        tiles.push(Tile {
            table: TableId(table as u32),
            rows: 0..tables[table].rows,
            columns: 0..tables[table].dim,
            rank: Rank(rank as u32 + u32::from(ranks > 1)),
        });
    }
    tiles.sort_by_key(|tile| tile.table.0);
    tiles
}
