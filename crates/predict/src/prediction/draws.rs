//! How many random draws an interval comes from.

/// Number and seed of the random draws that an interval is computed from.
#[derive(Clone, Copy, Debug)]
pub struct Draws {
    pub count: u32,
    pub seed: u64,
}
