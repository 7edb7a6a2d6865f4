//! Edits of a program, one per file, as if the training code were changed.
//!
//! Edits change programs only; a calibration prices the result. Knows no file.

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
mod scale_ranks;
mod select;
mod thread;
mod works;

use serde::{Deserialize, Serialize};

use self::position::EditPosition;
use crate::Error;
use crate::program::Program;

/// What a file of edits holds: `[[edit]]` tables, made in their order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edits {
    #[serde(default)]
    pub edit: Vec<Edit>,
}

/// A change of a program. Names are those of outermost operators, or of kernels; `*` matches any
/// text, and `name[2]` the third operator of a name on each rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Edit {
    /// Operators that are no longer called, with all they launch.
    Remove { operators: String },
    /// Time between operators that goes: what Python, NumPy or a read took there.
    CloseGap { before: String },
    /// An operator that is called once more after others.
    Insert {
        /// Which: the first of the name on each rank is copied.
        operator: String,
        after: String,
    },
    /// Runs of operators that become one: bags of many tables, one batched lookup.
    Fuse {
        operators: String,
        /// Factor of the sum of their kernels.
        #[serde(default = "one")]
        factor: f64,
    },
    /// Operators whose kernels run on a stream of their own.
    Parallelise {
        operators: String,
        /// The operator whose kernels wait for them again.
        join: String,
    },
    /// A region of operators whose launches become one of a graph.
    Graph { from: String, to: String },
    /// Copies to devices from pinned memory: the host no longer waits for them.
    PinCopies {},
    /// Kernels that take longer or shorter.
    Scale {
        /// Which, by their own name.
        kernels: String,
        /// Factor of their time.
        factor: f64,
    },
    /// Operators that become another one.
    Replace {
        operators: String,
        /// The replacement: the first of the name on each rank is copied.
        with: String,
    },
    /// Operators that are called elsewhere on their thread.
    Reorder {
        operators: String,
        /// After which: the nearest before, else the next.
        after: String,
    },
    /// Operators that a thread of their own calls.
    Thread {
        operators: String,
        /// The operator that waits for them; none does in this step where it is left out.
        #[serde(skip_serializing_if = "Option::is_none")]
        join: Option<String>,
    },
    /// A collective that no rank calls any more.
    DropExchange {
        operators: String,
        /// The how-manieth of them on each rank, from 0 on.
        #[serde(default)]
        occurrence: usize,
    },
    /// Embedding tables that another rank looks up.
    MoveTable {
        /// The kernels that look up and update, by their own names.
        kernels: String,
        /// The rank that has them.
        from: u32,
        /// The rank that gets them.
        to: u32,
        /// Their share of the first rank's kernels.
        share: f64,
    },
    /// More ranks, or fewer, of the same work each.
    ScaleRanks { to: usize },
}

fn one() -> f64 {
    1.0
}

/// A program with edits made, in order. No edits give the same program.
///
/// # Errors
/// [`Error::NothingSelected`] names what is like a pattern that fits nothing; [`Error::Edit`] says
/// why an edit cannot be made.
pub fn apply(program: &Program, edits: &[Edit]) -> Result<Program, Error> {
    let mut edited = program.clone();
    for (at, edit) in edits.iter().enumerate() {
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
        Edit::Parallelise { operators, join } => {
            parallelise::apply(program, position, operators, join)
        }
        Edit::Graph { from, to } => graph::apply(program, position, from, to),
        Edit::PinCopies {} => pin_copies::apply(program, position),
        Edit::Scale { kernels, factor } => {
            scale::apply(program, position, kernels, check_factor(position, *factor)?)
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
    /// As it is written.
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
            Self::Replace { .. } => "replace",
            Self::Reorder { .. } => "reorder",
            Self::Thread { .. } => "thread",
            Self::DropExchange { .. } => "drop-exchange",
            Self::MoveTable { .. } => "move-table",
            Self::ScaleRanks { .. } => "scale-ranks",
        }
    }
}
