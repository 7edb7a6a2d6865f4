//! Parses times, given as text or numbers, into seconds since 1970, and computes features of a
//! time. Time zones are supported only as explicit offsets and the zone names of RFC 822.

use std::f64::consts::TAU;

use chrono::{Datelike, NaiveDate};
use schema::source::DatePart;

use crate::parse::field::FieldProblem;

const DAY: i64 = 86_400;

/// Parses a time in the strftime format `format`. Without a format it accepts ISO 8601, a date of
/// eight digits, or a number of seconds, milliseconds, microseconds or nanoseconds since 1970.
pub(crate) fn parse_time(text: &[u8], format: Option<&str>) -> Result<f64, FieldProblem> {
    let text = std::str::from_utf8(text).map_err(|_| FieldProblem::Time)?;
    let seconds = match format {
        Some(format) => parse_with_format(text, format),
        None => parse_iso(text).or_else(|| parse_epoch(text)),
    };
    seconds.ok_or(FieldProblem::Time)
}

/// Parses a number since 1970 whose unit follows from its size, or a date of eight digits.
fn parse_epoch(text: &str) -> Option<f64> {
    if text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_digit()) {
        // Eight digits may also count seconds, which then lie in 1970 to 1973. A date such as
        // 20240131 is more likely, so the digits are first read as a date.
        let years = 1900..2100;
        let date = parse_with_format(text, "%Y%m%d");
        if let (Some(date), true) =
            (date, text[..4].parse().is_ok_and(|year: i64| years.contains(&year)))
        {
            return Some(date);
        }
    }
    let value: f64 = text.parse().ok().filter(|value: &f64| value.is_finite())?;
    Some(since_epoch(value))
}

/// Converts a number of seconds, milliseconds, microseconds or nanoseconds to seconds. The unit
/// follows from the size of the number.
pub(crate) fn since_epoch(value: f64) -> f64 {
    match value.abs() {
        // 10^11 seconds are the year 5138, and 10^11 milliseconds are 1973, so the ranges hardly
        // overlap.
        size if size < 1e11 => value,
        size if size < 1e14 => value / 1e3,
        size if size < 1e17 => value / 1e6,
        _ => value / 1e9,
    }
}

/// Parses a time in ISO 8601 or a similar form, such as `2014-10-21`, `2014/10/21 13:05` or
/// `2014-10-21T13:05:12.5+02:00`.
fn parse_iso(text: &str) -> Option<f64> {
    let mut rest = text;
    let year = take_year(&mut rest)?;
    // Both separators of a date must be the same character.
    let part = rest.chars().next().filter(|part| "-/.".contains(*part))?;
    rest = &rest[1..];
    let month = digits(&mut rest, 2)?;
    rest = rest.strip_prefix(part)?;
    let day = digits(&mut rest, 2)?;
    let mut seconds = (days(year, month, day)? * DAY) as f64;
    let Some(time) = rest.strip_prefix(['T', 't', ' ']) else {
        return rest.is_empty().then_some(seconds);
    };
    rest = time.trim_start();
    let hour = digits(&mut rest, 2)?;
    rest = rest.strip_prefix(':')?;
    let minute = digits(&mut rest, 2)?;
    let mut second = 0.0;
    if let Some(behind) = rest.strip_prefix(':') {
        let end = behind.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(behind.len());
        second = behind[..end].parse().ok()?;
        rest = &behind[end..];
    }
    seconds += seconds_of_day(hour, minute, second)?;
    rest = rest.trim();
    if ["", "Z", "z", "UTC"].contains(&rest) {
        return Some(seconds);
    }
    Some(seconds - parse_offset(rest)?)
}

/// Parses an offset such as `+02:00` or `-0530` into seconds.
fn parse_offset(text: &str) -> Option<f64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+')?),
    };
    let hours = digits(&mut rest, 2)?;
    rest = rest.strip_prefix(':').unwrap_or(rest);
    let minutes = if rest.is_empty() { 0 } else { digits(&mut rest, 2)? };
    rest.is_empty().then(|| sign * (hours * 3600 + minutes * 60) as f64)
}

fn seconds_of_day(hour: i64, minute: i64, second: f64) -> Option<f64> {
    let is_time =
        // A second of 60 is a leap second.
        (0..24).contains(&hour) && (0..60).contains(&minute) && (0.0..61.0).contains(&second);
    is_time.then(|| (hour * 3600 + minute * 60) as f64 + second)
}

