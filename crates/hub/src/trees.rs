//! The trees of resources whose time Dr. Sankey divides: hosts → GPUs → multiprocessors, and
//! hosts → CPUs → cores. A tree is a description: names of its layers and parts, and the columns
//! from which its sums follow. [`crate::rollup`] computes and keeps the sums of all trees alike.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::columns::{BY_CPU_HOST, BY_HOUR, RowTable};
use crate::sums::{Dimension, LAYERS, PART_COUNT, PARTS};

/// A tree of resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ResourceTree {
    /// Hosts, their GPUs, and the multiprocessors of these.
    #[default]
    Gpu,
    /// Hosts, their CPUs, and the cores of these.
    Cpu,
}

/// What makes a tree different from others.
#[derive(Debug)]
pub struct TreeDescription {
    /// Unit of sums, which are not weighted.
    pub unit: &'static str,
    /// Names of the layers, each of which contains the next one.
    pub layers: [&'static str; LAYERS],
    /// Names of the losses between layers, and of the innermost layer.
    pub parts: [&'static str; PART_COUNT],
    /// Names of what is busy, and of what is within it.
    pub resources: [&'static str; 2],
    /// Properties by which the time can be grouped and selected.
    pub dimensions: &'static [Dimension],
    /// The tables from which sums are computed. The first one has a row for each interval.
    pub sources: &'static [RowTable],
    /// Folder of the kept sums that are there in every hour.
    pub kept: &'static str,
    /// How the innermost layers are read if the rows have seconds by mode of a whole host. Without
    /// it, each row is one GPU.
    pub modes: Option<ModeColumn>,
    /// What the figures do not show.
    pub note: Option<&'static str>,
}

/// A column with seconds by mode, all of which together are the capacity of a host.
#[derive(Clone, Copy, Debug)]
pub struct ModeColumn {
    pub column: &'static str,
    /// Modes in which the resource is busy.
    pub busy: &'static [&'static str],
    /// Busy modes that are the innermost layer.
    pub innermost: &'static [&'static str],
}

const GPU: TreeDescription = TreeDescription {
    unit: "GPU s",
    layers: ["deployed", "schedulable", "on busy hosts", "allocated", "GPU busy", "SM active"],
    parts: PARTS,
    resources: ["GPU", "SM"],
    dimensions: &Dimension::ALL,
    sources: &[RowTable::Gpu],
    kept: BY_HOUR,
    modes: None,
    note: None,
};

const CPU: TreeDescription = TreeDescription {
    unit: "core s",
    layers: ["deployed", "schedulable", "on busy hosts", "allocated", "core busy", "user code"],
    parts: [
        "not schedulable",
        "idle hosts",
        "not allocated",
        "core not observed",
        "core idle",
        "mode not observed",
        "system code",
        "user code",
    ],
    resources: ["core", "mode"],
    dimensions: &[Dimension::Pool, Dimension::Host],
    sources: &[RowTable::Host, RowTable::Gpu],
    kept: BY_CPU_HOST,
    modes: Some(ModeColumn {
        column: "cpu_s",
        busy: &["user", "nice", "system", "interrupt", "softirq"],
        innermost: &["user", "nice"],
    }),
    note: Some(
        "Rows do not tell which cores a run was given, so all cores of a host with a run count as \
         allocated.",
    ),
};

impl ResourceTree {
    /// Returns what makes the tree different from others.
    pub fn description(self) -> &'static TreeDescription {
        match self {
            Self::Gpu => &GPU,
            Self::Cpu => &CPU,
        }
    }
}
