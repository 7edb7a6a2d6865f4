//! The rows of a file written track by track, back in the order of the trace.

use super::wire::{self, Broken};
use crate::format::perfetto::wire::unfolded;

/// The rows in the order in which they were written, unpacked.
pub fn unpacked(packed: &[u8]) -> Result<Vec<u32>, Broken> {
    let (mut rows, mut row, mut at) = (Vec::with_capacity(packed.len() / 2), 0_i64, 0);
    while at < packed.len() {
        let (step, end) = wire::varint(packed, at)?;
        row = row.wrapping_add(unfolded(step));
        let known = u32::try_from(row).map_err(|_| Broken::new(format!("row {row}")))?;
        rows.push(known);
        at = end;
    }
    Ok(rows)
}

/// Where each row was written, if the rows are all of `0..count`, each once.
pub fn places(rows: &[u32], count: usize) -> Option<Vec<u32>> {
    if rows.len() != count {
        return None;
    }
    let mut places = vec![u32::MAX; count];
    for (place, row) in rows.iter().enumerate() {
        let own = places.get_mut(*row as usize)?;
        if *own != u32::MAX {
            return None;
        }
        *own = place as u32;
    }
    Some(places)
}

#[cfg(test)]
mod tests {
    use super::places;

    #[test]
    fn only_a_permutation_is_an_order() {
        assert_eq!(places(&[2, 0, 1], 3), Some(vec![1, 2, 0]));
        for wrong in [&[0, 1][..], &[0, 0, 1], &[0, 1, 3]] {
            assert_eq!(places(wrong, 3), None, "{wrong:?}");
        }
    }
}
