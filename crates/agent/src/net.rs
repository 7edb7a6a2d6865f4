//! Networks from which callers are allowed to connect. This module does not use the configuration.

use std::net::IpAddr;

/// A set of addresses with a common prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Net {
    address: IpAddr,
    bits: u32,
}

impl Net {
    /// Parses an address or a network, such as `10.0.0.1`, `10.0.0.0/8` or `fd00::/8`.
    pub fn parse(text: &str) -> Option<Self> {
        let (address, bits) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
        let address: IpAddr = address.parse().ok()?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Some(width), |bits| bits.parse().ok())?;
        (bits <= width).then_some(Self { address, bits })
    }

    /// Whether the network contains an IP address.
    pub fn has(self, other: IpAddr) -> bool {
        match (self.address, other.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let mask = u32::MAX.checked_shl(32 - self.bits).unwrap_or(0);
                u32::from(own) & mask == u32::from(other) & mask
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let mask = u128::MAX.checked_shl(128 - self.bits).unwrap_or(0);
                u128::from(own) & mask == u128::from(other) & mask
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Net;

    #[test]
    fn prefix_lengths_must_fit_the_address_family() {
        for (net, address, is_in) in [
            ("0.0.0.0/0", "9.9.9.9", true),
            ("10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1", "10.0.0.2", false),
            ("fd00::/8", "fd12::1", true),
            ("fd00::/8", "10.0.0.1", false),
            ("::/0", "1::2", true),
        ] {
            assert_eq!(
                Net::parse(net).unwrap().has(address.parse().unwrap()),
                is_in,
                "{net} {address}"
            );
        }
        for wrong in ["", "10.0.0.0/33", "host", "::/129", "10.0.0.0/x"] {
            assert_eq!(Net::parse(wrong), None, "{wrong}");
        }
    }
}
