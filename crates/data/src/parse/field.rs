//! Parses one field of text into a number or a category.

/// Reasons why a field cannot be parsed. Each reason names the expected form in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldProblem {
    /// The field is not a number, or the number is not finite in f32.
    Number,
    /// The number is outside `0..=1`.
    Label,
    /// The field is not a decimal 64-bit integer.
    Integer,
    /// The field is a decimal number so large that neighboring integers have the same f64 value.
    Inexact,
    /// The field is not 1 to 16 hexadecimal digits.
    Hex,
    /// The field is not an amount such as `$1,234.50`.
    Money,
    /// The field is not an amount such as `1.234,50`.
    DecimalComma,
    Time,
}

impl FieldProblem {
    /// Describes the expected form, for messages.
    pub(crate) fn expected(self) -> &'static str {
        match self {
            Self::Number => "a number",
            Self::Label => "a number from 0 to 1, or values in data.label.positive",
            Self::Integer => "an integer of 64 bits",
            Self::Inexact => "an integer below 2^53, beyond which decimal numbers are not exact",
            Self::Hex => "1 to 16 hexadecimal digits",
            Self::Money => "an amount such as $1,234.50",
            Self::DecimalComma => "an amount such as 1.234,50",
            Self::Time => "a time: ISO 8601, seconds since 1970, or as date_format says",
        }
    }
}

/// Trims spaces from both ends of a field.
#[inline]
pub(crate) fn trim(field: &[u8]) -> &[u8] {
    match (field.first(), field.last()) {
        (Some(first), Some(last)) if *first > b' ' && *last > b' ' => field,
        _ => field.trim_ascii(),
    }
}

/// Parses a number that is finite in f32, the type in which it is stored.
#[inline]
pub(crate) fn parse_number(field: &[u8]) -> Result<f64, FieldProblem> {
    let (negative, digits) = match field {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, field),
    };
    // Up to 15 digits fit in 2^53, so the integer path is exact.
    if !digits.is_empty() && digits.len() <= 15 && digits.iter().all(u8::is_ascii_digit) {
        let value = digits.iter().fold(0i64, |value, digit| value * 10 + i64::from(digit - b'0'));
        return Ok(if negative { -value as f64 } else { value as f64 });
    }
    let text = std::str::from_utf8(field).map_err(|_| FieldProblem::Number)?;
    text.parse().ok().filter(|&value| is_storable(value)).ok_or(FieldProblem::Number)
}

/// Parses a number. `NaN` and `null`, as pandas writes missing values, become NaN.
#[inline]
pub(crate) fn number_or_nan(field: &[u8]) -> Result<f64, FieldProblem> {
    match parse_number(field) {
        Err(_) if is_nan_text(field) => Ok(f64::NAN),
        read => read,
    }
}

/// Whether a numeric field is written as `NaN` or `null`.
#[cold]
pub(crate) fn is_nan_text(field: &[u8]) -> bool {
    let unsigned = field.strip_prefix(b"-").unwrap_or(field);
    unsigned.eq_ignore_ascii_case(b"nan") || field.eq_ignore_ascii_case(b"null")
}

/// Whether `value` is finite in f32. One infinite input turns every weight of a model into NaN.
#[inline]
pub(crate) fn is_storable(value: f64) -> bool {
    (value as f32).is_finite()
}

/// Converts a number to a label. A label outside `0..=1` is refused, because the loss would have no
/// lower bound.
#[inline]
pub(crate) fn parse_label(value: f64) -> Result<f32, FieldProblem> {
    if (0.0..=1.0).contains(&value) { Ok(value as f32) } else { Err(FieldProblem::Label) }
}

/// Parses a decimal integer. Integers from 2^63 to 2^64 − 1 keep their bit pattern. `4.0` and
/// `1e+05` are accepted, because pandas writes integer columns with missing values, and R round
/// numbers, that way.
#[inline]
pub(crate) fn parse_integer(field: &[u8]) -> Result<i64, FieldProblem> {
    let text = std::str::from_utf8(field).map_err(|_| FieldProblem::Integer)?;
    match text.parse::<i64>() {
        Ok(value) => Ok(value),
        Err(_) => integer_otherwise(text),
    }
}

