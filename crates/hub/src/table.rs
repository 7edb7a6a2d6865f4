//! Formats the sums of a fleet as text and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::Range;

use fleet::plain::without_controls;
use serde_json::{Value, json};

use crate::sums::{FleetSums, PARTS};

const SECONDS_PER_HOUR: f64 = 3600.0;
/// Observed share in percent below which the losses of allocated GPUs are uncertain.
const COVERAGE_MIN: f64 = 95.0;

/// Formats groups as a table in the order of their GPU hours, below the losses of all groups.
pub fn format_table(groups: &BTreeMap<String, FleetSums>) -> String {
    let total = total(groups);
    let mut text = String::new();
    let Some(shares) = total.shares() else {
        return "no rows of GPUs in this time\n".to_owned();
    };
    let hours = total.deployed_s / SECONDS_PER_HOUR;
    let _ = writeln!(text, "{hours:.1} GPU hours of hosts that report rows");
    for (part, share) in PARTS.iter().zip(shares) {
        let _ = writeln!(text, "  {part:<16} {share:>5.1} %");
    }
    for (what, observed_s) in [("GPU", total.busy_observed_s), ("SM", total.sm_observed_s)] {
        let coverage = percent(observed_s, total.allocated_s);
        if let Some(coverage) = coverage.filter(|coverage| *coverage < COVERAGE_MIN) {
            let _ = writeln!(
                text,
                "{what} activity was observed in {coverage:.1} % of the allocated time; the rest counts \
                 as idle"
            );
        }
    }
    let mut rows: Vec<(&String, &FleetSums)> = groups.iter().collect();
    rows.sort_by(|(_, a), (_, b)| {
        b.allocated_s.total_cmp(&a.allocated_s).then(b.deployed_s.total_cmp(&a.deployed_s))
    });
    let name = |name: &str| match name {
        "" => "(not allocated)".to_owned(),
        name => without_controls(name),
    };
    let names: Vec<String> = rows.iter().map(|(group, _)| name(group)).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let shown = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.1}"));
    let _ = writeln!(
        text,
        "\n{:<width$}  {:>12}  {:>12}  {:>7}  {:>7}  {:>10}",
        "", "GPU h", "allocated h", "GPU %", "SM %", "observed %"
    );
    for (name, (_, sums)) in names.iter().zip(rows) {
        let FleetSums { deployed_s, allocated_s, busy_s, sm_active_s, busy_observed_s, .. } = *sums;
        let [deployed, allocated] = [deployed_s, allocated_s].map(|s| s / SECONDS_PER_HOUR);
        let _ = writeln!(
            text,
            "{name:<width$}  {deployed:>12.1}  {allocated:>12.1}  {:>7}  {:>7}  {:>10}",
            shown(percent(busy_s, allocated_s)),
            shown(percent(sm_active_s, allocated_s)),
            shown(percent(busy_observed_s, allocated_s)),
        );
    }
    text
}

/// Formats groups and their total as JSON, with all sums in GPU seconds.
pub fn format_json(groups: &BTreeMap<String, FleetSums>, range: &Range<u64>) -> String {
    let total = total(groups);
    let shares = total.shares().map(|shares| {
        PARTS.iter().zip(shares).map(|(part, share)| (*part, share)).collect::<BTreeMap<_, _>>()
    });
    let value: Value = json!({
        "since_unix_s": range.start,
        "until_unix_s": range.end,
        "total": total,
        "shares_percent": shares,
        "groups": groups,
    });
    format!("{value:#}\n")
}

fn total(groups: &BTreeMap<String, FleetSums>) -> FleetSums {
    let mut total = FleetSums::default();
    groups.values().for_each(|sums| total.merge(sums));
    total
}

fn percent(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole * 100.0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{format_json, format_table};
    use crate::sums::FleetSums;

    #[test]
    fn groups_are_sorted_and_control_characters_are_removed() {
        let hour = 3600.0;
        let user = |hours: f64| {
            let held = hours * hour;
            FleetSums::from_values([
                held,
                held,
                held,
                held,
                held / 2.0,
                held / 4.0,
                held,
                0.0,
                held / 2.0,
                0.0,
            ])
        };
        let idle = FleetSums { deployed_s: hour, schedulable_s: hour, ..FleetSums::default() };
        let groups = BTreeMap::from([
            (String::new(), idle),
            ("anna".to_owned(), user(1.0)),
            ("b\u{1b}[2J".to_owned(), user(2.0)),
        ]);
        let text = format_table(&groups);
        let at = |word: &str| text.find(word).unwrap_or_else(|| panic!("{word}: {text}"));
        assert!(text.starts_with("4.0 GPU hours"), "{text}");
        assert!(at("[2J") < at("anna") && at("anna") < at("(not allocated)"), "{text}");
        assert!(!text.contains('\u{1b}') && text.contains("SM activity was observed in 0.0 %"));
        let json = format_json(&groups, &(0..60));
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["groups"]["anna"]["busy_s"], 1800.0);
        assert_eq!(format_table(&BTreeMap::new()), "no rows of GPUs in this time\n");
    }
}
