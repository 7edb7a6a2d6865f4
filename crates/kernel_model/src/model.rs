//! A learnt model of one kind of kernel, and its prediction for a work on a device.

use schema::HardwareSpec;
use serde::{Deserialize, Serialize};

use super::baseline::{Baseline, DeviceBaseline};
use super::bins::Bins;
use super::correction::Correction;
use super::error_interval::ErrorInterval;
use super::feature::{physics_ns, roofline_ns};
use super::forest::Forest;
use super::latency::{Latency, latency};
use super::measured::Timed;
use super::work::{Kind, Work};

/// Below so many floors a measurement says nothing of the kernel.
const HIDDEN: f64 = 1.1;
/// Above so many floors it says nothing but what the kernel takes.
const SEEN: f64 = 3.0;
/// How many times as long as its like a kernel may take there; just above the floor, once.
const BELIEVED: f64 = 12.0;
/// No kernel was recorded that is shorter.
const LAUNCH_NS: f64 = 1_000.0;
/// By how much an interval grows for each factor of e outside the training domain.
const WIDENING: f64 = 0.25;

/// Where rows are from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    pub name: String,
    pub rows: usize,
    /// A checksum of its text.
    pub checksum: String,
}

/// What a measurement holds at least, by name of the operation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LaunchOverheads(Vec<(String, f64)>);

impl LaunchOverheads {
    pub(super) fn new(floors: impl Iterator<Item = (String, f64)>) -> Self {
        Self(floors.collect())
    }

    /// The floor of an operation; of one that was not measured, the geometric mean of the others.
    pub(super) fn ns(&self, name: &str) -> f64 {
        let found = self.0.iter().find(|(known, _)| known == name).map(|(_, ns)| *ns);
        found.unwrap_or_else(|| mean(self.0.iter().map(|(_, ns)| *ns)))
    }

    /// For each operation the median over devices, or the lower of the two in the middle: few hosts
    /// are much faster than others, but some are much slower.
    pub(super) fn usual_of<'a>(all: impl Iterator<Item = &'a Self> + Clone) -> Self {
        let mut names: Vec<&String> =
            all.clone().flat_map(|one| &one.0).map(|one| &one.0).collect();
        names.sort();
        names.dedup();
        let of = |name: &String| {
            let mut floors: Vec<f64> = all.clone().map(|floors| floors.ns(name)).collect();
            floors.sort_by(f64::total_cmp);
            (name.clone(), floors[(floors.len() - 1) / 2])
        };
        Self(names.into_iter().map(of).collect())
    }

    /// Each changed by what `change` makes of name and floor.
    pub(super) fn with_each(&self, change: impl Fn(&str, f64) -> f64) -> Self {
        Self(self.0.iter().map(|(name, ns)| (name.clone(), change(name, *ns))).collect())
    }

    pub(super) fn is_valid(&self) -> bool {
        !self.0.is_empty() && self.0.iter().all(|(_, ns)| ns.is_finite() && *ns > 0.0)
    }
}

/// Geometric mean; 1 of nothing.
fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) =
        values.fold((0.0, 0.0), |(sum, count), value| (sum + value.ln(), count + 1.0));
    if count > 0.0 { (sum / count).exp() } else { 1.0 }
}

/// The learnt parameters of a device.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum DeviceResidual {
    /// Trees of its own.
    Own(Forest),
    /// The trees of all devices, corrected by a few rows.
    Adapted(Correction),
}

/// The model of one device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceModel {
    /// Key of its hardware.
    pub(super) device: String,
    /// Rows it was learnt from.
    pub(super) rows: usize,
    pub(super) floors: LaunchOverheads,
    pub(super) timed: Timed,
    /// What measurements are made of.
    pub(super) line: Baseline,
    /// How far kernels stay behind the roofline.
    pub(super) slack: f64,
    pub(super) learnt: DeviceResidual,
    pub(super) interval: ErrorInterval,
}

impl DeviceModel {
    /// Key of the device.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// The predicted measurement of a work; `pooled` are the trees of all devices.
    pub(super) fn latency(
        &self,
        bins: &Bins,
        pooled: Option<&Forest>,
        work: &Work,
        device: &HardwareSpec,
    ) -> Latency {
        let floor_ns = self.floors.ns(work.name());
        // Nothing hides a kernel that was measured by itself.
        let hidden_ns = if self.timed.is_call() { floor_ns } else { 0.0 };
        let baseline = DeviceBaseline { overhead_ns: floor_ns, line: self.line };
        let by = |forest: &Forest| Latency {
            floor_ns: hidden_ns,
            ..latency(bins, forest, work, device, baseline)
        };
        match (&self.learnt, pooled) {
            (DeviceResidual::Own(forest), _) => by(forest),
            (DeviceResidual::Adapted(correction), Some(forest)) => correction.applied(by(forest)),
            (DeviceResidual::Adapted(_), None) => {
                Latency { ns: floor_ns, floor_ns, above_floor: 0.0 }
            }
        }
    }
}

/// A size that no training row had.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Outside {
    pub size: &'static str,
    pub asked: u64,
    /// The least and the most of training.
    pub least: u64,
    pub most: u64,
}

