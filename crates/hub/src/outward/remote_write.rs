//! Encodes samples for Prometheus remote-write 1.0: protobuf in a snappy block.

use prost::Message;

use super::sample::{EncodedSamples, GroupMinute, metric_names};
use crate::aggregate::MINUTE_S;

/// Headers that the protocol requires.
const HEADERS: [(&str, &str); 3] = [
    ("Content-Type", "application/x-protobuf"),
    ("Content-Encoding", "snappy"),
    ("X-Prometheus-Remote-Write-Version", "0.1.0"),
];

/// The protobuf message `prometheus.WriteRequest` of the protocol.
#[derive(Clone, PartialEq, Message)]
struct WriteRequest {
    #[prost(message, repeated, tag = "1")]
    series: Vec<TimeSeries>,
}

/// The protobuf message `prometheus.TimeSeries` of the protocol.
#[derive(Clone, PartialEq, Message)]
struct TimeSeries {
    /// Labels sorted by name.
    #[prost(message, repeated, tag = "1")]
    labels: Vec<SeriesLabel>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<SeriesSample>,
}

/// The protobuf message `prometheus.Label` of the protocol.
#[derive(Clone, PartialEq, Message)]
struct SeriesLabel {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

/// The protobuf message `prometheus.Sample` of the protocol.
#[derive(Clone, PartialEq, Message)]
struct SeriesSample {
    #[prost(double, tag = "1")]
    value: f64,
    #[prost(int64, tag = "2")]
    unix_ms: i64,
}

/// Encodes one series for each sum of each group. Samples have the time of the end of their minute.
pub fn encode(groups: &[GroupMinute]) -> EncodedSamples {
    let names: Vec<String> = metric_names().collect();
    let label = |name: &str, value: &str| SeriesLabel { name: name.into(), value: value.into() };
    let series = groups.iter().flat_map(|group| {
        let unix_ms = i64::try_from((group.start_unix_s + MINUTE_S) * 1000).unwrap_or(i64::MAX);
        names.iter().zip(group.sums.values()).map(move |(name, value)| {
            // The underscores sort before all lower-case letters.
            let mut labels = vec![label("__name__", name)];
            labels.extend(group.labels.iter().map(|(name, value)| label(name, value)));
            TimeSeries { labels, samples: vec![SeriesSample { value, unix_ms }] }
        })
    });
    let message = WriteRequest { series: series.collect() }.encode_to_vec();
    let mut body = vec![0; snap::raw::max_compress_len(message.len())];
    // Compression fails only if the space is too small or a message has more than 4 GiB.
    let length = snap::raw::Encoder::new().compress(&message, &mut body).unwrap_or(0);
    body.truncate(length);
    EncodedSamples { body, headers: &HEADERS }
}
