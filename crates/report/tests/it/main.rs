//! Tests of the report as an HTML file, and as displayed by a browser.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod browser;
mod fixture;
mod page;
mod predicted;
mod shown;
