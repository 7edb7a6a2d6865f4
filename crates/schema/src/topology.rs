//! The hardware of a step: the capabilities of one device ([`HardwareSpec`]), and the links between
//! devices ([`Topology`]). Plain data with its sources.

mod link;
mod rows;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::reference::distance;

pub use link::{Link, LinkError};
pub use rows::HARDWARE;

/// FLOP/s of one device by number format; `None` if the device has no such unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Flops {
    /// `f32` outside of tensor and matrix cores.
    pub f32: f64,
    /// `f32` rounded to ten bits in tensor cores.
    pub tf32: Option<f64>,
    /// 16-bit floats, in tensor or matrix cores if there are any.
    pub f16: Option<f64>,
}

/// The capabilities of one device, as PyTorch counts devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HardwareSpec {
    /// Name on the command line, such as `v100`.
    pub key: Cow<'static, str>,
    /// Name reported by the driver.
    pub name: Cow<'static, str>,
    pub peak: Flops,
    /// FLOP/s of `f32` reached in a benchmark.
    pub sustained_f32: Option<f64>,
    /// Peak bandwidth of the device's memory, in bytes per second.
    pub dram: f64,
    /// Bandwidth reached in a benchmark, in bytes per second.
    pub dram_sustained: Option<f64>,
    /// Size of the last cache shared by all multiprocessors.
    pub l2_bytes: u64,
    /// Bandwidth of that cache reached in a benchmark, in bytes per second.
    pub l2: Option<f64>,
    /// Multiprocessors, compute units or cores.
    pub multiprocessors: u32,
    pub clock_mhz: u32,
    /// Power limit; 0 if unknown.
    pub power_w: u32,
    pub memory_bytes: u64,
    /// Duration of the shortest recorded kernel.
    pub launch_floor_ns: Option<u32>,
    /// Sources of these numbers.
    pub source: Cow<'static, str>,
}

impl HardwareSpec {
    /// Returns the FLOPs per byte above which arithmetic is the limit.
    #[must_use]
    pub fn ridge(&self) -> f64 {
        self.peak.f32 / self.dram
    }
}

/// A hardware or topology is unknown or invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HardwareError {
    /// There is no device of this name.
    #[error("hardware {name:?}: expected a known device, got none of that name; like it: {}", near.join(", "))]
    Unknown { name: String, near: Vec<String> },
    /// A count of devices or hosts is invalid.
    #[error(
        "hardware {text:?}: expected DEVICE, DEVICExN or HOSTSxDEVICExN with counts from 1 to 65536, such as h100x8"
    )]
    Count { text: String },
}

/// Finds a device by key or name, ignoring case.
///
/// # Errors
/// [`HardwareError::Unknown`] with the most similar names.
pub fn hardware(name: &str) -> Result<&'static HardwareSpec, HardwareError> {
    let wanted = plain(name);
    let found = HARDWARE.iter().find(|row| plain(&row.key) == wanted || plain(&row.name) == wanted);
    found.ok_or_else(|| HardwareError::Unknown { name: name.to_owned(), near: nearest(&wanted) })
}

/// Keeps only letters and digits, in lower case.
fn plain(text: &str) -> String {
    let kept = text.chars().filter(char::is_ascii_alphanumeric);
    kept.map(|letter| letter.to_ascii_lowercase()).collect()
}

fn nearest(wanted: &str) -> Vec<String> {
    const SHOWN: usize = 3;
    let mut all: Vec<(usize, &str)> =
        HARDWARE.iter().map(|row| (distance(wanted, &plain(&row.key)), &*row.key)).collect();
    all.sort_unstable();
    all.into_iter().take(SHOWN).map(|(_, key)| key.to_owned()).collect()
}

/// Hosts with equal devices, and the links between them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Topology {
    pub device: HardwareSpec,
    pub hosts: u32,
    /// One rank per device.
    pub ranks_per_host: u32,
    /// Link between devices of a host.
    pub within: Link,
    pub between: Link,
}

impl Topology {
    /// Parses `h100`, `h100x8` or `4xh100x8`. Links are those measured on similar machines.
    ///
    /// # Errors
    /// [`HardwareError`] if the device is unknown or a count is invalid.
    pub fn parse(text: &str) -> Result<Self, HardwareError> {
        if let Ok(device) = hardware(text) {
            return Ok(Self::uniform(device, 1, 1));
        }
        let lower = text.to_ascii_lowercase();
        let (hosts, rest) = match lower.split_once('x') {
            Some((hosts, rest)) if !hosts.is_empty() && is_number(hosts) => (hosts, rest),
            _ => ("1", &*lower),
        };
        let (device, ranks) = match rest.rsplit_once('x') {
            Some((device, ranks)) if is_number(ranks) => (device, ranks),
            _ => (rest, "1"),
        };
        let count = |digits: &str| {
            let value = digits.parse::<u32>().ok().filter(|count| (1..=65_536).contains(count));
            value.ok_or_else(|| HardwareError::Count { text: text.to_owned() })
        };
        Ok(Self::uniform(hardware(device)?, count(hosts)?, count(ranks)?))
    }

    fn uniform(device: &HardwareSpec, hosts: u32, ranks_per_host: u32) -> Self {
        let (within, between) = (Link::within(device), Link::network());
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
