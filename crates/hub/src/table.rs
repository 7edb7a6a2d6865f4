//! Formats the sums of a fleet as text and as JSON.

use std::fmt::Write;
use std::ops::Range;

use fleet::plain::without_controls;
use serde_json::{Map, Value, json};

use crate::grouping::BucketSums;
use crate::sums::{Dimension, FleetSums, SumKey};
use crate::trees::ResourceTree;

const SECONDS_PER_HOUR: f64 = 3600.0;
/// Observed share in percent below which the losses of allocated GPUs are uncertain.
const COVERAGE_MIN: f64 = 95.0;
/// Formats groups as a table in the order of their hours, below the losses of all groups.
pub fn format_table(groups: &BucketSums, by: &[Dimension], tree: ResourceTree) -> String {
    let total = total(groups);
    let tree = tree.description();
    let [outer, inner] = tree.resources;
    let mut text = String::new();
    let Some(shares) = total.shares() else {
        return format!("no rows of {outer}s in this time\n");
    };
    let hours = total.deployed_s / SECONDS_PER_HOUR;
    let _ = writeln!(text, "{hours:.1} {outer} hours of hosts that report rows");
    for (part, share) in tree.parts.iter().zip(shares) {
        let _ = writeln!(text, "  {part:<17} {share:>5.1} %");
    }
    for (what, observed_s) in [(outer, total.busy_observed_s), (inner, total.sm_observed_s)] {
        let coverage = percent(observed_s, total.allocated_s);
        if let Some(coverage) = coverage.filter(|coverage| *coverage < COVERAGE_MIN) {
            let _ = writeln!(
                text,
                "{what} activity was observed in {coverage:.1} % of the allocated time"
            );
        }
    }
    let mut rows: Vec<(&SumKey, &FleetSums)> =
        groups.iter().map(|((_, key), s)| (key, s)).collect();
    rows.sort_by(|(_, a), (_, b)| {
        b.allocated_s.total_cmp(&a.allocated_s).then(b.deployed_s.total_cmp(&a.deployed_s))
    });
    let shown = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.1}"));
    let names = by.iter().map(|dimension| dimension.name().to_owned());
    let mut lines = vec![names.collect::<Vec<String>>()];
    let [.., busy, innermost] = tree.layers;
    lines[0].extend([format!("{outer} h"), "allocated h".to_owned()]);
    for layer in [busy, innermost] {
        lines[0].extend([format!("{layer} %"), "observed %".to_owned()]);
    }
    for (key, sums) in rows {
        let name = |dimension: &Dimension| match key.member(*dimension) {
            "" => "(not allocated)".to_owned(),
            name => without_controls(name),
        };
        let mut line: Vec<String> = by.iter().map(name).collect();
        let hours = [sums.deployed_s, sums.allocated_s].map(|s| s / SECONDS_PER_HOUR);
        line.extend(hours.map(|hours| format!("{hours:.1}")));
        line.extend(percentages(sums).map(shown));
        lines.push(line);
    }
    text.push('\n');
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let widths: Vec<usize> = (0..lines[0].len()).map(|at| width(at).unwrap_or(0)).collect();
    for line in &lines {
        for (at, (cell, width)) in line.iter().zip(&widths).enumerate() {
            let gap = if at == 0 { "" } else { "  " };
            let _ = match at < by.len() {
                true => write!(text, "{gap}{cell:<width$}"),
                false => write!(text, "{gap}{cell:>width$}"),
            };
        }
        text.truncate(text.trim_end_matches(' ').len());
        text.push('\n');
    }
    if let Some(note) = tree.note {
        let _ = writeln!(text, "{note}");
    }
    text
}

