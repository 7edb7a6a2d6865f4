//! Who may ask for what, what the audit log says about it, and that `openapi.json` describes it.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};

use fleet::proto::{BATCHES, CONTENT_TYPE};
use hub::server::{self, orders};
use serde_json::{Value, json};
use testkit::ProgramOutput;

use crate::fixture::{Answer, TestHub, WAIT, add_token, ask};
use crate::view::{get, start};

const LINES: &str = "[access]\nproxies = ['127.0.0.1']\nuser_header = 'X-User'\n\
                     hosts = ['hub.example']\n\
                     [[access.rule]]\nusers = ['carol']\nrole = 'admin'";

fn description() -> Value {
    serde_json::from_str(include_str!("../../openapi.json")).unwrap()
}

/// Compares a value with a schema of `openapi.json`. Returns the first difference.
fn compare(document: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    if let Some(name) = schema["$ref"].as_str() {
        let pointed = document.pointer(name.trim_start_matches('#'));
        return compare(document, pointed.ok_or(format!("{at}: no {name}"))?, value, at);
    }
    if let Some(choices) = schema["enum"].as_array()
        && !choices.contains(value)
    {
        return Err(format!("{at}: expected one of {choices:?}, got {value}"));
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let is_kind = |name: &Value| name == kind || (name == "number" && kind == "integer");
    let is_expected = match &schema["type"] {
        Value::Null => true,
        Value::Array(names) => names.iter().any(is_kind),
        name => is_kind(name),
    };
    if !is_expected {
        return Err(format!("{at}: expected {}, got {value}", schema["type"]));
    }
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        compare(document, &schema["items"], item, &format!("{at}[{index}]"))?;
    }
    let Some(members) = value.as_object() else { return Ok(()) };
    let required = schema["required"].as_array().into_iter().flatten();
    if let Some(missing) = required.map(|n| n.as_str().unwrap()).find(|n| value.get(n).is_none()) {
        return Err(format!("{at}: lacks {missing}"));
    }
    for (name, member) in members {
        let schema = schema["properties"].get(name);
        let schema = schema.ok_or(format!("{at}: {name} is not in openapi.json"))?;
        compare(document, schema, member, &format!("{at}.{name}"))?;
    }
    Ok(())
}

#[test]
fn every_route_and_answer_is_as_openapi_describes() {
    let document = description();
    let mut described = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let role = operation["x-role"].as_str().unwrap_or("nobody");
            described.insert((method.clone(), path.clone(), role.to_owned()));
        }
    }
    let served = server::routes().into_iter().chain(orders::routes()).map(|route| {
        let role = route.role.map_or("nobody", |role| role.name());
        (route.method.to_owned(), route.path.to_owned(), role.to_owned())
    });
    assert_eq!(served.collect::<BTreeSet<_>>(), described);

    let (hub, viewer) = start("");
    for (path, query) in [
        ("/hub/v1/doctor", "?run=slurm/101"),
        ("/hub/v1/sums", "?since=3h&by=user&by=run&step=hour"),
        ("/hub/v1/sums", "?since=1&until=60"),
        ("/hub/v1/sums", "?since=3h&tree=cpu&by=host"),
        ("/hub/v1/opportunities", "?since=3h"),
        ("/hub/v1/faults", "?since=3h"),
        ("/hub/v1/runs", "?since=3h"),
        ("/hub/v1/hosts", "?since=3h"),
        ("/hub/v1/findings", "?since=3h"),
        ("/hub/v1/notices", "?since=3h&user=anna"),
        ("/hub/v1/orders", "?since=3h"),
        ("/hub/v1/traces", "?since=3h"),
        ("/hub/v1/me", ""),
    ] {
        let answer = get(&hub, &viewer, &format!("{path}{query}"), "localhost");
        assert_eq!(answer.status, 200, "{answer:?}");
        let content = &document["paths"][path]["get"]["responses"]["200"]["content"];
        let schema = &content["application/json"]["schema"];
        assert!(schema.is_object(), "{path}");
        let value = serde_json::from_slice(&answer.body).unwrap();
        compare(&document, schema, &value, path).unwrap();
        // A member that is not described is found.
        assert!(compare(&document, schema, &json!({"further": 1}), path).is_err());
    }
}

