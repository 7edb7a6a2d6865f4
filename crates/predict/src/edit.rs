//! Edits of a program, one per file, which predict the effect of changes to the training code.
//!
//! Edits change programs only. A calibration prices the edited program, and the callers read and
//! write files.

mod close_gap;
mod drop_exchange;
mod fuse;
mod graph;
mod insert;
mod move_table;
mod parallelise;
mod pin_copies;
mod position;
mod remove;
mod reorder;
mod replace;
pub mod resize;
mod scale;
mod scale_host;
mod scale_ranks;
mod select;
pub mod tensors;
mod thread;
mod works;

use serde::{Deserialize, Serialize};

use self::position::EditPosition;
use crate::Error;
use crate::program::Program;

/// The content of a file of edits: `[[edit]]` tables, which are applied in order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edits {
    #[serde(default)]
    pub edit: Vec<Edit>,
}

/// A change of a program. Names select outermost operators or kernels. In a name, `*` matches any
/// text, and `name[2]` selects the third operator of that name on each rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Edit {
    /// Removes operators with all device work that they launch.
    Remove { operators: String },
    /// Removes the host time before operators, which Python, NumPy or reading data took.
    CloseGap { before: String },
    /// Inserts another call of an operator after each call of other operators.
    Insert {
        /// Operator to copy: the first one of this name on each rank.
        operator: String,
        after: String,
    },
    /// Fuses each run of consecutive operators into one operator, such as the lookups of many
    /// tables into one batched lookup.
    Fuse {
        operators: String,
        /// Factor on the sum of the kernel times of the fused operators.
        #[serde(default = "one")]
        factor: f64,
    },
    /// Moves the kernels of operators to a new stream.
    Parallelise {
        operators: String,
        /// The operator whose kernels wait for the moved kernels. Without it, which only execution
        /// traces allow, kernels wait for those that wrote their tensors.
        #[serde(skip_serializing_if = "Option::is_none")]
        join: Option<String>,
    },
    /// Replaces all launches between two operators by the launch of one graph.
    Graph { from: String, to: String },
    /// Pins the host memory of copies to devices, so that the host no longer waits for these
    /// copies.
    PinCopies {},
    /// Multiplies the time of kernels by a factor.
    Scale {
        /// Names of the kernels to scale, rather than of the operators that launch them.
        kernels: String,
        factor: f64,
    },
    /// Multiplies the host time of operators by a factor, that of their runtime calls included.
    /// Kernels keep their times.
    ScaleHost { operators: String, factor: f64 },
    /// Replaces operators by copies of another operator.
    Replace {
        operators: String,
        /// Replacement operator: the first one of this name on each rank is copied.
        with: String,
    },
    /// Moves operators to another place on their thread.
    Reorder {
        operators: String,
        /// Operator after which the moved one runs: the nearest one before it, or else the next one
        /// after it.
        after: String,
    },
    /// Moves operators to a new thread.
    Thread {
        operators: String,
        /// The operator that waits for the moved operators. Without `join`, nothing in this step
        /// waits for the moved operators.
        #[serde(skip_serializing_if = "Option::is_none")]
        join: Option<String>,
    },
    /// Removes one collective from all ranks.
    DropExchange {
        operators: String,
        /// Index of the removed collective among the matching collectives of each rank, counted
        /// from 0.
        #[serde(default)]
        occurrence: usize,
    },
    /// Moves embedding tables from one rank to another.
    MoveTable {
        /// Names of the kernels that look up and update rows, rather than of operators.
        kernels: String,
        /// Rank that holds the tables before the edit.
        from: u32,
        /// Rank that receives the tables.
        to: u32,
        /// Share of the kernel time of rank `from` that moves.
        share: f64,
    },
    /// Changes the batch size of execution traces.
    Resize { from: u32, to: u32 },
    /// Changes the number of ranks while each rank keeps its amount of work (weak scaling).
    ScaleRanks { to: usize },
}

fn one() -> f64 {
    1.0
}

/// Applies edits to a program in order. Without edits, the result equals the program.
///
/// # Errors
/// [`Error::NothingSelected`] for a pattern without a match, with similar names from the program.
/// [`Error::Edit`] for an edit that cannot be applied, with the reason.
pub fn apply(program: &Program, edits: &[Edit]) -> Result<Program, Error> {
    apply_where(program, edits, |_| true)
}

