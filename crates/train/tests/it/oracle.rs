//! A second, simple DLRM in f64, which the trainer must match under any model and plan. The oracle
//! processes one sample at a time and sums gradients densely over ids. The oracle has no tiles,
//! except for the optimizer state.

use std::collections::BTreeMap;

use schema::{
    Batch, Interaction, JobConfig, Loss, Optimizer, OptimizerConfig, Pooling, ShardingPlan,
    SplitRowRule, Tile, TriangleOrder, WeightDecayMode,
};
use train::model::RankParameters;

type Vector = Vec<f64>;

/// Parameters and optimizer state in f64.
pub struct Oracle<'a> {
    config: &'a JobConfig,
    /// Tiles over whose columns the rules of rows work.
    tiles: Vec<Tile>,
    pub dense: BTreeMap<String, Vector>,
    dense_state: BTreeMap<String, Vec<[f64; 2]>>,
    step: i32,
    /// Whole tables, each with shape `[rows, dim]`.
    pub tables: Vec<Vector>,
    /// Optimizer state by table, row and column, with two values each. Adagrad uses only the first
    /// value. Row-wise Adagrad uses only the first column of a tile.
    table_state: Vec<Vec<Vec<[f64; 2]>>>,
}

/// Gradients of one batch.
#[derive(Default)]
struct Gradients {
    dense: BTreeMap<String, Vector>,
    rows: BTreeMap<(usize, usize), Vector>,
}

impl<'a> Oracle<'a> {
    /// Starts from the parameters of one rank under a plan with whole tables.
    pub fn new(config: &'a JobConfig, plan: &ShardingPlan, start: &RankParameters) -> Self {
        let wide = |values: &[f32]| values.iter().map(|&v| f64::from(v)).collect::<Vector>();
        let dense: BTreeMap<_, _> =
            start.dense.iter().map(|p| (p.name.clone(), wide(&p.weight))).collect();
        let dense_state = dense.iter().map(|(n, w)| (n.clone(), vec![[0.0; 2]; w.len()])).collect();
        let tables = start.tiles.iter().map(|tile| wide(&tile.weight.view().to_f32())).collect();
        let state =
            |table: &schema::TableConfig| vec![vec![[0.0; 2]; table.dim]; table.rows as usize];
        let table_state = config.model.tables.iter().map(state).collect();
        let whole = ShardingPlan::table_wise(&config.model.tables, 1);
        let tiles = match config.optimizer.row_scope {
            SplitRowRule::WholeRows => whole.tiles().to_vec(),
            SplitRowRule::ColumnTiles => {
                plan.tiles().iter().chain(plan.replicas()).cloned().collect()
            }
        };
        Self { config, tiles, dense, dense_state, step: 0, tables, table_state }
    }

    /// Trains one step and returns the mean loss before the update.
    pub fn step(&mut self, batch: &Batch) -> f64 {
        let mut gradients = Gradients::default();
        let loss: f64 =
            (0..batch.size).map(|sample| self.sample(batch, sample, &mut gradients)).sum();
        self.update(gradients);
        loss / batch.size as f64
    }

    /// Trains one step of replica groups that update their tables alone, each with the gradient of
    /// the mean loss over its part of the batch. Returns the mean loss over the batch.
    pub fn step_in_groups(groups: &mut [Self], batch: &Batch) -> f64 {
        let (count, mut loss, mut dense) = (groups.len(), 0.0, BTreeMap::new());
        let mut rows = Vec::new();
        for (number, group) in groups.iter().enumerate() {
            let mut gradients = Gradients::default();
            let samples = batch.size * number / count..batch.size * (number + 1) / count;
            let factor = batch.size as f64 / samples.len() as f64;
            loss += samples.map(|at| group.sample(batch, at, &mut gradients)).sum::<f64>();
            for (name, gradient) in gradients.dense {
                add(dense.entry(name).or_default(), &gradient);
            }
            gradients.rows.values_mut().flatten().for_each(|value| *value *= factor);
            rows.push(gradients.rows);
        }
        for (group, rows) in groups.iter_mut().zip(rows) {
            group.update(Gradients { dense: dense.clone(), rows });
        }
        loss / batch.size as f64
    }

    /// Replaces weights and states of the tables of all groups by their mean.
    pub fn average(groups: &mut [Self]) {
        let count = groups.len() as f64;
        let weights = |group: &Self| group.tables.concat();
        let states = |group: &Self| group.table_state.concat().concat().concat();
        let [weights, states] = [&weights as &dyn Fn(&Self) -> Vector, &states].map(|values| {
            let mut sum = Vector::new();
            groups.iter().for_each(|group| add(&mut sum, &values(group)));
            sum.into_iter().map(|value| value / count).collect::<Vector>()
        });
        for group in groups {
            let to = group.tables.iter_mut().flatten();
            to.zip(&weights).for_each(|(to, &value)| *to = value);
            let to = group.table_state.iter_mut().flatten().flatten().flatten();
            to.zip(&states).for_each(|(to, &value)| *to = value);
        }
    }

