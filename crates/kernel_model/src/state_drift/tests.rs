use super::{DriftSample, StateDrift};

/// Creates 400 rows whose sizes do not depend on their position. The row at `place` takes
/// `log_residual(place)` longer, as a logarithm.
fn rows(log_residual: impl Fn(u32) -> f64) -> Vec<DriftSample> {
    let row = |place: u32| DriftSample {
        place,
        size: f64::from(place * 7919 % 400) / 100.0,
        // The fixture has noise: one third of the rows takes a little longer, and one third a
        // little less.
        log_residual: log_residual(place) + 0.01 * (f64::from(place % 3) - 1.0),
    };
    (0..400).map(row).collect()
}

#[test]
fn a_device_that_speeds_up_has_state_drift() {
    let pace = StateDrift::fit(rows(|place| if place < 300 { 0.0 } else { -0.2 }));
    assert!(pace.at(100, 2.0).abs() < 0.02, "{}", pace.at(100, 2.0));
    assert!((pace.at(350, 2.0) + 0.2).abs() < 0.02, "{}", pace.at(350, 2.0));
}

#[test]
fn a_constant_device_has_no_state_drift() {
    assert_eq!(StateDrift::fit(rows(|_| 0.0)), StateDrift::default());
    assert_eq!(StateDrift::default().at(7, 1.0), 0.0);
}

#[test]
fn few_rows_give_no_state_drift() {
    let mut few = rows(|place| if place < 300 { 0.0 } else { -0.2 });
    few.truncate(150);
    assert_eq!(StateDrift::fit(few), StateDrift::default());
}

#[test]
fn a_row_does_not_affect_its_own_drift() {
    let mut rows = rows(|place| if place < 300 { 0.0 } else { -0.2 });
    let before = StateDrift::fit(rows.clone()).at(100, rows[100].size);
    rows[100].log_residual = 5.0;
    let after = StateDrift::fit(rows.clone()).at(100, rows[100].size);
    assert!((before - after).abs() < 0.01, "{before} {after}");
}
