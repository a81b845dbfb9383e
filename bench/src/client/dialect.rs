//! How each server wants to be spoken to: the request, and what follows it.

use crate::scan::push_client_frame;
use crate::token::Signer;
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// Server and transport.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// The gateway's WebSocket.
    GatewayWs,
    /// The gateway's server-sent events.
    GatewaySse,
    /// nchan, one multiplexed WebSocket per session.
    NchanWs,
    /// nchan's EventSource.
    NchanSse,
    /// The WebSocket listener of nats-server.
    NatsWs,
}

const UPGRADE: &str = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                       Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

impl Dialect {
    /// Whether the server sends the newest price upon subscription.
    pub const fn has_snapshots(self) -> bool {
        matches!(self, Self::GatewayWs | Self::GatewaySse)
    }

    /// Whether a response body of events is to be read, rather than frames.
    pub const fn is_sse(self) -> bool {
        matches!(self, Self::GatewaySse | Self::NchanSse)
    }

    /// The whole HTTP request of a session.
    pub fn request(self, topics: &[u16], token: &dyn Fn() -> String) -> Vec<u8> {
        let ids = |prefix: &str| {
            let ids: Vec<_> = topics.iter().map(|t| format!("{prefix}{}", t + 1)).collect();
            ids.join(",")
        };
        match self {
            Self::GatewayWs => format!("GET /market/ws HTTP/1.1\r\nHost: bench\r\n{UPGRADE}"),
            Self::GatewaySse => format!(
                "GET /market/sse?topics={} HTTP/1.1\r\nHost: bench\r\nAccept: text/event-stream\r\n\
                 Authorization: Bearer {}\r\n\r\n",
                ids("quote:"),
                token()
            ),
            Self::NchanWs => format!("GET /sub/{} HTTP/1.1\r\nHost: bench\r\n{UPGRADE}", ids("")),
            Self::NchanSse => {
                format!("GET /sub/{} HTTP/1.1\r\nHost: bench\r\nAccept: text/event-stream\r\n\r\n", ids(""))
            }
            Self::NatsWs => format!("GET / HTTP/1.1\r\nHost: bench\r\n{UPGRADE}"),
        }
        .into_bytes()
    }
}

/// The gateway's `auth` message.
pub fn push_auth(out: &mut Vec<u8>, signer: &Signer, user: usize) {
    let message = format!(r#"{{"type":"auth","token":"{}"}}"#, signer.token(user));
    push_client_frame(out, 1, message.as_bytes());
}

/// The gateway's `subscribe` or `unsubscribe` message.
pub fn push_topics(out: &mut Vec<u8>, kind: &str, topics: &[u16]) {
    let mut message = format!(r#"{{"type":"{kind}","request_id":"r","topics":["#);
    for (i, topic) in topics.iter().enumerate() {
        let comma = if i > 0 { "," } else { "" };
        let _ = write!(message, r#"{comma}"quote:{}""#, topic + 1);
    }
    message.push_str("]}");
    push_client_frame(out, 1, message.as_bytes());
}

/// Everything that a NATS session says after the server's greeting.
pub fn push_nats_hello(out: &mut Vec<u8>, topics: &[u16]) {
    let mut text = String::from("CONNECT {\"verbose\":false,\"pedantic\":false}\r\n");
    for (sid, topic) in topics.iter().enumerate() {
        let _ = write!(text, "SUB quote.{} {}\r\n", topic + 1, sid + 1);
    }
    text.push_str("PING\r\n");
    push_client_frame(out, 2, text.as_bytes());
}
