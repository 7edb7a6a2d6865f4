//! Finds the sharding plan of a job, which is one of the ready-made tilings or a plan from a JSON
//! file.

use std::path::Path;

use clap::ValueEnum;
use schema::{HostLayout, ReplicaGroups, ShardingPlan, TableConfig, TableId, Tile};
use serde::de::Error as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::args::{RANKS_MAX, Sharding};
use crate::error::{Error, UsageError};
use crate::rows;

/// The version of plan files that this program writes and reads.
const VERSION: u32 = 1;

/// The content of a plan file, as it is written.
#[derive(Serialize)]
pub struct PlanText<'a> {
    version: u32,
    #[serde(flatten)]
    plan: &'a ShardingPlan,
}

impl<'a> PlanText<'a> {
    /// Creates the content for a plan.
    pub fn new(plan: &'a ShardingPlan) -> Self {
        Self { version: VERSION, plan }
    }
}

fn first_version() -> u32 {
    1
}

/// The content of the file that `--plan FILE.json` names.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanFile {
    /// Version of the form. Files without a version have the first one.
    #[serde(default = "first_version")]
    version: u32,
    world_size: u32,
    #[serde(default)]
    tiles: Vec<Tile>,
    /// Tables that every rank holds whole.
    #[serde(default)]
    replicated: Vec<TableId>,
}

/// A rule that divides tables among ranks. The rule becomes a plan once the tables are known.
#[derive(Clone, Debug)]
pub enum Tiling {
    /// A ready-made rule, with the hosts of the ranks of a group and the groups that repeat it.
    Made(Sharding, HostLayout, ReplicaGroups),
    /// A plan from a file or of a run that is resumed.
    Fixed(FixedPlan),
}

/// A plan that fits only the tables for which it was made.
#[derive(Clone, Debug)]
pub struct FixedPlan {
    pub plan: ShardingPlan,
    /// The rule that made the plan, or `None` if the plan came from a file.
    pub sharding: Option<Sharding>,
}

impl FixedPlan {
    /// Returns the rule by which other ranks or groups divide the same tables.
    ///
    /// # Errors
    /// No rule is known, and the plan does not keep each table whole on one rank.
    pub fn rule(&self, tables: &[TableConfig]) -> Result<Sharding, UsageError> {
        let ranks = self.plan.group_size();
        let whole = ShardingPlan::table_wise(tables, ranks);
        let is_whole = self.plan.tiles() == whole.tiles();
        let sharding = self.sharding.or_else(|| is_whole.then_some(Sharding::Table));
        sharding.ok_or(UsageError::OtherRanksOfPlan { ranks })
    }
}

impl Tiling {
    /// Creates a ready-made rule for the ranks of a group on these hosts, which all groups repeat.
    ///
    /// # Errors
    /// Rules that place tables on hosts need several hosts, with equally many ranks.
    pub fn new(
        sharding: Sharding,
        hosts: HostLayout,
        groups: ReplicaGroups,
    ) -> Result<Self, UsageError> {
        if sharding.is_by_host() {
            if hosts.host_count() == 1 {
                let (sharding, ranks) = (sharding.name(), hosts.world_size());
                return Err(UsageError::OneHost { sharding, ranks });
            }
            hosts.ranks_per_host().map_err(|source| UsageError::Hosts { source })?;
        }
        Ok(Self::Made(sharding, hosts, groups))
    }

    /// Creates the plan for `tables` from this rule.
    pub fn plan(&self, tables: &[TableConfig]) -> ShardingPlan {
        let (sharding, hosts, groups) = match self {
            Self::Made(sharding, hosts, groups) => (sharding, hosts, *groups),
            Self::Fixed(fixed) => return fixed.plan.clone(),
        };
        let ranks = hosts.world_size() as u32;
        let plan = match sharding {
            Sharding::Table => ShardingPlan::table_wise(tables, ranks),
            Sharding::Row => ShardingPlan::row_wise(tables, ranks),
            Sharding::Column => ShardingPlan::column_wise(tables, ranks),
            Sharding::Mixed => ShardingPlan::mixed(tables, ranks),
            Sharding::Replicated => ShardingPlan::replicate(tables, ranks),
            Sharding::TableRow => ShardingPlan::table_row_wise(tables, hosts),
            Sharding::Grid => ShardingPlan::grid(tables, hosts),
        };
        plan.on_hosts(hosts.clone()).in_groups(groups)
    }

