//! Formats generated rows as lines of text.

use std::io::Write as _;

use schema::random;

use super::config::{RowLayout, SyntheticConfig, SyntheticFeature};
use super::draw::DrawnBlock;

/// Returns the header line, which is empty in Criteo's layout.
pub(super) fn header(config: &SyntheticConfig) -> Vec<u8> {
    if config.layout == RowLayout::Criteo {
        return Vec::new();
    }
    let mut names = vec!["label".to_owned()];
    names.extend((1..=config.dense).map(|column| format!("I{column}")));
    names.extend(config.features.iter().map(|feature| feature.name.clone()));
    let mut line = names.join(",").into_bytes();
    line.push(b'\n');
    line
}

/// Estimates the bytes of a line with `ids` ids. Most numbers have few digits.
pub(super) fn row_bytes(config: &SyntheticConfig, ids: f64) -> f64 {
    2.0 + config.dense as f64 * 5.0 + ids * 7.0
}

/// Formats the lines of a block.
pub(super) fn lines(config: &SyntheticConfig, block: &DrawnBlock) -> Vec<u8> {
    let separator = if config.layout == RowLayout::Criteo { b'\t' } else { b',' };
    let features = config.features.len();
    // Each feature has its own key, so that equal ranks become different categories.
    let keys: Vec<u32> =
        (0..features).map(|feature| random::mix(feature as u64 + 1) as u32).collect();
    let mut out = Vec::with_capacity(block.rows() * (2 + config.dense * 5 + features * 9));
    for (row, &label) in block.labels.iter().enumerate() {
        out.push(if label { b'1' } else { b'0' });
        for count in &block.dense[row * config.dense..][..config.dense] {
            out.push(separator);
            if let Some(count) = count {
                write_integer(&mut out, *count);
            }
        }
        for (index, feature) in config.features.iter().enumerate() {
            out.push(separator);
            let ids = block.bag(row * features + index);
            match config.layout {
                RowLayout::Criteo => {
                    for &rank in ids {
                        write_hexadecimal(&mut out, scramble(rank as u32, keys[index]));
                    }
                }
                RowLayout::Csv => write_bag(&mut out, feature, ids),
            }
        }
        out.push(b'\n');
    }
    out
}

fn write_bag(out: &mut Vec<u8>, feature: &SyntheticFeature, ranks: &[u64]) {
    for (position, &rank) in ranks.iter().enumerate() {
        if position > 0 {
            out.push(b'|');
        }
        write_integer(out, scatter(rank, feature.cardinality) as i64);
    }
}

/// Maps a rank to an id by a bijection of `0..cardinality`, so that frequent ids are not neighbors.
fn scatter(rank: u64, cardinality: u64) -> u64 {
    // The prime and the cardinality are coprime unless one divides the other.
    const PRIME: u64 = 2_654_435_761;
    if cardinality.is_multiple_of(PRIME) {
        return rank;
    }
    ((u128::from(rank) * u128::from(PRIME) + 12_345) % u128::from(cardinality)) as u64
}

/// Maps a rank to a category by a bijection of 32-bit numbers (the finalizer of MurmurHash3 with a
/// key), so that categories do not collide.
fn scramble(rank: u32, key: u32) -> u32 {
    let mut x = rank ^ key;
    x = (x ^ (x >> 16)).wrapping_mul(0x85eb_ca6b);
    x = (x ^ (x >> 13)).wrapping_mul(0xc2b2_ae35);
    x ^ (x >> 16)
}

fn write_hexadecimal(out: &mut Vec<u8>, value: u32) {
    for shift in (0..8).rev() {
        out.push(b"0123456789abcdef"[(value >> (4 * shift)) as usize & 15]);
    }
}

fn write_integer(out: &mut Vec<u8>, value: i64) {
    // Writing to a vector cannot fail.
    let _ = write!(out, "{value}");
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn scrambled_ids_do_not_collide() {
        let scrambled: BTreeSet<u32> = (0..50_000).map(|rank| scramble(rank, 77)).collect();
        assert_eq!(scrambled.len(), 50_000);
        for cardinality in [1, 2, 7, 1000, 2_654_435_761] {
            let some = cardinality.min(1000);
            let scattered: BTreeSet<u64> =
                (0..some).map(|rank| scatter(rank, cardinality)).collect();
            assert_eq!(scattered.len() as u64, some);
            assert!(scattered.iter().all(|&row| row < cardinality));
        }
    }

    #[test]
    fn hexadecimal_numbers_have_eight_digits() {
        let mut out = Vec::new();
        write_hexadecimal(&mut out, 0x00ab_cdef);
        assert_eq!(out, b"00abcdef");
    }
}
