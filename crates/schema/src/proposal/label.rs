//! Determines the label column, and which of its values mean 1.

use super::error::ProposalError;
use super::plan::{PlannedLabel, Wish};
use crate::facts::{ColumnFacts, FileFacts, KnownLayout};
use crate::source::NumberForm;

/// Usual names of label columns, most reliable first.
const LABELS: [&str; 22] = [
    "label",
    "click",
    "clicked",
    "is_click",
    "target",
    "y",
    "class",
    "outcome",
    "converted",
    "conversion",
    "is_conversion",
    "purchase",
    "purchased",
    "bought",
    "response",
    "churn",
    "survived",
    "income",
    "default",
    "like",
    "rating",
    "stars",
];
/// Values of a label that usually mean yes.
const POSITIVE: [&str; 12] =
    ["1", "yes", "y", "true", "t", "click", "clicked", "positive", "pos", "+", "good", ">50k"];

/// Chooses the label that the user requested, or else the most likely column by names and values.
pub(super) fn plan_label(facts: &FileFacts, wish: &Wish) -> Result<PlannedLabel, ProposalError> {
    let columns = || facts.columns.iter().map(|column| column.name.clone()).collect();
    let position = |name: &str| facts.columns.iter().position(|column| column.name == name);
    if let Some(name) = &wish.label {
        let at = position(name).ok_or_else(|| ProposalError::NoSuchColumn {
            label: name.clone(),
            columns: columns(),
        })?;
        return classes(facts, at, wish, "as --label says".to_owned());
    }
    if matches!(facts.layout, Some(KnownLayout::Criteo | KnownLayout::Arrays)) {
        return classes(facts, 0, wish, "the layout's".to_owned());
    }
    let named = |known: &str, name_of: &dyn Fn(&ColumnFacts) -> String| {
        let at = facts.columns.iter().position(|column| name_of(column) == known)?;
        classes(facts, at, wish, "by its name".to_owned()).ok()
    };
    let whole = |column: &ColumnFacts| column.name.to_lowercase();
    let stem = |column: &ColumnFacts| counted_thing(&column.name);
    let by_name = LABELS.iter().find_map(|known| named(known, &whole));
    if let Some(label) = by_name.or_else(|| named("click", &stem)) {
        return Ok(label);
    }
    let binary_columns = |may_miss: bool| -> Vec<usize> {
        let is_binary = |at: &usize| {
            let column = &facts.columns[*at];
            column.distinct == 2 && (may_miss || column.missing == 0)
        };
        (0..facts.columns.len()).filter(is_binary).collect()
    };
    // Columns without missing values are preferred, because every row needs a label.
    let mut binary = binary_columns(false);
    if binary.is_empty() {
        binary = binary_columns(true);
    }
    let last = facts.columns.len().saturating_sub(1);
    let chosen = match &binary[..] {
        [one] => Some((*one, "the only column with two values")),
        // Among several candidates, the last column and then the first is preferred, because most
        // files have their label there.
        several if several.contains(&last) => Some((last, "the last column, with two values")),
        several if several.contains(&0) => Some((0, "the first column, with two values")),
        _ => None,
    };
    if let Some((at, reason)) = chosen {
        return classes(facts, at, wish, reason.to_owned());
    }
    let by_stem = || LABELS.iter().find_map(|known| named(known, &stem));
    binary.is_empty().then(by_stem).flatten().ok_or_else(|| {
        let candidates = binary.iter().map(|&at| facts.columns[at].name.clone()).collect();
        ProposalError::NoLabel { candidates, columns: columns() }
    })
}

/// Extracts the counted thing from a column's name: `click` from `clicks`, `n_clicks` and
/// `click_count`.
fn counted_thing(name: &str) -> String {
    const BEFORE: [&str; 6] = ["n_", "nb_", "num_", "number_of_", "count_", "total_"];
    const BEHIND: [&str; 4] = ["_count", "_cnt", "_num", "_total"];
    let mut name = name.to_lowercase().replace(['-', ' ', '.'], "_");
    for text in BEFORE {
        name = name.strip_prefix(text).map_or(name.clone(), ToOwned::to_owned);
    }
    for text in BEHIND {
        name = name.strip_suffix(text).map_or(name.clone(), ToOwned::to_owned);
    }
    name.strip_suffix('s').map_or(name.clone(), ToOwned::to_owned)
}

