//! Predicts exchanges between the devices of one host from measured NCCL collectives of A100 and
//! H100.

use std::sync::LazyLock;

use schema::HardwareSpec;
use schema::topology::HostFabric;

use crate::Estimate;
use crate::estimate::Factors;

/// Lowest and highest factor on a measured device. The tables were measured on one host of each.
const MEASURED: Factors = (0.8, 1.3);
/// Lowest and highest factor for links that were not measured.
const TRANSFERRED: Factors = (0.5, 2.0);

/// The kind of an exchange between all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankExchange {
    /// Every rank sends each other rank an equal part of its bytes.
    AllToAll,
    /// The values of all ranks are summed, and every rank receives the sums.
    AllReduce,
    /// Every rank receives the values of all ranks. Bytes are those that it has afterwards.
    AllGather,
    /// The values of all ranks are summed, and every rank receives a part of the sums. Bytes are
    /// those that it has before.
    ReduceScatter,
}

impl RankExchange {
    /// All kinds of exchange, in the order of declaration.
    pub const ALL: [Self; 4] =
        [Self::AllToAll, Self::AllReduce, Self::AllGather, Self::ReduceScatter];

    /// Returns the name that users type to select the exchange.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::AllToAll => "all_to_all",
            Self::AllReduce => "all_reduce",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
        }
    }

    /// Finds the exchange with the given name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|collective| collective.name() == name)
    }

    /// Predicts the exchange between `ranks` devices of one host, each with `bytes` bytes.
    ///
    /// Bytes and ranks between measured ones are interpolated on logarithmic scales, and beyond
    /// them the bandwidth stays that of the last measured size. Devices without measurements get
    /// the times of the A100, of which all but the shortest time is divided by the ratio of the
    /// links' bandwidths.
    #[must_use]
    pub fn price_within_host(
        self,
        ranks: usize,
        bytes: f64,
        device: &HardwareSpec,
        fabric: &HostFabric,
    ) -> Estimate {
        if ranks < 2 || bytes <= 0.0 {
            return Estimate::default();
        }
        let own = TABLES.iter().find(|table| table.keys.contains(&&*device.key));
        let table = own.unwrap_or(&TABLES[0]);
        let rate = if self == Self::AllToAll { fabric.all_to_all } else { fabric.ring };
        let shortest_ns = table.ns(self, ranks, 0.0);
        let beyond_ns = table.ns(self, ranks, bytes) - shortest_ns;
        let is_measured = own.is_some() && rate == table.gb_per_s;
        let factors = if is_measured { MEASURED } else { TRANSFERRED };
        Estimate::within(shortest_ns + beyond_ns * table.gb_per_s / rate, factors)
    }

    /// Returns whether exchanges were measured between devices with these links.
    #[must_use]
    pub fn is_measured(device: &HardwareSpec, fabric: &HostFabric) -> bool {
        TABLES.iter().any(|table| {
            let rates = [fabric.ring, fabric.all_to_all];
            table.keys.contains(&&*device.key) && rates == [table.gb_per_s; 2]
        })
    }

    /// Returns the share of a rank's bytes that it sends, for the bandwidth of a ring.
    fn sent_share(self, ranks: f64) -> f64 {
        let turns = if self == Self::AllReduce { 2.0 } else { 1.0 };
        turns * (ranks - 1.0) / ranks
    }
}

