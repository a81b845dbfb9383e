//! `GET /market/ws`: the WebSocket handshake.
//!
//! Extensions are never agreed to, so that frames are what was encoded once for everybody; subprotocols are
//! ignored.

use super::entrance::{Entrance, without_body};
use super::query::Query;
use super::takeover::{Kind, Start, Takeover};
use crate::metrics::edge::Refusal;
use crate::session::Transport;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Version, header};
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::sync::Arc;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

/// Bytes of a client's nonce.
const NONCE_BYTES: usize = 16;

/// Opens a session, with the ticket's principal if there is one; otherwise the session authenticates itself.
///
/// # Errors
/// What is wrong with the handshake or the ticket, or the limit that is reached.
pub async fn open(State(entrance): State<Arc<Entrance>>, request: Request) -> Result<Response, Refusal> {
    let (parts, _) = request.into_parts();
    let accept = accept_key(parts.version, &parts.headers)?;
    without_body(&parts.headers)?;
    let principal = entrance.redeem(&Query::parse(parts.uri.query())).await?;
    let permit = entrance.place(&parts, principal.as_ref()).await?;

    let mut response = response(accept);
    Takeover::mark(&mut response, Start { kind: Kind::Market(Transport::Ws), principal, permit });
    Ok(response)
}

/// The answer to a good handshake, with the value that proves it.
pub(super) fn response(accept: HeaderValue) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    response
}

/// Judges the handshake as RFC 6455 demands (4.2.1) and gives the value that answers it.
///
/// # Errors
/// What is wrong with it.
pub(super) fn accept_key(version: Version, headers: &HeaderMap) -> Result<HeaderValue, Refusal> {
    if version != Version::HTTP_11 || !headers.contains_key(header::HOST) {
        return Err(Refusal::Handshake);
    }
    if !has_token(headers, header::UPGRADE, "websocket") {
        return Err(Refusal::NotWebSocket);
    }
    if !has_token(headers, header::CONNECTION, "upgrade") {
        return Err(Refusal::Handshake);
    }
    if single(headers, header::SEC_WEBSOCKET_VERSION) != Some("13") {
        return Err(Refusal::WebSocketVersion);
    }
    let key = single(headers, header::SEC_WEBSOCKET_KEY).ok_or(Refusal::Handshake)?;
    match STANDARD.decode(key) {
        Ok(nonce) if nonce.len() == NONCE_BYTES => {
            HeaderValue::from_str(&derive_accept_key(key.as_bytes())).map_err(|_| Refusal::Handshake)
        }
        _ => Err(Refusal::Handshake),
    }
}

fn has_token(headers: &HeaderMap, name: HeaderName, token: &str) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|part| part.trim().eq_ignore_ascii_case(token))
}

fn single(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: [(&str, &str); 5] = [
        ("host", "x"),
        ("upgrade", "websocket"),
        ("connection", "keep-alive, Upgrade"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];

    fn judge(version: Version, headers: &[(&'static str, &str)]) -> Result<HeaderValue, Refusal> {
        let mut map = HeaderMap::new();
        for &(name, value) in headers {
            map.append(name, value.parse().expect("a header value"));
        }
        accept_key(version, &map)
    }

    /// The example of RFC 6455, 1.3.
    #[test]
    fn a_good_handshake_is_answered_with_its_key() {
        assert_eq!(
            judge(Version::HTTP_11, &GOOD).as_ref().map(HeaderValue::as_bytes),
            Ok(&b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="[..])
        );
    }

    #[test]
    fn each_broken_part_has_its_refusal() {
        assert_eq!(judge(Version::HTTP_10, &GOOD), Err(Refusal::Handshake));
        for (name, value, refusal) in [
            ("host", None, Refusal::Handshake),
            ("upgrade", None, Refusal::NotWebSocket),
            ("upgrade", Some("h2c"), Refusal::NotWebSocket),
            ("connection", None, Refusal::Handshake),
            ("connection", Some("close"), Refusal::Handshake),
            ("sec-websocket-version", None, Refusal::WebSocketVersion),
            ("sec-websocket-version", Some("8"), Refusal::WebSocketVersion),
            ("sec-websocket-key", None, Refusal::Handshake),
            ("sec-websocket-key", Some("short"), Refusal::Handshake),
            ("sec-websocket-key", Some("dGhlIHNhbXBsZSBub25j"), Refusal::Handshake),
        ] {
            let rest = GOOD.into_iter().filter(|(n, _)| *n != name);
            let headers: Vec<_> = rest.chain(value.map(|value| (name, value))).collect();
            assert_eq!(judge(Version::HTTP_11, &headers), Err(refusal), "{name}: {value:?}");
        }
        let twice: Vec<_> = GOOD.into_iter().chain([GOOD[4]]).collect();
        assert_eq!(judge(Version::HTTP_11, &twice), Err(Refusal::Handshake));
    }
}
