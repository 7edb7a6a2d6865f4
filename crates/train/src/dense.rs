//! The dense parameters at work, each with gradient and optimizer state: weights as their products
//! read them, biases and other vectors as they are. Layers hold positions in here; the checkpoint
//! walks all of them in the model's order, the optimizer and the collectives the other way.
//! Knows nothing of layers.

use device::Cpu;
use device::buffer::Array;
use device::ops::dense_update::{self, Arguments, FusedArguments, WeightArguments};
use device::ops::gemm::{self, LinearBackwardWeight, LinearWeight, Operand, panels};
use device::optimizer::Rule;
use device::weights::WeightsView;
use schema::{Op, Optimizer, Precision};

use crate::Error;
use crate::context::RankContext;
use crate::memory::{MemoryUse, Room};
use crate::parameter::{DenseParameter, Spot};

mod bucket;

pub use bucket::BUCKET_BYTES;
use bucket::{Buckets, Sums};

/// All dense parameters of a model.
pub struct Dense {
    optimizer: Optimizer,
    weights: Vec<Weight>,
    vectors: Vec<Vector>,
    /// The model's order, which is that of the checkpoint.
    order: Vec<Place>,
    buckets: Buckets,
}

/// A weight `[N, K]`; gradient and state lie as its values do.
#[derive(Debug)]
pub struct Weight {
    name: String,
    /// Its number in the model's order.
    number: usize,
    /// The values.
    pub values: LinearWeight,
    /// In panels.
    pub gradient: Array<f32>,
    state: Vec<f32>,
}

/// A parameter that no matrix product reads, as it is saved.
#[derive(Debug)]
pub struct Vector {
    /// Values and state.
    pub parameter: DenseParameter,
    /// Of the values' length.
    pub gradient: Vec<f32>,
}

/// Position of a weight.
#[derive(Clone, Copy, Debug)]
pub struct WeightId(usize);

/// Position of a vector.
#[derive(Clone, Copy, Debug)]
pub struct VectorId(usize);

#[derive(Clone, Copy, Debug)]
enum Place {
    Weight(WeightId),
    Vector(VectorId),
}

impl Dense {
    /// None yet, to be trained with `optimizer`.
    #[must_use]
    pub fn new(optimizer: Optimizer) -> Self {
        let (weights, vectors, order) = (Vec::new(), Vec::new(), Vec::new());
        Self { optimizer, weights, vectors, order, buckets: Buckets::of_bytes(BUCKET_BYTES) }
    }

    /// Sends gradients to the other ranks in buckets of about so many bytes.
    pub fn set_bucket(&mut self, bytes: usize) {
        self.buckets = Buckets::of_bytes(bytes);
    }

    /// Elements of the gradient of each parameter, as it lies in memory.
    fn gradient_lens(&self) -> impl DoubleEndedIterator<Item = usize> + ExactSizeIterator {
        self.order.iter().map(|place| match *place {
            Place::Weight(WeightId(id)) => self.weights[id].gradient.len(),
            Place::Vector(VectorId(id)) => self.vectors[id].gradient.len(),
        })
    }

    /// Adds a weight `[N, K]` of zeros, whose products are in `precision`.
    pub fn add_weight(
        &mut self,
        room: &mut Room,
        name: String,
        shape: (usize, usize),
        precision: Precision,
    ) -> WeightId {
        let id = WeightId(self.weights.len());
        self.weights.push(Weight {
            name,
            number: self.order.len(),
            values: room.weight(shape, precision),
            gradient: room.array(MemoryUse::DenseParameters, panels::len(shape.0, shape.1)),
            state: room
                .values(MemoryUse::DenseParameters, dense_update::state_len(self.optimizer, shape)),
        });
        self.order.push(Place::Weight(id));
        id
    }

