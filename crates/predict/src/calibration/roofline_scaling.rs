//! Scales the recorded times of device work to other sizes with the roofline, by FLOPs and bytes.

use super::nearest;
use crate::effort::Effort;

/// Roofline of a machine: the highest FLOP rate and the highest byte rate that any recorded work
/// reached.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Roof {
    flops_per_ns: f64,
    bytes_per_ns: f64,
}

impl Roof {
    /// Finds the highest rates among works given by detail and mean time.
    pub fn from_works<'a>(works: impl Iterator<Item = (&'a str, f64)>) -> Self {
        let mut roof = Self::default();
        for (detail, ns) in works.filter(|work| work.1 > 0.0) {
            let Some(effort) = Effort::parse(detail) else { continue };
            roof.flops_per_ns = roof.flops_per_ns.max(effort.flops / ns);
            roof.bytes_per_ns = roof.bytes_per_ns.max(effort.bytes / ns);
        }
        roof
    }

    /// Computes the roofline time of a work, or `None` if no work with FLOPs or bytes was recorded.
    fn ns(self, effort: Effort) -> Option<f64> {
        let time = |amount: f64, rate: f64| if rate > 0.0 { amount / rate } else { 0.0 };
        let ns = time(effort.flops, self.flops_per_ns).max(time(effort.bytes, self.bytes_per_ns));
        (ns > 0.0).then_some(ns)
    }
}

/// Number of nearest recorded shapes whose slack is averaged.
const NEAREST: usize = 3;

/// A recorded shape compared with the requested shape.
#[derive(Clone, Copy, Debug)]
struct Neighbor {
    /// Distance from the requested shape.
    apart: f64,
    /// Whether the details of both shapes have the same form.
    is_alike: bool,
    /// Whether all differing dimensions differ by one common factor, such as a ratio of batch
    /// sizes.
    is_lined: bool,
    least_ns: f64,
    ns: f64,
}

/// Estimates the time of device work from the `known` details and mean times of other shapes.
///
/// The estimate is a fixed start time ([`start_ns`]) plus the roofline time multiplied by a slack.
/// The slack is the geometric mean over the nearest three shapes, weighted by distance. Shapes that
/// differ by one common factor, such as the batch size, take precedence if there are two or more.
/// Returns `None` if the detail contains no FLOPs and bytes.
pub fn scaled(known: &[(&str, f64)], detail: &str, roof: Roof) -> Option<f64> {
    let wanted = roof.ns(Effort::parse(detail)?)?;
    let neighbor = |(other, ns): &(&str, f64)| {
        let least_ns = Effort::parse(other).and_then(|effort| roof.ns(effort))?;
        let near = nearest::apart(other, detail);
        Some(Neighbor {
            apart: near.unwrap_or_else(|| between(other, detail)),
            is_alike: near.is_some(),
            is_lined: nearest::is_lined(other, detail),
            least_ns,
            ns: *ns,
        })
    };
    let mut near: Vec<Neighbor> =
        known.iter().filter(|one| one.1 > 0.0).filter_map(neighbor).collect();
    let start = start_ns(&near);
    if near.iter().filter(|one| one.is_lined).count() > 1 {
        near.retain(|one| one.is_lined);
    }
    near.sort_by(|a, b| a.apart.total_cmp(&b.apart).then(a.ns.total_cmp(&b.ns)));
    near.truncate(NEAREST);
    let weight = |one: &Neighbor| 1.0 / (0.1 + one.apart).powi(2);
    // The slack of a shape is the logarithm of its time beyond `start` divided by its time on the
    // roofline. The time beyond `start` counts as at least 5 % of the shape's time, because that of
    // the smallest shape may be noise.
    let behind = |one: &Neighbor| ((one.ns - start).max(0.05 * one.ns) / one.least_ns).ln();
    let total: f64 = near.iter().map(weight).sum();
    let sum: f64 = near.iter().map(|one| weight(one) * behind(one)).sum();
    (total > 0.0).then(|| (start + wanted * (sum / total).exp()).max(wanted))
}

/// Estimates the fixed start time of one kind of device work. The start time is the median
/// intercept of the lines through the smallest shape and each shape of at least 3.5 times its size.
/// Without a start time, an update of a few rows would be priced in proportion to a large update.
fn start_ns(known: &[Neighbor]) -> f64 {
    const APART: f64 = 3.5;
    let alike = || known.iter().filter(|one| one.is_alike);
    let Some(least) = alike().min_by(|a, b| a.least_ns.total_cmp(&b.least_ns)) else { return 0.0 };
    let larger = alike().filter(|one| one.least_ns >= APART * least.least_ns);
    let mut starts: Vec<f64> = larger
        .map(|one| {
            let slope = (one.ns - least.ns) / (one.least_ns - least.least_ns);
            least.ns - slope * least.least_ns
        })
        .collect();
    let middle = schema::median::float_median(&mut starts);
    middle.unwrap_or(0.0).clamp(0.0, least.ns)
}

/// Estimates the time of a pass over memory, which is work of an unrecorded kind that computes
/// little.
///
/// The pass runs at the rate of the fastest recorded pass over about as many bytes, because that
/// pass uses the same caches. Without such a pass, the rate is that of the pass nearest in bytes.
/// Returns `None` for work that computes more, or if no pass was recorded.
pub fn pass(known: &[(&str, f64)], detail: &str) -> Option<f64> {
    // At most one multiply-add is allowed for each 4 bytes moved. Sums of rows compute less than
    // that.
    const FLOPS_PER_BYTE_MAX: f64 = 0.5;
    const ABOUT: f64 = 2.0;
    let passes = |effort: &Effort| effort.flops <= FLOPS_PER_BYTE_MAX * effort.bytes;
    let bytes = Effort::parse(detail).filter(passes)?.bytes.max(1.0);
    let rates = known.iter().filter(|one| one.1 > 0.0).filter_map(|(other, ns)| {
        let other = Effort::parse(other).filter(passes)?.bytes;
        (other > 0.0).then(|| ((other / bytes).ln().abs(), other / ns))
    });
    let rates: Vec<(f64, f64)> = rates.collect();
    let about = rates.iter().filter(|one| one.0 <= ABOUT.ln()).map(|one| one.1);
    let nearest = || rates.iter().min_by(|a, b| a.0.total_cmp(&b.0)).map(|one| one.1);
    about.max_by(f64::total_cmp).or_else(nearest).map(|rate| bytes / rate)
}

/// Returns a distance between works whose details differ in form. Arithmetic intensity counts most,
/// then size.
fn between(a: &str, b: &str) -> f64 {
    let (Some(a), Some(b)) = (Effort::parse(a), Effort::parse(b)) else { return f64::MAX };
    let intensity = |of: Effort| ((of.flops + 1.0) / (of.bytes + 1.0)).ln();
    let apart = (intensity(a) - intensity(b)).abs();
    let size = ((a.bytes + 1.0) / (b.bytes + 1.0)).ln().abs();
    // The constant 10 places works of another form behind all works of the same form.
    10.0 + apart + 0.1 * size
}
