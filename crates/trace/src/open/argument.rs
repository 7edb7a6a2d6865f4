//! Extracts the arguments from the JSON text of an event. Arguments that the caller does not want
//! are skipped without parsing their values.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer as _, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Deserializer, Map, Value};

/// Returns the arguments whose keys `wanted` accepts. The map is empty for an event without
/// arguments.
///
/// # Errors
/// Fails if the text is not a JSON object.
pub(super) fn arguments(
    text: &str,
    wanted: &dyn Fn(&str) -> bool,
) -> serde_json::Result<Map<String, Value>> {
    let mut arguments = None;
    for_each_entry(text, |key, value| {
        if key == "args" {
            arguments = Some(value.get());
        }
        Ok(())
    })?;
    let mut selected = Map::new();
    if let Some(arguments) = arguments.filter(|text| text.starts_with('{')) {
        for_each_entry(arguments, |key, value| {
            if wanted(key) {
                selected.insert(key.to_owned(), serde_json::from_str(value.get())?);
            }
            Ok(())
        })?;
    }
    Ok(selected)
}

/// Calls `see` with each key of a JSON object and the unparsed text of its value.
fn for_each_entry<'a>(
    text: &'a str,
    see: impl FnMut(&str, &'a RawValue) -> serde_json::Result<()>,
) -> serde_json::Result<()> {
    let mut from = Deserializer::from_str(text);
    from.deserialize_map(Entries(see))?;
    from.end()
}

/// Visitor that passes each key with its unparsed value to a function, so that no map is built.
struct Entries<F>(F);

/// The key of an argument, which borrows from the file's text unless it contains escapes.
#[derive(Deserialize)]
struct ArgumentKey<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de, F: FnMut(&str, &'de RawValue) -> serde_json::Result<()>> Visitor<'de> for Entries<F> {
    type Value = ();

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut entries: A) -> Result<(), A::Error> {
        while let Some((ArgumentKey(key), value)) =
            entries.next_entry::<ArgumentKey<'de>, &'de RawValue>()?
        {
            (self.0)(&key, value).map_err(serde::de::Error::custom)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::arguments;

    #[test]
    fn only_wanted_arguments_are_returned() {
        let text = r#"{"ph":"X","args":{"a\u0062":[1,{"c":null}],"d":"x"},"ts":1.5}"#;
        assert_eq!(
            serde_json::to_string(&arguments(text, &|_| true).unwrap()).unwrap(),
            r#"{"ab":[1,{"c":null}],"d":"x"}"#
        );
        assert_eq!(
            serde_json::to_string(&arguments(text, &|key| key == "d").unwrap()).unwrap(),
            r#"{"d":"x"}"#
        );
    }

    #[test]
    fn event_without_arguments_gives_an_empty_map() {
        for text in [r#"{"ph":"X"}"#, r#"{"args":null}"#, r#"{"args":"text"}"#, "{}"] {
            assert!(arguments(text, &|_| true).unwrap().is_empty(), "{text}");
        }
        for text in ["", "[]", "{", r#"{"args":{"a":NaN}}"#, "{} {}"] {
            assert!(arguments(text, &|_| true).is_err(), "{text}");
        }
    }
}
