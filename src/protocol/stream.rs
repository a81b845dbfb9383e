//! The messages of streams, as JSON on one line, and an entry encoded once for all sessions.
//!
//! Each function gives one message. What a producer wrote is passed through exactly: text as a JSON string, anything
//! else in base64.

use super::frame;
use crate::entry::{Content, Entry, EntryId};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use std::fmt::Write;

/// Largest text of an entry that is delivered. A token has a few bytes; what is larger is told as a gap, so that one
/// entry can't make the process hold as much as Redis would.
pub const MAX_DATA_BYTES: usize = 256 * 1024;

/// An entry as it goes over the wire.
#[derive(Debug)]
pub struct Encoded {
    /// Its place.
    pub id: EntryId,
    /// Whether nothing follows it.
    pub is_end: bool,
    /// Whether it was too large to be delivered.
    pub too_large: bool,
    /// A complete WebSocket text frame.
    frame: Box<[u8]>,
    header_len: u8,
}

impl Encoded {
    /// Encodes `entry`.
    pub fn new(entry: &Entry) -> Self {
        let content = &entry.content;
        let fields = [&content.event, &content.data, &content.end];
        let too_large = fields.into_iter().flatten().map(Bytes::len).sum::<usize>() > MAX_DATA_BYTES;
        let is_end = content.end.is_some();
        let json = if too_large { self::too_large(entry.id) } else { self::entry(entry.id, content) };
        let (header, n) = frame::text_header(json.len());
        let frame = [&header[..n], json.as_bytes()].concat().into();
        Self { id: entry.id, is_end, too_large, frame, header_len: n as u8 }
    }

    /// Bytes that it takes in memory, about.
    pub fn size(&self) -> usize {
        self.frame.len() + size_of::<Self>()
    }

    /// The complete WebSocket frame.
    pub fn ws_frame(&self) -> &[u8] {
        &self.frame
    }

    /// The message's JSON.
    pub fn json(&self) -> &[u8] {
        &self.frame[usize::from(self.header_len)..]
    }

    /// The name of its SSE event; entries have none.
    pub fn sse_name(&self) -> Option<&'static str> {
        match self {
            Self { too_large: true, .. } => Some("gap"),
            Self { is_end: true, .. } => Some("end"),
            _ => None,
        }
    }
}

