//! Links from runs to their logs in the system that keeps them. The hub reads no logs itself: the
//! paths are chosen by users, and logs hold what only their users may read.

use serde::Deserialize;

use crate::error::Error;

/// What may stand in braces in a URL.
const PLACEHOLDERS: [&str; 4] = ["scheduler", "job", "user", "workflow"];

/// The section `[logs]` of the configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogLinks {
    /// URL of the logs of a run, with placeholders such as `{job}`.
    url: String,
}

impl LogLinks {
    /// Checks the URL and its placeholders.
    ///
    /// # Errors
    /// If the URL has another scheme, no job, or an unknown placeholder.
    pub fn check(&self) -> Result<(), Error> {
        let wrong = |expected, got: &str| {
            let (what, got) = ("logs: url".to_owned(), format!("{got:?}"));
            Err(Error::Value { what, expected, got })
        };
        let Self { url } = self;
        if !["https://", "http://"].iter().any(|scheme| url.starts_with(scheme)) {
            return wrong("a URL that begins with https:// or http://", url);
        }
        if !url.contains("{job}") {
            return wrong("a URL with {job}", url);
        }
        for part in url.split('{').skip(1) {
            let name = part.split_once('}').map(|(name, _)| name);
            if !name.is_some_and(|name| PLACEHOLDERS.contains(&name)) {
                return wrong("{scheduler}, {job}, {user} or {workflow} in braces", part);
            }
        }
        Ok(())
    }

    /// Returns the URL of the logs of a run, which is a scheduler and a job as in `slurm/123`.
    pub fn link(&self, run: &str, user: &str, workflow: &str) -> Option<String> {
        let (scheduler, job) = run.split_once('/')?;
        let values = [scheduler, job, user, workflow].map(encode);
        // Values have no braces after they are encoded, so none of them is replaced again.
        let replace = |url: String, (name, value): (&str, String)| {
            url.replace(&format!("{{{name}}}"), &value)
        };
        Some(PLACEHOLDERS.into_iter().zip(values).fold(self.url.clone(), replace))
    }
}

/// Encodes all bytes that may mean something in a URL. Users choose the names of their jobs.
fn encode(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::LogLinks;

    fn links(url: &str) -> LogLinks {
        LogLinks { url: url.to_owned() }
    }

    #[test]
    fn names_of_users_cannot_change_the_url() {
        let template = "https://logs/{scheduler}/{job}?q=user:{user}&flow={workflow}";
        let link = |run, user, flow| links(template).link(run, user, flow);
        let expected = "https://logs/slurm/12?q=user:ann&flow=a%26b%3D%7Bjob%7D%2F..%C3%A9";
        assert_eq!(link("slurm/12", "ann", "a&b={job}/..é").unwrap(), expected);
        let pod = link("kubernetes/ads/train", "", "x").unwrap();
        assert_eq!(pod, "https://logs/kubernetes/ads%2Ftrain?q=user:&flow=x");
        assert_eq!(link("", "ann", "x"), None);
    }

    #[test]
    fn urls_without_a_job_or_with_unknown_placeholders_are_refused() {
        assert!(links("http://l/{job}").check().is_ok());
        for (url, problem) in [
            ("javascript:{job}", "begins with https://"),
            ("https://l/", "with {job}"),
            ("https://l/{job}/{host}", "got \"host}\""),
            ("https://l/{job}/{user", "got \"user\""),
        ] {
            let error = links(url).check().unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
    }
}
