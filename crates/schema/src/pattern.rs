//! Patterns for names: `t{0..7}` expands to `t0, t1, … t7`, and `*` matches any text.

/// Expands the range in `text`. Returns `text` itself if it has no range.
#[must_use]
pub fn expand(text: &str) -> Vec<String> {
    let Some((first, last, head, tail)) = range(text) else { return vec![text.to_owned()] };
    (first..=last).map(|i| format!("{head}{i}{tail}")).collect()
}

fn range(text: &str) -> Option<(u32, u32, &str, &str)> {
    let (head, rest) = text.split_once('{')?;
    let (range, tail) = rest.split_once('}')?;
    let (first, last) = range.split_once("..")?;
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last).then_some((first, last, head, tail))
}

/// Whether the whole of `name` matches `pattern`, in which `*` matches any text.
#[must_use]
pub fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        // The leftmost match leaves the most text for the rest of the pattern.
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::{expand, matches};

    #[test]
    fn ranges_are_inclusive_and_all_else_is_a_name() {
        assert_eq!(expand("t{9..11}_x"), ["t9_x", "t10_x", "t11_x"]);
        for name in ["plain", "{a..b}", "x{2..1}", "{", "x{1}"] {
            assert_eq!(expand(name), [name]);
        }
    }
    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name, is_match) in [
            ("ranking", "ranking", true),
            ("ranking", "ranking-2", false),
            ("ranking-*", "ranking-2", true),
            ("*", "", true),
            ("*-eval", "ads-eval", true),
            ("*-eval", "ads-eval-2", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "acb", false),
            ("ab*ba", "aba", false),
        ] {
            assert_eq!(matches(pattern, name), is_match, "{pattern} {name}");
        }
    }
}