    /// Returns the groups of ranks that repeat the plan.
    pub fn groups(&self) -> ReplicaGroups {
        match self {
            Self::Made(_, _, groups) => *groups,
            Self::Fixed(fixed) => fixed.plan.groups(),
        }
    }

    /// Returns the rule that makes the plan, or `None` if the plan came from a file.
    pub fn sharding(&self) -> Option<Sharding> {
        match self {
            Self::Made(sharding, ..) => Some(*sharding),
            Self::Fixed(fixed) => fixed.sharding,
        }
    }

    /// Checks that groups that average their tables have tables of their own. Replicated tables
    /// are summed over all ranks instead.
    ///
    /// # Errors
    /// [`UsageError::NothingToAverage`] if all tables are replicated.
    pub fn check_averages(&self) -> Result<(), UsageError> {
        let is_replicated = match self {
            Self::Made(sharding, ..) => *sharding == Sharding::Replicated,
            Self::Fixed(fixed) => fixed.plan.tiles().is_empty(),
        };
        let groups = self.groups();
        if is_replicated && groups.averages_tables() {
            return Err(UsageError::NothingToAverage { sync_every: groups.sync_every.get() });
        }
        Ok(())
    }
}

impl Sharding {
    /// Returns the value of `--sharding`.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Returns whether the plan places tables on hosts, and not only on ranks.
    pub fn is_by_host(self) -> bool {
        matches!(self, Self::TableRow | Self::Grid)
    }
}

/// Checks that a text is a plan in the `form` whose files have a `key`.
///
/// # Errors
/// [`UsageError::PlanForm`] for other text.
pub fn check_form(
    path: &Path,
    text: &str,
    key: &'static str,
    form: &'static str,
) -> Result<(), Error> {
    let value: Value = serde_json::from_str(text).unwrap_or_default();
    let got = match &value {
        _ if text.trim().is_empty() => "an empty file".to_owned(),
        Value::Null => return Ok(()),
        Value::Object(keys) if keys.contains_key(key) => return Ok(()),
        Value::Object(keys) if keys.contains_key("world_size") => "a plan of rowmill".to_owned(),
        Value::Object(keys) if keys.contains_key("plan") => "a plan of TorchRec".to_owned(),
        Value::Object(_) => format!("an object without {key:?}"),
        _ => "JSON that is not an object".to_owned(),
    };
    Err(UsageError::PlanForm { path: path.to_owned(), form, got }.into())
}

/// Reads a sharding plan from a JSON file and checks that it fits `tables`.
pub fn read(path: &Path, tables: &[TableConfig]) -> Result<ShardingPlan, Error> {
    rows::check_known(tables, "a plan")?;
    let text = std::fs::read_to_string(path).map_err(Error::io(path, "read"))?;
    parse(path, &text, tables)
}

/// Parses a sharding plan. `path` is the origin of the text and appears in errors.
pub fn parse(path: &Path, text: &str, tables: &[TableConfig]) -> Result<ShardingPlan, Error> {
    let malformed = |source| Error::from(UsageError::PlanFile { path: path.to_owned(), source });
    check_form(path, text, "world_size", "the form of rowmill's plans")?;
    let file: PlanFile = serde_json::from_str(text).map_err(malformed)?;
    if file.version != VERSION {
        let text = format!("version: expected {VERSION}, got {}", file.version);
        return Err(malformed(serde_json::Error::custom(text)));
    }
    if !(1..=RANKS_MAX).contains(&file.world_size) {
        let got = file.world_size;
        let text = format!("world_size: expected 1..={RANKS_MAX}, got {got}");
        return Err(malformed(serde_json::Error::custom(text)));
    }
    let PlanFile { world_size, tiles, replicated, .. } = file;
    let plan = ShardingPlan::with_replicas(world_size, tiles, &replicated, tables);
    Ok(plan
        .map_err(|source| UsageError::Plan { path: path.to_owned(), source: Box::new(source) })?)
}
