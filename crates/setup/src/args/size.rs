//! Parses sizes of memory that are given on the command line.

/// Parses a number of bytes, with K for 1,024 and M for 1,048,576. The number must be a multiple of
/// 4, because the memory is filled with 4-byte numbers.
pub fn size(text: &str) -> Result<usize, String> {
    let (digits, factor) = match text.strip_suffix(['K', 'k']) {
        Some(digits) => (digits, 1 << 10),
        None => match text.strip_suffix(['M', 'm']) {
            Some(digits) => (digits, 1 << 20),
            None => (text, 1),
        },
    };
    let bytes = digits.parse::<usize>().ok().and_then(|number| number.checked_mul(factor));
    let most = 1 << 34;
    bytes.filter(|bytes| (4..=most).contains(bytes) && bytes % 4 == 0).ok_or_else(|| {
        format!("expected a multiple of 4 from 4 to {most}, such as 8, 64K or 16M, got {text:?}")
    })
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_have_units_and_bounds() {
        assert_eq!(size("8"), Ok(8));
        assert_eq!(size("64K"), Ok(65_536));
        assert_eq!(size("16m"), Ok(16 << 20));
        for wrong in ["", "K", "2", "10", "-4", "1G", "99999999M"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