    fn update(&mut self, gradients: Gradients) {
        let optimizers = self.config.optimizer;
        self.step += 1;
        let t = self.step;
        for (name, gradient) in gradients.dense {
            let weights = self.dense.get_mut(&name).unwrap();
            let state = self.dense_state.get_mut(&name).unwrap();
            update((&optimizers.dense, t), weights, &gradient, state);
        }
        for ((table, row), gradient) in gradients.rows {
            let dim = gradient.len();
            let weights = &mut self.tables[table][row * dim..][..dim];
            let state = &mut self.table_state[table][row];
            let tiles = self
                .tiles
                .iter()
                .filter(|tile| tile.table.index() == table && tile.rows.contains(&(row as u64)));
            for tile in tiles {
                let columns = tile.columns.clone();
                let (weights, gradient) =
                    (&mut weights[columns.clone()], &gradient[columns.clone()]);
                update((&optimizers.sparse, t), weights, gradient, &mut state[columns]);
            }
        }
    }

    fn sample(&self, batch: &Batch, sample: usize, gradients: &mut Gradients) -> f64 {
        let model = &self.config.model;
        let wide = |values: &[f32]| values.iter().map(|&v| f64::from(v)).collect::<Vector>();
        let x = wide(&batch.dense[sample * model.dense_features..][..model.dense_features]);
        let bottom = self.mlp("bottom", x, model.bottom.len(), true);
        let mut vectors = vec![bottom.last().unwrap().clone()];
        for (feature, described) in model.features().iter().enumerate() {
            for bag in self.bags(described.table, (batch, feature, sample)) {
                vectors.push(self.pool(described.table, bag));
            }
        }
        let (joined, crossed) = self.join(&vectors);
        let top = self.mlp("top", joined, model.top.len(), false);
        let mut logit = top.last().unwrap()[0];
        if model.wide {
            logit += product(&self.dense["wide.weight"], &top[0])[0];
        }
        let label = f64::from(batch.labels[sample]);
        let p = 1.0 / (1.0 + (-logit).exp());
        let (loss, d_logit) = match model.loss {
            Loss::BceWithLogits => (-(label * p.ln() + (1.0 - label) * (1.0 - p).ln()), p - label),
            Loss::Mse => ((p - label).powi(2), 2.0 * (p - label) * p * (1.0 - p)),
        };
        let d_logit = vec![d_logit / batch.size as f64];
        let mut d_joined = self.mlp_backward("top", (&top, d_logit.clone()), false, gradients);
        if model.wide {
            let d_wide = self.product_backward("wide.weight", &top[0], &d_logit, gradients);
            add(&mut d_joined, &d_wide);
        }
        let d_vectors = self.join_backward(&vectors, &crossed, d_joined, gradients);
        self.mlp_backward("bottom", (&bottom, d_vectors[0].clone()), true, gradients);
        let mut d_vectors = d_vectors[1..].iter();
        for (feature, described) in model.features().iter().enumerate() {
            for bag in self.bags(described.table, (batch, feature, sample)) {
                let d_vector = d_vectors.next().unwrap();
                let scale = scale(model.tables[described.table].pooling, bag.len());
                for &id in bag {
                    let d_row: Vector = d_vector.iter().map(|d| d * scale).collect();
                    add(gradients.rows.entry((described.table, id as usize)).or_default(), &d_row);
                }
            }
        }
        loss
    }

