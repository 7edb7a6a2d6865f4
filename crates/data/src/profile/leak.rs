//! Finds columns that predict the label almost perfectly on their own, in a sample of rows. A
//! column that leaks the label is often known only after it, like the time of a conversion.

use std::collections::BTreeMap;

use schema::source::LabelColumn;

use super::sniff::is_missing;
use super::{Profile, SampleColumn};
use crate::parse::field;
use crate::synthetic::score;

/// AUC from which on a column counts as a leak.
const AUC: f64 = 0.98;
/// Minimum number of rows of each class.
const ROWS: usize = 10;

/// A column that predicts the label almost perfectly on its own, and therefore probably leaks it.
#[derive(Clone, Debug, PartialEq)]
pub struct Leak {
    pub column: String,
    /// AUC of the label when predicted by this column alone, on sampled rows.
    pub auc: f64,
    /// Number of sampled rows.
    pub rows: usize,
}

/// Finds the columns of `profile`, other than the label, that predict it almost perfectly.
///
/// Each column is tried in three ways: by the mean label of each value, learned from every other
/// row and applied to the rest; by its numeric value; and by whether a value is present.
#[must_use]
pub fn find_leaks(profile: &Profile, label: &LabelColumn) -> Vec<Leak> {
    let Some(labels) = profile.sample.iter().find(|column| column.name == label.column) else {
        return Vec::new();
    };
    let labels: Vec<Option<bool>> =
        labels.values.iter().map(|text| classify_label(text, label)).collect();
    let positives = labels.iter().filter(|label| **label == Some(true)).count();
    let negatives = labels.iter().filter(|label| **label == Some(false)).count();
    if positives.min(negatives) < ROWS {
        return Vec::new();
    }
    let others = profile.sample.iter().filter(|column| column.name != label.column);
    let judged = others.map(|column| Leak {
        column: column.name.clone(),
        auc: best_auc(column, &labels),
        rows: positives + negatives,
    });
    judged.filter(|leak| leak.auc >= AUC).collect()
}

/// Converts a value of the label to a class; `None` if it is missing.
fn classify_label(text: &[u8], label: &LabelColumn) -> Option<bool> {
    if is_missing(text) {
        return None;
    }
    if !label.positive.is_empty() {
        return Some(label.positive.iter().any(|positive| positive.as_bytes() == text));
    }
    let least = label.positive_from.map_or(0.5, |least| least as f64);
    Some(field::parse_number(text).ok()? >= least)
}

fn best_auc(column: &SampleColumn, labels: &[Option<bool>]) -> f64 {
    let rows =
        || column.values.iter().zip(labels).filter_map(|(text, label)| Some((text, (*label)?)));
    let auc_of = |scores: Vec<f64>, labels: Vec<bool>| score::auc(&scores, &labels);
    let auc_of_score = |score: &dyn Fn(&[u8]) -> f64| {
        let (scores, labels) = rows().map(|(text, label)| (score(text), label)).unzip();
        let auc = auc_of(scores, labels);
        // A column may predict the label in reverse, so the direction does not matter.
        auc.max(1.0 - auc)
    };
    let by_presence = auc_of_score(&|text| f64::from(u8::from(is_missing(text))));
    let by_number = auc_of_score(&|text| field::parse_number(text).unwrap_or(f64::MIN));
    let mut sums: BTreeMap<&[u8], (f64, f64)> = BTreeMap::new();
    // Means are learned from every other row and tested on the rest, so that values that occur once
    // do not seem to predict the label.
    for (text, label) in rows().step_by(2) {
        let (hits, count) = sums.entry(text).or_default();
        (*hits, *count) = (*hits + f64::from(u8::from(label)), *count + 1.0);
    }
    let mean = |text: &[u8]| sums.get(text).map_or(0.5, |(hits, count)| hits / count);
    let (scores, labels) = rows().skip(1).step_by(2).map(|(t, label)| (mean(t), label)).unzip();
    by_presence.max(by_number).max(auc_of(scores, labels))
}
