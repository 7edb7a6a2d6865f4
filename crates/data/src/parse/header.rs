//! Derives column names from the header line of a text file. `profile` decides whether a line is a
//! header.

use std::collections::BTreeSet;

/// Returns a name for each column. All names are different.
///
/// A column without a name, as pandas writes its index, is named by its position: `c1` for the
/// first. Columns with the same name are numbered, `price.1` and `price.2`. A configuration that
/// names `price` is then refused, because the name is ambiguous.
pub(crate) fn column_names(fields: &[Vec<u8>]) -> Vec<String> {
    let texts: Vec<String> = fields.iter().map(|field| text(field)).collect();
    let mut used: BTreeSet<String> = texts.iter().cloned().collect();
    let mut named = |at: usize| {
        let text = &texts[at];
        let is_repeated = texts.iter().filter(|other| *other == text).count() > 1;
        let (stem, mut number) = match text.as_str() {
            "" => ("c".to_owned(), at + 1),
            _ if is_repeated => (format!("{text}."), 1),
            _ => return text.clone(),
        };
        while !used.insert(format!("{stem}{number}")) {
            number += 1;
        }
        format!("{stem}{number}")
    };
    (0..fields.len()).map(&mut named).collect()
}

/// Decodes a name; invalid UTF-8 is read as Latin-1.
fn text(field: &[u8]) -> String {
    match std::str::from_utf8(field) {
        Ok(text) => text.to_owned(),
        Err(_) => field.iter().map(|&byte| char::from(byte)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::column_names;

    #[test]
    fn columns_get_distinct_names() {
        let check = |fields: &[&str], expected: &[&str]| {
            let fields: Vec<Vec<u8>> =
                fields.iter().map(|field| field.as_bytes().to_vec()).collect();
            assert_eq!(column_names(&fields), expected);
        };
        check(&["", "label", ""], &["c1", "label", "c3"]);
        check(&["price", "price", "a"], &["price.1", "price.2", "a"]);
        check(&["", "c1", "a.1", "a", "a"], &["c2", "c1", "a.1", "a.2", "a.3"]);
    }
}
