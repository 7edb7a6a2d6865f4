//! The hub's HTTP server, which one thread runs. A batch is confirmed after the writer thread has
//! stored it. What a caller may send is limited before it is read.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Extension, Json, Router};
use chrono::Utc;
use fleet::proto::{Ack, BATCHES, CONTENT_TYPE, SIZE_MAX};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prost::Message;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio_rustls::TlsAcceptor;

use crate::access::{AccessControl, HubCaller};
use crate::api::{FleetQuery, FleetReader};
use crate::audit::{AuditLine, AuditLog, AuditNote};
use crate::batch::{self, BatchRefusal};
use crate::config::HubFile;
use crate::doctor::finding::DoctorSubject;
use crate::error::Error;
use crate::log::say;
use crate::metrics::{self, HubCounters};
use crate::notices::NoticeBoard;
use crate::orders::OrderBoard;
use crate::page::{self, PageFile};
use crate::time::unix_now;
use crate::tls;
use crate::token_file::FollowedTokens;
use crate::tokens::TokenRole;
use crate::writer::BatchQueue;

mod notices;
pub mod orders;

/// Timeout of a TLS handshake, and of receiving the head of a request.
const HEAD_PATIENCE: Duration = Duration::from_secs(10);
/// Timeout of receiving the body of a request.
const BODY_PATIENCE: Duration = Duration::from_secs(20);
/// Largest size of a request's head in bytes.
const HEAD_MAX: usize = 16 << 10;
/// Memory in KiB that a batch is counted as at least.
const BATCH_KIB_MIN: u32 = 4;
/// Seconds after which an agent may try again while the store cannot be written.
const RETRY_STORE_S: u32 = 5;
/// Time in which open requests may end when the hub is ended by a signal.
const DRAIN: Duration = Duration::from_secs(15);

/// Largest number of parts of traces that are received at the same time.
const PARTS_MAX: usize = 4;
/// Largest number of queries that are computed at the same time.
const QUERIES_MAX: usize = 2;
const METRICS: &str = "/metrics";

/// The key and the value of a part of a query string.
type QueryPair = (String, String);

/// The state that all requests share.
pub struct Service {
    access: AccessControl,
    audit: Arc<AuditLog>,
    counters: Arc<HubCounters>,
    queue: BatchQueue,
    /// Permits in KiB of the batches that are received or wait for a commit.
    waiting: Semaphore,
    reader: Arc<FleetReader>,
    /// Permits of the queries that are computed at the same time.
    queries: Semaphore,
    board: Arc<OrderBoard>,
    notices: Arc<NoticeBoard>,
    /// Permits of the parts of traces that are received at the same time.
    parts: Semaphore,
    stop: watch::Receiver<bool>,
}

/// A kind of request that the hub answers.
pub struct HubRoute {
    pub method: &'static str,
    pub path: &'static str,
    /// The role that a caller needs, or `None` if everybody may ask.
    pub role: Option<TokenRole>,
    handler: MethodRouter<Arc<Service>>,
}

/// What decides about the requests of a route.
#[derive(Clone)]
struct RouteGuard {
    service: Arc<Service>,
    path: &'static str,
    role: Option<TokenRole>,
}

/// The address at the other end of a connection.
#[derive(Clone, Copy)]
struct PeerAddress(IpAddr);

impl HubRoute {
    /// A question of a viewer.
    fn read(path: &'static str, handler: MethodRouter<Arc<Service>>) -> Self {
        Self { method: "get", path, role: Some(TokenRole::Viewer), handler }
    }

    /// A message of an agent.
    fn take(path: &'static str, handler: MethodRouter<Arc<Service>>) -> Self {
        Self { method: "post", path, role: Some(TokenRole::Agent), handler }
    }

    /// A file of the page.
    fn file(path: &'static str, file: &'static PageFile) -> Self {
        Self { method: "get", path, role: None, handler: get(async move || send_page(file)) }
    }
}

