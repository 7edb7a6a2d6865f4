//! The requests about orders, traces and findings: agents fetch orders and send traces, tracers
//! order them, and viewers read what became of them.

use std::fs::File;
use std::io::Read;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json};
use fleet::proto::{ORDERS, Orders, OrdersWanted, PARTS, PartAck, SIZE_MAX, TracePart};
use hyper::body::Frame;
use prost::Message;
use serde::Serialize;
use serde_json::json;

use super::{HubRoute, QueryPair, Service, agent, check_head, message, read_body, refuse};
use crate::access::HubCaller;
use crate::api::{FleetQuery, FleetReader};
use crate::batch::{self, BatchRefusal};
use crate::log::say;
use crate::orders::result::TraceAnalysis;
use crate::orders::{HostProgress, HubOrder, OrderBoard, OrderFailure, OrderWish};
use crate::page;
use crate::time::unix_now;
use crate::tokens::TokenRole;

/// Path of orders for traces, and of the traces.
const TRACES: &str = "/hub/v1/traces";
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
pub fn routes() -> Vec<HubRoute> {
    let role = Some(TokenRole::Tracer);
    let report = "/hub/v1/traces/{id}/report";
    vec![
        HubRoute::take(ORDERS, post(fetch_orders)),
        HubRoute::take(PARTS, post(receive_part)),
        HubRoute { method: "post", path: TRACES, role, handler: post(create_order) },
        HubRoute::read(TRACES, get(list_traces)),
        HubRoute::read(ORDERS, get(list_orders)),
        // The report's link is enough to read it.
        HubRoute { method: "get", path: report, role: None, handler: get(send_report) },
        HubRoute::read("/hub/v1/traces/{id}/files/{name}", get(send_trace)),
        HubRoute::read("/hub/v1/findings", get(answer_findings)),
        HubRoute::file("/findings", &page::FINDINGS),
        HubRoute::file("/findings.js", &page::FINDINGS_SCRIPT),
    ]
}

/// Answers an agent's request for orders.
async fn fetch_orders(
    State(service): State<Arc<Service>>,
    Extension(caller): Extension<Option<HubCaller>>,
    request: Request,
) -> Response {
    match service.fetch_orders(caller.as_ref(), request).await {
        Ok(orders) => message(&orders),
        Err(refusal) => refuse(&refusal),
    }
}

/// Creates an order that a person describes in JSON.
async fn create_order(
    State(service): State<Arc<Service>>,
    Extension(caller): Extension<Option<HubCaller>>,
    request: Request,
) -> Response {
    service.create_order(caller, request).await.unwrap_or_else(|refusal| refuse(&refusal))
}

async fn list_orders(
    State(service): State<Arc<Service>>,
    pairs: Result<Query<Vec<QueryPair>>, QueryRejection>,
) -> Response {
    service.answer_orders(pairs, |_| true).await
}

async fn list_traces(
    State(service): State<Arc<Service>>,
    pairs: Result<Query<Vec<QueryPair>>, QueryRejection>,
) -> Response {
    service.answer_orders(pairs, |answer| !answer.traces.is_empty()).await
}

async fn answer_findings(
    State(service): State<Arc<Service>>,
    pairs: Result<Query<Vec<QueryPair>>, QueryRejection>,
) -> Response {
    service.answer(pairs, FleetQuery::check_gpus, FleetReader::findings).await
}

/// Receives a part of a trace of an agent.
async fn receive_part(
    State(service): State<Arc<Service>>,
    Extension(caller): Extension<Option<HubCaller>>,
    request: Request,
) -> Response {
    let received = async {
        check_head(request.headers(), SIZE_MAX)?;
        // Parts have permits of their own, so that traces never delay rows.
        let wait = |_| BatchRefusal::new(429, "too many parts of traces are received");
        let _permit = service.parts.try_acquire().map_err(wait)?;
        let bytes = read_body(request.into_body(), SIZE_MAX).await?;
        let part = TracePart::decode(bytes).map_err(|error| damaged(&error))?;
        batch::check_version(part.version)?;
        batch::check_sender(&agent(caller.as_ref())?.grant, &part.host)?;
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
    Extension(caller): Extension<Option<HubCaller>>,
    path: Result<Path<u64>, PathRejection>,
    Query(pairs): Query<Vec<QueryPair>>,
) -> Response {
    let Ok(Path(id)) = path else { return refuse(&wrong_id()) };
    let order = service.board.find(id);
    let key = pairs.iter().find(|(key, _)| key == "key").map(|(_, value)| value.as_str());
    let has_link = order.as_ref().is_some_and(|order| key == Some(order.token.as_str()));
    let is_viewer = caller.is_some_and(|caller| caller.grant.role.includes(TokenRole::Viewer));
    if !has_link && !is_viewer {
        return refuse(&BatchRefusal::new(401, "expected the link of a report, or a known token"));
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
    path: Result<Path<(u64, String)>, PathRejection>,
) -> Response {
    let Ok(Path((id, name))) = path else { return refuse(&wrong_id()) };
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
    /// Waits for orders of an agent, at most for the time that it allows.
    async fn fetch_orders(
        &self,
        caller: Option<&HubCaller>,
        request: Request,
    ) -> Result<Orders, BatchRefusal> {
        check_head(request.headers(), WANTED_MAX)?;
        let bytes = read_body(request.into_body(), WANTED_MAX).await?;
        let wanted = OrdersWanted::decode(bytes).map_err(|error| damaged(&error))?;
        batch::check_version(wanted.version)?;
        batch::check_sender(&agent(caller)?.grant, &wanted.host)?;
        let held = Duration::from_millis(u64::from(wanted.wait_ms)).min(HELD_MAX);
        let mut end = std::pin::pin!(tokio::time::sleep(held));
        let (mut stop, mut news) = (self.stop.clone(), self.board.subscribe());
        loop {
            news.borrow_and_update();
            if self.board.has_orders(&wanted.host, &wanted.queue, wanted.after, unix_now()) {
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
            board.take_orders(&wanted.host, &wanted.queue, wanted.after, unix_now())
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

    async fn create_order(
        &self,
        caller: Option<HubCaller>,
        request: Request,
    ) -> Result<Response, BatchRefusal> {
        let caller = caller.ok_or_else(|| BatchRefusal::new(401, "expected a known token"))?;
        let content_type = request.headers().get(header::CONTENT_TYPE);
        if !content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/json")) {
            return Err(BatchRefusal::new(415, "expected the content type application/json"));
        }
        let bytes = read_body(request.into_body(), WANTED_MAX).await?;
        let wish: OrderWish = serde_json::from_slice(&bytes)
            .map_err(|error| BatchRefusal::new(400, format!("expected an order: {error}")))?;
        let board = Arc::clone(&self.board);
        let created = tokio::task::spawn_blocking(move || {
            board.order(&wish, &caller, unix_now()).map(|order| OrderAnswer::new(order, &board))
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
        pairs: Result<Query<Vec<QueryPair>>, QueryRejection>,
        is_wanted: fn(&OrderAnswer) -> bool,
    ) -> Response {
        let pairs = pairs.map_err(|error| error.body_text());
        let query = match pairs.and_then(|Query(pairs)| FleetQuery::parse(&pairs)) {
            Ok(query) => query,
            Err(reason) => return refuse(&BatchRefusal::new(400, reason)),
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
        let progress = board.progress(&order, unix_now());
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

fn wrong_id() -> BatchRefusal {
    BatchRefusal::new(400, "expected the number of an order")
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
