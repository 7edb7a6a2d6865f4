use super::{Pace, Seen};

/// 400 rows of sizes that do not depend on their place, which take `off` more at theirs.
fn rows(off: impl Fn(u32) -> f64) -> Vec<Seen> {
    let row = |place: u32| Seen {
        place,
        size: f64::from(place * 7919 % 400) / 100.0,
        // Two in three are a little off, either way.
        off: off(place) + 0.01 * (f64::from(place % 3) - 1.0),
    };
    (0..400).map(row).collect()
}

#[test]
fn a_device_that_becomes_faster_is_noticed() {
    let pace = Pace::of(rows(|place| if place < 300 { 0.0 } else { -0.2 }));
    assert!(pace.at(100, 2.0).abs() < 0.02, "{}", pace.at(100, 2.0));
    assert!((pace.at(350, 2.0) + 0.2).abs() < 0.02, "{}", pace.at(350, 2.0));
}

#[test]
fn a_device_that_stays_the_same_has_no_pace() {
    assert_eq!(Pace::of(rows(|_| 0.0)), Pace::default());
    assert_eq!(Pace::default().at(7, 1.0), 0.0);
}

#[test]
fn few_rows_say_nothing_of_a_state() {
    let mut few = rows(|place| if place < 300 { 0.0 } else { -0.2 });
    few.truncate(150);
    assert_eq!(Pace::of(few), Pace::default());
}

#[test]
fn a_row_says_nothing_of_itself() {
    let mut rows = rows(|place| if place < 300 { 0.0 } else { -0.2 });
    let before = Pace::of(rows.clone()).at(100, rows[100].size);
    rows[100].off = 5.0;
    let after = Pace::of(rows.clone()).at(100, rows[100].size);
    assert!((before - after).abs() < 0.01, "{before} {after}");
}
