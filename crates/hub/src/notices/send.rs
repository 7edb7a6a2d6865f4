//! Sends notices: as JSON to a webhook, and as the input of a program such as `mail`.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use fleet::untrusted::{Privacy, read_trusted};

use super::rules::NoticeRules;
use crate::error::Error;
use crate::{program, tls};

/// Number of times that a webhook is asked for each notice.
const ATTEMPTS: u32 = 4;
/// Pause after the first attempt, which doubles after each further one.
const BACKOFF: Duration = Duration::from_secs(1);
/// Longest pause that the answer of a webhook may ask for.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Timeout of a request.
const PATIENCE: Duration = Duration::from_secs(20);
/// Interval at which a waiting thread checks whether the hub is ending.
const TICK: Duration = Duration::from_millis(200);

/// Sends the notices of a hub.
pub struct NoticeSender {
    webhook: Option<OpenWebhook>,
    command: Vec<String>,
}

/// What became of a notice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SentNotice {
    /// The ways on which it was sent: `webhook` and `command`.
    pub sent: Vec<String>,
    pub problems: Vec<String>,
    /// Whether the webhook does not answer, so that further notices may wait.
    pub is_away: bool,
}

/// A webhook with its token.
struct OpenWebhook {
    url: String,
    token: Option<String>,
    client: ureq::Agent,
}

/// Why a webhook did not take a notice, and whether it may take it later.
struct PostProblem {
    what: String,
    /// The shortest pause, or `None` if the webhook refuses the notice for good.
    pause: Option<Duration>,
}

impl NoticeSender {
    /// Reads the token and the certificates of the webhook.
    ///
    /// # Errors
    /// If a file cannot be used.
    pub fn new(rules: &NoticeRules) -> Result<Self, Error> {
        let open = |webhook: &super::rules::NoticeWebhook| {
            let read = |path: &std::path::PathBuf| {
                let bytes = read_trusted(path, Privacy::Secret)
                    .map_err(|source| Error::File { key: "notices: token_file", source })?;
                Ok::<_, Error>(String::from_utf8_lossy(&bytes).trim().to_owned())
            };
            let client = ureq::Agent::config_builder()
                .http_status_as_error(false)
                .max_redirects(0)
                .timeout_global(Some(PATIENCE))
                .tls_config(tls::trust(webhook.ca.as_deref(), "notices: ca")?)
                .build()
                .new_agent();
            let token = webhook.token_file.as_ref().map(read).transpose()?;
            Ok::<_, Error>(OpenWebhook { url: webhook.url.clone(), token, client })
        };
        let webhook = rules.webhook.as_ref().map(open).transpose()?;
        Ok(Self { webhook, command: rules.command.clone() })
    }

    /// Sends a notice to a user in all configured ways, unless `stop` is set meanwhile.
    pub fn send(&self, user: &str, text: &str, json: &[u8], stop: &AtomicBool) -> SentNotice {
        let mut outcome = SentNotice::default();
        if let Some(webhook) = &self.webhook {
            match webhook.deliver(json, stop) {
                Ok(()) => outcome.sent.push("webhook".to_owned()),
                Err(problem) => {
                    outcome.is_away = problem.pause.is_some();
                    outcome.problems.push(format!("webhook: {}", problem.what));
                }
            }
        }
        if !self.command.is_empty() {
            match self.run_command(user, text) {
                Ok(()) => outcome.sent.push("command".to_owned()),
                Err(problem) => outcome.problems.push(problem),
            }
        }
        outcome
    }

    fn run_command(&self, user: &str, text: &str) -> Result<(), String> {
        let [program, arguments @ ..] = self.command.as_slice() else { return Ok(()) };
        if !is_plain_name(user) {
            // Agents report names of users, and a program could take such a name for an option.
            return Err(format!("{program}: the name {user:?} is not passed to a program"));
        }
        let arguments = arguments.iter().map(|argument| argument.replace("{user}", user));
        program::run(Command::new(program).args(arguments), program, text.as_bytes()).map(drop)
    }
}

/// Whether the name of a user has only usual letters, and does not begin as an option does.
fn is_plain_name(user: &str) -> bool {
    let is_usual =
        |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '.' | '-' | '@');
    user.chars().all(is_usual)
        && user.starts_with(|letter: char| letter.is_ascii_alphanumeric() || letter == '_')
}

impl OpenWebhook {
    /// Posts a notice until the webhook takes or refuses it, at most [`ATTEMPTS`] times.
    fn deliver(&self, json: &[u8], stop: &AtomicBool) -> Result<(), PostProblem> {
        let mut backoff = BACKOFF;
        let mut attempt = 1;
        loop {
            let problem = match self.post(json) {
                Ok(()) => return Ok(()),
                Err(problem) => problem,
            };
            let Some(pause) = problem.pause.filter(|_| attempt < ATTEMPTS) else {
                return Err(problem);
            };
            let mut left = pause.clamp(backoff, PAUSE_MAX);
            while !left.is_zero() {
                if stop.load(Ordering::SeqCst) {
                    return Err(problem);
                }
                let part = left.min(TICK);
                thread::sleep(part);
                left -= part;
            }
            (attempt, backoff) = (attempt + 1, backoff * 2);
        }
    }

    fn post(&self, json: &[u8]) -> Result<(), PostProblem> {
        let mut request = self.client.post(&self.url).content_type("application/json");
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let answer = request.send(json).map_err(|error| {
            let what = error.to_string();
            PostProblem { what, pause: Some(Duration::ZERO) }
        })?;
        let status = answer.status().as_u16();
        if (200..300).contains(&status) {
            return Ok(());
        }
        let wait = answer.headers().get("Retry-After").and_then(|value| value.to_str().ok());
        let wait = wait.and_then(|value| value.parse().ok()).map(Duration::from_secs);
        let may_come_later = matches!(status, 408 | 429 | 500..);
        let pause = may_come_later.then_some(wait.unwrap_or_default());
        Err(PostProblem { what: format!("status {status}"), pause })
    }
}

#[cfg(test)]
mod tests {
    use super::is_plain_name;

    #[test]
    fn names_that_could_be_options_are_not_passed_to_programs() {
        for name in ["anna", "_svc", "a.b-c@d", "7"] {
            assert!(is_plain_name(name), "{name}");
        }
        for name in ["", "-oProxy", "a b", "a\n", "a;b", ".a", "é", "a,b"] {
            assert!(!is_plain_name(name), "{name}");
        }
    }
}
