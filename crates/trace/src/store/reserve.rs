//! Reserves memory for columns while a text of known size is read.
//!
//! A vector that doubles whenever it is full is copied several times. Such a vector finally
//! occupies memory for up to three times its values.

/// Columns with fewer values than this are left to grow by themselves.
const FEW: usize = 1 << 14;
/// Smallest share from which the final length is extrapolated. A smaller share is too uncertain, so
/// it is replaced by this one.
const LEAST: f64 = 1.0 / 256.0;

/// Reserves memory for all values of a column that is nearly full. The column holds `share` of its
/// final number of values.
///
/// The column grows by at least a quarter, so that wrong shares still cost linear time.
pub fn extrapolate<T>(column: &mut Vec<T>, share: f64) {
    let spare = column.capacity() - column.len();
    if column.len() < FEW || spare > column.len() / 8 {
        return;
    }
    // Events in the rest of the text may be slightly denser than in the part that was read, so 2 %
    // more memory is reserved.
    let left = column.len() as f64 * (1.0 / share.max(LEAST) - 1.0) * 1.02;
    column.reserve_exact((left as usize).max(column.len() / 4));
}

#[cfg(test)]
mod tests {
    use super::{FEW, extrapolate};

    #[test]
    fn full_column_is_reserved_for_the_rest_at_once() {
        let mut column = vec![0u8; FEW];
        column.shrink_to_fit();
        extrapolate(&mut column, 0.1);
        let capacity = column.capacity();
        assert!((10 * FEW..11 * FEW).contains(&capacity), "{capacity}");
        for done in 2..=10 {
            column.resize(done * FEW, 0);
            extrapolate(&mut column, done as f64 / 10.0);
        }
        assert!(column.capacity() < 13 * FEW);
        let mut short = vec![0u8; 10];
        extrapolate(&mut short, 0.5);
        assert!(short.capacity() < 20);
    }

    #[test]
    fn impossible_shares_grow_the_column_by_a_quarter() {
        for share in [0.0, 1.0, 7.0, f64::NAN] {
            let mut column = vec![0u8; FEW];
            column.shrink_to_fit();
            extrapolate(&mut column, share);
            assert!(column.capacity() >= FEW + FEW / 4, "{share}");
        }
    }
}
