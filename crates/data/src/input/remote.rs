//! Reads objects over a network: `s3://`, `gs://`, `http://` and `https://`. Objects are read by
//! ranges, with prefetching and retries, and a changed object is detected. All calls block, and
//! threads do the prefetching.
//!
//! Decision 0041 explains why no larger client is used.

mod address;
mod aws;
mod client;
mod credential_http;
mod google;
mod object;
mod problem;
mod reader;
mod sign;

pub(crate) use object::Object;
pub use problem::RemoteProblem;

/// Tells whether `input` is the URL of an object rather than the path of a file.
#[must_use]
pub fn is_remote(input: &str) -> bool {
    address::Scheme::parse(input).is_some()
}

#[cfg(test)]
mod tests;
