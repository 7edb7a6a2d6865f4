//! Tests of hardware names, and of links whose times never decrease.

use super::{HARDWARE, HardwareError, Link, LinkError, Topology, add_hardware, hardware};

#[test]
fn unknown_device_error_lists_similar_names() {
    let error = hardware("v10").unwrap_err();
    let HardwareError::Unknown { near, .. } = &error else { panic!("{error}") };
    assert_eq!(near[0], "v100");
    assert!(hardware("nvidia a100-pcie-40gb").is_ok(), "the driver's name in any case");
}

#[test]
fn topologies_are_hosts_times_devices() {
    let shape =
        |text: &str| Topology::parse(text).map(|t| (t.device.key, t.hosts, t.ranks_per_host));
    assert_eq!(shape("h100"), Ok(("h100".into(), 1, 1)));
    assert_eq!(shape("h100x8"), Ok(("h100".into(), 1, 8)));
    assert_eq!(shape("4xh100x8"), Ok(("h100".into(), 4, 8)));
    // The names of these devices contain an `x`, inside (`titan-xp`) or at the end (`mi300x`).
    assert_eq!(shape("titan-xpx2"), Ok(("titan-xp".into(), 1, 2)));
    assert_eq!(shape("2xmi300xx8"), Ok(("mi300x".into(), 2, 8)));
    for text in ["h100x0", "0xh100x8", "h100x99999999999"] {
        assert_eq!(shape(text), Err(HardwareError::Count { text: text.to_owned() }));
    }
    assert!(matches!(shape("b300x8"), Err(HardwareError::Unknown { .. })));
}

#[test]
fn rows_have_sources_and_stay_below_their_peaks() {
    for row in &HARDWARE {
        assert!(!row.source.is_empty() && row.peak.f32 > 1e12 && row.multiprocessors > 0);
        assert!(row.dram_sustained.is_none_or(|reached| reached < row.dram), "{}", row.key);
        assert!(row.sustained_f32.is_none_or(|reached| reached < row.peak.f32), "{}", row.key);
        assert_eq!(hardware(&row.name), Ok(row), "keys and names are distinct");
    }
}

#[test]
fn longer_messages_never_take_less_time() {
    let falling = Link::new(&[(1e3, 9e3), (1e4, 7e3), (1e6, 1e5)], "made up").unwrap();
    let within = HARDWARE.iter().map(Link::within);
    for link in [falling, Link::network()].into_iter().chain(within) {
        let times: Vec<f64> = (0..40).map(|power| link.ns(1.5f64.powi(power))).collect();
        assert!(times.is_sorted(), "{times:?}");
    }
    assert_eq!(Link::new(&[], "").unwrap_err(), LinkError::Empty);
    for point in [(0.0, 1.0), (1.0, 0.0), (f64::NAN, 1.0), (1.0, f64::INFINITY)] {
        assert!(matches!(Link::new(&[point], ""), Err(LinkError::Point { .. })));
    }
}

#[test]
fn large_messages_reach_the_assumed_bandwidth() {
    let gb_per_s = |key: &str| {
        let link = Link::within(hardware(key).unwrap());
        1e9 / (link.ns(2e9) - link.ns(1e9))
    };
    assert!((gb_per_s("v100-sxm2") - 120.0).abs() < 0.1);
    assert!((gb_per_s("h100") - 360.0).abs() < 0.1);
    assert!((gb_per_s("t4") - 12.6).abs() < 0.1);
}

#[test]
fn added_devices_are_found_and_must_differ_from_known_ones() {
    let mut spec = hardware("h100").unwrap().clone();
    assert_eq!(add_hardware(spec.clone()), Ok(hardware("h100").unwrap()), "added again");
    spec.dram *= 2.0;
    assert_eq!(add_hardware(spec.clone()), Err(HardwareError::Known { key: "h100".to_owned() }));
    (spec.key, spec.name) = ("twice-h100".into(), "Twice H100".into());
    let added = add_hardware(spec.clone()).unwrap();
    assert_eq!(hardware("Twice H100"), Ok(added));
    assert_eq!(Topology::parse("twice-h100x8").unwrap().device, *added);
    (spec.key, spec.dram) = ("none".into(), f64::NAN);
    let error = add_hardware(spec).unwrap_err().to_string();
    assert!(error.contains("dram above 0"), "{error}");
}
