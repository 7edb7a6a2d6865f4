//! Interns the texts of a trace, so that each text is stored once and compared by its id.

use std::collections::HashMap;

/// The id of a text in one [`Strings`] table. Ids of different tables are not comparable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StringId(pub u32);

/// A table that stores each text once. Id 0 is the empty text.
#[derive(Clone, Debug)]
pub struct Strings {
    texts: Vec<Box<str>>,
    index: HashMap<Box<str>, u32>,
}

impl Strings {
    /// Creates a table that contains only the empty text.
    pub fn new() -> Self {
        let mut strings = Self { texts: Vec::new(), index: HashMap::new() };
        strings.intern("");
        strings
    }

    /// Returns the text of an id.
    ///
    /// # Panics
    /// Panics if the table has no such id, because the id belongs to another, larger table.
    pub fn get(&self, id: StringId) -> &str {
        &self.texts[id.0 as usize]
    }

    /// Returns the id of a text if the table contains it.
    pub fn find(&self, text: &str) -> Option<StringId> {
        self.index.get(text).copied().map(StringId)
    }

    /// Returns the id of a text, and adds the text to the table if it is new.
    pub fn intern(&mut self, text: &str) -> StringId {
        if let Some(id) = self.find(text) {
            return id;
        }
        let id = self.texts.len() as u32;
        self.texts.push(text.into());
        self.index.insert(text.into(), id);
        StringId(id)
    }

    /// Returns the number of texts.
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Whether the table has no texts, which is never the case because every table has the empty
    /// text.
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// Iterates over all texts in order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.texts.iter().map(AsRef::as_ref)
    }
}

impl Default for Strings {
    fn default() -> Self {
        Self::new()
    }
}