    /// Returns the ids of each vector. A pooled vector has all ids of the sample's bag. A vector of
    /// a sequence has one id, or none after the end of the bag.
    fn bags<'b>(
        &self,
        table: usize,
        (batch, feature, sample): (&'b Batch, usize, usize),
    ) -> Vec<&'b [i64]> {
        let bag = &batch.sparse.values[batch.sparse.bag(feature, sample)];
        match self.config.model.tables[table].sequence_length {
            None => vec![bag],
            Some(length) => (0..length).map(|i| bag.get(i..=i).unwrap_or_default()).collect(),
        }
    }

    fn pool(&self, table: usize, bag: &[i64]) -> Vector {
        let config = &self.config.model.tables[table];
        let mut sum = vec![0.0; config.dim];
        for &id in bag {
            add(&mut sum, &self.tables[table][id as usize * config.dim..][..config.dim]);
        }
        let scale = scale(config.pooling, bag.len());
        sum.iter().map(|value| value * scale).collect()
    }

    /// Computes all activations of an MLP, with the input first.
    fn mlp(&self, name: &str, input: Vector, layers: usize, last_relu: bool) -> Vec<Vector> {
        let mut all = vec![input];
        for i in 0..layers {
            let mut y = product(&self.dense[&format!("{name}.{i}.weight")], all.last().unwrap());
            add(&mut y, &self.dense[&format!("{name}.{i}.bias")]);
            if i + 1 < layers || last_relu {
                y.iter_mut().for_each(|y| *y = y.max(0.0));
            }
            all.push(y);
        }
        all
    }

    fn mlp_backward(
        &self,
        name: &str,
        (all, mut d): (&[Vector], Vector),
        last_relu: bool,
        gradients: &mut Gradients,
    ) -> Vector {
        for i in (0..all.len() - 1).rev() {
            if i + 2 < all.len() || last_relu {
                d.iter_mut()
                    .zip(&all[i + 1])
                    .for_each(|(d, y)| *d *= f64::from(u8::from(*y > 0.0)));
            }
            add(gradients.dense.entry(format!("{name}.{i}.bias")).or_default(), &d);
            let weight = format!("{name}.{i}.weight");
            d = self.product_backward(&weight, &all[i], &d, gradients);
        }
        d
    }

    fn product_backward(
        &self,
        weight: &str,
        x: &[f64],
        d: &[f64],
        gradients: &mut Gradients,
    ) -> Vector {
        let outer: Vector = d.iter().flat_map(|d| x.iter().map(move |x| d * x)).collect();
        add(gradients.dense.entry(weight.to_owned()).or_default(), &outer);
        let w = &self.dense[weight];
        (0..x.len()).map(|i| (0..d.len()).map(|o| d[o] * w[o * x.len() + i]).sum()).collect()
    }

    /// Computes the output of the interaction, and the inputs of all cross layers.
    fn join(&self, vectors: &[Vector]) -> (Vector, Vec<Vector>) {
        match self.config.model.interaction {
            Interaction::Cat => (vectors.concat(), Vec::new()),
            Interaction::Dot { .. } => {
                let dot = |(i, j): (usize, usize)| -> f64 {
                    vectors[i].iter().zip(&vectors[j]).map(|(a, b)| a * b).sum()
                };
                let pairs = self.pairs(vectors.len()).into_iter().map(dot);
                (vectors[0].iter().copied().chain(pairs).collect(), Vec::new())
            }
            Interaction::DcnV2 { layers, .. } => {
                let x0 = vectors.concat();
                let mut all = vec![x0.clone()];
                for i in 0..layers {
                    let x = all.last().unwrap();
                    let u = self.cross(i, x);
                    let next = x0.iter().zip(&u).zip(x).map(|((x0, u), x)| x0 * u + x);
                    all.push(next.collect());
                }
                (all.last().unwrap().clone(), all)
            }
        }
    }

    /// Computes `W V x + b` of cross layer `i`.
    fn cross(&self, i: usize, x: &[f64]) -> Vector {
        let down = product(&self.dense[&format!("cross.{i}.v")], x);
        let mut u = product(&self.dense[&format!("cross.{i}.w")], &down);
        add(&mut u, &self.dense[&format!("cross.{i}.bias")]);
        u
    }

    fn join_backward(
        &self,
        vectors: &[Vector],
        crossed: &[Vector],
        d: Vector,
        gradients: &mut Gradients,
    ) -> Vec<Vector> {
        if let Interaction::Dot { .. } = self.config.model.interaction {
            let dim = vectors[0].len();
            let mut out: Vec<Vector> = vectors.iter().map(|v| vec![0.0; v.len()]).collect();
            add(&mut out[0], &d[..dim]);
            for ((i, j), d) in self.pairs(vectors.len()).into_iter().zip(&d[dim..]) {
                for k in 0..dim {
                    out[i][k] += d * vectors[j][k];
                    out[j][k] += d * vectors[i][k];
                }
            }
            return out;
        }
        let d = if crossed.is_empty() { d } else { self.cross_backward(crossed, d, gradients) };
        let mut rest = &d[..];
        let mut cut = |vector: &Vector| {
            let (head, tail) = rest.split_at(vector.len());
            rest = tail;
            head.to_vec()
        };
        vectors.iter().map(&mut cut).collect()
    }

    fn cross_backward(&self, all: &[Vector], mut d: Vector, gradients: &mut Gradients) -> Vector {
        let x0 = &all[0];
        let mut d_x0 = vec![0.0; x0.len()];
        for i in (0..all.len() - 1).rev() {
            let u = self.cross(i, &all[i]);
            let through: Vector = d.iter().zip(&u).map(|(d, u)| d * u).collect();
            add(&mut d_x0, &through);
            let d_u: Vector = d.iter().zip(x0).map(|(d, x0)| d * x0).collect();
            add(gradients.dense.entry(format!("cross.{i}.bias")).or_default(), &d_u);
            let down = product(&self.dense[&format!("cross.{i}.v")], &all[i]);
            let d_down = self.product_backward(&format!("cross.{i}.w"), &down, &d_u, gradients);
            let d_x = self.product_backward(&format!("cross.{i}.v"), &all[i], &d_down, gradients);
            add(&mut d, &d_x);
        }
        add(&mut d, &d_x0);
        d
    }

    fn pairs(&self, vectors: usize) -> Vec<(usize, usize)> {
        let Interaction::Dot { order, itself } = self.config.model.interaction else {
            return Vec::new();
        };
        let all = (0..vectors).flat_map(|i| (0..vectors).map(move |j| (i, j)));
        all.filter(|&(i, j)| match order {
            _ if i == j => itself,
            TriangleOrder::Lower => j < i,
            TriangleOrder::Upper => j > i,
        })
        .collect()
    }
}

