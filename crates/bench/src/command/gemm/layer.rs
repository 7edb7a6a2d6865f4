//! A linear layer of random numbers, whose products can be called one by one. The callers measure
//! the time.

use device::ops::gemm::{
    self, Activation, InputGradient, LinearWeight, Matrix, OperandMut, pairs, panels,
};
use device::{Cpu, MatrixShape};
use schema::random::CounterRng;
use schema::{GemmProduct, Op, Precision};

use crate::args::GemmShape;
use setup::error::Error;

/// The layer `Y[M, N] = relu(X[M, K] Wᵀ + bias)` with all gradients. X is the output of a ReLU.
pub struct Layer {
    shape: GemmShape,
    x: Matrix,
    weight: LinearWeight,
    bias: Vec<f32>,
    y: Matrix,
    d_y: Matrix,
    d_x: Matrix,
    d_weight: Vec<f32>,
    d_bias: Vec<f32>,
}

impl Layer {
    /// Creates a layer of the given shape. The padding of its panels is random too, which does not
    /// affect the time.
    pub fn new(cpu: &Cpu, shape: &GemmShape, precision: Precision) -> Result<Self, Error> {
        let GemmShape { m, k, n } = *shape;
        let draw = |stream: u64, count: usize| -> Vec<f32> {
            let rng = CounterRng::new(stream, 0);
            (0..count as u64).map(|counter| rng.unit(counter) as f32 - 0.5).collect()
        };
        let draw_matrix = |stream: u64, columns: usize| -> Result<Matrix, Error> {
            let values = draw(stream, panels::len(m, columns));
            let mut matrix = Matrix::new(precision, m, columns);
            match matrix.get_mut(m, columns) {
                OperandMut::F32(to) => to.copy_from_slice(&values),
                OperandMut::Bf16(to) => {
                    pairs::round(cpu, &values, MatrixShape::new(m, columns), to)?;
                }
            }
            Ok(matrix)
        };
        let mut weight = LinearWeight::new(MatrixShape::new(n, k), precision);
        weight.set(cpu, &draw(2, n * k))?;
        Ok(Self {
            shape: *shape,
            x: draw_matrix(1, k)?,
            weight,
            bias: draw(3, n),
            y: Matrix::new(precision, m, n),
            d_y: draw_matrix(4, n)?,
            d_x: Matrix::new(precision, m, k),
            d_weight: vec![0.0; panels::len(n, k)],
            d_bias: vec![0.0; n],
        })
    }

    /// Computes one of the three products and returns it as an operation.
    pub fn multiply(&mut self, cpu: &Cpu, product: GemmProduct) -> Result<Op, Error> {
        let GemmShape { m: b, k, n } = self.shape;
        let Self { x, weight, bias, y, d_y, d_x, d_weight, d_bias, .. } = self;
        let (x, y, d_y, d_x) = (x.get(b, k), y.get_mut(b, n), d_y.get(b, n), d_x.get_mut(b, k));
        let precision = weight.precision();
        let (rows, columns, inner) = match product {
            GemmProduct::Forward => {
                let (bias, activation) = (Some(&bias[..]), Activation::Relu);
                gemm::forward(cpu, gemm::LinearForward { x, weight, bias, activation, y, b })?;
                (b, n, k)
            }
            GemmProduct::BackwardInput => {
                let gradient = InputGradient::BeforeRelu(x);
                let arguments = gemm::LinearBackwardInput { d_y, weight, gradient, d_x, b };
                gemm::backward_input(cpu, arguments)?;
                (b, k, n)
            }
            GemmProduct::BackwardWeight => {
                let d_bias = Some(&mut d_bias[..]);
                let arguments = gemm::LinearBackwardWeight { x, d_y, d_weight, d_bias, b, k, n };
                gemm::backward_weight(cpu, arguments)?;
                (n, k, b)
            }
        };
        Ok(Op::Gemm { product, precision, m: rows, n: columns, k: inner })
    }
}
