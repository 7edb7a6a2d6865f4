//! Controls a headless Chromium over its debugging pipe.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The bit of the shift key in the modifiers of an event.
const SHIFT: u32 = 8;
/// Longest time to wait for an answer of the browser.
const PATIENCE: Duration = Duration::from_secs(120);

/// A page that is open in a browser.
pub struct Browser {
    child: Child,
    to: File,
    from: Receiver<Value>,
    events: VecDeque<Value>,
    session: Option<String>,
    next: u64,
    is_shift: bool,
    folder: TempDir,
}

/// Finds Chromium. If there is none, it prints that the test is skipped.
fn program() -> Option<PathBuf> {
    let named = std::env::var_os("ROWMILL_CHROMIUM").map(PathBuf::from);
    let names = ["chromium", "chromium-browser", "google-chrome", "chrome-headless-shell"];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let found = named.or_else(|| {
        let places = names.iter().flat_map(|name| folders.iter().map(move |f| f.join(name)));
        places.into_iter().find(|place| place.is_file())
    });
    if found.is_none() {
        crate::skip("a page in a browser", "Chromium in PATH, or its path in ROWMILL_CHROMIUM");
    }
    found
}

impl Browser {
    /// Opens a page in the color scheme `light` or `dark`. Returns `None` if no browser is
    /// installed.
    pub fn open(page: &str, scheme: &str) -> Option<Self> {
        let mut browser = Self::start(scheme)?;
        let file = browser.folder.path().join("page.html");
        std::fs::write(&file, page).unwrap();
        browser.load(&format!("file://{}", file.display()));
        Some(browser)
    }

    /// Opens the page at an address as [`Self::open`] does.
    pub fn open_url(url: &str, scheme: &str) -> Option<Self> {
        let mut browser = Self::start(scheme)?;
        browser.load(url);
        Some(browser)
    }

    fn start(scheme: &str) -> Option<Self> {
        let program = program()?;
        let folder = tempfile::tempdir().unwrap();
        let (to, from) = (folder.path().join("to"), folder.path().join("from"));
        for pipe in [&to, &from] {
            assert!(Command::new("mkfifo").arg(pipe).status().unwrap().success());
        }
        let child = start(&program, folder.path(), &to, &from);
        // The pipes are opened in the same order as in the shell, because each open waits for the
        // other side.
        let to = OpenOptions::new().write(true).open(to).unwrap();
        let from = File::open(from).unwrap();
        let (send, receive) = channel();
        std::thread::spawn(move || {
            for message in messages(from) {
                if send.send(message).is_err() {
                    return;
                }
            }
        });
        let (events, session) = (VecDeque::new(), None);
        let mut browser =
            Self { child, to, from: receive, events, session, next: 0, is_shift: false, folder };
        browser.prepare(scheme);
        Some(browser)
    }

    fn prepare(&mut self, scheme: &str) {
        let made = self.call("Target.createTarget", &json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": made["targetId"], "flatten": true });
        let attached = self.call("Target.attachToTarget", &attach);
        self.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            self.call(domain, &json!({}));
        }
        let size = json!({ "width": 1280, "height": 800, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", &size);
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme });
        self.call("Emulation.setEmulatedMedia", &json!({ "features": [feature] }));
    }

    /// Opens another address and waits until it is loaded.
    pub fn load(&mut self, url: &str) {
        self.events.retain(|event| event["method"] != "Page.loadEventFired");
        self.call("Page.navigate", &json!({ "url": url }));
        self.wait_for("Page.loadEventFired");
    }

    /// Evaluates a JavaScript expression, awaits it if it is a promise, and returns its value.
    pub fn value(&mut self, expression: &str) -> Value {
        let asked =
            json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let answer = self.call("Runtime.evaluate", &asked);
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Presses and releases a key in the focused element.
    pub fn press(&mut self, key: &str) {
        // Keys with long names, such as Escape, produce no text.
        let text = if key.chars().count() == 1 { key } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let event = json!({ "type": kind, "key": key, "text": text });
            self.call("Input.dispatchKeyEvent", &event);
        }
    }

    /// Sets whether the shift key is held while the mouse moves.
    pub fn hold_shift(&mut self, is_shift: bool) {
        self.is_shift = is_shift;
    }

    /// Moves, presses or scrolls the mouse at a position.
    pub fn mouse(&mut self, kind: &str, [x, y]: [f64; 2], wheel: f64) {
        let button = if kind == "mouseWheel" { "none" } else { "left" };
        let event = json!({
            "type": kind, "x": x, "y": y, "button": button, "clickCount": 1,
            "deltaX": 0, "deltaY": wheel, "modifiers": if self.is_shift { SHIFT } else { 0 },
        });
        self.call("Input.dispatchMouseEvent", &event);
    }

    /// Saves a screenshot of the page as a PNG file.
    pub fn picture(&mut self, file: &Path) {
        let shot = self.call("Page.captureScreenshot", &json!({ "format": "png" }));
        std::fs::write(file, STANDARD.decode(shot["data"].as_str().unwrap()).unwrap()).unwrap();
    }

    /// Returns the exceptions of the page, and the errors and warnings in its console.
    pub fn complaints(&mut self) -> Vec<String> {
        self.value("1");
        let is_bad = |event: &&Value| match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            Some("Log.entryAdded") => event["params"]["entry"]["level"] == "error",
            Some("Runtime.consoleAPICalled") => {
                ["error", "warning", "assert"].iter().any(|kind| event["params"]["type"] == *kind)
            }
            _ => false,
        };
        self.events.iter().filter(is_bad).map(|event| event["params"].to_string()).collect()
    }

    fn call(&mut self, method: &str, params: &Value) -> Value {
        self.next += 1;
        let mut message = json!({ "id": self.next, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        self.to.write_all(format!("{message}\0").as_bytes()).unwrap();
        loop {
            let message = self.from.recv_timeout(PATIENCE).unwrap();
            if message["id"] == self.next {
                assert!(message.get("error").is_none(), "{method}: {message}");
                return message["result"].clone();
            }
            self.events.push_back(message);
        }
    }

    fn wait_for(&mut self, event: &str) {
        while !self.events.iter().any(|one| one["method"] == event) {
            let message = self.from.recv_timeout(PATIENCE).unwrap();
            self.events.push_back(message);
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts Chromium with descriptors 3 and 4 as its debugging pipe. A shell passes the descriptors,
/// because passing them from Rust requires unsafe code.
fn start(program: &Path, folder: &Path, to: &Path, from: &Path) -> Child {
    let script = "exec \"$0\" --headless --remote-debugging-pipe --no-sandbox --no-first-run \
                  --disable-background-networking --disable-component-update --disable-sync \
                  --hide-scrollbars --user-data-dir=\"$1\" about:blank 3<\"$2\" 4>\"$3\"";
    Command::new("sh")
        .args(["-c", script])
        .arg(program)
        .arg(folder.join("profile"))
        .args([to, from])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Reads JSON values, each of which is terminated by a zero byte.
fn messages(mut from: File) -> impl Iterator<Item = Value> {
    let mut kept: Vec<u8> = Vec::new();
    let mut block = vec![0; 1 << 16];
    std::iter::from_fn(move || {
        loop {
            if let Some(end) = kept.iter().position(|byte| *byte == 0) {
                let message = serde_json::from_slice(&kept[..end]).ok();
                kept.drain(..=end);
                return message;
            }
            match from.read(&mut block) {
                Ok(0) | Err(_) => return None,
                Ok(count) => kept.extend_from_slice(&block[..count]),
            }
        }
    })
}
