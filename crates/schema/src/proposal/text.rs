//! Formats a proposal as commented TOML.

use std::fmt::Write as _;

use super::plan::{HOLD_OUT, Input, PlannedLabel, ProposalPlan, VALIDATION, Wish};
use super::role::Role;
use crate::facts::{FileFacts, KnownLayout};
use crate::source::{DataFormat, DenseTransform, NumberForm};
use crate::unit::count;

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

fn list(items: &[String]) -> String {
    let quoted: Vec<String> = items.iter().map(|item| quoted(item)).collect();
    format!("[{}]", quoted.join(", "))
}

/// Formats a proposal as the complete text of a configuration file.
pub fn format_config(
    facts: &FileFacts,
    label: &PlannedLabel,
    inputs: &[Input<'_>],
    plan: &ProposalPlan,
    wish: &Wish,
) -> String {
    let mut out = String::new();
    head(&mut out, facts, wish);
    model(&mut out, inputs, plan, wish);
    training(&mut out, plan);
    data(&mut out, facts, plan, wish);
    columns(&mut out, facts, label, inputs, plan);
    out
}

/// Appends a line. Writing to a `String` cannot fail.
fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    let _ = writeln!(out, "{text}");
}

macro_rules! line {
    ($out:expr) => { $out.push('\n') };
    ($out:expr, $($text:tt)*) => { line($out, format_args!($($text)*)) };
}

fn head(out: &mut String, facts: &FileFacts, wish: &Wish) {
    let layout = facts.layout.map(|layout| format!(" It has the layout of {}.", layout.name()));
    line!(
        out,
        "# Proposed by `{}` from {} rows in {} columns.{}",
        wish.command,
        count(facts.rows),
        facts.columns.len(),
        layout.unwrap_or_default()
    );
    line!(out, "# Training works with it as it is. `rowmill explain config` lists all keys.");
    line!(out);
}

