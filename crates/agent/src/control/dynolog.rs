//! The port that dynolog's client tools use: one length-prefixed JSON request per connection. The
//! port is bound to loopback only. The kernel identifies the user of the client, and only processes
//! of that user are traced.
//!
//! A request is forwarded to the processes unchanged, as dynolog does. The processes write their
//! traces where the request says, and the agent neither collects nor reports the result.
//! `rowmill capture` and `rowmill fleet trace` collect traces.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use fleet::capture::choose;
use fleet::ipc::request::{CaptureRequest, Reason, RequestState, Timing};
use fleet::process::own_uid;
use fleet::tracing::unique_token;
use fleet::wire::Pause;
use procfs::net::{TcpNetEntry, TcpState};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::gate::{Admission, Peer};
use crate::state::{AgentState, lock};
use crate::uids::Uids;

/// Longest duration of a connection from a dynolog client.
const PATIENCE: Duration = Duration::from_secs(3);
/// Most requests that are answered at the same time. Each one searches the connections of the whole
/// host for its own, so many at once would load the CPU.
const ANSWERS_MAX: usize = 2;
/// Largest size of a dynolog request in bytes.
const REQUEST_MAX: usize = 64 << 10;
/// Largest size of a trace configuration in bytes. Kineto does not read longer ones.
const CONFIG_MAX: usize = 8 << 10;
/// Longest wait until a process polls for its pending request.
const HAND_OVER: Duration = Duration::from_secs(60);
/// Time between two checks whether the process has polled for its request.
const LOOK: Duration = Duration::from_millis(200);
/// Largest number of processes to trace if the request sets no limit.
const PROCESSES_MAX: usize = 1000;

/// A request in dynolog's format. Each kind of request uses only some of the fields.
#[derive(Debug, Deserialize)]
pub struct DynologRequest {
    #[serde(rename = "fn")]
    verb: String,
    #[serde(default)]
    config: String,
    #[serde(default)]
    pids: Vec<u32>,
    #[serde(default)]
    job_id: i64,
    process_limit: Option<usize>,
    #[serde(default)]
    duration_s: u64,
}

/// dynolog's answer to a trace request: the matched processes, and which of them were triggered.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Matched {
    processes_matched: Vec<i32>,
    activity_profilers_triggered: Vec<i32>,
    event_profilers_triggered: Vec<i32>,
    activity_profilers_busy: u32,
    event_profilers_busy: u32,
    /// Reason why the trace configuration was refused. dynolog does not check it, so its answer
    /// lacks this field.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Serves dynolog's clients until the runtime shuts down.
pub async fn serve(listener: TcpListener, state: Arc<AgentState>) {
    let answers = Arc::new(Semaphore::new(ANSWERS_MAX));
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            tokio::time::sleep(PATIENCE / 100).await;
            continue;
        };
        let Some(pass) = state.gates.dynolog.enter(Peer::at(from.ip())) else { continue };
        let (state, answers) = (Arc::clone(&state), Arc::clone(&answers));
        tokio::spawn(async move {
            let served = connection(stream, from, state, answers, &pass);
            tokio::select! {
                // A client whose request is slow or malformed gets no answer; its connection is
                // closed.
                _ = tokio::time::timeout(PATIENCE, served) => {}
                () = pass.ended() => {}
            }
        });
        tokio::task::yield_now().await;
    }
}

