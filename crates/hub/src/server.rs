//! The hub's HTTP server, which one thread runs. A batch is confirmed after the writer thread has
//! stored it. What a caller may send is limited before it is read.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use fleet::proto::{Ack, BATCHES, CONTENT_TYPE, SIZE_MAX};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prost::Message;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio_rustls::TlsAcceptor;

use crate::api::{FleetQuery, FleetReader};
use crate::batch::{self, BatchRefusal};
use crate::config::HubFile;
use crate::error::Error;
use crate::log::say;
use crate::orders::OrderBoard;
use crate::page::{self, PageFile};
use crate::tls;
use crate::tokens::{TokenFile, TokenGrant, TokenRole};
use crate::writer::BatchQueue;

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
/// Paths of the queries of viewers.
const SUMS: &str = "/hub/v1/sums";
const FAULTS: &str = "/hub/v1/faults";

/// The key and the value of a part of a query string.
type QueryPair = (String, String);

/// The state that all requests share.
pub struct Service {
    tokens: TokenFile,
    queue: BatchQueue,
    /// Permits in KiB of the batches that are received or wait for a commit.
    waiting: Semaphore,
    reader: Arc<FleetReader>,
    /// Permits of the queries that are computed at the same time.
    queries: Semaphore,
    board: Arc<OrderBoard>,
    /// Permits of the parts of traces that are received at the same time.
    parts: Semaphore,
    /// Whether connections are encrypted, so that a browser has checked the name of this host.
    has_tls: bool,
    stop: watch::Receiver<bool>,
}

/// The head of a request that was checked.
struct CheckedHead<'a> {
    /// Length of the body in bytes.
    length: usize,
    grant: &'a TokenGrant,
}

/// The bound socket of the hub.
pub struct HubListener {
    listener: TcpListener,
    acceptor: Option<TlsAcceptor>,
    connections: u32,
    waiting_kib: u32,
    tokens: TokenFile,
}

