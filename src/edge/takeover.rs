//! The passage from an HTTP exchange to a session.
//!
//! A handler that admits a session answers with the response that the session begins with, and hangs a
//! [`Takeover`] on it. When every layer of the router has had its say about the headers, the response's head is
//! turned into bytes, and the connection leaves HTTP for good: a lane writes the head and all that follows.
//! There is no upgrade machinery, no body, and no buffer of HTTP left behind. (A client that asks for a session
//! before it has read the answers to earlier requests on the connection may lose the end of them.)

use crate::session::{Principal, Transport};
use crate::stream;
use axum::body::Body;
use axum::http::{HeaderName, Version, header};
use axum::response::Response;
use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// What kind of session begins.
pub enum Kind {
    /// One that shows quotes, in a lane.
    Market(Transport),
    /// One that reads a stream.
    Stream(stream::sessions::Start),
}

/// What a session starts from, apart from its socket.
pub struct Start {
    /// How to go on.
    pub kind: Kind,
    /// Who the request proved to come from.
    pub principal: Option<Principal>,
    /// The session's place in the limits.
    pub permit: Box<dyn Any + Send>,
}

/// Marks a response as a session's beginning. Extensions must be clonable; the first to ask gets the start.
#[derive(Clone)]
pub struct Takeover(Arc<Mutex<Option<Start>>>);

impl Takeover {
    /// Hangs `start` on `response`.
    pub fn mark(response: &mut Response, start: Start) {
        response.extensions_mut().insert(Self(Arc::new(Mutex::new(Some(start)))));
    }

    /// Takes the start off a response, if it is a session's beginning.
    pub fn claim(response: &mut Response) -> Option<Start> {
        let Self(start) = response.extensions_mut().remove()?;
        start.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Writes a response's head as it stands before the first byte of a session.
pub fn head(response: &Response<Body>, version: Version, now: SystemTime) -> Vec<u8> {
    let line = if version == Version::HTTP_10 { "HTTP/1.0" } else { "HTTP/1.1" };
    let mut out = format!("{line} {}\r\n", response.status()).into_bytes();
    let mut push = |name: &HeaderName, value: &[u8]| {
        for part in [name.as_str().as_bytes(), b": ", value, b"\r\n"] {
            out.extend_from_slice(part);
        }
    };
    // The router states the length of the empty body that it sees.
    let headers = response.headers().iter().filter(|(name, _)| **name != header::CONTENT_LENGTH);
    for (name, value) in headers {
        push(name, value.as_bytes());
    }
    push(&header::DATE, httpdate::fmt_http_date(now).as_bytes());
    out.extend_from_slice(b"\r\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::{HeaderValue, StatusCode};
    use std::time::UNIX_EPOCH;

    #[test]
    fn the_head_is_what_http_would_have_written_but_for_the_length() {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
        response.headers_mut().insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        assert_eq!(
            String::from_utf8(head(&response, Version::HTTP_11, UNIX_EPOCH)).expect("text"),
            concat!(
                "HTTP/1.1 101 Switching Protocols\r\n",
                "upgrade: websocket\r\n",
                "date: Thu, 01 Jan 1970 00:00:00 GMT\r\n\r\n"
            )
        );
    }

    #[test]
    fn a_start_is_claimed_once() {
        let mut response = Response::new(Body::empty());
        let kind = Kind::Market(Transport::Ws);
        let start = Start { kind, principal: None, permit: Box::new(()) };
        Takeover::mark(&mut response, start);
        assert!(Takeover::claim(&mut response).is_some());
        assert!(Takeover::claim(&mut response).is_none());
    }
}
