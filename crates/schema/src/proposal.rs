//! Proposes a configuration for files that have none: the use of each column, the sizes of tables
//! and layers, and the training settings. The input is facts about the columns, and the output is a
//! commented TOML text.
//!
//! # Rules
//! - Columns that are constant, empty or different in every row are left out.
//! - A time column selects the held-out rows, and gives hour and weekday as inputs.
//! - Text, integers that are identifiers, and integers with few values become categories. A number
//!   with up to 1,000 integer values is both a number and a category, and so are integers that
//!   leave gaps where a measurement would not.
//! - If no column is a number, the dense input is the constant 1. The bottom MLP turns it into a
//!   learned vector, whose products with the rows of the tables are biases of their ids, as in a
//!   factorization machine (Rendle, ICDM 2010). Weight decay keeps the vectors small.
//! - Numbers are standardized. Amounts and counts with a long tail are transformed by a logarithm.
//! - With numbers, the vectors of all columns are concatenated, and an MLP is trained on them. On
//!   the made-up files of `bench/compare/first_model.py`, this is nearer to a logistic regression
//!   where columns act alone than the dot interaction is.
//! - Without numbers, the interaction is the dot product. The embedding dimension is then the power
//!   of two at or below 6·n^¼, from 8 to 32, where n is the number of categories of the largest
//!   table (DCN, arXiv:1708.05123, section 4.1).

mod error;
mod label;
mod plan;
mod role;
mod text;

use crate::facts::{ColumnFacts, FileFacts, KnownLayout};
use crate::source::{DataFormat, NumberForm};
use crate::unit::{count, counted};
pub use error::ProposalError;
pub use plan::Wish;
use plan::{Input, ProposalPlan};
use role::{Role, role_of};

/// A proposed configuration, with the use of each column and remarks for the user.
#[derive(Clone, Debug, PartialEq)]
pub struct Proposal {
    pub text: String,
    /// The use of each column.
    pub uses: Vec<Use>,
    /// Points that the user should check.
    pub remarks: Vec<String>,
}

/// The use of one column in the proposed model, with the reason for it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Use {
    pub column: String,
    /// Name of the role, such as `label`, `number` or `category`.
    pub role: String,
    pub reason: String,
}

/// Proposes a configuration for files with these facts. Training can start from the proposal
/// without changes.
///
/// # Errors
/// Returns a [`ProposalError`] if no label can be determined, or if there are no inputs.
pub fn propose(facts: &FileFacts, wish: &Wish) -> Result<Proposal, ProposalError> {
    let facts = named(facts);
    let label = label::plan_label(&facts, wish)?;
    let mut inputs = Vec::new();
    for (at, column) in facts.columns.iter().enumerate() {
        if at != label.at {
            inputs.push(Input { facts: column, role: role_of(column, &facts) });
        }
    }
    if !inputs.iter().any(|input| input.role.is_used()) {
        let reasons = inputs
            .iter()
            .map(|input| format!("{}: {}", input.facts.name, input.role.reason(input.facts)));
        return Err(ProposalError::NoInputs { reasons: reasons.collect() });
    }
    let plan = ProposalPlan::new(&facts, &inputs, wish);
    let text = text::format_config(&facts, &label, &inputs, &plan, wish);
    let column = &facts.columns[label.at];
    let of_label =
        Use { column: column.name.clone(), role: "label".to_owned(), reason: label.reason.clone() };
    let uses = inputs.iter().map(|input| Use {
        column: input.facts.name.clone(),
        role: input.role.name().to_owned(),
        reason: input.role.reason(input.facts),
    });
    let uses = std::iter::once(of_label).chain(uses).collect();
    Ok(Proposal { text, uses, remarks: remarks(&facts, column, &inputs, &plan) })
}

