//! Checks that predicted kernel times stay within their bounds, and that invalid sizes, tables and
//! files are rejected.

use kernel_model::measured::{Table, operation};
use kernel_model::{
    Element, Error, KernelModel, Kind, Measured, Part, Price, Timed, Work, evaluate, few_shot,
    physics_ns, roofline_ns, shipped, train,
};
use schema::HardwareSpec;
use schema::random::CounterRng;
use schema::topology::{HARDWARE, hardware};

fn device(key: &str) -> &'static HardwareSpec {
    hardware(key).expect("a known device")
}

/// Draws a kernel with sizes from 1 to some thousands.
fn any(kind: Kind, random: CounterRng) -> Work {
    let size = |at: u64| 1 + (2f64.powf(12.0 * random.unit(at))) as u64;
    let sizes = match kind {
        Kind::Linear => vec![size(0), size(1), size(2)],
        Kind::Bmm => vec![1 + size(0) / 8, size(1) / 4 + 1, size(2) / 4 + 1, size(3) / 4 + 1],
        Kind::Conv => {
            let kernel = 1 + random.below(4, 5);
            let image = kernel + random.below(5, 40);
            vec![1 + size(0) / 64, size(1), size(2), kernel, image, 1 + random.below(6, 2), 1]
        }
        Kind::LayerNorm | Kind::Softmax => vec![size(0), size(1)],
        Kind::ElementWise => {
            let element = Element::ALL[random.below(7, 5) as usize];
            return Work::element_wise(element, size(0) * size(1)).expect("a work");
        }
    };
    Work::new(kind, &sizes).expect("a work")
}

#[test]
fn no_price_is_below_physics_or_outside_its_own_interval() {
    for kind in Kind::ALL {
        let model = shipped::model(kind).expect("a model");
        for number in 0..400 {
            let work = any(kind, CounterRng::new(7, number));
            for device in &HARDWARE {
                let price = model.price(&work, device);
                let physics = physics_ns(&work, device);
                let order = [physics, price.low_ns, price.mean_ns, price.high_ns];
                // Allow for rounding errors, because the prediction multiplies and divides the
                // physical limit.
                let is_ordered = order.windows(2).all(|pair| pair[0] <= pair[1] * (1.0 + 1e-12));
                let is_right = is_ordered && price.high_ns.is_finite();
                assert!(is_right, "{work} {}: {price:?}", device.key);
            }
        }
    }
}

#[test]
fn extrapolation_is_reported_and_widens_the_interval() {
    let model = shipped::model(Kind::Linear).expect("a model");
    let work = |m: u64| Work::new(Kind::Linear, &[m, 1024, 1024]).expect("a work");
    let width = |price: Price| price.high_ns / price.low_ns;
    let inside = model.price(&work(2048), device("a100"));
    assert!(inside.domain.is_inside(), "{inside:?}");
    let outside = model.price(&work(1 << 24), device("a100"));
    let size = outside.domain.outside.expect("a size");
    assert_eq!((size.size, size.asked), ("m", 1 << 24));
    assert!(size.most < 1 << 24 && width(outside) > width(inside), "{outside:?}");
    let unseen = model.price(&work(2048), device("h100"));
    assert!(unseen.domain.is_unseen_device && width(unseen) > width(inside), "{unseen:?}");
    let sum = Work::element_wise(Element::Add, 4096).expect("a work");
    let hidden = shipped::model(Kind::ElementWise).expect("a model").price(&sum, device("a100"));
    assert!(hidden.domain.is_under_floor && hidden.mean_ns < 25_000.0, "{hidden:?}");
}

#[test]
fn invalid_sizes_are_rejected() {
    let refused = |kind, sizes: &[u64], expected: &str| {
        let error = Work::new(kind, sizes).expect_err("no work").to_string();
        assert!(error.contains(expected), "{error}");
    };
    refused(Kind::Linear, &[0, 5, 5], "m above 0");
    refused(Kind::Linear, &[5, 5], "3 sizes: m, n, k");
    refused(Kind::Linear, &[1 << 40, 1 << 40, 1 << 40], "fewer than 2^63");
    refused(Kind::Bmm, &[u64::MAX, u64::MAX, u64::MAX, u64::MAX], "fewer than 2^63");
    refused(Kind::Conv, &[1, 1, 1, 9, 5, 1, 1], "no larger than the padded input");
    refused(Kind::Conv, &[1, 1, 1, 3, 5, 1, u64::MAX], "padding below 2^31");
    refused(Kind::ElementWise, &[5], "the name of an operation");
    assert!(Work::new(Kind::Conv, &[1, 3, 8, 3, 32, 1, 0]).is_ok(), "padding may be 0");
    let error = operation("gemmm").expect_err("unknown").to_string();
    assert!(error.contains("linear") && error.contains("tanh"), "{error}");
}

