//! Estimates the time at unrecorded sizes from recorded sizes of the same work.
//!
//! Sizes are the numbers in a text such as `512x128 float, 128x128 float`, followed by FLOPs and
//! bytes if the operator reports them. Time is assumed to follow a power law in the sizes.

use crate::effort::Effort;

/// A detail of a sample key, split into its numbers and the text around them. Two details can be
/// compared only if the text around their numbers is equal.
#[derive(Clone, Debug, PartialEq)]
struct SizeText {
    around: String,
    numbers: Vec<f64>,
    /// Number of leading numbers that are dimensions. The remaining numbers are FLOPs and bytes.
    dims: usize,
}

fn sizes(detail: &str) -> SizeText {
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
    let said = if Effort::parse(detail).is_some() { 2 } else { 0 };
    SizeText { around, dims: numbers.len() - said, numbers }
}

/// Returns, for each number of the two sizes, the logarithm of its value in `b` divided by its
/// value in `a`.
fn ratios<'a>(a: &'a SizeText, b: &'a SizeText) -> impl Iterator<Item = f64> + 'a {
    a.numbers.iter().zip(&b.numbers).map(|(a, b)| (b.max(0.5) / a.max(0.5)).ln())
}

/// Computes the Euclidean distance between two sizes on a logarithmic scale.
fn distance(a: &SizeText, b: &SizeText) -> f64 {
    ratios(a, b).map(|ratio| ratio * ratio).sum::<f64>().sqrt()
}

/// Returns the logarithm of the ratio `b / a` of the number that differs most. Dimensions take
/// precedence over FLOPs and bytes.
fn growth(a: &SizeText, b: &SizeText) -> f64 {
    let dims = a.dims;
    let most = |all: &mut dyn Iterator<Item = f64>| {
        all.max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap_or(0.0)
    };
    match most(&mut ratios(a, b).take(dims)) {
        0.0 => most(&mut ratios(a, b).skip(dims)),
        grown => grown,
    }
}

/// Largest difference at which two logarithms of ratios count as equal. The difference is not 0
/// because offsets have one entry more than there are bags.
const ALIKE: f64 = 0.01;

/// Returns the logarithm of the common factor by which all differing dimensions differ, such as a
/// ratio of batch sizes. Returns `None` if the dimensions differ by several factors.
fn factor(a: &SizeText, b: &SizeText) -> Option<f64> {
    let grown = growth(a, b);
    let is_alike = |ratio: f64| ratio.abs() < ALIKE || (ratio - grown).abs() < ALIKE;
    ratios(a, b).take(a.dims).all(is_alike).then_some(grown)
}

/// Largest ratio of two recorded sizes between which times are interpolated. A product with one
/// column is memory-bound and one with a thousand columns is compute-bound, so one power law cannot
/// describe both.
const SPAN_MAX: f64 = 16.0;

/// Position of a requested size on the line through two recorded sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnLine {
    Between,
    Beyond,
}

/// Says whether an operator of size `wanted` lies between the recorded sizes `a` and `b` or beyond
/// them. Returns `None` unless all three differ in the same dimensions, and by one common factor,
/// such as the batch size. A size lies between two others only if its FLOPs and bytes do as well.
fn on_line(a: &SizeText, b: &SizeText, wanted: &SizeText) -> Option<OnLine> {
    let (whole, part) = (factor(a, b)?, factor(a, wanted)?);
    if whole.abs() < ALIKE {
        return None;
    }
    let share = part / whole;
    let mut dims = ratios(a, b).zip(ratios(a, wanted)).take(a.dims);
    let is_same = |(whole, part): (f64, f64)| (whole * share - part).abs() < ALIKE;
    if !dims.all(is_same) {
        return None;
    }
    let within = |(whole, part): (f64, f64)| {
        let (low, high) = (whole.min(0.0), whole.max(0.0));
        (low - ALIKE..=high + ALIKE).contains(&part)
    };
    if !(0.0..=1.0).contains(&share) {
        return Some(OnLine::Beyond);
    }
    let mut done = ratios(a, b).zip(ratios(a, wanted)).skip(a.dims);
    done.all(within).then_some(OnLine::Between)
}

/// A time estimated from the nearest recorded sizes of the same work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Near {
    /// Index of the nearest size among the known sizes.
    pub place: usize,
    /// Estimated time at the requested sizes.
    pub ns: f64,
    /// Whether the requested sizes lie between two known sizes, of which the larger is at most 16
    /// times the smaller.
    pub is_between: bool,
    /// Whether the time comes from one size, because no two known sizes lie on a line with the
    /// requested ones.
    pub is_alone: bool,
}

/// Returns the distance between two details, or `None` if the text around their numbers differs.
pub fn apart(a: &str, b: &str) -> Option<f64> {
    let (a, b) = (sizes(a), sizes(b));
    (a.around == b.around).then(|| distance(&a, &b))
}

/// Returns whether all differing dimensions of two details differ by one common factor, such as a
/// ratio of batch sizes.
pub fn is_lined(a: &str, b: &str) -> bool {
    let (a, b) = (sizes(a), sizes(b));
    a.around == b.around && factor(&a, &b).is_some()
}

/// Estimates the time at the sizes of `detail` from `known` sizes and times.
///
/// Two known sizes are used if all their differing dimensions differ by one common factor. Between
/// the two sizes, time follows the power law through both. Beyond the two sizes, time follows the
/// same power law with its exponent clamped to the range from 0 to 1. If only one size is known,
/// the exponent is `alone`: one for work that moves or computes data, zero for work independent of
/// size. Returns `None` if no known sizes have the same form.
pub fn find(known: &[(&str, f64)], detail: &str, alone: f64) -> Option<Near> {
    let wanted = sizes(detail);
    if wanted.numbers.is_empty() {
        return None;
    }
    let mut all: Vec<(usize, SizeText, f64)> = (0..known.len())
        .map(|at| (at, sizes(known[at].0), known[at].1))
        .filter(|(_, sizes, _)| sizes.around == wanted.around)
        .collect();
    all.sort_by(|a, b| distance(&a.1, &wanted).total_cmp(&distance(&b.1, &wanted)));
    let lined: Vec<_> = all.iter().filter(|one| factor(&one.1, &wanted).is_some()).collect();
    let pair = |kind: OnLine| {
        let firsts = lined.iter().enumerate();
        let mut pairs = firsts.flat_map(|(at, a)| lined[at + 1..].iter().map(move |b| (*a, *b)));
        pairs.find(|(one, other)| on_line(&one.1, &other.1, &wanted) == Some(kind))
    };
    let (nearest, other) = match pair(OnLine::Between).or_else(|| pair(OnLine::Beyond)) {
        Some((nearest, other)) => (nearest, Some(other)),
        None => (all.first()?, None),
    };
    let place = other.and_then(|other| on_line(&nearest.1, &other.1, &wanted));
    let power = other.map_or(alone, |other| {
        let power = (other.2.max(1.0) / nearest.2.max(1.0)).ln() / growth(&nearest.1, &other.1);
        if place == Some(OnLine::Between) { power } else { power.clamp(0.0, 1.0) }
    });
    let is_near = other.is_some_and(|other| growth(&nearest.1, &other.1).abs() <= SPAN_MAX.ln());
    let is_between = place == Some(OnLine::Between) && is_near;
    let ns = nearest.2 * (power * growth(&nearest.1, &wanted)).exp();
    Some(Near { place: nearest.0, ns, is_between, is_alone: other.is_none() })
}
