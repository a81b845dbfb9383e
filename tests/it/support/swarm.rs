//! Thousands of sessions at little cost, each checked by itself: which version of which instrument it
//! saw last, whether any went back, whether it is still open.

use super::gateway::Gateway;
use super::raw_ws::{CLOSE, RawWs, TEXT};
use super::token::token;
use super::wait::{in_time, wait_until};
use serde_json::json;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Handshakes in flight. More would fill the listener's backlog and measure that.
const CONNECTING: usize = 100;

/// What one session has seen.
#[derive(Default)]
pub struct Seen {
    /// `eventTs` of the newest event of each instrument.
    newest: Mutex<HashMap<i64, i64>>,
    /// Events that were not newer than the one before of their instrument.
    pub n_went_back: AtomicU64,
    /// Events in all.
    pub n_events: AtomicU64,
    /// Heartbeats.
    pub n_pings: AtomicU64,
    /// Whether the server ended it.
    pub closed: AtomicBool,
    /// When the last advice allows to connect again.
    pub not_before: Mutex<Option<Instant>>,
}

impl Seen {
    /// `eventTs` of the newest event of an instrument; 0 where none came.
    pub fn newest(&self, id: i64) -> i64 {
        self.newest.lock().unwrap().get(&id).copied().unwrap_or(0)
    }

    /// The next event of each instrument is the first: what a session showed says nothing about the one after it.
    pub fn forget(&self) {
        self.newest.lock().unwrap().clear();
    }
}

/// Whole milliseconds from the stamp of a quote to its arrival, of all sessions of a swarm, for quotes whose `ts`
/// is [`stamp`].
pub struct Delays(Vec<AtomicU64>);

/// Later than this an event counts as this late.
const LATEST_MS: usize = 20_000;