/// Formats groups and their total as JSON, with all sums in seconds. Groups are members of objects,
/// by one dimension within the other.
pub fn format_json(
    groups: &BucketSums,
    by: &[Dimension],
    range: &Range<u64>,
    tree: ResourceTree,
) -> String {
    let total = total(groups);
    let tree = tree.description();
    let key = |words: &str| format!("{}_percent", words.to_lowercase().replace(' ', "_"));
    let [.., busy, innermost] = tree.layers;
    let [outer, inner] = tree.resources.map(|resource| format!("{resource} observed"));
    let keys = [busy, outer.as_str(), innermost, inner.as_str()].map(key);
    let shares = total.shares().map(|shares| {
        let shares =
            tree.parts.iter().zip(shares).map(|(part, share)| (part.to_string(), share.into()));
        shares.collect::<Map<String, Value>>()
    });
    let mut nested = json!({});
    for ((_, key), sums) in groups {
        let mut place = &mut nested;
        for dimension in by {
            place = &mut place[key.member(*dimension)];
        }
        *place = json!(sums);
        for (name, value) in keys.iter().zip(percentages(sums)) {
            place[name] = json!(value);
        }
    }
    let value: Value = json!({
        "unit": tree.unit,
        "since_unix_s": range.start,
        "until_unix_s": range.end,
        "total": total,
        "shares_percent": shares,
        "groups": nested,
    });
    format!("{value:#}\n")
}

/// Returns the busy part of the time in which it was observed, the observed part of the allocated
/// time, and both for active multiprocessors. `None` if nothing was observed or allocated.
fn percentages(sums: &FleetSums) -> [Option<f64>; 4] {
    [
        percent(sums.busy_s, sums.busy_observed_s),
        percent(sums.busy_observed_s, sums.allocated_s),
        percent(sums.sm_active_s, sums.sm_observed_s),
        percent(sums.sm_observed_s, sums.allocated_s),
    ]
}

fn total(groups: &BucketSums) -> FleetSums {
    let mut total = FleetSums::default();
    groups.values().for_each(|sums| total.merge(sums));
    total
}

fn percent(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole * 100.0)
}

#[cfg(test)]
mod tests {
    use super::{format_json, format_table};
    use crate::grouping::BucketSums;
    use crate::sums::{Dimension, FleetSums, SumKey};
    use crate::trees::ResourceTree;

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
                0.0,
                0.0,
            ])
        };
        let idle = FleetSums { deployed_s: hour, schedulable_s: hour, ..FleetSums::default() };
        let by = [Dimension::User, Dimension::Pool];
        let group = |(name, sums): (&str, FleetSums)| {
            let mut key = SumKey::default();
            key.members[Dimension::User as usize] = name.into();
            key.members[Dimension::Pool as usize] = "main".into();
            ((0, key), sums)
        };
        let groups = [("", idle), ("anna", user(1.0)), ("b\u{1b}[2J", user(2.0))];
        let groups: BucketSums = groups.map(group).into();
        let text = format_table(&groups, &by, ResourceTree::Gpu);
        let at = |word: &str| text.find(word).unwrap_or_else(|| panic!("{word}: {text}"));
        assert!(text.starts_with("4.0 GPU hours"), "{text}");
        assert!(at("[2J") < at("anna") && at("anna") < at("(not allocated)"), "{text}");
        assert!(!text.contains('\u{1b}') && text.contains("SM activity was observed in 0.0 %"));
        // Nobody observed the SMs, so their activity is unknown instead of 0.
        assert!(text.contains("anna             main    1.0          1.0"), "{text}");
        assert!(text.contains("        50.0       100.0            -         0.0"), "{text}");
        let json = format_json(&groups, &by, &(0..60), ResourceTree::Gpu);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let anna = &json["groups"]["anna"]["main"];
        assert_eq!((&anna["busy_s"], &anna["gpu_busy_percent"]), (&1800.0.into(), &50.0.into()));
        assert!(anna["sm_active_percent"].is_null(), "{anna}");
        let cores = format_table(&groups, &by, ResourceTree::Cpu);
        assert!(cores.starts_with("4.0 core hours") && cores.contains("user code %"), "{cores}");
        assert!(cores.contains("all cores of a host with a run count as allocated"), "{cores}");
        let none = format_table(&BucketSums::new(), &by, ResourceTree::Gpu);
        assert_eq!(none, "no rows of GPUs in this time\n");
    }
}
