//! Tests of callers, roles, proxies and foreign pages.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderName, Method};

use super::{AccessConfig, AccessControl, CSRF_HEADER, HubCaller};
use crate::batch::BatchRefusal;
use crate::token_file::FollowedTokens;
use crate::tokens::{TokenFile, TokenRole, create_token};

const CONFIG: &str = "
proxies = ['127.0.0.1', '10.0.0.7']
user_header = 'X-Forwarded-User'
groups_header = 'X-Forwarded-Groups'
hosts = ['hub.example']
[[rule]]
users = ['carol']
role = 'admin'
[[rule]]
groups = ['ml-*']
role = 'tracer'
traces = ['bot-*']
[[rule]]
users = ['*']
role = 'viewer'
";

fn control(config: &str, tokens: &str) -> AccessControl {
    let config: AccessConfig = toml::from_str(config).unwrap();
    config.check().unwrap();
    let tokens = FollowedTokens::with_tokens(TokenFile::parse(tokens).unwrap());
    AccessControl::new(config, tokens.into(), false).unwrap()
}

fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in pairs {
        map.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
    }
    map
}

fn identify(
    control: &AccessControl,
    peer: &str,
    pairs: &[(&str, &str)],
) -> Result<HubCaller, BatchRefusal> {
    control.identify(&headers(pairs), peer.parse::<IpAddr>().unwrap())
}

#[test]
fn a_user_is_believed_from_the_address_of_a_proxy_only() {
    let control = control(CONFIG, "");
    let role = |peer: &str, pairs: &[(&str, &str)]| {
        let caller = identify(&control, peer, pairs);
        caller.map(|caller| caller.grant.role).map_err(|refusal| refusal.status)
    };
    let bob = ("x-forwarded-user", "bob");
    assert_eq!(role("10.0.0.7", &[bob]), Ok(TokenRole::Viewer));
    assert_eq!(role("::ffff:127.0.0.1", &[bob]), Ok(TokenRole::Viewer));
    assert_eq!(role("10.0.0.8", &[bob]), Err(401));
    assert_eq!(role("10.0.0.7", &[]), Err(401));
    let groups = ("x-forwarded-groups", "staff, ml-ads");
    assert_eq!(role("10.0.0.7", &[bob, groups]), Ok(TokenRole::Tracer));
    assert_eq!(role("10.0.0.7", &[("x-forwarded-user", "carol")]), Ok(TokenRole::Admin));
    // A caller adds a header of its own to that of the proxy.
    assert_eq!(role("10.0.0.7", &[bob, ("x-forwarded-user", "carol")]), Err(400));
    assert_eq!(role("10.0.0.7", &[("x-forwarded-user", " ")]), Err(400));
    assert_eq!(role("10.0.0.7", &[bob, ("authorization", "Bearer wrong")]), Err(401));
}

#[test]
fn a_tracer_may_trace_own_and_granted_runs() {
    let mut tokens = String::new();
    let mut token = |role, name| {
        let (token, line) = create_token(role, name).unwrap();
        tokens += &format!("{line}\n");
        format!("Bearer {token}")
    };
    let all = [
        token(TokenRole::Tracer, "anna"),
        token(TokenRole::Tracer, "dora"),
        token(TokenRole::Admin, "root"),
        token(TokenRole::Viewer, "anna"),
    ];
    let config = "[[rule]]\nusers = ['dora']\ntraces = ['bob', 'bot-*']";
    let control = control(config, &tokens);
    let traces = all.map(|token| {
        let caller = identify(&control, "10.0.0.1", &[("authorization", &token)]).unwrap();
        ["anna", "bob", "bot-3", ""].map(|user| caller.may_trace(user))
    });
    assert_eq!(traces[0], [true, false, false, false]);
    assert_eq!(traces[1], [false, true, true, false]);
    assert_eq!([traces[2], traces[3]], [[true; 4], [false; 4]]);
}

#[test]
fn changes_by_a_proxys_user_need_the_csrf_token() {
    let control = control(CONFIG, "");
    let user = ("x-forwarded-user", "carol");
    let caller = identify(&control, "127.0.0.1", &[user]).unwrap();
    let other = identify(&control, "127.0.0.1", &[("x-forwarded-user", "bob")]).unwrap();
    let post = |pairs: &[(&str, &str)]| {
        let checked = caller.check(TokenRole::Tracer, &Method::POST, &headers(pairs));
        checked.map_err(|refusal| refusal.status)
    };
    let [own, foreign] = [&caller, &other].map(|one| one.csrf.clone().unwrap());
    assert_eq!(post(&[]), Err(403));
    assert_eq!(post(&[(CSRF_HEADER, &foreign)]), Err(403));
    assert_eq!(post(&[(CSRF_HEADER, &own)]), Ok(()));
    assert_eq!(caller.check(TokenRole::Viewer, &Method::GET, &HeaderMap::new()), Ok(()));
    let checked = other.check(TokenRole::Tracer, &Method::GET, &HeaderMap::new());
    assert_eq!(checked.unwrap_err().reason, "expected a caller with the role tracer");
}

#[test]
fn requests_of_foreign_pages_are_refused() {
    let control = control(CONFIG, "");
    let check = |pairs: &[(&str, &str)]| control.check_site(&headers(pairs)).is_ok();
    let local = ("host", "127.0.0.1:9470");
    assert!(check(&[local]) && check(&[("host", "hub.example:80")]) && check(&[("host", "[::1]")]));
    assert!(!check(&[("host", "evil.example:9470")]) && !check(&[]));
    assert!(check(&[local, ("origin", "http://127.0.0.1:9470")]));
    assert!(check(&[local, ("origin", "https://hub.example")]));
    for origin in ["null", "http://evil.example", "http://127.0.0.1:80", "http://hub.example.evil"]
    {
        assert!(!check(&[local, ("origin", origin)]), "{origin}");
    }
}

#[test]
fn the_keys_of_the_section_fit_together() {
    for (text, problem) in [
        ("proxies = ['127.0.0.1']", "access: proxies: expected `proxies` and `user_header`"),
        ("user_header = 'a'", "access: proxies: expected `proxies` and `user_header`"),
        ("proxies = ['::1']\nuser_header = 'a b'", "access: user_header: expected the name"),
        ("groups_header = 'a'", "access: groups_header: expected `user_header`"),
        ("[[rule]]\nrole = 'viewer'", "access: rule: expected `users` or `groups`"),
        ("[[rule]]\nusers = ['a']\nrole = 'agent'", "access: rule: role: expected viewer"),
    ] {
        let config: AccessConfig = toml::from_str(text).unwrap();
        let error = config.check().unwrap_err().to_string();
        assert!(error.starts_with(problem), "{error}");
    }
}
