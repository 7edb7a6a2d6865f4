use schema::topology::hardware;

use super::by_device;
use crate::{Kind, Measured, Timed, Work, roofline_ns};

/// Creates kernels that take twice their roofline time, but at least 40 µs. One third of them take
/// 3 % more, and one third take 3 % less.
fn rows(kind: Kind, sizes: impl Fn(u64) -> Vec<u64>) -> Vec<Measured> {
    let device = hardware("v100").expect("a device");
    let measured = |place: u32| {
        let work = Work::new(kind, &sizes(u64::from(place))).expect("a work");
        let noise = 0.97 + 0.03 * f64::from(place % 3);
        let latency_ns = (2.0 * roofline_ns(&work, device)).max(40_000.0) * noise;
        Measured { work, device, latency_ns, timed: Timed::Call, place }
    };
    (0..600).map(measured).collect()
}

#[test]
fn hidden_memory_bound_kernels_count_as_launch_overhead() {
    let norms = rows(Kind::LayerNorm, |at| vec![8 * (1 + at), 32 * (1 + at * 7 % 60)]);
    let devices = by_device(Kind::LayerNorm, &norms);
    let device = &devices[0];
    let hidden = |row: &&Measured| roofline_ns(&row.work, row.device) < 0.3 * device.floor_ns(row);
    let (short, long): (Vec<&Measured>, Vec<&Measured>) = norms.iter().partition(hidden);
    assert!(short.iter().any(|row| device.latency_ns(row) > 1.02 * device.floor_ns(row)));
    assert!(short.iter().all(|row| !device.is_above_floor(row)));
    let far = |row: &&&Measured| roofline_ns(&row.work, row.device) > 40_000.0;
    assert!(long.iter().filter(far).count() > 20);
    assert!(long.iter().filter(far).all(|row| device.is_above_floor(row)));
}

#[test]
fn small_products_longer_than_the_overhead_count_in_errors() {
    let products = rows(Kind::Linear, |at| vec![8 * (1 + at), 64, 32 * (1 + at * 7 % 60)]);
    let devices = by_device(Kind::Linear, &products);
    let device = &devices[0];
    let short = |row: &&Measured| roofline_ns(&row.work, row.device) < 0.3 * device.floor_ns(row);
    let short: Vec<&Measured> = products.iter().filter(short).collect();
    let above = |row: &&&Measured| device.latency_ns(row) > device.floor_ns(row);
    let counted = short.iter().filter(|row| device.is_above_floor(row)).count();
    assert_eq!(counted, short.iter().filter(above).count());
    assert!(counted > 100, "{counted}");
}
