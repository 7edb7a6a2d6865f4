//! The trained model of one kind of kernel, and its predictions of a kernel's time on a device.

use schema::HardwareSpec;
use serde::{Deserialize, Serialize};

use super::adaptation::Adaptation;
use super::baseline::{Baseline, DeviceBaseline};
use super::bins::Bins;
use super::error_interval::ErrorInterval;
use super::estimate::{Estimate, Factors};
use super::feature::{physics_ns, roofline_ns, shortest_ns};
use super::forest::Forest;
use super::latency::{Latency, latency};
use super::launch_overhead::LaunchOverheads;
use super::measured::Timed;
use super::transfer::{DeviceTransfer, Teacher};
use super::work::{Kind, Work};

/// Latencies below this multiple of the launch overhead contain no information on the kernel.
const HIDDEN: f64 = 1.1;
/// Latencies above this multiple of the launch overhead are kernel time alone.
const SEEN: f64 = 3.0;
/// Largest plausible ratio of a kernel's time to the time of similar kernels when its latency is
/// [`SEEN`] overheads. At [`HIDDEN`] overheads the ratio is 1.
const BELIEVED: f64 = 12.0;
/// Logarithm by which an interval widens for each factor of e outside the training domain.
const WIDENING: f64 = 0.25;

/// A table of measurements that a model was trained on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    pub name: String,
    pub rows: usize,
    /// Checksum of the table's text.
    pub checksum: String,
}

/// The method that predicts the residual over a device's baseline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum DeviceResidual {
    /// A forest trained on this device predicts the residual.
    Own(Forest),
    /// Times of other devices are transferred, and adapted by a few rows of this device.
    Adapted(Adaptation),
}

/// The parts of a model that all devices share.
#[derive(Clone, Copy, Debug)]
pub struct Shared<'a> {
    pub bins: &'a Bins,
    pub transfer: &'a DeviceTransfer,
    pub devices: &'a [DeviceModel],
}

impl Shared<'_> {
    /// Computes `ln(own model ÷ formula)` of a kernel for each device of the transfer. The residual
    /// is 0 for a device whose own model was replaced.
    pub fn residuals(self, work: &Work) -> Vec<f64> {
        let residual = |teacher: &Teacher| {
            let own = self.devices.iter().find(|own| own.device == teacher.device.key)?;
            let DeviceResidual::Own(_) = own.residual else { return None };
            let predicted = own.latency(self, work, &teacher.device);
            let floor_ns = own.floors.ns(work.name());
            let formula = self.transfer.latency(work, &teacher.device, teacher.factors, floor_ns);
            Some((predicted.ns / formula.ns).ln())
        };
        self.transfer.teachers.iter().map(|teacher| residual(teacher).unwrap_or(0.0)).collect()
    }
}

/// The part of a model that is specific to one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceModel {
    /// Key of the device in the hardware table.
    pub(super) device: String,
    /// Number of training rows of the device.
    pub(super) rows: usize,
    #[serde(rename = "floors_ns")]
    pub(super) floors: LaunchOverheads,
    pub(super) timed: Timed,
    pub(super) line: Baseline,
    /// Median ratio of measured time to roofline time of long kernels.
    pub(super) slack: f64,
    /// Whether a model of other devices was adapted by rows of this device.
    pub(super) is_adapted: bool,
    pub(super) residual: DeviceResidual,
    pub(super) interval: ErrorInterval,
}

impl DeviceModel {
    /// Returns the key of the device.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Predicts the latency of a call on any device by the launch overhead and the line of this
    /// one.
    #[must_use]
    pub fn line_ns(&self, work: &Work, device: &HardwareSpec) -> f64 {
        self.line.ns(roofline_ns(work, device), self.floors.ns(work.name()))
    }

    /// Predicts the latency of a call.
    pub(super) fn latency(
        &self,
        shared: Shared<'_>,
        work: &Work,
        device: &HardwareSpec,
    ) -> Latency {
        let overhead_ns = self.floors.ns(work.name());
        let predicted = match &self.residual {
            DeviceResidual::Own(forest) => {
                let baseline = DeviceBaseline { overhead_ns, line: self.line };
                latency(shared.bins, forest, work, device, baseline)
            }
            DeviceResidual::Adapted(adaptation) => {
                let residuals = shared.residuals(work);
                adaptation.latency(shared.transfer, work, device, overhead_ns, &residuals)
            }
        };
        if self.timed.is_call() {
            predicted
        } else {
            // Kernels that were timed alone are not hidden by launch overhead.
            Latency { floor_ns: 0.0, kernel_ns: None, ..predicted }
        }
    }
}

/// A size outside the range of the training data.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Outside {
    pub size: &'static str,
    pub asked: u64,
    /// Smallest and largest value of this size in the training data.
    pub least: u64,
    pub most: u64,
}

/// The degree to which the training data support a predicted time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Domain {
    /// The device was not measured, so the time is predicted from its data sheet.
    pub is_unseen_device: bool,
    /// The model of other devices was adapted by a few measurements of this device.
    pub is_adapted: bool,
    /// The kernel is shorter than its launch overhead, so measured latencies of calls do not show
    /// it.
    pub is_under_floor: bool,
    /// The size that is farthest outside the training data.
    pub outside: Option<Outside>,
}

