//! The core under a simulated world: virtual time, one seed per world, and everything that may go wrong
//! between the store and a browser going wrong in it.
//!
//! Quotes are delayed, doubled, overtaken and lost; streams break and come back; reads are slow and fail; browsers
//! stop reading, come and go. At the end everything heals, and every subscription must show the newest
//! stored price. Throughout, versions never go back, nothing follows an unsubscribe, and the books balance.
//!
//! `SIM_FIRST=<seed> SIM_SEEDS=1 cargo test --test it simulation` repeats one world.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use tickbridge::catch_up::{CatchUp, Read, SnapshotSource, Stored, StoredQuotes};
use tickbridge::clock::Now;
use tickbridge::config::Config;
use tickbridge::config::live::LiveLimits;
use tickbridge::fanout::inbox::{Batch, Inbox};
use tickbridge::fanout::{Fanout, QuoteFeed};
use tickbridge::instrument::InstrumentId;
use tickbridge::lane::delivery::{Admitted, Delivery, Key, Shared};
use tickbridge::lane::session::Pipe;
use tickbridge::protocol::client::TopicRequest;
use tickbridge::protocol::close::CloseReason;
use tickbridge::quote::{Field, Origin, Quote, Version};
use tickbridge::session::standing::Timers;
use tickbridge::session::{AuthFailure, Authenticator, Principal, Transport};

const INSTRUMENTS: i64 = 5;
const STREAMS: usize = 2;
const STEPS: usize = 300;

#[test]
fn every_world_ends_on_the_newest_prices() {
    let number = |name: &str, default| {
        std::env::var(name).map_or(default, |text| text.parse().expect("a whole number"))
    };
    let first: u64 = number("SIM_FIRST", 0);
    for seed in first..first + number("SIM_SEEDS", 1_500) {
        let world = std::panic::catch_unwind(|| World::new(seed).run());
        assert!(world.is_ok(), "repeat with: SIM_FIRST={seed} SIM_SEEDS=1 cargo test --test it simulation");
    }
}

struct Feed([AtomicBool; STREAMS]);

impl QuoteFeed for Feed {
    fn is_live(&self, id: InstrumentId) -> bool {
        self.0[stream_of(id)].load(SeqCst)
    }
    fn wanted(&self, _: InstrumentId) {}
    fn unwanted(&self, _: InstrumentId) {}
}

fn stream_of(id: InstrumentId) -> usize {
    id.get() as usize % STREAMS
}

/// Reads are done by hand, so that they can be slow.
struct ByHand;

impl SnapshotSource for ByHand {
    fn read(&self, _: Vec<InstrumentId>) -> Pin<Box<dyn Future<Output = StoredQuotes> + Send + '_>> {
        unreachable!("the world reads by hand")
    }
}

struct NoTokens;

impl Authenticator for NoTokens {
    fn verify(&self, _: &str, _: Now) -> Result<Principal, AuthFailure> {
        Err(AuthFailure::Malformed)
    }
}

#[derive(Clone, Default)]
struct SimPipe {
    wire: Rc<RefCell<Vec<u8>>>,
    room: Rc<Cell<usize>>,
}

impl Pipe for SimPipe {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let n = bytes.len().min(self.room.get());
        if n == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.room.set(self.room.get() - n);
        self.wire.borrow_mut().extend_from_slice(&bytes[..n]);
        Ok(n)
    }
    fn finish(&self, _: bool) {}
}

/// What a browser has seen.
struct Browser {
    key: Key,
    pipe: SimPipe,
    is_sse: bool,
    /// Acknowledged subscriptions and the newest version of each.
    shown: BTreeMap<i64, Option<i64>>,
    /// Seen over this connection or the one that it resumes.
    versions: HashMap<i64, i64>,
    stale: HashMap<i64, bool>,
    last_event_id: Option<String>,
}

/// A read whose answers are on their way.
struct SlowRead {
    read: Read,
    /// When the server looks at the keys, and when the answer is here.
    looks_at: Duration,
    done_at: Duration,
    answers: Option<StoredQuotes>,
}

