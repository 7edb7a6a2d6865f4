//! Names that stand for many: `t{0..7}` is `t0, t1, … t7`.

/// The names `text` stands for, or `text` itself without a range.
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

#[cfg(test)]
mod tests {
    use super::expand;

    #[test]
    fn ranges_are_inclusive_and_all_else_is_a_name() {
        assert_eq!(expand("t{9..11}_x"), ["t9_x", "t10_x", "t11_x"]);
        for name in ["plain", "{a..b}", "x{2..1}", "{", "x{1}"] {
            assert_eq!(expand(name), [name]);
        }
    }
}
