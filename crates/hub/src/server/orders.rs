//! The requests about orders, traces and findings: agents fetch orders and send traces, tracers
//! order them, and viewers read what became of them.

use std::fs::File;
use std::io::Read;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use fleet::proto::{ORDERS, Orders, OrdersWanted, PARTS, PartAck, SIZE_MAX, TracePart};
use hyper::body::Frame;
use prost::Message;
use serde::Serialize;
use serde_json::json;

use super::{CheckedHead, QueryPair, Service, message, read_body, refuse, send_page};
use crate::api::{FleetQuery, FleetReader};
use crate::batch::{self, BatchRefusal};
use crate::log::say;
use crate::orders::result::TraceAnalysis;
use crate::orders::{HostProgress, HubOrder, OrderBoard, OrderFailure, OrderWish};
use crate::page;
use crate::tokens::TokenRole;

/// Largest size of a request for orders, or of a new order, in bytes.
const WANTED_MAX: usize = 64 << 10;
/// Longest time by which the answer to a request for orders is delayed.
const HELD_MAX: Duration = Duration::from_secs(30);
/// Number of bytes of a trace that are read and sent at a time.
const BLOCK: usize = 64 << 10;
/// Content security policy of reports, which are made from traces that anybody may have written. A
/// report runs its own scripts, and can neither load anything nor reach the hub.
const REPORT_POLICY: &str = "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; \
                             style-src 'unsafe-inline'; img-src data:; font-src data:; \
                             base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// An order with what became of it.
#[derive(Serialize)]
struct OrderAnswer {
    #[serde(flatten)]
    order: HubOrder,
    progress: Vec<HostProgress>,
    is_over: bool,
    /// Paths of the traces at the hub, with their sizes in bytes.
    traces: Vec<FileLink>,
    /// Path of the report, which needs no token; `None` if there is no report yet.
    report: Option<String>,
    analysis: Option<TraceAnalysis>,
}

/// Where a trace can be fetched.
#[derive(Serialize)]
struct FileLink {
    path: String,
    bytes: u64,
}

/// Returns the routes of this module.
pub fn routes() -> Router<Arc<Service>> {
    Router::new()
        .route(ORDERS, post(receive_order).get(list_orders))
        .route(PARTS, post(receive_part))
        .route("/hub/v1/traces", get(list_traces))
        .route("/hub/v1/traces/{id}/report", get(send_report))
        .route("/hub/v1/traces/{id}/files/{name}", get(send_trace))
        .route("/hub/v1/findings", get(answer_findings))
        .route("/findings", get(|state, headers| send_page(state, headers, &page::FINDINGS)))
        .route(
            "/findings.js",
            get(|state, headers| send_page(state, headers, &page::FINDINGS_SCRIPT)),
        )
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Receives a new order of a person in JSON, or the request of an agent for orders.
async fn receive_order(State(service): State<Arc<Service>>, request: Request) -> Response {
    let content_type = request.headers().get(header::CONTENT_TYPE);
    if content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/json")) {
        return service.create_order(request).await.unwrap_or_else(|refusal| refuse(&refusal));
    }
    match service.fetch_orders(request).await {
        Ok(orders) => message(&orders),
        Err(refusal) => refuse(&refusal),
    }
}

async fn list_orders(
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
    pairs: Result<Query<Vec<QueryPair>>, QueryRejection>,
) -> Response {
    service.answer_orders(&headers, pairs, |_| true).await
}

async fn list_traces(
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
    pairs: Result<Query<Vec<QueryPair>>, QueryRejection>,
) -> Response {
    service.answer_orders(&headers, pairs, |answer| !answer.traces.is_empty()).await
}

async fn answer_findings(
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
    pairs: Result<Query<Vec<QueryPair>>, QueryRejection>,
) -> Response {
    service.answer(&headers, pairs, FleetReader::findings).await
}

