//! Draws random configurations to measure: tables, layers, batches, optimizers and distributions of
//! ids. Random values cover their ranges evenly, so that a model learns to interpolate.

use kernel_model::cpu::EqualTables;
use schema::random::CounterRng;
use schema::{DataType, IndexDistribution, Optimizer};

/// The ready-made configuration that every drawn configuration changes.
pub const BASE: &str = "dlrm-ddp";
/// Upper bound of the bytes of weights and optimizer states of all tables.
const TABLE_BYTES_MOST: f64 = 2.5e9;
/// Upper bound of the bytes of all rows that a batch looks up.
const LOOKED_UP_BYTES_MOST: f64 = 4e8;
/// Upper bound of the number of ids in a batch.
const IDS_MOST: usize = 2_000_000;
/// Bounds for tables that are measured without a model. These bounds are smaller because every
/// round builds the tables anew.
const ALONE: Bounds = Bounds { tables: 1e9, looked_up: 2e8, ids: 1_000_000 };
/// Bounds for the tables in drawn configurations.
const IN_STEPS: Bounds =
    Bounds { tables: TABLE_BYTES_MOST, looked_up: LOOKED_UP_BYTES_MOST, ids: IDS_MOST };
/// Upper bound of the floating-point operations of a step.
const FLOPS_MOST: f64 = 3e10;

/// A random configuration, as a list of changes of [`BASE`].
#[derive(Clone, Debug, PartialEq)]
pub struct RandomConfiguration {
    pub set: Vec<(String, String)>,
    pub pooling: u32,
}

/// A reproducible sequence of random numbers, which depends on a seed and a number.
struct RandomSequence {
    rng: CounterRng,
    at: u64,
}

impl RandomSequence {
    fn unit(&mut self) -> f64 {
        self.at += 1;
        self.rng.unit(self.at)
    }

    /// Draws a whole number from `least` to `most`, uniform in its logarithm.
    fn between(&mut self, least: f64, most: f64) -> usize {
        let exponent = least.ln() + self.unit() * (most / least).ln();
        exponent.exp().round() as usize
    }

    fn choose<T: Copy>(&mut self, choices: &[T]) -> T {
        let at = (self.unit() * choices.len() as f64) as usize;
        choices[at.min(choices.len() - 1)]
    }
}

/// Upper bounds for the sizes of tables and batches.
struct Bounds {
    /// Bytes of the weights and optimizer states of all tables.
    tables: f64,
    /// Bytes of the rows that a batch looks up.
    looked_up: f64,
    /// Number of ids that a batch looks up.
    ids: usize,
}

