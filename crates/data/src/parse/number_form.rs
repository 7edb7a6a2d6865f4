//! Parses amounts as people write them: with currency signs, thousands separators, parentheses for
//! negative amounts, or a decimal comma.

use std::borrow::Cow;

use schema::source::NumberForm;

use crate::parse::field::{self, FieldProblem};

/// Largest length of an amount, in bytes.
const LONGEST: usize = 64;

/// Parses a number written in `form`. `NaN` and `null` become NaN.
#[inline]
pub(crate) fn parse_amount(form: NumberForm, text: &[u8]) -> Result<f64, FieldProblem> {
    match form {
        NumberForm::Plain => field::number_or_nan(text),
        NumberForm::Money => parse_decimal(text, '.').map_err(|()| FieldProblem::Money),
        NumberForm::DecimalComma => {
            parse_decimal(text, ',').map_err(|()| FieldProblem::DecimalComma)
        }
    }
}

/// Parses an amount whose decimals follow `point`. Only digits, thousands separators, signs and
/// currencies are allowed.
fn parse_decimal(text: &[u8], point: char) -> Result<f64, ()> {
    if field::is_nan_text(text) {
        return Ok(f64::NAN);
    }
    let latin_1 = || Cow::Owned(text.iter().map(|&byte| latin_1(byte)).collect());
    let text: Cow<'_, str> = std::str::from_utf8(text).map_or_else(|_| latin_1(), Cow::Borrowed);
    let (inside, in_parentheses) = match text.strip_prefix('(').and_then(|t| t.strip_suffix(')')) {
        Some(inside) => (inside, true),
        None => (&*text, false),
    };
    let is_number = |c: char| c.is_ascii_digit() || c == point;
    let first = inside.find(is_number).ok_or(())?;
    let last = inside.rfind(|c: char| c.is_ascii_digit()).filter(|&last| last >= first).ok_or(())?;
    let signs = count_minus_signs(&inside[..first])? + count_minus_signs(&inside[last + 1..])?;
    // An amount is negative by one sign or by parentheses, but not by both.
    if signs + usize::from(in_parentheses) > 1 {
        return Err(());
    }
    let (whole, fraction) = match inside[first..=last].split_once(point) {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (&inside[first..=last], None),
    };
    // A buffer on the stack avoids an allocation per value.
    let mut digits = [0; LONGEST];
    let mut length = 0;
    let mut keep = |text: &str| {
        digits.get_mut(length..length + text.len()).ok_or(())?.copy_from_slice(text.as_bytes());
        length += text.len();
        Ok::<(), ()>(())
    };
    take_thousands(whole, point, &mut keep)?;
    if let Some(fraction) = fraction {
        if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(());
        }
        keep(".")?;
        keep(fraction)?;
    }
    let text = std::str::from_utf8(&digits[..length]).map_err(|_| ())?;
    let value: f64 = text.parse().map_err(|_| ())?;
    let value = if signs > 0 || in_parentheses { -value } else { value };
    if field::is_storable(value) { Ok(value) } else { Err(()) }
}

/// Passes the digits of a whole number to `keep`. Groups have three digits with the same separator
/// between them; in Indian notation, groups before the last may have two. A number with separators
/// does not begin with zero, because the comma of 0,453 is a decimal comma.
fn take_thousands(
    text: &str,
    point: char,
    keep: &mut impl FnMut(&str) -> Result<(), ()>,
) -> Result<(), ()> {
    let Some(mark) = text.chars().find(|c| !c.is_ascii_digit()) else { return keep(text) };
    let is_mark = mark != point && (",.'_\u{2019}\u{66c}".contains(mark) || is_space(mark));
    let groups: Vec<&str> = text.split(mark).collect();
    let [first, middle @ .., last] = &groups[..] else { return Err(()) };
    let is_digits = |group: &&str| group.bytes().all(|byte| byte.is_ascii_digit());
    let is_whole = groups.iter().all(is_digits)
        && (1..=3).contains(&first.len())
        && !first.starts_with('0')
        && last.len() == 3;
    let same = |length: usize| middle.iter().all(|group| group.len() == length);
    if !is_mark || !is_whole || !(same(3) || same(2) && first.len() <= 2) {
        return Err(());
    }
    groups.iter().try_for_each(|group| keep(group))
}

