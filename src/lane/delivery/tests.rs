//! The lane's state with pipes that record what they are given and take as much as they are told to.

use super::*;
use crate::catch_up::{SnapshotSource, StoredQuotes};
use crate::fanout::QuoteFeed;
use crate::fanout::inbox::{Batch, Inbox};
use crate::instrument::InstrumentId;
use crate::lane::books::DropReason;
use crate::protocol::client::TopicRequest;
use crate::quote::{Field, Origin, Quote, Version};
use crate::session::AuthFailure;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;

struct LiveFeed;

impl QuoteFeed for LiveFeed {
    fn is_live(&self, _: InstrumentId) -> bool {
        true
    }
    fn wanted(&self, _: InstrumentId) {}
    fn unwanted(&self, _: InstrumentId) {}
}

struct NoSource;

impl SnapshotSource for NoSource {
    fn read(&self, _: Vec<InstrumentId>) -> Pin<Box<dyn Future<Output = StoredQuotes> + Send + '_>> {
        Box::pin(async { Vec::new() })
    }
}

struct NoTokens;

impl Authenticator for NoTokens {
    fn verify(&self, _: &str, _: Now) -> Result<Principal, AuthFailure> {
        Err(AuthFailure::Malformed)
    }
}

#[derive(Clone, Default)]
struct TestPipe {
    wire: Rc<RefCell<Vec<u8>>>,
    /// Bytes that are taken from now on.
    room: Rc<Cell<usize>>,
    finished: Rc<Cell<Option<bool>>>,
}

impl Pipe for TestPipe {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let n = bytes.len().min(self.room.get());
        if n == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.room.set(self.room.get() - n);
        self.wire.borrow_mut().extend_from_slice(&bytes[..n]);
        Ok(n)
    }

    fn finish(&self, polite: bool) {
        self.finished.set(Some(polite));
    }
}

struct Bench {
    delivery: Delivery<TestPipe>,
    inbox: Arc<Inbox>,
    fanout: Arc<Fanout>,
    now: Now,
}

impl Bench {
    fn new() -> Self {
        let inbox = Arc::new(Inbox::default());
        let fanout = Arc::new(Fanout::new(vec![Arc::clone(&inbox)], Arc::new(LiveFeed), 1_000));
        let mut config = crate::config::Config::default();
        config.session.max_topics = 3;
        let limits = LiveLimits::new(&config);
        let catch_up = CatchUp::new(Arc::clone(&fanout), Arc::new(NoSource), Duration::ZERO);
        let shared = Shared {
            fanout: Arc::clone(&fanout),
            catch_up: Arc::new(catch_up),
            authenticator: Arc::new(NoTokens),
            watchers: None,
            timers: Timers::new(&config, Arc::clone(&limits)),
            anonymous: true,
            limits,
            user_places: None,
            max_message_bytes: 1_000,
            flush_interval: Duration::ZERO,
        };
        let now = Now { mono: Duration::from_secs(1), unix_us: 1_000_000 };
        Self { delivery: Delivery::new(0, Arc::new(shared), now), inbox, fanout, now }
    }

    fn open(&mut self, transport: Transport) -> (Key, TestPipe) {
        let pipe = TestPipe::default();
        pipe.room.set(usize::MAX);
        let admitted = Admitted { principal: None, permit: Box::new(()) };
        let key = self.delivery.admit(pipe.clone(), b"", transport, admitted, self.now);
        self.turn();
        (key, pipe)
    }

    fn send(&mut self, key: Key, json: &str) -> Option<CloseReason> {
        let over = self.delivery.on_message(key, json, self.now);
        self.turn();
        over
    }

    fn publish(&mut self, id: i64, ts: i64) {
        let text = ts.to_string();
        let version = Version { ts: Some(ts), ..Version::default() };
        let mut quote = Quote::new(InstrumentId::new(id), version, Origin::Live, text.as_str().into());
        quote.set(Field::Price, 0..text.len());
        self.fanout.offer(quote, self.now);
    }