/// Takes up to `most` digits from the start of `rest`.
fn digits(rest: &mut &str, most: usize) -> Option<i64> {
    let count = rest.bytes().take(most).take_while(u8::is_ascii_digit).count();
    let (digits, behind) = rest.split_at(count);
    *rest = behind;
    digits.parse().ok()
}

/// Takes a year of four digits from the start of `rest`.
fn take_year(rest: &mut &str) -> Option<i64> {
    let count = rest.bytes().take(4).take_while(u8::is_ascii_digit).count();
    if count == 4 { digits(rest, 4) } else { None }
}

const WEEKDAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];

/// Whether a format consists of numbers alone, such as `%Y%m%d%H`. Such times have the same form as
/// integers.
pub(crate) fn has_digits_only(format: &str) -> bool {
    let is_number = |letter: &str| letter.len() == 1 && "YymdHMS".contains(letter);
    format.strip_prefix('%').is_some_and(|letters| letters.split('%').all(is_number))
}

/// Takes an offset or a zone name of RFC 822 from the start of `rest` and returns the seconds east
/// of Greenwich.
fn take_zone(rest: &mut &str) -> Option<f64> {
    const HOURS: [(&str, f64); 12] = [
        ("Z", 0.0),
        ("UTC", 0.0),
        ("GMT", 0.0),
        ("UT", 0.0),
        ("EST", -5.0),
        ("EDT", -4.0),
        ("CST", -6.0),
        ("CDT", -5.0),
        ("MST", -7.0),
        ("MDT", -6.0),
        ("PST", -8.0),
        ("PDT", -7.0),
    ];
    let is_part = |c: char| c.is_ascii_alphanumeric() || "+-:".contains(c);
    let end = rest.find(|c: char| !is_part(c)).unwrap_or(rest.len());
    let (text, behind) = rest.split_at(end);
    *rest = behind;
    let named = HOURS.iter().find(|(name, _)| text.eq_ignore_ascii_case(name));
    named.map(|(_, hours)| hours * 3600.0).or_else(|| parse_offset(text))
}

/// Takes a name from the start of `rest` and returns its index among `names`, by its first three
/// letters.
fn take_name(rest: &mut &str, names: &[&str]) -> Option<usize> {
    let count = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
    let short = rest.get(..count.min(3))?.to_ascii_lowercase();
    *rest = &rest[count..];
    names.iter().position(|known| *known == short)
}

/// Parses a time in a strftime format. Returns `None` if the text does not match the format.
fn parse_with_format(text: &str, format: &str) -> Option<f64> {
    let (mut year, mut month, mut day) = (1970, 1, 1);
    let (mut hour, mut minute, mut second, mut afternoon) = (0, 0, 0.0, None);
    let mut east = 0.0;
    // Numbers without separators are told apart only by their width.
    let is_packed = has_digits_only(format.split(['T', 'Z']).next().unwrap_or(format));
    let digits = |rest: &mut &str, most: usize| {
        let before = rest.len();
        digits(rest, most).filter(|_| !is_packed || before - rest.len() == most)
    };
    let mut rest = text;
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter.is_whitespace() {
            rest = rest.trim_start();
            continue;
        }
        if letter != '%' {
            rest = rest.strip_prefix(letter)?;
            continue;
        }
        match letters.next()? {
            'Y' => year = take_year(&mut rest)?,
            'y' => {
                let is_whole = rest.bytes().take(2).take_while(u8::is_ascii_digit).count() == 2;
                let two = digits(&mut rest, 2).filter(|_| is_whole)?;
                // POSIX maps the years 69 to 99 to the 20th century.
                year = two + if two < 69 { 2000 } else { 1900 };
            }
            'm' => month = digits(&mut rest, 2)?,
            'd' | 'e' => day = digits(&mut rest, 2)?,
            'H' | 'k' => hour = digits(&mut rest, 2)?,
            'I' | 'l' => hour = digits(&mut rest, 2).filter(|hour| (1..=12).contains(hour))?,
            'M' => minute = digits(&mut rest, 2)?,
            'S' => second = digits(&mut rest, 2)? as f64,
            'f' => {
                let count = rest.bytes().take_while(u8::is_ascii_digit).count();
                second += format!("0.{}", &rest[..count]).parse::<f64>().ok()?;
                rest = &rest[count..];
            }
            'b' | 'B' => month = 1 + take_name(&mut rest, &MONTHS)? as i64,
            'a' | 'A' => _ = take_name(&mut rest, &WEEKDAYS)?,
            'p' => {
                let (half, behind) = take_half_day(rest)?;
                (afternoon, rest) = (Some(half), behind);
            }
            'z' | 'Z' => east = take_zone(&mut rest)?,
            '%' => rest = rest.strip_prefix('%')?,
            _ => return None,
        }
    }
    if let Some(afternoon) = afternoon {
        // 12 AM is midnight, and 12 PM is noon.
        hour = hour % 12 + if afternoon { 12 } else { 0 };
    }
    let time = seconds_of_day(hour, minute, second)?;
    // The whole text must match, because a shorter format would accept only the date of a time.
    rest.trim().is_empty().then_some((days(year, month, day)? * DAY) as f64 + time - east)
}

