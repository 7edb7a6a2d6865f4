//! A small HTTP server for objects, which can simulate the failures of real servers.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

/// Behavior of the server, including the failures that it simulates.
#[derive(Clone, Debug, Default)]
pub struct ServerBehavior {
    /// Ignores range requests, as simple servers do.
    pub no_ranges: bool,
    /// Omits the length of responses that contain a whole object.
    pub no_length: bool,
    /// Sends neither an entity tag nor a modification time.
    pub no_version: bool,
    /// Closes the connection in the middle of every n-th response.
    pub break_every: Option<usize>,
    /// Responds with status 503 to every n-th request.
    pub busy_every: Option<usize>,
    /// Replaces the object after this number of requests.
    pub change_after: Option<usize>,
    /// Responds with this status and body to all requests.
    pub refuse: Option<(u16, &'static str)>,
}

/// A request that the server has received.
#[derive(Clone, Debug)]
pub struct RecordedRequest {
    pub method: String,
    pub path: String,
    /// Values of the headers by name, in lower case.
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

/// The state that all connections of a server share.
#[derive(Default)]
struct State {
    objects: BTreeMap<String, Vec<u8>>,
    behavior: ServerBehavior,
    requests: Vec<RecordedRequest>,
}

/// A handle to the server, which runs until the process ends.
#[derive(Clone)]
pub struct ObjectServer {
    /// Address and port of the server, as they are written in a URL.
    pub host: String,
    state: Arc<Mutex<State>>,
}

impl ObjectServer {
    /// Starts a server on a free port of the loopback address.
    pub fn start(behavior: ServerBehavior) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let state = Arc::new(Mutex::new(State { behavior, ..State::default() }));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                std::thread::spawn(move || while answer(&stream, &state) {});
            }
        });
        Self { host, state }
    }

    /// Stores an object at `path`, which begins with `/`. Returns the URL of the object.
    pub fn put(&self, path: &str, content: &[u8]) -> String {
        lock(&self.state).objects.insert(path.to_owned(), content.to_vec());
        format!("http://{}{path}", self.host)
    }

    /// Returns all requests that the server has received so far.
    pub fn requests(&self) -> Vec<RecordedRequest> {
        lock(&self.state).requests.clone()
    }

    /// Changes the behavior of the server from the next request on.
    pub fn set_behavior(&self, behavior: ServerBehavior) {
        lock(&self.state).behavior = behavior;
    }
}

fn lock(state: &Mutex<State>) -> std::sync::MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read(stream: &TcpStream) -> Option<RecordedRequest> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|&bytes| bytes > 0)?;
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(RecordedRequest {
        method,
        path,
        headers,
        body: String::from_utf8_lossy(&body).into_owned(),
    })
}

/// Handles one request and returns whether the connection stays open.
fn answer(mut stream: &TcpStream, state: &Mutex<State>) -> bool {
    let Some(request) = read(stream) else { return false };
    let (number, behavior, content) = {
        let mut state = lock(state);
        state.requests.push(request.clone());
        let path = request.path.split('?').next().unwrap_or_default();
        (state.requests.len(), state.behavior.clone(), state.objects.get(path).cloned())
    };
    let every = |n: Option<usize>| n.is_some_and(|n| number.is_multiple_of(n));
    let mut plain = |status: u16, headers: &str, body: &[u8]| {
        let head =
            format!("HTTP/1.1 {status} X\r\n{headers}content-length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).is_ok()
    };
    if let Some((status, body)) = behavior.refuse {
        return plain(status, "", body.as_bytes());
    }
    if every(behavior.busy_every) {
        return plain(503, "", b"");
    }
    let Some(mut content) = content else { return plain(404, "", b"") };
    // The sum of the bytes suffices as a tag, because a changed object gets the tag `"other"`.
    let mut tag = format!("\"{:x}\"", content.iter().map(|&b| u64::from(b)).sum::<u64>());
    if behavior.change_after.is_some_and(|after| number > after) {
        content.reverse();
        tag = "\"other\"".to_owned();
    }
    if request.headers.get("if-match").is_some_and(|wanted| *wanted != tag) {
        return plain(412, "", b"");
    }
    let version = if behavior.no_version { String::new() } else { format!("etag: {tag}\r\n") };
    let range = request.headers.get("range").filter(|_| !behavior.no_ranges);
    let Some(range) = range else {
        let length = match behavior.no_length {
            true => "connection: close\r\n".to_owned(),
            false => format!("content-length: {}\r\n", content.len()),
        };
        let is_cut = content.len() > 1 && every(behavior.break_every);
        let sent = if is_cut { content.len() / 2 } else { content.len() };
        let head = format!("HTTP/1.1 200 OK\r\n{version}{length}\r\n");
        let wrote = stream.write_all(head.as_bytes());
        let wrote = wrote.and_then(|()| stream.write_all(&content[..sent])).is_ok();
        // The end of the connection ends the body, either because no length was sent or because the
        // body is cut.
        if is_cut || behavior.no_length {
            let _ = stream.shutdown(std::net::Shutdown::Both);
            return false;
        }
        return wrote;
    };
    let (first, last) = range.strip_prefix("bytes=").and_then(|r| r.split_once('-')).unwrap();
    let first: usize = first.parse().unwrap();
    let whole = content.len();
    let last = last.parse::<usize>().unwrap().min(whole.saturating_sub(1));
    if first >= whole {
        return plain(416, &format!("content-range: bytes */{whole}\r\n"), b"");
    }
    let body = &content[first..=last];
    let is_cut = body.len() > 1 && every(behavior.break_every);
    let sent = if is_cut { body.len() / 2 } else { body.len() };
    let head = format!(
        "HTTP/1.1 206 X\r\n{version}content-range: bytes {first}-{last}/{whole}\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    let wrote = stream.write_all(head.as_bytes());
    let wrote = wrote.and_then(|()| stream.write_all(&body[..sent])).is_ok();
    if is_cut {
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
    wrote && !is_cut
}