    fn turn(&mut self) {
        let mut batch = Batch::default();
        self.inbox.take(&mut batch);
        self.delivery.take_in(&mut batch, self.now);
        while self.delivery.has_ready() {
            self.delivery.flush_some(10, || self.now);
        }
        assert_eq!(self.delivery.books().imbalance(), 0);
    }
}

/// The JSON of each complete frame.
fn frames(pipe: &TestPipe) -> Vec<String> {
    let wire = pipe.wire.borrow();
    let (mut at, mut found) = (0, Vec::new());
    while at + 2 <= wire.len() {
        let (len, head) = match wire[at + 1] {
            126 => (usize::from(u16::from_be_bytes([wire[at + 2], wire[at + 3]])), 4),
            n => (usize::from(n), 2),
        };
        let Some(body) = wire.get(at + head..at + head + len) else { break };
        if wire[at] == 0x81 {
            found.push(String::from_utf8(body.to_vec()).expect("text"));
        }
        at += head + len;
    }
    found
}

fn prices(pipe: &TestPipe) -> Vec<String> {
    let price = |json: &String| {
        let at = json.find("\"price\":")? + 8;
        let initial = if json.contains("\"initial\":true") { "initial " } else { "" };
        Some(format!("{initial}{}", json[at..].split([',', '}']).next()?))
    };
    frames(pipe).iter().filter_map(price).collect()
}

const SUBSCRIBE: &str = r#"{"type":"subscribe","request_id":"r","topics":["quote:1","quote:2"]}"#;

#[test]
fn a_quote_reaches_its_subscribers_and_nobody_else() {
    let mut bench = Bench::new();
    let (a, pipe_a) = bench.open(Transport::Ws);
    let (_, pipe_b) = bench.open(Transport::Ws);
    bench.send(a, SUBSCRIBE);
    bench.publish(1, 10);
    bench.publish(3, 10);
    bench.turn();
    assert_eq!(prices(&pipe_a), ["10"]);
    assert!(frames(&pipe_b).is_empty());
}

#[test]
fn memory_of_an_unbroken_stream_is_the_snapshot() {
    let mut bench = Bench::new();
    let (a, pipe_a) = bench.open(Transport::Ws);
    bench.send(a, SUBSCRIBE);
    bench.publish(1, 10);
    bench.turn();
    let (b, pipe_b) = bench.open(Transport::Ws);
    bench.send(b, SUBSCRIBE);
    bench.publish(1, 11);
    bench.turn();
    assert_eq!(prices(&pipe_a), ["10", "11"]);
    assert_eq!(prices(&pipe_b), ["initial 10", "11"]);
}

