use super::*;

/// Major and minor version of a CUDA compute capability.
type ComputeCapability = (u32, u32);

fn device(name: &str, compute_capability: ComputeCapability, sm_count: u32) -> DeviceProperties {
    DeviceProperties {
        name: name.to_owned(),
        compute_capability,
        sm_count,
        ..DeviceProperties::default()
    }
}

#[test]
fn compute_capability_9_is_judged_by_vendor() {
    use DataType::{BFloat16, Float32, Float64};
    let hopper = device("NVIDIA H100 80GB HBM3", (9, 0), 132);
    let mi250 = device("AMD Radeon Graphics", (9, 0), 104);
    let vega = device("Radeon RX Vega", (9, 0), 64);
    let mi300 = device("AMD Instinct MI300X", (9, 4), 304);
    for (device, expected) in [(&hopper, true), (&mi250, true), (&vega, false), (&mi300, true)] {
        let maker = maker(&device.name).unwrap();
        for of in [BFloat16, Float32, Float64] {
            assert_eq!(has_matrix_units(maker, device, of), expected, "{}", device.name);
        }
    }
    assert_eq!((maker(&hopper.name), maker(&mi250.name)), (Some(Maker::Nvidia), Some(Maker::Amd)));
}

#[test]
fn types_differ_between_generations() {
    use DataType::{BFloat16, Float16, Float32, Float64};
    let has =
        |capability, of| has_matrix_units(Maker::Nvidia, &device("Tesla", capability, 80), of);
    assert!(has((7, 0), Float16) && !has((7, 0), Float32) && !has((7, 5), BFloat16));
    assert!(has((8, 0), Float32) && has((8, 0), Float64) && !has((8, 6), Float64));
    assert!(!has((6, 0), Float16));
    let other = device("ARTEMIS", (9, 0), 64);
    assert!(!has_matrix_units(maker(&other.name).unwrap(), &other, Float16));
}
