//! Compares names of hosts and GPU models with the patterns of the configuration.

/// Whether a name equals a pattern, in which a `*` at the end stands for any letters.
pub fn matches_pattern(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == pattern,
    }
}
