//! The request about notices to owners of idle GPUs.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};

use super::{QueryPair, Service, refuse};
use crate::api::FleetQuery;
use crate::batch::BatchRefusal;
use crate::notices::idle::IdleRun;
use crate::sums::Dimension;

/// Keys of the request.
const KEYS: [&str; 6] = ["since", "until", "run", "user", "workflow", "host"];

/// Lists what owners of idle GPUs were told, or would be.
pub(super) async fn answer(
    State(service): State<Arc<Service>>,
    pairs: Result<Query<Vec<QueryPair>>, QueryRejection>,
) -> Response {
    let pairs = pairs.map_err(|error| error.body_text());
    let query = pairs.and_then(|Query(pairs)| {
        match pairs.iter().find(|(key, _)| !KEYS.contains(&key.as_str())) {
            Some((key, _)) => Err(format!("{key}: expected {}", KEYS.join(", "))),
            None => FleetQuery::parse(&pairs),
        }
    });
    let query = match query {
        Ok(query) => query.sums,
        Err(reason) => return refuse(&BatchRefusal::new(400, reason)),
    };
    let is_wanted = |run: &IdleRun| {
        query.selection.iter().all(|(dimension, members)| match dimension {
            Dimension::Run => members.contains(&run.run),
            Dimension::User => members.contains(&run.user),
            Dimension::Workflow => members.contains(&run.workflow),
            _ => run.hosts.iter().any(|host| members.contains(host)),
        })
    };
    Json(service.notices.list([query.range.start, query.range.end], is_wanted)).into_response()
}
