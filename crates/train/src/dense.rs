//! The dense parameters in use, with gradients and optimizer state.
//!
//! Weights are in the layout of their products, biases and other vectors are plain vectors. Layers
//! hold indices into this collection. The checkpoint traverses it in model order, the optimizer and
//! the collectives in reverse order. This file does not depend on layers.

use std::ops::Range;

use comm::VectorParts;
use device::Backend;
use device::MatrixShape;
use device::backend::{GradientSum, LinearBackwardWeight, VectorUpdate, WeightPart, WeightShape};
use device::weights::WeightsView;
use schema::{Op, Optimizer, Precision};

use crate::Error;
use crate::context::{DeviceQueue, RankContext};
use crate::lane::GradientSums;
use crate::memory::{CountingAllocator, MemoryUse};
use crate::parameter::{DenseParameter, Spot};

/// Default size of a bucket in bytes, the same as in PyTorch's `DistributedDataParallel`.
pub const BUCKET_BYTES: usize = 25 << 20;

/// The sums of a bucket, and the position at which those of one parameter begin.
type BucketSums<'a> = (&'a VectorParts<f32>, usize);

/// The parameters of a bucket, counted in the model's order.
#[derive(Clone, Debug)]
pub struct BucketParameters {
    pub parameters: Range<usize>,
    /// Whether it is the first bucket of the backward pass.
    pub is_first: bool,
}

/// All dense parameters of a model, with gradients and optimizer state. Layers refer to parameters
/// by [`WeightId`] and [`VectorId`].
pub struct Dense<B: Backend> {
    optimizer: Optimizer,
    weights: Vec<DenseWeight<B>>,
    vectors: Vec<DenseVector<B>>,
    /// All parameters in the model's order, which is also the order of the checkpoint.
    order: Vec<ParameterId>,
    /// Buffers of buckets that are not under way.
    spare: Vec<GradientSums>,
    /// The bucket whose sums were waited for last.
    summed: Option<GradientSums>,
}

/// A weight matrix `[N, K]`, kept in the layout that the device's products read.
pub struct DenseWeight<B: Backend> {
    name: String,
    shape: MatrixShape,
    /// The values, together with gradient and optimizer state.
    pub values: B::Weight,
}

/// A bias or other parameter that matrix products do not read, kept as a plain vector.
pub struct DenseVector<B: Backend> {
    name: String,
    shape: Vec<usize>,
    pub values: B::Vector,
    /// The gradient, which has the length of the values.
    pub gradient: B::Vector,
    state: B::Vector,
}

/// Index of a weight in [`Dense`].
#[derive(Clone, Copy, Debug)]
pub struct WeightId(usize);

/// Index of a vector in [`Dense`].
#[derive(Clone, Copy, Debug)]
pub struct VectorId(usize);

/// The id of a dense parameter. Weights are matrices with a device-specific layout, vectors are
/// biases and logit weights.
#[derive(Clone, Copy, Debug)]
enum ParameterId {
    Weight(WeightId),
    Vector(VectorId),
}

impl<B: Backend> Dense<B> {
    /// Creates an empty set of parameters that will be trained with `optimizer`.
    #[must_use]
    pub fn new(optimizer: Optimizer) -> Self {
        let (weights, vectors, order) = (Vec::new(), Vec::new(), Vec::new());
        Self { optimizer, weights, vectors, order, spare: Vec::new(), summed: None }
    }

    /// The number of parameters.
    #[expect(clippy::len_without_is_empty, reason = "a model has parameters")]
    #[must_use]
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Returns the number of elements in the gradient of parameter `i`, in the form in which ranks
    /// sum it.
    fn gradient_len(&self, device: &B, i: usize) -> usize {
        match self.order[i] {
            ParameterId::Weight(WeightId(id)) => device.gradient_len(&self.weights[id].values),
            ParameterId::Vector(VectorId(id)) => self.vectors[id].len(),
        }
    }

    /// Adds a weight `[N, K]` of zeros whose products are computed in `precision`.
    pub fn add_weight(
        &mut self,
        room: &mut CountingAllocator<'_, B>,
        name: String,
        shape: MatrixShape,
        precision: Precision,
    ) -> WeightId {
        let MatrixShape { rows: n, columns: k } = shape;
        let id = WeightId(self.weights.len());
        let values = room.weight(WeightShape { n, k, precision, optimizer: self.optimizer });
        self.weights.push(DenseWeight { name, shape, values });
        self.order.push(ParameterId::Weight(id));
        id
    }