/// Parses `AM`, `pm` or `p.m.` and returns whether it is the afternoon, with the rest of the text.
fn take_half_day(text: &str) -> Option<(bool, &str)> {
    let is_afternoon = match text.as_bytes().first()?.to_ascii_lowercase() {
        b'a' => false,
        b'p' => true,
        _ => return None,
    };
    let rest = text[1..].strip_prefix('.').unwrap_or(&text[1..]);
    let rest = rest.strip_prefix(['m', 'M'])?;
    Some((is_afternoon, rest.strip_prefix('.').unwrap_or(rest)))
}

/// Returns the days since 1970 of a Gregorian date; `None` for dates that do not exist and for
/// years of more than four digits.
fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    let year = i32::try_from(year).ok().filter(|year| (0..=9999).contains(year))?;
    let (month, day) = (u32::try_from(month).ok()?, u32::try_from(day).ok()?);
    Some(NaiveDate::from_ymd_opt(year, month, day)?.to_epoch_days().into())
}

/// Returns the date of a day since 1970, limited to the 262,000 years that the calendar covers.
fn date(day: i64) -> NaiveDate {
    let end = if day < 0 { NaiveDate::MIN } else { NaiveDate::MAX };
    i32::try_from(day).ok().and_then(NaiveDate::from_epoch_days).unwrap_or(end)
}

