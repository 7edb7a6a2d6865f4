use super::{RankClock, skew};

/// Returns the ends of collectives that are a millisecond apart. Each rank's ends have the rank's
/// offset and a jitter below 3 µs.
fn ends(offsets: &[i64], collectives: i64) -> Vec<Vec<Option<i64>>> {
    let end = |collective: i64, (rank, offset): (i64, &i64)| {
        let jitter = (collective * 7919 + rank * 104_729) % 3_000;
        Some(1_700_000_000_000_000_000 + collective * 1_000_000 + offset + jitter)
    };
    let collective_ends =
        |collective| (0..).zip(offsets).map(|rank| end(collective, rank)).collect();
    (0..collectives).map(collective_ends).collect()
}

fn corrections(clocks: &[RankClock]) -> Vec<i64> {
    clocks.iter().map(|clock| clock.correction_ns).collect()
}

#[test]
fn an_offset_above_the_jitter_is_corrected() {
    let offsets = [0, 0, 250_000, 0, -80_000];
    let clocks = skew(&ends(&offsets, 40), &[0, 1, 2, 3, 4]);
    for (clock, offset) in clocks.iter().zip(offsets) {
        assert!((clock.ahead_ns - offset).abs() < 3_000, "{clock:?}");
        // The jitter of the rank and the jitter of the median are each below 3 µs.
        assert!(clock.spread_ns < 6_000, "{clock:?}");
    }
    let corrected: Vec<_> = clocks.iter().map(|clock| clock.correction_ns != 0).collect();
    assert_eq!(corrected, [false, false, true, false, true]);
}

#[test]
fn jitter_is_not_corrected() {
    assert_eq!(corrections(&skew(&ends(&[0; 8], 8), &[0, 1, 2, 3, 4, 5, 6, 7])), [0; 8]);
}

#[test]
fn one_late_end_moves_nothing() {
    let mut ends = ends(&[0; 3], 21);
    ends[4][1] = ends[4][1].map(|end| end + 50_000_000);
    assert_eq!(corrections(&skew(&ends, &[0, 1, 2])), [0; 3]);
}

#[test]
fn two_collectives_are_too_few() {
    let clocks = skew(&ends(&[0, 0, 1_000_000], 2), &[0, 1, 2]);
    assert!(clocks[2].ahead_ns > 900_000);
    assert_eq!(corrections(&clocks), [0; 3]);
}

#[test]
fn ranks_without_collectives_are_at_zero() {
    let none = RankClock { rank: 9, collectives: 0, ahead_ns: 0, spread_ns: 0, correction_ns: 0 };
    let alone = [vec![Some(5), None], vec![None, Some(7)], vec![]];
    for clock in [skew(&[], &[9]), skew(&alone, &[9, 9])].concat() {
        assert_eq!(clock, none);
    }
}

#[test]
fn two_ranks_meet_in_the_middle() {
    let ends = vec![vec![Some(1_000_000), Some(1_000_400)]; 5];
    assert_eq!(corrections(&skew(&ends, &[0, 1])), [-200, 200]);
}
