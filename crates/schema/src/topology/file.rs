//! Topologies that users write: a TOML file with hosts, their links, and their network cards.

use std::ops::RangeInclusive;

use serde::Deserialize;

use super::{HardwareError, HostFabric, Link, Topology};

/// The content of a topology file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TopologyFile {
    /// A device or a ready-made host, with counts as on the command line.
    hardware: String,
    #[serde(default)]
    within: Option<HostFabric>,
    #[serde(default)]
    between: Option<Network>,
}

/// The network between hosts, by the cards of a host or by measured points.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Network {
    nics_per_host: Option<u32>,
    gbit_per_s: Option<f64>,
    latency_us: Option<f64>,
    /// Bytes that a rank sends, and microseconds.
    #[serde(default)]
    points: Vec<(f64, f64)>,
}

/// Rates in GB/s or Gbit/s and times in µs that a link can have. Others would make it free.
const LIKELY: RangeInclusive<f64> = 0.001..=1e6;

fn likely() -> String {
    format!("from {} to {}", LIKELY.start(), LIKELY.end())
}

impl Topology {
    /// Reads a topology from the text of a TOML file. `hardware` names devices and counts. The
    /// tables `within` and `between` replace the links of data sheets.
    ///
    /// # Errors
    /// Returns [`HardwareError::File`] for a malformed file, and the errors of
    /// [`Topology::parse`].
    pub fn from_toml(text: &str) -> Result<Self, HardwareError> {
        let wrong = |expected: &str, got: String| HardwareError::File {
            expected: expected.to_owned(),
            got,
        };
        let file: TopologyFile = toml::from_str(text).map_err(|error| {
            wrong("hardware, [within] and [between]", error.message().to_owned())
        })?;
        let mut topology = Self::parse(&file.hardware)?;
        if let Some(within) = file.within {
            let rates = [within.ring, within.all_to_all];
            if !rates.iter().all(|rate| LIKELY.contains(rate)) {
                let expected = format!("GB/s {} in [within]", likely());
                return Err(wrong(&expected, format!("{rates:?}")));
            }
            topology.within = within;
        }
        if let Some(network) = file.between {
            if topology.hosts < 2 {
                let expected = "several hosts with [between], such as hardware = \"2xdgx-a100\"";
                return Err(wrong(expected, format!("one host, {:?}", file.hardware)));
            }
            topology.between = match (network.nics_per_host, network.gbit_per_s) {
                (None, None) if !network.points.is_empty() && network.latency_us.is_none() => {
                    let us: Vec<f64> = network.points.iter().map(|point| point.1).collect();
                    if !us.is_sorted() || us.iter().any(|us| *us < *LIKELY.start()) {
                        let expected = "points of 0.001 µs or more that do not fall in [between]";
                        return Err(wrong(expected, format!("{us:?} µs")));
                    }
                    let points: Vec<(f64, f64)> =
                        network.points.iter().map(|(bytes, us)| (*bytes, 1e3 * us)).collect();
                    Link::new(&points, "measured, from a topology file")
                        .map_err(|error| wrong("points in [between]", error.to_string()))?
                }
                (Some(nics), Some(gbit)) if network.points.is_empty() => {
                    let latency_us = network.latency_us.unwrap_or(Link::NETWORK_US);
                    let values = [f64::from(nics), gbit, latency_us];
                    if !values.iter().all(|value| LIKELY.contains(value)) {
                        let expected = format!("numbers {} in [between]", likely());
                        return Err(wrong(&expected, format!("{values:?}")));
                    }
                    Link::cards(nics, gbit, topology.ranks_per_host, latency_us)
                }
                _ => {
                    let expected = "nics_per_host and gbit_per_s, or points, in [between]";
                    return Err(wrong(expected, "another combination".to_owned()));
                }
            };
        }
        Ok(topology)
    }
}
