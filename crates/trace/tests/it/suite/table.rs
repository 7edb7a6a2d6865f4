//! Reads comma-separated values with quoted fields, as Python's `csv` writes them.

/// Splits a text into rows, and each row into unquoted fields.
pub fn read(text: &str) -> Vec<Vec<String>> {
    let (mut rows, mut row, mut field) = (Vec::new(), Vec::new(), String::new());
    let (mut quoted, mut letters) = (false, text.chars().peekable());
    while let Some(letter) = letters.next() {
        match letter {
            '"' if quoted && letters.next_if_eq(&'"').is_some() => field.push('"'),
            '"' => quoted = !quoted,
            ',' if !quoted => row.push(std::mem::take(&mut field)),
            '\n' if !quoted => {
                row.push(std::mem::take(&mut field));
                rows.push(std::mem::take(&mut row));
            }
            other => field.push(other),
        }
    }
    rows
}

#[test]
fn quotes_protect_commas_and_quotes() {
    let text = "a,\"b,c\",\n\"say \"\"x\"\", y\",d,\"\"\n";
    assert_eq!(read(text), [["a", "b,c", ""], ["say \"x\", y", "d", ""]]);
}
