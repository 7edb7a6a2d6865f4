//! Short names of kernels. Knows nothing but text.

/// The last part of a C++ name without template and call arguments; other names as they are.
///
/// `void at::native::(anonymous namespace)::cat<float>(float*)` is `cat`. Where that says nothing,
/// as in `cutlass::Kernel<cutlass_80_gemm>(Params)`, the first template argument is taken.
pub fn short_name(name: &str) -> &str {
    let name = plain_name(name);
    if name.starts_with("Mem") || !name.contains(['<', '(']) {
        return name;
    }
    let (short, arguments) = last_part(name);
    if matches!(short, "Kernel" | "Kernel2" | "kernel" | "device_kernel") {
        let first = arguments.split([',', '<', '>', '(', ' ']).find(|part| !part.is_empty());
        return first.map_or(short, |first| first.rsplit("::").next().unwrap_or(first));
    }
    if short.is_empty() { name } else { short }
}

/// What our own collectives say behind their names, for tools that go by names (decision 0006).
pub const IN_PLACE: &str = " (in place of ncclKernel)";

/// A name without what is meant for other tools.
pub fn plain_name(name: &str) -> &str {
    name.strip_suffix(IN_PLACE).unwrap_or(name)
}

/// The last part of a name, and the text behind the bracket that follows it.
fn last_part(name: &str) -> (&str, &str) {
    const UNNAMED: &[u8] = b"(anonymous namespace)::";
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
    // All cuts are beside ASCII characters.
    let short = name.get(from..to.max(from)).unwrap_or(name).trim();
    (short, name.get(to.max(from) + 1..).unwrap_or_default())
}
