//! An edge on free ports, whose admissions go to the test.

use crate::catch_up::{CatchUp, SnapshotSource, Stored, StoredQuotes};
use crate::clock::Now;
use crate::config::live::LiveLimits;
use crate::config::{Config, Secret};
use crate::edge::auth::Verifier;
use crate::edge::ops::Health;
use crate::edge::sessions::Page;
use crate::edge::{Addresses, Edge, Services, Shutdown};
use crate::fanout::{Fanout, QuoteFeed};
use crate::instrument::InstrumentId;
use crate::metrics::Metrics;
use crate::publish::{Published, QuotePublisher};
use crate::quote::{Field, Origin, Quote, Version};
use crate::session::Admission;
use crate::session::tickets::{MemoryTickets, Tickets};
use crate::session::user_places::MemoryPlaces;
use jsonwebtoken::{EncodingKey, Header};
use serde_json::json;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Longer than anything that a test waits for.
pub const PATIENCE: Duration = Duration::from_secs(10);

pub const SECRET: &str = "a secret of at least thirty-two bytes";

pub const HANDSHAKE: &str = "GET /market/ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

pub struct Stand {
    pub addresses: Addresses,
    pub metrics: Arc<Metrics>,
    pub shutdown: Shutdown,
    pub unready: Arc<Mutex<Vec<String>>>,
    pub served: JoinHandle<std::io::Result<()>>,
    admissions: mpsc::Receiver<Admission>,
}

struct Feed;

impl QuoteFeed for Feed {
    fn is_live(&self, _: InstrumentId) -> bool {
        true
    }
    fn wanted(&self, _: InstrumentId) {}
    fn unwanted(&self, _: InstrumentId) {}
}

/// Knows the price of instrument 5.
struct Keys;

impl SnapshotSource for Keys {
    fn read(&self, ids: Vec<InstrumentId>) -> Pin<Box<dyn Future<Output = StoredQuotes> + Send + '_>> {
        let stored = |id: InstrumentId| {
            if id != InstrumentId::new(5) {
                return Stored::Absent;
            }
            let mut quote = Quote::new(id, Version::default(), Origin::Stored, "71000.10".into());
            quote.set(Field::Price, 0..8);
            Stored::Quote(Box::new(quote))
        };
        Box::pin(std::future::ready(ids.into_iter().map(|id| (id, stored(id))).collect()))
    }
}

/// A configuration on free ports of this machine, with a secret.
pub fn config() -> Config {
    let mut config = Config::default();
    let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    (config.listen.public, config.listen.admin) = (free, free);
    config.auth.jwt.secret = Some(Secret::new(SECRET.into()));
    config
}

/// Publishes whatever it is given.
struct Paper;

impl QuotePublisher for Paper {
    fn publish(&self, payloads: Vec<Vec<u8>>) -> Pin<Box<dyn Future<Output = Vec<Published>> + Send + '_>> {
        Box::pin(std::future::ready(payloads.iter().map(|_| Published::Done).collect()))
    }
}

/// A token for user 42, good for a minute.
pub fn token() -> String {
    let claims = json!({ "sub": 42, "iss": "finvibe-user", "exp": Now::read().unix_secs() + 60 });
    jsonwebtoken::encode(&Header::default(), &claims, &EncodingKey::from_secret(SECRET.as_bytes()))
        .expect("signs")
}

impl Stand {
    pub fn start(config: &Config) -> Self {
        Self::with(config, 1_024, Arc::new(MemoryTickets::default()))
    }

    /// A stand whose lanes take at most `mailbox` sessions.
    pub fn with(config: &Config, mailbox: usize, tickets: Arc<dyn Tickets>) -> Self {
        Self::of(config, Edge::bind(config).expect("free ports"), mailbox, tickets)
    }

