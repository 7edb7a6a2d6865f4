//! Formats Unix nanoseconds as date and time in UTC, without depending on a date crate.

/// Formats a Unix time in nanoseconds as `YYYY-MM-DD HH:MM:SS` in UTC.
pub fn date_and_time(unix_ns: i64) -> String {
    let seconds = unix_ns.div_euclid(1_000_000_000);
    let (year, month, day) = civil(seconds.div_euclid(86_400));
    let of_day = seconds.rem_euclid(86_400);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

/// Converts days since 1970-01-01 to year, month and day of the Gregorian calendar.
fn civil(days: i64) -> (i64, i64, i64) {
    // The computed year starts in March, so that the leap day is its last day. An era is the
    // calendar's cycle of 400 years, which has 146,097 days.
    let since_era_zero = days + 719_468;
    let era = since_era_zero.div_euclid(146_097);
    let day_of_era = since_era_zero.rem_euclid(146_097);
    let leaps = day_of_era / 1_460 - day_of_era / 36_524 + day_of_era / 146_096;
    let year_of_era = (day_of_era - leaps) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::date_and_time;

    #[test]
    fn dates_follow_the_gregorian_calendar() {
        // The expected values are the output of `date -u -d @N`.
        let cases = [
            (0, "1970-01-01 00:00:00"),
            (-1, "1969-12-31 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (951_868_799, "2000-02-29 23:59:59"),
            (1_709_251_199, "2024-02-29 23:59:59"),
            (1_735_689_599, "2024-12-31 23:59:59"),
            (4_107_542_400, "2100-03-01 00:00:00"),
        ];
        for (seconds, text) in cases {
            assert_eq!(date_and_time(seconds * 1_000_000_000), text);
        }
    }
}
