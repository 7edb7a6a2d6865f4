use super::{ErrorInterval, quantiles};

#[test]
fn nine_of_ten_new_values_lie_between_the_quantiles() {
    // With 99 values, a new value has 100 possible ranks, and 5 of them lie outside at each end.
    let (low, high) = quantiles((1..100).map(f64::from));
    assert_eq!((low, high), (5.0, 95.0));
    assert_eq!(quantiles([3.0, 1.0].into_iter()), (1.0, 3.0), "all there are");
    assert_eq!(quantiles(std::iter::empty()), (-1.0, 1.0));
}

#[test]
fn an_interval_has_groups_by_the_distance_from_the_floor() {
    // 400 rows near the launch overhead have errors up to 1 %, and 400 rows far above it have
    // errors up to 10 %.
    let row = |at: u16| {
        let (above, most) = if at < 400 { (0.0, 0.01) } else { (2.0, 0.1) };
        let above = above + f32::from(at * 77 % 400) / 1_000.0;
        (above, most * (f64::from(at % 400) / 200.0 - 1.0))
    };
    let interval = ErrorInterval::from_rows((0..800).map(row).collect());
    let width = |above: f32| {
        let (low, high) = interval.at(above);
        high.ln() - low.ln()
    };
    assert!((width(0.0) - 0.018).abs() < 0.001, "{}", width(0.0));
    assert!((width(2.5) - 0.18).abs() < 0.01, "{}", width(2.5));
}
