//! The hardware of a training step: the capabilities of one device ([`HardwareSpec`]), and the
//! links between devices ([`Topology`]). All values are plain data with their sources.

mod fabric;
mod file;
mod link;
mod rows;

use std::borrow::Cow;
use std::sync::{PoisonError, RwLock};

use serde::{Deserialize, Serialize};

use crate::reference::distance;
use crate::training::Precision;

pub use fabric::{HOSTS, HostFabric, HostModel};
pub use link::{Link, LinkError};
pub use rows::HARDWARE;

/// Peak FLOP/s of one device by number format; `None` if the device has no unit for the format.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Flops {
    /// Rate for `f32` outside of tensor and matrix cores.
    pub f32: f64,
    /// Rate for `f32` rounded to ten bits (TF32) in tensor cores.
    pub tf32: Option<f64>,
    /// Rate for IEEE floats of 16 bits, in tensor or matrix cores if the device has them.
    pub f16: Option<f64>,
    /// Rate for bf16 in tensor or matrix cores.
    #[serde(default)]
    pub bf16: Option<f64>,
}

impl Flops {
    /// Returns the rate of products whose factors have a format, or `None` if the device has no
    /// unit for it.
    #[must_use]
    pub fn rate(&self, format: ProductFormat) -> Option<f64> {
        match format {
            ProductFormat::F32 => Some(self.f32),
            ProductFormat::Tf32 => self.tf32,
            ProductFormat::Bf16 => self.bf16,
            ProductFormat::F16 => self.f16,
        }
    }
}

/// The format of the factors of matrix products on a GPU. Sums are always f32. [`Precision`] has
/// those formats in which rowmill's own trainer computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProductFormat {
    #[default]
    F32,
    /// f32 in memory, rounded to ten bits within the product.
    Tf32,
    Bf16,
    /// An IEEE float of 16 bits.
    #[serde(rename = "fp16")]
    F16,
}

impl ProductFormat {
    /// All formats, in the order of their names in options.
    pub const ALL: [Self; 4] = [Self::F32, Self::Tf32, Self::Bf16, Self::F16];

    /// Returns the name in options.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Tf32 => "tf32",
            Self::Bf16 => "bf16",
            Self::F16 => "fp16",
        }
    }

    /// Returns the bytes of a value in memory and in messages.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 | Self::Tf32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }
}

impl From<Precision> for ProductFormat {
    fn from(precision: Precision) -> Self {
        match precision {
            Precision::F32 => Self::F32,
            Precision::Bf16 => Self::Bf16,
        }
    }
}

/// The capabilities of one device. Devices are counted as PyTorch counts them, so a card with two
/// dies is two devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HardwareSpec {
    /// Name of the device on the command line, such as `v100`.
    pub key: Cow<'static, str>,
    /// Name of the device as its driver reports it.
    pub name: Cow<'static, str>,
    pub peak: Flops,
    /// Rate for `f32` that a benchmark reached, in FLOP/s.
    pub sustained_f32: Option<f64>,
    /// Peak bandwidth of the device's memory, in bytes per second.
    pub dram: f64,
    /// Memory bandwidth that a benchmark reached, in bytes per second.
    pub dram_sustained: Option<f64>,
    /// Size of the last cache shared by all multiprocessors.
    pub l2_bytes: u64,
    /// Bandwidth of the last shared cache that a benchmark reached, in bytes per second.
    pub l2: Option<f64>,
    /// Number of multiprocessors, compute units or cores.
    pub multiprocessors: u32,
    pub clock_mhz: u32,
    /// Power limit in watts; 0 if unknown.
    pub power_w: u32,
    pub memory_bytes: u64,
    /// Duration of the shortest kernel in recorded traces, in nanoseconds.
    pub launch_floor_ns: Option<u32>,
    /// Sources of these numbers.
    pub source: Cow<'static, str>,
}

impl HardwareSpec {
    /// Returns the ridge point of the roofline: the FLOPs per byte above which arithmetic is the
    /// limit.
    #[must_use]
    pub fn ridge(&self) -> f64 {
        self.peak.f32 / self.dram
    }