impl HubListener {
    /// Reads the tokens and the certificate, and binds the address. Returns the listener and its
    /// URL.
    ///
    /// # Errors
    /// If a file cannot be used, or if the address is in use.
    pub async fn bind(file: &HubFile) -> Result<(Self, String), Error> {
        let tokens = TokenFile::read(&file.tokens)?;
        if tokens.is_empty() {
            let what = format!("tokens: {}", file.tokens.display());
            return Err(Error::Value {
                what,
                expected: "at least one token",
                got: "none".to_owned(),
            });
        }
        let acceptor = match (&file.certificate, &file.key) {
            (Some(certificate), Some(key)) => Some(TlsAcceptor::from(tls::load(certificate, key)?)),
            _ => None,
        };
        let address = file.listen;
        let failed = |source| Error::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let scheme = if acceptor.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}", listener.local_addr().map_err(failed)?);
        let (connections, waiting_kib) = (file.connections, file.waiting_mib << 10);
        Ok((Self { listener, acceptor, connections, waiting_kib, tokens }, url))
    }

    /// Serves requests, of which `routes` are those of other modules, until `stop` becomes true.
    /// Then finishes those that have begun.
    pub async fn serve(
        self,
        queue: BatchQueue,
        reader: FleetReader,
        board: Arc<OrderBoard>,
        routes: Router<Arc<Service>>,
        mut stop: watch::Receiver<bool>,
    ) {
        let service = Arc::new(Service {
            tokens: self.tokens,
            queue,
            waiting: Semaphore::new(self.waiting_kib as usize),
            reader: Arc::new(reader),
            queries: Semaphore::new(QUERIES_MAX),
            board,
            parts: Semaphore::new(PARTS_MAX),
            has_tls: self.acceptor.is_some(),
            stop: stop.clone(),
        });
        let router = routes
            .route(BATCHES, post(receive_batch))
            .route(SUMS, get(answer_sums))
            .route(FAULTS, get(answer_faults))
            .route("/", get(|state, headers| send_page(state, headers, &page::HTML)))
            .route("/page.js", get(|state, headers| send_page(state, headers, &page::SCRIPT)))
            .route("/page.css", get(|state, headers| send_page(state, headers, &page::STYLE)))
            .with_state(Arc::clone(&service));
        let open = Arc::new(Semaphore::new(self.connections as usize));
        loop {
            let Ok(permit) = Arc::clone(&open).acquire_owned().await else { break };
            let stream = tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => stream,
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
                    None => serve_connection(stream, router, stop).await,
                    Some(acceptor) => {
                        let handshake = acceptor.accept(stream);
                        if let Ok(Ok(stream)) = tokio::time::timeout(HEAD_PATIENCE, handshake).await
                        {
                            serve_connection(stream, router, stop).await;
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
    router: Router,
    mut stop: watch::Receiver<bool>,
) {
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_PATIENCE * 6)
        .max_buf_size(HEAD_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut served = std::pin::pin!(served);
    // Errors at the end of a connection concern the client, which reports them.
    tokio::select! {
        _ = served.as_mut() => return,
        _ = stop.wait_for(|is_over| *is_over) => served.as_mut().graceful_shutdown(),
    }
    let _ = served.await;
}

async fn receive_batch(State(service): State<Arc<Service>>, request: Request) -> Response {
    match accept_batch(&service, request).await {
        Ok(ack) => message(&ack),
        Err(refusal) => refuse(&refusal),
    }
}

async fn accept_batch(service: &Service, request: Request) -> Result<Ack, BatchRefusal> {
    let CheckedHead { length, grant } = service.check_head(request.headers(), SIZE_MAX)?;
    let _permit = service.reserve(length)?;
    let bytes = read_body(request.into_body(), SIZE_MAX).await?;
    let batch = batch::decode(&bytes, grant)?;
    drop(bytes);
    let (through, host) = (batch.through, Arc::clone(&batch.host));
    let states = OrderBoard::states(&batch);
    match service.queue.store(batch).await {
        Ok(()) => {
            service.board.note(&host, states);
            Ok(Ack { through })
        }
        // The path is for the hub's own log, not for callers.
        Err(_) => Err(BatchRefusal::new(503, "the rows cannot be stored now")),
    }
}

async fn answer_sums(
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
    pairs: Result<Query<Vec<QueryPair>>, QueryRejection>,
) -> Response {
    service.answer(&headers, pairs, FleetReader::sums).await
}

async fn answer_faults(
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
    pairs: Result<Query<Vec<QueryPair>>, QueryRejection>,
) -> Response {
    service.answer(&headers, pairs, FleetReader::faults).await
}

/// Sends a file of the page, which holds no data, so that it needs no token.
async fn send_page(
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
    file: &'static PageFile,
) -> Response {
    if let Err(refusal) = service.check_host(&headers) {
        return refuse(&refusal);
    }
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
    /// Answers a query of a viewer. A separate thread computes the answer, so that other requests
    /// do not wait for it.
    async fn answer<T: Serialize + Send + 'static>(
        &self,
        headers: &HeaderMap,
        pairs: Result<Query<Vec<QueryPair>>, QueryRejection>,
        compute: fn(&FleetReader, &FleetQuery) -> Result<T, Error>,
    ) -> Response {
        let query = self.check_host(headers).and_then(|()| {
            self.check_role(headers, TokenRole::Viewer)?;
            let damaged = |reason| BatchRefusal::new(400, reason);
            let Query(pairs) = pairs.map_err(|error| damaged(error.body_text()))?;
            FleetQuery::parse(&pairs).map_err(damaged)
        });
        let query = match query {
            Ok(query) => query,
            Err(refusal) => return refuse(&refusal),
        };
        let _permit = self.queries.acquire().await;
        let reader = Arc::clone(&self.reader);
        let computed = tokio::task::spawn_blocking(move || compute(&reader, &query)).await;
        match computed {
            Ok(Ok(answer)) => Json(answer).into_response(),
            Ok(Err(error)) => {
                say(&format!("error: a query is not answered: {error}"));
                refuse(&BatchRefusal::new(503, "the files cannot be read now"))
            }
            Err(_) => refuse(&BatchRefusal::new(503, "the hub is ending")),
        }
    }

    /// Refuses names of hosts that stand for a loopback address only by a foreign name server, so
    /// that no site reaches the hub through a browser. With TLS, the browser checks the name.
    fn check_host(&self, headers: &HeaderMap) -> Result<(), BatchRefusal> {
        let host = headers.get(header::HOST).and_then(|value| value.to_str().ok());
        let host = host.unwrap_or_default();
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
        if self.has_tls || ["localhost", "127.0.0.1", "[::1]"].contains(&name) {
            return Ok(());
        }
        Err(BatchRefusal::new(403, "expected the host name localhost or a loopback address"))
    }

    /// Checks the token of a request. Returns what it permits.
    fn check_role(
        &self,
        headers: &HeaderMap,
        expected: TokenRole,
    ) -> Result<&TokenGrant, BatchRefusal> {
        let value = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = value.and_then(|value| value.strip_prefix("Bearer "));
        match token.and_then(|token| self.tokens.grant(token)) {
            Some(grant) if grant.role.includes(expected) => Ok(grant),
            Some(_) => {
                let reason = format!("expected a token of the role {}", expected.name());
                Err(BatchRefusal::new(batch::WRONG_CALLER, reason))
            }
            None => Err(BatchRefusal::new(401, "expected a known token")),
        }
    }

    /// Checks the token and the headers of a request.
    fn check_head(
        &self,
        headers: &HeaderMap,
        size_max: usize,
    ) -> Result<CheckedHead<'_>, BatchRefusal> {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let grant = self.check_role(headers, TokenRole::Agent)?;
        if text(header::CONTENT_TYPE) != Some(CONTENT_TYPE) {
            return Err(BatchRefusal::new(
                415,
                format!("expected the content type {CONTENT_TYPE}"),
            ));
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
            Some(length) => Ok(CheckedHead { length, grant }),
        }
    }

    /// Reserves the memory of a batch before it is read.
    fn reserve(&self, length: usize) -> Result<SemaphorePermit<'_>, BatchRefusal> {
        let kib = u32::try_from(length >> 10).unwrap_or(u32::MAX).max(BATCH_KIB_MIN);
        let permit = self.waiting.try_acquire_many(kib);
        permit.map_err(|_| BatchRefusal::new(429, "too many batches wait"))
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

fn refuse(refusal: &BatchRefusal) -> Response {
    let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::BAD_REQUEST);
    let mut response = (status, refusal.reason.clone()).into_response();
    let retry = match refusal.status {
        429 => Some(1),
        503 => Some(RETRY_STORE_S),
        _ => None,
    };
    if let Some(seconds) = retry {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}
