//! Amounts as people write them: currency signs, separators of thousands, parentheses, a comma
//! before the decimals. Pure; knows nothing of rows or files.

use schema::source::NumberForm;

use crate::field::{self, Problem};

/// Longest amount that is read.
const LONGEST: usize = 64;

/// A number written in `form`; NaN for the text that stands for none.
#[inline]
pub(crate) fn read(form: NumberForm, text: &[u8]) -> Result<f64, Problem> {
    match form {
        NumberForm::Plain => field::number_or_nan(text),
        NumberForm::Money => amount(text, b'.').map_err(|()| Problem::Money),
        NumberForm::DecimalComma => amount(text, b',').map_err(|()| Problem::DecimalComma),
    }
}

/// An amount with `point` before its decimals.
fn amount(text: &[u8], point: u8) -> Result<f64, ()> {
    if field::is_no_number(text) {
        return Ok(f64::NAN);
    }
    let (inside, in_parentheses) = match text {
        [b'(', inside @ .., b')'] => (inside, true),
        _ => (text, false),
    };
    let mut digits = [0; LONGEST];
    let (mut length, mut is_negative, mut is_fraction) = (0, in_parentheses, false);
    let is_number = |byte: u8| byte.is_ascii_digit() || byte == point;
    let first = inside.iter().position(|&byte| is_number(byte)).ok_or(())?;
    let last = inside.iter().rposition(u8::is_ascii_digit).ok_or(())?;
    if first > last {
        return Err(());
    }
    for &byte in sign(&inside[..first])?.iter().chain(sign(&inside[last + 1..])?) {
        is_negative ^= byte == b'-';
    }
    let groups = &inside[first..=last];
    for (at, &byte) in groups.iter().enumerate() {
        let kept = match byte {
            b'0'..=b'9' => byte,
            _ if byte == point && !is_fraction => {
                is_fraction = true;
                b'.'
            }
            // Bytes above 127 are kinds of spaces.
            0x80.. if !is_fraction => continue,
            // Behind the decimals nothing separates thousands, and before them thousands alone.
            b',' | b'.' | b' ' | b'\'' | b'_'
                if byte != point && !is_fraction && is_thousand(&groups[at + 1..]) =>
            {
                continue;
            }
            _ => return Err(()),
        };
        *digits.get_mut(length).ok_or(())? = kept;
        length += 1;
    }
    let text = std::str::from_utf8(&digits[..length]).map_err(|_| ())?;
    let value: f64 = text.parse().map_err(|_| ())?;
    let value = if is_negative { -value } else { value };
    if field::is_storable(value) { Ok(value) } else { Err(()) }
}

/// Whether three digits follow, and no fourth.
fn is_thousand(rest: &[u8]) -> bool {
    rest.iter().take_while(|byte| byte.is_ascii_digit()).count() == 3
}

/// Codes of currencies: other letters are no amount's.
const CODES: [&str; 14] = [
    "USD", "EUR", "GBP", "JPY", "CHF", "CNY", "INR", "CAD", "AUD", "SEK", "NOK", "DKK", "BRL", "kr",
];

/// What stands beside an amount: signs of currencies, or their code.
fn sign(text: &[u8]) -> Result<&[u8], ()> {
    let letters: Vec<u8> = text.iter().filter(|byte| byte.is_ascii_alphabetic()).copied().collect();
    let is_code = letters.is_empty() || CODES.iter().any(|code| code.as_bytes() == letters);
    let is_sign = |byte: &u8| byte.is_ascii_alphabetic() || b"$%+-. ".contains(byte) || *byte > 127;
    let minus = text.iter().filter(|&&byte| byte == b'-').count();
    if is_code && minus <= 1 && text.iter().all(is_sign) { Ok(text) } else { Err(()) }
}

#[cfg(test)]
mod tests {
    use schema::source::NumberForm::{DecimalComma, Money};

    use super::read;

    #[test]
    fn amounts_are_read_as_people_write_them() {
        for (text, value) in [
            ("$4.21", 4.21),
            ("-$1,234.50", -1234.5),
            ("$-3", -3.0),
            ("(4.21)", -4.21),
            ("12 %", 12.0),
            ("1 234 EUR", 1234.0),
            ("£1'000'000", 1e6),
            ("1\u{a0}234.5", 1234.5),
            (".5", 0.5),
            ("7", 7.0),
        ] {
            assert_eq!(read(Money, text.as_bytes()), Ok(value), "{text}");
        }
        for (text, value) in [("1.234,50 €", 1234.5), ("-0,5", -0.5), ("3", 3.0), ("1 000,0", 1e3)]
        {
            assert_eq!(read(DecimalComma, text.as_bytes()), Ok(value), "{text}");
        }
        for text in ["", "$", "4.2.1", "1.5,0", "four", "12 apples", "--3", "k12", "SKU7", "12,50"]
        {
            assert!(read(Money, text.as_bytes()).is_err(), "{text}");
        }
        assert!(read(DecimalComma, b"1.5").is_err() && read(DecimalComma, b"1,234.5").is_err());
        assert!(read(Money, b"NaN").is_ok_and(f64::is_nan));
    }
}
