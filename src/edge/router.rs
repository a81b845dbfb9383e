//! The public listener's paths and what surrounds them: counting, CORS, the origin check.

use super::entrance::Entrance;
use super::origin::Allowed;
use super::stream::Streams;
use super::{page, prices, sse, stream, ticket, ws};
use crate::metrics::Metrics;
use crate::metrics::edge::{Refusal, Route, StatusClass};
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, Method, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use std::sync::Arc;
use std::time::Duration;
use tower_http::cors::{AllowCredentials, AllowOrigin, CorsLayer};

/// Browsers ask about an origin's rights at most once in this time.
const PREFLIGHT_AGE: Duration = Duration::from_secs(600);

/// Bodies that requests announce at most. Nothing here reads one.
const MAX_BODY_BYTES: u64 = 16 * 1024;

/// The public paths; with those of streams where there are any, and the live page if `with_page`.
pub fn public(entrance: Arc<Entrance>, streams: Option<Streams>, with_page: bool) -> Router {
    let cors = cors(&entrance);
    let market = Router::new()
        .route("/market/ws", get(ws::open).head(method_unknown))
        .route("/market/sse", get(sse::open).head(method_unknown))
        .route("/market/prices", get(prices::read))
        .route("/market/ticket", post(ticket::issue))
        .merge(streams.map(|streams| stream::router(Arc::clone(&entrance), streams)).unwrap_or_default())
        // Before the layers, so that they surround this answer too; it is where preflights would end.
        .method_not_allowed_fallback(method_unknown)
        .layer(from_fn_with_state(Arc::clone(&entrance), check))
        .layer(cors);
    let page = if with_page { page::router() } else { Router::new() };
    let metrics = Arc::clone(&entrance.metrics);
    let router = market.with_state(entrance).merge(page);
    counted(router, metrics, public_route)
}

/// Adds the answers for what doesn't exist, and counts everything under what `route` makes of its path.
pub fn counted(router: Router, metrics: Arc<Metrics>, route: fn(&str) -> Route) -> Router {
    router
        .fallback(path_unknown)
        .method_not_allowed_fallback(method_unknown)
        .layer(from_fn_with_state((metrics, route), count))
}

async fn path_unknown() -> Refusal {
    Refusal::Path
}

pub(super) async fn method_unknown() -> Refusal {
    Refusal::Method
}

async fn check(State(entrance): State<Arc<Entrance>>, request: Request, next: Next) -> Response {
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse().ok());
    if length.is_some_and(|length: u64| length > MAX_BODY_BYTES) {
        return Refusal::Body.into_response();
    }
    match entrance.origin(request.headers()) {
        Ok(_) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

type Counting = (Arc<Metrics>, fn(&str) -> Route);

async fn count(State((metrics, route)): State<Counting>, request: Request, next: Next) -> Response {
    let route = route(request.uri().path());
    let response = next.run(request).await;
    if let Some(refusal) = response.extensions().get::<Refusal>() {
        metrics.edge.refusals.count(*refusal);
    }
    let class = match response.status().as_u16() / 100 {
        1 => StatusClass::Informational,
        2 => StatusClass::Success,
        3 => StatusClass::Redirection,
        4 => StatusClass::Client,
        _ => StatusClass::Server,
    };
    metrics.edge.answered(route, class);
    response
}

fn public_route(path: &str) -> Route {
    match path {
        "/market/ws" => Route::Ws,
        "/market/sse" => Route::Sse,
        "/market/prices" => Route::Prices,
        "/market/ticket" => Route::Ticket,
        "/stream/sse" => Route::StreamSse,
        "/ws/stream" => Route::StreamWs,
        "/stream/demo" => Route::StreamDemo,
        path if page::is_page(path) => Route::Page,
        _ => Route::Unknown,
    }
}

fn cors(entrance: &Entrance) -> CorsLayer {
    let (allowed, named) = (Arc::clone(&entrance.origins), Arc::clone(&entrance.origins));
    let with_cookie = entrance.cookie.is_some();
    CorsLayer::new()
        .allow_origin(AllowOrigin::predicate(move |origin: &HeaderValue, _| {
            allowed.judge(origin.as_bytes()).is_some()
        }))
        .allow_credentials(AllowCredentials::predicate(move |origin: &HeaderValue, _| {
            with_cookie && named.judge(origin.as_bytes()) == Some(Allowed::Named)
        }))
        .allow_methods([Method::GET, Method::POST])
        .allow_headers([
            header::AUTHORIZATION,
            header::CACHE_CONTROL,
            header::CONTENT_TYPE,
            HeaderName::from_static("last-event-id"),
        ])
        .expose_headers([header::RETRY_AFTER])
        .max_age(PREFLIGHT_AGE)
        .vary([header::ORIGIN])
}
