//! The live page and the client library that it is built on, embedded in the binary.

use axum::Router;
use axum::http::{HeaderName, header};
use axum::response::IntoResponse;
use axum::routing::get;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";

/// The page's own files by path.
macro_rules! own {
    ($name:literal, $media_type:expr) => {
        (concat!("/assets/", $name), $media_type, include_bytes!(concat!("page/", $name)))
    };
}

/// The library's modules by path; they name each other relatively.
macro_rules! client {
    ($name:literal) => {
        (concat!("/assets/client/", $name), JS, include_bytes!(concat!("../../clients/js/src/", $name)))
    };
}

/// Path, media type and content of each file. The page loads nothing from elsewhere.
const FILES: [(&str, &str, &[u8]); 19] = [
    ("/", HTML, include_bytes!("page/index.html")),
    own!("page.css", CSS),
    own!("page.js", JS),
    own!("answers.js", JS),
    own!("board.js", JS),
    own!("canvas.js", JS),
    own!("figures.js", JS),
    own!("ids.js", JS),
    own!("latency.js", JS),
    own!("log.js", JS),
    client!("index.js"),
    client!("hub.js"),
    client!("connection.js"),
    client!("transport.js"),
    client!("clock.js"),
    client!("wire.js"),
    client!("shared.js"),
    client!("streams.js"),
    client!("worker.js"),
];

/// Nothing but our own scripts and styles, and connections to where the page came from.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src 'self' data:; worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Whether a path belongs to the page.
pub fn is_page(path: &str) -> bool {
    FILES.iter().any(|(own, ..)| *own == path)
}

/// Serves the page's files.
pub fn router() -> Router {
    FILES.iter().fold(Router::new(), |router, &(path, media_type, content)| {
        let headers: [(HeaderName, &str); 4] = [
            (header::CONTENT_TYPE, media_type),
            (header::CACHE_CONTROL, "no-cache"),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::CONTENT_SECURITY_POLICY, POLICY),
        ];
        router.route(path, get(move || async move { (headers, content).into_response() }))
    })
}
