//! Made-up configurations to measure: tables, layers, batches, rules and laws of ids drawn at
//! random, so that what is learnt from them holds between and around them.

use schema::random::CounterRng;

/// What all of them change.
pub const BASE: &str = "dlrm-ddp";
/// Weights and states of a configuration's tables are no more than this.
const TABLE_BYTES_MOST: f64 = 2.5e9;
/// Bytes of all rows that a batch looks up.
const LOOKED_UP_BYTES_MOST: f64 = 4e8;
/// Ids of a batch.
const IDS_MOST: usize = 2_000_000;
/// FLOPs of a step.
const FLOPS_MOST: f64 = 3e10;

/// A configuration by what it changes of [`BASE`].
#[derive(Clone, Debug, PartialEq)]
pub struct Drawn {
    /// Keys and values.
    pub set: Vec<(String, String)>,
    /// Ids of every bag.
    pub pooling: u32,
}

/// Random numbers one after the other.
struct Dice {
    rng: CounterRng,
    at: u64,
}

impl Dice {
    fn unit(&mut self) -> f64 {
        self.at += 1;
        self.rng.unit(self.at)
    }

    /// A whole number from `least` to `most`, small ones as often as large ones.
    fn between(&mut self, least: f64, most: f64) -> usize {
        let exponent = least.ln() + self.unit() * (most / least).ln();
        exponent.exp().round() as usize
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        let at = (self.unit() * choices.len() as f64) as usize;
        choices[at.min(choices.len() - 1)]
    }
}

/// The tables of a configuration and what is looked up.
struct Tables {
    count: usize,
    rows: usize,
    dim: usize,
    pooling: usize,
    batch: usize,
    data_type: &'static str,
    rule: &'static str,
    law: &'static str,
}

/// Number `number` of those of `seed`: the same wherever it is drawn.
pub fn one(seed: u64, number: u64) -> Drawn {
    let mut dice = Dice { rng: CounterRng::new(seed, number), at: 0 };
    let tables = loop {
        let tables = tables(&mut dice);
        if tables.fits() {
            break tables;
        }
    };
    let mut set = Vec::new();
    let mut add = |key: &str, value: String| set.push((key.to_owned(), value));
    let last = tables.count - 1;
    let Tables { rows, dim, data_type, .. } = tables;
    add("data.categorical", format!(r#"[{{ column = "t{{0..{last}}}", kind = "integer" }}]"#));
    add(
        "model.tables",
        format!(
            r#"[{{ name = "t{{0..{last}}}", rows = {rows}, dim = {dim}, data_type = "{data_type}" }}]"#
        ),
    );
    add("synthetic.ids", tables.law.to_owned());
    add("optimizer.sparse", format!(r#"{{ kind = "{}", learning_rate = 0.001 }}"#, tables.rule));
    add("training.batch_size", tables.batch.to_string());
    layers(&mut dice, &tables, &mut add);
    Drawn { set, pooling: tables.pooling as u32 }
}

fn tables(dice: &mut Dice) -> Tables {
    const DIMS: [usize; 12] = [8, 16, 16, 32, 32, 48, 64, 64, 64, 96, 128, 128];
    const RULES: [&str; 10] = [
        "sgd",
        "sgd",
        "sgd",
        "sgd",
        "adagrad",
        "adagrad",
        "rowwise_adagrad",
        "rowwise_adagrad",
        "rowwise_adagrad",
        "adam",
    ];
    const UNIFORM: &str = r#"{ kind = "uniform" }"#;
    const LAWS: [&str; 6] = [
        UNIFORM,
        UNIFORM,
        UNIFORM,
        r#"{ kind = "zipf", exponent = 0.8 }"#,
        r#"{ kind = "zipf", exponent = 1.05 }"#,
        r#"{ kind = "zipf", exponent = 1.2 }"#,
    ];
    const TYPES: [&str; 8] = ["f32", "f32", "f32", "f32", "f32", "f32", "f16", "bf16"];
    let batch = dice.between(64.0, 4096.0);
    Tables {
        count: dice.between(1.0, 26.0),
        rows: dice.between(1e3, 3e6),
        dim: dice.of(&DIMS),
        pooling: dice.between(0.6, 40.0).max(1),
        batch: if dice.unit() < 0.5 { batch.next_power_of_two() } else { batch },
        data_type: dice.of(&TYPES),
        rule: dice.of(&RULES),
        law: dice.of(&LAWS),
    }
}

impl Tables {
    fn fits(&self) -> bool {
        let states = match self.rule {
            "adagrad" => 2.0,
            "adam" => 3.0,
            _ => 1.0,
        };
        let bytes = 4.0 * self.dim as f64;
        let ids = self.count * self.batch * self.pooling;
        (self.count * self.rows) as f64 * bytes * states <= TABLE_BYTES_MOST
            && ids as f64 * bytes <= LOOKED_UP_BYTES_MOST
            && ids <= IDS_MOST
    }
}

/// MLPs and what joins them, drawn again until a step is short enough.
fn layers(dice: &mut Dice, tables: &Tables, add: &mut dyn FnMut(&str, String)) {
    const WIDTHS: [usize; 11] = [32, 64, 96, 128, 192, 256, 320, 512, 512, 768, 1024];
    const INPUTS: [usize; 5] = [4, 13, 64, 128, 256];
    loop {
        let input = dice.of(&INPUTS);
        let hidden = (dice.unit() * 4.0) as usize;
        let mut bottom: Vec<usize> = (0..hidden).map(|_| dice.of(&WIDTHS)).collect();
        bottom.push(tables.dim);
        let hidden = 1 + (dice.unit() * 4.0) as usize;
        let mut top: Vec<usize> = (0..hidden).map(|_| dice.of(&WIDTHS)).collect();
        top.push(1);
        let vectors = tables.count + 1;
        let (joined, crossed, interaction) = match (dice.unit() * 10.0) as usize {
            0 => (vectors * tables.dim, 0, r#"{ kind = "cat" }"#.to_owned()),
            1 => {
                let (layers, rank) = (1 + (dice.unit() * 3.0) as usize, dice.of(&[32, 64, 128]));
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
        if 6.0 * tables.batch as f64 * each as f64 > FLOPS_MOST {
            continue;
        }
        let rule = dice.of(&["sgd", "sgd", "sgd", "sgd", "adagrad", "adagrad", "adam"]);
        let precision = if dice.unit() < 0.85 { "f32" } else { "bf16" };
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
    use super::{BASE, one};
    use crate::resolve::config;

    #[test]
    fn drawn_configurations_are_valid_and_the_same_each_time() {
        for number in 0..50 {
            let drawn = one(7, number);
            assert_eq!(drawn, one(7, number));
            let job = config::job(BASE, &drawn.set).unwrap();
            assert!(job.config.training.batch_size >= 64);
        }
        assert_ne!(one(7, 0), one(8, 0));
    }
}
