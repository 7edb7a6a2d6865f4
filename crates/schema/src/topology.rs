//! The hardware a step runs on: what one device can do ([`HardwareSpec`]), and how devices are
//! joined ([`Topology`]). Plain data with its sources. Knows nothing of kernels or of steps.

mod link;
mod rows;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::reference::distance;

pub use link::{Link, LinkError};
pub use rows::HARDWARE;

/// FLOP/s of one device by the form of the numbers; `None` where the device has no such unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Flops {
    /// Of `f32` outside tensor and matrix cores.
    pub f32: f64,
    /// Of `f32` rounded to ten bits in tensor cores.
    pub tf32: Option<f64>,
    /// Of 16-bit floats, in tensor or matrix cores where there are some.
    pub f16: Option<f64>,
}

/// What one device can do, as PyTorch sees a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HardwareSpec {
    /// What users type, such as `v100`.
    pub key: Cow<'static, str>,
    /// Its name as the driver says it.
    pub name: Cow<'static, str>,
    /// Peak FLOP/s.
    pub peak: Flops,
    /// FLOP/s of `f32` that a benchmark reached.
    pub sustained_f32: Option<f64>,
    /// Peak bytes per second of the device's memory.
    pub dram: f64,
    /// Bytes per second that a benchmark reached.
    pub dram_sustained: Option<f64>,
    /// Bytes of the last cache that all multiprocessors share.
    pub l2_bytes: u64,
    /// Bytes per second of that cache, as a benchmark reached them.
    pub l2: Option<f64>,
    /// Multiprocessors, compute units or cores.
    pub multiprocessors: u32,
    pub clock_mhz: u32,
    /// Power limit; 0 where it is not known.
    pub power_w: u32,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// The shortest kernel that was recorded.
    pub launch_floor_ns: Option<u32>,
    /// Where these numbers are from.
    pub source: Cow<'static, str>,
}

impl HardwareSpec {
    /// FLOPs per byte from which on arithmetic is the limit.
    #[must_use]
    pub fn ridge(&self) -> f64 {
        self.peak.f32 / self.dram
    }
}

/// Why a hardware or topology cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HardwareError {
    /// No row of this name.
    #[error("hardware {name:?}: expected a known device, got none of that name; like it: {}", near.join(", "))]
    Unknown { name: String, near: Vec<String> },
    /// A count of devices or hosts that is none.
    #[error(
        "hardware {text:?}: expected DEVICE, DEVICExN or HOSTSxDEVICExN with counts from 1 to 65536, such as h100x8"
    )]
    Count { text: String },
}

/// The device with a key or name, in any case.
///
/// # Errors
/// [`HardwareError::Unknown`] with the nearest names.
pub fn hardware(name: &str) -> Result<&'static HardwareSpec, HardwareError> {
    let wanted = plain(name);
    let found = HARDWARE.iter().find(|row| plain(&row.key) == wanted || plain(&row.name) == wanted);
    found.ok_or_else(|| HardwareError::Unknown { name: name.to_owned(), near: nearest(&wanted) })
}

/// Letters and digits alone, small.
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

/// Hosts with alike devices, and what joins them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Topology {
    pub device: HardwareSpec,
    pub hosts: u32,
    /// Ranks of each host, one for each device.
    pub ranks_per_host: u32,
    /// Between devices of a host.
    pub within: Link,
    pub between: Link,
}

impl Topology {
    /// From `h100`, `h100x8` or `4xh100x8`, with links measured on other machines of that kind.
    ///
    /// # Errors
    /// [`HardwareError`]
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

    /// Ranks of all hosts.
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
