//! One session of the load generator: where it stands, and which version of each topic it saw last.
//!
//! Not here: sockets and threads (`client`), the bytes (`scan`).

use super::dialect::{Dialect, push_auth, push_nats_hello, push_topics};
use crate::scan::{self, Dechunker, Event, NatsOp};
use crate::schedule::{FIRST_SEQ, Schedule};
use crate::tally::Tally;
use crate::token::Signer;
use std::net::TcpStream;
use std::sync::Arc;

/// How far a session has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug, Default)]
pub enum Stage {
    /// Not connected.
    #[default]
    Idle,
    /// TCP is connecting.
    Connecting,
    /// Waiting for the response's head.
    Head,
    /// Waiting for `auth`, or a greeting.
    Auth,
    /// Waiting for the acknowledgement of the subscription.
    Ack,
    /// Waiting for the first price of each topic.
    First,
    /// Receiving.
    Live,
}

/// What is published, and which part of it is measured.
pub struct Plan {
    /// Everything that is sent.
    pub schedule: Arc<Schedule>,
    /// When the schedule starts, microseconds since the Unix epoch.
    pub start_us: u64,
    /// Start of the measured window.
    pub from_us: u64,
    /// End of the measured window.
    pub to_us: u64,
    /// Versions of each instrument in the window.
    pub owed_in_window: Vec<u32>,
}

impl Plan {
    /// A schedule that starts at `start_us` and is measured from `from_us` to `to_us`.
    pub fn new(schedule: Arc<Schedule>, start_us: u64, from_us: u64, to_us: u64) -> Self {
        let window = from_us..to_us;
        let owed =
            |times: &Vec<u64>| times.iter().filter(|&&at| window.contains(&(start_us + at))).count() as u32;
        let owed_in_window = schedule.times.iter().map(owed).collect();
        Self { schedule, start_us, from_us, to_us, owed_in_window }
    }

    /// Whether a version that was to be sent at `us` is measured.
    pub fn measures(&self, us: u64) -> bool {
        (self.from_us..self.to_us).contains(&us)
    }

    /// When a version was to be sent; the ones stored before the start at the start.
    pub fn intended_us(&self, instrument: u16, seq: u32) -> u64 {
        self.start_us + self.schedule.at_us(instrument, seq).unwrap_or(0)
    }
}

/// What a session needs from its thread to take bytes in.
pub struct Context<'a> {
    /// Whom the session speaks to.
    pub dialect: Dialect,
    /// Tokens.
    pub signer: &'a Signer,
    /// Absent until publishing begins.
    pub plan: Option<&'a Plan>,
    /// Whether each connection is a stream of its own, which misses nothing of what came before it.
    pub streams: bool,
    /// Where to count.
    pub tally: &'a mut Tally,
    /// When the bytes were read, microseconds since the Unix epoch.
    pub now_us: u64,
    /// To be sent to the server.
    pub out: Vec<u8>,
    /// Scratch for bodies without their chunked coding.
    pub plain: Vec<u8>,
    /// Counts messages, to sample some.
    pub sampler: u32,
}

/// One session.
#[derive(Default)]
pub struct Session {
    /// The connection.
    pub stream: Option<TcpStream>,
    /// Its number, which is also the user's.
    pub number: usize,
    /// How far it is.
    pub stage: Stage,
    /// Instruments, from 0.
    pub topics: Box<[u16]>,
    /// Newest version seen of each topic; 0 before the first.
    pub last: Box<[u32]>,
    /// When its connection was begun, microseconds since the Unix epoch.
    pub begun_us: u64,
    /// It has stopped reading on purpose.
    pub slow: bool,
    /// Bytes that wait for the rest of a frame or line.
    pub tail: Vec<u8>,
    /// Live events since the connection was begun.
    pub received: u32,
    /// Connections that came to their planned end.
    pub rounds: u32,
    body: Vec<u8>,
    chunks: Option<Dechunker>,
    n_unpriced: usize,
}

impl Session {
    /// A session on these topics, not connected yet.
    pub fn new(number: usize, topics: Box<[u16]>) -> Self {
        let last = vec![0; topics.len()].into();
        Self { number, topics, last, ..Self::default() }
    }

    /// Forgets the connection.
    pub fn reset(&mut self) {
        self.stream = None;
        self.stage = Stage::Idle;
        self.last.fill(0);
        self.tail = Vec::new();
        self.body = Vec::new();
        self.chunks = None;
        self.n_unpriced = self.topics.len();
        self.received = 0;
    }

