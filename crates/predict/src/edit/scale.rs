//! Scales the time of device work by a factor.

use schema::pattern;

use super::position::EditPosition;
use super::select::nothing_selected;
use crate::Error;
use crate::program::Program;

/// Multiplies the time of matching kernels, copies and memory sets by a factor.
pub(super) fn apply(
    program: &mut Program,
    position: EditPosition,
    kernels: &str,
    factor: f64,
) -> Result<(), Error> {
    let names = program.names.clone();
    let mut works: Vec<_> = program.ranks.iter_mut().flat_map(|rank| &mut rank.works).collect();
    works.retain(|work| work.is_launched);
    let mut is_any = false;
    for work in works.iter_mut().filter(|work| pattern::matches(kernels, names.get(work.name))) {
        work.scale *= factor;
        is_any = true;
    }
    if is_any {
        return Ok(());
    }
    let known = works.iter().map(|work| names.get(work.name).to_owned());
    Err(nothing_selected(position, "kernels", kernels, known.collect()))
}