/// Receives a part of a trace of an agent.
async fn receive_part(State(service): State<Arc<Service>>, request: Request) -> Response {
    let received = async {
        let CheckedHead { grant, .. } = service.check_head(request.headers(), SIZE_MAX)?;
        // Parts have permits of their own, so that traces never delay rows.
        let wait = |_| BatchRefusal::new(429, "too many parts of traces are received");
        let _permit = service.parts.try_acquire().map_err(wait)?;
        let bytes = read_body(request.into_body(), SIZE_MAX).await?;
        let part = TracePart::decode(bytes).map_err(|error| damaged(&error))?;
        batch::check_version(part.version)?;
        batch::check_sender(grant, &part.host)?;
        let board = Arc::clone(&service.board);
        let stored = tokio::task::spawn_blocking(move || board.receive(&part)).await;
        stored.unwrap_or_else(|_| Err(ending()))
    };
    match received.await {
        Ok(received) => message(&PartAck { received }),
        Err(refusal) => refuse(&refusal),
    }
}

/// Sends the report of an order to a viewer, or to whoever has the link with its name.
async fn send_report(
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
    Path(id): Path<u64>,
    Query(pairs): Query<Vec<QueryPair>>,
) -> Response {
    let order = service.board.find(id);
    let key = pairs.iter().find(|(key, _)| key == "key").map(|(_, value)| value.as_str());
    let has_link = order.as_ref().is_some_and(|order| key == Some(order.token.as_str()));
    let checked = service
        .check_host(&headers)
        .and_then(|()| if has_link { Ok(()) } else { service.check_viewer(&headers) });
    if let Err(refusal) = checked {
        return refuse(&refusal);
    }
    let Some((file, length)) = service.board.open_report(id) else {
        return refuse(&BatchRefusal::new(404, "expected an order with a report"));
    };
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, REPORT_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (headers, file_body(file, length)).into_response()
}

