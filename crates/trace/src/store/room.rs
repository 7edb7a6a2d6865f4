//! Memory for columns that grow while a text of known size is read.
//!
//! A column that doubles each time it is full is copied as often and holds up to three times its
//! values at the end. Knows nothing of what is stored.

/// Shorter columns grow as they like.
const FEW: usize = 1 << 14;
/// The least share that is believed: from less, too little is known of the rest.
const LEAST: f64 = 1.0 / 256.0;

/// Takes memory for the whole of a column that is nearly full, of which `share` is there.
///
/// Grows by a quarter at least, so that wrong shares cost time in proportion.
pub fn make<T>(column: &mut Vec<T>, share: f64) {
    let spare = column.capacity() - column.len();
    if column.len() < FEW || spare > column.len() / 8 {
        return;
    }
    // What is left may be a little denser than what was read.
    let left = column.len() as f64 * (1.0 / share.max(LEAST) - 1.0) * 1.02;
    column.reserve_exact((left as usize).max(column.len() / 4));
}

#[cfg(test)]
mod tests {
    use super::{FEW, make};

    #[test]
    fn a_full_column_gets_room_for_the_rest_once() {
        let mut column = vec![0u8; FEW];
        column.shrink_to_fit();
        make(&mut column, 0.1);
        let capacity = column.capacity();
        assert!((10 * FEW..11 * FEW).contains(&capacity), "{capacity}");
        for done in 2..=10 {
            column.resize(done * FEW, 0);
            make(&mut column, done as f64 / 10.0);
        }
        assert!(column.capacity() < 13 * FEW);
        let mut short = vec![0u8; 10];
        make(&mut short, 0.5);
        assert!(short.capacity() < 20);
    }

    #[test]
    fn impossible_shares_grow_it_a_little() {
        for share in [0.0, 1.0, 7.0, f64::NAN] {
            let mut column = vec![0u8; FEW];
            column.shrink_to_fit();
            make(&mut column, share);
            assert!(column.capacity() >= FEW + FEW / 4, "{share}");
        }
    }
}
