//! Short names of kernels. Knows nothing but text.

/// The last part of a C++ name without template and call arguments; other names as they are.
///
/// `void at::native::(anonymous namespace)::cat<float>(float*)` is `cat`.
pub fn short_name(name: &str) -> &str {
    const UNNAMED: &[u8] = b"(anonymous namespace)::";
    if name.starts_with("Mem") || !name.contains(['<', '(']) {
        return name;
    }
    let bytes = name.as_bytes();
    let (mut from, mut to, mut nested, mut at) = (0, bytes.len(), 0usize, 0);
    while at < bytes.len() {
        match bytes[at] {
            b'(' if nested == 0 && bytes[at..].starts_with(UNNAMED) => {
                from = at + UNNAMED.len();
                at = from - 1;
            }
            b'(' if nested == 0 => {
                to = to.min(at);
                break;
            }
            b'<' | b'{' | b'[' => {
                if nested == 0 {
                    to = to.min(at);
                }
                nested += 1;
            }
            b'>' | b'}' | b']' => nested = nested.saturating_sub(1),
            // What was before belongs to a namespace or a result type.
            b':' | b' ' if nested == 0 && at + 1 < bytes.len() => {
                (from, to) = (at + 1, bytes.len());
            }
            _ => {}
        }
        at += 1;
    }
    let short = name.get(from..to.max(from)).unwrap_or(name).trim();
    if short.is_empty() { name } else { short }
}
