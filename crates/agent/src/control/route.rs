//! The HTTP routes of the agent: which path calls which handler, and the handlers themselves.

use std::io::{Read, Seek, SeekFrom};
use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, Query, Request, State as From};
use axum::http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use fleet::allocation::{self, SchedulerRun};
use fleet::process::Process;
use fleet::wire::{
    GpuRow, OrderRefusal, Pause, ProcessRow, ROOT, SampleOrder, Status, TraceOrder, TraceState,
};
use serde::Deserialize;

use super::caller::{Caller, CallerSecret, ServiceContext, authorize};
use crate::config::Verb;
use crate::page::{self, dcgm, fleet as metrics};
use crate::samples;
use crate::state::{AgentState, lock, unix_ns};
use crate::uids::Uids;

/// Largest number of bytes of a trace in one answer. The client fetches the rest with further
/// requests.
const PART: u64 = 4 << 20;

/// Returns the routes of the pages for scrapers. The pages require a token if the configuration
/// names one.
pub fn pages(context: ServiceContext) -> Router {
    let pages = pages_alone(context.clone());
    if context.page_secrets.is_empty() {
        return pages;
    }
    pages.layer(middleware::from_fn_with_state((context.page_secrets.clone(), context), identify))
}

fn pages_alone(context: ServiceContext) -> Router {
    Router::new()
        .route("/metrics", get(metrics_page))
        .route("/metrics/dcgm", get(dcgm_page))
        .with_state(context)
}

/// Returns the routes of commands, for authenticated callers.
pub fn commands(context: ServiceContext) -> Router {
    Router::new()
        .route(&format!("{ROOT}/status"), get(status))
        .route(&format!("{ROOT}/traces"), post(begin))
        .route(&format!("{ROOT}/traces/{{token}}"), get(state).delete(remove))
        .route(&format!("{ROOT}/traces/{{token}}/{{name}}"), get(fetch))
        .route(&format!("{ROOT}/pause"), post(pause))
        .route(&format!("{ROOT}/samples"), post(sample))
        .with_state(context)
}

/// Returns the routes of commands and pages for callers from other hosts, who need a token.
pub fn remote(context: ServiceContext) -> Router {
    let state = (context.secrets.clone(), context.clone());
    let pages = pages_alone(context.clone()).layer(middleware::from_fn(may_read_pages));
    commands(context).merge(pages).layer(middleware::from_fn_with_state(state, identify))
}

async fn may_read_pages(
    Extension(caller): Extension<Caller>,
    request: Request,
    next: Next,
) -> Response {
    let lack = match caller.uids {
        _ if !caller.verbs.contains(&Verb::Status) => "not granted: status",
        Uids::All => return next.run(request).await,
        Uids::Only(_) => "the pages show every user's jobs, and this token is for some users only",
    };
    refuse(StatusCode::FORBIDDEN, format!("{}: {lack}", caller.name))
}