/// Applies the edits that [`tensors::apply`] leaves to the program of edited execution traces.
///
/// # Errors
/// As of [`apply`].
pub fn apply_to_program(program: &Program, edits: &[Edit]) -> Result<Program, Error> {
    apply_where(program, edits, |edit| !edit.changes_tensors())
}

fn apply_where(
    program: &Program,
    edits: &[Edit],
    is_applied: impl Fn(&Edit) -> bool,
) -> Result<Program, Error> {
    let mut edited = program.clone();
    for (at, edit) in edits.iter().enumerate().filter(|(_, edit)| is_applied(edit)) {
        let position = EditPosition { number: at + 1, kind: edit.kind() };
        apply_one(&mut edited, position, edit)?;
    }
    Ok(edited)
}

fn apply_one(program: &mut Program, position: EditPosition, edit: &Edit) -> Result<(), Error> {
    match edit {
        Edit::Remove { operators } => remove::apply(program, position, operators),
        Edit::CloseGap { before } => close_gap::apply(program, position, before),
        Edit::Insert { operator, after } => insert::apply(program, position, operator, after),
        Edit::Fuse { operators, factor } => {
            fuse::apply(program, position, operators, check_factor(position, *factor)?)
        }
        Edit::Parallelise { operators, join: Some(join) } => {
            parallelise::apply(program, position, operators, join)
        }
        Edit::Parallelise { join: None, .. } => {
            Err(position.error("`join`, because a recording does not contain tensors", "none"))
        }
        Edit::Resize { .. } => {
            Err(position.error("execution traces, which contain tensors", "a recording"))
        }
        Edit::Graph { from, to } => graph::apply(program, position, from, to),
        Edit::PinCopies {} => pin_copies::apply(program, position),
        Edit::Scale { kernels, factor } => {
            scale::apply(program, position, kernels, check_factor(position, *factor)?)
        }
        Edit::ScaleHost { operators, factor } => {
            scale_host::apply(program, position, operators, check_factor(position, *factor)?)
        }
        Edit::Replace { operators, with } => replace::apply(program, position, operators, with),
        Edit::Reorder { operators, after } => reorder::apply(program, position, operators, after),
        Edit::Thread { operators, join } => {
            thread::apply(program, position, operators, join.as_deref())
        }
        Edit::DropExchange { operators, occurrence } => {
            drop_exchange::apply(program, position, operators, *occurrence)
        }
        Edit::MoveTable { kernels, from, to, share } => {
            let moved = move_table::Move { kernels, from: *from, to: *to, share: *share };
            move_table::apply(program, position, &moved)
        }
        Edit::ScaleRanks { to } => scale_ranks::apply(program, position, *to),
    }
}

fn check_factor(position: EditPosition, factor: f64) -> Result<f64, Error> {
    let is_usable = factor.is_finite() && (0.0..=1e6).contains(&factor);
    if is_usable { Ok(factor) } else { Err(position.error("a factor from 0 to 1e6", factor)) }
}

impl Edit {
    /// Returns the name of the kind of edit as it is written in files.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Remove { .. } => "remove",
            Self::CloseGap { .. } => "close-gap",
            Self::Insert { .. } => "insert",
            Self::Fuse { .. } => "fuse",
            Self::Parallelise { .. } => "parallelise",
            Self::Graph { .. } => "graph",
            Self::PinCopies {} => "pin-copies",
            Self::Scale { .. } => "scale",
            Self::ScaleHost { .. } => "scale-host",
            Self::Replace { .. } => "replace",
            Self::Reorder { .. } => "reorder",
            Self::Thread { .. } => "thread",
            Self::DropExchange { .. } => "drop-exchange",
            Self::MoveTable { .. } => "move-table",
            Self::Resize { .. } => "resize",
            Self::ScaleRanks { .. } => "scale-ranks",
        }
    }

    /// Returns whether the edit changes the tensors of execution traces before their program is
    /// built.
    fn changes_tensors(&self) -> bool {
        matches!(
            self,
            Self::Remove { .. }
                | Self::Fuse { .. }
                | Self::Replace { .. }
                | Self::Resize { .. }
                | Self::Parallelise { join: None, .. }
        )
    }
}
