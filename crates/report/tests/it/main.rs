//! Tests of reports as HTML files, and as a browser shows them.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod fixture;
mod page;
mod predicted;
mod shown;