#[test]
fn requests_are_refused_by_role_origin_and_proxy_and_recorded() {
    let hub = TestHub::start(LINES);
    let tokens = ["viewer", "tracer", "admin"].map(|role| add_token(&hub.folder, role, "anna"));
    let [viewer, tracer, admin] = &tokens;
    let send = |method: &str, path: &str, headers: &str| -> Answer {
        let request = format!(
            "{method} {path} HTTP/1.1\r\n{headers}Content-Length: 0\r\nConnection: close\r\n\r\n"
        );
        ask(&hub.address, request.as_bytes()).unwrap()
    };
    let local = "Host: localhost\r\n";
    let bearer = |token: &str| format!("{local}Authorization: Bearer {token}\r\n");
    // The hub reads the new tokens without a restart.
    let began = Instant::now();
    while send("GET", "/hub/v1/me", &bearer(admin)).body == b"null" {
        assert!(began.elapsed() < WAIT, "the new tokens are not known");
        std::thread::sleep(Duration::from_millis(50));
    }
    let pid = hub.child.id().to_string();
    ProgramOutput::collect(Command::new("kill").args(["-HUP", &pid])).expect_code(0, "kill");
    let typed = format!("Content-Type: {CONTENT_TYPE}\r\n");
    let cases = [
        (200, "GET", "/hub/v1/sums", bearer(viewer)),
        (200, "GET", "/hub/v1/sums", bearer(tracer)),
        (200, "GET", "/hub/v1/sums", bearer(admin)),
        (403, "GET", "/hub/v1/sums", bearer(&hub.token)),
        (401, "GET", "/hub/v1/sums", local.to_owned()),
        // Nobody but an agent sends rows.
        (403, "POST", BATCHES, bearer(admin) + &typed),
        (200, "GET", "/hub/v1/sums", format!("{local}X-User: carol\r\n")),
        (200, "GET", "/hub/v1/sums", "Host: hub.example\r\nX-User: carol\r\n".to_owned()),
        (403, "GET", "/hub/v1/sums", "Host: evil.example\r\nX-User: carol\r\n".to_owned()),
        (403, "GET", "/hub/v1/sums", format!("{local}X-User: bob\r\n")),
        (400, "GET", "/hub/v1/sums", format!("{local}X-User: bob\r\nX-User: carol\r\n")),
        (403, "GET", "/hub/v1/sums", bearer(viewer) + "Origin: http://evil.example\r\n"),
        (405, "POST", "/hub/v1/sums", bearer(viewer)),
    ];
    for (status, method, path, headers) in &cases {
        let answer = send(method, path, headers);
        assert_eq!(answer.status, *status, "{method} {path} {headers}: {answer:?}");
        let body: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(body["error"].is_string(), *status != 200, "{body}");
    }
    let me: Value = serde_json::from_slice(
        &send("GET", "/hub/v1/me", &format!("{local}X-User: carol\r\n")).body,
    )
    .unwrap();
    assert_eq!((&me["name"], &me["role"]), (&json!("carol"), &json!("admin")));
    assert!(me["csrf"].as_str().is_some_and(|token| token.len() == 64), "{me}");
    assert_eq!(send("GET", "/hub/v1/me", local).body, b"null");

    let text = std::fs::read_to_string(hub.folder.path("store/audit/audit.jsonl")).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let statuses: Vec<u64> = lines.iter().map(|line| line["status"].as_u64().unwrap()).collect();
    let expected: Vec<u64> =
        cases.iter().map(|case| case.0.into()).filter(|status| *status != 405).collect();
    assert_eq!(statuses, expected);
    assert_eq!((&lines[0]["who"], &lines[0]["role"]), (&json!("anna"), &json!("viewer")));
    assert_eq!(lines[4]["who"], Value::Null);
    assert_eq!((&lines[6]["who"], &lines[6]["is_by_proxy"]), (&json!("carol"), &json!(true)));
    assert_eq!(lines[5]["note"], "expected a caller with the role agent");
    assert!(!text.contains(viewer.as_str()), "a token is in the log");
}
