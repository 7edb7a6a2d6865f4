//! The sources of credentials: environment variables, and services that issue credentials on short
//! requests.

#[cfg(test)]
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::time::Duration;

use ureq::http::Response;
use ureq::{Agent, Body};

/// Timeout for services that answer at once if they exist at all.
const SERVICE: Duration = Duration::from_secs(2);
/// Largest number of bytes that is read from a response other than an object.
pub(super) const ANSWER: u64 = 64 << 10;

/// Function that looks up an environment variable.
type Lookup = dyn Fn(&str) -> Option<String> + Send + Sync;

/// The environment variables of the process or of a test. Empty variables count as unset.
pub(super) struct Env(Box<Lookup>);

impl Env {
    pub(super) fn from_process() -> Self {
        Self(Box::new(|name| std::env::var(name).ok()))
    }

    #[cfg(test)]
    pub(super) fn new(pairs: &[(&str, &str)]) -> Self {
        let owned = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
        let all: BTreeMap<String, String> = pairs.iter().map(owned).collect();
        Self(Box::new(move |name| all.get(name).cloned()))
    }

    pub(super) fn get(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|value| !value.is_empty())
    }
}

/// Returns the text between `start` and `end`, or `None` if either is missing.
pub(super) fn between(text: &str, start: &str, end: &str) -> Option<String> {
    let (_, rest) = text.split_once(start)?;
    rest.split_once(end).map(|(found, _)| found.to_owned())
}

/// An HTTP client for short requests to services that issue credentials.
pub(super) struct CredentialHttp(Agent);

impl CredentialHttp {
    pub(super) fn new() -> Self {
        let config = Agent::config_builder()
            .timeout_connect(Some(SERVICE / 2))
            .timeout_recv_response(Some(5 * SERVICE))
            .build();
        Self(config.into())
    }

    pub(super) fn get(&self, url: &str, headers: &[(&str, String)]) -> Result<String, io::Error> {
        let mut request = self.0.get(url);
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        text(request.call())
    }

    pub(super) fn put(&self, url: &str, headers: &[(&str, String)]) -> Result<String, io::Error> {
        let mut request = self.0.put(url);
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        text(request.send_empty())
    }

    pub(super) fn post(&self, url: &str, form: &[(&str, &str)]) -> Result<String, io::Error> {
        text(self.0.post(url).send_form(form.iter().copied()))
    }
}

fn text(answer: Result<Response<Body>, ureq::Error>) -> Result<String, io::Error> {
    let mut text = String::new();
    let answer = answer.map_err(ureq::Error::into_io)?;
    answer.into_body().into_reader().take(ANSWER).read_to_string(&mut text)?;
    Ok(text)
}