/// Lists the requests of this module. `openapi.json` describes them.
pub fn routes() -> Vec<HubRoute> {
    vec![
        HubRoute::take(BATCHES, post(receive_batch)),
        HubRoute::read("/hub/v1/sums", get(answer_sums)),
        HubRoute::read("/hub/v1/faults", get(answer_faults)),
        HubRoute::read("/hub/v1/runs", get(answer_runs)),
        HubRoute::read("/hub/v1/hosts", get(answer_hosts)),
        HubRoute::read("/hub/v1/opportunities", get(answer_opportunities)),
        HubRoute::read("/hub/v1/doctor", get(answer_doctor)),
        HubRoute::read("/hub/v1/notices", get(notices::answer)),
        HubRoute::read(METRICS, get(answer_metrics)),
        HubRoute { method: "get", path: "/hub/v1/me", role: None, handler: get(answer_caller) },
        HubRoute::file("/", &page::HTML),
        HubRoute::file("/page.js", &page::SCRIPT),
        HubRoute::file("/session.js", &page::SESSION),
        HubRoute::file("/charts.js", &page::CHARTS),
        HubRoute::file("/doctor", &page::DOCTOR),
        HubRoute::file("/doctor.js", &page::DOCTOR_SCRIPT),
        HubRoute::file("/page.css", &page::STYLE),
    ]
}

/// What answers requests, besides the configuration.
pub struct HubParts {
    pub queue: BatchQueue,
    pub reader: FleetReader,
    pub board: Arc<OrderBoard>,
    pub notices: Arc<NoticeBoard>,
    pub audit: Arc<AuditLog>,
    pub counters: Arc<HubCounters>,
}

/// The bound socket of the hub.
pub struct HubListener {
    listener: TcpListener,
    acceptor: Option<TlsAcceptor>,
    connections: u32,
    waiting_kib: u32,
    access: AccessControl,
}

impl HubListener {
    /// Reads the tokens and the certificate, and binds the address. Returns the listener and its
    /// URL.
    ///
    /// # Errors
    /// If a file cannot be used, or if the address is in use.
    pub async fn bind(file: &HubFile) -> Result<(Self, String), Error> {
        let tokens = Arc::new(FollowedTokens::open(&file.tokens)?);
        let acceptor = match (&file.certificate, &file.key) {
            (Some(certificate), Some(key)) => Some(TlsAcceptor::from(tls::load(certificate, key)?)),
            _ => None,
        };
        let access = AccessControl::new(file.access.clone(), tokens, acceptor.is_some())?;
        let address = file.listen;
        let failed = |source| Error::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let scheme = if acceptor.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}", listener.local_addr().map_err(failed)?);
        let (connections, waiting_kib) = (file.connections, file.waiting_mib << 10);
        Ok((Self { listener, acceptor, connections, waiting_kib, access }, url))
    }

    /// The tokens of callers, which may change while requests are served.
    pub fn tokens(&self) -> Arc<FollowedTokens> {
        self.access.tokens()
    }

    /// Serves requests, of which `routes` are those of other modules, until `stop` becomes true.
    /// Then finishes those that have begun.
    pub async fn serve(
        self,
        parts: HubParts,
        routes: Vec<HubRoute>,
        mut stop: watch::Receiver<bool>,
    ) {
        let service = Arc::new(Service {
            access: self.access,
            audit: parts.audit,
            counters: parts.counters,
            queue: parts.queue,
            waiting: Semaphore::new(self.waiting_kib as usize),
            reader: Arc::new(parts.reader),
            queries: Semaphore::new(QUERIES_MAX),
            board: parts.board,
            notices: parts.notices,
            parts: Semaphore::new(PARTS_MAX),
            stop: stop.clone(),
        });
        let router = routes.into_iter().fold(Router::new(), |router, route| {
            let guard =
                RouteGuard { service: Arc::clone(&service), path: route.path, role: route.role };
            let check = middleware::from_fn_with_state(guard, check_access);
            router.route(route.path, route.handler.route_layer(check))
        });
        let router = router.fallback(refuse_path).method_not_allowed_fallback(refuse_method);
        let router = router.with_state(service);
        let open = Arc::new(Semaphore::new(self.connections as usize));
        loop {
            let Ok(permit) = Arc::clone(&open).acquire_owned().await else { break };
            let (stream, peer) = tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok(accepted) => accepted,
                    Err(_) => {
                        // The process may have too many open files for a moment.
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        continue;
                    }
                },
                _ = stop.wait_for(|is_over| *is_over) => break,
            };
            let (router, acceptor) = (router.clone(), self.acceptor.clone());
            let stop = stop.clone();
            tokio::spawn(async move {
                match acceptor {
                    None => serve_connection(stream, peer.ip(), router, stop).await,
                    Some(acceptor) => {
                        let handshake = acceptor.accept(stream);
                        if let Ok(Ok(stream)) = tokio::time::timeout(HEAD_PATIENCE, handshake).await
                        {
                            serve_connection(stream, peer.ip(), router, stop).await;
                        }
                    }
                }
                drop(permit);
            });
        }
        // All permits are free when all connections have ended.
        let _ = tokio::time::timeout(DRAIN, open.acquire_many(self.connections)).await;
    }
}

