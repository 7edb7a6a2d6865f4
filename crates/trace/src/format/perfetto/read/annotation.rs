//! Decodes debug annotations, which contain the arguments of an event and their keys.

use std::collections::HashMap;

use serde_json::{Map, Number, Value as Json};

use super::wire::{self, Broken, Field};
use crate::format::perfetto::field::{annotation, event, interned};

/// The value of an annotation, in the types that rowmill writes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AnnotationValue<'a> {
    Nothing,
    Unsigned(u64),
    Signed(i64),
    Double(f64),
    Bool(bool),
    Text(&'a str),
    Json(&'a str),
    Three([u32; 3]),
}

/// Decodes the key id and the value of an annotation.
pub fn pair<'a>(content: &'a [u8]) -> Result<(u64, AnnotationValue<'a>), Broken> {
    let (mut key, mut value) = (0, AnnotationValue::Nothing);
    let (mut items, mut count) = ([0; 3], 0);
    wire::each(content, |field, found| {
        match (field, found) {
            (annotation::NAME_IID, Field::Number(iid)) => key = iid,
            (annotation::ITEMS, Field::Bytes(item)) => {
                if let (Some(place), AnnotationValue::Unsigned(number)) =
                    (items.get_mut(count), one(item)?)
                {
                    *place = u32::try_from(number).unwrap_or(u32::MAX);
                }
                count += 1;
                value = AnnotationValue::Three(items);
            }
            (field, found) => value = scalar(field, found)?.unwrap_or(value),
        }
        Ok(())
    })?;
    Ok((key, value))
}

fn one(content: &[u8]) -> Result<AnnotationValue<'_>, Broken> {
    let mut value = AnnotationValue::Nothing;
    wire::each(content, |field, found| {
        value = scalar(field, found)?.unwrap_or(value);
        Ok(())
    })?;
    Ok(value)
}

fn scalar<'a>(field: u32, found: Field<'a>) -> Result<Option<AnnotationValue<'a>>, Broken> {
    Ok(Some(match (field, found) {
        (annotation::BOOL, Field::Number(value)) => AnnotationValue::Bool(value != 0),
        (annotation::UNSIGNED, Field::Number(value)) => AnnotationValue::Unsigned(value),
        (annotation::SIGNED, Field::Number(value)) => AnnotationValue::Signed(value as i64),
        (annotation::DOUBLE, Field::Number(value)) => {
            AnnotationValue::Double(f64::from_bits(value))
        }
        (annotation::STRING, Field::Bytes(value)) => AnnotationValue::Text(text(value)?),
        (annotation::JSON, Field::Bytes(value)) => AnnotationValue::Json(text(value)?),
        _ => return Ok(None),
    }))
}

/// Decodes a text. Rowmill writes only UTF-8, so other bytes are an error.
pub fn text(bytes: &[u8]) -> Result<&str, Broken> {
    std::str::from_utf8(bytes).map_err(|_| Broken::new("a text that is not UTF-8"))
}

/// Calls `seen` with the field number, id and text of each entry of interned data.
pub fn each_interned<'a>(
    content: &'a [u8],
    mut seen: impl FnMut(u32, u64, &'a str),
) -> Result<(), Broken> {
    wire::each(content, |kind, entry| {
        let Field::Bytes(entry) = entry else { return Ok(()) };
        let (mut iid, mut name) = (0, "");
        wire::each(entry, |field, value| {
            match (field, value) {
                (interned::IID, Field::Number(number)) => iid = number,
                (interned::NAME, Field::Bytes(bytes)) => name = text(bytes)?,
                _ => {}
            }
            Ok(())
        })?;
        seen(kind, iid, name);
        Ok(())
    })
}

/// The interned keys of arguments, by packet sequence and id.
#[derive(Debug, Default)]
pub struct Keys<'a>(HashMap<(u64, u64), &'a str>);

impl<'a> Keys<'a> {
    /// Stores the keys that a packet interns.
    pub fn learn(&mut self, sequence: u64, content: &'a [u8]) -> Result<(), Broken> {
        each_interned(content, |kind, iid, name| {
            if kind == interned::ANNOTATION_NAME {
                self.0.insert((sequence, iid), name);
            }
        })
    }

    /// Returns the arguments of an event as JSON.
    pub fn arguments(&self, sequence: u64, content: &[u8]) -> Result<Map<String, Json>, Broken> {
        let mut arguments = Map::new();
        wire::each(content, |field, value| {
            let (event::ANNOTATION, Field::Bytes(content)) = (field, value) else { return Ok(()) };
            let (key, value) = pair(content)?;
            if let Some(key) = self.0.get(&(sequence, key)) {
                arguments.insert((*key).to_owned(), json(value));
            }
            Ok(())
        })?;
        Ok(arguments)
    }
}

fn json(value: AnnotationValue<'_>) -> Json {
    match value {
        AnnotationValue::Nothing => Json::Null,
        AnnotationValue::Unsigned(value) => value.into(),
        AnnotationValue::Signed(value) => value.into(),
        AnnotationValue::Double(value) => Number::from_f64(value).map_or(Json::Null, Json::Number),
        AnnotationValue::Bool(value) => value.into(),
        AnnotationValue::Text(value) => value.into(),
        AnnotationValue::Json(value) => {
            serde_json::from_str(value).unwrap_or_else(|_| value.into())
        }
        AnnotationValue::Three(values) => values.to_vec().into(),
    }
}