    /// Checks that the device computes products of a format, and returns its peak rate in FLOP/s.
    ///
    /// # Errors
    /// Returns [`HardwareError::Format`] with the formats that the device has.
    pub fn peak_rate(&self, format: ProductFormat) -> Result<f64, HardwareError> {
        self.peak.rate(format).ok_or_else(|| {
            let formats = ProductFormat::ALL.into_iter();
            let known = formats.filter(|known| self.peak.rate(*known).is_some());
            let known: Vec<&str> = known.map(ProductFormat::name).collect();
            HardwareError::Format {
                device: self.key.to_string(),
                format: format.name(),
                known: known.join(", "),
            }
        })
    }
}

/// Error of a hardware or topology that is unknown or invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HardwareError {
    /// No known device has this name.
    #[error("hardware {name:?}: expected the name of a known device; similar names are {}", near.join(", "))]
    Unknown { name: String, near: Vec<String> },
    /// The number of devices or hosts is invalid.
    #[error(
        "hardware {text:?}: expected DEVICE, DEVICExN or HOSTSxDEVICExN with counts from 1 to 65536, such as h100x8"
    )]
    Count { text: String },
    /// The device has no unit for a format of matrix products.
    #[error("precision of {device:?}: expected one of {known}, got {format}")]
    Format { device: String, format: &'static str, known: String },
    /// A topology file is malformed.
    #[error("topology file: expected {expected}, got {got}")]
    File { expected: String, got: String },
    /// A device that was added has the key or the name of a known one.
    #[error("hardware {key:?}: expected a key and a name that no known device has")]
    Known { key: String },
    /// A rate, a size or a count of a device that was added cannot be one of a device.
    #[error("hardware {key:?}: {mismatch}")]
    OutOfRange { key: String, mismatch: String },
}

/// Devices that were added to [`HARDWARE`] while the program runs.
static ADDED: RwLock<Vec<&'static HardwareSpec>> = RwLock::new(Vec::new());

/// Makes a device known to [`hardware`] and [`Topology::parse`] until the program ends. Adding a
/// device with equal fields again changes nothing.
///
/// # Errors
/// Returns [`HardwareError::Known`] if another device has the key or the name, and
/// [`HardwareError::OutOfRange`] if a value cannot be one of a device.
pub fn add_hardware(spec: HardwareSpec) -> Result<&'static HardwareSpec, HardwareError> {
    let values = [
        ("peak.f32", spec.peak.f32, [1e9, 1e18]),
        ("dram", spec.dram, [1e9, 1e16]),
        ("dram_sustained", spec.dram_sustained.unwrap_or(spec.dram), [1e9, 1e16]),
        ("sustained_f32", spec.sustained_f32.unwrap_or(spec.peak.f32), [1e9, 1e18]),
        ("l2_bytes", spec.l2_bytes as f64, [1e3, 1e12]),
        ("multiprocessors", f64::from(spec.multiprocessors), [1.0, 1e6]),
        ("memory_bytes", spec.memory_bytes as f64, [1e6, 1e15]),
    ];
    let key = spec.key.clone().into_owned();
    let is_outside = |value: f64, [least, most]: [f64; 2]| !(least..=most).contains(&value);
    let mut values = values.into_iter();
    if let Some((field, got, [least, most])) = values.find(|one| is_outside(one.1, one.2)) {
        let mismatch = format!(
            "expected {field} from {least:e} to {most:e} (bytes, or per second), got {got:e}"
        );
        return Err(HardwareError::OutOfRange { key, mismatch });
    }
    let known = [hardware(&spec.key), hardware(&spec.name)];
    match known.into_iter().find_map(Result::ok) {
        Some(known) if *known == spec => Ok(known),
        Some(_) => Err(HardwareError::Known { key }),
        None => {
            // A program adds a few devices at most, and measurements refer to them until its end.
            let spec: &'static HardwareSpec = Box::leak(Box::new(spec));
            ADDED.write().unwrap_or_else(PoisonError::into_inner).push(spec);
            Ok(spec)
        }
    }
}

/// Lists the devices of [`HARDWARE`], then the added ones.
fn all_hardware() -> Vec<&'static HardwareSpec> {
    let added = ADDED.read().unwrap_or_else(PoisonError::into_inner);
    HARDWARE.iter().chain(added.iter().copied()).collect()
}

