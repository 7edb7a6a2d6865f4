//! The report as its readers see it: one file, and what a browser makes of it.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod browser;
mod fixture;
mod page;
mod predicted;
mod shown;
