//! Converts numbers, texts and times to Arrow columns.

use std::sync::Arc;

use arrow_array::builder::{MapBuilder, PrimitiveBuilder, StringBuilder};
use arrow_array::types::ArrowPrimitiveType;
use arrow_array::{ArrayRef, BinaryArray, StringArray, TimestampMillisecondArray, UInt32Array};
use arrow_schema::ArrowError;

/// The name and values of a column, and whether values can be missing.
pub type Column = (&'static str, ArrayRef, bool);

/// Adds the start and the length in seconds of intervals.
pub fn add_interval(
    columns: &mut Vec<Column>,
    intervals: impl Iterator<Item = (u64, u32)> + Clone,
) {
    columns.extend([
        ("start", timestamps(intervals.clone().map(|(start_s, _)| start_s)), false),
        ("length_s", small(intervals.map(|(_, length_s)| Some(length_s))), false),
    ]);
}

/// Converts seconds since 1970 to a column of timestamps in UTC.
pub fn timestamps(seconds: impl Iterator<Item = u64>) -> ArrayRef {
    let milliseconds = seconds.map(|second| i64::try_from(second * 1000).unwrap_or(i64::MAX));
    let array = TimestampMillisecondArray::from_iter_values(milliseconds);
    Arc::new(array.with_timezone("UTC"))
}

/// Converts texts to a column.
pub fn text<'a>(texts: impl Iterator<Item = &'a str>) -> ArrayRef {
    Arc::new(texts.map(Some).collect::<StringArray>())
}

/// Converts bytes to a column.
pub fn binary<'a>(values: impl Iterator<Item = &'a [u8]>) -> ArrayRef {
    Arc::new(values.map(Some).collect::<BinaryArray>())
}

/// Converts small numbers, of which some may be unknown, to a column.
pub fn small(values: impl Iterator<Item = Option<u32>>) -> ArrayRef {
    Arc::new(values.collect::<UInt32Array>())
}

/// Converts maps to a column.
///
/// # Errors
/// If the keys and values do not form a map, which would be a bug.
pub fn map<'a, T, I>(maps: impl Iterator<Item = I>) -> Result<ArrayRef, ArrowError>
where
    T: ArrowPrimitiveType,
    T::Native: 'a,
    I: Iterator<Item = (&'a String, &'a T::Native)>,
{
    let mut builder = MapBuilder::new(None, StringBuilder::new(), PrimitiveBuilder::<T>::new());
    for map in maps {
        for (name, value) in map {
            builder.keys().append_value(name);
            builder.values().append_value(*value);
        }
        builder.append(true)?;
    }
    Ok(Arc::new(builder.finish()))
}