async fn connection(
    mut stream: TcpStream,
    from: SocketAddr,
    state: Arc<AgentState>,
    answers: Arc<Semaphore>,
    pass: &Admission,
) -> Option<()> {
    let to = stream.local_addr().ok()?;
    let mut length = [0; 4];
    stream.read_exact(&mut length).await.ok()?;
    let length = usize::try_from(i32::from_ne_bytes(length)).ok()?;
    if length > REQUEST_MAX {
        return None;
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await.ok()?;
    let _busy = pass.busy();
    let turn = answers.acquire().await.ok()?;
    let own = Arc::clone(&state);
    let (answer, asked) = tokio::task::spawn_blocking(move || {
        let uid = owner(from, to)?;
        answer(&own, uid, &bytes)
    })
    .await
    .ok()??;
    drop(turn);
    for (pid, since) in asked {
        tokio::spawn(hand_over(Arc::clone(&state), pid, since));
    }
    let text = serde_json::to_vec(&answer).ok()?;
    let length = i32::try_from(text.len()).ok()?;
    stream.write_all(&length.to_ne_bytes()).await.ok()?;
    stream.write_all(&text).await.ok()
}

/// Finds the user of the client's end of a connection in the kernel's table of sockets.
fn owner(from: SocketAddr, to: SocketAddr) -> Option<u32> {
    let plain = |at: SocketAddr| (at.ip().to_canonical(), at.port());
    let is_it = |entry: &TcpNetEntry| {
        let ends = (plain(entry.local_address), plain(entry.remote_address));
        entry.state == TcpState::Established && ends == (plain(from), plain(to))
    };
    let tables = [procfs::net::tcp(), procfs::net::tcp6()];
    tables.into_iter().flatten().flatten().find(is_it).map(|entry| entry.uid)
}

/// Process ids of the requested processes, each with the time of the request.
type AskedProcesses = Vec<(u32, Duration)>;

/// Parses the JSON of a request from dynolog's client tools.
pub fn parse(bytes: &[u8]) -> Option<DynologRequest> {
    serde_json::from_slice(bytes).ok()
}

impl DynologRequest {
    /// Checks that Kineto will accept the trace configuration of this request.
    ///
    /// # Errors
    /// If a line is malformed, because Kineto silently drops such a request.
    pub fn check(&self) -> Result<(), String> {
        check(&self.config)
    }
}

fn answer(state: &AgentState, uid: u32, bytes: &[u8]) -> Option<(Value, AskedProcesses)> {
    let wanted = parse(bytes)?;
    let who = format!("user {uid} by dynolog's port");
    match wanted.verb.as_str() {
        "getStatus" => Some((json!({"status": 1}), Vec::new())),
        "getVersion" => Some((json!({"version": env!("CARGO_PKG_VERSION")}), Vec::new())),
        "setKinetOnDemandRequest" => {
            let (matched, asked) = request(state, uid, &wanted);
            let outcome = match &matched.error {
                Some(error) => format!("refused: {error}"),
                None => format!("{} processes", asked.len()),
            };
            state.audit.line(&who, "trace", &wanted.config.replace('\n', " "), &outcome);
            Some((serde_json::to_value(matched).ok()?, asked))
        }
        "dcgmProfPause" => Some((pause(state, uid, &who, wanted.duration_s), Vec::new())),
        "dcgmProfResume" => Some((pause(state, uid, &who, 0), Vec::new())),
        _ => None,
    }
}

/// Pauses the counters of all GPUs. Only root and the agent's own user may do that.
fn pause(state: &AgentState, uid: u32, who: &str, seconds: u64) -> Value {
    let gpus: Vec<u32> = lock(&state.gpus).iter().map(|gpu| gpu.identity.index).collect();
    let is_granted = uid == 0 || uid == own_uid();
    let is_done = is_granted
        && !gpus.is_empty()
        && gpus.iter().all(|&gpu| state.pause(who, Pause { gpu, seconds }).is_ok());
    json!({"status": is_done})
}

fn request(state: &AgentState, uid: u32, wanted: &DynologRequest) -> (Matched, AskedProcesses) {
    let mut matched = Matched::default();
    if let Err(problem) = wanted.check() {
        matched.error = Some(problem);
        return (matched, Vec::new());
    }
    state.look();
    let uids = if uid == 0 { Uids::All } else { Uids::Only(vec![uid]) };
    let pids = if wanted.pids == [0] { &[] } else { wanted.pids.as_slice() };
    let processes = lock(&state.roster).processes();
    let seen = state.server.seen();
    let mut asked = Vec::new();
    for (process, (pid, skip)) in processes.iter().zip(choose(&processes, pids, 0)) {
        let Some(seen) = seen.iter().find(|seen| seen.pid == pid) else { continue };
        let is_meant = skip.is_none() && seen.job == wanted.job_id && uids.has(process.uid);
        let limit = wanted.process_limit.unwrap_or(PROCESSES_MAX);
        if !is_meant || matched.processes_matched.len() >= limit {
            continue;
        }
        matched.processes_matched.push(seen.own_pid);
        let id = format!("rowmill-{}-{pid}", unique_token());
        let text = format!("{}\nREQUEST_TRACE_ID={id}\n", wanted.config.trim_end());
        let now = state.server.now();
        let request = CaptureRequest::new(now, text, id, Timing::Iterations, HAND_OVER);
        if seen.is_free && state.server.request(pid, request).is_some() {
            matched.activity_profilers_triggered.push(seen.own_pid);
            asked.push((pid, now));
        } else {
            matched.activity_profilers_busy += 1;
        }
    }
    (matched, asked)
}

fn check(config: &str) -> Result<(), String> {
    if config.len() > CONFIG_MAX {
        return Err(format!("config: expected at most {CONFIG_MAX} bytes, got {}", config.len()));
    }
    let is_line = |line: &&str| {
        let is_plain = line.bytes().all(|byte| (b' '..0x7f).contains(&byte));
        is_plain && (line.is_empty() || line.starts_with('#') || line.matches('=').count() == 1)
    };
    match config.lines().map(str::trim).find(|line| !is_line(line)) {
        Some(line) => Err(format!("config: expected lines KEY=VALUE, got {line:?}")),
        None if config.trim().is_empty() => Err("config: expected KEY=VALUE, got none".to_owned()),
        None => Ok(()),
    }
}

/// Ends a request once the process has polled it. The result of a dynolog request is not tracked,
/// so the process becomes free for another request.
async fn hand_over(state: Arc<AgentState>, pid: u32, since: Duration) {
    loop {
        let is_waiting = matches!(state.server.state(pid), Some(RequestState::Requested));
        let is_late = state.server.now() > since + HAND_OVER;
        if !is_waiting || is_late {
            return state
                .server
                .lose(pid, if is_late { Reason::Silent } else { Reason::Interrupted });
        }
        tokio::time::sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::{check, owner};

    #[test]
    fn only_lines_that_kineto_parses_are_passed_on() {
        assert_eq!(
            check("ACTIVITIES_LOG_FILE=/tmp/a.json\n\n# b=c=d\nPROFILE_START_TIME=0"),
            Ok(())
        );
        for wrong in ["", "\n", "a", "a=b=c", "a=\u{1}b", "a=é"] {
            assert!(check(wrong).is_err(), "{wrong:?}");
        }
        assert!(check(&"a=b\n".repeat(3000)).unwrap_err().contains("at most 8192 bytes"));
    }

    #[test]
    fn the_user_of_a_connection_is_found_in_the_kernel_table() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                testkit::skip(address, "an address of this kind on the host");
                continue;
            };
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (from, to) = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
            assert_eq!(owner(from, to), Some(fleet::process::own_uid()), "{address}");
            drop((stream, listener));
            assert_eq!(owner(from, from), None);
        }
    }
}