fn model(out: &mut String, inputs: &[Input<'_>], plan: &ProposalPlan, wish: &Wish) {
    line!(out, "[model]");
    line!(out, "name = {}", quoted(&wish.name));
    if plan.bottom.is_empty() {
        line!(
            out,
            "# Without numbers there is no bottom MLP. The interaction uses only the tables."
        );
    } else if plan.constant.is_some() {
        line!(
            out,
            "# Without numbers, the bottom MLP turns a constant into a learned vector, whose"
        );
        line!(
            out,
            "# products with the tables act as biases. The layers and tables are small, so that the"
        );
        line!(out, "# model generalizes to other rows.");
        line!(out, "bottom = {:?}", plan.bottom);
    } else {
        line!(out, "# The bottom MLP is for the numbers.");
        line!(out, "bottom = {:?}", plan.bottom);
    }
    line!(out, "top = {:?}", plan.top);
    if plan.interaction == "cat" {
        line!(
            out,
            "# The top MLP gets the vectors of all columns. If pairs of columns decide, try \"dot\"."
        );
    }
    line!(out, "interaction = {{ kind = \"{}\" }}", plan.interaction);
    line!(out, "loss = \"bce_with_logits\"");
    let tables: Vec<&Input<'_>> = inputs.iter().filter(|input| input.role.is_category()).collect();
    if tables.is_empty() {
        line!(out, "tables = []");
        line!(out);
        return;
    }
    if plan.constant.is_some() {
        line!(
            out,
            "# dim {} is the power of two at or below 6 n^(1/4), from 8 to 32, where n is the number",
            plan.dim
        );
        line!(out, "# of categories of the largest table (arXiv:1708.05123, section 4.1).");
    }
    line!(out, "tables = [");
    for input in tables {
        let categories = input.role.categories(input.facts);
        // Hashed texts get a quarter more rows than categories, because hashes collide.
        let rows = if plan.exact_ids || input.role.is_integer() {
            "\"auto\"".to_owned()
        } else {
            categories.saturating_add(categories / 4).clamp(1, 10_000_000).to_string()
        };
        let pooling = match input.role {
            Role::List { .. } => ", pooling = \"mean\"",
            _ => "",
        };
        line!(
            out,
            "  {{ name = {}, rows = {rows}, dim = {}{pooling} }}, # {} categories",
            quoted(&input.facts.name),
            plan.dim,
            count(categories)
        );
    }
    line!(out, "]");
    line!(out);
}

fn training(out: &mut String, plan: &ProposalPlan) {
    line!(out, "[optimizer]");
    optimizer(out, plan);
    line!(out);
    line!(out, "[schedule]");
    line!(out, "# The learning rates decrease linearly to 0 over all {} steps.", count(plan.steps));
    line!(out, "decay_steps = {}", plan.steps);
    line!(out, "decay_power = 1.0");
    line!(out);
    line!(out, "[training]");
    line!(out, "batch_size = {}", plan.batch_size);
    line!(out, "epochs = {}", plan.epochs);
    line!(
        out,
        "# The best checkpoint is kept, and training stops when its AUC on the validation rows is"
    );
    line!(out, "# no longer exceeded.");
    line!(out, "evaluate_every = {}", plan.evaluate_every);
    line!(out, "keep_best = \"auc\"");
    line!(out, "patience = {}", plan.patience);
    line!(out, "# A logistic regression on the same columns shows what the model adds to it.");
    line!(out, "baselines = true");
    line!(out);
}

/// Weight decay per sample of a model that consists only of tables. On the file of
/// `bench/compare/user_item.py` (seeds 1 to 3 of data and weights), 0.03 left a third of the runs
/// at the saddle point where all rows are 0. With 0.0215 no run stays there, and with 0.015
/// overfitting is stronger.
const DECAY: f64 = 0.0215;
/// Learning rate of a model that consists only of tables. At 0.005 the tables overfitted before the
/// rate had decayed: on data seed 2, the AUC was 0.753 at the best checkpoint and 0.718 at the last
/// (mean of three weight seeds). At 0.002 it is 0.759 and 0.758.
const TABLE_RATE: f64 = 0.002;

/// Weight decay per sample of the tables and of the layers of a model with numbers. On development
/// seed 1 of `bench/compare/first_model.py`, five times as much changed the test AUC by less than
/// 0.001 on `main_effects`, `many_categories` and `ecommerce`, and lowered it on `interactions`.
const SPARSE_DECAY: f64 = 0.02;
const DENSE_DECAY: f64 = 0.01;

/// Formats the optimizers of tables and layers.
fn optimizer(out: &mut String, plan: &ProposalPlan) {
    let per_sample = |value: f64| value / plan.batch_size as f64;
    if plan.constant.is_none() {
        line!(
            out,
            "# The epsilon is 1 per sample, as in FTRL-Proximal (McMahan et al., KDD 2013), because"
        );
        line!(
            out,
            "# gradients are means over a batch. Rows that few samples use then take small steps."
        );
        line!(out, "[optimizer.sparse]");
        line!(out, "kind = \"adagrad\"");
        line!(out, "learning_rate = 0.2");
        line!(out, "epsilon = {:.3e}", per_sample(1.0));
        line!(out, "weight_decay = {:.3e}", per_sample(SPARSE_DECAY));
        line!(out, "weight_decay_mode = \"l2\"");
        line!(out);
        line!(out, "[optimizer.dense]");
        line!(out, "kind = \"adam\"");
        line!(out, "learning_rate = 0.001");
        line!(out, "weight_decay = {:.3e}", per_sample(DENSE_DECAY));
        line!(out, "weight_decay_mode = \"l2\"");
        return;
    }
    line!(
        out,
        "# The decay is {DECAY} per sample, because gradients are means over a batch. Without it,"
    );
    line!(out, "# a model of tables alone would memorize the training rows.");
    line!(out, "[optimizer.sparse]");
    line!(out, "kind = \"adam\"");
    line!(out, "learning_rate = {TABLE_RATE}");
    line!(out, "weight_decay = {:.3e}", per_sample(DECAY));
    line!(out, "weight_decay_mode = \"l2\"");
    line!(out);
    line!(out, "[optimizer.dense]");
    line!(out, "kind = \"adam\"");
    line!(out, "learning_rate = 0.0003");
}

fn data(out: &mut String, facts: &FileFacts, plan: &ProposalPlan, wish: &Wish) {
    line!(out, "[data]");
    line!(out, "# Paths are relative to the folder in which the command runs.");
    line!(out, "train = {}", list(&wish.train));
    if !plan.holds_out {
        line!(out, "evaluation = {}", list(&wish.evaluation));
    }
    hold_out(out, plan);
    // Criteo's layout is detected in TSV files, but has a format of its own.
    let format = match (facts.layout, facts.format) {
        (Some(KnownLayout::Criteo), _) => DataFormat::Criteo,
        (_, format) => format,
    };
    line!(out, "format = \"{}\"", format.name());
    if let Some(delimiter) = &facts.delimiter {
        line!(out, "delimiter = {}", quoted(delimiter));
    }
    if let Some(quote) = &facts.quote {
        line!(out, "quote = {}", quoted(quote));
    }
    if !facts.has_names && format != DataFormat::Criteo {
        let names: Vec<String> = facts.columns.iter().map(|column| column.name.clone()).collect();
        line!(out, "# The file has no header line.");
        line!(out, "columns = {}", list(&names));
    }
    if let Some(missing) = &facts.missing {
        line!(out, "missing = {}", quoted(missing));
    }
}

fn hold_out(out: &mut String, plan: &ProposalPlan) {
    let which = match &plan.time {
        Some(_) => "newest",
        None => "last",
    };
    if plan.holds_out {
        line!(
            out,
            "# The {which} tenth of the rows is held out for a test of the best checkpoint."
        );
        line!(out, "# The tenth before it is for validation: it chooses the best checkpoint.");
        line!(out, "validation = {VALIDATION}");
        line!(out, "hold_out = {HOLD_OUT}");
    } else {
        line!(
            out,
            "# The {which} tenth of the training rows is for validation: it chooses the best"
        );
        line!(out, "# checkpoint, which is then tested on the evaluation files.");
        line!(out, "validation = {VALIDATION}");
    }
    match &plan.time {
        Some((time, false)) => line!(out, "hold_out_by = {}", quoted(time)),
        Some((time, true)) => line!(out, "# The rows are already in the order of {time}."),
        None => line!(out, "# No column is a time, so the rows keep their order."),
    }
}

fn columns(
    out: &mut String,
    facts: &FileFacts,
    label: &PlannedLabel,
    inputs: &[Input<'_>],
    plan: &ProposalPlan,
) {
    let mut keys = format!("column = {}", quoted(&facts.columns[label.at].name));
    if !label.positive.is_empty() {
        keys += &format!(", positive = {}", list(&label.positive));
    }
    if let Some(least) = label.positive_from {
        keys += &format!(", positive_from = {least}");
    }
    line!(out, "# The label: {}.", label.reason);
    if label.skips_unlabeled {
        line!(out, "# Rows without a label are left out.");
        keys += ", unlabeled = \"leave_out\"";
    }
    line!(out, "label = {{ {keys} }}");
    let left_out: Vec<&Input<'_>> = inputs.iter().filter(|input| !input.role.is_used()).collect();
    if !left_out.is_empty() {
        line!(out, "# Left out:");
        for input in left_out {
            line!(out, "#   {}: {}", input.facts.name, input.role.reason(input.facts));
        }
    }
    line!(out, "dense = [");
    if let Some(column) = &plan.constant {
        line!(out, "  {{ column = {}, transform = \"one\" }}, # 1 in every row", quoted(column));
    }
    for input in inputs.iter().filter(|input| input.role.is_dense()) {
        line!(out, "  {}, # {}", dense(input), input.role.reason(input.facts));
    }
    line!(out, "]");
    line!(out, "categorical = [");
    for input in inputs.iter().filter(|input| input.role.is_category()) {
        line!(out, "  {},{}", categorical(input, facts, plan), rare(input, plan));
    }
    line!(out, "]");
    if plan.exact_ids && inputs.iter().any(|input| input.role.is_category()) {
        line!(
            out,
            "# Each category of the training rows has a row. Row 0 is for missing categories, and"
        );
        line!(out, "# row 1 is for rare and unseen ones.");
        line!(out, "ids = {{ mode = \"exact\" }}");
    }
}

fn dense(input: &Input<'_>) -> String {
    let column = quoted(&input.facts.name);
    match &input.role {
        Role::Time { format, parts } => {
            let parts: Vec<String> = parts.iter().map(|part| quoted(part.name())).collect();
            let format = format.as_ref().map(|text| format!(", date_format = {}", quoted(text)));
            format!(
                "{{ column = {column}, transform = \"datetime\", parts = [{}]{} }}",
                parts.join(", "),
                format.unwrap_or_default()
            )
        }
        Role::Number { transform, form, .. } => {
            let transform = match transform {
                DenseTransform::Log1p => ", transform = \"log1p\"",
                DenseTransform::Standardise => ", transform = \"standardise\"",
                _ => "",
            };
            let form = match form {
                NumberForm::Plain => "",
                NumberForm::Money => ", number = \"money\"",
                NumberForm::DecimalComma => ", number = \"decimal_comma\"",
            };
            format!("{{ column = {column}{form}{transform} }}")
        }
        _ => format!("{{ column = {column} }}"),
    }
}

fn categorical(input: &Input<'_>, facts: &FileFacts, plan: &ProposalPlan) -> String {
    let column = quoted(&input.facts.name);
    let kind = match (input.role.is_integer(), facts.layout) {
        (_, Some(KnownLayout::Criteo)) => ", kind = \"hex\"",
        (true, _) => ", kind = \"integer\"",
        (false, _) => "",
    };
    let separator = match &input.role {
        Role::List { separator: Some(text), .. } => format!(", separator = {}", quoted(text)),
        _ => String::new(),
    };
    let is_rare = plan.exact_ids && input.role.is_mostly_rare(input.facts);
    let least = if is_rare { ", min_count = 2" } else { "" };
    format!("{{ column = {column}{kind}{separator}{least} }}")
}

/// Returns the comment that explains why a column has a `min_count`.
fn rare(input: &Input<'_>, plan: &ProposalPlan) -> &'static str {
    let is_rare = plan.exact_ids && input.role.is_mostly_rare(input.facts);
    if is_rare { " # most occur once, and share row 1" } else { "" }
}