    /// Adds a vector of zeros.
    pub fn add_vector(&mut self, room: &mut Room, name: &str, shape: &[usize]) -> VectorId {
        let id = VectorId(self.vectors.len());
        // Allocated in any case: a vector is small.
        let parameter = DenseParameter::zeros(name, shape, self.optimizer);
        let gradient = vec![0.0; parameter.weight.len()];
        let values = parameter.weight.len() + parameter.state.len() + gradient.len();
        room.count(MemoryUse::DenseParameters, values * size_of::<f32>());
        self.vectors.push(Vector { parameter, gradient });
        self.order.push(Place::Vector(id));
        id
    }

    /// A weight.
    #[must_use]
    pub fn weight(&self, id: WeightId) -> &Weight {
        &self.weights[id.0]
    }

    /// A vector.
    #[must_use]
    pub fn vector(&self, id: VectorId) -> &Vector {
        &self.vectors[id.0]
    }

    /// A vector, to be changed.
    pub fn vector_mut(&mut self, id: VectorId) -> &mut Vector {
        &mut self.vectors[id.0]
    }

    /// Makes all gradients 0.
    pub fn clear_gradients(&mut self) {
        self.weights.iter_mut().for_each(|weight| weight.gradient.fill(0.0));
        self.vectors.iter_mut().for_each(|vector| vector.gradient.fill(0.0));
    }

    /// The first value, of a weight or of its state, that is no finite number.
    ///
    /// # Errors
    /// None but [`Error::Device`], of a defect.
    pub fn not_finite(&self, cpu: &Cpu) -> Result<Option<Spot>, Error> {
        let good = |values: &[f32]| WeightsView::F32(values).are_finite(0..values.len());
        for place in &self.order {
            let (values, state) = match *place {
                Place::Weight(WeightId(id)) => {
                    (self.weights[id].values.values(), &self.weights[id].state[..])
                }
                Place::Vector(VectorId(id)) => {
                    let DenseParameter { weight, state, .. } = &self.vectors[id].parameter;
                    (&weight[..], &state[..])
                }
            };
            if good(values) && good(state) {
                continue;
            }
            let spot = self.to_parameter(cpu, *place)?.not_finite(self.optimizer);
            if spot.is_some() {
                return Ok(spot);
            }
        }
        Ok(None)
    }

    /// Copies of all, row-major.
    ///
    /// # Errors
    /// None but [`Error::Device`], of a defect.
    pub fn to_parameters(&self, cpu: &Cpu) -> Result<Vec<DenseParameter>, Error> {
        self.order.iter().map(|place| self.to_parameter(cpu, *place)).collect()
    }

    fn to_parameter(&self, cpu: &Cpu, place: Place) -> Result<DenseParameter, Error> {
        match place {
            Place::Weight(id) => self.weights[id.0].to_parameter(cpu, self.optimizer),
            Place::Vector(id) => Ok(self.vectors[id.0].parameter.clone()),
        }
    }

    /// Takes over all `parameters`, as [`Self::to_parameters`] gives them.
    ///
    /// # Errors
    /// [`Error::Device`] where the shape of a weight differs.
    /// # Panics
    /// Where there are more, or a vector or a state differs in length.
    pub fn set(&mut self, cpu: &Cpu, parameters: &[DenseParameter]) -> Result<(), Error> {
        for (i, parameter) in parameters.iter().enumerate() {
            self.set_values(cpu, i, &parameter.weight)?;
            match self.order[i] {
                Place::Weight(WeightId(id)) => {
                    self.weights[id].set_state(cpu, self.optimizer, &parameter.state)?;
                }
                Place::Vector(VectorId(id)) => {
                    self.vectors[id].parameter.state.copy_from_slice(&parameter.state);
                }
            }
        }
        Ok(())
    }