/// Creates a table of layer norms that take three times their roofline time, but at least 40 µs.
fn table(device: &str, rows: u64) -> Vec<Measured> {
    let header = ["OPName", "Latency", "Device", "B", "H", "more"].map(str::to_owned).to_vec();
    let mut table = Table::new(header).expect("all columns");
    let spec = hardware(device).expect("a device");
    for row in 0..rows {
        let random = CounterRng::new(3, row);
        let sizes = [1 + random.below(0, 20_000), 32 * (1 + random.below(1, 64))];
        let work = Work::new(Kind::LayerNorm, &sizes).expect("a work");
        let noise = 1.0 + 0.02 * (random.unit(2) - 0.5);
        let ns = (3.0 * roofline_ns(&work, spec)).max(40_000.0) * noise;
        let fields = [(ns / 1e6).to_string(), sizes[0].to_string(), sizes[1].to_string()];
        let [latency, b, h] = fields.each_ref().map(String::as_str);
        table.add(row + 2, &["ln", latency, device, b, h, "x"]).expect("a known row");
    }
    table.finish().expect("rows")
}

fn three_devices() -> Vec<Measured> {
    ["v100", "a100", "t4"].into_iter().flat_map(|device| table(device, 500)).collect()
}

#[test]
fn a_model_is_the_same_bytes_for_any_number_of_threads_and_comes_back() {
    let rows = three_devices();
    let bytes = |threads| {
        let model = train(Kind::LayerNorm, &rows, Vec::new(), threads).expect("a model");
        model.to_bytes().expect("bytes")
    };
    let one = bytes(1);
    assert!([2, 7].into_iter().all(|threads| bytes(threads) == one));
    let model = KernelModel::from_bytes(&one).expect("a model");
    assert_eq!(model.to_bytes().expect("bytes"), one);
    for row in evaluate::evaluate_model(&model, &rows, Part::Test) {
        assert!(row.mape_pct < 3.0 && row.mape_pct < 0.2 * row.roofline_mape_pct, "{row:?}");
        assert!((80.0..=100.0).contains(&row.covered_pct), "{row:?}");
    }
    // Every flipped bit and every truncation must be detected.
    for at in (0..one.len()).step_by(997) {
        let mut damaged = one.clone();
        damaged[at] ^= 1;
        assert!(KernelModel::from_bytes(&damaged).is_err(), "byte {at}");
        assert!(KernelModel::from_bytes(&one[..at]).is_err(), "cut at {at}");
    }
    let other =
        zstd::bulk::compress(br#"{"rowmill_kernel_model": 9, "model": {}}"#, 1).expect("bytes");
    let error = KernelModel::from_bytes(&other).expect_err("another version").to_string();
    assert!(error.contains("expected version 5, got version 9"), "{error}");
}

#[test]
fn a_device_is_predicted_from_others_and_better_by_a_few_of_its_rows() {
    let rows = three_devices();
    let model = train(Kind::LayerNorm, &rows, Vec::new(), 2).expect("a model");
    let left_out = model.without_device(&rows, device("t4"));
    let errors = evaluate::evaluate_model(&left_out, &rows, Part::Test);
    let unseen = errors.iter().find(|row| row.device == "t4").expect("the device");
    assert!(unseen.mape_pct < unseen.roofline_mape_pct, "{unseen:?}");
    assert!(left_out.find_device(device("t4")).is_none());
    let few = &table("h100", 20);
    let adapted = few_shot::calibrate(model.clone(), few).expect("enough rows");
    let again = KernelModel::from_bytes(&adapted.to_bytes().expect("bytes")).expect("a model");
    assert_eq!(again, adapted);
    let work = Work::new(Kind::LayerNorm, &[15_000, 1024]).expect("a work");
    let price = again.price(&work, device("h100"));
    assert!(!price.domain.is_unseen_device && model.price(&work, device("h100")) != price);
    assert!(price.domain.is_adapted && !price.domain.is_inside(), "{price:?}");
    let error = few_shot::calibrate(model.clone(), &few[..4]).expect_err("too few");
    assert!(matches!(error, Error::TooFew { expected: 5, got: 4, .. }), "{error}");
    for factor in [1e-3, 1e3] {
        let scale = |row: &Measured| Measured { latency_ns: factor * row.latency_ns, ..*row };
        let scaled: Vec<Measured> = few.iter().map(scale).collect();
        let error = few_shot::calibrate(model.clone(), &scaled).expect_err("another unit");
        assert!(matches!(error, Error::Unlikely { .. }), "{error}");
    }
}

#[test]
fn kernels_timed_alone_have_no_launch_overhead() {
    let h200 = device("h200");
    for (kind, factor) in [(Kind::Linear, 1.5), (Kind::Bmm, 3.0), (Kind::LayerNorm, 1.7)] {
        let row = |number: u64| {
            let work = any(kind, CounterRng::new(11, number));
            let (latency_ns, timed) = (factor * roofline_ns(&work, h200), Timed::Kernel);
            Measured { work, device: h200, latency_ns, timed, place: number as u32 }
        };
        let rows = |from: u64, to: u64| (from..to).map(row).collect::<Vec<_>>();
        let model = shipped::model(kind).expect("a model");
        let adapted = few_shot::calibrate(model.clone(), &rows(0, 60)).expect("enough rows");
        let again = KernelModel::from_bytes(&adapted.to_bytes().expect("bytes")).expect("a model");
        assert_eq!(again, adapted);
        // Test kernels that are longer than the lowest predicted time, but far shorter than any
        // launch overhead.
        let tested = rows(60, 900).into_iter().filter(|row| row.latency_ns > 2_500.0);
        let tested: Vec<Measured> = tested.collect();
        assert!(tested.iter().filter(|row| row.latency_ns < 20_000.0).count() > 20);
        let error = |model: &KernelModel, row: &Measured| {
            (model.price(&row.work, h200).mean_ns / row.latency_ns - 1.0).abs()
        };
        for row in &tested {
            let price = adapted.price(&row.work, h200);
            let domain = price.domain;
            assert!(!domain.is_under_floor && !domain.is_unseen_device, "{price:?}");
        }
        let mean = |model: &KernelModel| {
            tested.iter().map(|row| error(model, row)).sum::<f64>() / tested.len() as f64
        };
        assert!(mean(&adapted) < 0.03, "{kind:?}: {}", mean(&adapted));
        assert!(mean(&model) > 0.2, "{kind:?}: {}", mean(&model));
        let few = few_shot::calibrate(model, &rows(0, 4)).expect_err("too few");
        assert!(matches!(few, Error::TooFew { expected: 5, got: 4, .. }), "{few}");
    }
}

#[test]
fn rows_that_are_not_measurements_are_counted() {
    let header = |names: &str| names.split(',').map(str::to_owned).collect::<Vec<_>>();
    let without = Table::new(header("OPName,Device,B,H"));
    assert!(matches!(without.err(), Some(Error::Column { column: "Latency", .. })));
    let mut table = Table::new(header("OPName,Latency,Device,B,H")).expect("all columns");
    let rows = ["0.5,V,8,8", "0,V,8,8", "-1,V,8,8", "nan,V,8,8", "1,V,0,8", "1,V,x,8", "1,V,8"];
    for (line, row) in (2..).zip(rows) {
        let row = format!("add,{}", row.replace('V', "Tesla V100-PCIE-32GB"));
        table.add(line, &row.split(',').collect::<Vec<_>>()).expect("a known operation");
    }
    let error = table.finish().expect_err("six rows are none").to_string();
    assert!(error.starts_with("6 of 7 rows are not measurements; line 3:"), "{error}");
    let mut table = Table::new(header("OPName,Latency,Device,B,H")).expect("all columns");
    let unknown = table.add(2, &["add", "1", "Tesla V99", "8", "8"]).expect_err("unknown");
    assert!(unknown.to_string().contains("similar names are "), "{unknown}");
    let linear = ["linear", "1", "Tesla T4", "8", "8"];
    let error = table.add(3, &linear).expect_err("no column of sizes");
    assert!(matches!(error, Error::Column { column: "M", .. }), "{error}");
}
