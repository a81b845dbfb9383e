//! The `event` message, encoded once and kept as the bytes of a complete WebSocket frame.
//!
//! SSE takes the JSON from the same bytes; a snapshot is the same event with `"initial":true` put in
//! before its last two brackets.

use super::frame;
use crate::clock::Now;
use crate::instrument::InstrumentId;
use crate::quote::{Field, Origin, Quote, Version};
use crate::topic::Topic;
use std::io::Write;
use std::time::Duration;

const INITIAL: &[u8] = b",\"initial\":true";
const END: &[u8] = b"}}";

/// A quote as it goes over the wire, shared by all lanes and sessions.
#[derive(Debug)]
pub struct EncodedQuote {
    /// The instrument.
    pub id: InstrumentId,
    /// The quote's version.
    pub version: Version,
    /// Rises with each quote of the instrument that passed the version gate of this process.
    pub serial: u64,
    /// Whether it was read from the instrument's price key.
    pub stored: bool,
    /// When this process received the quote, microseconds since the Unix epoch.
    pub arrived_us: i64,
    /// When it was encoded, on the monotonic clock.
    pub emitted: Duration,
    bytes: Box<[u8]>,
    header_len: u8,
    data_at: u16,
}

impl EncodedQuote {
    /// Encodes `quote`, the `serial`-th of its instrument, as emitted at `now`.
    pub fn new(quote: &Quote, serial: u64, now: Now) -> Self {
        let mut out = Vec::with_capacity(frame::MAX_HEADER + 512);
        out.resize(frame::MAX_HEADER, 0);
        let ms = now.unix_ms();
        let topic = Topic::of(quote.id);
        let _ = write!(out, "{{\"type\":\"event\",\"topic\":\"{topic}\",\"ts\":{ms},\"data\":");
        let data_at = out.len() - frame::MAX_HEADER;
        let _ = write!(out, "{{\"stockId\":{}", quote.id);
        push_number(&mut out, "eventTs", quote.version.ts);
        push_number(&mut out, "publishedAt", quote.published_at);
        push_number(&mut out, "arrivedAt", Some(quote.arrived_us.div_euclid(1_000)));
        push_number(&mut out, "emittedAt", Some(ms));
        for field in Field::ALL {
            if let Some(text) = quote.field(field) {
                push_raw(&mut out, name(field), text);
            }
        }
        if let Some(seq) = quote.version.seq {
            push_raw(&mut out, "seq", &seq.to_string());
        }
        out.extend_from_slice(END);

        let (header, n) = frame::text_header(out.len() - frame::MAX_HEADER);
        let start = frame::MAX_HEADER - n;
        out[start..frame::MAX_HEADER].copy_from_slice(&header[..n]);
        Self {
            id: quote.id,
            version: quote.version,
            serial,
            stored: quote.origin == Origin::Stored,
            arrived_us: quote.arrived_us,
            emitted: now.mono,
            bytes: out[start..].into(),
            header_len: n as u8,
            data_at: (n + data_at) as u16,
        }
    }

    /// The complete WebSocket text frame.
    pub fn ws_frame(&self) -> &[u8] {
        &self.bytes
    }

    /// The message's JSON.
    pub fn json(&self) -> &[u8] {
        &self.bytes[usize::from(self.header_len)..]
    }

    /// The JSON object under `data`.
    pub fn data(&self) -> &[u8] {
        &self.bytes[usize::from(self.data_at)..self.bytes.len() - 1]
    }

    /// Appends a WebSocket frame, as a snapshot where `initial`.
    pub fn push_ws(&self, out: &mut Vec<u8>, initial: bool) {
        if !initial {
            return out.extend_from_slice(&self.bytes);
        }
        let (header, n) = frame::text_header(self.json().len() + INITIAL.len());
        out.extend_from_slice(&header[..n]);
        self.push_initial_json(out);
    }

    /// Appends the `data:` line and the blank line that ends an SSE event, as a snapshot where
    /// `initial`. The caller has written the `id:` line.
    pub fn push_sse_data(&self, out: &mut Vec<u8>, initial: bool) {
        out.extend_from_slice(b"data: ");
        if initial {
            self.push_initial_json(out);
        } else {
            out.extend_from_slice(self.json());
        }
        out.extend_from_slice(b"\n\n");
    }

    fn push_initial_json(&self, out: &mut Vec<u8>) {
        let json = self.json();
        for part in [&json[..json.len() - END.len()], INITIAL, END] {
            out.extend_from_slice(part);
        }
    }
}

const fn name(field: Field) -> &'static str {
    match field {
        Field::Price => "price",
        Field::PrevDayChangePct => "prevDayChangePct",
        Field::Volume => "volume",
        Field::Open => "open",
        Field::High => "high",
        Field::Low => "low",
        Field::Value => "value",
        Field::At => "at",
    }
}

fn push_number(out: &mut Vec<u8>, name: &str, value: Option<i64>) {
    if let Some(value) = value {
        let _ = write!(out, ",\"{name}\":{value}");
    }
}

fn push_raw(out: &mut Vec<u8>, name: &str, json: &str) {
    let _ = write!(out, ",\"{name}\":{json}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Quote {
        let text = r#"71000.10 1.2345 "2026-07-06T09:00:01""#;
        let version = Version { seq: Some(42), ts: Some(1_700_000_000_100), of_write: false };
        let mut quote = Quote::new(InstrumentId::new(5930), version, Origin::Live, text.into());
        quote.set(Field::Price, 0..8);
        quote.set(Field::PrevDayChangePct, 9..15);
        quote.set(Field::At, 16..text.len());
        quote.published_at = Some(1_700_000_000_110);
        quote.arrived_us = 1_700_000_000_121_900;
        quote
    }

    fn encoded() -> EncodedQuote {
        EncodedQuote::new(&sample(), 1, Now { mono: Duration::ZERO, unix_us: 1_700_000_000_123_000 })
    }

    const DATA: &str = concat!(
        r#"{"stockId":5930,"eventTs":1700000000100,"publishedAt":1700000000110,"#,
        r#""arrivedAt":1700000000121,"emittedAt":1700000000123,"price":71000.10,"#,
        r#""prevDayChangePct":1.2345,"at":"2026-07-06T09:00:01","seq":42}"#
    );

    #[test]
    fn fields_keep_their_order_and_the_sources_digits() {
        let encoded = encoded();
        let expected = format!(r#"{{"type":"event","topic":"quote:5930","ts":1700000000123,"data":{DATA}}}"#);
        assert_eq!(std::str::from_utf8(encoded.json()), Ok(expected.as_str()));
        assert_eq!(std::str::from_utf8(encoded.data()), Ok(DATA));
    }

    #[test]
    fn the_frame_header_tells_the_length() {
        let encoded = encoded();
        let frame = encoded.ws_frame();
        assert_eq!(frame[..2], [0x81, 126]);
        assert_eq!(usize::from(u16::from_be_bytes([frame[2], frame[3]])), frame.len() - 4);
    }

    #[test]
    fn a_snapshot_differs_by_one_field() {
        let encoded = encoded();
        let mut ws = Vec::new();
        encoded.push_ws(&mut ws, true);
        let json: serde_json::Value = serde_json::from_slice(&ws[4..]).expect("valid JSON");
        assert_eq!(json["data"]["initial"], true);
        assert_eq!(usize::from(u16::from_be_bytes([ws[2], ws[3]])), ws.len() - 4);

        let mut sse = Vec::new();
        encoded.push_sse_data(&mut sse, true);
        assert_eq!(&sse[6..sse.len() - 2], &ws[4..]);
    }
}
