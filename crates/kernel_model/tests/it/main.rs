//! Compares predicted kernel times and hit rates with measured and simulated ones.
#![expect(clippy::expect_used, reason = "test code fails by panicking")]

mod hit_rates;
mod kernels;
