use schema::HardwareSpec;
use schema::random::CounterRng;
use schema::topology::hardware;

use super::{DeviceTransfer, interpolate};
use crate::{Element, Kind, Work, roofline_ns, shipped};

/// Positions of the sizes that make a kernel of a kind larger. A larger window or stride makes the
/// output of a convolution smaller.
fn growing(kind: Kind) -> &'static [usize] {
    match kind {
        Kind::Conv => &[0, 1, 2, 4, 6],
        Kind::Linear => &[0, 1, 2],
        Kind::Bmm => &[0, 1, 2, 3],
        Kind::LayerNorm | Kind::Softmax => &[0, 1],
        Kind::ElementWise => &[0],
    }
}

fn work(kind: Kind, sizes: &[u64]) -> Option<Work> {
    match kind {
        Kind::ElementWise => Work::element_wise(Element::Gelu, sizes[0]).ok(),
        _ => Work::new(kind, sizes).ok(),
    }
}

fn draw_sizes(kind: Kind, random: CounterRng) -> Vec<u64> {
    let size = |at: u64, most: f64| 1 + most.powf(random.unit(at)) as u64;
    match kind {
        Kind::Conv => {
            let image = 7 + size(3, 250.0);
            vec![
                size(0, 64.0),
                size(1, 2048.0),
                size(2, 2048.0),
                1 + random.below(4, 6),
                image,
                1,
                1,
            ]
        }
        _ => (0..kind.sizes().len()).map(|at| size(at as u64, 1e5)).collect(),
    }
}

fn draw_device(random: CounterRng) -> HardwareSpec {
    let mut device = hardware("a100-80gb").expect("a device").clone();
    device.peak.f32 = 3e12 * 40f64.powf(random.unit(20));
    device.dram = 1e11 * 60f64.powf(random.unit(21));
    device
}

fn kernel_ns(transfer: &DeviceTransfer, work: &Work, device: &HardwareSpec) -> f64 {
    let latency = transfer.latency(work, device, transfer.factors(device), 30_000.0);
    latency.kernel_ns.expect("a kernel")
}

#[test]
fn times_never_fall_with_a_size_or_grow_with_a_rate() {
    for kind in Kind::ALL {
        let transfer = shipped::model(kind).expect("a model").transfer;
        let mut pairs = 0;
        for number in 0..4_000 {
            let random = CounterRng::new(5, number);
            let (sizes, device) = (draw_sizes(kind, random), draw_device(random.child(1)));
            let mut larger = sizes.clone();
            for &at in growing(kind) {
                if random.below(30 + at as u64, 2) == 0 {
                    larger[at] = (larger[at] as f64 * 3f64.powf(random.unit(40))) as u64;
                    larger[at] += random.below(50, 3);
                }
            }
            let (Some(small), Some(large)) = (work(kind, &sizes), work(kind, &larger)) else {
                continue;
            };
            pairs += 1;
            let slow_ns = kernel_ns(&transfer, &small, &device);
            let larger_ns = kernel_ns(&transfer, &large, &device);
            assert!(slow_ns <= larger_ns * (1.0 + 1e-9), "{small} {slow_ns}, {large} {larger_ns}");
            let mut faster = device.clone();
            match random.below(60, 3) {
                0 => faster.peak.f32 *= 1.0 + 3.0 * random.unit(61),
                1 => faster.dram *= 1.0 + 3.0 * random.unit(61),
                _ => {
                    faster.peak.f32 *= 1.0 + random.unit(61);
                    faster.dram *= 1.0 + random.unit(62);
                }
            }
            let fast_ns = kernel_ns(&transfer, &small, &faster);
            assert!(fast_ns <= slow_ns * (1.0 + 1e-9), "{small}: {slow_ns}, then {fast_ns}");
        }
        assert!(pairs > 1_000, "{kind:?}: {pairs}");
    }
}

#[test]
fn time_over_roofline_does_not_grow_outside_the_measured_sizes() {
    for kind in Kind::ALL {
        let model = shipped::model(kind).expect("a model");
        let device = hardware("h100").expect("a device");
        let slack = |sizes: &[u64]| {
            let work = work(kind, sizes)?;
            Some(kernel_ns(&model.transfer, &work, device) / roofline_ns(&work, device))
        };
        for number in 0..400 {
            let random = CounterRng::new(9, number);
            let sizes = draw_sizes(kind, random);
            for &at in growing(kind).iter().filter(|at| **at < 6) {
                let mut edge = sizes.clone();
                edge[at] = model.most[at];
                let mut beyond = edge.clone();
                for _ in 0..6 {
                    beyond[at] *= 2;
                    let (Some(inside), Some(outside)) = (slack(&edge), slack(&beyond)) else {
                        break;
                    };
                    // A kernel that is limited by memory has a few more FLOPs per byte if it grows.
                    assert!(outside <= 1.04 * inside, "{edge:?} {inside}, {beyond:?} {outside}");
                }
            }
        }
    }
}

#[test]
fn factors_between_two_devices_lie_between_theirs() {
    let known = vec![(2.0, 0.3), (0.0, 0.1), (1.0, 0.2)];
    assert_eq!(interpolate(known.clone(), -1.0), 0.1);
    assert!((interpolate(known.clone(), 0.5) - 0.15).abs() < 1e-12);
    assert!((interpolate(known, 3.0) - 0.3).abs() < 1e-12);
    // A device that is slower per unit although its rate is higher is averaged with its neighbor.
    let crossed = vec![(0.0, 0.0), (1.0, 3.0)];
    assert!((interpolate(crossed.clone(), 0.0) - 1.0).abs() < 1e-12);
    assert!((interpolate(crossed, 1.0) - 2.0).abs() < 1e-12);
    assert_eq!(interpolate(Vec::new(), 1.0), 0.0);
}
