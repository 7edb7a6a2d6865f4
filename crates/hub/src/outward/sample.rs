//! The samples that are sent, before they are encoded for a protocol.

use crate::sums::FleetSums;

/// The sums of one group in one minute.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupMinute {
    /// Start of the minute in seconds since 1970.
    pub start_unix_s: u64,
    /// Names and values, sorted by name, without empty values.
    pub labels: Vec<(String, String)>,
    pub sums: FleetSums,
}

/// A request body with its headers.
pub struct EncodedSamples {
    pub body: Vec<u8>,
    pub headers: &'static [(&'static str, &'static str)],
}

/// Returns the name of the metric of each sum, in the order of [`FleetSums::values`].
pub fn metric_names() -> impl Iterator<Item = String> {
    FleetSums::NAMES.iter().map(|name| {
        let name = name.strip_suffix("_s").unwrap_or(name);
        format!("rowmill_fleet_{name}_seconds")
    })
}