struct World {
    random: SmallRng,
    now: Now,
    feed: Arc<Feed>,
    fanout: Arc<Fanout>,
    inbox: Arc<Inbox>,
    catch_up: Arc<CatchUp>,
    lane: Delivery<SimPipe>,
    /// The newest version in each key.
    store: BTreeMap<i64, i64>,
    in_flight: Vec<VecDeque<(Duration, i64, i64)>>,
    reads: Vec<SlowRead>,
    browsers: Vec<Browser>,
    healthy: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let inbox = Arc::new(Inbox::default());
        let feed = Arc::new(Feed([AtomicBool::new(true), AtomicBool::new(true)]));
        let asked: Arc<dyn QuoteFeed> = Arc::clone(&feed) as _;
        let fanout = Arc::new(Fanout::new(vec![Arc::clone(&inbox)], asked, 1_000));
        let catch_up = Arc::new(CatchUp::new(Arc::clone(&fanout), Arc::new(ByHand), Duration::ZERO));
        let mut config = Config::default();
        config.session.max_topics = 4;
        config.session.max_inbound_per_second = 1_000_000_000;
        let limits = LiveLimits::new(&config);
        let shared = Shared {
            fanout: Arc::clone(&fanout),
            catch_up: Arc::clone(&catch_up),
            authenticator: Arc::new(NoTokens),
            watchers: None,
            timers: Timers { auth_timeout: None, ..Timers::new(&config, Arc::clone(&limits)) },
            anonymous: true,
            limits,
            user_places: None,
            max_message_bytes: 10_000,
            flush_interval: Duration::ZERO,
        };
        let now = Now { mono: Duration::from_secs(1), unix_us: 1_000_000_000 };
        Self {
            random: SmallRng::seed_from_u64(seed),
            now,
            feed,
            fanout,
            inbox,
            catch_up,
            lane: Delivery::new(0, Arc::new(shared), now),
            store: BTreeMap::new(),
            in_flight: vec![VecDeque::new(); STREAMS],
            reads: Vec::new(),
            browsers: Vec::new(),
            healthy: false,
        }
    }

    fn run(mut self) {
        for _ in 0..STEPS {
            self.step();
            self.look();
        }
        self.heal();
        for browser in &self.browsers {
            for (id, shown) in &browser.shown {
                let stored = self.store.get(id).copied();
                let seen = browser.versions.get(id).copied();
                assert!(seen == stored || *shown == stored, "instrument {id}: {seen:?}, stored {stored:?}");
                assert!(!browser.stale.get(id).copied().unwrap_or(false), "instrument {id} is still stale");
            }
        }
        let books = self.lane.books();
        assert_eq!((books.pending, books.imbalance()), (0, 0));
        assert_eq!(books.subscriptions as usize, self.browsers.iter().map(|b| b.shown.len()).sum::<usize>());
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.random.random_range(0..100) < percent
    }

    fn instrument(&mut self) -> i64 {
        self.random.random_range(1..=INSTRUMENTS)
    }

    fn wait(&mut self, longest_ms: u64) -> Duration {
        Duration::from_millis(self.random.random_range(0..=longest_ms))
    }

    fn step(&mut self) {
        let advance = self.wait(30);
        self.advance(advance);
        match self.random.random_range(0..100) {
            0..35 => self.publish(),
            35..45 => self.open(),
            45..57 => self.subscribe(),
            57..62 => self.unsubscribe(),
            62..66 => self.leave(),
            66..76 => self.give_room(),
            76..80 => self.break_stream(),
            80..86 => self.restore_streams(),
            _ => self.turn(),
        }
    }

    fn advance(&mut self, by: Duration) {
        self.now.mono += by;
        self.now.unix_us += by.as_micros() as i64;
        self.lane.release_due(self.now);
        self.arrive();
        self.read();
    }

    fn publish(&mut self) {
        let id = self.instrument();
        let version = self.store.get(&id).map_or(1, |v| v + 1);
        // The key first, so that a catch-up is never older than what was announced.
        self.store.insert(id, version);
        let stream = stream_of(InstrumentId::new(id));
        let lost = !self.feed.0[stream].load(SeqCst);
        if lost && !self.chance(20) {
            return;
        }
        // Mostly in order; but the base channel and a partition are two connections, and may both carry it.
        let overtakes = self.chance(15);
        let last =
            self.in_flight[stream].back().filter(|_| !overtakes).map_or(Duration::ZERO, |(at, ..)| *at);
        let at = last.max(self.now.mono) + self.wait(20);
        let place = self.in_flight[stream].partition_point(|(other, ..)| *other <= at);
        for _ in 0..1 + usize::from(self.chance(10)) {
            self.in_flight[stream].insert(place, (at, id, version));
        }
    }

    fn arrive(&mut self) {
        for stream in 0..STREAMS {
            while self.in_flight[stream].front().is_some_and(|(at, ..)| *at <= self.now.mono) {
                let (_, id, version) = self.in_flight[stream].pop_front().expect("there is a front");
                self.fanout.offer(quote(id, version, Origin::Live, self.now.unix_us), self.now);
            }
        }
    }

    fn read(&mut self) {
        let wanted = self.catch_up.take_wanted(3);
        if !wanted.is_empty() {
            let looks_at = self.now.mono + self.wait(50);
            let done_at = looks_at + self.wait(50);
            self.reads.push(SlowRead { read: self.catch_up.begin(wanted), looks_at, done_at, answers: None });
        }
        let fails = if self.healthy { 0 } else { 15 };
        for i in 0..self.reads.len() {
            if self.reads[i].answers.is_some() || self.reads[i].looks_at > self.now.mono {
                continue;
            }
            let mut answers = Vec::new();
            for id in self.reads[i].read.ids() {
                let stored = match self.store.get(&id.get()).copied() {
                    _ if self.chance(fails) => Stored::Failed,
                    Some(v) => Stored::Quote(Box::new(quote(id.get(), v, Origin::Stored, self.now.unix_us))),
                    None => Stored::Absent,
                };
                answers.push((id, stored));
            }
            self.reads[i].answers = Some(answers);
        }
        let now = self.now;
        let (done, waiting) =
            std::mem::take(&mut self.reads).into_iter().partition(|r| r.done_at <= now.mono);
        self.reads = waiting;
        for SlowRead { read, answers, .. } in done {
            let failed = self.catch_up.finish(&read, answers.expect("looked at before it is done"), now);
            self.catch_up.again(failed);
        }
    }

    fn break_stream(&mut self) {
        let stream = self.random.random_range(0..STREAMS);
        self.feed.0[stream].store(false, SeqCst);
        self.fanout.stream_broken(&|id| stream_of(id) == stream, self.now);
        // What is in flight is lost, or comes late.
        if self.chance(70) {
            self.in_flight[stream].clear();
        }
    }

    fn restore_streams(&mut self) {
        for stream in 0..STREAMS {
            if !self.feed.0[stream].swap(true, SeqCst) {
                let wanted = self.fanout.stream_restored(&|id| stream_of(id) == stream);
                self.catch_up.restored(wanted);
            }
        }
    }

    fn open(&mut self) {
        if self.browsers.len() < 6 {
            let is_sse = self.chance(40);
            self.open_as(is_sse, None, HashMap::new());
        }
    }

    fn open_as(&mut self, is_sse: bool, request: Option<(Vec<i64>, String)>, versions: HashMap<i64, i64>) {
        let pipe = SimPipe::default();
        pipe.room.set(self.random.random_range(0..2_000));
        let (ids, last_event_id) = match request {
            Some((ids, last)) => (ids, Some(last)),
            None => (vec![self.instrument(), self.instrument()], None),
        };
        let topics: Vec<_> = ids.iter().map(|id| format!("quote:{id}")).collect();
        let transport = if is_sse {
            let request = TopicRequest::from_query(&topics.join(","));
            let max_rate_hz = self.chance(20).then_some(5.0);
            Transport::Sse { request, last_event_id, chunked: true, max_rate_hz }
        } else {
            Transport::Ws
        };
        let admitted = Admitted { principal: None, permit: Box::new(()) };
        let key = self.lane.admit(pipe.clone(), b"", transport, admitted, self.now);
        let shown = if is_sse { ids.into_iter().map(|id| (id, None)).collect() } else { BTreeMap::new() };
        self.browsers.push(Browser {
            key,
            pipe,
            is_sse,
            shown,
            versions,
            stale: HashMap::new(),
            last_event_id: None,
        });
    }

    fn subscribe(&mut self) {
        let (id, other) = (self.instrument(), self.instrument());
        let pace = if self.chance(20) { r#","max_rate_hz":10"# } else { "" };
        let request = format!(r#"{{"type":"subscribe","topics":["quote:{id}","quote:{other}"]{pace}}}"#);
        self.say(&request);
    }

    fn unsubscribe(&mut self) {
        let id = self.instrument();
        self.say(&format!(r#"{{"type":"unsubscribe","topics":["quote:{id}"]}}"#));
    }

    fn say(&mut self, request: &str) {
        let sockets: Vec<_> = self.browsers.iter().filter(|b| !b.is_sse).map(|b| b.key).collect();
        if !sockets.is_empty() {
            let key = sockets[self.random.random_range(0..sockets.len())];
            assert_eq!(self.lane.on_message(key, request, self.now), None);
        }
    }

    fn leave(&mut self) {
        if self.browsers.is_empty() {
            return;
        }
        let at = self.random.random_range(0..self.browsers.len());
        self.look();
        let gone = self.browsers.swap_remove(at);
        self.lane.close(gone.key, CloseReason::Gone, self.now);
        if let (true, Some(last)) = (gone.is_sse, gone.last_event_id) {
            self.open_as(true, Some((gone.shown.into_keys().collect(), last)), gone.versions);
        }
    }

    fn give_room(&mut self) {
        if self.browsers.is_empty() {
            return;
        }
        let at = self.random.random_range(0..self.browsers.len());
        let room = self.random.random_range(0..3_000);
        self.browsers[at].pipe.room.set(room);
        let key = self.browsers[at].key;
        self.lane.flush(key, self.now).expect("simulated pipes don't break");
    }

    fn turn(&mut self) {
        let mut batch = Batch::default();
        self.inbox.take(&mut batch);
        self.lane.take_in(&mut batch, self.now);
        let n = self.random.random_range(1..4);
        let now = self.now;
        assert!(self.lane.flush_some(n, || now).is_empty());
        assert_eq!(self.lane.books().imbalance(), 0);
    }

    fn heal(&mut self) {
        self.healthy = true;
        self.restore_streams();
        for _ in 0..200 {
            self.advance(Duration::from_millis(20));
            for at in 0..self.browsers.len() {
                self.browsers[at].pipe.room.set(usize::MAX);
                let key = self.browsers[at].key;
                self.lane.flush(key, self.now).expect("simulated pipes don't break");
            }
            self.turn();
            self.look();
        }
    }

    /// Reads what has come to each browser.
    fn look(&mut self) {
        for browser in &mut self.browsers {
            browser.look();
        }
    }
}

impl Browser {
    fn look(&mut self) {
        let mut wire = self.pipe.wire.take();
        let mut parsed = 0;
        loop {
            let rest = &wire[parsed..];
            let Some((n, message)) = (if self.is_sse { sse_chunk(rest) } else { ws_frame(rest) }) else {
                break;
            };
            parsed += n;
            if self.is_sse {
                for line in message.lines() {
                    if let Some(id) = line.strip_prefix("id: ") {
                        self.last_event_id = Some(id.to_owned());
                    } else if let Some(json) = line.strip_prefix("data: ") {
                        self.read(json);
                    }
                }
            } else {
                self.read(&message);
            }
        }
        wire.drain(..parsed);
        self.pipe.wire.replace(wire);
    }

    fn read(&mut self, json: &str) {
        let message: serde_json::Value = serde_json::from_str(json).expect("JSON");
        let id_of = |topic: &serde_json::Value| -> i64 {
            let topic = topic.as_str().expect("a topic");
            topic.strip_prefix("quote:").and_then(|id| id.parse().ok()).expect("a topic")
        };
        let ids = |list: &serde_json::Value| -> Vec<i64> {
            list.as_array().map(|topics| topics.iter().map(id_of).collect()).unwrap_or_default()
        };
        match message["type"].as_str().expect("a type") {
            "subscribe" => {
                for id in ids(&message["subscribed"]) {
                    self.shown.entry(id).or_default();
                }
                // An SSE browser knows what it asked for only from the answer.
                let rejected = ids(&message["rejected"]);
                self.shown.retain(|id, _| !rejected.contains(id) || !self.is_sse);
            }
            "unsubscribe" => {
                for id in ids(&message["unsubscribed"]) {
                    self.shown.remove(&id);
                    self.stale.remove(&id);
                }
            }
            "status" => {
                self.stale.insert(id_of(&message["topic"]), message["state"] == "stale");
            }
            "event" => {
                let id = id_of(&message["topic"]);
                let version = message["data"]["eventTs"].as_i64().expect("a version");
                let shown = self.shown.get_mut(&id).unwrap_or_else(|| panic!("{id} isn't subscribed"));
                *shown = Some(version);
                let before = self.versions.insert(id, version).unwrap_or(0);
                let initial = message["data"]["initial"] == true;
                assert!(version > before || (initial && version == before), "{id}: {before}, then {version}");
            }
            "ping" => {}
            other => panic!("unexpected {other}"),
        }
    }
}

fn quote(id: i64, version: i64, origin: Origin, now_us: i64) -> Quote {
    let text = version.to_string();
    let order = Version { ts: Some(version), ..Version::default() };
    let mut quote = Quote::new(InstrumentId::new(id), order, origin, text.as_str().into());
    quote.set(Field::Price, 0..text.len());
    quote.arrived_us = now_us;
    quote
}

fn ws_frame(bytes: &[u8]) -> Option<(usize, String)> {
    let (len, head) = match *bytes.get(1)? {
        126 => (usize::from(u16::from_be_bytes([*bytes.get(2)?, *bytes.get(3)?])), 4),
        n => (usize::from(n), 2),
    };
    assert_eq!(bytes[0], 0x81, "a frame is torn apart");
    let body = bytes.get(head..head + len)?;
    Some((head + len, String::from_utf8(body.to_vec()).expect("text")))
}

fn sse_chunk(bytes: &[u8]) -> Option<(usize, String)> {
    let size = std::str::from_utf8(bytes.get(..8)?).expect("a chunk size");
    let size = usize::from_str_radix(size, 16).expect("a chunk is torn apart");
    let body = bytes.get(10..10 + size)?;
    bytes.get(10 + size..12 + size)?;
    Some((12 + size, String::from_utf8(body.to_vec()).expect("text")))
}
