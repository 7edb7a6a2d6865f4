use half::{bf16, f16};
use schema::random::CounterRng;

use super::{RowNoise, to_bf16, to_f16};

/// Returns values of every range of both formats: normal, subnormal, and close to the largest
/// number, with odd mantissas.
fn values() -> Vec<f32> {
    let rng = CounterRng::new(1, 1);
    let exponent = |i: u64| 2f32.powi(rng.below(2 * i, 42) as i32 - 30);
    let value = |i| (rng.unit(2 * i + 1) as f32 - 0.5) * exponent(i);
    (0..300).map(value).chain([0.0, 1.0, -1.0, 65504.0, 1e-7, 3e-8, 0.1]).collect()
}

/// Checks that the mean over many roundings is within five standard errors of the value, and that
/// every rounding gives one of the two neighbors.
fn check(what: &str, round: impl Fn(f32, u32) -> f32, unit: impl Fn(f32) -> f32) {
    const DRAWS: u64 = 4096;
    for (i, value) in values().into_iter().enumerate() {
        let noise = RowNoise::new(CounterRng::new(7, i as u64), 3, 0);
        let mut sum = 0.0f64;
        for draw in 0..DRAWS {
            let rounded = round(value, noise.at(draw as usize));
            assert!((rounded - value).abs() < unit(value), "{what}: {value} became {rounded}");
            sum += f64::from(rounded) - f64::from(value);
        }
        // The standard deviation of one rounding is at most half a unit.
        let bound = 5.0 * 0.5 * f64::from(unit(value)) / (DRAWS as f64).sqrt();
        assert!((sum / DRAWS as f64).abs() <= bound, "{what}: {value} is off by {sum}/{DRAWS}");
    }
}

#[test]
fn the_mean_of_many_roundings_is_the_value() {
    let f16_unit = |value: f32| 2f32.powi((value.abs().log2().floor() as i32).max(-14) - 10);
    check("f16", |value, noise| to_f16(value, noise).to_f32(), f16_unit);
    let bf16_unit = |value: f32| 2f32.powi((value.abs().log2().floor() as i32).max(-100) - 7);
    check("bf16", |value, noise| to_bf16(value, noise).to_f32(), bf16_unit);
}

#[test]
fn representable_values_are_kept_and_larger_ones_clamped() {
    for noise in [0, 1, 0x8000_0000, u32::MAX] {
        for bits in 0..=u16::MAX {
            let (half, brain) = (f16::from_bits(bits), bf16::from_bits(bits));
            let same = to_f16(half.to_f32(), noise);
            assert!(same == half || (half.is_nan() && same.is_nan()), "{half} became {same}");
            let same = to_bf16(brain.to_f32(), noise);
            assert!(same == brain || (brain.is_nan() && same.is_nan()), "{brain} became {same}");
        }
        for value in [65505.0, 1e9, f32::MAX] {
            assert_eq!(to_f16(value, noise), f16::MAX);
            assert_eq!(to_f16(-value, noise), f16::MIN);
        }
        assert_eq!(to_bf16(f32::MAX, noise), bf16::MAX);
        assert_eq!(to_f16(-0.0, noise).to_bits(), 0x8000);
        assert_eq!(to_f16(f32::NEG_INFINITY, noise), f16::NEG_INFINITY);
    }
}

#[test]
fn the_random_bits_of_rows_and_columns_differ() {
    let table = CounterRng::new(1, 2).child(3);
    let mut seen: Vec<u32> = (0..64)
        .flat_map(|row| (0..64).map(move |column| RowNoise::new(table, row, 0).at(column)))
        .collect();
    seen.sort_unstable();
    seen.dedup();
    assert!(seen.len() > 64 * 64 - 4, "{}", seen.len());
    // A column tile must draw the same bits as the whole row at the same columns.
    assert_eq!(RowNoise::new(table, 5, 8).at(2), RowNoise::new(table, 5, 0).at(10));
    for bit in 0..32 {
        let ones = seen.iter().filter(|&&bits| bits >> bit & 1 == 1).count();
        assert!(ones.abs_diff(2048) < 200, "bit {bit}: {ones} of 4096");
    }
}
