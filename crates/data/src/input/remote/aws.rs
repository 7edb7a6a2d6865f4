//! URLs and credentials for S3. Credentials are searched in this order: environment, files of the
//! AWS command line, web identity, container role, role of the machine.
//!
//! # Source
//! "AWS SDKs and Tools Reference Guide", standardized credential providers.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;

use super::address::{BucketKey, percent_encode};
use super::credential_http::{CredentialHttp, Env, between};
use super::problem::RemoteProblem;
use super::sign::AccessKeys;
use crate::parse::datetime;

/// Address of the metadata service of EC2 machines.
const METADATA: &str = "http://169.254.169.254";
/// Address of the metadata service of ECS containers.
const CONTAINER: &str = "http://169.254.170.2";

/// Returns the access keys of the first source that has them, or `None` if no source is configured.
pub(super) fn find_keys(
    env: &Env,
    http: &CredentialHttp,
) -> Result<Option<AccessKeys>, RemoteProblem> {
    if let (Some(id), Some(secret)) =
        (env.get("AWS_ACCESS_KEY_ID"), env.get("AWS_SECRET_ACCESS_KEY"))
    {
        let (token, origin) = (env.get("AWS_SESSION_TOKEN"), "AWS_ACCESS_KEY_ID");
        return Ok(Some(AccessKeys { id, secret, token, expires: None, origin }));
    }
    if let Some(keys) = keys_from_files(env)? {
        return Ok(Some(keys));
    }
    if let Some(keys) = keys_from_web_identity(env, http)? {
        return Ok(Some(keys));
    }
    if let Some(keys) = keys_from_container(env, http)? {
        return Ok(Some(keys));
    }
    Ok(keys_from_machine(env, http))
}

/// Returns the region for which requests are signed.
pub(super) fn find_region(env: &Env) -> String {
    let named = env.get("AWS_REGION").or_else(|| env.get("AWS_DEFAULT_REGION"));
    named.or_else(|| read_profile(env).remove("region")).unwrap_or_else(|| "us-east-1".to_owned())
}

/// Builds the URL of an object. For a custom endpoint, the bucket is part of the path instead of
/// the host.
pub(super) fn object_url(
    env: &Env,
    region: &str,
    BucketKey { bucket, key }: BucketKey<'_>,
) -> String {
    let own = env.get("AWS_ENDPOINT_URL_S3").or_else(|| env.get("AWS_ENDPOINT_URL"));
    let (bucket, key) = (percent_encode(bucket), percent_encode(key));
    match own {
        Some(own) => format!("{}/{bucket}/{key}", own.trim_end_matches('/')),
        // The wildcard certificate `*.s3.…` does not cover bucket names with dots.
        None if bucket.contains('.') => format!("https://s3.{region}.amazonaws.com/{bucket}/{key}"),
        None => format!("https://{bucket}.s3.{region}.amazonaws.com/{key}"),
    }
}

fn profile_name(env: &Env) -> String {
    env.get("AWS_PROFILE").unwrap_or_else(|| "default".to_owned())
}

/// Returns the settings of the profile. Settings in the credentials file take precedence over those
/// in the configuration file.
fn read_profile(env: &Env) -> BTreeMap<String, String> {
    let home = env.get("HOME").map(PathBuf::from).unwrap_or_default();
    let file = |name: &str, default: &str| {
        let path = env.get(name).map_or_else(|| home.join(default), PathBuf::from);
        std::fs::read_to_string(path).unwrap_or_default()
    };
    let name = profile_name(env);
    let mut settings = parse_section(&file("AWS_CONFIG_FILE", ".aws/config"), &name);
    settings.extend(parse_section(&file("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials"), &name));
    settings
}

/// Parses a section of an INI file: `[name]` or `[profile name]`.
fn parse_section(text: &str, name: &str) -> BTreeMap<String, String> {
    let mut settings = BTreeMap::new();
    let mut is_in = false;
    for line in text.lines() {
        let line = line.trim();
        if let Some(title) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let title = title.trim();
            is_in = title.strip_prefix("profile ").unwrap_or(title).trim() == name;
        } else if let Some((key, value)) = line.split_once('=')
            && is_in
            && !line.starts_with(['#', ';'])
        {
            settings.insert(key.trim().to_owned(), value.trim().to_owned());
        }
    }
    settings
}

