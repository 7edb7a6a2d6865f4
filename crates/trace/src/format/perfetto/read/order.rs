//! Restores the row order and the text ids of the source trace, because the file is written track
//! by track.

use super::wire::{self, Broken};
use crate::format::perfetto::wire::unzigzag;
use crate::store::{StringId, Strings, Trace};

/// Unpacks the row numbers, which are in the order in which slices were written.
pub fn unpacked(packed: &[u8]) -> Result<Vec<u32>, Broken> {
    let (mut rows, mut row, mut at) = (Vec::with_capacity(packed.len() / 2), 0_i64, 0);
    while at < packed.len() {
        let (step, end) = wire::varint(packed, at)?;
        row = row.wrapping_add(unzigzag(step));
        let place = u32::try_from(row).map_err(|_| Broken::new(format!("row {row}")))?;
        rows.push(place);
        at = end;
    }
    Ok(rows)
}

/// Inverts a permutation: returns for each row the index at which it was written. Returns `None` if
/// `rows` is not a permutation of `0..count`.
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

/// Numbers the texts by their first use, row by row, as if the trace had been read from its source
/// file. The order matters, because analyses that cannot distinguish two names choose the first
/// one.
pub fn renumber_texts(trace: &mut Trace) {
    let old = std::mem::take(&mut trace.strings);
    let mut strings = Strings::new();
    let mut new_ids: Vec<Option<StringId>> = vec![None; old.len()];
    let mut renew = |id: &mut StringId| {
        let new = &mut new_ids[id.0 as usize];
        *id = *new.get_or_insert_with(|| strings.intern(old.get(*id)));
    };
    let mut stacks = trace.slices.call_stack.iter_mut().peekable();
    let mut collectives = trace.slices.collective.iter_mut().peekable();
    for (row, name) in (0..).zip(&mut trace.slices.name) {
        renew(name);
        if let Some((_, stack)) = stacks.next_if(|(other, _)| *other == row) {
            renew(stack);
        }
        if let Some((_, collective)) = collectives.next_if(|(other, _)| *other == row) {
            renew(&mut collective.name);
            renew(&mut collective.dtype);
            renew(&mut collective.splits_in);
            renew(&mut collective.splits_out);
            renew(&mut collective.group);
            renew(&mut collective.group_description);
            renew(&mut collective.group_ranks);
        }
    }
    for counter in &mut trace.counters {
        renew(&mut counter.name);
        renew(&mut counter.series);
    }
    trace.instants.iter_mut().for_each(|instant| renew(&mut instant.name));
    trace.strings = strings;
}

#[cfg(test)]
mod tests {
    use super::places;

    #[test]
    fn row_order_must_be_a_permutation() {
        assert_eq!(places(&[2, 0, 1], 3), Some(vec![1, 2, 0]));
        for wrong in [&[0, 1][..], &[0, 0, 1], &[0, 1, 3]] {
            assert_eq!(places(wrong, 3), None, "{wrong:?}");
        }
    }
}
