//! How messages of a stream are put on the wire: WebSocket frames or SSE events.

use crate::entry::EntryId;
use crate::protocol::close::CloseReason;
use crate::protocol::stream::Encoded;
use crate::protocol::{frame, server};
use std::io::Write;

/// The wire of one session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wire {
    /// WebSocket.
    Ws,
    /// Server-sent events; in chunks (HTTP/1.1) or until the end of the connection.
    Sse {
        /// Whether in chunks.
        chunked: bool,
    },
}

/// A WebSocket ping without payload, which every browser answers by itself.
const PING_FRAME: [u8; 2] = [0x89, 0];

impl Wire {
    /// Appends what `write` appends; where the body has chunks, as one.
    pub fn push(self, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
        if self == (Self::Sse { chunked: true }) {
            let at = frame::begin_chunk(out);
            write(out);
            frame::end_chunk(out, at);
        } else {
            write(out);
        }
    }

    /// Appends an entry.
    pub fn entry(self, out: &mut Vec<u8>, entry: &Encoded) {
        match self {
            Self::Ws => out.extend_from_slice(entry.ws_frame()),
            Self::Sse { .. } => sse(out, Some(entry.id), entry.sse_name(), entry.json()),
        }
    }

    /// Appends another message, named like its `type`; `id` is the place that it moves the client to.
    pub fn message(self, out: &mut Vec<u8>, id: Option<EntryId>, name: &str, json: &str) {
        match self {
            Self::Ws => frame::push_text(out, json.as_bytes()),
            Self::Sse { .. } => sse(out, id, Some(name), json.as_bytes()),
        }
    }

    /// Appends a heartbeat.
    pub fn heartbeat(self, out: &mut Vec<u8>, unix_ms: i64) {
        match self {
            Self::Ws => {
                frame::push_text(out, server::ping(unix_ms).as_bytes());
                out.extend_from_slice(&PING_FRAME);
            }
            Self::Sse { .. } => {
                let _ = write!(out, ": {unix_ms}\n\n");
            }
        }
    }

    /// Appends the advice to come again after `after_ms`.
    pub fn reconnect(self, out: &mut Vec<u8>, after_ms: u64) {
        if let Self::Sse { .. } = self {
            let _ = writeln!(out, "retry: {after_ms}");
        }
        self.message(out, None, "reconnect", &server::reconnect(after_ms));
    }

    /// Appends what ends the session. An end of the stream or a drain needs no event.
    pub fn close(self, out: &mut Vec<u8>, reason: CloseReason) {
        match self {
            Self::Ws => frame::push_close(out, reason),
            Self::Sse { chunked } => {
                if !matches!(reason, CloseReason::Normal | CloseReason::ServiceRestart) {
                    let close = server::close(reason);
                    self.push(out, |out| frame::push_sse_event(out, "close", close.as_bytes()));
                }
                if chunked {
                    out.extend_from_slice(frame::LAST_CHUNK);
                }
            }
        }
    }
}

fn sse(out: &mut Vec<u8>, id: Option<EntryId>, name: Option<&str>, json: &[u8]) {
    if let Some(id) = id {
        let _ = writeln!(out, "id: {id}");
    }
    if let Some(name) = name {
        let _ = writeln!(out, "event: {name}");
    }
    for part in [b"data: ", json, b"\n\n"] {
        out.extend_from_slice(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{Content, Entry};
    use bytes::Bytes;

    fn encoded(end: bool) -> Encoded {
        let text = |text: &'static str| Some(Bytes::from_static(text.as_bytes()));
        let content = Content { event: None, data: text("a"), end: text("done").filter(|_| end) };
        Encoded::new(&Entry { id: EntryId { ms: 7, seq: 1 }, content })
    }

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn an_entry_is_an_unnamed_event_with_its_id_and_the_end_a_named_one() {
        let sse = Wire::Sse { chunked: false };
        assert_eq!(
            written(|out| sse.entry(out, &encoded(false))),
            "id: 7-1\ndata: {\"type\":\"entry\",\"id\":\"7-1\",\"data\":\"a\"}\n\n"
        );
        let end = written(|out| sse.entry(out, &encoded(true)));
        assert!(end.starts_with("id: 7-1\nevent: end\ndata: {\"type\":\"end\""), "{end}");
        let chunk = written(|out| Wire::Sse { chunked: true }.push(out, |out| out.extend_from_slice(b"x")));
        assert_eq!(chunk, "00000001\r\nx\r\n");
    }

    #[test]
    fn a_drain_and_an_end_close_without_an_event() {
        let sse = Wire::Sse { chunked: true };
        for quiet in [CloseReason::Normal, CloseReason::ServiceRestart] {
            assert_eq!(written(|out| sse.close(out, quiet)), "0\r\n\r\n");
        }
        let told = written(|out| sse.close(out, CloseReason::SlowConsumer));
        assert!(told.contains("event: close\ndata: {\"type\":\"close\",\"code\":4500"), "{told}");
        assert!(told.ends_with("\r\n0\r\n\r\n"), "{told}");
    }
}
