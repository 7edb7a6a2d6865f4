//! Parses decimal numbers exactly: microseconds with decimals become integer nanoseconds.
//!
//! A value with more than three decimals is rounded to the nearest nanosecond, with halves away
//! from zero. The calculation uses integers, so no digit is lost.

/// Parses the digits at `at`. Returns their value, their count (at most 19), and the position after
/// them.
///
/// If there are more than 19 digits, the position is that of the 20th digit.
#[inline(always)]
pub fn digits(text: &[u8], at: usize) -> (u64, u32, usize) {
    // Most numbers have up to eight digits, and nearly all have up to sixteen.
    let Some((first, found)) = some(text, at) else { return one_by_one(text, at) };
    if found == 0 {
        return (0, 0, at);
    }
    if found < 8 {
        return (first, found, at + found as usize);
    }
    let Some((second, more)) = some(text, at + 8) else { return one_by_one(text, at) };
    if more == 0 {
        return (first, 8, at + 8);
    }
    let value = first * POWERS[more as usize] + second;
    if more < 8 {
        return (value, 8 + more, at + 8 + more as usize);
    }
    match text.get(at + 16) {
        Some(b'0'..=b'9') => one_by_one(text, at),
        _ => (value, 16, at + 16),
    }
}

/// Returns value and count of the digits at the start of the next eight bytes. If the count is 0,
/// the value is meaningless. Returns `None` within eight bytes of the end of the text.
#[inline(always)]
fn some(text: &[u8], at: usize) -> Option<(u64, u32)> {
    let bytes = text.get(at..)?.first_chunk::<8>()?;
    let offsets = u64::from_le_bytes(*bytes) ^ 0x3030_3030_3030_3030;
    // A byte above 9 sets its own top bit, and carries reach only later bytes.
    let other = (offsets.wrapping_add(0x7676_7676_7676_7676) | offsets) & 0x8080_8080_8080_8080;
    let digit_count = other.trailing_zeros() / 8;
    Some((eight(offsets.wrapping_shl(64 - 8 * digit_count)), digit_count))
}

fn one_by_one(text: &[u8], mut at: usize) -> (u64, u32, usize) {
    let (mut value, mut count) = (0u64, 0u32);
    while let Some(byte @ b'0'..=b'9') = text.get(at)
        && count < 19
    {
        value = value * 10 + u64::from(byte - b'0');
        (count, at) = (count + 1, at + 1);
    }
    (value, count, at)
}

const POWERS: [u64; 9] = [1, 10, 100, 1000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];

/// Computes the value of eight digits, of which the most significant is in the lowest byte.
#[inline(always)]
fn eight(offsets: u64) -> u64 {
    const PAIRS: u64 = 0x0000_00ff_0000_00ff;
    // Neighboring digits are joined to pairs first. Each multiplication then joins two pairs, so
    // eight digits take three multiplications instead of eight.
    let two = offsets.wrapping_mul(10).wrapping_add(offsets >> 8);
    let low = (two & PAIRS).wrapping_mul(0x000f_4240_0000_0064);
    let high = ((two >> 16) & PAIRS).wrapping_mul(0x0000_2710_0000_0001);
    low.wrapping_add(high) >> 32
}

/// Parses microseconds with up to eight decimals and without exponent. Returns the nanoseconds and
/// the position after the number, or `None` for other notations and near the end of the text.
#[inline(always)]
pub fn short_nanos(text: &[u8], start: usize) -> Option<(i64, usize)> {
    let negative = *text.get(start)? == b'-';
    let (whole, count, mut at) = digits(text, start + usize::from(negative));
    if count == 0 {
        return None;
    }
    let whole = i64::try_from(whole).ok()?.checked_mul(1000)?;
    let mut nanos = whole;
    if *text.get(at)? == b'.' {
        let (part, count, end) = digits(text, at + 1);
        let part = match count {
            3 => part,
            1 => part * 100,
            2 => part * 10,
            4..=8 => {
                let unit = POWERS[count as usize - 3];
                (part + unit / 2) / unit
            }
            _ => return None,
        };
        nanos = whole.checked_add(part as i64)?;
        at = end;
    }
    let ends = matches!(text.get(at)?, b',' | b'}' | b']' | b'\n' | b' ' | b'\r' | b'\t');
    ends.then_some((if negative { -nanos } else { nanos }, at))
}

/// Parses any decimal number of microseconds into nanoseconds. Returns `None` if the token is not a
/// number or its value does not fit.
pub fn nanos(token: &str) -> Option<i64> {
    let token = token.trim();
    let (negative, magnitude) = match token.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, token.strip_prefix('+').unwrap_or(token)),
    };
    let (mantissa, exponent) = match magnitude.find(['e', 'E']) {
        Some(at) => (&magnitude[..at], magnitude[at + 1..].parse::<i32>().ok()?),
        None => (magnitude, 0),
    };
    let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all: Vec<u8> = whole.bytes().chain(part.bytes()).collect();
    if all.is_empty() || !all.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let leading = all.iter().take_while(|digit| **digit == b'0').count();
    let significant = &all[leading..];
    // The value is 0.significant · 10^place nanoseconds.
    let place = i64::from(exponent) + 3 + whole.len() as i64 - leading as i64;
    if significant.is_empty() || place < 0 {
        return Some(0);
    }
    let place = usize::try_from(place).ok().filter(|place| *place <= 19)?;
    let digit = |at: usize| i128::from(significant.get(at).map_or(0, |digit| digit - b'0'));
    let kept = (0..place).fold(0i128, |value, at| value * 10 + digit(at));
    let rounded = kept + i128::from(digit(place) >= 5);
    i64::try_from(if negative { -rounded } else { rounded }).ok()
}

