//! Encodes samples for OTLP over HTTP: sums of one minute each, as protobuf.

use prost::{Enumeration, Message, Oneof};

use super::sample::{EncodedSamples, GroupMinute, metric_names};
use crate::aggregate::MINUTE_S;

const HEADERS: [(&str, &str); 1] = [("Content-Type", "application/x-protobuf")];
const SECOND_NS: u64 = 1_000_000_000;

/// The protobuf message `ExportMetricsServiceRequest` of the protocol.
#[derive(Clone, PartialEq, Message)]
struct MetricsRequest {
    #[prost(message, repeated, tag = "1")]
    resources: Vec<ResourceMetrics>,
}

/// The protobuf message `ResourceMetrics` of the protocol.
#[derive(Clone, PartialEq, Message)]
struct ResourceMetrics {
    #[prost(message, optional, tag = "1")]
    resource: Option<MetricsResource>,
    #[prost(message, repeated, tag = "2")]
    scopes: Vec<ScopeMetrics>,
}

/// The protobuf message `Resource` of the protocol.
#[derive(Clone, PartialEq, Message)]
struct MetricsResource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyText>,
}

/// The protobuf message `ScopeMetrics` of the protocol.
#[derive(Clone, PartialEq, Message)]
struct ScopeMetrics {
    #[prost(message, repeated, tag = "2")]
    metrics: Vec<SumMetric>,
}

/// The message `Metric` with a sum.
#[derive(Clone, PartialEq, Message)]
struct SumMetric {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "3")]
    unit: String,
    #[prost(message, optional, tag = "7")]
    sum: Option<SumPoints>,
}

/// The protobuf message `Sum` of the protocol.
#[derive(Clone, PartialEq, Message)]
struct SumPoints {
    #[prost(message, repeated, tag = "1")]
    points: Vec<NumberPoint>,
    #[prost(enumeration = "Temporality", tag = "2")]
    temporality: i32,
    #[prost(bool, tag = "3")]
    is_monotonic: bool,
}

/// Whether a point counts from the point before it or from the start of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
enum Temporality {
    Unspecified = 0,
    Delta = 1,
}

/// The protobuf message `NumberDataPoint` of the protocol.
#[derive(Clone, PartialEq, Message)]
struct NumberPoint {
    #[prost(fixed64, tag = "2")]
    start_unix_ns: u64,
    #[prost(fixed64, tag = "3")]
    unix_ns: u64,
    #[prost(oneof = "PointValue", tags = "4")]
    value: Option<PointValue>,
    #[prost(message, repeated, tag = "7")]
    attributes: Vec<KeyText>,
}

/// The value of a point. It has a presence, so that 0 is sent too.
#[derive(Clone, PartialEq, Oneof)]
enum PointValue {
    #[prost(double, tag = "4")]
    Double(f64),
}

/// The message `KeyValue` with a text.
#[derive(Clone, PartialEq, Message)]
struct KeyText {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyText>,
}

/// The message `AnyValue` with a text.
#[derive(Clone, PartialEq, Message)]
struct AnyText {
    #[prost(string, tag = "1")]
    text: String,
}

/// The protobuf message `ExportMetricsServiceResponse` of the protocol.
#[derive(Clone, PartialEq, Message)]
struct MetricsAnswer {
    #[prost(message, optional, tag = "1")]
    partial: Option<PartialSuccess>,
}

/// The protobuf message `ExportMetricsPartialSuccess` of the protocol.
#[derive(Clone, PartialEq, Message)]
struct PartialSuccess {
    #[prost(int64, tag = "1")]
    rejected: i64,
}

/// Encodes one point for each sum of each group, which covers its minute.
pub fn encode(groups: &[GroupMinute]) -> EncodedSamples {
    let attribute = |key: &str, text: &str| KeyText {
        key: key.to_owned(),
        value: Some(AnyText { text: text.to_owned() }),
    };
    let metrics = metric_names().enumerate().map(|(at, name)| {
        let points = groups.iter().map(|group| NumberPoint {
            start_unix_ns: group.start_unix_s * SECOND_NS,
            unix_ns: (group.start_unix_s + MINUTE_S) * SECOND_NS,
            value: Some(PointValue::Double(group.sums.values()[at])),
            attributes: group.labels.iter().map(|(key, text)| attribute(key, text)).collect(),
        });
        let sum = SumPoints {
            points: points.collect(),
            temporality: Temporality::Delta.into(),
            is_monotonic: true,
        };
        SumMetric { name, unit: "s".to_owned(), sum: Some(sum) }
    });
    let resource = MetricsResource { attributes: vec![attribute("service.name", "rowmill-hub")] };
    let scopes = vec![ScopeMetrics { metrics: metrics.collect() }];
    let message =
        MetricsRequest { resources: vec![ResourceMetrics { resource: Some(resource), scopes }] };
    EncodedSamples { body: message.encode_to_vec(), headers: &HEADERS }
}

/// Returns the number of points that an answer reports as refused.
pub fn count_refused(answer: &[u8]) -> u64 {
    let answer = MetricsAnswer::decode(answer).unwrap_or_default();
    answer.partial.and_then(|partial| u64::try_from(partial.rejected).ok()).unwrap_or(0)
}