    /// Takes bytes in and gives how many of them are done with.
    ///
    /// # Errors
    /// When the server ends the session or says something impossible.
    pub fn consume(&mut self, buf: &[u8], cx: &mut Context<'_>) -> Result<usize, String> {
        let mut used = 0;
        if self.stage == Stage::Head {
            let Some(end) = memchr::memmem::find(buf, b"\r\n\r\n") else { return Ok(0) };
            self.head(&buf[..end], cx)?;
            used = end + 4;
        }
        if cx.dialect.is_sse() {
            self.sse(&buf[used..], cx)?;
            return Ok(buf.len());
        }
        while let Some(frame) = scan::ws_frame(&buf[used..])? {
            used += frame.total;
            match frame.opcode {
                0..=2 if cx.dialect == Dialect::NatsWs => self.nats(frame.payload, cx)?,
                1 | 2 => self.message(frame.payload, cx)?,
                8 => return Err(close_text(frame.payload)),
                9 => {
                    cx.tally.pings += 1;
                    scan::push_client_frame(&mut cx.out, 10, frame.payload);
                }
                _ => {}
            }
        }
        Ok(used)
    }

    fn head(&mut self, head: &[u8], cx: &mut Context<'_>) -> Result<(), String> {
        let text = String::from_utf8_lossy(head);
        let expected = if cx.dialect.is_sse() { "HTTP/1.1 200" } else { "HTTP/1.1 101" };
        if !text.starts_with(expected) {
            return Err(format!("refused: {}", text.lines().next().unwrap_or_default()));
        }
        cx.tally.handshake.record(cx.now_us.saturating_sub(self.begun_us));
        if text.to_ascii_lowercase().contains("transfer-encoding: chunked") {
            self.chunks = Some(Dechunker::default());
        }
        match cx.dialect {
            Dialect::GatewayWs => {
                self.stage = Stage::Auth;
                push_auth(&mut cx.out, cx.signer, self.number);
            }
            Dialect::NatsWs => self.stage = Stage::Auth,
            Dialect::GatewaySse => self.stage = Stage::Ack,
            Dialect::NchanWs | Dialect::NchanSse => self.live(cx),
        }
        Ok(())
    }

    fn live(&mut self, cx: &mut Context<'_>) {
        self.stage = Stage::Live;
        cx.tally.connected += 1;
        cx.tally.first_price.record(cx.now_us.saturating_sub(self.begun_us));
    }

    fn sse(&mut self, input: &[u8], cx: &mut Context<'_>) -> Result<(), String> {
        let mut plain = std::mem::take(&mut cx.plain);
        plain.clear();
        plain.append(&mut self.body);
        let more = match &mut self.chunks {
            Some(chunks) => chunks.feed(input, &mut plain),
            None => {
                plain.extend_from_slice(input);
                true
            }
        };
        let mut rest = &plain[..];
        let mut result = Ok(());
        while let Some(end) = memchr::memchr(b'\n', rest) {
            if let Some(json) = rest[..end].strip_prefix(b"data: ") {
                result = self.message(json, cx);
            }
            rest = &rest[end + 1..];
            if result.is_err() {
                break;
            }
        }
        if !rest.is_empty() {
            self.body = rest.to_vec();
        }
        cx.plain = plain;
        if more { result } else { result.and(Err("end of the event stream".into())) }
    }

    fn nats(&mut self, payload: &[u8], cx: &mut Context<'_>) -> Result<(), String> {
        let mut joined = std::mem::take(&mut self.body);
        let input = if joined.is_empty() {
            payload
        } else {
            joined.extend_from_slice(payload);
            &joined
        };
        let mut used = 0;
        while let Some((op, n)) = scan::nats_op(&input[used..]) {
            used += n;
            match op {
                NatsOp::Msg(json) => self.message(json, cx)?,
                NatsOp::Ping => scan::push_client_frame(&mut cx.out, 2, b"PONG\r\n"),
                NatsOp::Pong if self.stage == Stage::Ack => self.live(cx),
                NatsOp::Err(text) => return Err(format!("nats: {}", String::from_utf8_lossy(text))),
                NatsOp::Other if self.stage == Stage::Auth => {
                    self.stage = Stage::Ack;
                    push_nats_hello(&mut cx.out, &self.topics);
                }
                NatsOp::Pong | NatsOp::Other => {}
            }
        }
        self.body = input[used..].to_vec();
        Ok(())
    }