fn keys_from_files(env: &Env) -> Result<Option<AccessKeys>, RemoteProblem> {
    let mut settings = read_profile(env);
    match (settings.remove("aws_access_key_id"), settings.remove("aws_secret_access_key")) {
        (Some(id), Some(secret)) => {
            let (token, origin) = (settings.remove("aws_session_token"), "~/.aws/credentials");
            Ok(Some(AccessKeys { id, secret, token, expires: None, origin }))
        }
        // A profile that the user names must have keys, while the default profile may lack them.
        _ if env.get("AWS_PROFILE").is_some() => {
            let name = profile_name(env);
            let problem = format!("profile {name:?} has no aws_access_key_id");
            Err(RemoteProblem::Credentials(problem))
        }
        _ => Ok(None),
    }
}

fn keys_from_web_identity(
    env: &Env,
    http: &CredentialHttp,
) -> Result<Option<AccessKeys>, RemoteProblem> {
    let (Some(file), Some(role)) =
        (env.get("AWS_WEB_IDENTITY_TOKEN_FILE"), env.get("AWS_ROLE_ARN"))
    else {
        return Ok(None);
    };
    let refused = |reason: String| {
        RemoteProblem::Credentials(format!("AWS_WEB_IDENTITY_TOKEN_FILE: {reason}"))
    };
    let token = std::fs::read_to_string(&file).map_err(|e| refused(format!("{file}: {e}")))?;
    let service = env
        .get("AWS_ENDPOINT_URL_STS")
        .unwrap_or_else(|| format!("https://sts.{}.amazonaws.com", find_region(env)));
    let session = env.get("AWS_ROLE_SESSION_NAME").unwrap_or_else(|| "rowmill".to_owned());
    let form = [
        ("Action", "AssumeRoleWithWebIdentity"),
        ("Version", "2011-06-15"),
        ("RoleArn", &role),
        ("RoleSessionName", &session),
        ("WebIdentityToken", token.trim()),
    ];
    let text = http.post(&service, &form).map_err(|problem| refused(problem.to_string()))?;
    let field = |name: &str| between(&text, &format!("<{name}>"), &format!("</{name}>"));
    let keys = (field("AccessKeyId"), field("SecretAccessKey"), field("SessionToken"));
    let (Some(id), Some(secret), token @ Some(_)) = keys else {
        return Err(refused("the response contains no keys".to_owned()));
    };
    let expires = field("Expiration").and_then(|text| parse_seconds(&text));
    Ok(Some(AccessKeys { id, secret, token, expires, origin: "AWS_WEB_IDENTITY_TOKEN_FILE" }))
}

fn keys_from_container(
    env: &Env,
    http: &CredentialHttp,
) -> Result<Option<AccessKeys>, RemoteProblem> {
    let relative = env.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
    let url = relative
        .map(|path| format!("{CONTAINER}{path}"))
        .or_else(|| env.get("AWS_CONTAINER_CREDENTIALS_FULL_URI"));
    let Some(url) = url else { return Ok(None) };
    let file = env.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
    let token = file
        .and_then(|file| std::fs::read_to_string(file).ok())
        .map(|token| token.trim().to_owned())
        .or_else(|| env.get("AWS_CONTAINER_AUTHORIZATION_TOKEN"));
    let headers: Vec<_> = token.map(|token| ("authorization", token)).into_iter().collect();
    let refused = |reason: String| {
        RemoteProblem::Credentials(format!("AWS_CONTAINER_CREDENTIALS…: {reason}"))
    };
    let text = http.get(&url, &headers).map_err(|problem| refused(problem.to_string()))?;
    let keys = parse_keys(&text, "the container's role");
    keys.ok_or_else(|| refused("the response contains no keys".to_owned())).map(Some)
}

