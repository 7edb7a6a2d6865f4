//! Fits a non-negative time per unit to each amount of work.

use super::work::CpuWork;

/// Rounds of iteratively reweighted least squares, which minimize the sum of absolute errors.
const ROUNDS: usize = 40;
/// Relative error below which all measurements get equal weights.
const NEAR: f64 = 0.01;
/// Number of coordinate-descent sweeps over all amounts in each round.
const SWEEPS: usize = 300;

/// Fits a non-negative time per unit to each amount of work, in nanoseconds, by minimizing the sum
/// of absolute relative errors.
#[must_use]
pub fn fit_units(works: &[(&CpuWork, f64)]) -> Vec<f64> {
    let Some((first, _)) = works.first() else { return Vec::new() };
    let count = first.amounts.len();
    // Compute the share of a measured time that each amount would have if its unit took 1 ns.
    // Scaling gives all amounts a similar magnitude.
    let mut shares: Vec<Vec<f64>> = works
        .iter()
        .map(|(work, ns)| work.amounts.iter().map(|one| one.1 / ns).collect())
        .collect();
    let scale: Vec<f64> = (0..count)
        .map(|at| {
            (shares.iter().map(|row| row[at] * row[at]).sum::<f64>() / works.len() as f64).sqrt()
        })
        .collect();
    for row in &mut shares {
        for (share, scale) in row.iter_mut().zip(&scale) {
            *share = if *scale > 0.0 { *share / scale } else { 0.0 };
        }
    }
    let mut units = vec![0.0; count];
    let mut weights = vec![1.0; works.len()];
    for _ in 0..ROUNDS {
        least_squares(&shares, &weights, &mut units);
        for (weight, row) in weights.iter_mut().zip(&shares) {
            let sum: f64 = row.iter().zip(&units).map(|(share, unit)| share * unit).sum();
            // Errors are logarithms, so half of the time counts as much as twice the time.
            let off = (sum.max(1e-3)).ln().abs();
            // Weights of 1 ÷ error turn the sum of squared errors into a sum of absolute errors.
            *weight = 1.0 / off.max(NEAR) / sum.max(0.1);
        }
    }
    units
        .iter()
        .zip(&scale)
        .map(|(unit, scale)| if *scale > 0.0 { unit / scale } else { 0.0 })
        .collect()
}

/// Solves the weighted least squares `Σ share · unit = 1` with non-negative units by coordinate
/// descent.
fn least_squares(shares: &[Vec<f64>], weights: &[f64], units: &mut [f64]) {
    let count = units.len();
    let mut products = vec![vec![0.0; count]; count];
    let mut wanted = vec![0.0; count];
    for (row, weight) in shares.iter().zip(weights) {
        for a in 0..count {
            wanted[a] += weight * row[a];
            for b in 0..count {
                products[a][b] += weight * row[a] * row[b];
            }
        }
    }
    for _ in 0..SWEEPS {
        for at in 0..count {
            let own = products[at][at];
            if own > 0.0 {
                let sum: f64 = products[at].iter().zip(units.iter()).map(|(p, u)| p * u).sum();
                units[at] = (units[at] + (wanted[at] - sum) / own).max(0.0);
            }
        }
    }
}