    fn message(&mut self, json: &[u8], cx: &mut Context<'_>) -> Result<(), String> {
        if let Some(event) = scan::event(json) {
            self.event(event, cx);
            cx.sampler = cx.sampler.wrapping_add(1);
            if cx.sampler.is_multiple_of(64) && cx.dialect.has_snapshots() && !event.initial {
                sample_stages(json, cx);
            }
            return Ok(());
        }
        if json.starts_with(br#"{"type":"ping""#) {
            cx.tally.pings += 1;
            if !cx.dialect.is_sse() {
                scan::push_client_frame(&mut cx.out, 1, br#"{"type":"pong"}"#);
            }
        } else if json.starts_with(br#"{"type":"auth","ok":true"#) {
            self.stage = Stage::Ack;
            push_topics(&mut cx.out, "subscribe", &self.topics);
        } else if json.starts_with(br#"{"type":"subscribe""#) && self.stage == Stage::Ack {
            self.stage = Stage::First;
            if self.n_unpriced == 0 {
                self.live(cx);
            }
        } else if json.starts_with(br#"{"type":"error""#) {
            return Err(format!("error message: {}", String::from_utf8_lossy(json)));
        }
        Ok(())
    }

    fn event(&mut self, event: Event, cx: &mut Context<'_>) {
        let instrument = event.instrument.wrapping_sub(1) as u16;
        let Some(at) = self.topics.iter().position(|&t| t == instrument) else {
            cx.tally.strangers += 1;
            return;
        };
        let last = self.last[at];
        if last == 0 {
            self.n_unpriced -= 1;
            if self.n_unpriced == 0 && self.stage == Stage::First {
                self.live(cx);
            }
        }
        if event.initial {
            cx.tally.snapshots += 1;
            cx.tally.backwards += u64::from(event.seq < last);
            self.last[at] = event.seq.max(last);
            return;
        }
        cx.tally.delivered += 1;
        self.received += 1;
        if event.seq <= last {
            cx.tally.duplicates += u64::from(event.seq == last);
            cx.tally.backwards += u64::from(event.seq < last);
            return;
        }
        self.last[at] = event.seq;
        let Some(plan) = cx.plan else { return };
        // Peers send no snapshot; what was stored before the start counts as seen.
        let last = last.max(FIRST_SEQ);
        let mut oldest_us = event.intended_us;
        let begins = cx.streams && self.received == 1;
        if event.seq > last + 1 && !begins {
            cx.tally.conflated += u64::from(event.seq - last - 1);
            oldest_us = plan.intended_us(instrument, last + 1);
            let skipped = (last + 1..event.seq).map(|seq| plan.intended_us(instrument, seq));
            cx.tally.conflated_in_window += skipped.filter(|&us| plan.measures(us)).count() as u64;
        }
        if plan.measures(event.intended_us) {
            cx.tally.fresh_in_window += 1;
            cx.tally.latency.record(cx.now_us.saturating_sub(event.intended_us));
        }
        if plan.measures(oldest_us) {
            cx.tally.staleness.record(cx.now_us.saturating_sub(oldest_us));
        }
    }

    /// Topics whose newest version is missing, and how many versions; all, and those of the window.
    pub fn behind(&self, plan: &Plan) -> Behind {
        let mut behind = Behind::default();
        if self.stage != Stage::Live || self.slow {
            return behind;
        }
        for (&topic, &last) in self.topics.iter().zip(&self.last) {
            behind.owed_in_window += u64::from(plan.owed_in_window[usize::from(topic)]);
            let newest = plan.schedule.last_seq(topic);
            let missing = (last.max(FIRST_SEQ) + 1)..=newest;
            behind.topics += u64::from(!missing.is_empty());
            for seq in missing {
                behind.versions += 1;
                behind.in_window += u64::from(plan.measures(plan.intended_us(topic, seq)));
            }
        }
        behind
    }
}

/// What has not arrived.
#[derive(Clone, Copy, Default, Debug)]
pub struct Behind {
    /// Subscriptions that don't show the newest version.
    pub topics: u64,
    /// Versions after the last seen.
    pub versions: u64,
    /// Those of them that belong to the measured window.
    pub in_window: u64,
    /// All versions of the window, arrived or not.
    pub owed_in_window: u64,
}

fn sample_stages(json: &[u8], cx: &mut Context<'_>) {
    let published = scan::field(json, "publishedAt");
    let (Some(published), Some(arrived), Some(emitted)) =
        (published, scan::field(json, "arrivedAt"), scan::field(json, "emittedAt"))
    else {
        return;
    };
    if cx.plan.is_some_and(|plan| plan.measures(published * 1_000)) {
        cx.tally.stage_arrive.record(arrived.saturating_sub(published) * 1_000);
        cx.tally.stage_deliver.record((cx.now_us / 1_000).saturating_sub(emitted) * 1_000);
    }
}

fn close_text(payload: &[u8]) -> String {
    match payload {
        [a, b, reason @ ..] => {
            format!("closed {} {}", u16::from_be_bytes([*a, *b]), String::from_utf8_lossy(reason))
        }
        _ => "closed without a code".into(),
    }
}
