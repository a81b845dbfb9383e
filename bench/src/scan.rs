//! Cheap readers of what servers send: WebSocket frames, SSE chunks, NATS messages, quote events.
//!
//! They look for bytes instead of parsing JSON: the load generator shares the cores with the server
//! that it measures, so each nanosecond here is taken from there. They trust the server's framing; a
//! byte that can't be right ends the session and is counted.
//!
//! Not here: sockets and what a message means for a session (`client`).

use memchr::memmem::Finder;
use std::sync::LazyLock;

static VALUE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"value\":"));
static SEQ: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"seq\":"));
const EVENT: &[u8] = b"{\"type\":\"event\",\"topic\":\"quote:";
const INITIAL: &[u8] = b"\"initial\":true}}";

/// What the benchmark wants to know of a quote event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// The instrument.
    pub instrument: u32,
    /// Its version, counted up by one per publication.
    pub seq: u32,
    /// When it was to be sent, microseconds since the Unix epoch.
    pub intended_us: u64,
    /// Whether it is a snapshot.
    pub initial: bool,
}

/// Reads a quote event; `None` for any other message.
pub fn event(json: &[u8]) -> Option<Event> {
    let rest = json.strip_prefix(EVENT)?;
    let (instrument, used) = number(rest)?;
    let rest = &rest[used..];
    let rest = &rest[VALUE.find(rest)? + 8..];
    let (intended_us, used) = number(rest)?;
    let rest = &rest[used..];
    let (seq, _) = number(&rest[SEQ.find(rest)? + 6..])?;
    Some(Event {
        instrument: instrument as u32,
        seq: seq as u32,
        intended_us,
        initial: json.ends_with(INITIAL),
    })
}

/// The integer behind `"name":`, for stamps that are only looked at now and then.
pub fn field(json: &[u8], name: &str) -> Option<u64> {
    let key = format!("\"{name}\":");
    let at = memchr::memmem::find(json, key.as_bytes())? + key.len();
    number(&json[at..]).map(|(n, _)| n)
}

fn number(text: &[u8]) -> Option<(u64, usize)> {
    let mut n = 0u64;
    let mut used = 0;
    for &b in text {
        let digit = b.wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        n = n.wrapping_mul(10) + u64::from(digit);
        used += 1;
    }
    (used > 0).then_some((n, used))
}

/// One WebSocket frame of a server.
pub struct Frame<'a> {
    /// The opcode; continuation frames are 0.
    pub opcode: u8,
    /// The payload.
    pub payload: &'a [u8],
    /// Header and payload together.
    pub total: usize,
}

/// The first frame in `buf`: `Ok(None)` when it isn't complete.
///
/// # Errors
/// When the bytes are no unmasked, unextended frame.
pub fn ws_frame(buf: &[u8]) -> Result<Option<Frame<'_>>, &'static str> {
    let [first, second, ..] = *buf else { return Ok(None) };
    if first & 0x70 != 0 || second & 0x80 != 0 {
        return Err("reserved bits or a mask in a server's frame");
    }
    let (header, len) = match second {
        126 if buf.len() < 4 => return Ok(None),
        126 => (4, usize::from(u16::from_be_bytes([buf[2], buf[3]]))),
        127 if buf.len() < 10 => return Ok(None),
        127 => (10, u64::from_be_bytes(buf[2..10].try_into().expect("eight bytes")) as usize),
        n => (2, usize::from(n)),
    };
    if len > 1 << 24 {
        return Err("a frame over 16 MiB");
    }
    if buf.len() < header + len {
        return Ok(None);
    }
    Ok(Some(Frame { opcode: first & 0x0f, payload: &buf[header..header + len], total: header + len }))
}

/// A client's frame, masked with zeros: legal, and free to make.
pub fn push_client_frame(out: &mut Vec<u8>, opcode: u8, payload: &[u8]) {
    out.push(0x80 | opcode);
    match payload.len() {
        n @ 0..=125 => out.push(0x80 | n as u8),
        n => {
            out.push(0x80 | 126);
            out.extend_from_slice(&(n as u16).to_be_bytes());
        }
    }
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(payload);
}

/// Takes the chunked coding off a body, whatever way it is cut into reads.
#[derive(Default, Debug)]
pub struct Dechunker {
    left: usize,
    state: ChunkState,
}

#[derive(Default, Debug, PartialEq, Eq, Clone, Copy)]
enum ChunkState {
    #[default]
    Size,
    SizeLine,
    Body,
    BodyEnd,
    Ended,
}

