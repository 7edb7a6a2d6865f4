//! What a work does at least: FLOPs and bytes, as operators of our own runs say. By these a shape
//! that nobody recorded is scaled from those that were. Knows no kernel.

use schema::OpWork;

use crate::calibration::nearest;

/// Sizes with what is done on them; rounded, so that what differs by chance is one kind of sample.
pub(crate) fn detail(sizes: &str, work: OpWork) -> String {
    format!("{sizes}; {} FLOP, {} B", rounded(work.flops), rounded(work.bytes))
}

/// To three digits.
fn rounded(value: u64) -> u64 {
    let unit = 10u64.pow(value.checked_ilog10().unwrap_or(0).saturating_sub(2));
    value.saturating_add(unit / 2) / unit * unit
}

/// FLOPs and bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    flops: f64,
    bytes: f64,
}

impl Effort {
    /// Bytes read and written.
    pub fn bytes(self) -> u64 {
        self.bytes as u64
    }
}

/// What a detail says of the work; `None` where it says nothing.
pub fn of(detail: &str) -> Option<Effort> {
    let (_, said) = detail.rsplit_once("; ").unwrap_or(("", detail));
    let (flops, bytes) = said.strip_suffix(" B")?.split_once(" FLOP, ")?;
    Some(Effort { flops: flops.parse().ok()?, bytes: bytes.parse().ok()? })
}

/// The limits of a machine: the most that any work reached of each.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Roof {
    /// FLOPs per nanosecond.
    flops_per_ns: f64,
    /// Bytes per nanosecond.
    bytes_per_ns: f64,
}

impl Roof {
    /// Of the works of a calibration: detail and mean.
    pub fn of<'a>(works: impl Iterator<Item = (&'a str, f64)>) -> Self {
        let mut roof = Self::default();
        for (detail, ns) in works.filter(|work| work.1 > 0.0) {
            let Some(effort) = of(detail) else { continue };
            roof.flops_per_ns = roof.flops_per_ns.max(effort.flops / ns);
            roof.bytes_per_ns = roof.bytes_per_ns.max(effort.bytes / ns);
        }
        roof
    }

    /// The least time a work takes; `None` where no limit is known.
    fn ns(self, effort: Effort) -> Option<f64> {
        let time = |amount: f64, rate: f64| if rate > 0.0 { amount / rate } else { 0.0 };
        let ns = time(effort.flops, self.flops_per_ns).max(time(effort.bytes, self.bytes_per_ns));
        (ns > 0.0).then_some(ns)
    }
}

/// How many of the nearest shapes decide.
const NEAREST: usize = 3;

/// What a work takes by others of its name, or of any: `known` are details and means.
///
/// Its roofline time, times how far the nearest shapes stay behind theirs: the mean of three, the
/// nearer the more, in logarithms. `None` where nothing says what it does.
pub fn scaled(known: &[(&str, f64)], detail: &str, roof: Roof) -> Option<f64> {
    let wanted = roof.ns(of(detail)?)?;
    let mut near: Vec<(f64, f64)> = Vec::new();
    for (other, ns) in known.iter().filter(|one| one.1 > 0.0) {
        let Some(least) = of(other).and_then(|effort| roof.ns(effort)) else { continue };
        let apart = nearest::apart(other, detail).unwrap_or_else(|| between(other, detail));
        near.push((apart, (ns / least).ln()));
    }
    near.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    near.truncate(NEAREST);
    let weight = |apart: f64| 1.0 / (0.1 + apart).powi(2);
    let total: f64 = near.iter().map(|(apart, _)| weight(*apart)).sum();
    let behind: f64 = near.iter().map(|(apart, behind)| weight(*apart) * behind).sum();
    (total > 0.0).then(|| wanted * (behind / total).exp())
}

/// How unlike two works of other forms are: by what they do for each byte, then by how much.
fn between(a: &str, b: &str) -> f64 {
    let (Some(a), Some(b)) = (of(a), of(b)) else { return f64::MAX };
    let intensity = |of: Effort| ((of.flops + 1.0) / (of.bytes + 1.0)).ln();
    let apart = (intensity(a) - intensity(b)).abs();
    let size = ((a.bytes + 1.0) / (b.bytes + 1.0)).ln().abs();
    // Farther than anything of the same form.
    10.0 + apart + 0.1 * size
}
