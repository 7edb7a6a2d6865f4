//! Decides who a caller is, and what the caller may do. A caller has a token, or a proxy that has
//! authenticated a user names this user in a header. [`crate::audit`] records what was done.

use std::net::IpAddr;
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName, Method, header};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::batch::{self, BatchRefusal};
use crate::error::Error;
use crate::pattern::matches_pattern;
use crate::token_file::FollowedTokens;
use crate::tokens::{TokenGrant, TokenRole, hexadecimal};

/// Header that proves that a request was not made by a foreign page.
pub const CSRF_HEADER: &str = "x-rowmill-csrf";
/// Longest name of a user in bytes.
const NAME_MAX: usize = 256;

/// The section `[access]` of the configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccessConfig {
    /// Addresses of the proxies that authenticate users.
    #[serde(default)]
    pub proxies: Vec<IpAddr>,
    /// Header with the name of the user.
    pub user_header: Option<String>,
    /// Header with the groups of the user, separated by commas.
    pub groups_header: Option<String>,
    /// Names of hosts by which browsers reach the hub.
    #[serde(default)]
    pub hosts: Vec<String>,
    #[serde(default, rename = "rule")]
    pub rules: Vec<AccessRule>,
}

/// What some users may do. Names may end with `*`, which stands for any letters.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccessRule {
    #[serde(default)]
    users: Vec<String>,
    #[serde(default)]
    groups: Vec<String>,
    /// Role of users whom a proxy names. Other callers have the role of their token.
    role: Option<TokenRole>,
    /// Further users whose runs these users may trace if they are tracers.
    #[serde(default)]
    traces: Vec<String>,
}

/// A caller whose token or proxy is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubCaller {
    pub grant: TokenGrant,
    /// Other users whose runs the caller may trace, as patterns.
    traces: Vec<String>,
    /// What the header [`CSRF_HEADER`] of a change must have, if the browser sends the caller's
    /// identity by itself.
    csrf: Option<String>,
}

/// What a caller is told about itself.
#[derive(Debug, Serialize)]
pub struct CallerAnswer<'a> {
    name: &'a str,
    role: TokenRole,
    /// Further users whose runs the caller may trace.
    traces: &'a [String],
    csrf: Option<&'a str>,
}

/// The configuration and the tokens from which callers are known.
#[derive(Debug)]
pub struct AccessControl {
    config: AccessConfig,
    tokens: Arc<FollowedTokens>,
    /// Whether connections are encrypted, so that a browser has checked the name of this host.
    has_tls: bool,
    /// Random bytes of this start of the hub, from which CSRF tokens follow.
    secret: [u8; 32],
}

impl AccessConfig {
    /// Checks that the keys fit together.
    ///
    /// # Errors
    /// If a header's name is malformed, or if proxies and headers are not set together.
    pub fn check(&self) -> Result<(), Error> {
        let wrong = |what: &str, expected, got: &str| {
            let (what, got) = (format!("access: {what}"), got.to_owned());
            Err(Error::Value { what, expected, got })
        };
        let headers = [("user_header", &self.user_header), ("groups_header", &self.groups_header)];
        for (key, name) in headers {
            if let Some(name) = name
                && name.parse::<HeaderName>().is_err()
            {
                return wrong(key, "the name of an HTTP header", name);
            }
        }
        if self.proxies.is_empty() == self.user_header.is_some() {
            return wrong("proxies", "`proxies` and `user_header`, or none of them", "one of them");
        }
        if self.groups_header.is_some() && self.user_header.is_none() {
            return wrong("groups_header", "`user_header` beside it", "none");
        }
        for rule in &self.rules {
            if rule.users.is_empty() && rule.groups.is_empty() {
                return wrong("rule", "`users` or `groups`", "none");
            }
            if rule.role == Some(TokenRole::Agent) {
                return wrong("rule: role", "viewer, tracer or admin", "agent");
            }
        }
        Ok(())
    }
}

impl AccessRule {
    fn matches(&self, user: &str, groups: &[&str]) -> bool {
        let is_user = |pattern: &String| matches_pattern(pattern, user);
        let is_group =
            |pattern: &String| groups.iter().any(|group| matches_pattern(pattern, group));
        self.users.iter().any(is_user) || self.groups.iter().any(is_group)
    }
}

impl HubCaller {
    /// Creates a caller with a token, who may trace nobody else's runs.
    pub fn new(grant: TokenGrant) -> Self {
        Self { grant, traces: Vec::new(), csrf: None }
    }

    /// Whether the caller may trace a run of a user. A tracer may trace its own runs and those of
    /// the users that a rule grants.
    pub fn may_trace(&self, run_user: &str) -> bool {
        match self.grant.role {
            TokenRole::Admin => true,
            TokenRole::Tracer => {
                let is_granted = |pattern: &String| matches_pattern(pattern, run_user);
                !run_user.is_empty() && self.grant.name() == run_user
                    || self.traces.iter().any(is_granted)
            }
            TokenRole::Agent | TokenRole::Viewer => false,
        }
    }

    /// Whether a proxy has named the caller.
    pub fn is_by_proxy(&self) -> bool {
        self.csrf.is_some()
    }

