//! Predicted kernel times against measured and simulated ones.
#![expect(clippy::expect_used, reason = "test code fails by panicking")]

mod hit_rates;
mod kernels;
