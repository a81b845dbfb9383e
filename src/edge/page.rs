//! The live page, embedded in the binary.

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;

/// Path, media type and content of each file. The page loads nothing from elsewhere.
const FILES: [(&str, &str, &[u8]); 1] =
    [("/", "text/html; charset=utf-8", include_bytes!("page/index.html"))];

/// Whether a path belongs to the page.
pub fn is_page(path: &str) -> bool {
    FILES.iter().any(|(own, ..)| *own == path)
}

/// Serves the page's files.
pub fn router() -> Router {
    FILES.iter().fold(Router::new(), |router, &(path, media_type, content)| {
        let headers = [
            (header::CONTENT_TYPE, media_type),
            (header::CACHE_CONTROL, "no-cache"),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        ];
        router.route(path, get(move || async move { (headers, content).into_response() }))
    })
}
