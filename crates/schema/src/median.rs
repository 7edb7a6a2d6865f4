//! The median, with one definition for the whole workspace.

/// Sorts the values and returns the middle one, or the mean of the two middle ones. Returns `None`
/// if there are no values.
///
/// # Cost
/// Sorting takes `O(n log n)` time.
#[must_use]
pub fn float_median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let low = values.get(values.len().checked_sub(1)? / 2)?;
    Some(f64::midpoint(*low, values[values.len() / 2]))
}

/// Sorts the values and returns the middle one, or the mean of the two middle ones rounded down.
/// Returns `None` if there are no values.
///
/// # Cost
/// Sorting takes `O(n log n)` time.
#[must_use]
pub fn integer_median(values: &mut [i64]) -> Option<i64> {
    values.sort_unstable();
    let low = *values.get(values.len().checked_sub(1)? / 2)?;
    let high = values[values.len() / 2];
    // The sum of two i64 values may overflow, so it is computed in i128.
    Some((i128::from(low) + i128::from(high)).div_euclid(2) as i64)
}

#[cfg(test)]
mod tests {
    use super::{float_median, integer_median};

    #[test]
    fn median_of_two_values_is_their_mean() {
        assert_eq!(integer_median(&mut [30, 10]), Some(20));
        assert_eq!(integer_median(&mut [-4, -1]), Some(-3));
        assert_eq!(integer_median(&mut [-4, -1, 3, 2]), Some(0));
        assert_eq!(integer_median(&mut [i64::MAX, i64::MAX]), Some(i64::MAX));
        assert_eq!(float_median(&mut [4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(float_median(&mut [3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!((integer_median(&mut []), float_median(&mut [])), (None, None));
    }
}
