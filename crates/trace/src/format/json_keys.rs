//! The keys at the top of a JSON text, of which only the beginning is known.

/// Calls `each` with the keys of the object that `text` begins with, until it says `false`.
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

/// Position of the quote that ends a text.
fn string_end(text: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match text.get(at)? {
            b'"' => return Some(at),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}
