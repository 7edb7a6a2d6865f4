use super::*;

#[test]
fn quantiles_but_the_median_are_values_that_occur() {
    let mut values: Vec<i64> = (1..=20).rev().collect();
    let spread = describe_values(&mut values);
    assert_eq!((spread.p5, spread.p25, spread.p50, spread.p75, spread.p95), (1, 5, 10, 15, 19));
    assert_eq!(describe_values(&mut [30, 10]).p50, 20, "the mean of two values");
    assert_eq!((spread.min, spread.max, spread.count, spread.total), (1, 20, 20, 210));
    assert_eq!((spread.mean, spread.std), (10.5, 5.916));
}

#[test]
fn one_value_has_no_deviation_and_an_empty_set_is_zero() {
    let one = describe_values(&mut [7]);
    assert_eq!((one.p5, one.p50, one.p95, one.std), (7, 7, 7, 0.0));
    assert_eq!(describe_values(&mut []), Distribution::default());
}

#[test]
fn bins_are_powers_of_two() {
    let bins = histogram([0, 1, 2, 3, 4, 1023, 1024, i64::MAX / 2 + 1]);
    let plain: Vec<_> = bins.iter().map(|bin| (bin.low, bin.high, bin.count, bin.total)).collect();
    let expected = [
        (0, 1, 1, 0),
        (1, 2, 1, 1),
        (2, 4, 2, 5),
        (4, 8, 1, 4),
        (512, 1024, 1, 1023),
        (1024, 2048, 1, 1024),
        (1 << 62, i64::MAX, 1, 1 << 62),
    ];
    assert_eq!(plain, expected);
}

#[test]
fn sums_stop_at_the_greatest_integer() {
    assert_eq!(describe_values(&mut [i64::MAX, i64::MAX]).total, i64::MAX);
    assert_eq!(histogram([i64::MAX, i64::MAX])[0].total, i64::MAX);
}
