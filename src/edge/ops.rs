//! The admin listener's paths: whether the process lives, whether it is ready, what it counts.
//!
//! `/livez` asks whether the core loops still turn, and fails late: a restart mends nothing else. `/readyz` asks
//! whether this replica should get sessions, and fails at once. The `/actuator` paths say the same as `/readyz`
//! and `/metrics` to those who watched the predecessor.

use super::auth::Verifier;
use super::publish::{self, Publishing};
use super::router::counted;
use super::sessions::{self, ListSessions};
use super::stream::{self, Streams};
use crate::metrics::Metrics;
use crate::metrics::edge::Route;
use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::sync::Arc;

const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Asks a part of the process what is wrong; nothing is an empty list. Must not block.
pub type Reasons = Arc<dyn Fn() -> Vec<String> + Send + Sync>;

/// What the health pages ask.
#[derive(Clone)]
pub struct Health {
    /// The core loops that no longer turn.
    pub stalled: Reasons,
    /// Why this replica should get no sessions.
    pub unready: Reasons,
}

impl Health {
    /// The same, and unready while no token can be judged.
    pub(super) fn with_lack(self, verifier: Arc<Verifier>) -> Self {
        let Self { stalled, unready } = self;
        let unready = move || unready().into_iter().chain(verifier.lack().map(str::to_owned)).collect();
        Self { stalled, unready: Arc::new(unready) }
    }
}

/// The admin paths.
pub fn admin(
    health: Health,
    sessions: ListSessions,
    publishing: Publishing,
    streams: Option<Streams>,
    metrics: Arc<Metrics>,
) -> Router {
    let Health { stalled, unready } = health;
    let spring_unready = Arc::clone(&unready);
    let (exposition, spring_exposition) = (Arc::clone(&metrics), Arc::clone(&metrics));
    let of_streams = streams.map(|streams| stream::admin::router(publishing.clone(), streams));
    let router = Router::new()
        .merge(of_streams.unwrap_or_default())
        .merge(sessions::router(sessions))
        .merge(publish::router(publishing))
        .route("/livez", get(move || async move { verdict(stalled(), "live", "stalled") }))
        .route("/readyz", get(move || async move { verdict(unready(), "ready", "unready") }))
        .route("/actuator/health", get(move || async move { verdict(spring_unready(), "UP", "DOWN") }))
        .route("/metrics", get(move || async move { render(&exposition) }))
        .route("/actuator/prometheus", get(move || async move { render(&spring_exposition) }));
    counted(router, metrics, |_| Route::Ops)
}

fn verdict(reasons: Vec<String>, good: &str, bad: &str) -> Response {
    let (status, text) =
        if reasons.is_empty() { (StatusCode::OK, good) } else { (StatusCode::SERVICE_UNAVAILABLE, bad) };
    let body = serde_json::json!({ "status": text, "reasons": reasons }).to_string();
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
    (status, headers, body).into_response()
}

fn render(metrics: &Metrics) -> Response {
    ([(header::CONTENT_TYPE, EXPOSITION)], metrics.render()).into_response()
}
