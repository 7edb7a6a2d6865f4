//! The operations of a step of rowmill's own trainer, from a configuration alone. Knows what the
//! trainer does in which order, no time; `cli` holds the list against recorded steps.

use schema::{
    GemmProduct, IdLaw, Interaction, JobConfig, Op, Optimizer, Pass, Precision, ShardingPlan,
    TableConfig,
};

use crate::Error;

/// Elements of a panel, as the matrix products lay weights out: what ranks add up is padded to it.
const PANEL: usize = 32;

/// What a step trains.
#[derive(Clone, Copy, Debug)]
pub struct Workload<'a> {
    /// The model and its rules; `training.batch_size` are the samples of all ranks.
    pub config: &'a JobConfig,
    /// Ranks, which share the samples alike and hold whole tables.
    pub ranks: usize,
    /// Ids of each bag.
    pub pooling: usize,
}

/// The operations of a step, by rank, in the trainer's order. Waiting for input is not one of them.
///
/// Ids are taken for uniform: of `n` ids of a table of `R` rows, `R (1 − (1 − 1/R)ⁿ)` are distinct.
///
/// # Errors
/// [`Error::Workload`] for what the trainer does otherwise than this knows: other interactions than
/// `dot`, tables without pooling, other ids, no dense features, samples that ranks cannot share.
pub fn ops(workload: Workload<'_>) -> Result<Vec<Vec<Op>>, Error> {
    check(workload)?;
    let tables = &workload.config.model.tables;
    let plan = ShardingPlan::table_wise(tables, workload.ranks as u32);
    let owned = |rank: usize| -> Vec<&TableConfig> {
        let tiles = plan.tiles().iter().filter(|tile| tile.rank.index() == rank);
        tiles.map(|tile| &tables[tile.table.index()]).collect()
    };
    Ok((0..workload.ranks).map(|rank| step(workload, &owned(rank))).collect())
}

fn check(workload: Workload<'_>) -> Result<(), Error> {
    let model = &workload.config.model;
    let wrong =
        |expected: &str, got: String| Err(Error::Workload { expected: expected.to_owned(), got });
    if !matches!(model.interaction, Interaction::Dot { .. }) {
        return wrong("interaction.kind = \"dot\"", format!("{:?}", model.interaction));
    }
    if let Some(table) = model.tables.iter().find(|table| table.sequence_length.is_some()) {
        return wrong("pooled tables", format!("sequences of {:?}", table.name));
    }
    if let Some(table) = model.tables.iter().find(|table| table.is_auto()) {
        return wrong("tables of known rows", format!("rows = \"auto\" of {:?}", table.name));
    }
    let law = |table: &TableConfig| workload.config.synthetic.law(&table.name);
    let is_other = |law: &&IdLaw| !matches!(law, IdLaw::Uniform);
    if let Some(law) = model.tables.iter().find_map(|table| law(table).filter(is_other)) {
        return wrong("uniform ids", format!("{law:?}"));
    }
    if model.dense_features == 0 || model.bottom.is_empty() || model.top.is_empty() {
        return wrong("dense features, a bottom and a top MLP", "none".to_owned());
    }
    if workload.config.training.precision != Precision::F32 {
        return wrong("products of f32", workload.config.training.precision.to_string());
    }
    let samples = workload.config.training.batch_size;
    if samples == 0 || workload.ranks == 0 || !samples.is_multiple_of(workload.ranks) {
        let ranks = workload.ranks;
        return wrong(
            "a batch that its ranks share alike",
            format!("{samples} samples, {ranks} ranks"),
        );
    }
    Ok(())
}

/// Elements of gradients that ranks sum at once, at least, as the trainer does unless it is told
/// otherwise.
const BUCKET: usize = (25 << 20) / size_of::<f32>();

/// The parameters of a layer, as they are updated.
#[derive(Clone, Copy)]
enum Parameter {
    Weight { n: usize, k: usize },
    Vector { elements: usize },
}

/// A rank's step while it is written.
struct Writer<'a> {
    workload: Workload<'a>,
    /// Samples of this rank.
    batch: usize,
    ops: Vec<Op>,
    /// What is updated after the next product that makes a gradient, last first.
    waiting: Vec<Parameter>,
    /// Elements of the bucket of gradients that is being filled, and the updates that wait for it.
    bucket: (usize, Vec<Op>),
    /// What is waited for once all gradients are on their way.
    sums: Vec<Op>,
}

fn step(workload: Workload<'_>, owned: &[&TableConfig]) -> Vec<Op> {
    let model = &workload.config.model;
    let batch = workload.config.training.batch_size / workload.ranks;
    let (ops, waiting, bucket, sums) = (Vec::new(), Vec::new(), (0, Vec::new()), Vec::new());
    let mut writer = Writer { workload, batch, ops, waiting, bucket, sums };
    writer.embedding_forward(owned);
    writer.ops.push(Op::Pack { elements: batch * model.dense_features });
    let bottom = layers(model.dense_features, &model.bottom);
    let top = layers(model.interaction_width(), &model.top);
    bottom.iter().for_each(|layer| writer.forward(*layer));
    writer.interaction(Pass::Forward);
    top.iter().for_each(|layer| writer.forward(*layer));
    writer.ops.push(Op::Loss { batch_size: batch });
    top.iter().rev().for_each(|layer| writer.backward(*layer, true));
    writer.interaction(Pass::Backward);
    writer.ops.push(Op::ReluBackward { elements: batch * model.dense_width() });
    for (at, layer) in bottom.iter().enumerate().rev() {
        writer.backward(*layer, at > 0);
    }
    writer.close_bucket();
    writer.ops.append(&mut writer.sums);
    writer.embedding_backward(owned);
    writer.ops
}

