//! What a refused connection or request is answered with: the only place that chooses a status or code.
//!
//! Every refusal is JSON, `{"code":…,"message":…}`, in the vocabulary of the protocol. Messages are fixed
//! texts: they tell the client's developer what to do, never what the client sent or why a token failed.

use crate::metrics::edge::Refusal;
use crate::protocol::server::ErrorCode;
use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

impl Refusal {
    /// The HTTP status.
    pub fn status(self) -> StatusCode {
        match self {
            Self::AcceptRate
            | Self::Unadmitted
            | Self::Descriptors
            | Self::Sessions
            | Self::Lanes
            | Self::Draining
            | Self::Busy
            | Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::Address | Self::User => StatusCode::TOO_MANY_REQUESTS,
            Self::Origin | Self::Forbidden => StatusCode::FORBIDDEN,
            Self::NoToken | Self::Token | Self::Ticket | Self::PublishKey => StatusCode::UNAUTHORIZED,
            Self::NotWebSocket | Self::WebSocketVersion => StatusCode::UPGRADE_REQUIRED,
            Self::Handshake
            | Self::NoTopic
            | Self::Rate
            | Self::NoInstrument
            | Self::TooManyInstruments
            | Self::Payloads
            | Self::StreamId
            | Self::StreamPlace
            | Self::Entries
            | Self::Page => StatusCode::BAD_REQUEST,
            Self::Body => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Path | Self::UnknownStream => StatusCode::NOT_FOUND,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
        }
    }

    /// The code of the body.
    pub fn code(self) -> ErrorCode {
        match self {
            Self::AcceptRate
            | Self::Unadmitted
            | Self::Descriptors
            | Self::Sessions
            | Self::Address
            | Self::User
            | Self::Lanes
            | Self::Busy
            | Self::TooManyInstruments
            | Self::Body => ErrorCode::LimitExceeded,
            Self::Draining | Self::Unavailable => ErrorCode::Internal,
            Self::Origin
            | Self::Forbidden
            | Self::NoToken
            | Self::Token
            | Self::Ticket
            | Self::PublishKey => ErrorCode::Unauthorized,
            _ => ErrorCode::BadRequest,
        }
    }

    fn message(self) -> &'static str {
        match self {
            Self::AcceptRate | Self::Unadmitted | Self::Descriptors | Self::Sessions | Self::Lanes => {
                "the server is at its capacity, try again later"
            }
            Self::Address => "too many sessions from this address",
            Self::User => "the user has too many sessions",
            Self::Draining => "the server is restarting, try again",
            Self::Busy => "too many requests at once, try again",
            Self::Unavailable => "the server can't answer at the moment, try again",
            Self::Origin => "this origin is not allowed",
            Self::NoToken => "a token is required",
            Self::Token => "the token is not valid",
            Self::Ticket => "the ticket is unknown, used or expired",
            Self::Forbidden => "the token allows nothing of what is asked for",
            Self::NotWebSocket => "this path needs a WebSocket handshake",
            Self::WebSocketVersion => "the WebSocket version must be 13",
            Self::Handshake => "the WebSocket handshake is not valid",
            Self::NoTopic => "the request names no valid topic",
            Self::Rate => "max_rate_hz must be a number above 0",
            Self::NoInstrument => "the request names no valid instrument id",
            Self::TooManyInstruments => "the request names too many instruments",
            Self::PublishKey => "the key of listen.publish_key is required",
            Self::Payloads => "the body must be one JSON object or an array of at most 10000",
            Self::StreamId => "id must be 1 to 128 of A-Z a-z 0-9 . _ ~ : -",
            Self::StreamPlace => "from must be an entry id such as 1700000000123-0, 0 or $",
            Self::UnknownStream => "there is no such stream",
            Self::Entries => {
                "the body must be an entry or an array of at most 1000, each with event, data or end"
            }
            Self::Page => "from must be the next of an earlier answer, limit a number from 1 to 1000",
            Self::Body => "the request body is too large or doesn't belong here",
            Self::Path => "no such path",
            Self::Method => "the path doesn't know this method",
        }
    }

    /// Seconds after which another try makes sense.
    const fn retry_after(self) -> Option<&'static str> {
        match self {
            Self::AcceptRate | Self::Unadmitted | Self::Draining | Self::Busy | Self::Unavailable => {
                Some("1")
            }
            // A session has to end first, which takes longer than a spike.
            Self::Descriptors | Self::Sessions | Self::Address | Self::User | Self::Lanes => Some("5"),
            _ => None,
        }
    }

    /// The JSON body.
    pub fn body(self) -> String {
        format!(r#"{{"code":"{}","message":"{}"}}"#, self.code().text(), self.message())
    }

    fn headers(self) -> Vec<(HeaderName, &'static str)> {
        let mut headers =
            vec![(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
        if let Some(seconds) = self.retry_after() {
            headers.push((header::RETRY_AFTER, seconds));
        }
        match self.status() {
            StatusCode::UNAUTHORIZED => headers.push((header::WWW_AUTHENTICATE, "Bearer")),
            StatusCode::UPGRADE_REQUIRED => {
                headers.push((header::UPGRADE, "websocket"));
                headers.push((header::CONNECTION, "Upgrade"));
                headers.push((header::SEC_WEBSOCKET_VERSION, "13"));
            }
            _ => {}
        }
        headers
    }

    /// The whole answer as bytes, for connections that have no HTTP machinery (or no longer).
    pub fn to_bytes(self) -> Vec<u8> {
        let body = self.body();
        let mut out = format!("HTTP/1.1 {}\r\n", self.status());
        for (name, value) in self.headers() {
            out.extend([name.as_str(), ": ", value, "\r\n"]);
        }
        out += &format!("content-length: {}\r\nconnection: close\r\n\r\n{body}", body.len());
        out.into_bytes()
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.body()));
        *response.status_mut() = self.status();
        for (name, value) in self.headers() {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        if self == Self::Draining {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        // Tells the counting layer the reason.
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::edge::Label;

    #[test]
    fn every_refusal_is_json_in_the_protocols_vocabulary() {
        for &refusal in Refusal::ALL {
            let json: serde_json::Value = serde_json::from_str(&refusal.body()).expect("valid JSON");
            assert_eq!(json["code"], refusal.code().text());
            assert!(json["message"].as_str().is_some_and(|m| !m.is_empty()), "{refusal:?}");
            assert!(refusal.status().is_client_error() || refusal.status().is_server_error());
            let unavailable = refusal.status() == StatusCode::SERVICE_UNAVAILABLE;
            assert!(!unavailable || refusal.retry_after().is_some(), "{refusal:?}");
        }
    }

    #[test]
    fn the_raw_answer_is_complete_http() {
        let text = String::from_utf8(Refusal::AcceptRate.to_bytes()).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a blank line");
        assert!(head.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{head}");
        assert!(head.contains("\r\nretry-after: 1\r\n"), "{head}");
        assert!(head.contains(&format!("\r\ncontent-length: {}\r\n", body.len())), "{head}");
    }
}