async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    peer: IpAddr,
    router: Router,
    mut stop: watch::Receiver<bool>,
) {
    let service = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(PeerAddress(peer));
        service.call(request)
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_PATIENCE * 6)
        .max_buf_size(HEAD_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let mut served = std::pin::pin!(served);
    // Errors at the end of a connection concern the client, which reports them.
    tokio::select! {
        _ = served.as_mut() => return,
        _ = stop.wait_for(|is_over| *is_over) => served.as_mut().graceful_shutdown(),
    }
    let _ = served.await;
}

/// Checks a request before its handler runs, and records it.
async fn check_access(
    State(guard): State<RouteGuard>,
    Extension(PeerAddress(address)): Extension<PeerAddress>,
    mut request: Request,
    next: Next,
) -> Response {
    let RouteGuard { service, path, role } = guard;
    let headers = request.headers();
    let caller = service.access.identify(headers, address);
    // Agents are not browsers, and may know the hub by any name.
    let mut checked = match role {
        Some(TokenRole::Agent) => Ok(()),
        _ => service.access.check_site(headers),
    };
    if let Some(role) = role {
        checked = checked.and_then(|()| {
            caller.as_ref().map_err(Clone::clone)?.check(role, request.method(), headers)
        });
    }
    let caller = caller.ok();
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let response = match checked {
        Ok(()) => {
            request.extensions_mut().insert(caller.clone());
            next.run(request).await
        }
        Err(refusal) => refuse(&refusal),
    };
    let status = response.status().as_u16();
    service.counters.add_answer(path, status);
    // Rows and scrapes arrive all the time, and an agent that is asked to come later did nothing
    // wrong.
    let is_usual = match role {
        Some(TokenRole::Agent) => matches!(status, 200 | 429 | 503),
        _ => path == METRICS && status == 200,
    };
    if role.is_some() && !is_usual {
        let line = AuditLine {
            who: caller.as_ref().map(|caller| caller.grant.name()),
            role: caller.as_ref().map(|caller| caller.grant.role),
            is_by_proxy: caller.as_ref().is_some_and(HubCaller::is_by_proxy),
            address,
            method: method.as_str(),
            path: uri.path_and_query().map_or("", |path| path.as_str()),
            status,
            note: response.extensions().get().map(|AuditNote(note)| note.as_str()),
        };
        service.audit.write(&line, Utc::now());
    }
    response
}

/// Refuses a request with an unknown path.
async fn refuse_path(uri: Uri) -> Response {
    let expected = "expected a path of the page or of crates/hub/openapi.json";
    refuse(&BatchRefusal::new(404, format!("{expected}, got {:?}", uri.path())))
}

/// Refuses a request with a method that its path does not have.
async fn refuse_method(method: Method, uri: Uri) -> Response {
    let reason = format!("expected another method for {:?}, got {method}", uri.path());
    refuse(&BatchRefusal::new(405, reason))
}