/// What a price rests on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Domain {
    /// Nobody measured this device: the price is that of a device of its numbers.
    pub is_unseen_device: bool,
    /// The kernel is shorter than the host takes to launch it, so no measurement shows it.
    pub is_under_floor: bool,
    /// The size that is farthest outside.
    pub outside: Option<Outside>,
}

impl Domain {
    /// Whether the price rests on measurements of its like.
    #[must_use]
    pub fn is_inside(&self) -> bool {
        !self.is_unseen_device && !self.is_under_floor && self.outside.is_none()
    }
}

/// What a kernel takes, without what the host adds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Price {
    pub mean_ns: f64,
    /// Nine of ten lie between this …
    pub low_ns: f64,
    pub high_ns: f64,
    /// The evidence behind it.
    pub domain: Domain,
}

/// Prices an unmeasured device.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Unseen {
    /// Trees of all devices over the roofline.
    pub forest: Forest,
    /// Of devices that were left out in training, the worst at either end.
    pub interval: ErrorInterval,
}

/// The model of a kind.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelModel {
    pub(super) kind: Kind,
    pub(super) sources: Vec<Source>,
    /// Of each size, over the rows that were learnt from.
    pub(super) least: Vec<u64>,
    pub(super) most: Vec<u64>,
    pub(super) bins: Bins,
    /// Trees of all devices over their lines, for devices with a few rows.
    pub(super) pooled: Forest,
    pub(super) unseen: Unseen,
    pub(super) devices: Vec<DeviceModel>,
}

impl KernelModel {
    /// What it prices.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The tables it was learnt from.
    #[must_use]
    pub fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// The devices it was learnt on, or adapted to.
    #[must_use]
    pub fn devices(&self) -> &[DeviceModel] {
        &self.devices
    }

    /// What a work of its kind takes on a device.
    ///
    /// # Cost
    /// Some microseconds: 400 trees of 5 levels.
    #[must_use]
    pub fn price(&self, work: &Work, device: &HardwareSpec) -> Price {
        let (latency, (low, high), slack) = self.latency(work, device);
        let (outside, distance) = self.outside(work);
        let wider = (WIDENING * distance).exp();
        let launch_ns = device.launch_floor_ns.map_or(LAUNCH_NS, f64::from);
        let least = physics_ns(work, device).max(launch_ns);
        let high_ns = latency.ns * high * wider;
        let by_roofline = roofline_ns(work, device) * slack;
        // Just above the floor it is the host that varies: a kernel far below it is still not seen.
        let above = (latency.ns / latency.floor_ns / HIDDEN).ln() / (SEEN / HIDDEN).ln();
        let believed = by_roofline * BELIEVED.powf(above.max(0.0));
        let is_under_floor = above < 0.0 || (above < 1.0 && latency.ns > believed);
        let (mean_ns, low_ns) = if is_under_floor {
            // Anything from physics to the floor would have been measured as the floor.
            let mean = believed.max(least).min(latency.ns.max(least));
            (mean, least.min(mean))
        } else {
            let mean = latency.ns.max(least);
            (mean, (latency.ns * low / wider).max(least).min(mean))
        };
        let is_unseen_device = self.find_device(device).is_none();
        let domain = Domain { is_unseen_device, is_under_floor, outside };
        Price { mean_ns, low_ns, high_ns: high_ns.max(mean_ns), domain }
    }

    /// A measurement of a work, factors of its interval, and how far kernels stay behind.
    pub(super) fn latency(&self, work: &Work, device: &HardwareSpec) -> (Latency, (f64, f64), f64) {
        if let Some(own) = self.find_device(device) {
            let found = own.latency(&self.bins, Some(&self.pooled), work, device);
            return (found, own.interval.at(found.above_floor), own.slack);
        }
        let floors = LaunchOverheads::usual_of(self.devices.iter().map(|device| &device.floors));
        let overhead_ns = floors.ns(work.name());
        let baseline = DeviceBaseline { overhead_ns, line: Baseline::ROOFLINE };
        let found = latency(&self.bins, &self.unseen.forest, work, device, baseline);
        let slack = mean(self.devices.iter().map(|device| device.slack));
        (found, self.unseen.interval.at(found.above_floor), slack)
    }

    fn find_device(&self, device: &HardwareSpec) -> Option<&DeviceModel> {
        self.devices.iter().find(|known| known.device == device.key)
    }

    /// The size that is farthest from all training rows, and how far, in factors of e.
    fn outside(&self, work: &Work) -> (Option<Outside>, f64) {
        let mut farthest = (None, 0.0);
        for (at, &asked) in work.sizes().iter().enumerate() {
            let (least, most) = (self.least[at], self.most[at]);
            // Padding may be 0.
            let log = |size: u64| (size as f64).max(0.5).ln();
            let distance = (log(least) - log(asked)).max(log(asked) - log(most));
            if distance > farthest.1 {
                let size = self.kind.sizes()[at];
                farthest = (Some(Outside { size, asked, least, most }), distance);
            }
        }
        farthest
    }
}
