//! An opened object of a store: its length, its version, and its bytes by range.

use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;

use ureq::Body;
use ureq::http::Response;

use super::client::{Client, ObjectRequest, TryFailure, retry_request};
use super::problem::RemoteProblem;

/// Number of attempts to open an object.
const TRIES: u32 = 4;
/// Number of bytes between checks whether the range is still wanted.
const PIECE: u64 = 256 << 10;
/// Largest number of consecutive attempts without progress. With doubling pauses, they take half a
/// minute.
const READ_TRIES: u32 = 9;

/// A handle to an object on a network. Clones share the connection and the recorded version.
#[derive(Clone)]
pub(crate) struct Object {
    about: Arc<ObjectMetadata>,
}

/// Metadata of an object, taken from the response to the first request.
struct ObjectMetadata {
    client: &'static Client,
    input: String,
    bytes: Option<u64>,
    /// Entity tag, or else the time of the last change; `None` if the server sends neither.
    version: Option<String>,
    ranges: bool,
}

/// First and last byte of a range, and the length of the whole object.
type ByteRange = (u64, u64, Option<u64>);

impl Object {
    /// Opens an object by requesting its first byte. The response gives its length, its version and
    /// whether ranges are supported. A HEAD request would need another permission and another
    /// signature.
    pub(crate) fn open(input: &str) -> io::Result<Self> {
        Self::open_with(Client::shared(), input)
    }

    pub(super) fn open_with(client: &'static Client, input: &str) -> io::Result<Self> {
        let request = ObjectRequest { input, range: Some((0, 0)), same: None };
        let answer = retry_request(|| client.host(input), TRIES, |_| client.send(request))?;
        let length = answer.headers().get("content-length");
        let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
        let (bytes, ranges) = match answer.status().as_u16() {
            200 => (length, false),
            206 => (content_range(&answer).and_then(|(_, _, whole)| whole), true),
            // Status 416: an empty object has no first byte.
            _ => (Some(0), true),
        };
        if ranges && bytes.is_none() {
            let problem = "expected the length of the object in Content-Range, got none";
            return Err(RemoteProblem::Answer(problem.to_owned()).into());
        }
        let (input, version) = (input.to_owned(), version(&answer));
        Ok(Self { about: Arc::new(ObjectMetadata { client, input, bytes, version, ranges }) })
    }

    pub(crate) fn bytes(&self) -> Option<u64> {
        self.about.bytes
    }

    pub(crate) fn version(&self) -> Option<&str> {
        self.about.version.as_deref()
    }

    /// Whether the server supports range requests.
    pub(crate) fn has_ranges(&self) -> bool {
        self.about.ranges
    }

    /// Appends the bytes `range` of the object to `bytes`, and resumes after failures. Returns
    /// `false` if `wanted` became false before the end.
    pub(super) fn fetch(
        &self,
        range: Range<u64>,
        bytes: &mut Vec<u8>,
        wanted: &dyn Fn() -> bool,
    ) -> io::Result<bool> {
        let ObjectMetadata { client, input, .. } = &*self.about;
        let start = bytes.len();
        let fetched = retry_request(
            || client.host(input),
            READ_TRIES,
            |came_further| {
                let got = bytes.len() - start;
                // A further attempt continues after the bytes that have arrived.
                let at = range.start + got as u64;
                if !wanted() || at >= range.end {
                    return Ok(at >= range.end);
                }
                let request = ObjectRequest {
                    input,
                    range: Some((at, range.end - 1)),
                    same: self.strong_version(),
                };
                let answer = client.send(request)?;
                self.check(&answer).map_err(TryFailure::Final)?;
                // A server that ignores the range would send the object from its start.
                if answer.status() != 206
                    || content_range(&answer).is_none_or(|(first, ..)| first != at)
                {
                    let status = answer.status().as_u16();
                    let problem = format!("expected bytes from {at} on, got HTTP status {status}");
                    return Err(TryFailure::Final(RemoteProblem::Answer(problem)));
                }
                let mut body = answer.into_body().into_reader().take(range.end - at);
                loop {
                    let read = body.by_ref().take(PIECE).read_to_end(bytes);
                    *came_further = bytes.len() - start > got;
                    let at = range.start + (bytes.len() - start) as u64;
                    match read {
                        Ok(_) if at == range.end => return Ok(true),
                        Ok(_) if !wanted() => return Ok(false),
                        Ok(0) => {
                            return Err(TryFailure::Passing(format!(
                                "the answer ended at byte {at}"
                            )));
                        }
                        Ok(_) => {}
                        Err(error) => return Err(TryFailure::Passing(error.to_string())),
                    }
                }
            },
        );
        Ok(fetched?)
    }

    /// Requests the whole object from its start, for servers without ranges.
    pub(super) fn stream(&self) -> Result<impl Read + Send + use<>, TryFailure> {
        let request =
            ObjectRequest { input: &self.about.input, range: None, same: self.strong_version() };
        let answer = self.about.client.send(request)?;
        self.check(&answer).map_err(TryFailure::Final)?;
        Ok(answer.into_body().into_reader())
    }

    pub(super) fn retry<T>(
        &self,
        attempt: impl FnMut(&mut bool) -> Result<T, TryFailure>,
    ) -> io::Result<T> {
        let ObjectMetadata { client, input, .. } = &*self.about;
        Ok(retry_request(|| client.host(input), READ_TRIES, attempt)?)
    }

    /// Returns the version for `If-Match`. Weak entity tags never match, so they are left out.
    fn strong_version(&self) -> Option<&str> {
        self.version().filter(|version| version.starts_with('"'))
    }

    fn check(&self, answer: &Response<Body>) -> Result<(), RemoteProblem> {
        let got = version(answer);
        if answer.status() != 412 && got == self.about.version {
            return Ok(());
        }
        let or_none = |version: Option<String>| version.unwrap_or_else(|| "none".to_owned());
        let expected = or_none(self.about.version.clone());
        let got = if answer.status() == 412 { "another".to_owned() } else { or_none(got) };
        Err(RemoteProblem::Changed { expected, got })
    }
}

fn version(answer: &Response<Body>) -> Option<String> {
    let header = |name: &str| Some(answer.headers().get(name)?.to_str().ok()?.to_owned());
    header("etag").or_else(|| header("last-modified"))
}

/// Parses `Content-Range`, such as `bytes 0-9/100`.
fn content_range(answer: &Response<Body>) -> Option<ByteRange> {
    let text = answer.headers().get("content-range")?.to_str().ok()?;
    let (range, whole) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?, whole.parse().ok()))
}