/// An entry, the last one of its stream included.
pub fn entry(id: EntryId, content: &Content) -> String {
    let mut out = match &content.end {
        None => format!(r#"{{"type":"entry","id":"{id}""#),
        Some(status) => {
            let mut out = format!(r#"{{"type":"end","id":"{id}""#);
            push(&mut out, "status", status);
            out
        }
    };
    if let Some(event) = &content.event {
        push(&mut out, "event", event);
    }
    if let Some(data) = &content.data {
        push(&mut out, "data", data);
    }
    out.push('}');
    out
}

fn push(out: &mut String, name: &str, value: &[u8]) {
    match std::str::from_utf8(value) {
        Ok(text) => {
            let _ = write!(out, ",\"{name}\":");
            push_text(out, text);
        }
        Err(_) => {
            let _ = write!(out, ",\"{name}64\":\"");
            STANDARD.encode_string(value, out);
            out.push('"');
        }
    }
}

fn push_text(out: &mut String, text: &str) {
    // Escapes line breaks too, so that a message stays on the line that SSE needs.
    out.push_str(&serde_json::to_string(text).expect("text is always JSON"));
}

/// Where a session begins that wants what is written from now on: what follows this place.
pub fn begin(id: EntryId) -> String {
    format!(r#"{{"type":"begin","id":"{id}"}}"#)
}

/// An entry that is too large to be delivered.
pub fn too_large(id: EntryId) -> String {
    format!(r#"{{"type":"gap","id":"{id}","reason":"too_large","missing":1}}"#)
}

/// Entries between two places are gone. Where nothing follows yet, `before` is `None` and `id` the place to go on
/// from.
pub fn gap(after: EntryId, before: Option<EntryId>, id: EntryId, missing: Option<u64>) -> String {
    let mut out = format!(r#"{{"type":"gap","reason":"trimmed","after":"{after}""#);
    match before {
        Some(before) => {
            let _ = write!(out, r#","before":"{before}""#);
        }
        None => {
            let _ = write!(out, r#","id":"{id}""#);
        }
    }
    push_missing(&mut out, missing);
    out
}

/// Entries that were sent are no longer in the stream.
pub fn lost(after: EntryId, through: EntryId, missing: Option<u64>) -> String {
    let mut out = format!(r#"{{"type":"lost","id":"{after}","after":"{after}","through":"{through}""#);
    push_missing(&mut out, missing);
    out
}

fn push_missing(out: &mut String, missing: Option<u64>) {
    if let Some(missing) = missing {
        let _ = write!(out, r#","missing":{missing}"#);
    }
    out.push('}');
}

/// Who is the cause of a silence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Silent {
    /// Nothing is written.
    Producer,
    /// Nothing can be read.
    Redis,
}

/// Nothing has come since `since_ms`.
pub fn stalled(silent: Silent, since_ms: i64) -> String {
    let reason = match silent {
        Silent::Producer => "producer",
        Silent::Redis => "redis",
    };
    format!(r#"{{"type":"status","state":"stalled","reason":"{reason}","since":{since_ms}}}"#)
}

/// It goes on.
pub fn live() -> &'static str {
    r#"{"type":"status","state":"live"}"#
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const ID: EntryId = EntryId { ms: 17, seq: 2 };

    fn read(text: &str) -> Value {
        assert!(!text.contains(['\n', '\r']), "{text}");
        serde_json::from_str(text).expect("JSON")
    }

    #[test]
    fn what_was_written_is_passed_through() {
        let text = |text: &'static str| Some(Bytes::from_static(text.as_bytes()));
        let content = |event, data, end| Content { event, data, end };
        assert_eq!(
            read(&entry(ID, &content(text("token"), text(" \"é\"\r\n\u{0}"), None))),
            json!({"type": "entry", "id": "17-2", "event": "token", "data": " \"é\"\r\n\u{0}"})
        );
        assert_eq!(read(&entry(ID, &content(None, None, None))), json!({"type": "entry", "id": "17-2"}));
        assert_eq!(
            read(&entry(ID, &content(None, text("x"), text("done")))),
            json!({"type": "end", "id": "17-2", "status": "done", "data": "x"})
        );
        let bytes = Some(Bytes::from_static(b"\xff\x00"));
        assert_eq!(
            read(&entry(ID, &content(None, bytes, None))),
            json!({"type": "entry", "id": "17-2", "data64": "/wA="})
        );
    }

    #[test]
    fn what_is_missing_is_told_as_far_as_it_is_known() {
        let other = EntryId { ms: 20, seq: 0 };
        assert_eq!(
            read(&gap(ID, Some(other), ID, Some(3))),
            json!({"type": "gap", "reason": "trimmed", "after": "17-2", "before": "20-0", "missing": 3})
        );
        assert_eq!(
            read(&gap(ID, None, other, None)),
            json!({"type": "gap", "reason": "trimmed", "after": "17-2", "id": "20-0"})
        );
        assert_eq!(
            read(&lost(ID, other, Some(1))),
            json!({"type": "lost", "id": "17-2", "after": "17-2", "through": "20-0", "missing": 1})
        );
    }

    #[test]
    fn a_frame_holds_the_json_whatever_its_length() {
        for n in [0, 50, 200, 70_000] {
            let data = Some(Bytes::from("x".repeat(n)));
            let entry =
                Entry { id: EntryId { ms: 7, seq: 1 }, content: Content { data, ..Default::default() } };
            let encoded = Encoded::new(&entry);
            let value: serde_json::Value = serde_json::from_slice(encoded.json()).expect("JSON");
            assert_eq!(value["data"].as_str().expect("text").len(), n);
            let (header, len) = frame::text_header(encoded.json().len());
            assert_eq!(&encoded.ws_frame()[..len], &header[..len]);
        }
    }

    #[test]
    fn what_is_too_large_is_a_gap_of_one() {
        let data = Some(Bytes::from(vec![b'x'; MAX_DATA_BYTES + 1]));
        let entry = Entry { id: EntryId { ms: 7, seq: 1 }, content: Content { data, ..Default::default() } };
        let encoded = Encoded::new(&entry);
        assert_eq!(encoded.sse_name(), Some("gap"));
        let value: serde_json::Value = serde_json::from_slice(encoded.json()).expect("JSON");
        assert_eq!((value["id"].as_str(), value["missing"].as_u64()), (Some("7-1"), Some(1)));
    }
}