async fn send_trace(
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
    Path((id, name)): Path<(u64, String)>,
) -> Response {
    let checked = service.check_host(&headers).and_then(|()| service.check_viewer(&headers));
    if let Err(refusal) = checked {
        return refuse(&refusal);
    }
    let Some((file, length)) = service.board.open_trace(id, &name) else {
        return refuse(&BatchRefusal::new(404, "expected a trace of an order"));
    };
    let headers = [
        (header::CONTENT_TYPE, "application/gzip"),
        (header::CONTENT_DISPOSITION, "attachment"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, file_body(file, length)).into_response()
}

impl Service {
    fn check_viewer(&self, headers: &HeaderMap) -> Result<(), BatchRefusal> {
        self.check_role(headers, TokenRole::Viewer).map(drop)
    }

    /// Waits for orders of an agent, at most for the time that it allows.
    async fn fetch_orders(&self, request: Request) -> Result<Orders, BatchRefusal> {
        let CheckedHead { grant, .. } = self.check_head(request.headers(), WANTED_MAX)?;
        let bytes = read_body(request.into_body(), WANTED_MAX).await?;
        let wanted = OrdersWanted::decode(bytes).map_err(|error| damaged(&error))?;
        batch::check_version(wanted.version)?;
        batch::check_sender(grant, &wanted.host)?;
        let held = Duration::from_millis(u64::from(wanted.wait_ms)).min(HELD_MAX);
        let mut end = std::pin::pin!(tokio::time::sleep(held));
        let (mut stop, mut news) = (self.stop.clone(), self.board.subscribe());
        loop {
            news.borrow_and_update();
            if self.board.has_orders(&wanted.host, &wanted.queue, wanted.after, unix_s()) {
                break;
            }
            tokio::select! {
                () = &mut end => return Ok(Orders::default()),
                _ = stop.wait_for(|is_over| *is_over) => return Ok(Orders::default()),
                _ = news.changed() => {}
            }
        }
        let board = Arc::clone(&self.board);
        let taken = tokio::task::spawn_blocking(move || {
            board.take_orders(&wanted.host, &wanted.queue, wanted.after, unix_s())
        });
        match taken.await {
            Ok(Ok(orders)) => Ok(Orders { orders }),
            Ok(Err(error)) => {
                say(&format!("error: an order is not sent: {error}"));
                Err(BatchRefusal::new(503, "orders cannot be stored now"))
            }
            Err(_) => Err(ending()),
        }
    }

    async fn create_order(&self, request: Request) -> Result<Response, BatchRefusal> {
        self.check_host(request.headers())?;
        let grant = self.check_role(request.headers(), TokenRole::Tracer)?.clone();
        let bytes = read_body(request.into_body(), WANTED_MAX).await?;
        let wish: OrderWish = serde_json::from_slice(&bytes)
            .map_err(|error| BatchRefusal::new(400, format!("expected an order: {error}")))?;
        let board = Arc::clone(&self.board);
        let created = tokio::task::spawn_blocking(move || {
            board.order(&wish, &grant, unix_s()).map(|order| OrderAnswer::new(order, &board))
        });
        match created.await {
            Ok(Ok(order)) => Ok(Json(order).into_response()),
            Ok(Err(OrderFailure::Refused(status, reason))) => {
                Err(BatchRefusal::new(status, reason))
            }
            Ok(Err(OrderFailure::Store(error))) => {
                say(&format!("error: an order is not created: {error}"));
                Err(BatchRefusal::new(503, "orders cannot be stored now"))
            }
            Err(_) => Err(ending()),
        }
    }

    /// Answers with the orders since a time that pass a filter.
    async fn answer_orders(
        &self,
        headers: &HeaderMap,
        pairs: Result<Query<Vec<QueryPair>>, QueryRejection>,
        is_wanted: fn(&OrderAnswer) -> bool,
    ) -> Response {
        let query = self.check_host(headers).and_then(|()| {
            self.check_viewer(headers)?;
            let wrong = |reason| BatchRefusal::new(400, reason);
            let Query(pairs) = pairs.map_err(|error| wrong(error.body_text()))?;
            FleetQuery::parse(&pairs).map_err(wrong)
        });
        let query = match query {
            Ok(query) => query,
            Err(refusal) => return refuse(&refusal),
        };
        let board = Arc::clone(&self.board);
        let listed = tokio::task::spawn_blocking(move || {
            let orders = board.list(query.sums.range.start).into_iter();
            let answers = orders.map(|order| OrderAnswer::new(order, &board)).filter(is_wanted);
            answers.take(query.limit).collect::<Vec<_>>()
        });
        match listed.await {
            Ok(orders) => Json(json!({ "orders": orders })).into_response(),
            Err(_) => refuse(&ending()),
        }
    }
}

impl OrderAnswer {
    fn new(order: HubOrder, board: &OrderBoard) -> Self {
        let progress = board.progress(&order, unix_s());
        let analysis = board.analysis(order.id);
        let link = |(name, bytes): (String, u64)| FileLink {
            path: format!("/hub/v1/traces/{}/files/{name}", order.id),
            bytes,
        };
        let has_report = analysis.as_ref().is_some_and(|analysis| analysis.has_report);
        let report =
            has_report.then(|| format!("/hub/v1/traces/{}/report?key={}", order.id, order.token));
        // A folder that cannot be read has no traces to show.
        let files = board.files(order.id).unwrap_or_default();
        let traces = files.into_iter().map(link).collect();
        Self { is_over: analysis.is_some(), traces, order, progress, report, analysis }
    }
}

fn damaged(error: &prost::DecodeError) -> BatchRefusal {
    BatchRefusal::new(batch::DAMAGED, format!("damaged message: {error}"))
}

fn ending() -> BatchRefusal {
    BatchRefusal::new(503, "the hub is ending")
}

/// A file that is read while it is sent. The blocks are small and mostly in memory, so they are
/// read by the server's thread.
struct FileBody {
    file: File,
    left: u64,
}

fn file_body(file: File, length: u64) -> Body {
    Body::new(FileBody { file, left: length })
}

impl hyper::body::Body for FileBody {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        let mut block = vec![0; BLOCK.min(usize::try_from(self.left).unwrap_or(BLOCK))];
        match self.file.read(&mut block) {
            Ok(0) => Poll::Ready(None),
            Ok(count) => {
                block.truncate(count);
                self.left = self.left.saturating_sub(count as u64);
                Poll::Ready(Some(Ok(Frame::data(block.into()))))
            }
            Err(error) => Poll::Ready(Some(Err(error))),
        }
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        hyper::body::SizeHint::with_exact(self.left)
    }
}