/// Finds a device by key or name, ignoring case.
///
/// # Errors
/// Returns [`HardwareError::Unknown`] with the most similar names.
pub fn hardware(name: &str) -> Result<&'static HardwareSpec, HardwareError> {
    let wanted = plain(name);
    // Traces contain the full name of a device, while users type its short key.
    let is_wanted = |row: &&HardwareSpec| plain(&row.key) == wanted || plain(&row.name) == wanted;
    all_hardware()
        .into_iter()
        .find(is_wanted)
        .ok_or_else(|| HardwareError::Unknown { name: name.to_owned(), near: nearest(&wanted) })
}

/// Keeps only the letters and digits of a name, in lower case, so that spellings compare as equal.
fn plain(text: &str) -> String {
    let kept = text.chars().filter(char::is_ascii_alphanumeric);
    kept.map(|letter| letter.to_ascii_lowercase()).collect()
}

fn nearest(wanted: &str) -> Vec<String> {
    const SHOWN: usize = 3;
    let known = all_hardware().into_iter();
    let keys = known.map(|row| &*row.key).chain(HOSTS.iter().map(|host| host.key));
    let mut all: Vec<(usize, &str)> =
        keys.map(|key| (distance(wanted, &plain(key)), key)).collect();
    all.sort_unstable();
    all.into_iter().take(SHOWN).map(|(_, key)| key.to_owned()).collect()
}

/// Hosts with equal devices, and the links between them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Topology {
    pub device: HardwareSpec,
    pub hosts: u32,
    /// Number of ranks on each host, with one rank per device.
    pub ranks_per_host: u32,
    /// Links between the devices of one host.
    pub within: HostFabric,
    pub between: Link,
}

impl Topology {
    /// Parses a topology such as `h100`, `h100x8`, `4xh100x8` or `16xdgx-h100`. Ready-made hosts
    /// have their own links and network cards. `dgx-2x8` uses eight devices of such a host. Other
    /// topologies have the links of [`HostFabric::for_device`] and [`Link::network`].
    ///
    /// # Errors
    /// Returns a [`HardwareError`] if the device is unknown or a count is invalid.
    pub fn parse(text: &str) -> Result<Self, HardwareError> {
        // The whole text is tried as a name first, because a name may contain an `x`.
        if let Ok(device) = hardware(text) {
            return Ok(Self::uniform(device, 1, 1));
        }
        let lower = text.to_ascii_lowercase();
        let (hosts, rest) = match lower.split_once('x') {
            Some((hosts, rest)) if !hosts.is_empty() && is_number(hosts) => (hosts, rest),
            _ => ("1", &*lower),
        };
        // The last `x` separates the count, because the name of a device may contain an `x`.
        let (device, ranks) = match rest.rsplit_once('x') {
            Some((device, ranks)) if is_number(ranks) => (device, ranks),
            _ => (rest, "1"),
        };
        let count = |digits: &str| {
            let value = digits.parse::<u32>().ok().filter(|count| (1..=65_536).contains(count));
            value.ok_or_else(|| HardwareError::Count { text: text.to_owned() })
        };
        let hosts = count(hosts)?;
        for (name, ranks) in [(rest, None), (device, Some(ranks))] {
            let Some(model) = HOSTS.iter().find(|host| plain(host.key) == plain(name)) else {
                continue;
            };
            let ranks = ranks.map_or(Ok(model.devices), count)?;
            if ranks > model.devices {
                return Err(HardwareError::Count { text: text.to_owned() });
            }
            let between = Link::cards(model.nics, model.nic_gbit_per_s, ranks, Link::NETWORK_US);
            let device = hardware(model.device)?.clone();
            let within = model.fabric.clone();
            return Ok(Self { device, hosts, ranks_per_host: ranks, within, between });
        }
        Ok(Self::uniform(hardware(device)?, hosts, count(ranks)?))
    }

    fn uniform(device: &HardwareSpec, hosts: u32, ranks_per_host: u32) -> Self {
        let (within, between) = (HostFabric::for_device(device), Link::network());
        Self { device: device.clone(), hosts, ranks_per_host, within, between }
    }

    /// Returns the number of ranks over all hosts.
    #[must_use]
    pub fn ranks(&self) -> u64 {
        u64::from(self.hosts) * u64::from(self.ranks_per_host)
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests;