impl Dechunker {
    /// Appends the body bytes of `input` to `out`; false once the last chunk was seen.
    pub fn feed(&mut self, mut input: &[u8], out: &mut Vec<u8>) -> bool {
        while let Some(&b) = input.first() {
            match self.state {
                ChunkState::Body => {
                    let n = self.left.min(input.len());
                    out.extend_from_slice(&input[..n]);
                    input = &input[n..];
                    self.left -= n;
                    if self.left == 0 {
                        self.state = ChunkState::BodyEnd;
                    }
                    continue;
                }
                ChunkState::Size => match (b as char).to_digit(16) {
                    Some(digit) => self.left = self.left * 16 + digit as usize,
                    None => {
                        self.state = ChunkState::SizeLine;
                        continue;
                    }
                },
                ChunkState::SizeLine if b == b'\n' => {
                    self.state = if self.left == 0 { ChunkState::Ended } else { ChunkState::Body };
                }
                ChunkState::BodyEnd if b == b'\n' => self.state = ChunkState::Size,
                ChunkState::SizeLine | ChunkState::BodyEnd => {}
                ChunkState::Ended => return false,
            }
            input = &input[1..];
        }
        self.state != ChunkState::Ended
    }
}

/// One message of the NATS protocol.
pub enum NatsOp<'a> {
    /// A payload that was published.
    Msg(&'a [u8]),
    /// To be answered with `PONG`.
    Ping,
    /// The answer to a `PING`.
    Pong,
    /// The server refuses something.
    Err(&'a [u8]),
    /// Anything else.
    Other,
}

/// The first NATS operation in `buf` and its length: `None` when it isn't complete.
pub fn nats_op(buf: &[u8]) -> Option<(NatsOp<'_>, usize)> {
    let end = memchr::memchr(b'\n', buf)?;
    let line = buf[..end].strip_suffix(b"\r").unwrap_or(&buf[..end]);
    if line.starts_with(b"MSG ") {
        let at = line.iter().rposition(|&b| b == b' ')? + 1;
        let (len, _) = number(&line[at..])?;
        let start = end + 1;
        let total = start + len as usize + 2;
        return (buf.len() >= total).then(|| (NatsOp::Msg(&buf[start..start + len as usize]), total));
    }
    let op = match line {
        b"PING" => NatsOp::Ping,
        b"PONG" => NatsOp::Pong,
        _ if line.starts_with(b"-ERR") => NatsOp::Err(&line[4..]),
        _ => NatsOp::Other,
    };
    Some((op, end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = concat!(
        r#"{"type":"event","topic":"quote:5930","ts":1,"data":{"stockId":5930,"eventTs":1,"price":71000.10,"#,
        r#""value":1700000000123456,"at":"2026-07-06T09:00:01","seq":42}}"#
    );

    #[test]
    fn an_event_is_read_without_parsing_json() {
        let expected =
            Event { instrument: 5930, seq: 42, intended_us: 1_700_000_000_123_456, initial: false };
        assert_eq!(event(SAMPLE.as_bytes()), Some(expected));
        let initial = SAMPLE.replace("\"seq\":42}}", "\"seq\":42,\"initial\":true}}");
        assert_eq!(event(initial.as_bytes()), Some(Event { initial: true, ..expected }));
        assert_eq!(event(br#"{"type":"ping","ts":1}"#), None);
        assert_eq!(field(SAMPLE.as_bytes(), "stockId"), Some(5930));
    }

    #[test]
    fn a_body_cut_anywhere_is_dechunked() {
        let body = b"5\r\nhello\r\n0000000c\r\n, world\n\nx y\r\n0\r\n\r\n";
        for cut in 0..body.len() {
            let mut out = Vec::new();
            let mut dechunker = Dechunker::default();
            dechunker.feed(&body[..cut], &mut out);
            let more = dechunker.feed(&body[cut..], &mut out);
            assert_eq!(out, b"hello, world\n\nx y", "cut at {cut}");
            assert!(!more, "cut at {cut}");
        }
    }

    #[test]
    fn a_torn_frame_waits_for_its_rest() {
        let mut frame = vec![0x81, 126, 0, 200];
        frame.extend_from_slice(&[b'x'; 200]);
        for cut in 0..frame.len() {
            assert!(matches!(ws_frame(&frame[..cut]), Ok(None)), "cut at {cut}");
        }
        let whole = ws_frame(&frame).ok().flatten().map(|f| (f.opcode, f.payload.len(), f.total));
        assert_eq!(whole, Some((1, 200, 204)));
        assert!(ws_frame(&[0x81, 0x85]).is_err());
    }

    #[test]
    fn nats_messages_are_told_apart() {
        let (op, used) = nats_op(b"MSG quote.5 1 3\r\nabc\r\nPING\r\n").expect("complete");
        assert!(matches!(op, NatsOp::Msg(b"abc")));
        assert_eq!(used, 22);
        assert!(nats_op(b"MSG quote.5 1 3\r\nabc").is_none());
        assert!(matches!(nats_op(b"PING\r\n"), Some((NatsOp::Ping, 6))));
    }
}
