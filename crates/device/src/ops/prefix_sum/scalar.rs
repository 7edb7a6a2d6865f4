//! The oracle of the exclusive sums, which adds the values one after the other.

/// Returns `out[i] = Σ_{j<i} values[j]` and the total sum.
#[must_use]
pub fn exclusive(values: &[u32]) -> (Vec<u64>, u64) {
    let mut sum = 0;
    let out = values.iter().map(|&value| {
        let before = sum;
        sum += u64::from(value);
        before
    });
    (out.collect(), sum)
}
