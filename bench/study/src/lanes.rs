//! The product's own fan-out, inboxes and lanes, with a pipe that counts in place of a socket.
//!
//! The work is all there: version gate, encoding, interest, dirty bits, frames, accounts.

use crate::{EVENTS, Tally, ns_since};
use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::Thread;
use std::time::{Duration, Instant};
use tickbridge::catch_up::{CatchUp, SnapshotSource, StoredQuotes};
use tickbridge::clock::Now;
use tickbridge::config::Config;
use tickbridge::config::live::LiveLimits;
use tickbridge::fanout::inbox::{Batch, Inbox};
use tickbridge::fanout::{Fanout, QuoteFeed};
use tickbridge::instrument::InstrumentId;
use tickbridge::lane::delivery::{Admitted, Delivery, Shared};
use tickbridge::lane::session::Pipe;
use tickbridge::quote::{Field, Origin, Quote, Version};
use tickbridge::session::standing::Timers;
use tickbridge::session::{AuthFailure, Authenticator, Principal, Transport};

/// One per core.
const LANES: usize = 2;
/// As in the product's loop.
const CHUNK: usize = 128;

struct Live;

impl QuoteFeed for Live {
    fn is_live(&self, _: InstrumentId) -> bool {
        true
    }
    fn wanted(&self, _: InstrumentId) {}
    fn unwanted(&self, _: InstrumentId) {}
}

struct Nothing;

impl SnapshotSource for Nothing {
    fn read(&self, _: Vec<InstrumentId>) -> Pin<Box<dyn Future<Output = StoredQuotes> + Send + '_>> {
        Box::pin(async { Vec::new() })
    }
}

struct Nobody;

impl Authenticator for Nobody {
    fn verify(&self, _: &str, _: Now) -> Result<Principal, AuthFailure> {
        Err(AuthFailure::Malformed)
    }
}

/// When each event was published, in nanoseconds since the start.
struct Times {
    start: Instant,
    at: Vec<AtomicU64>,
}

struct Counter {
    times: Arc<Times>,
    latencies_ns: RefCell<Vec<u64>>,
}

#[derive(Clone)]
struct Counting(Rc<Counter>);

impl Pipe for Counting {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        // The acknowledgement of the subscription has no seq.
        if let Some(seq) = seq_of(bytes) {
            let published = self.0.times.at[seq].load(Ordering::Relaxed);
            self.0.latencies_ns.borrow_mut().push(ns_since(self.0.times.start) - published);
        }
        Ok(bytes.len())
    }

    fn finish(&self, _: bool) {}
}

fn seq_of(frame: &[u8]) -> Option<usize> {
    let digits = frame.strip_suffix(b"}}")?;
    let at = digits.iter().rposition(|b| !b.is_ascii_digit())? + 1;
    digits[..at].ends_with(b"\"seq\":").then_some(())?;
    Some(digits[at..].iter().fold(0, |n, d| n * 10 + usize::from(d - b'0')))
}

fn quote(seq: usize) -> Quote {
    const TEXT: &str = r#"71000.10 1.2345 1234567 70500 71100 70400 1700000000123456 "2026-07-06T09:00:01""#;
    let version = Version { seq: Some(seq as u64), ts: Some(1_700_000_000_000), of_write: false };
    let mut quote = Quote::new(InstrumentId::new(1), version, Origin::Live, TEXT.into());
    let fields = Field::ALL.iter().zip([0..8, 9..15, 16..23, 24..29, 30..35, 36..41, 42..58, 59..TEXT.len()]);
    for (&field, range) in fields {
        quote.set(field, range);
    }
    quote.published_at = Some(1_700_000_000_000);
    quote
}