/// Decodes a byte of Windows-1252. Windows-1252 differs from Latin-1 in bytes 0x80 to 0x9f, which
/// are printable characters such as the euro sign instead of control characters.
fn latin_1(byte: u8) -> char {
    match byte {
        0x80 => '€',
        0x92 => '\u{2019}',
        0x96 => '\u{2013}',
        byte => char::from(byte),
    }
}

fn is_space(c: char) -> bool {
    c.is_whitespace() || c == '\u{200b}' || c == '\u{feff}'
}

/// Whether a character is a minus sign: the hyphen, the Unicode minus, or a dash that keyboards and
/// typesetters put in its place.
fn is_minus(c: char) -> bool {
    matches!(c, '-' | '\u{2010}'..='\u{2013}' | '\u{2212}' | '\u{fe63}' | '\u{ff0d}')
}

/// Whether a character is a currency sign.
fn is_currency(c: char) -> bool {
    matches!(
        c,
        '$' | '¢'..='¥' | '֏' | '؋' | '৲' | '৳' | '฿' | '៛' | '\u{20a0}'..='\u{20cf}'
            | '﷼' | '﹩' | '＄' | '￠' | '￡' | '￥' | '￦'
    )
}

/// Accepted currency codes. A text with any other letters is not an amount.
const CODES: [&str; 17] = [
    "USD", "EUR", "GBP", "JPY", "CHF", "CNY", "INR", "CAD", "AUD", "SEK", "NOK", "DKK", "BRL",
    "kr", "PLN", "zł", "руб",
];

/// Counts the minus signs in the text beside an amount, which otherwise may hold only spaces and
/// currencies.
fn count_minus_signs(text: &str) -> Result<usize, ()> {
    let letters: String = text.chars().filter(|c| c.is_alphabetic()).collect();
    let is_code = letters.is_empty() || CODES.contains(&letters.as_str());
    let is_beside = |c: char| {
        c.is_alphabetic() || "%+.".contains(c) || is_space(c) || is_minus(c) || is_currency(c)
    };
    let minus = text.chars().filter(|&c| is_minus(c)).count();
    if is_code && minus <= 1 && text.chars().all(is_beside) { Ok(minus) } else { Err(()) }
}

#[cfg(test)]
mod tests {
    use schema::source::NumberForm::{DecimalComma, Money};

    use super::parse_amount;

    #[test]
    fn amounts_are_parsed_as_people_write_them() {
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
            ("\u{2212}2.18", -2.18),
            ("\u{2212}12.22\u{a0}", -12.22),
            ("\u{2013}7", -7.0),
            ("1\u{202f}234\u{202f}567", 1_234_567.0),
            ("12,34,567.5", 1_234_567.5),
            ("$1\u{2019}000", 1000.0),
            ("12.50-", -12.5),
            ("7", 7.0),
        ] {
            assert_eq!(parse_amount(Money, text.as_bytes()), Ok(value), "{text}");
        }
        for (text, value) in [("1.234,50 €", 1234.5), ("-0,5", -0.5), ("3", 3.0), ("1 000,0", 1e3)]
        {
            assert_eq!(parse_amount(DecimalComma, text.as_bytes()), Ok(value), "{text}");
        }
        for text in
            ["\u{2248}2", "2\u{b2}", "1,2,3", "1,23", "1,234,56", "1 234,567", "0,453", "1\u{301}"]
        {
            assert!(parse_amount(Money, text.as_bytes()).is_err(), "{text}");
        }
        assert_eq!(parse_amount(Money, b"\xa3 4\xa0000"), Ok(4000.0), "Latin-1");
        for text in ["", "$", "4.2.1", "1.5,0", "four", "12 apples", "--3", "k12", "SKU7", "12,50"]
        {
            assert!(parse_amount(Money, text.as_bytes()).is_err(), "{text}");
        }
        assert!(
            parse_amount(DecimalComma, b"1.5").is_err()
                && parse_amount(DecimalComma, b"1,234.5").is_err()
        );
        assert!(parse_amount(Money, b"NaN").is_ok_and(f64::is_nan));
    }
}
