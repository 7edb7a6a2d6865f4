//! The overheads of hosts that are shipped with rowmill, made from public recordings by
//! `bench/compare/shared_overheads.py`.

use std::io::Read;

use schema::HardwareSpec;
use schema::reference::distance;
use schema::topology::hardware;
use trace::execution_trace::ExecutionTrace;

use super::Calibration;
use crate::Error;

/// Overheads of a host that are shipped with rowmill, with their source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShippedOverheads {
    pub name: &'static str,
    /// Key of the recorded device in the table of hardware, or its name if the table lacks it.
    /// PyTorch's recordings do not name the CPU.
    pub device: &'static str,
    pub pytorch: &'static str,
    /// What the profiler recorded while the samples were taken, which costs time of the host.
    pub profiler: &'static str,
    pub source: &'static str,
    packed: &'static [u8],
}

/// The kind of a job. Overheads are taken from a job of the same kind if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobKind {
    /// The training of a model that looks up embeddings.
    Recommendation,
    Other,
}

impl JobKind {
    /// Returns the kind of the job that execution traces recorded.
    #[must_use]
    pub fn from_traces(traces: &[ExecutionTrace]) -> Self {
        let has_lookups = |trace: &ExecutionTrace| {
            trace.nodes.iter().any(|node| Self::looks_up(trace.name(node)))
        };
        if traces.iter().any(has_lookups) { Self::Recommendation } else { Self::Other }
    }

    fn looks_up(operator: &str) -> bool {
        operator.contains("embedding_bag") || operator.contains("SplitLookup")
    }

    /// Returns the name of the kind in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Recommendation => "a recommendation model",
            Self::Other => "a model without lookups",
        }
    }
}

macro_rules! shipped {
    ($name:literal, $device:literal, $pytorch:literal, $profiler:literal, $source:literal) => {
        ShippedOverheads {
            name: $name,
            device: $device,
            pytorch: $pytorch,
            profiler: $profiler,
            source: $source,
            packed: include_bytes!(concat!("../../overheads/", $name, ".json.gz")),
        }
    };
}

/// All shipped overheads. Of those of equally near devices, the first is the default.
pub const SHIPPED: [ShippedOverheads; 10] = [
    shipped!("v100-dlrm", "v100-sxm2", "2.x of 2023", "shapes", "param, eight ranks of TorchRec"),
    shipped!("v100-compiled", "v100-sxm2", "2.x of 2023", "stacks", "HTA, trace_diff/test"),
    shipped!("v100-resnet", "v100", "1.8 of 2021", "stacks", "kineto, ResNet-50 of TensorBoard"),
    shipped!("a100-dlrm", "a100-sxm4-80gb", "2.x of 2023", "stacks", "HTA, trace_diff/control"),
    shipped!("a100-full-queue", "a100-sxm4-80gb", "2.x of 2023", "shapes", "HTA, a full queue"),
    shipped!("h100-suite", "h100", "2.11", "subtracted", "rowmill's suite on 16 Xeon threads"),
    shipped!("h100-timesformer", "h100", "2.x of 2025", "stacks", "TraceLens, inference"),
    shipped!("mi300x-owlv2", "mi300x", "2.x of 2025", "stacks", "TraceLens, inference"),
    shipped!("mi300x-resnet", "mi300x", "2.x of 2025", "stacks", "TraceLens, checkpointing"),
    shipped!("rtx2080ti-linear", "NVIDIA GeForce RTX 2080 Ti", "2.1 of 2023", "shapes", "param"),
];

impl ShippedOverheads {
    /// Finds shipped overheads by name.
    ///
    /// # Errors
    /// [`Error::Overheads`] with similar names if there are none of this name.
    pub fn find(name: &str) -> Result<&'static Self, Error> {
        let lower = name.to_ascii_lowercase();
        SHIPPED.iter().find(|one| one.name == lower).ok_or_else(|| {
            let mut near: Vec<&str> = SHIPPED.iter().map(|one| one.name).collect();
            near.sort_by_key(|other| distance(&lower, other));
            near.truncate(3);
            Error::Overheads { name: name.to_owned(), near: near.join(", ") }
        })
    }

    /// Returns whether jobs of a kind were recorded. The suite has jobs of both kinds.
    #[must_use]
    pub fn has_jobs(&self, kind: JobKind) -> bool {
        match self.name {
            "h100-suite" => true,
            "v100-dlrm" | "v100-compiled" | "a100-dlrm" | "a100-full-queue" => {
                kind == JobKind::Recommendation
            }
            _ => kind == JobKind::Other,
        }
    }

    /// Returns the overheads of a job of this kind beside the device most like the given one.
    #[must_use]
    pub fn nearest(device: &HardwareSpec, kind: JobKind) -> &'static Self {
        Self::by_nearness(device, kind)[0]
    }

    /// Returns all overheads, the nearest ones first: beside a device of the same vendor, of a job
    /// of the same kind, then by the rate of the device for `f32`.
    #[must_use]
    pub fn by_nearness(device: &HardwareSpec, kind: JobKind) -> [&'static Self; SHIPPED.len()] {
        let apart = |one: &&'static Self| {
            let Ok(own) = hardware(one.device) else { return ((true, true), f64::MAX) };
            let is_amd = |spec: &HardwareSpec| spec.name.starts_with("AMD");
            let ratio = own.peak.f32 / device.peak.f32;
            ((is_amd(own) != is_amd(device), !one.has_jobs(kind)), ratio.ln().abs())
        };
        let mut all = SHIPPED.each_ref();
        // The sort is stable, so of equally near devices the first remains the first.
        all.sort_by(|a, b| {
            let (a, b) = (apart(a), apart(b));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
        });
        all
    }

    /// Reads the overheads.
    ///
    /// # Errors
    /// [`Error::Calibration`] if they were written by another version of rowmill.
    pub fn read(&self) -> Result<Calibration, Error> {
        let mut text = String::new();
        let unpacked = trace::packed::unpacked(self.packed);
        unpacked.and_then(|mut text_of| text_of.read_to_string(&mut text)).map_err(|error| {
            let expected = format!("the shipped overheads {}", self.name);
            Error::Calibration { expected, got: error.to_string() }
        })?;
        Calibration::from_json(&text)
    }
}

#[cfg(test)]
mod tests {
    use schema::topology::hardware;

    use super::{JobKind, SHIPPED, ShippedOverheads};

    #[test]
    fn nearest_overheads_are_of_the_same_vendor_kind_of_job_and_generation() {
        for (device, recommendation, other) in [
            ("v100", "v100-dlrm", "v100-resnet"),
            ("v100-sxm2", "v100-dlrm", "v100-resnet"),
            ("l4", "a100-dlrm", "v100-resnet"),
            ("a100", "a100-dlrm", "v100-resnet"),
            ("h200", "h100-suite", "h100-suite"),
            ("mi250", "mi300x-owlv2", "mi300x-owlv2"),
        ] {
            let spec = hardware(device).unwrap();
            let nearest = |kind| ShippedOverheads::nearest(spec, kind).name;
            let found = [JobKind::Recommendation, JobKind::Other].map(nearest);
            assert_eq!(found, [recommendation, other], "{device}");
        }
        for shipped in &SHIPPED {
            let seen = shipped.read().unwrap().launches.seen;
            let looks_up = seen.iter().any(|name| JobKind::looks_up(name));
            assert_eq!(shipped.has_jobs(JobKind::Recommendation), looks_up, "{}", shipped.name);
        }
    }
}