    /// Takes over the row-major `values` of parameter number `i`.
    ///
    /// # Errors
    /// [`Error::Device`] where there are not as many of a weight.
    /// # Panics
    /// Where there is no such parameter, or there are not as many of a vector.
    pub fn set_values(&mut self, cpu: &Cpu, i: usize, values: &[f32]) -> Result<(), Error> {
        match self.order[i] {
            Place::Weight(WeightId(id)) => self.weights[id].values.set(cpu, values)?,
            Place::Vector(VectorId(id)) => {
                self.vectors[id].parameter.weight.copy_from_slice(values);
            }
        }
        Ok(())
    }
}

/// The parameters during a backward pass. Without other ranks it updates each layer's when it has
/// read their values for the last time: within the product that completes a weight's gradient, or
/// right after it. With other ranks it sends each gradient on its way as soon as it is complete,
/// and updates all at its end.
pub struct DenseStep<'a> {
    /// The parameters.
    pub dense: &'a mut Dense,
    rule: Rule,
    /// How many, in the model's order, have been neither updated nor sent yet.
    left: usize,
}

impl<'a> DenseStep<'a> {
    /// Nothing is updated yet; `rule` will say how.
    #[must_use]
    pub fn new(dense: &'a mut Dense, rule: Rule) -> Self {
        let left = dense.order.len();
        Self { dense, rule, left }
    }

    /// Writes the gradients of a layer's weight and bias from its input `x` and the gradient `d_y`
    /// of its output, of `b` samples, and updates or sends both with all that comes after them in
    /// the model. `op` is the product; a weight that need not wait for other ranks' gradients is
    /// updated within.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes or precisions do not fit; [`Error::Communication`].
    pub fn backward_weight(
        &mut self,
        context: &mut RankContext,
        op: Op,
        (weight, bias): (WeightId, Option<VectorId>),
        (x, d_y, b): (Operand<'_>, Operand<'_>, usize),
    ) -> Result<(), Error> {
        let Dense { weights, vectors, .. } = &mut *self.dense;
        let Weight { number, values: weight, gradient, state, .. } = &mut weights[weight.0];
        let ((n, k), number, rule) = (weight.shape(), *number, self.rule);
        let d_bias = bias.map(|bias| &mut vectors[bias.0].gradient[..]);
        let product = LinearBackwardWeight { x, d_y, d_weight: gradient, d_bias, b, k, n };
        let RankContext { cpu, comm, profiler } = &mut *context;
        if comm.world_size() > 1 || !dense_update::is_fused(rule.kind) {
            profiler.op(op, || gemm::backward_weight(cpu, product))?;
            return self.update_from(context, number);
        }
        let arguments = FusedArguments { rule, weight, state, product };
        profiler.op(op, || dense_update::run_with_gradient(cpu, arguments))?;
        self.update_from(context, number + 1)?;
        self.left = number;
        Ok(())
    }

    /// Updates all that are left.
    ///
    /// # Errors
    /// [`Error::Communication`].
    pub fn finish(mut self, context: &mut RankContext) -> Result<(), Error> {
        self.update_from(context, 0)?;
        if context.comm.world_size() == 1 {
            return Ok(());
        }
        let (Dense { weights, vectors, order, buckets, .. }, rule) = (&mut *self.dense, self.rule);
        buckets.finish(context, &mut |context, number, sums| match order[number] {
            Place::Weight(id) => weights[id.0].update(context, rule, Some(sums)),
            Place::Vector(id) => vectors[id.0].update(context, rule, Some(sums)),
        })
    }

