//! Fits the two constants of a collective: its time without data, and its time per byte sent.

use serde::Serialize;

/// The two constants of the model `time = alpha + beta × bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Fit {
    pub alpha_us: f64,
    /// Time per kilobyte in nanoseconds. `None` if the points do not determine it, or if it is not
    /// positive.
    pub beta_ns_per_kb: Option<f64>,
    pub beta_gb_per_s: Option<f64>,
}

impl Fit {
    /// Fits a line through points (bytes, seconds), by least squares of the relative errors.
    /// Neither constant is negative. Returns `None` if there are no points.
    pub fn through(points: &[(f64, f64)]) -> Option<Self> {
        // Dividing each point's equation by its time turns errors into relative errors: 1 =
        // alpha·(1/t) + beta·(x/t).
        let sum = |term: &dyn Fn(f64, f64) -> f64| -> f64 {
            points.iter().map(|&(bytes, seconds)| term(1.0 / seconds, bytes / seconds)).sum()
        };
        if points.is_empty() {
            return None;
        }
        let (a, b) = (sum(&|u, _| u), sum(&|_, v| v));
        let (aa, ab, bb) = (sum(&|u, _| u * u), sum(&|u, v| u * v), sum(&|_, v| v * v));
        let determinant = aa * bb - ab * ab;
        // If all sizes are equal, the points do not determine a slope.
        let is_line = determinant > 1e-9 * aa * bb;
        let (alpha, beta) = if is_line {
            ((a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant)
        } else {
            (a / aa, 0.0)
        };
        // If a constant would be negative, it is set to zero and the other constant is fitted
        // alone.
        let (alpha, beta) = match (alpha < 0.0, beta < 0.0) {
            (true, _) => (0.0, b / bb),
            (false, true) => (a / aa, 0.0),
            (false, false) => (alpha, beta),
        };
        let beta = (beta > 0.0).then_some(beta);
        Some(Self {
            alpha_us: 1e6 * alpha,
            beta_ns_per_kb: beta.map(|beta| 1e12 * beta),
            beta_gb_per_s: beta.map(|beta| 1e-9 / beta),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Fit;

    #[test]
    fn points_on_a_line_give_its_constants() {
        let points = [8.0, 1e3, 1e6, 16e6].map(|bytes| (bytes, 5e-6 + bytes / 2e9));
        let fit = Fit::through(&points).unwrap();
        assert!((fit.alpha_us - 5.0).abs() < 1e-6, "{fit:?}");
        assert!((fit.beta_gb_per_s.unwrap() - 2.0).abs() < 1e-9, "{fit:?}");
        assert!((fit.beta_ns_per_kb.unwrap() - 500.0).abs() < 1e-6, "{fit:?}");
    }

    #[test]
    fn points_without_bytes_have_no_bandwidth() {
        let fit = Fit::through(&[(0.0, 2e-6), (0.0, 2e-6)]).unwrap();
        assert!((fit.alpha_us - 2.0).abs() < 1e-9);
        assert_eq!(fit.beta_gb_per_s, None);
        assert_eq!(Fit::through(&[]), None);
    }

    #[test]
    fn neither_constant_is_negative() {
        let fit = Fit::through(&[(1e3, 1e-9), (1e6, 1e-3)]).unwrap();
        assert_eq!(fit.alpha_us, 0.0);
        assert!(fit.beta_gb_per_s.unwrap() > 0.0);
    }
}