    /// Returns what the caller is told about itself.
    pub fn describe(&self) -> CallerAnswer<'_> {
        let Self { grant, traces, csrf } = self;
        CallerAnswer { name: grant.name(), role: grant.role, traces, csrf: csrf.as_deref() }
    }

    /// Checks that the caller may do what needs a role, and that no foreign page made the request.
    ///
    /// # Errors
    /// The reason if the role is another one, or if a change lacks the CSRF token.
    pub fn check(
        &self,
        needed: TokenRole,
        method: &Method,
        headers: &HeaderMap,
    ) -> Result<(), BatchRefusal> {
        if !self.grant.role.includes(needed) {
            let reason = format!("expected a caller with the role {}", needed.name());
            return Err(BatchRefusal::new(batch::WRONG_CALLER, reason));
        }
        let Some(expected) = self.csrf.as_deref().filter(|_| !method.is_safe()) else {
            return Ok(());
        };
        if text(headers, CSRF_HEADER) == Some(expected) {
            return Ok(());
        }
        let reason = format!("expected the header {CSRF_HEADER} with the value from /hub/v1/me");
        Err(BatchRefusal::new(batch::WRONG_CALLER, reason))
    }
}

impl AccessControl {
    /// Creates the control of a hub.
    ///
    /// # Errors
    /// If the operating system has no random bytes.
    pub fn new(
        config: AccessConfig,
        tokens: Arc<FollowedTokens>,
        has_tls: bool,
    ) -> Result<Self, Error> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret)?;
        Ok(Self { config, tokens, has_tls, secret })
    }

    /// The tokens from which callers are known.
    pub fn tokens(&self) -> Arc<FollowedTokens> {
        Arc::clone(&self.tokens)
    }

    /// Refuses requests that a page of another site makes through a browser: by its `Origin`, or by
    /// a name of its own for a loopback address. With TLS, the browser checks the name.
    ///
    /// # Errors
    /// The reason if the host or the origin is a foreign one.
    pub fn check_site(&self, headers: &HeaderMap) -> Result<(), BatchRefusal> {
        let wrong = |reason: &str| Err(BatchRefusal::new(batch::WRONG_CALLER, reason));
        let host = text(headers, header::HOST).unwrap_or_default();
        let is_own = |authority: &str| {
            let name = host_name(authority);
            self.config.hosts.iter().any(|host| host.eq_ignore_ascii_case(name))
        };
        if !self.has_tls
            && !["localhost", "127.0.0.1", "[::1]"].contains(&host_name(host))
            && !is_own(host)
        {
            return wrong(
                "expected the host name localhost, a loopback address, or one of `hosts`",
            );
        }
        if let Some(origin) = headers.get(header::ORIGIN) {
            let origin = origin.to_str().unwrap_or_default();
            let authority = origin.split_once("://").map_or("", |(_, authority)| authority);
            if authority.is_empty() || authority != host && !is_own(authority) {
                return wrong("expected a request of the hub's own page, got one of another site");
            }
        }
        Ok(())
    }

    /// Returns the caller that a request names by its token, or that a proxy names.
    ///
    /// # Errors
    /// The reason if the caller is unknown.
    pub fn identify(&self, headers: &HeaderMap, peer: IpAddr) -> Result<HubCaller, BatchRefusal> {
        let token = text(headers, header::AUTHORIZATION);
        if let Some(token) = token.and_then(|value| value.strip_prefix("Bearer ")) {
            let grant = self.tokens.grant(token);
            let grant = grant.ok_or_else(|| BatchRefusal::new(401, "expected a known token"))?;
            let rules = self.rules(grant.name(), &[]);
            let traces = rules.flat_map(|rule| rule.traces.iter().cloned()).collect();
            return Ok(HubCaller { grant, traces, csrf: None });
        }
        let peer = peer.to_canonical();
        let header = self.config.user_header.as_deref();
        let header = header
            .filter(|name| headers.contains_key(*name) && self.config.proxies.contains(&peer));
        let Some(header) = header else {
            return Err(BatchRefusal::new(401, "expected a known token"));
        };
        let user = single_text(headers, header)?.unwrap_or_default();
        if user.is_empty() || user.len() > NAME_MAX {
            return Err(BatchRefusal::new(400, format!("{header}: expected the name of a user")));
        }
        let groups = match &self.config.groups_header {
            Some(header) => single_text(headers, header)?.unwrap_or_default(),
            None => "",
        };
        let groups: Vec<&str> = groups.split(',').map(str::trim).collect();
        let Some(role) = self.rules(user, &groups).find_map(|rule| rule.role) else {
            let reason = "expected a user or group of a rule with a role";
            return Err(BatchRefusal::new(batch::WRONG_CALLER, reason));
        };
        let traces = self.rules(user, &groups).flat_map(|rule| rule.traces.iter().cloned());
        let csrf = Sha256::new().chain_update(self.secret).chain_update(user).finalize();
        let grant = TokenGrant::new(role, user);
        Ok(HubCaller { grant, traces: traces.collect(), csrf: Some(hexadecimal(&csrf)) })
    }

    fn rules<'a>(
        &'a self,
        user: &'a str,
        groups: &'a [&'a str],
    ) -> impl Iterator<Item = &'a AccessRule> {
        self.config.rules.iter().filter(move |rule| rule.matches(user, groups))
    }
}

/// Returns the name of a host without its port.
fn host_name(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => authority,
    }
}

fn text(headers: &HeaderMap, name: impl header::AsHeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Returns the value of a header of a proxy. A second value may come from the caller.
fn single_text<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, BatchRefusal> {
    let wrong = || BatchRefusal::new(400, format!("{name}: expected one value in ASCII"));
    let mut values = headers.get_all(name).iter();
    let value = values.next();
    if values.next().is_some() {
        return Err(wrong());
    }
    value.map(|value| value.to_str().map(str::trim).map_err(|_| wrong())).transpose()
}

#[cfg(test)]
mod tests;