/// Draws the configuration with index `number` for a seed. The result depends only on these two
/// arguments.
pub fn draw_configuration(seed: u64, number: u64) -> RandomConfiguration {
    let mut random = RandomSequence { rng: CounterRng::new(seed, number), at: 0 };
    let tables = tables(&mut random, &IN_STEPS);
    let mut set = Vec::new();
    let mut add = |key: &str, value: String| set.push((key.to_owned(), value));
    let last = tables.count - 1;
    let EqualTables { rows, dim, data_type, .. } = tables;
    let data_type = match data_type {
        DataType::F32 => "f32",
        DataType::F16 => "f16",
        DataType::Bf16 => "bf16",
    };
    let law = match tables.ids {
        IndexDistribution::Zipf { exponent } => {
            format!(r#"{{ kind = "zipf", exponent = {exponent} }}"#)
        }
        _ => r#"{ kind = "uniform" }"#.to_owned(),
    };
    add("data.categorical", format!(r#"[{{ column = "t{{0..{last}}}", kind = "integer" }}]"#));
    add(
        "model.tables",
        format!(
            r#"[{{ name = "t{{0..{last}}}", rows = {rows}, dim = {dim}, data_type = "{data_type}" }}]"#
        ),
    );
    add("synthetic.ids", law);
    add(
        "optimizer.sparse",
        format!(r#"{{ kind = "{}", learning_rate = 0.001 }}"#, tables.optimizer),
    );
    add("training.batch_size", tables.batch_size.to_string());
    layers(&mut random, &tables, &mut add);
    RandomConfiguration { set, pooling: tables.pooling as u32 }
}

/// Draws the tables with index `number` for a seed, to be measured without a model.
pub fn draw_tables(seed: u64, number: u64) -> EqualTables {
    tables(&mut RandomSequence { rng: CounterRng::new(seed, number).child(1), at: 0 }, &ALONE)
}

/// Draws tables repeatedly until they are within `bounds`.
fn tables(random: &mut RandomSequence, bounds: &Bounds) -> EqualTables {
    loop {
        let drawn = any_tables(random);
        if bounds.hold(&drawn) {
            return drawn;
        }
    }
}

fn any_tables(random: &mut RandomSequence) -> EqualTables {
    use {DataType::*, Optimizer::*};
    // Frequent settings occur several times in these lists, so that they are drawn more often.
    const DIMS: [usize; 12] = [8, 16, 16, 32, 32, 48, 64, 64, 64, 96, 128, 128];
    const RULES: [Optimizer; 10] = [
        Sgd,
        Sgd,
        Sgd,
        Sgd,
        Adagrad,
        Adagrad,
        RowwiseAdagrad,
        RowwiseAdagrad,
        RowwiseAdagrad,
        Adam,
    ];
    const UNIFORM: IndexDistribution = IndexDistribution::Uniform;
    const LAWS: [IndexDistribution; 6] = [
        UNIFORM,
        UNIFORM,
        UNIFORM,
        IndexDistribution::Zipf { exponent: 0.8 },
        IndexDistribution::Zipf { exponent: 1.05 },
        IndexDistribution::Zipf { exponent: 1.2 },
    ];
    const TYPES: [DataType; 8] = [F32, F32, F32, F32, F32, F32, F16, Bf16];
    let batch = random.between(64.0, 4096.0);
    EqualTables {
        count: random.between(1.0, 26.0),
        rows: random.between(1e3, 3e6) as u64,
        dim: random.choose(&DIMS),
        // The range begins at 0.6, so that bags with a single id are drawn more often.
        pooling: random.between(0.6, 40.0).max(1),
        batch_size: if random.unit() < 0.5 { batch.next_power_of_two() } else { batch },
        data_type: random.choose(&TYPES),
        optimizer: random.choose(&RULES),
        ids: random.choose(&LAWS),
    }
}

impl Bounds {
    fn hold(&self, drawn: &EqualTables) -> bool {
        // The weights count as f32, whatever format was drawn, so that the bounds do not depend on
        // the format.
        let states = match drawn.optimizer {
            Optimizer::Adagrad => 2.0,
            Optimizer::Adam => 3.0,
            _ => 1.0,
        };
        let bytes = 4.0 * drawn.dim as f64;
        let ids = drawn.count * drawn.batch_size * drawn.pooling;
        drawn.count as f64 * drawn.rows as f64 * bytes * states <= self.tables
            && ids as f64 * bytes <= self.looked_up
            && ids <= self.ids
    }
}

/// Draws MLPs and the interaction repeatedly, until a step is short enough.
fn layers(random: &mut RandomSequence, tables: &EqualTables, add: &mut dyn FnMut(&str, String)) {
    const WIDTHS: [usize; 11] = [32, 64, 96, 128, 192, 256, 320, 512, 512, 768, 1024];
    const INPUTS: [usize; 5] = [4, 13, 64, 128, 256];
    loop {
        let input = random.choose(&INPUTS);
        let hidden = (random.unit() * 4.0) as usize;
        let mut bottom: Vec<usize> = (0..hidden).map(|_| random.choose(&WIDTHS)).collect();
        // The bottom MLP must end with the dimension of the tables, because the interaction
        // combines its output with the pooled rows.
        bottom.push(tables.dim);
        let hidden = 1 + (random.unit() * 4.0) as usize;
        let mut top: Vec<usize> = (0..hidden).map(|_| random.choose(&WIDTHS)).collect();
        top.push(1);
        let vectors = tables.count + 1;
        let (joined, crossed, interaction) = match (random.unit() * 10.0) as usize {
            0 => (vectors * tables.dim, 0, r#"{ kind = "cat" }"#.to_owned()),
            1 => {
                let (layers, rank) =
                    (1 + (random.unit() * 3.0) as usize, random.choose(&[32, 64, 128]));
                let text = format!(r#"{{ kind = "dcn_v2", layers = {layers}, rank = {rank} }}"#);
                (vectors * tables.dim, 2 * layers * rank * vectors * tables.dim, text)
            }
            _ => {
                let pairs = vectors * (vectors - 1) / 2;
                (tables.dim + pairs, pairs * tables.dim, r#"{ kind = "dot" }"#.to_owned())
            }
        };
        let products = |input: usize, widths: &[usize]| -> usize {
            let inputs = std::iter::once(input).chain(widths.iter().copied());
            inputs.zip(widths).map(|(input, width)| input * width).sum()
        };
        let each = products(input, &bottom) + products(joined, &top) + crossed;
        // Forward and backward together take 6 FLOPs per weight and sample: 2 forward and 4
        // backward.
        if 6.0 * tables.batch_size as f64 * each as f64 > FLOPS_MOST {
            continue;
        }
        let rule = random.choose(&["sgd", "sgd", "sgd", "sgd", "adagrad", "adagrad", "adam"]);
        let precision = if random.unit() < 0.85 { "f32" } else { "bf16" };
        add("data.dense", format!(r#"[{{ column = "d{{0..{}}}" }}]"#, input - 1));
        add("model.dense_features", input.to_string());
        add("model.bottom", format!("{bottom:?}"));
        add("model.top", format!("{top:?}"));
        add("model.interaction", interaction);
        add("optimizer.dense", format!(r#"{{ kind = "{rule}", learning_rate = 0.001 }}"#));
        add("training.precision", precision.to_owned());
        return;
    }
}

#[cfg(test)]
mod tests {
    use super::{BASE, draw_configuration, draw_tables};
    use setup::config;

    #[test]
    fn drawn_configurations_are_valid_and_the_same_each_time() {
        for number in 0..50 {
            let drawn = draw_configuration(7, number);
            assert_eq!(drawn, draw_configuration(7, number));
            let job = config::job(BASE, &drawn.set).unwrap();
            assert!(job.config.training.batch_size >= 64);
        }
        assert_ne!(draw_configuration(7, 0), draw_configuration(8, 0));
    }

    #[test]
    fn tables_without_a_model_stay_within_a_gigabyte_and_are_not_those_of_configurations() {
        for number in 0..50 {
            let drawn = draw_tables(7, number);
            assert_eq!(drawn, draw_tables(7, number));
            assert!(drawn.rows as f64 * (4 * drawn.count * drawn.dim) as f64 <= 1e9);
        }
        assert_ne!(draw_tables(7, 0), draw_tables(8, 0));
        let same = |number| {
            let rows = format!("rows = {},", draw_tables(7, number).rows);
            draw_configuration(7, number).set.iter().any(|(_, value)| value.contains(&rows))
        };
        assert!(!(0..50).all(same));
    }
}
