//! Tests credentials of requests to stores, against a local server that records the requests it
//! receives.

use std::io::Read;
use std::process::Command;

use serde_json::json;
use testkit::object_server::{ObjectServer, RecordedRequest, ServerBehavior};

use super::client::Client;
use super::credential_http::Env;
use super::object::Object;

fn client(pairs: &[(&str, &str)]) -> &'static Client {
    Box::leak(Box::new(Client::new(Env::new(pairs))))
}

fn read(client: &'static Client, input: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let object = Object::open_with(client, input).unwrap();
    object.read_from(0).read_to_end(&mut bytes).unwrap();
    bytes
}

/// Returns the last request that `server` received.
fn last(server: &ObjectServer) -> RecordedRequest {
    server.requests().pop().unwrap()
}

#[test]
fn s3_requests_are_signed_with_keys_from_the_environment() {
    let server = ObjectServer::start(ServerBehavior::default());
    server.put("/bucket/day%201/x.csv", b"content");
    let endpoint = format!("http://{}", server.host);
    let pairs = [
        ("AWS_ENDPOINT_URL_S3", endpoint.as_str()),
        ("AWS_ACCESS_KEY_ID", "ID"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_SESSION_TOKEN", "session"),
        ("AWS_REGION", "eu-west-1"),
    ];
    assert_eq!(read(client(&pairs), "s3://bucket/day 1/x.csv"), b"content");
    let headers = last(&server).headers;
    let authorization = &headers["authorization"];
    assert!(authorization.starts_with("AWS4-HMAC-SHA256 Credential=ID/"), "{authorization}");
    assert!(authorization.contains("/eu-west-1/s3/aws4_request"), "{authorization}");
    assert!(authorization.contains("if-match;range;"), "{authorization}");
    assert_eq!(headers["x-amz-security-token"], "session");
    assert_eq!(last(&server).method, "GET");
}

#[test]
fn without_keys_s3_requests_are_unsigned_and_a_refusal_mentions_it() {
    let server = ObjectServer::start(ServerBehavior::default());
    server.put("/bucket/x.csv", b"content");
    let endpoint = format!("http://{}", server.host);
    let pairs = [("AWS_ENDPOINT_URL", endpoint.as_str()), ("AWS_EC2_METADATA_DISABLED", "true")];
    let client = client(&pairs);
    assert_eq!(read(client, "s3://bucket/x.csv"), b"content");
    assert!(!last(&server).headers.contains_key("authorization"));
    server.set_behavior(ServerBehavior { refuse: Some((403, "")), ..ServerBehavior::default() });
    let error = Object::open_with(client, "s3://bucket/x.csv").map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("without credentials, as none were found"), "{error}");
}

#[test]
fn roles_of_machines_and_containers_provide_keys() {
    let server = ObjectServer::start(ServerBehavior::default());
    server.put("/bucket/x.csv", b"content");
    let role = json!({
        "AccessKeyId": "ROLE", "SecretAccessKey": "s", "Token": "t",
        "Expiration": "2100-01-01T00:00:00Z",
    });
    let role = role.to_string();
    server.put("/latest/api/token", b"metadata-token");
    server.put("/latest/meta-data/iam/security-credentials/", b"the-role\n");
    server.put("/latest/meta-data/iam/security-credentials/the-role", role.as_bytes());
    server.put("/container", role.as_bytes());
    let endpoint = format!("http://{}", server.host);
    let url = format!("{endpoint}/container");
    let machine = ("AWS_EC2_METADATA_SERVICE_ENDPOINT", endpoint.as_str());
    let container = ("AWS_CONTAINER_CREDENTIALS_FULL_URI", url.as_str());
    for own in [machine, container] {
        let before = server.requests().len();
        let client = client(&[("AWS_ENDPOINT_URL", endpoint.as_str()), own]);
        assert_eq!(read(client, "s3://bucket/x.csv"), b"content");
        assert!(last(&server).headers["authorization"].contains("Credential=ROLE/"));
        assert_eq!(last(&server).headers["x-amz-security-token"], "t");
        // The role is requested once and then cached.
        let asked = server.requests().split_off(before);
        let roles = asked.iter().filter(|request| !request.path.starts_with("/bucket"));
        assert!(roles.count() <= 3, "{asked:?}");
    }
}

#[test]
fn a_role_by_web_identity_is_assumed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "identity\n").unwrap();
    let server = ObjectServer::start(ServerBehavior::default());
    server.put("/bucket/x.csv", b"content");
    let answer = "<r><AccessKeyId>WEB</AccessKeyId><SecretAccessKey>s</SecretAccessKey>\
                  <SessionToken>t</SessionToken><Expiration>2100-01-01T00:00:00Z</Expiration></r>";
    server.put("/", answer.as_bytes());
    let (endpoint, file) = (format!("http://{}", server.host), file.display().to_string());
    let service = format!("{endpoint}/");
    let pairs = [
        ("AWS_ENDPOINT_URL", endpoint.as_str()),
        ("AWS_ENDPOINT_URL_STS", service.as_str()),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", file.as_str()),
        ("AWS_ROLE_ARN", "arn:aws:iam::1:role/r"),
    ];
    assert_eq!(read(client(&pairs), "s3://bucket/x.csv"), b"content");
    assert!(last(&server).headers["authorization"].contains("Credential=WEB/"));
    assert!(server.requests()[0].body.contains("WebIdentityToken=identity"));
}

#[test]
fn google_tokens_come_from_a_service_account_a_user_or_the_machine() {
    let folder = tempfile::tempdir().unwrap();
    let server = ObjectServer::start(ServerBehavior::default());
    server.put("/bucket/x.csv", b"content");
    server.put("/token", br#"{"access_token": "TOKEN", "expires_in": 3600}"#);
    let machine = "/computeMetadata/v1/instance/service-accounts/default/token";
    server.put(machine, br#"{"access_token": "MACHINE", "expires_in": 3600}"#);
    let uri = format!("http://{}/token", server.host);
    let made = Command::new("openssl").args(["genpkey", "-algorithm", "RSA", "-quiet"]).output();
    let key = made.ok().filter(|made| made.status.success());
    let key = key.map(|made| String::from_utf8(made.stdout).unwrap());
    let account = key.map(|key| {
        json!({
            "type": "service_account", "client_email": "a@b", "private_key": key, "token_uri": uri,
        })
    });
    if account.is_none() {
        testkit::skip("a service account", "openssl in PATH");
    }
    let user = json!({
        "type": "authorized_user", "client_id": "i", "client_secret": "s", "refresh_token": "r",
        "token_uri": uri,
    });
    for content in account.into_iter().chain([user]) {
        let file = folder.path().join("key.json");
        std::fs::write(&file, content.to_string()).unwrap();
        let file = file.display().to_string();
        let pairs = [
            ("STORAGE_EMULATOR_HOST", server.host.as_str()),
            ("GOOGLE_APPLICATION_CREDENTIALS", file.as_str()),
        ];
        assert_eq!(read(client(&pairs), "gs://bucket/x.csv"), b"content");
        assert_eq!(last(&server).headers["authorization"], "Bearer TOKEN");
    }
    let host = server.host.as_str();
    let client = client(&[("STORAGE_EMULATOR_HOST", host), ("GCE_METADATA_HOST", host)]);
    assert_eq!(read(client, "gs://bucket/x.csv"), b"content");
    assert_eq!(last(&server).headers["authorization"], "Bearer MACHINE");
}
