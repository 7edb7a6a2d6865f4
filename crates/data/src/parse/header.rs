//! The names of columns by the header line of a text file. Pure; which line is a header is
//! `profile`'s.

use std::collections::BTreeSet;

/// The name of each column, all different.
///
/// A column without a name, as pandas writes its index, is called by its position: `c1` for the
/// first. Columns that share a name are numbered, `price.1` and `price.2`: a configuration that
/// names `price` is refused, for nobody knows which one it means.
pub(crate) fn names(fields: &[Vec<u8>]) -> Vec<String> {
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

/// A name as text; what is not UTF-8 is taken as Latin-1.
fn text(field: &[u8]) -> String {
    match std::str::from_utf8(field) {
        Ok(text) => text.to_owned(),
        Err(_) => field.iter().map(|&byte| char::from(byte)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::names;

    #[test]
    fn columns_without_a_name_or_with_the_same_name_can_be_told_apart() {
        let check = |fields: &[&str], expected: &[&str]| {
            let fields: Vec<Vec<u8>> =
                fields.iter().map(|field| field.as_bytes().to_vec()).collect();
            assert_eq!(names(&fields), expected);
        };
        check(&["", "label", ""], &["c1", "label", "c3"]);
        check(&["price", "price", "a"], &["price.1", "price.2", "a"]);
        check(&["", "c1", "a.1", "a", "a"], &["c2", "c1", "a.1", "a.2", "a.3"]);
    }
}