/// Whether the values are counts: integers from 0 that are mostly 0 or have the name of a count. A
/// name that suggests a rating rules counts out.
fn is_count(column: &ColumnFacts) -> bool {
    const RATINGS: [&str; 5] = ["rating", "star", "score", "grade", "rate"];
    let whole = column.integers == column.present && column.numbers == column.present;
    if !whole || column.least != Some(0.0) {
        return false;
    }
    let name = column.name.to_lowercase();
    let is_zero = |(text, _): &(String, u64)| text.parse() == Ok(0.0);
    let is_named = counted_thing(&name) != name && LABELS.contains(&counted_thing(&name).as_str());
    let is_rating = RATINGS.iter().any(|rating| name.contains(rating));
    !is_rating && (is_named || column.values.first().is_some_and(is_zero))
}

/// Determines which values of the label in column `at` count as 1.
fn classes(
    facts: &FileFacts,
    at: usize,
    wish: &Wish,
    reason: String,
) -> Result<PlannedLabel, ProposalError> {
    let column = &facts.columns[at];
    if let Some(kind) = &column.unreadable {
        let (label, kind) = (column.name.clone(), kind.clone());
        return Err(ProposalError::UnreadableLabel { label, kind });
    }
    let skips_unlabeled = column.missing > 0;
    let planned = |positive, positive_from, reason| PlannedLabel {
        at,
        positive,
        positive_from,
        skips_unlabeled,
        reason,
    };
    let refused =
        || ProposalError::NoClasses { label: column.name.clone(), distinct: column.distinct };
    // A model cannot learn from a label with a single value, such as clicks without the views.
    if column.distinct < 2 {
        return Err(refused());
    }
    let is_number = column.numbers == column.present;
    let is_plain = is_number && column.number_form == NumberForm::Plain;
    // Numbers from 0 to 1 are labels as they are.
    if is_plain && column.least >= Some(0.0) && column.greatest <= Some(1.0) {
        return Ok(planned(Vec::new(), None, reason));
    }
    if is_plain && is_count(column) {
        return Ok(planned(Vec::new(), Some(1), format!("{reason}; 1 and more counts as 1")));
    }
    if column.values.len() < 2 {
        return Err(refused());
    }
    let (mut positive, why): (Vec<String>, _) = if column.distinct == 2 {
        let is_yes = |text: &str| POSITIVE.iter().any(|yes| text.eq_ignore_ascii_case(yes));
        let known = column.values.iter().find(|(text, _)| is_yes(text));
        // The rarer value is usually the event of interest.
        let (text, _) = known.unwrap_or(&column.values[1]);
        (vec![text.clone()], format!("{text:?} counts as 1"))
    } else if is_number && column.distinct <= 20 {
        let value = |text: &str| text.parse::<f64>().unwrap_or(f64::NAN);
        let from = above_middle(column);
        let high = column.values.iter().filter(|(text, _)| value(text) >= from);
        let mut high: Vec<String> = high.map(|(text, _)| text.clone()).collect();
        high.sort_by(|a, b| value(a).total_cmp(&value(b)));
        (high, format!("{from} and more counts as 1"))
    } else {
        return Err(refused());
    };
    let plain = |text: &str| text.trim().trim_end_matches('.').to_ascii_lowercase();
    // Held-out files may spell the label differently, such as `>50K.` for `>50K` in Adult.
    for text in &wish.evaluation_labels {
        let is_same = positive.iter().any(|known| plain(known) == plain(text));
        if is_same && !positive.contains(text) {
            positive.push(text.clone());
        }
    }
    Ok(planned(positive, None, format!("{reason}; {why}")))
}

/// Returns the lowest rating that counts as liked: four of five stars, or the upper two fifths.
fn above_middle(column: &ColumnFacts) -> f64 {
    let (least, greatest) = (column.least.unwrap_or(0.0), column.greatest.unwrap_or(0.0));
    if greatest <= 5.0 && greatest > 4.0 {
        return 4.0;
    }
    (least + 0.6 * (greatest - least)).ceil()
}
