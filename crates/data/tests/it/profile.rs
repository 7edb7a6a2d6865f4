//! Tests of profiles of files without a configuration: times, amounts, empty files, and leaks.

use std::fmt::Write as _;

use data::Error;
use data::profile::{self, Profile};
use schema::facts::ColumnFacts;
use schema::source::{LabelColumn, NumberForm};

use crate::fixture::Folder;

const ROWS: u64 = 500;

fn draw(row: u64) -> u64 {
    let x = row.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (x ^ (x >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 33
}

fn look(inputs: &[String]) -> Result<Profile, Error> {
    profile::profile_files(inputs, None, 1, &mut |_| {})
}

/// Profiles a file of two columns. Returns the facts about the second column, whose values `value`
/// gives for each row.
fn column(value: impl Fn(u64) -> String) -> ColumnFacts {
    let folder = Folder::new();
    let mut text = "label,x\n".to_owned();
    (0..ROWS).for_each(|row| writeln!(text, "{},\"{}\"", row % 2, value(row)).unwrap());
    let file = folder.file("rows.csv", text.as_bytes());
    look(&[file]).unwrap().facts.columns.remove(1)
}

/// Returns the day, hour, minute and second of a row in October 2014.
fn moment(row: u64) -> [u64; 4] {
    let draw = draw(row);
    [1 + draw % 28, draw / 28 % 24, draw / 700 % 60, draw / 50_000 % 60]
}

#[test]
fn times_of_logs_mails_and_digits_are_recognized() {
    const WEEKDAYS: [&str; 7] = ["Tue", "Wed", "Thu", "Fri", "Sat", "Sun", "Mon"];
    let weekday = |day: u64| WEEKDAYS[day as usize % 7];
    let check = |format: &str, write: &dyn Fn([u64; 4]) -> String| {
        let facts = column(|row| write(moment(row)));
        let times = facts.times.unwrap_or_else(|| panic!("{format}: no times"));
        assert_eq!((times.format.as_deref(), times.count), (Some(format), ROWS), "{format}");
        assert!(times.has_clock && times.least >= 1_412_121_600.0, "{format}: {times:?}");
    };
    check("%Y%m%d%H", &|[d, h, ..]| format!("201410{d:02}{h:02}"));
    check("%Y%m%d%H%M", &|[d, h, m, _]| format!("201410{d:02}{h:02}{m:02}"));
    check("%Y%m%d%H%M%S", &|[d, h, m, s]| format!("201410{d:02}{h:02}{m:02}{s:02}"));
    check("%y%m%d%H", &|[d, h, ..]| format!("1410{d:02}{h:02}"));
    check("%Y%m%dT%H%M%S%z", &|[d, h, m, s]| format!("201410{d:02}T{h:02}{m:02}{s:02}Z"));
    check("%d/%b/%Y:%H:%M:%S %z", &|[d, h, m, s]| {
        format!("{d:02}/Oct/2014:{h:02}:{m:02}:{s:02} -0700")
    });
    check("%a %b %d %H:%M:%S %Y", &|[d, h, m, s]| {
        format!("{} Oct {d:2} {h:02}:{m:02}:{s:02} 2014", weekday(d))
    });
    for zone in ["GMT", "+0000"] {
        check("%a, %d %b %Y %H:%M:%S %z", &|[d, h, m, s]| {
            format!("{}, {d:02} Oct 2014 {h:02}:{m:02}:{s:02} {zone}", weekday(d))
        });
    }
}

#[test]
fn plain_ids_are_not_taken_for_times() {
    for (low, size) in [(10_000_000, 90_000_000), (1_000_000_000, 1_200_000_000)] {
        let facts = column(|row| (low + draw(row) % size).to_string());
        assert_eq!(facts.times, None, "{low}");
    }
    for first in [14_102_100, 20_141_001, 2_014_102_100, 1_413_892_800] {
        let facts = column(|row| (first + row).to_string());
        assert_eq!(facts.times, None, "{first}");
    }
    // One value in a hundred has an invalid hour, so the column must not be taken for times.
    let facts = column(|row| format!("141021{:02}", if row % 100 == 7 { 24 } else { row % 24 }));
    assert_eq!(facts.times, None);
}

#[test]
fn the_whole_column_decides_whether_a_comma_is_decimal() {
    let amount = |row: u64| format!("{},{:03}", 1 + draw(row) % 9, draw(row) / 16 % 1000);
    let form = |value: &dyn Fn(u64) -> String| {
        let facts = column(value);
        (facts.number_form, facts.other_form, facts.numbers)
    };
    let one = |shown: &'static str| {
        move |row: u64| if row == 300 { shown.to_owned() } else { amount(row) }
    };
    for shown in ["3,5", "0,125", "1.234,500"] {
        assert_eq!(form(&one(shown)), (NumberForm::DecimalComma, None, ROWS), "{shown}");
    }
    for shown in ["3.5", "1,234,567", "1,234.50"] {
        assert_eq!(form(&one(shown)), (NumberForm::Money, None, ROWS), "{shown}");
    }
    let open = (NumberForm::Money, Some(NumberForm::DecimalComma), ROWS);
    assert_eq!(form(&amount), open, "a guess is marked as one");
}

#[test]
fn ambiguous_days_and_months_are_marked_as_a_guess() {
    let date = |days: u64| {
        let facts = column(|row| format!("{:02}/{:02}/2023", 1 + draw(row) % days, 1 + row % 12));
        facts.times.unwrap()
    };
    assert_eq!(date(28).other_format, None);
    assert_eq!(date(28).format.as_deref(), Some("%d/%m/%Y"));
    let open = date(12);
    let mut both = [open.format.unwrap(), open.other_format.unwrap()];
    both.sort();
    assert_eq!(both, ["%d/%m/%Y", "%m/%d/%Y"]);
}

#[test]
fn parts_without_rows_are_skipped_and_counted() {
    let folder = Folder::new();
    let inputs = [
        folder.file("part-0.csv", b""),
        folder.file("part-1.csv", b"label,x\n"),
        folder.file("part-2.csv", b"label,x\n1,2\n0,3\n"),
    ];
    let found = look(&inputs).unwrap();
    assert_eq!((found.facts.rows, found.losses.empty_files.count), (2, 2));
    assert!(found.facts.columns.iter().map(|column| &*column.name).eq(["label", "x"]));
    let config = crate::fixture::config(serde_json::json!({
        "format": "csv", "label": {"column": "label"}, "dense": [{"column": "x"}],
        "categorical": [],
    }));
    let prepared = folder.try_prepare("out", &inputs, &config, None).unwrap();
    assert_eq!((prepared.dataset.rows(), prepared.losses.empty_files.count), (2, 2));
    let alone = look(&inputs[1..2]).err().unwrap();
    let text = "expected rows after the header, got only a header of 2 columns";
    assert!(alone.to_string().ends_with(text), "{alone}");
    assert!(matches!(look(&inputs[..1]), Err(Error::EmptyInput { .. })));
}

#[test]
fn a_column_that_alone_predicts_the_label_is_a_leak() {
    let folder = Folder::new();
    let mut text = "click,bought_at,reason,amount,shop\n".to_owned();
    for row in 0..ROWS {
        let click = draw(row).is_multiple_of(3);
        let bought_at = if click { format!("2024-01-{:02}", 1 + row % 28) } else { String::new() };
        let reason = if click { ["ad", "mail"][row as usize % 2] } else { "none" };
        let (amount, shop) = (100 * u64::from(click) + draw(row) % 90, draw(row) / 8 % 12);
        writeln!(text, "{},{bought_at},{reason},{amount},s{shop}", u8::from(click)).unwrap();
    }
    let found = look(&[folder.file("rows.csv", text.as_bytes())]).unwrap();
    let leaks = profile::find_leaks(&found, &LabelColumn::new("click"));
    assert!(leaks.iter().map(|leak| &*leak.column).eq(["bought_at", "reason", "amount"]));
    assert!(leaks.iter().all(|leak| leak.auc > 0.98), "{leaks:?}");
}
