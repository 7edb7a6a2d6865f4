//! A linear layer of random numbers, whose products can be called one by one. Times nothing.

use device::Cpu;
use device::ops::gemm::{self, Activation, InputGradient, PackedWeight, panels};
use schema::random::CounterRng;
use schema::{GemmProduct, Op};

use crate::args::GemmShape;
use crate::error::Error;

/// `Y[M, N] = relu(X[M, K] Wᵀ + bias)` with the gradients of all of them, X the output of a ReLU.
pub struct Layer {
    shape: GemmShape,
    x: Vec<f32>,
    weight: PackedWeight,
    bias: Vec<f32>,
    y: Vec<f32>,
    d_y: Vec<f32>,
    d_x: Vec<f32>,
    d_weight: Vec<f32>,
    d_bias: Vec<f32>,
}

impl Layer {
    /// A layer of this shape. What pads the panels is random too, which changes no time.
    pub fn new(cpu: &Cpu, shape: &GemmShape) -> Result<Self, Error> {
        let GemmShape { m, k, n } = *shape;
        let draw = |stream: u64, count: usize| -> Vec<f32> {
            let rng = CounterRng::new(stream, 0);
            (0..count as u64).map(|counter| rng.unit(counter) as f32 - 0.5).collect()
        };
        let mut weight = PackedWeight::new(n, k);
        weight.pack(cpu, &draw(2, n * k))?;
        Ok(Self {
            shape: *shape,
            x: draw(1, panels::len(m, k)),
            weight,
            bias: draw(3, n),
            y: vec![0.0; panels::len(m, n)],
            d_y: draw(4, panels::len(m, n)),
            d_x: vec![0.0; panels::len(m, k)],
            d_weight: vec![0.0; n * k],
            d_bias: vec![0.0; n],
        })
    }

    /// One of the products.
    pub fn multiply(&mut self, cpu: &Cpu, product: GemmProduct) -> Result<Op, Error> {
        let GemmShape { m: b, k, n } = self.shape;
        let Self { x, weight, bias, y, d_y, d_x, d_weight, d_bias, .. } = self;
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
        Ok(Op::Gemm { product, m: rows, n: columns, k: inner })
    }
}