    /// Adds a vector of zeros with the given shape.
    pub fn add_vector(
        &mut self,
        room: &mut CountingAllocator<'_, B>,
        name: &str,
        shape: &[usize],
    ) -> VectorId {
        let id = VectorId(self.vectors.len());
        let len = shape.iter().product();
        let state = DenseParameter::state_len(shape, self.optimizer);
        let mut vector = |len| room.vector(MemoryUse::DenseParameters, len);
        self.vectors.push(DenseVector {
            name: name.to_owned(),
            shape: shape.to_vec(),
            values: vector(len),
            gradient: vector(len),
            state: vector(state),
        });
        self.order.push(ParameterId::Vector(id));
        id
    }

    /// Returns the weight with this index.
    #[must_use]
    pub fn weight(&self, id: WeightId) -> &DenseWeight<B> {
        &self.weights[id.0]
    }

    /// Returns the vector with this index.
    #[must_use]
    pub fn vector(&self, id: VectorId) -> &DenseVector<B> {
        &self.vectors[id.0]
    }

    /// Returns the vector with this index, mutably.
    pub fn vector_mut(&mut self, id: VectorId) -> &mut DenseVector<B> {
        &mut self.vectors[id.0]
    }

    /// Returns the vector with this index and the next one, mutably.
    ///
    /// # Panics
    /// Panics if `id` is the last vector.
    pub fn two_vectors_mut(&mut self, id: VectorId) -> [&mut DenseVector<B>; 2] {
        let [first, second] = &mut self.vectors[id.0..id.0 + 2] else { unreachable!("a pair") };
        [first, second]
    }

    /// Finds the first weight or optimizer state that is not finite.
    ///
    /// # Errors
    /// [`Error::Device`] if the device failed.
    pub fn not_finite(&self, device_queue: DeviceQueue<'_, B>) -> Result<Option<Spot>, Error> {
        for place in &self.order {
            let is_good = match *place {
                ParameterId::Weight(WeightId(id)) => {
                    device_queue.device.is_finite(device_queue.queue, &self.weights[id].values)?
                }
                ParameterId::Vector(VectorId(id)) => {
                    self.vectors[id].is_finite(device_queue, self.optimizer)?
                }
            };
            if is_good {
                continue;
            }
            // The device only reports that some value is not finite. Copying the parameter to the
            // host locates the value.
            let spot = self.to_parameter(device_queue, *place)?.not_finite(self.optimizer);
            if spot.is_some() {
                return Ok(spot);
            }
        }
        Ok(None)
    }

    /// Copies all parameters and their optimizer state to the host, row-major.
    ///
    /// # Errors
    /// [`Error::Device`] if the device failed.
    pub fn to_parameters(
        &self,
        device_queue: DeviceQueue<'_, B>,
    ) -> Result<Vec<DenseParameter>, Error> {
        self.order.iter().map(|place| self.to_parameter(device_queue, *place)).collect()
    }

    fn to_parameter(
        &self,
        device_queue: DeviceQueue<'_, B>,
        place: ParameterId,
    ) -> Result<DenseParameter, Error> {
        match place {
            ParameterId::Weight(id) => {
                self.weights[id.0].to_parameter(device_queue, self.optimizer)
            }
            ParameterId::Vector(id) => {
                self.vectors[id.0].to_parameter(device_queue, self.optimizer)
            }
        }
    }

    /// Copies `parameters`, in the order of [`Self::to_parameters`], to the device.
    ///
    /// # Errors
    /// [`Error::Device`] if a shape differs.
    /// # Panics
    /// Panics if there are more parameters than the model has.
    pub fn set(
        &mut self,
        DeviceQueue { device, queue }: DeviceQueue<'_, B>,
        parameters: &[DenseParameter],
    ) -> Result<(), Error> {
        for (i, parameter) in parameters.iter().enumerate() {
            self.set_values(DeviceQueue { device, queue }, i, &parameter.weight)?;
            let state = &parameter.state[..];
            match self.order[i] {
                ParameterId::Weight(WeightId(id)) => {
                    let weight = &mut self.weights[id].values;
                    device.set_weight(queue, WeightPart::State, state, weight)?;
                }
                ParameterId::Vector(VectorId(id)) => {
                    device.write(queue, state, &mut self.vectors[id].state, 0)?;
                }
            }
        }
        Ok(())
    }

    /// Copies the row-major `values` of parameter `i` to the device.
    ///
    /// # Errors
    /// [`Error::Device`] if the number of values differs.
    /// # Panics
    /// Panics if the model has no parameter `i`.
    pub fn set_values(
        &mut self,
        DeviceQueue { device, queue }: DeviceQueue<'_, B>,
        i: usize,
        values: &[f32],
    ) -> Result<(), Error> {
        match self.order[i] {
            ParameterId::Weight(WeightId(id)) => {
                let weight = &mut self.weights[id].values;
                device.set_weight(queue, WeightPart::Values, values, weight)?;
            }
            ParameterId::Vector(VectorId(id)) => {
                device.write(queue, values, &mut self.vectors[id].values, 0)?;
            }
        }
        Ok(())
    }
}