impl Default for Delays {
    fn default() -> Self {
        Self((0..=LATEST_MS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Delays {
    fn record(&self, since: i64) {
        // Versions that are counted by hand are no stamps.
        if since > stamp() / 2 {
            let ms = ((stamp() - since).max(0) / 1_000) as usize;
            self.0[ms.min(LATEST_MS)].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many events there were, and the delays that so many of a hundred do not exceed. Begins anew.
    pub fn take(&self, percents: [u64; 2]) -> (u64, [Duration; 2]) {
        let counts: Vec<u64> = self.0.iter().map(|count| count.swap(0, Ordering::Relaxed)).collect();
        let n: u64 = counts.iter().sum();
        let at = |percent: u64| {
            let mut so_far = 0;
            let reached = |count: &u64| {
                so_far += count;
                so_far * 100 >= n * percent
            };
            Duration::from_millis(counts.iter().position(reached).unwrap_or(LATEST_MS) as u64)
        };
        (n, percents.map(at))
    }
}

/// A version that tells when it was made: microseconds since the Unix epoch.
pub fn stamp() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as i64
}

/// Open sessions, which answer their heartbeats in the background.
pub struct Swarm {
    /// See [`Delays`].
    pub delays: Arc<Delays>,
    sessions: Vec<Arc<Seen>>,
    _tasks: JoinSet<()>,
}

impl Swarm {
    /// Opens `n` sessions of as many users; session `i` subscribes to `topics(i)`.
    pub async fn connect(gateway: &Gateway, n: usize, topics: impl Fn(usize) -> Vec<i64>) -> Self {
        raise_descriptors(n as u64 + 500);
        let (permits, mut tasks) = (Arc::new(Semaphore::new(CONNECTING)), JoinSet::new());
        let (subscribed, delays) = (Arc::new(AtomicU64::new(0)), Arc::new(Delays::default()));
        let sessions: Vec<Arc<Seen>> = (0..n).map(|_| Arc::default()).collect();
        for (i, seen) in sessions.iter().enumerate() {
            let topics = topics(i);
            let (seen, permits) = (Arc::clone(seen), Arc::clone(&permits));
            let (subscribed, delays) = (Arc::clone(&subscribed), Arc::clone(&delays));
            let to = gateway.public;
            tasks.spawn(async move {
                let permit = permits.acquire_owned().await.unwrap();
                let ws = open(to, &format!("user-{i}"), &topics).await;
                subscribed.fetch_add(1, Ordering::Relaxed);
                drop(permit);
                follow(ws, &seen, &delays).await;
                seen.closed.store(true, Ordering::Relaxed);
            });
        }
        let within = Duration::from_secs(30) + Duration::from_millis(20) * n as u32;
        wait_until(&format!("{n} sessions have subscribed"), within, || {
            // A session that fails at its opening is an error, not a reason to wait.
            while let Some(ended) = tasks.try_join_next() {
                ended.unwrap();
            }
            subscribed.load(Ordering::Relaxed) == n as u64
        })
        .await;
        Self { delays, sessions, _tasks: tasks }
    }

    /// All sessions.
    pub fn sessions(&self) -> &[Arc<Seen>] {
        &self.sessions
    }

    /// How many sessions the server ended.
    pub fn n_closed(&self) -> usize {
        self.sessions.iter().filter(|seen| seen.closed.load(Ordering::Relaxed)).count()
    }

    /// A sum over all sessions.
    pub fn sum(&self, part: impl Fn(&Seen) -> &AtomicU64) -> u64 {
        self.sessions.iter().map(|seen| part(seen).load(Ordering::Relaxed)).sum()
    }

    /// Waits until every session has seen `version` of every one of its instruments.
    pub async fn all_at(&self, version: i64, topics: impl Fn(usize) -> Vec<i64>, within: Duration) {
        let wanted: Vec<Vec<i64>> = (0..self.sessions.len()).map(topics).collect();
        let at = |(seen, ids): (&Arc<Seen>, &Vec<i64>)| ids.iter().all(|id| seen.newest(*id) == version);
        let what = format!("every session is at version {version}");
        wait_until(&what, within, || self.sessions.iter().zip(&wanted).all(at)).await;
    }
}

/// A session of `user` on these instruments.
pub async fn open(to: SocketAddr, user: &str, ids: &[i64]) -> RawWs {
    let mut ws = RawWs::connect(to).await;
    ws.send(&json!({ "type": "auth", "token": token(user) }).to_string()).await;
    assert!(ws.next_text().await.starts_with(r#"{"type":"auth","ok":true"#));
    if !ids.is_empty() {
        let topics: Vec<String> = ids.iter().map(|id| format!("quote:{id}")).collect();
        ws.send(&json!({ "type": "subscribe", "request_id": "r", "topics": topics }).to_string()).await;
        let acknowledgement = ws.next_text().await;
        assert!(acknowledgement.starts_with(r#"{"type":"subscribe""#), "{acknowledgement}");
    }
    ws
}

/// Answers heartbeats and notes what comes, until the server closes.
pub async fn follow(mut ws: RawWs, seen: &Seen, delays: &Delays) {
    while let Some(frame) = ws.frame().await {
        if frame.first == CLOSE {
            return;
        }
        assert_eq!(frame.first, TEXT, "{frame:?}");
        let text = frame.text();
        if text.starts_with(r#"{"type":"ping""#) {
            seen.n_pings.fetch_add(1, Ordering::Relaxed);
            if ws.send_frame(TEXT, br#"{"type":"pong"}"#).await.is_err() {
                return;
            }
        } else if text.starts_with(r#"{"type":"event""#) {
            let (id, ts) = (number_after(text, r#""stockId":"#), number_after(text, r#""eventTs":"#));
            let before = seen.newest.lock().unwrap().insert(id, ts);
            seen.n_events.fetch_add(1, Ordering::Relaxed);
            delays.record(ts);
            if before.is_some_and(|before| before >= ts) {
                seen.n_went_back.fetch_add(1, Ordering::Relaxed);
            }
        } else if text.starts_with(r#"{"type":"reconnect""#) {
            let after = Duration::from_millis(number_after(text, r#""after_ms":"#) as u64);
            *seen.not_before.lock().unwrap() = Some(Instant::now() + after);
        }
    }
}

/// Reading numbers by their place keeps the client cheaper than the server that it measures.
fn number_after(text: &str, name: &str) -> i64 {
    let start = text.find(name).unwrap_or_else(|| panic!("no {name} in {text}")) + name.len();
    let digits = &text[start..];
    let end = digits.find(|c: char| c != '-' && !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().unwrap()
}

/// Lets this process have at least `n` descriptors, and the gateways that it starts from here on.
pub fn raise_descriptors(n: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < n) {
        let allowed = limit.maximum.unwrap_or(n);
        assert!(allowed >= n, "the test needs {n} descriptors and may have {allowed}; raise `ulimit -Hn`");
        setrlimit(Resource::Nofile, Rlimit { current: Some(allowed.max(n)), maximum: limit.maximum })
            .unwrap();
    }
}

/// Lets a whole second of quiet pass on the wire before the books are compared.
pub async fn settled(swarm: &Swarm) {
    let mut before = swarm.sum(|seen| &seen.n_events);
    in_time("no more events come", Duration::from_secs(60), async {
        loop {
            super::wait::let_pass(Duration::from_secs(1)).await;
            let now = swarm.sum(|seen| &seen.n_events);
            if now == before {
                return;
            }
            before = now;
        }
    })
    .await;
}
