//! Counts the work of operators from the sizes of their tensors, so that times at one size can be
//! scaled to another. [`crate::effort`] reads the FLOPs and bytes that rowmill's own traces state.

/// Parses the sizes of all tensors in a detail such as `512x128 float, 128 float`.
pub fn tensors(detail: &str) -> Vec<Vec<f64>> {
    let parts = detail.split([',', ';']).map(|part| part.trim().split(' ').next().unwrap_or(""));
    parts.filter_map(|sizes| sizes.split('x').map(|size| size.parse().ok()).collect()).collect()
}

/// Returns the sizes of all tensors in a detail, without types and other inputs, which recordings
/// and execution traces spell in different ways.
pub fn shapes(detail: &str) -> String {
    let parts = detail.split([',', ';']).map(|part| part.trim().split(' ').next().unwrap_or(""));
    let shapes = parts.filter(|part| part.starts_with(|letter: char| letter.is_ascii_digit()));
    shapes.collect::<Vec<_>>().join(", ")
}

/// Parts of the names of operators that multiply tensors. Their work is the number of
/// multiplications.
const PRODUCTS: [&str; 5] = ["mm", "linear", "matmul", "conv", "attention"];

fn is_product(name: &str) -> bool {
    let name = name.to_lowercase();
    PRODUCTS.iter().any(|product| name.contains(product))
}

/// Returns the number of multiplications of products and convolutions, and the number of elements
/// of all tensors for other operators.
pub fn work(name: &str, tensors: &[Vec<f64>]) -> f64 {
    let elements = |tensor: &Vec<f64>| tensor.iter().product::<f64>();
    let mut factors: Vec<&Vec<f64>> = tensors.iter().filter(|tensor| tensor.len() > 1).collect();
    factors.sort_by(|a, b| elements(b).total_cmp(&elements(a)));
    match factors[..] {
        [a, b, ..] if is_product(name) => {
            let is_convolution = name.to_lowercase().contains("conv");
            let last = a[a.len() - 1];
            let is_shared = b[b.len() - 2..].contains(&last);
            let inner = match (is_convolution, is_shared) {
                (true, _) => b[1],
                (false, true) => last,
                (false, false) => a[a.len() - 2],
            };
            let batches =
                a.iter().zip(b).take(a.len().min(b.len()) - 2).take_while(|(a, b)| a == b);
            let batch: f64 = if is_convolution { 1.0 } else { batches.map(|(a, _)| a).product() };
            elements(a) * elements(b) / (inner * batch).max(1.0)
        }
        _ => tensors.iter().map(elements).sum(),
    }
}

/// Estimates the factor by which the work of an operator grows from the tensor sizes `known` to
/// `wanted`.
///
/// Operators such as lookups have tensors that stay equal and of which only a part is read. Their
/// work grows by a factor between that of all tensors and that of the tensors that differ, so the
/// geometric mean of both is used. Sizes of different form, and no sizes at all, give a factor
/// of 1.
pub fn growth(name: &str, known: &str, wanted: &str) -> f64 {
    let (known, wanted) = (tensors(known), tensors(wanted));
    let is_alike = |(a, b): (&Vec<f64>, &Vec<f64>)| a.len() == b.len();
    if known.is_empty() || known.len() != wanted.len() || !known.iter().zip(&wanted).all(is_alike) {
        return 1.0;
    }
    let ratio = |from: &[Vec<f64>], to: &[Vec<f64>]| work(name, to) / work(name, from).max(1.0);
    let all = ratio(&known, &wanted);
    let pairs = known.into_iter().zip(wanted).filter(|(from, to)| from != to);
    let (from, to): (Vec<_>, Vec<_>) = pairs.unzip();
    if is_product(name) || from.is_empty() { all } else { (all * ratio(&from, &to)).sqrt() }
}

#[cfg(test)]
mod tests {
    use super::{growth, tensors, work};

    #[test]
    fn products_are_counted_by_multiplications_and_other_operators_by_elements() {
        let cases = [
            ("aten::mm", "4x8 float, 8x2 float", 64.0),
            ("aten::linear", "3x4x8 float, 2x8 float, 2 float", 192.0),
            ("aten::bmm", "5x4x8 float, 5x8x2 float", 320.0),
            ("AddmmBackward0", "2 float, 4x8 float, 8x2 float, Scalar", 64.0),
            ("aten::conv2d", "2x3x8x8 float, 5x3x3x3 float, 5 float", 2.0 * 64.0 * 3.0 * 5.0 * 9.0),
            ("aten::add", "4x8 float, 4x8 float, Scalar", 64.0),
            ("embedding_bag", "100x8 float, 64 long int", 864.0),
        ];
        for (name, detail, expected) in cases {
            assert_eq!(work(name, &tensors(detail)), expected, "{name}");
        }
    }

    #[test]
    fn work_grows_with_products_or_with_the_tensors_that_differ() {
        let check = |name: &str, known: &str, wanted: &str, factor: f64| {
            assert!((growth(name, known, wanted) / factor - 1.0).abs() < 1e-9, "{name}");
        };
        check(
            "aten::linear",
            "4x8 float, 2x8 float, 2 float",
            "12x8 float, 2x8 float, 2 float",
            3.0,
        );
        check("aten::relu", "4x8 float", "4x32 float", 4.0);
        check("aten::relu", "4x8 float", "4x8 float", 1.0);
        check("aten::cat", "TensorList, Scalar", "TensorList, Scalar", 1.0);
        check("aten::relu", "4x8 float", "4x8x2 float", 1.0);
        // Of 96 elements, 32 grow to 128, so the work doubles or grows four times.
        let bag = "8x8 float, 32 long int";
        check("aten::embedding_bag", bag, "8x8 float, 128 long int", (2.0f64 * 4.0).sqrt());
    }
}
