//! Changes the number of ranks while each rank keeps its amount of work.

use super::position::EditPosition;
use crate::Error;
use crate::program::Program;

/// Maximum number of ranks, which bounds the size of the edited program.
const RANKS_MAX: usize = 4096;

/// Changes the number of ranks, where each rank does the work of a recorded one (weak scaling).
/// Rank `r` repeats the recorded rank `r mod n`, where `n` is the number of recorded ranks.
///
/// A ring of `n` ranks moves `(n − 1) / n` of a message over each link. An all-to-all whose message
/// is divided among `n` ranks does too. The bytes of collectives change accordingly.
pub(super) fn apply(program: &mut Program, position: EditPosition, to: usize) -> Result<(), Error> {
    let from = program.ranks.len();
    if !(1..=RANKS_MAX).contains(&to) {
        return Err(position.error(&format!("1 to {RANKS_MAX} ranks"), to));
    }
    if let Some((at, _)) =
        program.ranks.iter().enumerate().find(|(at, one)| one.rank as usize != *at)
    {
        let got = format!("rank {} in place {at}", program.ranks[at].rank);
        return Err(position.error("a recording of all ranks of a job", got));
    }
    let repeated = |at: usize| {
        let mut rank = program.ranks[at % from].clone();
        rank.rank = at as u32;
        rank.copy_of = Some(rank.copy_of.unwrap_or(at % from));
        rank
    };
    let ranks = (0..to).map(repeated).collect();
    program.ranks = ranks;
    let moved = |ranks: usize| (ranks.max(1) - 1) as f64 / ranks.max(1) as f64;
    for one in &mut program.collectives {
        let before = one.parts.len();
        let all = (0..to).flat_map(|at| {
            let of_rank = one.parts.iter().filter(move |(rank, _)| *rank == at % from);
            of_rank.map(move |(_, work)| (at, *work))
        });
        let parts: Vec<_> = all.collect();
        // A collective of one rank moves nothing, so its bytes give no ratio.
        if moved(before) > 0.0 {
            one.bytes = (one.bytes as f64 * moved(parts.len()) / moved(before)).round() as u64;
        }
        one.parts = parts;
    }
    let missed: Vec<bool> = program.collectives.iter().map(|one| one.parts.is_empty()).collect();
    if missed.contains(&true) {
        return Err(position.error("ranks that all collectives have in common", to));
    }
    Ok(())
}
