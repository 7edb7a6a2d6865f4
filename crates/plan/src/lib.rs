//! Searches for sharding plans. A plan gives each table a [`Layout`] and the ranks that hold its
//! parts; its price is the predicted step of `predict::step`, and its memory is a hard limit.
//!
//! [`schema::ShardingPlan`] is the form that the trainer reads, and any tiling can be one. This
//! crate only proposes plans whose tables have one of the known layouts, because these can be named
//! and explained. The crate is pure: it uses no file, clock or environment, and equal input gives
//! equal plans.

pub mod allowed;
pub mod at_scale;
pub mod baseline;
pub mod check;
mod error;
pub mod explain;
pub mod launch_plan;
pub mod launched;
mod least_memory;
mod local_search;
pub mod neo;
pub mod placement;
pub mod priced_plan;
pub mod problem;
mod proposal;
pub mod published_steps;
pub mod search;
mod shortage;
pub mod torchrec;
mod watch;

pub use baseline::Baseline;
pub use error::{BindingConstraints, Error, MemoryShortage, name_part};
pub use explain::explain;
pub use placement::{CandidatePlan, Placement};
pub use problem::{PlanProblem, PlanTarget, limits_plans};
pub use schema::layout::{self, Layout, LayoutKind};
pub use schema::plan_constraints::{self as constraints, Constraints, TableConstraints};
pub use search::{PlanMethod, PlanOptions, PlanResult, plan, plan_observed};
pub use watch::{SearchObserver, SearchProgress};