/// Inputs and outputs of the layers of an MLP.
fn layers(input: usize, widths: &[usize]) -> Vec<(usize, usize)> {
    let inputs = std::iter::once(input).chain(widths.iter().copied());
    inputs.zip(widths.iter().copied()).collect()
}

impl Writer<'_> {
    fn has_peers(&self) -> bool {
        self.workload.ranks > 1
    }

    /// The rule of the dense parameters.
    fn rule(&self) -> Optimizer {
        self.workload.config.optimizer.dense.kind
    }

    fn interaction(&mut self, pass: Pass) {
        let model = &self.workload.config.model;
        let (vectors, dim) = (model.vectors(), model.dot_dim());
        self.ops.push(Op::Interaction { batch_size: self.batch, vectors, dim, pass });
    }

    fn gemm(&mut self, product: GemmProduct, (m, n, k): (usize, usize, usize)) {
        self.ops.push(Op::Gemm { product, precision: Precision::F32, m, n, k });
    }

    fn forward(&mut self, (k, n): (usize, usize)) {
        self.gemm(GemmProduct::Forward, (self.batch, n, k));
    }

    /// The gradients of a layer; a layer of one output, whose weight is a vector, makes that of its
    /// weight first.
    fn backward(&mut self, (inputs, outputs): (usize, usize), of_input: bool) {
        let weight = (outputs, inputs, self.batch);
        let input = (self.batch, inputs, outputs);
        if outputs == 1 {
            self.gemm(GemmProduct::BackwardWeight, weight);
            if of_input {
                self.gemm(GemmProduct::BackwardInput, input);
            }
            self.waiting.push(Parameter::Vector { elements: 1 });
            self.waiting.push(Parameter::Vector { elements: inputs });
            return;
        }
        if of_input {
            self.gemm(GemmProduct::BackwardInput, input);
        }
        self.gemm(GemmProduct::BackwardWeight, weight);
        self.waiting.push(Parameter::Vector { elements: outputs });
        let is_fused = matches!(self.rule(), Optimizer::Sgd | Optimizer::Adagrad | Optimizer::Adam);
        if self.has_peers() || !is_fused {
            self.waiting.push(Parameter::Weight { n: outputs, k: inputs });
        }
        for parameter in std::mem::take(&mut self.waiting) {
            self.update(parameter);
        }
    }

    fn update(&mut self, parameter: Parameter) {
        let optimizer = self.rule();
        let (gradient, elements, packed) = match parameter {
            Parameter::Weight { n, k } => (n * k.next_multiple_of(PANEL), n * k, n * k),
            Parameter::Vector { elements } => (elements, elements, 0),
        };
        let update = Op::DenseUpdate { elements, packed, optimizer };
        if !self.has_peers() {
            return self.ops.push(update);
        }
        self.bucket.0 += gradient;
        self.bucket.1.push(update);
        if self.bucket.0 >= BUCKET {
            self.close_bucket();
        }
    }

    fn close_bucket(&mut self) {
        let (elements, updates) = std::mem::take(&mut self.bucket);
        if elements > 0 {
            self.sums.push(Op::AllReduce { elements });
            self.sums.extend(updates);
        }
    }

    /// Ids of each feature of a table, of all ranks.
    fn ids(&self) -> usize {
        self.batch * self.workload.ranks * self.workload.pooling
    }

    fn embedding_forward(&mut self, owned: &[&TableConfig]) {
        let features: usize = self.workload.config.model.features().len();
        self.ops.push(Op::InputDist { ids: self.batch * features * self.workload.pooling });
        let (samples, ids) = (self.batch * self.workload.ranks, self.ids());
        let sum = |of: &dyn Fn(&TableConfig) -> usize| -> usize {
            owned.iter().map(|table| table.features.len() * of(table)).sum()
        };
        let pooled_elements = sum(&|table| samples * table.dim);
        self.ops.push(Op::EmbeddingForward {
            bags: sum(&|_| samples),
            ids: sum(&|_| ids),
            elements: sum(&|table| ids * table.dim),
            pooled_elements,
            row_bytes: sum(&|table| ids * table.dim * table.data_type.bytes()),
        });
        if self.has_peers() {
            self.ops.push(Op::OutputDist { elements: pooled_elements });
        }
    }

    fn embedding_backward(&mut self, owned: &[&TableConfig]) {
        let model = &self.workload.config.model;
        if self.has_peers() {
            let elements = self.batch * model.pooled_width();
            self.ops.push(Op::GradientDist { elements });
        }
        let (samples, ids) = (self.batch * self.workload.ranks, self.ids());
        let mut op = [0; 6];
        for table in owned {
            let of_table = ids * table.features.len();
            let unique = distinct(table.rows, of_table);
            let sizes = [
                of_table,
                unique,
                of_table * table.dim,
                unique * table.dim,
                unique * table.dim * table.data_type.bytes(),
                samples * table.features.len() * table.dim,
            ];
            op.iter_mut().zip(sizes).for_each(|(sum, size)| *sum += size);
        }
        let [ids, unique_rows, elements, unique_elements, unique_row_bytes, pooled_elements] = op;
        self.ops.push(Op::EmbeddingBackward {
            ids,
            unique_rows,
            elements,
            unique_elements,
            unique_row_bytes,
            pooled_elements,
            optimizer: self.workload.config.optimizer.sparse.kind,
        });
    }
}

/// How many of `ids` uniform ids of a table are distinct, in the mean.
fn distinct(rows: u64, ids: usize) -> usize {
    let rows = rows as f64;
    (rows * -f64::exp_m1(ids as f64 * f64::ln_1p(-1.0 / rows.max(1.0)))).round() as usize
}