#[test]
fn nothing_of_a_topic_follows_its_unsubscribe() {
    let mut bench = Bench::new();
    let (a, pipe) = bench.open(Transport::Ws);
    bench.send(a, SUBSCRIBE);
    bench.publish(1, 10);
    // The quote is in the inbox and marked, but not written, when the request comes.
    let mut batch = Batch::default();
    bench.inbox.take(&mut batch);
    bench.delivery.take_in(&mut batch, bench.now);
    bench.send(a, r#"{"type":"unsubscribe","topics":["quote:1"]}"#);
    assert!(prices(&pipe).is_empty());
    assert_eq!(bench.delivery.books().dropped[DropReason::Unsubscribed as usize], 1);
}

#[test]
fn a_reader_that_stops_gets_the_newest_when_it_goes_on() {
    let mut bench = Bench::new();
    let (a, pipe) = bench.open(Transport::Ws);
    bench.send(a, SUBSCRIBE);
    pipe.room.set(5);
    for ts in 10..1_000 {
        bench.publish(1, ts);
        bench.publish(2, ts);
        bench.turn();
    }
    pipe.room.set(usize::MAX);
    bench.delivery.flush(a, bench.now).expect("the pipe is whole");
    bench.turn();
    assert_eq!(prices(&pipe), ["10", "999", "999"]);
    assert_eq!(bench.delivery.books().pending, 0);
}

#[test]
fn a_rate_limit_gives_the_newest_at_its_pace() {
    let mut bench = Bench::new();
    let (a, pipe) = bench.open(Transport::Ws);
    bench.send(a, r#"{"type":"subscribe","topics":["quote:1"],"max_rate_hz":2}"#);
    for ts in 10..111 {
        bench.publish(1, ts);
        bench.now.mono += Duration::from_millis(10);
        bench.delivery.release_due(bench.now);
        bench.turn();
    }
    assert_eq!(prices(&pipe), ["10", "60", "110"]);
    // Another pace counts from the last update; none at all releases what is held.
    bench.publish(1, 200);
    bench.turn();
    assert_eq!(prices(&pipe).len(), 3);
    bench.send(a, r#"{"type":"subscribe","topics":["quote:1"]}"#);
    assert_eq!(prices(&pipe).last().map(String::as_str), Some("200"));
    assert_eq!(bench.delivery.next_release(), None);
}

#[test]
fn a_held_quote_ends_with_its_subscription() {
    let mut bench = Bench::new();
    let (a, _) = bench.open(Transport::Ws);
    bench.send(a, r#"{"type":"subscribe","topics":["quote:1"],"max_rate_hz":0.1}"#);
    for ts in 10..13 {
        bench.publish(1, ts);
        bench.turn();
    }
    assert!(bench.delivery.next_release().is_some());
    bench.send(a, r#"{"type":"unsubscribe","topics":["quote:1"]}"#);
    assert_eq!(bench.delivery.next_release(), None);
    let books = bench.delivery.books();
    assert_eq!((books.delivered, books.conflated, books.dropped[0], books.pending), (1, 1, 1, 0));
}

#[test]
fn a_stopped_reader_is_closed_by_the_age_of_what_waits() {
    let mut bench = Bench::new();
    let (a, pipe) = bench.open(Transport::Ws);
    bench.send(a, SUBSCRIBE);
    pipe.room.set(0);
    bench.publish(1, 10);
    bench.turn();
    let tick = Duration::from_secs(1);
    let mut over = Vec::new();
    for _ in 0..15 {
        bench.now.mono += tick;
        over.extend(bench.delivery.sweep(0, 1, tick, bench.now));
    }
    assert_eq!(over.first(), Some(&(a, CloseReason::SlowConsumer)));
    bench.delivery.close(a, CloseReason::SlowConsumer, bench.now);
    bench.turn();
    assert_eq!(pipe.finished.get(), Some(false), "what can't be delivered must not linger in the kernel");
    assert_eq!(bench.delivery.books().dropped[DropReason::SlowConsumer as usize], 1);
}

/// Its connection takes a third of what comes and is full after every write, in the middle of a frame. What waits
/// is never old all the same.
#[test]
fn a_busy_session_is_not_taken_for_a_slow_one() {
    let mut bench = Bench::new();
    let (a, pipe) = bench.open(Transport::Ws);
    bench.send(a, r#"{"type":"subscribe","topics":["quote:1","quote:2","quote:3"]}"#);
    pipe.room.set(0);
    let tick = Duration::from_millis(100);
    for step in 1..250 {
        (1..=3).for_each(|id| bench.publish(id, step));
        bench.turn();
        bench.now.mono += tick;
        pipe.room.set(150);
        bench.delivery.flush(a, bench.now).expect("test pipes don't break");
        assert!(bench.delivery.session_mut(a).expect("it is open").blocked, "the pipe is always full");
        assert_eq!(bench.delivery.sweep(0, 1, tick, bench.now), [], "at step {step}");
        assert!(bench.delivery.books().backlog_age_ms <= 500, "at step {step}");
    }
}

#[test]
fn a_stall_of_the_process_times_nobody_out() {
    let mut bench = Bench::new();
    bench.open(Transport::Ws);
    let tick = Duration::from_millis(100);
    bench.now.mono += Duration::from_secs(3_600);
    for _ in 0..10 {
        bench.now.mono += tick;
        assert!(bench.delivery.sweep(0, 1, tick, bench.now).is_empty());
    }
}

#[test]
fn topics_over_the_limit_are_rejected_with_a_reason() {
    let mut bench = Bench::new();
    let (a, pipe) = bench.open(Transport::Ws);
    bench.send(a, r#"{"type":"subscribe","topics":["quote:1","quote:2","quote:3","quote:4","x"]}"#);
    let answer = &frames(&pipe)[0];
    assert!(answer.contains(r#""subscribed":["quote:1","quote:2","quote:3"]"#), "{answer}");
    assert!(
        answer
            .contains(r#""rejected":["x","quote:4"],"rejected_reasons":["invalid_topic","limit_exceeded"]"#)
    );
}

#[test]
fn places_of_ended_subscriptions_are_used_again() {
    let mut bench = Bench::new();
    let sessions: Vec<_> = (0..3).map(|_| bench.open(Transport::Ws)).collect();
    for round in 0..20 {
        for (key, _) in &sessions {
            bench.send(*key, SUBSCRIBE);
        }
        bench.send(sessions[round % 3].0, r#"{"type":"unsubscribe","topics":["quote:1","quote:2"]}"#);
    }
    assert_eq!(bench.delivery.books().subscriptions, 4);
    for (key, _) in sessions {
        bench.delivery.close(key, CloseReason::Normal, bench.now);
    }
    assert_eq!(bench.delivery.books().subscriptions, 0);
    assert!(bench.fanout.interest().is_empty());
}

#[test]
fn an_sse_cursor_resumes_where_the_client_was() {
    let mut bench = Bench::new();
    let sse = |last: Option<String>| Transport::Sse {
        request: TopicRequest::from_query("quote:2,quote:1"),
        last_event_id: last,
        chunked: true,
        max_rate_hz: None,
    };
    let (a, pipe) = bench.open(sse(None));
    bench.publish(1, 10);
    bench.publish(2, 10);
    bench.turn();
    let text = String::from_utf8(pipe.wire.borrow().clone()).expect("text");
    let id = text.lines().rev().find_map(|line| line.strip_prefix("id: ")).expect("an id").to_owned();
    bench.publish(2, 11);
    bench.turn();
    let (_, resumed) = bench.open(sse(Some(id)));
    let text = String::from_utf8(resumed.wire.borrow().clone()).expect("text");
    assert_eq!(text.matches("data: {\"type\":\"event\"").count(), 1, "{text}");
    assert!(text.contains("\"price\":11"), "{text}");
    bench.delivery.close(a, CloseReason::ServiceRestart, bench.now);
    assert!(pipe.wire.borrow().ends_with(b"0\r\n\r\n"));
}

#[test]
fn a_cursor_says_nothing_of_what_was_gathered_and_not_begun() {
    let mut bench = Bench::new();
    let sse = |last: Option<&str>| Transport::Sse {
        request: TopicRequest::from_query("quote:1,quote:2,quote:3"),
        last_event_id: last.map(str::to_owned),
        chunked: false,
        max_rate_hz: None,
    };
    let (key, pipe) = bench.open(sse(None));
    bench.turn();
    pipe.wire.borrow_mut().clear();
    pipe.room.set(20);
    for id in 1..=3 {
        bench.publish(id, 10);
    }
    bench.turn();
    assert_eq!(pipe.wire.borrow().len(), 20, "the first event is torn");
    pipe.room.set(usize::MAX);
    bench.delivery.flush(key, bench.now).expect("the connection lives");
    let text = String::from_utf8(pipe.wire.borrow().clone()).expect("text");
    let ids: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("id: ")).collect();
    assert_eq!(ids.len(), 3, "{text}");
    // Who is cut after an event gets those that follow it.
    for (n_seen, id) in (1..).zip(ids) {
        let (_, resumed) = bench.open(sse(Some(id)));
        let text = String::from_utf8(resumed.wire.borrow().clone()).expect("text");
        assert_eq!(text.matches("data: {\"type\":\"event\"").count(), 3 - n_seen, "{text}");
    }
}
