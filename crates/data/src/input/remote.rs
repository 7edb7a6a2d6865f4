//! Input over a network: `s3://`, `gs://`, `http://` and `https://`, read by ranges with prefetch,
//! retries and a check that the object stays the same. Blocking; threads do the prefetching.
//!
//! Knows nothing of formats. Why not a larger client: decision 0041.

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

/// Whether `input` names an object on a network rather than a file.
#[must_use]
pub fn is_remote(input: &str) -> bool {
    address::Scheme::parse(input).is_some()
}

#[cfg(test)]
mod tests;
