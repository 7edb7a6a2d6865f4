//! Tests of the CPU through the trait [`Backend`]: arguments that it must reject, and logits that
//! have no probability.

pub mod cuda;

use device::Cpu;
use device::MatrixShape;
use device::backend::{Backend, Probabilities};
use device::buffer::Array;
use schema::Precision;

#[test]
fn a_non_finite_logit_gives_nan_probability() {
    let (cpu, mut to) = (Cpu::new(1), Array::from(&[0.25; 3][..]));
    let logits = Array::from(&[0.0, f32::INFINITY, f32::NAN][..]);
    cpu.probabilities(&(), &logits, 3, Probabilities::Computed, &mut to).unwrap();
    assert!(to[0].to_bits() == 0.25f32.to_bits() && to[1].is_nan() && to[2].is_nan());
    cpu.probabilities(&(), &logits, 3, Probabilities::Missing, &mut to).unwrap();
    assert!(to[0].to_bits() == 0.5f32.to_bits() && to[1].is_nan() && to[2].is_nan());
}

#[test]
fn values_beyond_a_handle_are_refused_before_writing() {
    let (cpu, mut vector) = (Cpu::new(1), Array::zeroed(3));
    let refused = cpu.write(&(), &[1.0; 2], &mut vector, 2).unwrap_err().to_string();
    assert_eq!(refused, "write: end of the values: expected 3, got 4");
    assert_eq!(*vector, [0.0; 3]);
    let mut matrix = cpu.matrix(Precision::F32, 2, 40).unwrap();
    let refused =
        cpu.pack(&(), &[0.0; 120], MatrixShape::new(3, 40), &mut matrix).unwrap_err().to_string();
    assert_eq!(refused, "pack: [rows, columns] in panels: expected 128, got 192");
    let mut matrix = cpu.matrix(Precision::Bf16, 2, 40).unwrap();
    let refused =
        cpu.pack(&(), &[0.0; 80], MatrixShape::new(2, 40), &mut matrix).unwrap_err().to_string();
    assert_eq!(refused, "pack: matrix: expected f32, got bf16");
}