/// Answers who the caller is, so that the page knows whether it needs a token.
async fn answer_caller(Extension(caller): Extension<Option<HubCaller>>) -> Response {
    let headers = [(header::CACHE_CONTROL, "no-store")];
    (headers, Json(caller.as_ref().map(HubCaller::describe))).into_response()
}

async fn answer_metrics(State(service): State<Arc<Service>>) -> Response {
    ([(header::CONTENT_TYPE, metrics::TEXT)], service.counters.render(&service.access.tokens()))
        .into_response()
}

async fn receive_batch(
    State(service): State<Arc<Service>>,
    Extension(caller): Extension<Option<HubCaller>>,
    request: Request,
) -> Response {
    match accept_batch(&service, caller, request).await {
        Ok(ack) => message(&ack),
        Err(refusal) => refuse(&refusal),
    }
}

async fn accept_batch(
    service: &Service,
    caller: Option<HubCaller>,
    request: Request,
) -> Result<Ack, BatchRefusal> {
    let length = check_head(request.headers(), SIZE_MAX)?;
    let _permit = service.reserve(length)?;
    let bytes = read_body(request.into_body(), SIZE_MAX).await?;
    let batch = batch::decode(&bytes, &agent(caller.as_ref())?.grant)?;
    drop(bytes);
    let (through, host) = (batch.through, Arc::clone(&batch.host));
    let (states, announced) = (OrderBoard::states(&batch), OrderBoard::announcements(&batch));
    match service.queue.store(batch).await {
        Ok(()) => {
            service.board.note(&host, states);
            if !announced.is_empty() {
                let board = Arc::clone(&service.board);
                let fetch = move || board.fetch_samples(&host, announced, unix_now());
                // The rows are stored, so a failure only costs the trace.
                if let Ok(Err(error)) = tokio::task::spawn_blocking(fetch).await {
                    say(&format!("note: a periodic trace is not fetched: {error}"));
                }
            }
            Ok(Ack { through })
        }
        // The path is for the hub's own log, not for callers.
        Err(_) => Err(BatchRefusal::new(503, "the rows cannot be stored now")),
    }
}

async fn answer_sums(
    State(service): State<Arc<Service>>,
    pairs: Result<Query<Vec<QueryPair>>, QueryRejection>,
) -> Response {
    service.answer(pairs, |_| Ok(()), FleetReader::sums).await
}

async fn answer_faults(
    State(service): State<Arc<Service>>,
    pairs: Result<Query<Vec<QueryPair>>, QueryRejection>,
) -> Response {
    service.answer(pairs, FleetQuery::check_gpus, FleetReader::faults).await
}

async fn answer_runs(
    State(service): State<Arc<Service>>,
    pairs: Result<Query<Vec<QueryPair>>, QueryRejection>,
) -> Response {
    service.answer(pairs, FleetQuery::check_gpus, FleetReader::runs).await
}

async fn answer_hosts(
    State(service): State<Arc<Service>>,
    pairs: Result<Query<Vec<QueryPair>>, QueryRejection>,
) -> Response {
    service.answer(pairs, FleetQuery::check_gpus, FleetReader::hosts).await
}

async fn answer_opportunities(
    State(service): State<Arc<Service>>,
    pairs: Result<Query<Vec<QueryPair>>, QueryRejection>,
) -> Response {
    service.answer(pairs, FleetQuery::check_gpus, FleetReader::opportunities).await
}

async fn answer_doctor(
    State(service): State<Arc<Service>>,
    pairs: Result<Query<Vec<QueryPair>>, QueryRejection>,
) -> Response {
    let check = |query: &FleetQuery| {
        query.check_gpus()?;
        let subject = DoctorSubject::from_query(query);
        subject.map(drop).map_err(|expected| format!("expected {expected}"))
    };
    service.answer(pairs, check, FleetReader::doctor).await
}

