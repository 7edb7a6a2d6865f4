//! Each text once.

use std::collections::HashMap;

/// A text of [`Strings`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StringId(pub u32);

/// Interned texts; id 0 is the empty text.
#[derive(Clone, Debug)]
pub struct Strings {
    texts: Vec<Box<str>>,
    index: HashMap<Box<str>, u32>,
}

impl Strings {
    /// Only the empty text.
    pub fn new() -> Self {
        let mut strings = Self { texts: Vec::new(), index: HashMap::new() };
        strings.intern("");
        strings
    }

    /// The text of an id.
    ///
    /// # Panics
    /// If the id is of other strings, larger ones.
    pub fn get(&self, id: StringId) -> &str {
        &self.texts[id.0 as usize]
    }

    /// The id of a text, if it occurs.
    pub fn find(&self, text: &str) -> Option<StringId> {
        self.index.get(text).copied().map(StringId)
    }

    /// The id of a text, added if new.
    pub fn intern(&mut self, text: &str) -> StringId {
        if let Some(id) = self.find(text) {
            return id;
        }
        let id = self.texts.len() as u32;
        self.texts.push(text.into());
        self.index.insert(text.into(), id);
        StringId(id)
    }

    /// How many texts.
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Never: the empty text is always there.
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// All texts, in order of id.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.texts.iter().map(AsRef::as_ref)
    }
}

impl Default for Strings {
    fn default() -> Self {
        Self::new()
    }
}
