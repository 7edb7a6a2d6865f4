//! Reads the top-level keys of a JSON object of which only the beginning is available.

/// Calls `each` with the keys of the object at the start of `text`, until `each` returns `false`.
pub fn each_key(text: &[u8], mut each: impl FnMut(&[u8]) -> bool) {
    let (mut depth, mut at) = (0_usize, 0);
    while let Some(byte) = text.get(at) {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth <= 1 => return,
            b'}' | b']' => depth -= 1,
            b'"' => {
                let Some(end) = string_end(text, at + 1) else { return };
                let is_key = text[end + 1..].trim_ascii_start().first() == Some(&b':');
                if depth == 1 && is_key && !each(&text[at + 1..end]) {
                    return;
                }
                at = end;
            }
            _ => {}
        }
        at += 1;
    }
}

/// Finds the closing quote of a string.
fn string_end(text: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match text.get(at)? {
            b'"' => return Some(at),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}