/// Two lanes with half of the sessions each.
pub fn lanes(n: usize, paced: bool) -> Tally {
    let inboxes: Vec<Arc<Inbox>> = (0..LANES).map(|_| Arc::default()).collect();
    let fanout = Arc::new(Fanout::new(inboxes.clone(), Arc::new(Live), 1_000));
    let catch_up = Arc::new(CatchUp::new(Arc::clone(&fanout), Arc::new(Nothing), Duration::from_millis(2)));
    let config = Config::default();
    let limits = LiveLimits::new(&config);
    let mut timers = Timers::new(&config, Arc::clone(&limits));
    timers.auth_timeout = None;
    let shared = Arc::new(Shared {
        fanout: Arc::clone(&fanout),
        catch_up,
        authenticator: Arc::new(Nobody),
        watchers: None,
        timers,
        anonymous: true,
        limits,
        user_places: None,
        max_message_bytes: config.session.max_message_bytes,
        flush_interval: Duration::ZERO,
    });
    let times =
        Arc::new(Times { start: Instant::now(), at: (0..=EVENTS).map(|_| AtomicU64::new(0)).collect() });
    let settled = Arc::new(AtomicU64::new(0));
    let ready = Arc::new(Barrier::new(LANES + 1));
    let publisher = std::thread::current();
    let threads: Vec<_> = (0..LANES)
        .map(|lane| {
            let part = Part {
                lane,
                paced,
                n: n / LANES + usize::from(lane < n % LANES),
                shared: Arc::clone(&shared),
                inbox: Arc::clone(&inboxes[lane]),
                times: Arc::clone(&times),
                settled: Arc::clone(&settled),
                ready: Arc::clone(&ready),
                publisher: publisher.clone(),
            };
            std::thread::spawn(move || part.run())
        })
        .collect();
    ready.wait();
    let began = Instant::now();
    for seq in 1..=EVENTS {
        times.at[seq].store(ns_since(times.start), Ordering::Relaxed);
        fanout.offer(quote(seq), Now::read());
        if paced {
            wait(&settled, (seq * n) as u64);
        }
    }
    wait(&settled, (EVENTS * n) as u64);
    let seconds = began.elapsed().as_secs_f64();
    let parts: Vec<_> = threads.into_iter().map(|t| t.join().expect("a lane doesn't panic")).collect();
    let conflated = parts.iter().map(|(_, conflated)| conflated).sum();
    let latencies_ns = parts.into_iter().flat_map(|(latencies, _)| latencies).collect();
    Tally { latencies_ns, dropped: 0, conflated, seconds }
}

fn wait(settled: &AtomicU64, n: u64) {
    while settled.load(Ordering::Acquire) < n {
        std::thread::park_timeout(Duration::from_millis(100));
    }
}

struct Part {
    lane: usize,
    n: usize,
    paced: bool,
    shared: Arc<Shared>,
    inbox: Arc<Inbox>,
    times: Arc<Times>,
    settled: Arc<AtomicU64>,
    ready: Arc<Barrier>,
    publisher: Thread,
}

impl Part {
    fn run(self) -> (Vec<u64>, u64) {
        let latencies_ns = RefCell::new(Vec::with_capacity(EVENTS * self.n));
        let pipe = Counting(Rc::new(Counter { times: Arc::clone(&self.times), latencies_ns }));
        let mut lane = Delivery::new(self.lane, Arc::clone(&self.shared), Now::read());
        for _ in 0..self.n {
            let admitted = Admitted { principal: None, permit: Box::new(()) };
            let key = lane.admit(pipe.clone(), b"", Transport::Ws, admitted, Now::read());
            lane.on_message(key, r#"{"type":"subscribe","topics":["quote:1"]}"#, Now::read());
        }
        while lane.has_ready() {
            lane.flush_some(CHUNK, Now::read);
        }
        self.ready.wait();
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime can be built");
        let conflated = runtime.block_on(self.turn(&mut lane, &pipe));
        let latencies = pipe.0.latencies_ns.take();
        (latencies, conflated)
    }

    async fn turn(&self, lane: &mut Delivery<Counting>, pipe: &Counting) -> u64 {
        let mut batch = Batch::default();
        let (mut reported, target) = (0, (self.n * EVENTS) as u64);
        loop {
            self.inbox.filled().await;
            loop {
                self.inbox.take(&mut batch);
                if !batch.is_empty() {
                    lane.take_in(&mut batch, Now::read());
                }
                if !lane.has_ready() {
                    break;
                }
                lane.flush_some(CHUNK, Now::read);
                tokio::task::yield_now().await;
            }
            // Nothing is conflated while paced, and the books count through all sessions.
            let conflated = if self.paced { 0 } else { lane.books().conflated };
            let done = pipe.0.latencies_ns.borrow().len() as u64 + conflated;
            self.settled.fetch_add(done - reported, Ordering::AcqRel);
            reported = done;
            self.publisher.unpark();
            if done == target {
                return conflated;
            }
        }
    }
}
