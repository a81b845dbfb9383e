//! Pub/Sub payloads and price keys: the source's digits come through, an event is JSON on one line, and of two
//! quotes at most one is newer.

use super::assert_one_line_of_json;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::time::Duration;
use tickbridge::clock::Now;
use tickbridge::protocol::event::EncodedQuote;
use tickbridge::quote::{Age, Field, Quote, Verdict, Version};
use tickbridge::upstream::payload::{Unusable, live, stored};

const MAX_BYTES: usize = 16 * 1024;
const ARRIVED_US: i64 = 1_700_000_000_000_000;
const NOW: Now = Now { mono: Duration::ZERO, unix_us: ARRIVED_US };

/// What an event says beyond the source's fields takes at most so many bytes.
const ENVELOPE: usize = 400;

/// One payload, or two with a zero byte between them.
pub fn check(input: &[u8]) {
    let mut payloads = input.splitn(2, |&byte| byte == 0);
    let quotes: Vec<Quote> = payloads.by_ref().filter_map(one).collect();
    if let [first, second] = &quotes[..] {
        let (forth, back) = (first.version.age(second.version), second.version.age(first.version));
        assert_eq!(forth == Age::Newer, back == Age::Older);
        assert_eq!(forth == Age::Same, back == Age::Same);
    }
}

fn one(payload: &[u8]) -> Option<Quote> {
    let fields: Option<BTreeMap<String, &RawValue>> = serde_json::from_slice(payload).ok();
    let quote = match live(payload.to_vec(), MAX_BYTES, ARRIVED_US) {
        Ok(quote) => quote,
        Err(reason) => {
            match reason {
                Unusable::TooLarge => assert!(payload.len() > MAX_BYTES),
                Unusable::NotUtf8 => assert!(std::str::from_utf8(payload).is_err()),
                Unusable::NotJson | Unusable::NotAnObject => assert!(fields.is_none()),
                Unusable::NoInstrument | Unusable::BadInstrument => assert!(fields.is_some()),
                Unusable::WrongInstrument => panic!("a payload names its own instrument"),
            }
            return None;
        }
    };
    let fields = fields.expect("what is used is an object");
    assert!(payload.len() <= MAX_BYTES);
    let text = |name: &str| fields.get(name).map(|raw| raw.get());
    assert_eq!(text("stockId").and_then(|id| id.parse().ok()), Some(quote.id.get()));
    assert_eq!(quote.version.seq, text("seq").and_then(|seq| seq.parse().ok()));
    assert_eq!(quote.version.ts, text("ts").and_then(|ts| ts.parse().ok()));
    passed_through(&quote, &text, "close");
    event(&quote, payload.len());
    if quote.version != Version::default() {
        assert_ne!(quote.clone().judge(&quote), Verdict::Newer, "a quote is newer than itself");
    }
    key(&quote, payload, &text);
    Some(quote)
}

/// The same bytes as a price key, where only the price has another name.
fn key<'a>(quote: &Quote, payload: &[u8], text: &impl Fn(&str) -> Option<&'a str>) {
    let kept = stored(quote.id, payload.to_vec(), None, MAX_BYTES, ARRIVED_US).expect("the same object");
    assert_eq!((kept.id, kept.version, kept.published_at), (quote.id, quote.version, quote.published_at));
    passed_through(&kept, text, "price");
    event(&kept, payload.len());
    let other = tickbridge::instrument::InstrumentId::new(quote.id.get() ^ 1);
    let wrong = stored(other, payload.to_vec(), None, MAX_BYTES, ARRIVED_US);
    assert_eq!(wrong.err(), Some(Unusable::WrongInstrument));
}

fn passed_through<'a>(quote: &Quote, text: &impl Fn(&str) -> Option<&'a str>, price: &str) {
    let names = [price, "prevDayChangePct", "volume", "open", "high", "low", "value"];
    for (field, name) in Field::ALL.into_iter().zip(names) {
        let number = text(name).filter(|raw| raw.starts_with(|c: char| c == '-' || c.is_ascii_digit()));
        assert_eq!(quote.field(field), number, "{name}");
    }
    if let Some(at) = quote.field(Field::At) {
        let written: String = text("at").expect("it came from there").into();
        let is_text = written.starts_with('"');
        let squeezed: String = written.chars().filter(|c| is_text || !c.is_ascii_whitespace()).collect();
        assert_eq!(at, squeezed);
    }
}

fn event(quote: &Quote, payload: usize) {
    let encoded = EncodedQuote::new(quote, 1, NOW);
    assert_one_line_of_json(encoded.json());
    assert_one_line_of_json(encoded.data());
    assert!(encoded.json().len() <= payload + ENVELOPE, "{} bytes from {payload}", encoded.json().len());
    let mut snapshot = Vec::new();
    encoded.push_ws(&mut snapshot, true);
    for frame in [encoded.ws_frame(), &snapshot] {
        let (header, length) = match frame[1] {
            126 => (4, usize::from(u16::from_be_bytes([frame[2], frame[3]]))),
            n => (2, usize::from(n)),
        };
        assert_eq!(frame.len(), header + length);
        assert_eq!(frame[0], 0x81);
        assert_one_line_of_json(&frame[header..]);
    }
    let mut sse = Vec::new();
    encoded.push_sse_data(&mut sse, true);
    assert!(sse.starts_with(b"data: ") && sse.ends_with(b"\n\n"));
    assert_eq!(sse.iter().filter(|&&byte| byte == b'\n').count(), 2);
}