fn scale(pooling: Pooling, length: usize) -> f64 {
    match pooling {
        Pooling::Mean if length > 0 => 1.0 / length as f64,
        _ => 1.0,
    }
}

fn add(sum: &mut Vector, addend: &[f64]) {
    sum.resize(addend.len(), 0.0);
    sum.iter_mut().zip(addend).for_each(|(sum, addend)| *sum += addend);
}

fn product(weight: &[f64], x: &[f64]) -> Vector {
    let row = |row: &[f64]| row.iter().zip(x).map(|(w, x)| w * x).sum();
    weight.chunks_exact(x.len()).map(row).collect()
}

/// Updates `weights` at step `t` = 1, 2, …. Row-wise state is in the first element of `state`.
fn update(
    (rule, t): (&OptimizerConfig, i32),
    weights: &mut [f64],
    gradient: &[f64],
    state: &mut [[f64; 2]],
) {
    let lambda = |mode| if rule.weight_decay_mode == mode { rule.weight_decay } else { 0.0 };
    let (l2, decoupled) = (lambda(WeightDecayMode::L2), lambda(WeightDecayMode::Decoupled));
    let gradient: Vector = gradient.iter().zip(&*weights).map(|(g, w)| g + l2 * w).collect();
    if rule.kind == Optimizer::RowwiseAdagrad {
        // Row-wise Adagrad adds the mean square of the row before it updates any weight.
        state[0][0] += gradient.iter().map(|g| g * g).sum::<f64>() / gradient.len() as f64;
    }
    let row = state[0][0];
    let direction = |((g, w), state): ((&f64, &f64), &mut [f64; 2])| {
        let direction = match rule.kind {
            Optimizer::Sgd => *g,
            Optimizer::Adagrad => {
                state[0] += g * g;
                g / (state[0].sqrt() + rule.epsilon)
            }
            Optimizer::RowwiseAdagrad => g / (row.sqrt() + rule.epsilon),
            Optimizer::Adam | Optimizer::SparseAdam | Optimizer::Lamb => {
                state[0] = rule.beta1 * state[0] + (1.0 - rule.beta1) * g;
                state[1] = rule.beta2 * state[1] + (1.0 - rule.beta2) * g * g;
                let [left, left_square] = [rule.beta1, rule.beta2].map(|beta| 1.0 - beta.powi(t));
                if rule.kind == Optimizer::SparseAdam {
                    let rate = left_square.sqrt() / left;
                    rate * state[0] / (state[1].sqrt() + rule.epsilon)
                } else {
                    state[0] / left / ((state[1] / left_square).sqrt() + rule.epsilon)
                }
            }
        };
        direction + decoupled * w
    };
    let directions: Vector = gradient.iter().zip(&*weights).zip(state).map(direction).collect();
    let norm = |values: &[f64]| values.iter().map(|v| v * v).sum::<f64>().sqrt();
    let norms = (norm(weights), norm(&directions));
    // LAMB scales the rate by the ratio of the norms, unless one of them is 0.
    let trusted = rule.kind == Optimizer::Lamb && norms.0 > 0.0 && norms.1 > 0.0;
    let rate = rule.learning_rate * if trusted { norms.0 / norms.1 } else { 1.0 };
    for (weight, direction) in weights.iter_mut().zip(&directions) {
        *weight -= rate * direction;
    }
}
