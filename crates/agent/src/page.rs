//! Renders pages for scrapers, as OpenMetrics or in the older text format 0.0.4.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

pub mod agent;
pub mod dcgm;
pub mod fleet;
pub mod periodic;

/// Name and value of a label of a sample.
pub type MetricLabel = (&'static str, String);

/// The media type of the OpenMetrics text format.
pub const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The media type of the older Prometheus text format.
pub const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All samples of one metric, with the metric's name, help text and kind.
#[derive(Clone, Debug)]
pub struct Family {
    /// Name of the metric without the suffix `_total`.
    pub name: &'static str,
    pub help: &'static str,
    pub kind: MetricKind,
    pub samples: Vec<(Vec<MetricLabel>, f64)>,
}

/// The kind of a metric in the OpenMetrics format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    Counter,
    Gauge,
    Info,
}

/// The identity of a metric: its name without `_total`, its help text and its kind. Samples are
/// added to it by [`Families::add`].
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    name: &'static str,
    help: &'static str,
    kind: MetricKind,
}

impl Metric {
    /// Declares a metric whose value only grows.
    pub const fn counter(name: &'static str, help: &'static str) -> Self {
        Self { name, help, kind: MetricKind::Counter }
    }

    /// Declares a metric whose value goes up and down.
    pub const fn gauge(name: &'static str, help: &'static str) -> Self {
        Self { name, help, kind: MetricKind::Gauge }
    }

    /// Declares a metric whose samples only carry labels and have the value 1.
    pub const fn info(name: &'static str, help: &'static str) -> Self {
        Self { name, help, kind: MetricKind::Info }
    }
}

/// The metric families of a page, in the order in which they were first added.
#[derive(Debug, Default)]
pub struct Families {
    families: Vec<Family>,
    places: BTreeMap<&'static str, usize>,
}

impl Families {
    /// Adds a sample to a metric. If the value is `None`, no sample is added, so unknown values are
    /// omitted.
    pub fn add(&mut self, metric: Metric, labels: Vec<MetricLabel>, value: impl Into<Option<f64>>) {
        let Some(value) = value.into() else { return };
        let Metric { name, help, kind } = metric;
        let families = &mut self.families;
        let place = *self.places.entry(name).or_insert_with(|| {
            families.push(Family { name, help, kind, samples: Vec::new() });
            families.len() - 1
        });
        self.families[place].samples.push((labels, value));
    }

    /// Renders the page in the OpenMetrics text format.
    pub fn openmetrics(self) -> Result<String, fmt::Error> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(MetricPage(self.families)));
        let mut out = String::new();
        text::encode(&mut out, &registry)?;
        Ok(out)
    }

    /// Renders the page in the Prometheus text format 0.0.4.
    pub fn text(self) -> Result<String, fmt::Error> {
        Ok(older(&self.openmetrics()?))
    }
}

/// All metric families of one answer. This type implements the collector trait of the Prometheus
/// client library, which encodes the families as text.
#[derive(Debug)]
struct MetricPage(Vec<Family>);

impl Collector for MetricPage {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        for family in &self.0 {
            let kind = match family.kind {
                MetricKind::Counter => MetricType::Counter,
                MetricKind::Gauge => MetricType::Gauge,
                MetricKind::Info => MetricType::Info,
            };
            let mut metric = encoder.encode_descriptor(family.name, family.help, None, kind)?;
            for (labels, value) in &family.samples {
                if family.kind == MetricKind::Info {
                    metric.encode_info(labels)?;
                    continue;
                }
                let mut one = metric.encode_family(labels)?;
                match family.kind {
                    MetricKind::Counter => one.encode_counter::<NoLabelSet, _, f64>(value, None)?,
                    MetricKind::Gauge | MetricKind::Info => one.encode_gauge(value)?,
                }
            }
        }
        Ok(())
    }
}

/// Converts an OpenMetrics page to the older text format. Counters are named like their samples,
/// info metrics become gauges, and the end mark is removed.
fn older(page: &str) -> String {
    let types: BTreeMap<&str, &str> =
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    let named = |name: &str| match types.get(name) {
        Some(&"counter") => format!("{name}_total"),
        Some(&"info") => format!("{name}_info"),
        _ => name.to_owned(),
    };
    let mut out = String::with_capacity(page.len());
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap_or((rest, ""));
            out += &format!("# HELP {} {help}\n", named(name));
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap_or((rest, "untyped"));
            let kind = if kind == "info" { "gauge" } else { kind };
            out += &format!("# TYPE {} {kind}\n", named(name));
        } else if !line.starts_with('#') {
            out += line;
            out.push('\n');
        }
    }
    out
}

/// Whether a scraper accepts OpenMetrics, according to its `Accept` header.
pub fn wants_openmetrics(accept: &str) -> bool {
    accept.split(',').any(|part| {
        let mut words = part.split(';').map(str::trim);
        let is_kind = words.next() == Some("application/openmetrics-text");
        is_kind && !words.any(|word| matches!(word, "q=0" | "q=0.0" | "q=0.00" | "q=0.000"))
    })
}

#[cfg(test)]
mod tests {
    use super::{Families, Metric, wants_openmetrics};

    fn families() -> Families {
        let mut families = Families::default();
        let energy = Metric::counter("hw_energy_joules", "Energy.");
        families.add(energy, vec![("gpu", "0".into())], 1.5);
        families.add(Metric::gauge("hw_power_watts", "Power."), vec![("gpu", "0".into())], 250.0);
        families.add(energy, vec![("gpu", "1\"\n".into())], 2.0);
        families.add(Metric::gauge("none", "Nothing."), vec![], None);
        families.add(Metric::info("rowmill_run", "Runs."), vec![("job_id", "7".into())], 1.0);
        families
    }

    #[test]
    fn both_formats_contain_the_same_metrics() {
        let open = families().openmetrics().unwrap();
        assert!(open.contains("# TYPE hw_energy_joules counter\n"), "{open}");
        assert!(open.contains("hw_energy_joules_total{gpu=\"0\"} 1.5\n"), "{open}");
        assert!(open.ends_with("# EOF\n") && !open.contains("none"), "{open}");
        let text = families().text().unwrap();
        assert!(text.contains("# TYPE hw_energy_joules_total counter\n"), "{text}");
        assert!(text.contains("hw_energy_joules_total{gpu=\"1\\\"\\n\"} 2.0\n"), "{text}");
        assert!(
            text.contains("# TYPE rowmill_run_info gauge\nrowmill_run_info{job_id=\"7\"} 1\n"),
            "{text}"
        );
        assert!(!text.contains("EOF") && text.contains("# HELP hw_power_watts Power.\n"), "{text}");
    }

    #[test]
    fn the_format_follows_the_accept_header() {
        let prometheus =
            "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";
        assert!(wants_openmetrics(prometheus));
        for text in ["", "*/*", "text/plain", "application/openmetrics-text; q=0"] {
            assert!(!wants_openmetrics(text), "{text}");
        }
    }
}
