//! Formats numbers as decimal text without the overhead of `fmt`.

const PAIRS: [[u8; 2]; 100] = pairs();
const LONGEST: usize = 20;

const fn pairs() -> [[u8; 2]; 100] {
    let mut pairs = [[0; 2]; 100];
    let mut number = 0;
    while number < 100 {
        pairs[number] = [b'0' + (number / 10) as u8, b'0' + (number % 10) as u8];
        number += 1;
    }
    pairs
}

/// Appends a non-negative number in decimal notation.
pub fn push_unsigned(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; LONGEST];
    let mut first = LONGEST;
    // Formatting two digits at a time needs half as many divisions.
    while number >= 100 {
        first -= 2;
        digits[first..first + 2].copy_from_slice(&PAIRS[(number % 100) as usize]);
        number /= 100;
    }
    let [tens, ones] = PAIRS[number as usize];
    first -= 1;
    digits[first] = ones;
    if number >= 10 {
        first -= 1;
        digits[first] = tens;
    }
    out.extend_from_slice(&digits[first..]);
}

/// Appends a number in decimal notation, with a minus sign if it is negative.
pub fn push_signed(out: &mut Vec<u8>, number: i64) {
    if number < 0 {
        out.push(b'-');
    }
    push_unsigned(out, number.unsigned_abs());
}

/// Appends nanoseconds as microseconds with exactly three decimals.
pub fn push_micros(out: &mut Vec<u8>, nanos: i64) {
    if nanos < 0 {
        out.push(b'-');
    }
    let nanos = nanos.unsigned_abs();
    push_unsigned(out, nanos / 1000);
    let [_, hundreds] = PAIRS[(nanos % 1000 / 100) as usize];
    let [tens, ones] = PAIRS[(nanos % 100) as usize];
    out.extend_from_slice(&[b'.', hundreds, tens, ones]);
}

#[cfg(test)]
mod tests {
    use super::{push_micros, push_signed};

    fn text(push: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        push(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn microseconds_have_exactly_three_decimals_at_any_size() {
        let cases = [
            (0, "0.000"),
            (1, "0.001"),
            (-1, "-0.001"),
            (1_000, "1.000"),
            (1_234_567, "1234.567"),
            (1_694_128_201_421_058_007, "1694128201421058.007"),
            (i64::MAX, "9223372036854775.807"),
            (i64::MIN, "-9223372036854775.808"),
        ];
        for (nanos, expected) in cases {
            assert_eq!(text(|out| push_micros(out, nanos)), expected);
        }
    }

    #[test]
    fn integers_match_the_standard_library() {
        for number in [0, 7, 10, 99, 100, 101, 12_345, -1, -100, i64::MAX, i64::MIN] {
            assert_eq!(text(|out| push_signed(out, number)), number.to_string());
        }
    }
}