async fn identify(
    From((secrets, context)): From<(Arc<Vec<CallerSecret>>, ServiceContext)>,
    Extension(from): Extension<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Response {
    let header = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    match authorize(&secrets, header, from.ip()) {
        Some(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        None => {
            let path = request.uri().path().to_owned();
            context.state.audit.stranger(&from.ip().to_string(), &path, "refused: no valid token");
            // The message does not tell an unknown token from one at the wrong address, because a
            // guess must not reveal that a token exists.
            let got = header
                .as_ref()
                .map_or("none", |_| "one that is unknown or not valid for this address");
            let expected =
                format!("expected a token that is valid from {}", from.ip().to_canonical());
            refuse(StatusCode::UNAUTHORIZED, format!("{expected}, got {got}"))
        }
    }
}

fn refuse(status: StatusCode, error: impl Into<String>) -> Response {
    Denied { status, error: error.into() }.into_response()
}

/// The reason why a request is refused, with the HTTP status of the answer.
struct Denied {
    status: StatusCode,
    error: String,
}

impl IntoResponse for Denied {
    fn into_response(self) -> Response {
        (self.status, Json(OrderRefusal { error: self.error })).into_response()
    }
}

/// Checks that a caller has the permission `verb`. Writes an audit line if it does not.
fn may(context: &ServiceContext, caller: &Caller, verb: Verb, what: &str) -> Result<(), Denied> {
    if caller.verbs.contains(&verb) {
        return Ok(());
    }
    let verb = format!("{verb:?}").to_lowercase();
    context.state.audit.line(&caller.name, &verb, what, "refused: not granted");
    let error = format!("{}: not granted: {verb}", caller.name);
    Err(Denied { status: StatusCode::FORBIDDEN, error })
}

async fn metrics_page(From(context): From<ServiceContext>, headers: HeaderMap) -> Response {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let families = metrics::families(&context.state);
    let (kind, page) = if page::wants_openmetrics(accept) {
        (page::OPENMETRICS, families.openmetrics())
    } else {
        (page::TEXT, families.text())
    };
    match page {
        Ok(page) => ([(CONTENT_TYPE, kind)], page).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn dcgm_page(From(context): From<ServiceContext>) -> Response {
    ([(CONTENT_TYPE, page::TEXT)], dcgm::page_text(&context.state, &context.fields)).into_response()
}

async fn status(
    From(context): From<ServiceContext>,
    Extension(caller): Extension<Caller>,
) -> Response {
    if let Err(refused) = may(&context, &caller, Verb::Status, "status") {
        return refused.into_response();
    }
    let own = Arc::clone(&context.state);
    // Runs on a blocking thread, because scanning `/proc` takes longer than other connections may
    // wait.
    let looked = tokio::task::spawn_blocking(move || {
        own.look();
        host_status(&own, &caller)
    });
    match looked.await {
        Ok(status) => Json(status).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Collects the state of the host, restricted to the processes that the caller may see.
fn host_status(state: &AgentState, caller: &Caller) -> Status {
    let periodic = crate::periodic::rows(state, &caller.uids);
    // The notes are collected before the locks below are taken, because collecting them locks the
    // GPUs too.
    let notes = [state.all_notes(), crate::periodic::notes(&periodic)].concat();
    let now = state.server.now();
    let asked = lock(&state.roster).processes();
    let choices = fleet::capture::choose(&asked, &[], 0);
    let seen = state.server.seen();
    let user_names = allocation::user_names();
    let gpus = lock(&state.gpus);
    let owners = lock(&state.owners);
    let steps = lock(&state.steps);
    let mut processes = Vec::new();
    for (process, (pid, skip)) in asked.iter().zip(choices) {
        let Some(seen) = seen.iter().find(|seen| seen.pid == pid) else { continue };
        if !caller.uids.has(process.uid) {
            continue;
        }
        let progress = steps.progress(pid);
        let step_time = progress.and_then(fleet::steps::StepProgress::step_time);
        let run = owners.runs().get(&pid);
        processes.push(ProcessRow {
            pid,
            uid: process.uid,
            user: user_names.get(&process.uid).cloned(),
            rank: process.rank(),
            world_size: process.world_size(),
            job: run.map(|run| run.job.clone()),
            names: run.map(SchedulerRun::names).unwrap_or_default(),
            command: process.command.join(" "),
            polled_ms: u64::try_from(now.saturating_sub(seen.polled).as_millis())
                .unwrap_or(u64::MAX),
            is_free: seen.is_free,
            skip: skip.map(|skip| skip.words().to_owned()),
            phase: progress.map(|progress| progress.phase.word().to_owned()),
            step: progress.map(|progress| progress.step),
            step_ns: step_time.and_then(|time| u64::try_from(time.as_nanos()).ok()),
            is_hung: progress.is_some_and(|progress| state.is_hung(pid, progress, &gpus, &owners)),
        });
    }
    let row = |gpu: &crate::state::GpuState| GpuRow {
        index: gpu.identity.index,
        uuid: gpu.identity.uuid.clone(),
        model: gpu.identity.model.clone(),
        lost: gpu.lost.clone(),
        busy: gpu.busy(),
        sm_active: gpu.intervals.share(|sums| sums.sm_active_s),
        observed_s: gpu.intervals.last.as_ref().map_or(0.0, |row| row.sums.observed_s),
        job: owners.runs_on(&gpu.identity.uuid).first().map(|run| run.job.clone()),
        is_held_idle: metrics::is_held_idle(&owners, gpu).unwrap_or(false),
        paused_s: state.paused(gpu.identity.index),
    };
    Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        host: state.host.clone(),
        unix_ns: unix_ns(),
        processes,
        gpus: gpus.iter().map(row).collect(),
        notes,
        periodic,
    }
}

async fn begin(
    From(context): From<ServiceContext>,
    Extension(caller): Extension<Caller>,
    order: Result<Json<TraceOrder>, JsonRejection>,
) -> Response {
    let order = match order {
        Ok(Json(order)) => order,
        Err(problem) => return refuse(problem.status(), problem.body_text()),
    };
    let what = order.to_string();
    if let Err(refused) = may(&context, &caller, Verb::Trace, &what) {
        return refused.into_response();
    }
    let (traces, uids) = (Arc::clone(&context.traces), caller.uids.clone());
    let begun = tokio::task::spawn_blocking(move || traces.begin(order, uids)).await;
    let begun = begun.unwrap_or_else(|_| Err("the agent failed".to_owned()));
    let outcome = begun.as_ref().map_or_else(String::clone, |begun| {
        whose(&context.state, begun.rows.iter().map(|row| row.pid))
    });
    context.state.audit.line(&caller.name, "trace", &what, &outcome);
    match begun {
        Ok(state) => (StatusCode::CREATED, Json(state)).into_response(),
        Err(problem) => refuse(StatusCode::CONFLICT, problem),
    }
}

/// Lists processes for an audit line, each with its user and its job.
fn whose(state: &AgentState, pids: impl Iterator<Item = u32>) -> String {
    let owners = lock(&state.owners);
    let one = |pid: u32| {
        let user = Process::read(pid).map(|process| format!(" of user {}", process.uid));
        let user = user.unwrap_or_default();
        let job = owners.runs().get(&pid).map_or(String::new(), |run| format!(" in {}", run.job));
        format!("process {pid}{user}{job}")
    };
    let all: Vec<String> = pids.map(one).collect();
    if all.is_empty() { "no process".to_owned() } else { all.join(", ") }
}

/// Finds an order that the caller may see. The names of orders are hard to guess but not secret, so
/// the users of the order are compared with the caller's.
fn find(context: &ServiceContext, caller: &Caller, token: &str) -> Result<TraceState, Denied> {
    may(context, caller, Verb::Trace, token)?;
    let error = || format!("order {token:?}: does not exist");
    let unknown = || Denied { status: StatusCode::NOT_FOUND, error: error() };
    let state = context.traces.state(token).ok_or_else(unknown)?;
    if context.traces.owner(token).is_none_or(|uids| caller.uids.covers(&uids)) {
        Ok(state)
    } else {
        Err(unknown())
    }
}

async fn state(
    From(context): From<ServiceContext>,
    Extension(caller): Extension<Caller>,
    Path(token): Path<String>,
) -> Response {
    match find(&context, &caller, &token) {
        Ok(state) => Json(state).into_response(),
        Err(refused) => refused.into_response(),
    }
}

async fn remove(
    From(context): From<ServiceContext>,
    Extension(caller): Extension<Caller>,
    Path(token): Path<String>,
) -> Response {
    if let Err(refused) = find(&context, &caller, &token) {
        return refused.into_response();
    }
    let traces = Arc::clone(&context.traces);
    context.state.audit.line(&caller.name, "forget", &token, "done");
    // Another caller may have removed the order already, which gives the same result, so errors are
    // ignored.
    let _ = tokio::task::spawn_blocking(move || traces.cancel(&token)).await;
    StatusCode::NO_CONTENT.into_response()
}

/// The query of a request that fetches a trace: the offset in bytes at which the answer begins.
#[derive(Debug, Deserialize)]
struct Since {
    #[serde(default)]
    from: u64,
}

async fn fetch(
    From(context): From<ServiceContext>,
    Extension(caller): Extension<Caller>,
    Path((token, name)): Path<(String, String)>,
    Query(since): Query<Since>,
) -> Response {
    if let Err(refused) = find(&context, &caller, &token) {
        return refused.into_response();
    }
    let Some(mut file) = context.traces.open(&token, &name) else {
        return refuse(StatusCode::NOT_FOUND, format!("{name:?}: no such trace of {token:?}"));
    };
    let read = tokio::task::spawn_blocking(move || {
        file.seek(SeekFrom::Start(since.from))?;
        let mut bytes = Vec::new();
        file.take(PART).read_to_end(&mut bytes)?;
        Ok::<_, std::io::Error>(bytes)
    });
    match read.await {
        Ok(Ok(bytes)) => ([(CONTENT_TYPE, "application/gzip")], Body::from(bytes)).into_response(),
        _ => refuse(StatusCode::INTERNAL_SERVER_ERROR, format!("{name:?}: cannot be read")),
    }
}

async fn pause(
    From(context): From<ServiceContext>,
    Extension(caller): Extension<Caller>,
    order: Result<Json<Pause>, JsonRejection>,
) -> Response {
    let order = match order {
        Ok(Json(order)) => order,
        Err(problem) => return refuse(problem.status(), problem.body_text()),
    };
    let what = format!("gpu {} {} s", order.gpu, order.seconds);
    if let Err(refused) = may(&context, &caller, Verb::Pause, &what) {
        return refused.into_response();
    }
    match context.state.pause(&caller.name, order) {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(error) => refuse(StatusCode::CONFLICT, error),
    }
}

async fn sample(
    From(context): From<ServiceContext>,
    Extension(caller): Extension<Caller>,
    order: Result<Json<SampleOrder>, JsonRejection>,
) -> Response {
    let order = match order {
        Ok(Json(order)) => order,
        Err(problem) => return refuse(problem.status(), problem.body_text()),
    };
    let run = order.run.as_ref().map_or(String::new(), |run| format!("run {run} "));
    let what = format!("{run}for {} ms", order.length_ms);
    // Sampled thread states reveal as much about a job as a trace does, so they need the same
    // permission.
    if let Err(refused) = may(&context, &caller, Verb::Trace, &what) {
        return refused.into_response();
    }
    let (state, uids) = (Arc::clone(&context.state), caller.uids.clone());
    let sampled = tokio::task::spawn_blocking(move || samples::take(&state, &order, &uids)).await;
    let sampled = sampled.unwrap_or_else(|_| Err("the agent failed".to_owned()));
    let outcome = sampled.as_ref().map_or_else(String::clone, |samples| {
        whose(&context.state, samples.processes.iter().map(|process| process.pid))
    });
    context.state.audit.line(&caller.name, "sample", &what, &outcome);
    match sampled {
        Ok(samples) => Json(samples).into_response(),
        Err(problem) => refuse(StatusCode::CONFLICT, problem),
    }
}