/// The parameters during a backward pass, with the learning rates of its updates.
pub struct DenseStep<'a, B: Backend> {
    pub dense: &'a mut Dense<B>,
    pub scalars: &'a B::Scalars,
}

impl<B: Backend> DenseStep<'_, B> {
    /// Computes the gradients of a layer's weight and bias from its input `x` and the gradient
    /// `d_y` of its output. On one rank the product includes the weight's update, if the device
    /// fuses it. `op` is the product as the trace records it.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes or precisions do not fit.
    pub fn backward_weight(
        &mut self,
        context: &mut RankContext<B>,
        op: Op,
        weight: WeightId,
        bias: Option<VectorId>,
        x: &B::Matrix,
        d_y: &B::Matrix,
        samples: usize,
    ) -> Result<(), Error> {
        let update = self.dense.is_fused(context).then_some(self.scalars);
        let Dense { weights, vectors, .. } = &mut *self.dense;
        let weight = &mut weights[weight.0].values;
        let d_bias = bias.map(|bias| &mut vectors[bias.0].gradient);
        let RankContext { device, queue, profiler, .. } = context;
        let product = LinearBackwardWeight { x, d_y, weight, d_bias, samples };
        Ok(profiler.op(op, || device.linear_backward_weight(queue, product, update))?)
    }
}

impl<B: Backend> Dense<B> {
    /// Whether the product that computes a weight's gradient also updates the weight.
    fn is_fused(&self, context: &RankContext<B>) -> bool {
        context.comm.world_size() == 1 && B::fuses(self.optimizer)
    }

    /// Updates `parameters`, counted in the model's order, with their own gradients, from the last
    /// to the first. Those that were updated within a product are left out.
    ///
    /// # Errors
    /// [`Error::Device`] if the device failed.
    pub fn update_alone(
        &mut self,
        context: &mut RankContext<B>,
        scalars: &B::Scalars,
        parameters: Range<usize>,
    ) -> Result<(), Error> {
        for number in parameters.rev() {
            if self.is_fused(context) && matches!(self.order[number], ParameterId::Weight(_)) {
                continue;
            }
            self.update(context, number, scalars, None)?;
        }
        Ok(())
    }

    /// Starts the sum over ranks of the gradients of `parameters`, a bucket. The first bucket of a
    /// step also carries whether this rank's updates are stopped.
    ///
    /// # Errors
    /// [`Error::Communication`], or [`Error::Device`] if the device failed.
    pub fn start_sums(
        &mut self,
        context: &mut RankContext<B>,
        scalars: &B::Scalars,
        bucket: BucketParameters,
    ) -> Result<(), Error> {
        let BucketParameters { parameters, is_first } = bucket;
        let device = &context.device;
        let lengths = parameters.clone().map(|number| self.gradient_len(device, number));
        let len = lengths.sum::<usize>() + usize::from(is_first);
        let Self { weights, vectors, order, spare, .. } = self;
        let RankContext { device, queue, comm, .. } = context;
        let mut exchange = spare.pop().unwrap_or_default();
        exchange.sums.reset(comm.dense.settings(), len);
        let mut at = 0;
        let mut take = |gradient: &[f32]| {
            exchange.sums.write(at, gradient);
            at += gradient.len();
        };
        for number in parameters.rev() {
            match order[number] {
                ParameterId::Weight(id) => {
                    device.lend_gradient(queue, &weights[id.0].values, &mut take)?;
                }
                ParameterId::Vector(id) => {
                    let DenseVector { gradient, .. } = &vectors[id.0];
                    device.lend(queue, gradient, 0..vectors[id.0].len(), &mut take)?;
                }
            }
        }
        if is_first {
            let is_stopped = device.is_stopped(queue, scalars)?;
            take(&[f32::from(u8::from(is_stopped))]);
        }
        comm.dense.start(exchange)
    }

    /// Waits for the sums of the bucket that was started first. If the updates of any rank are
    /// stopped, stops this rank's.
    ///
    /// # Errors
    /// [`Error::Communication`], or [`Error::Device`] if the device failed.
    pub fn finish_sums(
        &mut self,
        context: &mut RankContext<B>,
        scalars: &mut B::Scalars,
        bucket: BucketParameters,
    ) -> Result<(), Error> {
        let BucketParameters { parameters, is_first } = bucket;
        let lengths = parameters.map(|number| self.gradient_len(&context.device, number));
        let elements = lengths.sum();
        let RankContext { device, queue, comm, profiler } = context;
        let summed = profiler.op(Op::AllReduce { elements }, || comm.dense.finish())?;
        if is_first {
            let mut stopped = [0.0];
            summed.sums.read(elements, &mut stopped);
            if stopped[0] > 0.0 {
                device.stop(queue, scalars)?;
            }
        }
        self.summed = Some(summed);
        Ok(())
    }