    /// Takes the optimizer's step for the parameters from `first` on that have not taken it, the
    /// last first; where there are other ranks, sends them the gradients.
    fn update_from(&mut self, context: &mut RankContext, first: usize) -> Result<(), Error> {
        let has_peers = context.comm.world_size() > 1;
        if has_peers && !self.dense.buckets.is_laid_out() {
            let lens: Vec<usize> = self.dense.gradient_lens().collect();
            self.dense.buckets.lay_out(&lens);
        }
        while self.left > first {
            self.left -= 1;
            let Dense { weights, vectors, order, buckets, .. } = &mut *self.dense;
            let place = order[self.left];
            if has_peers {
                let gradient = match place {
                    Place::Weight(id) => &weights[id.0].gradient[..],
                    Place::Vector(id) => &vectors[id.0].gradient[..],
                };
                buckets.push(context, self.left, gradient)?;
                continue;
            }
            match place {
                Place::Weight(id) => weights[id.0].update(context, self.rule, None)?,
                Place::Vector(id) => vectors[id.0].update(context, self.rule, None)?,
            };
        }
        Ok(())
    }
}

impl Weight {
    /// Takes a step with its own gradient or the sum of all ranks'; the elements of that.
    fn update(
        &mut self,
        context: &mut RankContext,
        rule: Rule,
        sums: Option<Sums<'_>>,
    ) -> Result<usize, Error> {
        let Self { values: weight, gradient, state, .. } = self;
        let gradient = summed(gradient, sums);
        let (n, k) = weight.shape();
        let op = Op::DenseUpdate { elements: n * k, packed: n * k, optimizer: rule.kind };
        let RankContext { cpu, profiler, .. } = context;
        let arguments = WeightArguments { rule, weight, gradient, state };
        profiler.op(op, || dense_update::run_weight(cpu, arguments))?;
        Ok(gradient.len())
    }

    fn to_parameter(&self, cpu: &Cpu, optimizer: Optimizer) -> Result<DenseParameter, Error> {
        let shape @ (n, k) = self.values.shape();
        let mut parameter = DenseParameter::zeros(&self.name, &[n, k], optimizer);
        panels::unpack(cpu, self.values.values(), shape, &mut parameter.weight)?;
        if optimizer == Optimizer::RowwiseAdagrad {
            parameter.state.copy_from_slice(&self.state);
            return Ok(parameter);
        }
        let parts = self.state.chunks(panels::len(n, k).max(1));
        for (from, to) in parts.zip(parameter.state.chunks_mut((n * k).max(1))) {
            panels::unpack(cpu, from, shape, to)?;
        }
        Ok(parameter)
    }

    fn set_state(&mut self, cpu: &Cpu, optimizer: Optimizer, state: &[f32]) -> Result<(), Error> {
        let shape @ (n, k) = self.values.shape();
        if optimizer == Optimizer::RowwiseAdagrad {
            self.state.copy_from_slice(state);
            return Ok(());
        }
        let parts = self.state.chunks_mut(panels::len(n, k).max(1));
        for (to, from) in parts.zip(state.chunks((n * k).max(1))) {
            panels::pack(cpu, from, shape, to)?;
        }
        Ok(())
    }
}

impl Vector {
    /// As that of a weight.
    fn update(
        &mut self,
        context: &mut RankContext,
        rule: Rule,
        sums: Option<Sums<'_>>,
    ) -> Result<usize, Error> {
        let Self { parameter: DenseParameter { shape, weight: weights, state, .. }, gradient } =
            self;
        let gradient = summed(gradient, sums);
        let op = Op::DenseUpdate { elements: weights.len(), packed: 0, optimizer: rule.kind };
        let dim = shape[1..].iter().product();
        let RankContext { cpu, profiler, .. } = context;
        let arguments = Arguments { rule, weights, gradient, state, dim };
        profiler.op(op, || dense_update::run(cpu, arguments))?;
        Ok(gradient.len())
    }
}

/// The sum of all ranks' gradients: where it lies in one part of its bucket, else copied to
/// `gradient`, which it is without other ranks.
fn summed<'a>(gradient: &'a mut [f32], sums: Option<Sums<'a>>) -> &'a [f32] {
    let Some((bucket, at)) = sums else { return gradient };
    if let Some(sum) = bucket.slice(at, gradient.len()) {
        return sum;
    }
    bucket.read(at, gradient);
    gradient
}