/// Whether a field is a whole number without point or exponent.
pub(crate) fn has_digits_only(field: &[u8]) -> bool {
    let digits = field.strip_prefix(b"-").unwrap_or(field);
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

/// Whether a whole number is written in canonical form, unlike `007`, `7.0` or `+7`.
pub(crate) fn is_usual_integer(field: &[u8]) -> bool {
    let digits = field.strip_prefix(b"-").unwrap_or(field);
    has_digits_only(field) && (digits.first() != Some(&b'0') || field == b"0")
}

fn integer_otherwise(text: &str) -> Result<i64, FieldProblem> {
    if let Ok(value) = text.parse::<u64>() {
        return Ok(value.cast_signed());
    }
    let is_zero = |digits: &str| digits.bytes().all(|digit| digit == b'0');
    match text.split_once('.') {
        // Nonzero digits after the point that f64 would round away must not make an integer.
        Some((whole, fraction)) if !whole.is_empty() && is_zero(fraction) => {
            let value: i128 = whole.parse().map_err(|_| FieldProblem::Integer)?;
            whole_number(value as f64)
        }
        _ if text.contains(['e', 'E']) => {
            whole_number(text.parse().map_err(|_| FieldProblem::Integer)?)
        }
        _ => Err(FieldProblem::Integer),
    }
}

/// Converts a float to an integer if it represents exactly one.
#[inline]
pub(crate) fn whole_number(value: f64) -> Result<i64, FieldProblem> {
    const EXACT_BELOW: f64 = 9_007_199_254_740_992.0;
    if value.fract() != 0.0 {
        return Err(FieldProblem::Integer);
    }
    if value.abs() < EXACT_BELOW { Ok(value as i64) } else { Err(FieldProblem::Inexact) }
}

/// Parses a hexadecimal integer of up to 64 bits, with or without `0x`, and returns its bit
/// pattern.
#[inline]
pub(crate) fn parse_hex(field: &[u8]) -> Result<i64, FieldProblem> {
    let digits = match field {
        [b'0', b'x' | b'X', rest @ ..] => rest,
        _ => field,
    };
    if digits.is_empty() || digits.len() > 16 {
        return Err(FieldProblem::Hex);
    }
    let mut value = 0u64;
    let mut invalid = 0u8;
    for &digit in digits {
        let nibble = NIBBLE[usize::from(digit)];
        // Errors are collected without a branch, and checked once at the end.
        invalid |= nibble;
        value = value << 4 | u64::from(nibble & 15);
    }
    if invalid > 15 { Err(FieldProblem::Hex) } else { Ok(value.cast_signed()) }
}

/// Hashes a text with XXH3-64 and returns the bit pattern as a signed integer.
#[inline]
pub(crate) fn hash_text(field: &[u8]) -> i64 {
    xxhash_rust::xxh3::xxh3_64(field).cast_signed()
}

/// Value of each byte as a hexadecimal digit; 255 for all other bytes.
const NIBBLE: [u8; 256] = {
    let mut table = [255; 256];
    let mut value = 0;
    while value < 16 {
        let digit = if value < 10 { b'0' + value } else { b'a' + value - 10 };
        table[digit as usize] = value;
        table[digit.to_ascii_uppercase() as usize] = value;
        value += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::{
        FieldProblem, hash_text, is_nan_text, number_or_nan, parse_hex, parse_integer,
        parse_number, trim,
    };

    #[test]
    fn numbers() {
        assert_eq!(parse_number(b"-12"), Ok(-12.0));
        assert_eq!(parse_number(b"999999999999999"), Ok(999_999_999_999_999.0));
        assert_eq!(parse_number(b"1e3"), Ok(1000.0));
        assert_eq!(parse_number(b"12345678901234567890"), Ok(12_345_678_901_234_567_890.0));
        for bad in [&b"-"[..], b"", b"nan", b"inf", b"1e999", b"1e39", b"1 2", b"\xff", b"1\0"] {
            assert_eq!(parse_number(bad), Err(FieldProblem::Number), "{bad:?}");
        }
    }

    #[test]
    fn categories() {
        assert_eq!(parse_hex(b"68fd1e64"), Ok(0x68fd_1e64));
        assert_eq!(parse_hex(b"0XFFFFFFFFFFFFFFFF"), Ok(-1));
        for bad in [&b""[..], b"0x", b"g", b"12345678901234567", b"-1"] {
            assert_eq!(parse_hex(bad), Err(FieldProblem::Hex), "{bad:?}");
        }
        assert_eq!(parse_integer(b"18446744073709551615"), Ok(-1));
        assert_eq!(parse_integer(b"-7"), Ok(-7));
        for (text, value) in [(&b"7.0"[..], 7), (b"-4.000", -4), (b"4.", 4), (b"1e+05", 100_000)] {
            assert_eq!(parse_integer(text), Ok(value), "{text:?}");
        }
        assert_eq!(parse_integer(b"9007199254740991.0"), Ok(9_007_199_254_740_991));
        for inexact in [&b"9007199254740992.0"[..], b"-9007199254740993.0", b"1e300"] {
            assert_eq!(parse_integer(inexact), Err(FieldProblem::Inexact), "{inexact:?}");
        }
        for bad in
            [&b"4.5"[..], b"4.00000000000000000001", b".0", b"-", b"1e-3", b"1e999", b"4.0.0"]
        {
            assert_eq!(parse_integer(bad), Err(FieldProblem::Integer), "{bad:?}");
        }
        // The expected value is the published XXH3-64 of the empty input.
        assert_eq!(hash_text(b"").cast_unsigned(), 0x2d06_8005_38d3_94c2);
    }

    #[test]
    fn nan_and_null_are_missing() {
        for text in [&b"nan"[..], b"NaN", b"-NAN", b"null", b"NULL"] {
            assert!(is_nan_text(text) && number_or_nan(text).is_ok_and(f64::is_nan), "{text:?}");
        }
        for text in [&b"-null"[..], b"nil", b"", b"inf", b"n"] {
            assert!(!is_nan_text(text) && number_or_nan(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn only_outer_spaces_are_trimmed() {
        assert_eq!(trim(b" a b\r"), b"a b");
        assert_eq!(trim(b"  "), b"");
        assert_eq!(trim("\u{e9} ".as_bytes()), "\u{e9}".as_bytes());
    }
}
