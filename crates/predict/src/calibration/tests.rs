use super::nearest::find;

fn ns(known: &[(&str, f64)], detail: &str, alone: f64) -> Option<i64> {
    find(known, detail, alone).map(|near| near.ns.round() as i64)
}

#[test]
fn between_two_sizes_time_grows_as_the_power_that_joins_them() {
    let known = [("16x8 float", 100.0), ("64x8 float", 400.0), ("32x32 float", 7.0)];
    assert_eq!(ns(&known, "32x8 float", 1.0), Some(200));
    // Twice as long for four times as much: a square root.
    let known = [("16, 16", 100.0), ("64, 64", 200.0)];
    assert_eq!(ns(&known, "32, 32", 1.0), Some(141));
}

#[test]
fn beyond_two_sizes_it_grows_at_most_with_them() {
    let known = [("16", 100.0), ("64", 200.0)];
    assert_eq!(ns(&known, "256", 1.0), Some(400));
    assert_eq!(ns(&[("16", 100.0), ("64", 1_600.0)], "256", 1.0), Some(6_400));
    assert_eq!(ns(&[("16", 100.0), ("64", 90.0)], "256", 1.0), Some(90));
}

#[test]
fn of_one_size_alone_it_grows_as_told() {
    assert_eq!(ns(&[("16x4 f", 100.0)], "32x4 f", 1.0), Some(200));
    assert_eq!(ns(&[("16x4 f", 100.0)], "32x4 f", 0.0), Some(100));
}

#[test]
fn only_sizes_of_the_same_form_compare() {
    assert_eq!(ns(&[("16x4 float", 100.0)], "16 float", 1.0), None);
    assert_eq!(ns(&[("float", 100.0)], "float", 1.0), None);
    assert_eq!(ns(&[], "16", 1.0), None);
    let huge = "99999999999999999999999999";
    assert!(ns(&[(huge, 100.0)], "0", 1.0).is_some_and(|ns| ns >= 0));
}