impl Domain {
    /// Returns whether the predicted time is an interpolation of the device's measurements.
    #[must_use]
    pub fn is_inside(&self) -> bool {
        let is_measured = !self.is_unseen_device && !self.is_adapted;
        is_measured && !self.is_under_floor && self.outside.is_none()
    }
}

/// Predicted time of a kernel without launch overhead. Nine of ten measurements lie within its
/// interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Price {
    pub mean_ns: f64,
    pub low_ns: f64,
    pub high_ns: f64,
    pub domain: Domain,
}

/// The trained model of one kind of kernel for all devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelModel {
    pub(super) kind: Kind,
    pub(super) sources: Vec<Source>,
    /// Smallest and largest value of each size in the training data.
    pub(super) least: Vec<u64>,
    pub(super) most: Vec<u64>,
    pub(super) bins: Bins,
    /// Predicts devices without measurements from those with measurements.
    pub(super) transfer: DeviceTransfer,
    pub(super) devices: Vec<DeviceModel>,
}

impl KernelModel {
    /// Returns the kind of kernel whose time the model predicts.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the tables that the model was trained on.
    #[must_use]
    pub fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// Returns the devices that the model was trained on or calibrated for.
    #[must_use]
    pub fn devices(&self) -> &[DeviceModel] {
        &self.devices
    }

    /// Predicts the kernel time of an operation on a device.
    ///
    /// # Cost
    /// Takes some microseconds, for 400 trees of 5 levels.
    #[must_use]
    pub fn price(&self, work: &Work, device: &HardwareSpec) -> Price {
        let (latency, (low, high), slack) = self.latency(work, device);
        let (outside, distance) = self.outside(work);
        let wider = (WIDENING * distance).exp();
        let least = physics_ns(work, device).max(shortest_ns(device));
        let high_ns = latency.ns * high * wider;
        let by_roofline = roofline_ns(work, device) * slack;
        let above = (latency.ns / latency.floor_ns / HIDDEN).ln() / (SEEN / HIDDEN).ln();
        let (kernel_ns, is_under_floor) = latency.kernel_ns.map_or_else(
            || {
                // Latencies just above the launch overhead may be variations of the host's time.
                // Therefore a kernel whose roofline time is far below the overhead still counts as
                // hidden.
                let believed = by_roofline * BELIEVED.powf(above.max(0.0));
                let is_hidden = above < 0.0 || (above < 1.0 && latency.ns > believed);
                (if is_hidden { believed.min(latency.ns) } else { latency.ns }, is_hidden)
            },
            |kernel_ns| (kernel_ns, above < 0.0),
        );
        let mean_ns = kernel_ns.max(least);
        let low_ns = if is_under_floor {
            // Every kernel between the physical limit and the launch overhead has the overhead as
            // its measured latency.
            least
        } else {
            (kernel_ns * low / wider).max(least).min(mean_ns)
        };
        let own = self.find_device(device);
        let domain = Domain {
            is_unseen_device: own.is_none(),
            is_adapted: own.is_some_and(|own| own.is_adapted),
            is_under_floor,
            outside,
        };
        Price { mean_ns, low_ns, high_ns: high_ns.max(mean_ns), domain }
    }

    /// Predicts the latency of a call, which includes its launch overhead, with its interval.
    #[must_use]
    pub fn predict_latency(&self, work: &Work, device: &HardwareSpec) -> Estimate {
        let (latency, factors, _) = self.latency(work, device);
        Estimate::within(latency.ns, factors)
    }

    /// Predicts a latency and returns it with the factors of its interval and the roofline slack.
    fn latency(&self, work: &Work, device: &HardwareSpec) -> (Latency, Factors, f64) {
        if let Some(own) = self.find_device(device) {
            let latency = own.latency(self.shared(), work, device);
            return (latency, own.interval.at(latency.above_floor), own.slack);
        }
        let factors = self.transfer.factors(device);
        let predicted = self.transfer.latency(work, device, factors, self.usual_floor_ns(work));
        (predicted, self.transfer.interval.at(predicted.above_floor), 1.0)
    }

    /// Returns the median launch overhead of an operation over the devices of the model.
    #[must_use]
    pub fn usual_floor_ns(&self, work: &Work) -> f64 {
        let floors = self.devices.iter().map(|device| &device.floors);
        LaunchOverheads::median_of(floors).ns(work.name())
    }

    pub(super) fn shared(&self) -> Shared<'_> {
        Shared { bins: &self.bins, transfer: &self.transfer, devices: &self.devices }
    }

    /// Finds the part of the model that is specific to a device.
    #[must_use]
    pub fn find_device(&self, device: &HardwareSpec) -> Option<&DeviceModel> {
        self.devices.iter().find(|own| own.device == device.key)
    }

    /// Finds the size that is farthest outside the training data, and its distance in factors of e.
    fn outside(&self, work: &Work) -> (Option<Outside>, f64) {
        let mut farthest = (None, 0.0);
        for (at, &asked) in work.sizes().iter().enumerate() {
            let (least, most) = (self.least[at], self.most[at]);
            // Avoid the logarithm of 0, because padding may be 0.
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
