use super::nearest::find;

fn ns(known: &[(&str, f64)], detail: &str, alone: f64) -> Option<i64> {
    find(known, detail, alone).map(|near| near.ns.round() as i64)
}

#[test]
fn interpolation_follows_the_power_law() {
    let known = [("16x8 float", 100.0), ("64x8 float", 400.0), ("32x32 float", 7.0)];
    assert_eq!(ns(&known, "32x8 float", 1.0), Some(200));
    // Four times the size takes twice as long, so time grows with the square root of the size.
    let known = [("16, 16", 100.0), ("64, 64", 200.0)];
    assert_eq!(ns(&known, "32, 32", 1.0), Some(141));
}

#[test]
fn extrapolation_grows_at_most_linearly() {
    let known = [("16", 100.0), ("64", 200.0)];
    assert_eq!(ns(&known, "256", 1.0), Some(400));
    assert_eq!(ns(&[("16", 100.0), ("64", 1_600.0)], "256", 1.0), Some(6_400));
    assert_eq!(ns(&[("16", 100.0), ("64", 90.0)], "256", 1.0), Some(90));
}

#[test]
fn one_known_size_grows_with_the_given_exponent() {
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

#[test]
fn sizes_on_a_line_take_precedence_over_nearer_sizes() {
    // In each dimension 1024x64 lies between 1024x48 and 2048x96. These two shapes are nearer than
    // 512x64 and 2048x64, which differ from it by the batch size alone.
    let known = [
        ("512x64 float", 100.0),
        ("2048x64 float", 400.0),
        ("1024x48 float", 10.0),
        ("2048x96 float", 30.0),
    ];
    assert_eq!(ns(&known, "1024x64 float", 1.0), Some(200));
    // Sizes that differ by one common factor lie on one line, even if the factor occurs twice. In a
    // gradient, the batch size is a dimension of both matrices.
    let known = [("64x512 float, 32x512 float", 100.0), ("64x2048 float, 32x2048 float", 400.0)];
    let near = find(&known, "64x1024 float, 32x1024 float", 1.0).expect("sizes");
    assert!(near.is_between && (near.ns - 200.0).abs() < 1e-9, "{near:?}");
    // Sizes that differ by two different factors are not on a line.
    let near = find(&known, "64x1024 float, 32x1536 float", 1.0).expect("sizes");
    assert!(!near.is_between, "{near:?}");
}

#[test]
fn sizes_with_more_work_are_not_between_two_others() {
    let known = [("16; 160 FLOP, 1600 B", 100.0), ("64; 640 FLOP, 6400 B", 400.0)];
    let is_between = |detail: &str| find(&known, detail, 1.0).map(|near| near.is_between);
    assert_eq!(is_between("32; 320 FLOP, 3200 B"), Some(true));
    assert_eq!(is_between("32; 320 FLOP, 9600 B"), Some(false));
    // Works of equal tensor sizes are distinguished by their FLOPs and bytes.
    let known = [("16; 160 FLOP, 1000 B", 100.0), ("16; 160 FLOP, 4000 B", 400.0)];
    assert_eq!(ns(&known, "16; 160 FLOP, 2000 B", 1.0), Some(200));
}

#[test]
fn distant_sizes_are_not_interpolated() {
    let known = [("512x1 float", 160.0), ("512x1024 float", 4_912.0)];
    let near = find(&known, "512x512 float", 1.0).expect("sizes");
    assert!(!near.is_between, "{near:?}");
    let near = find(&[("512x64 float", 300.0), known[1]], "512x512 float", 1.0).expect("sizes");
    assert!(near.is_between, "{near:?}");
}
