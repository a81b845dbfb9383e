//! What a publication looks like on its way in: Redis commands, NATS messages, HTTP requests.
//!
//! The intended send time travels in `value`, in microseconds, because the wire's own stamps are
//! milliseconds; the gateway passes it through untouched.

use crate::schedule::FIRST_SEQ;
use std::io::Write;

/// One version of one instrument, with the number it has on the wire.
#[derive(Clone, Copy)]
pub struct Version {
    /// From 1.
    pub instrument: u32,
    /// Counted up by one per publication.
    pub seq: u32,
    /// When it is to be sent, microseconds since the Unix epoch.
    pub intended_us: u64,
}

impl Version {
    /// The version that is stored before anybody connects.
    pub fn first(instrument: u32) -> Self {
        Self { instrument, seq: FIRST_SEQ, intended_us: crate::clock::now_us() }
    }

    fn price(self) -> u32 {
        10_000 + (self.instrument * 7_919 + self.seq * 31) % 90_000
    }

    /// The payload of the Redis contract, about 220 bytes.
    pub fn payload(self, out: &mut Vec<u8>) {
        let (ms, price) = (self.intended_us / 1_000, self.price());
        write_all(
            out,
            format_args!(
                concat!(
                    r#"{{"stockId":{},"ts":{ms},"publishedAt":{ms},"at":"2026-07-06T09:00:01","open":{},"#,
                    r#""high":{},"low":{},"close":{}.10,"prevDayChangePct":1.2345,"volume":{},"value":{},"#,
                    r#""seq":{}}}"#
                ),
                self.instrument,
                price - 50,
                price + 90,
                price - 99,
                price,
                self.seq * 10,
                self.intended_us,
                self.seq,
                ms = ms,
            ),
        );
    }

    /// The JSON of the price key.
    pub fn stored(self, out: &mut Vec<u8>) {
        let price = self.price();
        write_all(
            out,
            format_args!(
                concat!(
                    r#"{{"stockId":{},"at":"2026-07-06T09:00:01","price":{}.10,"open":{},"high":{},"low":{},"#,
                    r#""close":{}.10,"prevDayChangePct":1.2345,"volume":{},"value":{},"ts":{},"seq":{}}}"#
                ),
                self.instrument,
                price,
                price - 50,
                price + 90,
                price - 99,
                price,
                self.seq * 10,
                self.intended_us,
                self.intended_us / 1_000,
                self.seq,
            ),
        );
    }

    /// The event that a browser gets from the gateway, for peers that pass on what they are given.
    pub fn event(self, out: &mut Vec<u8>) {
        let (ms, price) = (self.intended_us / 1_000, self.price());
        write_all(
            out,
            format_args!(
                concat!(
                    r#"{{"type":"event","topic":"quote:{id}","ts":{ms},"data":{{"stockId":{id},"eventTs":{ms},"#,
                    r#""publishedAt":{ms},"arrivedAt":{ms},"emittedAt":{ms},"price":{price}.10,"#,
                    r#""prevDayChangePct":1.2345,"volume":{},"open":{},"high":{},"low":{},"value":{},"#,
                    r#""at":"2026-07-06T09:00:01","seq":{}}}}}"#
                ),
                self.seq * 10,
                price - 50,
                price + 90,
                price - 99,
                self.intended_us,
                self.seq,
                id = self.instrument,
                ms = ms,
                price = price,
            ),
        );
    }
}

fn write_all(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a vector takes everything");
}

/// Appends a Redis command.
pub fn push_command(out: &mut Vec<u8>, parts: &[&[u8]]) {
    write_all(out, format_args!("*{}\r\n", parts.len()));
    for part in parts {
        write_all(out, format_args!("${}\r\n", part.len()));
        out.extend_from_slice(part);
        out.extend_from_slice(b"\r\n");
    }
}

/// The cluster slot of a key's hash tag.
pub fn slot_of_tag(tag: &[u8]) -> u16 {
    let mut crc = 0u16;
    for &b in tag {
        crc ^= u16::from(b) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 != 0 { (crc << 1) ^ 0x1021 } else { crc << 1 };
        }
    }
    crc % 16_384
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peers_event_reads_like_the_gateways() {
        let mut out = Vec::new();
        Version { instrument: 7, seq: 9, intended_us: 1_700_000_000_123_456 }.event(&mut out);
        let event = crate::scan::event(&out).expect("an event");
        assert_eq!((event.instrument, event.seq, event.intended_us), (7, 9, 1_700_000_000_123_456));
        assert!(serde_json::from_slice::<serde_json::Value>(&out).is_ok());
    }

    #[test]
    fn payload_and_key_are_json() {
        for write in [Version::payload, Version::stored] {
            let mut out = Vec::new();
            write(Version::first(1_000), &mut out);
            let json: serde_json::Value = serde_json::from_slice(&out).expect("JSON");
            assert_eq!(json["stockId"], 1_000);
        }
    }

    #[test]
    fn slots_are_those_of_redis() {
        assert_eq!(slot_of_tag(b"123456789"), 0x31c3);
    }
}