/// Measured exchanges within one host.
struct ExchangeTable {
    /// Devices with the measured links.
    keys: [&'static str; 2],
    /// Bandwidth of the measured links by data sheet.
    gb_per_s: f64,
    lines: Vec<ExchangeLine>,
}

/// The measured times of one exchange between a number of ranks.
struct ExchangeLine {
    exchange: RankExchange,
    ranks: usize,
    /// Bytes and nanoseconds, both ascending.
    points: Vec<(f64, f64)>,
}

/// The tables of the measured devices. They are made by `bench/compare/measured_tables.py`.
static TABLES: LazyLock<[ExchangeTable; 2]> = LazyLock::new(|| {
    let a100 = include_str!("../models/nccl-a100-sxm.csv");
    let h100 = include_str!("../models/nccl-h100-sxm.csv");
    [
        ExchangeTable::parse(["a100-sxm4-80gb", "a100-sxm4"], 300.0, a100),
        ExchangeTable::parse(["h100", "h200"], 450.0, h100),
    ]
});

impl ExchangeTable {
    /// Parses a shipped table with the columns `exchange,ranks,bytes,ns`. A time below that of
    /// fewer bytes is raised to it.
    fn parse(keys: [&'static str; 2], gb_per_s: f64, text: &str) -> Self {
        let mut lines: Vec<ExchangeLine> = Vec::new();
        for row in text.lines().skip(1) {
            let mut fields = row.split(',');
            let mut next = || fields.next().unwrap_or_default();
            let (exchange, ranks) = (RankExchange::named(next()), next().parse());
            let (bytes, ns) = (next().parse::<f64>(), next().parse::<f64>());
            let (Some(exchange), Ok(ranks), Ok(bytes), Ok(ns)) = (exchange, ranks, bytes, ns)
            else {
                continue;
            };
            if lines.last().is_none_or(|line| (line.exchange, line.ranks) != (exchange, ranks)) {
                lines.push(ExchangeLine { exchange, ranks, points: Vec::new() });
            }
            if let Some(line) = lines.last_mut() {
                let least_ns = line.points.last().map_or(0.0, |point| point.1);
                line.points.push((bytes, ns.max(least_ns)));
            }
        }
        Self { keys, gb_per_s, lines }
    }

    fn ns(&self, exchange: RankExchange, ranks: usize, bytes: f64) -> f64 {
        let mut lines = self.lines.iter().filter(|line| line.exchange == exchange);
        let Some(mut low) = lines.next() else { return 0.0 };
        let mut high = low;
        for line in lines {
            (low, high) = if high.ranks < ranks { (high, line) } else { (low, high) };
        }
        let (low_ns, high_ns) = (time_of(&low.points, bytes), time_of(&high.points, bytes));
        let [wanted, a, b] = [ranks, low.ranks, high.ranks].map(|ranks| ranks as f64);
        if wanted >= b {
            // Each rank sends a larger share of its bytes, at the same bandwidth.
            let shortest_ns = high.points.first().map_or(0.0, |point| point.1);
            let growth = exchange.sent_share(wanted) / exchange.sent_share(b);
            return shortest_ns + (high_ns - shortest_ns) * growth;
        }
        if a == b {
            return low_ns;
        }
        let share = (wanted / a).ln() / (b / a).ln();
        low_ns.powf(1.0 - share) * high_ns.powf(share)
    }
}

/// Interpolates a time between measured sizes on logarithmic scales.
fn time_of(points: &[(f64, f64)], bytes: f64) -> f64 {
    let after = points.partition_point(|point| point.0 < bytes);
    match (after.checked_sub(1).map(|at| points[at]), points.get(after)) {
        (Some(low), Some(high)) => {
            let share = (bytes / low.0).ln() / (high.0 / low.0).ln();
            low.1.powf(1.0 - share) * high.1.powf(share)
        }
        (None, Some(first)) => first.1,
        (Some(last), None) => last.1 * bytes / last.0,
        (None, None) => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use schema::Topology;

    use super::{RankExchange, TABLES};

    fn ns(hardware: &str, exchange: RankExchange, ranks: usize, bytes: f64) -> f64 {
        let topology = Topology::parse(hardware).unwrap();
        exchange.price_within_host(ranks, bytes, &topology.device, &topology.within).mean_ns
    }

    #[test]
    fn measured_exchanges_keep_their_times() {
        assert!(TABLES.iter().all(|table| table.lines.len() == 12));
        let row = |text: &str| {
            let line = text.lines().find(|line| line.starts_with("all_to_all,8,134217728,"));
            line.unwrap().rsplit(',').next().unwrap().parse::<f64>().unwrap()
        };
        for (device, text) in [
            ("a100-sxm4-80gb", include_str!("../models/nccl-a100-sxm.csv")),
            ("h100", include_str!("../models/nccl-h100-sxm.csv")),
        ] {
            let ns = ns(device, RankExchange::AllToAll, 8, f64::from(1 << 27));
            assert!((ns - row(text)).abs() < 1.0, "{device}: {ns}");
        }
    }

    #[test]
    fn exchanges_never_take_less_time_with_more_bytes() {
        for device in ["dgx-1", "dgx-2", "a100-sxm4-80gb", "h100", "t4"] {
            for exchange in RankExchange::ALL {
                for ranks in [2, 3, 5, 8, 16] {
                    let sized = |step: i32| ns(device, exchange, ranks, 1.4f64.powi(step));
                    let times: Vec<f64> = (0..70).map(sized).collect();
                    let falls = times.windows(2).any(|pair| pair[1] < pair[0] * (1.0 - 1e-9));
                    assert!(!falls, "{device} {exchange:?} {ranks}: {times:?}");
                    let efficiency = [68, 69].map(|at| times[at] / 1.4f64.powi(at as i32));
                    assert!((efficiency[1] / efficiency[0] - 1.0).abs() < 1e-3);
                }
            }
        }
    }

    #[test]
    fn links_that_were_not_measured_scale_with_their_bandwidth() {
        let bytes = 1e9;
        let [cube, switch, a100] =
            ["dgx-1", "dgx-2", "dgx-a100"].map(|host| ns(host, RankExchange::AllToAll, 8, bytes));
        assert!((switch / a100 - 2.0).abs() < 0.02, "{switch} {a100}");
        assert!((cube / switch - 150.0 / 65.6).abs() < 0.05, "{cube} {switch}");
        // The public 8-rank DLRM trace on V100: 394,241 and 226,960 gradients were summed in 86 and
        // 69 µs, and 24,576 bytes of pooled vectors moved in 10 µs. No constant was fitted to them.
        for (exchange, bytes, us) in [
            (RankExchange::AllReduce, 1_576_964.0, 86.0),
            (RankExchange::AllReduce, 907_840.0, 69.0),
            (RankExchange::AllToAll, 24_576.0, 10.0),
        ] {
            let ratio = ns("v100-sxm2", exchange, 8, bytes) / (1e3 * us);
            assert!((0.5..2.0).contains(&ratio), "{exchange:?} {bytes}: {ratio}");
        }
    }
}