/// Formats a time as `2014-10-21 12:00:00`.
pub(crate) fn iso_text(seconds: f64) -> String {
    let day = (seconds / DAY as f64).floor();
    let second_of_day = seconds - day * DAY as f64;
    let date = date(day as i64);
    let (minutes, second) = (second_of_day as i64 / 60, second_of_day % 60.0);
    let (hour, minute) = (minutes / 60, minutes % 60);
    let (year, month, day) = (date.year(), date.month(), date.day());
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

/// Computes the model input for one part of a time. `newest` and `deviation` describe the training
/// rows.
pub(crate) fn time_feature(part: DatePart, seconds: f64, newest: f64, deviation: f64) -> f64 {
    // Times beyond the calendar, such as −10³⁰, are clamped to its ends.
    let seconds = seconds.clamp(-6.2e10, 2.5e11);
    let day = (seconds / DAY as f64).floor();
    let second_of_day = seconds - day * DAY as f64;
    let date = || date(day as i64);
    match part {
        DatePart::Hour => second_of_day / DAY as f64 - 0.5,
        DatePart::HourSin => (second_of_day / DAY as f64 * TAU).sin(),
        DatePart::HourCos => (second_of_day / DAY as f64 * TAU).cos(),
        // 1970 began on a Thursday, which is three days after Monday.
        DatePart::Weekday => (day as i64 + 3).rem_euclid(7) as f64 / 6.0 - 0.5,
        DatePart::Day => f64::from(date().day0()) / 30.0 - 0.5,
        DatePart::Month => f64::from(date().month0()) / 11.0 - 0.5,
        DatePart::Year => (seconds / (365.2425 * DAY as f64) - 30.0) / 10.0,
        DatePart::Age => (newest - seconds) / deviation,
    }
}

#[cfg(test)]
mod tests {
    use chrono::Datelike;
    use schema::source::DatePart;

    use super::{DAY, date, days, parse_time, time_feature};

    #[test]
    fn days_and_dates_are_inverse() {
        assert_eq!((days(1970, 1, 1), days(2000, 3, 1)), (Some(0), Some(11_017)));
        for day in (-100_000..100_000).step_by(37) {
            let date = date(day);
            let (year, month) = (date.year().into(), date.month().into());
            assert_eq!(days(year, month, date.day().into()), Some(day));
        }
        for (year, month, day) in [(2023, 2, 29), (1900, 2, 29), (2024, 13, 1), (2024, 4, 31)] {
            assert_eq!(days(year, month, day), None);
        }
        assert!(days(2024, 2, 29).is_some() && days(2000, 2, 29).is_some());
    }

    #[test]
    fn times_are_read_in_many_forms() {
        let noon = 1_413_892_800.0;
        for text in [
            "2014-10-21 12:00",
            "2014-10-21T12:00:00Z",
            "2014/10/21 12:00:00",
            "2014-10-21T14:00:00+02:00",
            "2014-10-21T06:30:00.000-0530",
            "1413892800",
            "1413892800000",
            "1.4138928e9",
        ] {
            assert_eq!(parse_time(text.as_bytes(), None), Ok(noon), "{text}");
        }
        for (text, format) in [
            ("14102112", "%y%m%d%H"),
            ("21.10.2014 12:00", "%d.%m.%Y %H:%M"),
            ("10/21/2014 12:00 PM", "%m/%d/%Y %I:%M %p"),
            ("21/10/14 12:00p.m.", "%d/%m/%y %I:%M %p"),
            ("Tue, 21 Oct 2014 12:00:00", "%a, %d %b %Y %H:%M:%S"),
            ("21 October 2014, 12 h", "%d %b %Y, %H h"),
            ("2014102112", "%Y%m%d%H"),
            ("20141021120000", "%Y%m%d%H%M%S"),
            ("20141021T140000+0200", "%Y%m%dT%H%M%S%z"),
            ("20141021T120000Z", "%Y%m%dT%H%M%S%z"),
            ("[21/Oct/2014:05:00:00 -0700]", "[%d/%b/%Y:%H:%M:%S %z]"),
            ("Tue Oct 21 12:00:00 2014", "%a %b %d %H:%M:%S %Y"),
            ("Tue Oct 21 08:00:00 EDT 2014", "%a %b %d %H:%M:%S %Z %Y"),
            ("Tue, 21 Oct 2014 12:00:00 GMT", "%a, %d %b %Y %H:%M:%S %z"),
        ] {
            assert_eq!(parse_time(text.as_bytes(), Some(format)), Ok(noon), "{text}");
        }
        assert_eq!(parse_time(b"20141021", None), Ok(noon - 43_200.0));
        let bad = ["", "yesterday", "2014-13-01", "2014-10-21 25:00", "21.10.2014", "21.10.14"];
        for text in bad {
            assert!(parse_time(text.as_bytes(), None).is_err(), "{text}");
        }
        for (text, format) in [
            ("1/2/14", "%d/%m/%Y"),
            ("1/2/2014", "%d/%m/%y"),
            ("1/2/2014 13:00 PM", "%d/%m/%Y %I:%M %p"),
            ("201410211", "%Y%m%d%H"),
            ("1410211", "%y%m%d%H"),
            ("Tue, 21 Oct 2014 12:00:00 XYZ", "%a, %d %b %Y %H:%M:%S %z"),
        ] {
            assert!(parse_time(text.as_bytes(), Some(format)).is_err(), "{text}");
        }
    }

    #[test]
    fn formatted_times_parse_back() {
        for seconds in [0.0, 1_413_892_800.0, 951_782_399.0, -1.0] {
            let text = super::iso_text(seconds);
            assert_eq!(parse_time(text.as_bytes(), None), Ok(seconds), "{text}");
        }
    }

    #[test]
    fn parts_of_a_time() {
        let noon = 1_413_892_800.0;
        let feature = |which| time_feature(which, noon, noon + DAY as f64, 2.0 * DAY as f64);
        assert_eq!(feature(DatePart::Hour), 0.0);
        assert!(feature(DatePart::HourSin).abs() < 1e-12);
        assert_eq!(feature(DatePart::HourCos), -1.0);
        // The time is on a Tuesday in October.
        assert_eq!(feature(DatePart::Weekday), 1.0 / 6.0 - 0.5);
        assert_eq!(feature(DatePart::Month), 9.0 / 11.0 - 0.5);
        assert_eq!(feature(DatePart::Day), 20.0 / 30.0 - 0.5);
        assert!((feature(DatePart::Year) - 1.48).abs() < 0.01);
        assert_eq!(feature(DatePart::Age), 0.5);
        assert!(time_feature(DatePart::Month, f64::MAX, 0.0, 1.0).is_finite());
    }
}