    /// Updates the parameters of the bucket whose sums were waited for last.
    ///
    /// # Errors
    /// [`Error::Device`] if the device failed.
    pub fn update_from_sums(
        &mut self,
        context: &mut RankContext<B>,
        scalars: &B::Scalars,
        bucket: BucketParameters,
    ) -> Result<(), Error> {
        let Some(mut summed) = self.summed.take() else { return Ok(()) };
        let mut at = 0;
        for number in bucket.parameters.rev() {
            self.update(context, number, scalars, Some((&summed.sums, at)))?;
            at += self.gradient_len(&context.device, number);
        }
        summed.sums.clear(context.comm.dense.settings());
        self.spare.push(summed);
        Ok(())
    }

    /// Sets the gradients of `parameters` to zero.
    ///
    /// # Errors
    /// [`Error::Device`] if the device failed.
    pub fn clear_gradients(
        &mut self,
        DeviceQueue { device, queue }: DeviceQueue<'_, B>,
        parameters: Range<usize>,
    ) -> Result<(), Error> {
        for number in parameters {
            match self.order[number] {
                ParameterId::Weight(WeightId(id)) => {
                    device.clear_gradient(queue, &mut self.weights[id].values)?;
                }
                ParameterId::Vector(VectorId(id)) => {
                    let len = self.vectors[id].len();
                    device.clear(queue, &mut self.vectors[id].gradient, len)?;
                }
            }
        }
        Ok(())
    }

    /// Updates parameter `number` with its own gradient, or with the sum over all ranks.
    fn update(
        &mut self,
        context: &mut RankContext<B>,
        number: usize,
        scalars: &B::Scalars,
        sums: Option<BucketSums<'_>>,
    ) -> Result<(), Error> {
        let len = self.gradient_len(&context.device, number);
        let RankContext { device, queue, profiler, .. } = context;
        let copy = |to: &mut [f32]| sums.into_iter().for_each(|(bucket, at)| bucket.read(at, to));
        let sum = sums.map(|(bucket, at)| match bucket.slice(at, len) {
            Some(sum) => GradientSum::Whole(sum),
            None => GradientSum::Pieces(&copy),
        });
        let optimizer = self.optimizer;
        match self.order[number] {
            ParameterId::Weight(id) => {
                let DenseWeight { shape, values, .. } = &mut self.weights[id.0];
                let (elements, packed) = (shape.elements(), shape.elements());
                let op = Op::DenseUpdate { elements, packed, optimizer };
                profiler.op(op, || device.update_weight(queue, values, sum, scalars))?;
            }
            ParameterId::Vector(id) => {
                let DenseVector { shape, values, gradient, state, .. } = &mut self.vectors[id.0];
                let op = Op::DenseUpdate { elements: len, packed: 0, optimizer };
                let dim = shape[1..].iter().product();
                let arguments = VectorUpdate { values, gradient, state, dim };
                profiler.op(op, || device.update_vector(queue, arguments, sum, scalars))?;
            }
        }
        Ok(())
    }
}

impl<B: Backend> DenseWeight<B> {
    fn to_parameter(
        &self,
        DeviceQueue { device, queue }: DeviceQueue<'_, B>,
        optimizer: Optimizer,
    ) -> Result<DenseParameter, Error> {
        let MatrixShape { rows: n, columns: k } = self.shape;
        let mut parameter = DenseParameter::zeros(&self.name, &[n, k], optimizer);
        let DenseParameter { weight, state, .. } = &mut parameter;
        device.get_weight(queue, WeightPart::Values, &self.values, weight)?;
        device.get_weight(queue, WeightPart::State, &self.values, state)?;
        Ok(parameter)
    }
}

impl<B: Backend> DenseVector<B> {
    fn len(&self) -> usize {
        self.shape.iter().product()
    }

    fn is_finite(
        &self,
        DeviceQueue { device, queue }: DeviceQueue<'_, B>,
        optimizer: Optimizer,
    ) -> Result<bool, Error> {
        let mut room = Vec::new();
        let state = DenseParameter::state_len(&self.shape, optimizer);
        for (part, len) in [(&self.values, self.len()), (&self.state, state)] {
            let values = device.read(queue, part, len, &mut room)?;
            if !WeightsView::F32(values).are_finite(0..len) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn to_parameter(
        &self,
        DeviceQueue { device, queue }: DeviceQueue<'_, B>,
        optimizer: Optimizer,
    ) -> Result<DenseParameter, Error> {
        let mut parameter = DenseParameter::zeros(&self.name, &self.shape, optimizer);
        let DenseParameter { weight, state, .. } = &mut parameter;
        let mut room = Vec::new();
        for (from, to) in [(&self.values, weight), (&self.state, state)] {
            let values = device.read(queue, from, to.len(), &mut room)?;
            to.copy_from_slice(values);
        }
        Ok(parameter)
    }
}