/// Sends a file of the page, which holds no data, so that it needs no token.
fn send_page(file: &'static PageFile) -> Response {
    let headers = [
        (header::CONTENT_TYPE, file.content_type),
        (header::CONTENT_SECURITY_POLICY, page::POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, file.text).into_response()
}

impl Service {
    /// Answers a query of a viewer, after `check` has accepted it. A separate thread computes the
    /// answer, so that other requests do not wait for it.
    async fn answer<T: Serialize + Send + 'static>(
        &self,
        pairs: Result<Query<Vec<QueryPair>>, QueryRejection>,
        check: fn(&FleetQuery) -> Result<(), String>,
        compute: fn(&FleetReader, &FleetQuery) -> Result<T, Error>,
    ) -> Response {
        let pairs = pairs.map_err(|error| error.body_text());
        let query = pairs.and_then(|Query(pairs)| FleetQuery::parse(&pairs));
        let query = match query.and_then(|query| check(&query).map(|()| query)) {
            Ok(query) => query,
            Err(reason) => return refuse(&BatchRefusal::new(400, reason)),
        };
        let _permit = self.queries.acquire().await;
        let reader = Arc::clone(&self.reader);
        let computed = tokio::task::spawn_blocking(move || compute(&reader, &query)).await;
        match computed {
            Ok(Ok(answer)) => Json(answer).into_response(),
            Ok(Err(error @ Error::UnknownName { .. })) => {
                refuse(&BatchRefusal::new(404, error.to_string()))
            }
            Ok(Err(error)) => {
                say(&format!("error: a query is not answered: {error}"));
                refuse(&BatchRefusal::new(503, "the files cannot be read now"))
            }
            Err(_) => refuse(&BatchRefusal::new(503, "the hub is ending")),
        }
    }

    /// Reserves the memory of a batch before it is read.
    fn reserve(&self, length: usize) -> Result<SemaphorePermit<'_>, BatchRefusal> {
        let kib = u32::try_from(length >> 10).unwrap_or(u32::MAX).max(BATCH_KIB_MIN);
        let permit = self.waiting.try_acquire_many(kib);
        permit.map_err(|_| BatchRefusal::new(429, "too many batches wait"))
    }
}

/// Returns the caller of a route whose callers are known.
fn agent(caller: Option<&HubCaller>) -> Result<&HubCaller, BatchRefusal> {
    caller.ok_or_else(|| BatchRefusal::new(401, "expected a known token"))
}

/// Checks the headers of a message. Returns its length in bytes.
fn check_head(headers: &HeaderMap, size_max: usize) -> Result<usize, BatchRefusal> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    if text(header::CONTENT_TYPE) != Some(CONTENT_TYPE) {
        return Err(BatchRefusal::new(415, format!("expected the content type {CONTENT_TYPE}")));
    }
    if headers.contains_key(header::CONTENT_ENCODING) {
        return Err(BatchRefusal::new(415, "expected a message without an encoding"));
    }
    let length = text(header::CONTENT_LENGTH).and_then(|length| length.parse::<usize>().ok());
    match length {
        None => Err(BatchRefusal::new(411, "expected the length of the message")),
        Some(length) if length > size_max => {
            let reason = format!("expected at most {size_max} bytes, got {length}");
            Err(BatchRefusal::new(batch::TOO_LARGE, reason))
        }
        Some(length) => Ok(length),
    }
}

async fn read_body(body: Body, size_max: usize) -> Result<axum::body::Bytes, BatchRefusal> {
    match tokio::time::timeout(BODY_PATIENCE, to_bytes(body, size_max)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(_)) => Err(BatchRefusal::new(batch::DAMAGED, "the message was cut")),
        Err(_) => Err(BatchRefusal::new(408, "the message did not arrive in time")),
    }
}

fn message(message: &impl Message) -> Response {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], message.encode_to_vec()).into_response()
}

/// The answer to a refused request.
#[derive(Serialize)]
struct RefusedAnswer<'a> {
    error: &'a str,
}

fn refuse(refusal: &BatchRefusal) -> Response {
    let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::BAD_REQUEST);
    let mut response = (status, Json(RefusedAnswer { error: &refusal.reason })).into_response();
    let retry = match refusal.status {
        429 => Some(1),
        503 => Some(RETRY_STORE_S),
        _ => None,
    };
    if let Some(seconds) = retry {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response.extensions_mut().insert(AuditNote(refusal.reason.clone()));
    response
}