/// Parses a float of at most 15 digits without an exponent. Returns the correctly rounded float and
/// the position after it, or `None` for other notations.
pub fn short_float(text: &[u8], at: usize) -> Option<(f64, usize)> {
    let (whole, count, end) = digits(text, at);
    let (part, places, end) = match text.get(end)? {
        b'.' => digits(text, end + 1),
        _ => (0, 0, end),
    };
    let scale = *TENS.get(places as usize).filter(|_| count > 0 && count + places <= 15)?;
    // Numerator and denominator are below 2^53, so only the division rounds.
    Some(((whole * scale + part) as f64 / scale as f64, end))
}

const TENS: [u64; 15] = {
    let mut tens = [1; 15];
    let mut place = 1;
    while place < tens.len() {
        tens[place] = 10 * tens[place - 1];
        place += 1;
    }
    tens
};

/// Parses three integers in brackets, which is the notation of grids and blocks. Returns the
/// integers and the position after them, or `None` for other notations.
pub fn short_triple(text: &[u8], at: usize) -> Option<([u32; 3], usize)> {
    let mut at = at;
    let mut triple = [0; 3];
    for (value, before) in triple.iter_mut().zip([&b"["[..], b", ", b", "]) {
        let behind = at + before.len();
        let (number, count, end) = digits(text, behind);
        if text.get(at..behind) != Some(before) || count == 0 {
            return None;
        }
        *value = u32::try_from(number).ok()?;
        at = end;
    }
    (text.get(at) == Some(&b']')).then_some((triple, at + 1))
}

/// Parses a float in any accepted notation. Words such as `inf` become NaN. Returns `None` if the
/// token is not a number.
pub fn float(token: &str) -> Option<f64> {
    let value: f64 = token.trim().parse().ok()?;
    Some(if value.is_finite() { value } else { f64::NAN })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert_eq, proptest};

    use super::{digits, float, nanos, short_float, short_nanos, short_triple};

    #[test]
    fn decimals_become_nanoseconds_without_loss() {
        for (text, expected) in [
            ("1682725898236567", Some(1_682_725_898_236_567_000)),
            ("1711964646000000.123", Some(1_711_964_646_000_000_123)),
            ("4458676522690.655", Some(4_458_676_522_690_655)),
            ("68.0", Some(68_000)),
            ("0.5", Some(500)),
            ("0.0004", Some(0)),
            ("0.0005", Some(1)),
            ("-0.0005", Some(-1)),
            ("1.99949999", Some(1999)),
            ("1.9995", Some(2000)),
            ("-3.25", Some(-3250)),
            ("1.5e3", Some(1_500_000)),
            ("1.6E+15", Some(1_600_000_000_000_000_000)),
            ("12345e-6", Some(12)),
            ("1e-40", Some(0)),
            ("9223372036854775.807", Some(i64::MAX)),
            ("9223372036854775.808", None),
            ("-9223372036854775.808", Some(i64::MIN)),
            ("1e30", None),
            ("", None),
            ("abc", None),
            ("1.2.3", None),
            ("0x10", None),
            ("NaN", None),
        ] {
            assert_eq!(nanos(text), expected, "{text}");
            let padded = format!("{text},          ");
            if let Some((short, end)) = short_nanos(padded.as_bytes(), 0) {
                assert_eq!((Some(short), end), (expected, text.len()), "{text}");
            }
        }
    }

    #[test]
    fn triples_are_read_as_they_are_written() {
        let short = |text: &str| short_triple(text.as_bytes(), 0);
        assert_eq!(short("[512, 1, 4294967295],"), Some(([512, 1, u32::MAX], 20)));
        let others =
            ["[1, 2]", "[1, 2, 3, 4]", "[1,2,3]", "[1, 2, 4294967296]", "[1, , 3]", "[1, 2, 3"];
        for other in others {
            assert_eq!(short(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn short_floats_match_the_standard_parser(
            whole in 0u64..1_000_000_000_000, part in 0u64..1_000_000_000, places in 0usize..10,
        ) {
            let part = &format!("{part:09}")[..places];
            let text = if places == 0 { format!("{whole}") } else { format!("{whole}.{part}") };
            let padded = format!("{text}}}\n               ");
            let short = short_float(padded.as_bytes(), 0);
            prop_assert_eq!(short.is_some(), text.len() - usize::from(places > 0) <= 15);
            if let Some((value, end)) = short {
                prop_assert_eq!((Some(value), end), (float(&text), text.len()));
            }
        }

        #[test]
        fn fast_and_general_parsers_agree(
            whole in proptest::num::i64::ANY, part in 0u32..100_000_000, places in 0usize..9,
        ) {
            let part = &format!("{part:08}")[..places];
            let text = if places == 0 { format!("{whole}") } else { format!("{whole}.{part}") };
            let padded = format!("{text}}}\n               ");
            if let Some((value, end)) = short_nanos(padded.as_bytes(), 0) {
                prop_assert_eq!((Some(value), end), (nanos(&text), text.len()));
            }
        }

        #[test]
        fn digits_are_read_anywhere(value in proptest::num::u64::ANY, blanks in 0usize..20) {
            let text = format!("{}{:blanks$}", value / 10, "");
            let count = text.trim_end().len();
            prop_assert_eq!(digits(text.as_bytes(), 0), (value / 10, count as u32, count));
        }
    }
}