    pub fn of(config: &Config, edge: Edge, mailbox: usize, tickets: Arc<dyn Tickets>) -> Self {
        let metrics = Arc::new(Metrics::new("t"));
        let verifier = Verifier::new(&config.auth.jwt, Arc::clone(&metrics)).expect("usable keys");
        let fanout = Arc::new(Fanout::new(Vec::new(), Arc::new(Feed), 1_000));
        let (mailbox, admissions) = mpsc::channel(mailbox);
        let limits = LiveLimits::new(config);
        let unready = Arc::new(Mutex::new(Vec::new()));
        let reasons = Arc::clone(&unready);
        let services = Services {
            admit: Arc::new(move |admission| {
                mailbox.try_send(admission).map_err(|refused| Box::new(refused.into_inner()))
            }),
            authenticator: Arc::new(verifier),
            tickets,
            user_places: Arc::new(MemoryPlaces::new(Arc::clone(&limits))),
            limits,
            catch_up: Arc::new(CatchUp::new(fanout, Arc::new(Keys), Duration::ZERO)),
            metrics: Arc::clone(&metrics),
            health: Health {
                stalled: Arc::new(Vec::new),
                unready: Arc::new(move || reasons.lock().expect("not poisoned").clone()),
            },
            sessions: Arc::new(|_, _| Box::pin(std::future::ready(Page::default()))),
            publisher: Arc::new(Paper),
            streams: None,
        };
        let addresses = edge.addresses();
        let shutdown = Shutdown::default();
        let served = tokio::spawn(edge.serve(services, shutdown.clone()));
        Self { addresses, metrics, shutdown, unready, served, admissions }
    }

    pub async fn connect(&self) -> Client {
        Client(TcpStream::connect(self.addresses.public).await.expect("connects"))
    }

    /// Sends one request over a connection of its own and reads the whole answer.
    pub async fn ask(&self, request: &str) -> String {
        let mut client = self.connect().await;
        client.send(&format!("{request}Connection: close\r\n\r\n")).await;
        client.read_to_end().await
    }

    pub async fn ask_admin(&self, path: &str) -> String {
        self.ask_admin_raw(&format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")).await
    }

    /// Sends a whole request to the admin listener and reads the whole answer.
    pub async fn ask_admin_raw(&self, request: &str) -> String {
        let mut client = Client(TcpStream::connect(self.addresses.admin).await.expect("connects"));
        client.send(request).await;
        client.read_to_end().await
    }

    pub async fn admitted(&mut self) -> Admission {
        timeout(PATIENCE, self.admissions.recv()).await.expect("in time").expect("still serving")
    }

    pub fn nobody_is_admitted(&mut self) -> bool {
        self.admissions.try_recv().is_err()
    }

    /// The value of a metric, as it is exposed.
    pub fn metric(&self, series: &str) -> u64 {
        let text = self.metrics.render();
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {series}")).parse().expect("a whole number")
    }

    /// Waits until `holds`.
    pub async fn wait_for(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let waited = timeout(PATIENCE, async {
            while !holds(self) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        waited.await.unwrap_or_else(|_| panic!("not in time: {what}"));
    }
}

pub struct Client(pub TcpStream);

impl Client {
    pub async fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.expect("writes");
    }

    pub async fn read_to_end(&mut self) -> String {
        let mut out = Vec::new();
        timeout(PATIENCE, self.0.read_to_end(&mut out)).await.expect("in time").expect("reads");
        String::from_utf8(out).expect("text")
    }

    /// Reads exactly what a `GET` answer's head and content length say.
    pub async fn read_answer(&mut self) -> String {
        let mut text = String::new();
        let complete = |text: &str| {
            let (head, body) = text.split_once("\r\n\r\n")?;
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "))?;
            Some(body.len() >= length.parse().ok()?)
        };
        while complete(&text) != Some(true) {
            let mut buffer = [0; 4096];
            let n = timeout(PATIENCE, self.0.read(&mut buffer)).await.expect("in time").expect("reads");
            assert!(n > 0, "closed after {text:?}");
            text += std::str::from_utf8(&buffer[..n]).expect("text");
        }
        text
    }
}

/// Writes to an admitted connection as a lane would.
pub async fn write(admission: Admission, more: &[u8]) -> (TcpStream, Admission) {
    let stream = admission.stream.try_clone().expect("clones");
    let mut stream = TcpStream::from_std(stream).expect("is in non-blocking mode");
    stream.write_all(&admission.head).await.expect("writes");
    stream.write_all(more).await.expect("writes");
    (stream, admission)
}
