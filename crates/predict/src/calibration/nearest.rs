//! What something takes at sizes nobody recorded, by the sizes of the same that were.
//!
//! Sizes are the numbers in a text such as `512x128 float, 128x128 float`. Knows no kernel: it only
//! assumes that time grows as a power of what grows.

/// Sizes, and the text around them: only what is alike in that can be compared.
#[derive(Clone, Debug, PartialEq)]
struct Sizes {
    around: String,
    numbers: Vec<f64>,
}

fn sizes(detail: &str) -> Sizes {
    let (mut around, mut numbers, mut digits) = (String::new(), Vec::new(), String::new());
    for letter in detail.chars().chain(['\n']) {
        if letter.is_ascii_digit() {
            digits.push(letter);
            continue;
        }
        if !digits.is_empty() {
            numbers.push(digits.parse().unwrap_or(f64::MAX));
            digits.clear();
            around.push('#');
        }
        around.push(letter);
    }
    Sizes { around, numbers }
}

/// How unlike two sizes are: the sum of the logarithms of their ratios.
fn distance(a: &Sizes, b: &Sizes) -> f64 {
    let ratio = |(a, b): (&f64, &f64)| (a.max(0.5) / b.max(0.5)).ln().abs();
    a.numbers.iter().zip(&b.numbers).map(ratio).sum()
}

/// How much larger `b` is than `a`: the logarithm of the ratio that differs most.
fn growth(a: &Sizes, b: &Sizes) -> f64 {
    let ratio = |(a, b): (&f64, &f64)| (b.max(0.5) / a.max(0.5)).ln();
    let ratios = a.numbers.iter().zip(&b.numbers).map(ratio);
    ratios.max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap_or(0.0)
}

/// What was found near a size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Near {
    /// Place of the nearest among those that were given.
    pub place: usize,
    /// What it takes at the sizes asked for.
    pub ns: f64,
    /// Whether the sizes asked for lie between two that are known.
    pub is_between: bool,
}

/// How unlike two details are; `None` where they have other forms.
pub fn apart(a: &str, b: &str) -> Option<f64> {
    let (a, b) = (sizes(a), sizes(b));
    (a.around == b.around).then(|| distance(&a, &b))
}

/// What something takes at the sizes of `detail`, by what it took (`ns`) at others.
///
/// Between two sizes it grows as the power that joins them; beyond both likewise, by a power from 0
/// to 1. Of one size alone, it grows with the power `alone`: 1 for what moves or computes data, 0
/// for what does not depend on it. `None` where nothing has sizes of the same form.
pub fn find(known: &[(&str, f64)], detail: &str, alone: f64) -> Option<Near> {
    const SAME_LINE: f64 = 1e-3;
    let wanted = sizes(detail);
    if wanted.numbers.is_empty() {
        return None;
    }
    let all: Vec<(usize, Sizes, f64)> = (0..known.len())
        .map(|at| (at, sizes(known[at].0), known[at].1))
        .filter(|(_, sizes, _)| sizes.around == wanted.around)
        .collect();
    let near = |a: &&(usize, Sizes, f64), b: &&(usize, Sizes, f64)| {
        distance(&a.1, &wanted).total_cmp(&distance(&b.1, &wanted))
    };
    let (place, nearest, ns) = all.iter().min_by(near)?;
    let own = distance(nearest, &wanted);
    // Others on one line through both: between them, or beyond.
    let on_line = |other: &&(usize, Sizes, f64)| {
        let (there, apart) = (distance(&other.1, &wanted), distance(&other.1, nearest));
        let is_between = (own + there - apart).abs() < SAME_LINE;
        let is_beyond = (own + apart - there).abs() < SAME_LINE;
        apart > 0.0 && (is_between || is_beyond)
    };
    let is_between = |other: &&(usize, Sizes, f64)| {
        (own + distance(&other.1, &wanted) - distance(&other.1, nearest)).abs() < SAME_LINE
    };
    let lined = || all.iter().filter(on_line);
    let other = lined().filter(is_between).min_by(near).or_else(|| lined().min_by(near));
    let power = other.map_or(alone, |other| {
        let power = (other.2.max(1.0) / ns.max(1.0)).ln() / growth(nearest, &other.1);
        if is_between(&other) { power } else { power.clamp(0.0, 1.0) }
    });
    let ns = ns * (power * growth(nearest, &wanted)).exp();
    let is_between = other.is_some_and(|other| is_between(&other));
    Some(Near { place: *place, ns, is_between })
}
