//! Tests of hardware names, and of links whose times never decrease.

use super::{
    HARDWARE, HOSTS, HardwareError, HardwareSpec, HostFabric, Link, LinkError, ProductFormat,
    Topology, add_hardware, hardware,
};

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
    let cards = Link::cards(8, 400.0, 8, 15.0);
    for link in [falling, Link::network(), cards] {
        let times: Vec<f64> = (0..40).map(|power| link.ns(1.5f64.powi(power))).collect();
        assert!(times.is_sorted(), "{times:?}");
    }
    assert_eq!(Link::new(&[], "").unwrap_err(), LinkError::Empty);
    for point in [(0.0, 1.0), (1.0, 0.0), (f64::NAN, 1.0), (1.0, f64::INFINITY)] {
        assert!(matches!(Link::new(&[point], ""), Err(LinkError::Point { .. })));
    }
}

#[test]
fn ready_made_hosts_have_their_own_links() {
    for host in &HOSTS {
        let topology = Topology::parse(host.key).unwrap();
        assert_eq!((topology.hosts, topology.ranks_per_host), (1, host.devices));
        assert_eq!(topology.within, host.fabric);
        assert!(!host.source.is_empty() && host.fabric.all_to_all <= host.fabric.ring);
    }
    let cluster = Topology::parse("16xdgx-h100").unwrap();
    assert_eq!((cluster.hosts, cluster.ranks()), (16, 128));
    // Eight cards of 400 Gbit/s for eight ranks: 0.8 of 50 GB/s each.
    let gb_per_s = 1e9 / (cluster.between.ns(2e9) - cluster.between.ns(1e9));
    assert!((gb_per_s - 40.0).abs() < 0.1, "{gb_per_s}");
    let half = Topology::parse("dgx-2x8").unwrap();
    assert_eq!((half.ranks_per_host, &*half.device.key), (8, "v100-sxm3"));
    assert!(matches!(Topology::parse("dgx-1x16"), Err(HardwareError::Count { .. })));
    let unknown = Topology::parse("dgx-3").unwrap_err();
    let HardwareError::Unknown { near, .. } = &unknown else { panic!("{unknown}") };
    assert!(near[0].starts_with("dgx-"), "{near:?}");
}

#[test]
fn topology_files_replace_links() {
    let text = "hardware = \"4xa100-sxm4-80gbx8\"\n[within]\nname = \"half NVLink\"\n\
                ring_gb_per_s = 150\nall_to_all_gb_per_s = 100\n\
                [between]\nnics_per_host = 2\ngbit_per_s = 100\nlatency_us = 5\n";
    let read = Topology::from_toml(text).unwrap();
    let within = HostFabric { name: "half NVLink".into(), ring: 150.0, all_to_all: 100.0 };
    assert_eq!((read.ranks(), &read.within), (32, &within));
    assert_eq!(read.between, Link::cards(2, 100.0, 8, 5.0));
    let points = "hardware = \"2xdgx-1\"\n[between]\npoints = [[1000, 20], [1e6, 120.5]]\n";
    let read = Topology::from_toml(points).unwrap();
    assert!((read.between.ns(1e6) - 120_500.0).abs() < 1e-6);
    for (text, expected) in [
        ("hardware = \"b300\"", "expected the name of a known device"),
        ("hosts = 3", "hardware, [within] and [between]"),
        ("hardware = \"2xa100\"\n[between]\nnics_per_host = 2", "nics_per_host and gbit_per_s"),
        ("hardware = \"2xa100\"\n[between]\npoints = [[5, 1], [1, 2]]", "rising order"),
        ("hardware = \"dgx-1\"\n[between]\npoints = [[1, 1], [5, 2]]", "several hosts"),
        (
            "hardware = \"a100\"\n[within]\nname = \"x\"\nring_gb_per_s = 0\n\
             all_to_all_gb_per_s = 1",
            "from 0.001 to 1000000 in [within]",
        ),
        (
            "hardware = \"2xa100\"\n[between]\nnics_per_host = 2\ngbit_per_s = 1e-300",
            "from 0.001 to 1000000 in [between]",
        ),
        ("hardware = \"2xa100\"\n[between]\npoints = [[1, 5], [9, 4]]", "do not fall"),
        ("hardware = \"2xa100\"\n[between]\npoints = [[1, 1e-300]]", "do not fall"),
    ] {
        let error = Topology::from_toml(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn devices_have_the_formats_of_their_data_sheets() {
    let formats = |key: &str| {
        let device = hardware(key).unwrap();
        let known = ProductFormat::ALL.into_iter();
        known.filter(|format| device.peak_rate(*format).is_ok()).collect::<Vec<_>>()
    };
    use ProductFormat::{Bf16, F16, F32, Tf32};
    assert_eq!(formats("p4"), [F32]);
    assert_eq!(formats("p100"), [F32, F16]);
    assert_eq!(formats("v100-sxm3"), [F32, F16]);
    assert_eq!(formats("t4"), [F32, F16]);
    assert_eq!(formats("a100"), [F32, Tf32, Bf16, F16]);
    let error = hardware("v100").unwrap().peak_rate(Bf16).unwrap_err().to_string();
    assert_eq!(error, "precision of \"v100\": expected one of f32, fp16, got bf16");
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
    spec.key = "none".into();
    // 3,350 is the bandwidth in GB/s instead of bytes per second.
    for dram in [f64::NAN, 0.0, 3_350.0] {
        let error = add_hardware(HardwareSpec { dram, ..spec.clone() }).unwrap_err().to_string();
        assert!(error.contains("expected dram from 1e9 to 1e16"), "{error}");
    }
}