fn remarks(
    facts: &FileFacts,
    label: &ColumnFacts,
    inputs: &[Input<'_>],
    plan: &ProposalPlan,
) -> Vec<String> {
    let mut remarks: Vec<String> = inputs.iter().filter_map(merged).collect();
    remarks.extend(inputs.iter().filter_map(guessed));
    // Without a time, the last rows are held out, and these have one label if rows are sorted by
    // it.
    let sorted = label.is_sorted && label.distinct > 1 && label.numbers == label.present;
    if sorted && plan.time.is_none() {
        remarks.push(format!(
            "the rows are sorted by {}, so the last rows, which are held out, would all have one \
             label; shuffle the file first",
            label.name
        ));
    }
    if facts.rows < 1000 {
        remarks.push(format!("{} rows are few: figures will vary from run to run", facts.rows));
    }
    if label.missing > 0 {
        let rows = counted(label.missing, "row");
        remarks.push(format!("{rows} without a label will be left out"));
    }
    remarks
}

/// Describes a column in which different texts become one id.
fn merged(input: &Input<'_>) -> Option<String> {
    let (texts, name) = (input.facts.merged_texts, &input.facts.name);
    (input.role.is_category() && input.role.is_integer() && texts > 0).then(|| {
        format!(
            "column {name}: {} of {} different texts are the same integer as another text, such as \
             007 and 7, and share its id; kind = \"string\" tells them apart",
            count(texts),
            count(input.facts.distinct)
        )
    })
}

/// Describes a column whose values have two possible readings.
fn guessed(input: &Input<'_>) -> Option<String> {
    let name = &input.facts.name;
    match &input.role {
        Role::Time { format: Some(format), .. } => {
            let other = input.facts.times.as_ref()?.other_format.as_ref()?;
            Some(format!(
                "column {name}: every value is a time both as {format} and as {other}; {format} is \
                 a guess, so set date_format = \"{other}\" if the other is right"
            ))
        }
        Role::Number { form, .. } => {
            let other = input.facts.other_form?;
            let reading = |form: NumberForm| match form {
                NumberForm::Plain => "plain",
                NumberForm::Money => "money",
                NumberForm::DecimalComma => "decimal_comma",
            };
            let (form, other) = (reading(*form), reading(other));
            Some(format!(
                "column {name}: in every value the comma may part thousands (number = \"money\") \
                 or stand before decimals (number = \"decimal_comma\"); {form} is a guess, so set \
                 {other} if the other is right"
            ))
        }
        _ => None,
    }
}

/// Returns the column names in order. Files without names use those of the published layout.
#[must_use]
pub fn column_names(facts: &FileFacts) -> Vec<String> {
    named(facts).columns.into_iter().map(|column| column.name).collect()
}

/// Renames the columns as in the published layout, if the file has one.
fn named(facts: &FileFacts) -> FileFacts {
    let mut facts = facts.clone();
    let names: Vec<String> = match facts.layout {
        Some(KnownLayout::Criteo) => {
            let dense = (1..=13).map(|i| format!("I{i}"));
            let sparse = (1..=26).map(|i| format!("C{i}"));
            std::iter::once("label".to_owned()).chain(dense).chain(sparse).collect()
        }
        Some(KnownLayout::MovieLens) if !facts.has_names => {
            ["userId", "movieId", "rating", "timestamp"].map(ToOwned::to_owned).to_vec()
        }
        _ => return facts,
    };
    for (column, name) in facts.columns.iter_mut().zip(names) {
        column.name = name;
    }
    facts
}

/// Number of categories over all tables above which counting them needs more memory than most
/// machines have.
const EXACT_CATEGORIES: u64 = 40_000_000;

/// Embedding dimension of a model with numbers. On development seed 1 of
/// `bench/compare/first_model.py`, the test AUC with the dimensions 4 and 8 was 0.6561 and 0.6593
/// on `many_categories`, 0.8474 and 0.8492 on `few_rows`, and 0.6789 and 0.7015 on `interactions`.
const DIM: usize = 8;
/// Passes over files of fewer than two million rows, for a model with numbers. On the same seed,
/// the test AUC after 4 and 8 passes was 0.6593 and 0.6571 on `many_categories`, 0.6889 and 0.6834
/// on `ecommerce`, and 0.7564 and 0.7557 on `main_effects`, but 0.7015 and 0.7613 on
/// `interactions`.
const EPOCHS: u64 = 4;

impl ProposalPlan {
    fn new(facts: &FileFacts, inputs: &[Input<'_>], wish: &Wish) -> Self {
        let tables = || inputs.iter().filter(|input| input.role.is_category());
        let most = tables().map(|input| input.role.categories(input.facts)).max().unwrap_or(0);
        let all: u64 = tables().map(|input| input.role.categories(input.facts)).sum();
        let has_dense = inputs.iter().any(|input| input.role.is_dense());
        // The constant needs a column with a single value per row, which a list does not have.
        let single = || tables().find(|input| input.facts.list.is_none());
        let constant =
            if has_dense { None } else { single().map(|input| input.facts.name.clone()) };
        let dim = if constant.is_some() { dim_of(most) } else { DIM };
        let times = inputs.iter().filter(|input| input.role.is_time());
        let time = times.max_by_key(|input| input.facts.distinct);
        let time = time.map(|input| (input.facts.name.clone(), input.facts.is_sorted));
        let holds_out = wish.evaluation.is_empty();
        let share = 1.0 - plan::VALIDATION - if holds_out { plan::HOLD_OUT } else { 0.0 };
        let rows = ((facts.rows as f64 * share) as u64).max(1);
        let most = if constant.is_some() { 1024 } else { 4096 };
        // An epoch has 64 to 128 steps, within the limits of the batch size.
        let batch_size = (rows / 128).next_power_of_two().clamp(32, most);
        let per_epoch = rows.div_ceil(batch_size);
        let epochs = match rows {
            0..2_000_000 if constant.is_some() => 15,
            0..2_000_000 => EPOCHS,
            2_000_000..10_000_000 => 2,
            _ => 1,
        };
        Self {
            dim,
            bottom: match (has_dense, &constant) {
                (true, _) => vec![64, 32, dim],
                (false, Some(_)) => vec![dim],
                (false, None) => Vec::new(),
            },
            top: if constant.is_some() { vec![16, 1] } else { vec![128, 64, 1] },
            // The constant and a table are two vectors, which the dot interaction needs.
            interaction: if constant.is_some() { "dot" } else { "cat" },
            constant,
            batch_size,
            epochs,
            steps: per_epoch * epochs,
            // The model is evaluated four times per epoch, or more often if an epoch is long.
            evaluate_every: (per_epoch / 4).clamp(1, 20_000),
            patience: if epochs > 8 { 24 } else { 12 },
            time,
            holds_out,
            exact_ids: facts.format != DataFormat::Npy && all <= EXACT_CATEGORIES,
        }
    }
}

/// Returns the embedding dimension for a table of `categories` rows: the power of two at or below
/// 6·n^¼, from 8 to 32.
fn dim_of(categories: u64) -> usize {
    let width = 6.0 * (categories.max(1) as f64).sqrt().sqrt();
    let power = 1 << (width.log2().floor() as u32).min(10);
    usize::clamp(power, 8, 32)
}

#[cfg(test)]
mod tests;