/// Returns the keys of the machine's role, or `None` if the metadata service does not answer at
/// once.
fn keys_from_machine(env: &Env, http: &CredentialHttp) -> Option<AccessKeys> {
    if env.get("AWS_EC2_METADATA_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"))
    {
        return None;
    }
    let own = env.get("AWS_EC2_METADATA_SERVICE_ENDPOINT");
    let service = own.unwrap_or_else(|| METADATA.to_owned());
    let service = service.trim_end_matches('/');
    let ttl = ("x-aws-ec2-metadata-token-ttl-seconds", "21600".to_owned());
    let token = http.put(&format!("{service}/latest/api/token"), &[ttl]).ok()?;
    let headers = [("x-aws-ec2-metadata-token", token)];
    let roles = format!("{service}/latest/meta-data/iam/security-credentials/");
    let role = http.get(&roles, &headers).ok()?;
    let role = role.lines().next()?.trim().to_owned();
    parse_keys(&http.get(&format!("{roles}{role}"), &headers).ok()?, "the machine's role")
}

fn parse_keys(text: &str, origin: &'static str) -> Option<AccessKeys> {
    let value: Value = serde_json::from_str(text).ok()?;
    let field = |name: &str| value.get(name)?.as_str().map(str::to_owned);
    let expires = field("Expiration").and_then(|text| parse_seconds(&text));
    let (id, secret) = (field("AccessKeyId")?, field("SecretAccessKey")?);
    Some(AccessKeys { id, secret, token: field("Token"), expires, origin })
}

fn parse_seconds(text: &str) -> Option<u64> {
    datetime::parse_time(text.as_bytes(), None).ok().map(|seconds| seconds.max(0.0) as u64)
}

#[cfg(test)]
mod tests {
    use super::super::credential_http::{CredentialHttp, Env};
    use super::{BucketKey, find_keys, find_region, object_url, parse_section};

    #[test]
    fn a_profile_is_found_in_both_files() {
        let text = "[default]\nregion = eu-west-1\n[profile team]\n# no\nregion=us-west-2 \n";
        assert_eq!(parse_section(text, "team")["region"], "us-west-2");
        assert_eq!(parse_section(text, "default")["region"], "eu-west-1");
        assert!(parse_section(text, "other").is_empty());
    }

    #[test]
    fn keys_come_from_the_environment_before_the_files() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("credentials");
        std::fs::write(&file, "[team]\naws_access_key_id = A\naws_secret_access_key = B\n")
            .unwrap();
        let file = file.display().to_string();
        let base = [
            ("AWS_SHARED_CREDENTIALS_FILE", file.as_str()),
            ("AWS_PROFILE", "team"),
            ("AWS_CONFIG_FILE", "/none"),
            ("AWS_EC2_METADATA_DISABLED", "true"),
        ];
        let http = CredentialHttp::new();
        let found = find_keys(&Env::new(&base), &http).unwrap().unwrap();
        assert_eq!((found.id.as_str(), found.secret.as_str()), ("A", "B"));
        let both = [&base[..], &[("AWS_ACCESS_KEY_ID", "C"), ("AWS_SECRET_ACCESS_KEY", "D")]];
        assert_eq!(find_keys(&Env::new(&both.concat()), &http).unwrap().unwrap().id, "C");
        let other = [base[0], ("AWS_PROFILE", "sso"), base[2], base[3]];
        let Err(problem) = find_keys(&Env::new(&other), &http) else { panic!("found") };
        assert!(problem.to_string().contains("\"sso\" has no aws_access_key_id"), "{problem}");
        assert!(find_keys(&Env::new(&base[2..]), &http).unwrap().is_none());
    }

    #[test]
    fn a_bucket_is_part_of_the_host_where_certificates_allow_it() {
        let (env, place) = (Env::new(&[]), BucketKey { bucket: "b", key: "a b.csv" });
        assert_eq!(find_region(&env), "us-east-1");
        assert_eq!(
            object_url(&env, "eu-west-1", place),
            "https://b.s3.eu-west-1.amazonaws.com/a%20b.csv"
        );
        let dotted = object_url(&env, "eu-west-1", BucketKey { bucket: "b.c", key: "k" });
        assert_eq!(dotted, "https://s3.eu-west-1.amazonaws.com/b.c/k");
        let own = Env::new(&[("AWS_ENDPOINT_URL", "http://127.0.0.1:9000/")]);
        assert_eq!(object_url(&own, "x", place), "http://127.0.0.1:9000/b/a%20b.csv");
    }
}
