//! One connection from its accept to its end, or until it becomes a session.
//!
//! Invariants:
//! - A connection that isn't a session ends within its [`Deadlines`], whatever its peer does.
//! - Whoever becomes a session leaves this task, and nothing of it stays behind.
//!
//! Not here: which requests become sessions (`edge::ws`, `edge::sse`).

use super::refuse;
use super::socket::Options;
use super::takeover::{self, Kind, Start, Takeover};
use crate::metrics::Metrics;
use crate::metrics::edge::Refusal;
use crate::session::Admission;
use crate::stream;
use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::response::Response;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use metrics::Gauge;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

/// Longest request head. Holds the longest token twice; hyper answers 431 beyond.
const MAX_HEAD_BYTES: usize = 16 * 1024;

/// How long a connection may take until it is a session.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// For a request's head, from the moment the connection waits for one.
    header: Duration,
    /// After this the connection is asked to close, between two requests. Proxies open a new one without
    /// anybody noticing, and one that hangs in the middle of something is found.
    lifetime: Duration,
    /// For the answer that is under way when the connection is asked to close.
    last_answer: Duration,
}

impl Deadlines {
    /// The deadlines with `header` as configured. The lifetime only bounds what a stuck peer can hold, so it
    /// is generous; an answer takes milliseconds.
    pub fn new(header: Duration) -> Self {
        Self { header, lifetime: Duration::from_secs(120), last_answer: Duration::from_secs(10) }
    }
}

/// Takes an admitted connection to a lane, or gives it back.
pub type Admit = Arc<dyn Fn(Admission) -> Result<(), Box<Admission>> + Send + Sync>;

/// Takes an admitted connection to a session of a stream.
pub type AdmitStream = Arc<dyn Fn(stream::sessions::Admission) -> io::Result<()> + Send + Sync>;

/// The peer of the connection that a request came over, as an extension of the request.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);

/// A connection's place among those that aren't sessions.
pub struct Slot {
    _permit: OwnedSemaphorePermit,
    gauge: Option<Gauge>,
}

impl Slot {
    /// Counts the connection in `gauge` as long as it holds its place.
    pub fn new(permit: OwnedSemaphorePermit, gauge: Option<Gauge>) -> Self {
        if let Some(gauge) = &gauge {
            gauge.increment(1.0);
        }
        Self { _permit: permit, gauge }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(gauge) = &self.gauge {
            gauge.decrement(1.0);
        }
    }
}

/// What all connections of a listener share.
pub struct Connections {
    router: Router,
    http: http1::Builder,
    deadlines: Deadlines,
    options: Options,
    admit: (Admit, AdmitStream),
    draining: CancellationToken,
    stopped: CancellationToken,
    metrics: Arc<Metrics>,
}

struct Handover {
    head: Vec<u8>,
    start: Start,
}

impl Connections {
    /// Connections that speak with `router` until `draining`, and at the latest until `stopped`.
    pub fn new(
        router: Router,
        deadlines: Deadlines,
        options: Options,
        admit: (Admit, AdmitStream),
        (draining, stopped): (CancellationToken, CancellationToken),
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(deadlines.header).max_buf_size(MAX_HEAD_BYTES);
        Arc::new(Self { router, http, deadlines, options, admit, draining, stopped, metrics })
    }

    /// Speaks HTTP with the peer until either has enough or the connection becomes a session.
    pub async fn serve(self: Arc<Self>, stream: TcpStream, peer: SocketAddr, slot: Slot) {
        let (hand_over, mut handed) = mpsc::channel::<Handover>(1);
        let service = hyper::service::service_fn(|request: Request<Incoming>| {
            answer(self.router.clone(), request, peer, hand_over.clone())
        });
        let mut connection = self.http.serve_connection(TokioIo::new(stream), service);
        let mut deadline = Instant::now() + self.deadlines.lifetime;
        let mut closing = false;
        let handover = loop {
            let close = tokio::select! {
                biased;
                Some(handover) = handed.recv() => break handover,
                // Broken connections, slow heads and unreadable requests are answered by hyper, if at all.
                _ = &mut connection => return,
                () = self.stopped.cancelled() => return,
                () = self.draining.cancelled(), if !closing => true,
                () = sleep_until(deadline) => !closing,
            };
            if !close {
                return;
            }
            closing = true;
            deadline = Instant::now() + self.deadlines.last_answer;
            Pin::new(&mut connection).graceful_shutdown();
        };
        let parts = connection.into_parts();
        if let Err(error) = self.admit(parts.io.into_inner(), parts.read_buf, handover).await {
            tracing::debug!(error = %error, "a connection can't become a session");
        }
        drop(slot);
    }

    async fn admit(&self, stream: TcpStream, read_ahead: Bytes, handover: Handover) -> io::Result<()> {
        self.options.apply_session(&stream)?;
        let Handover { head, start: Start { kind, principal, permit } } = handover;
        let stream = stream.into_std()?;
        let transport = match kind {
            Kind::Market(transport) => transport,
            Kind::Stream(start) => {
                let admission =
                    stream::sessions::Admission { stream, read_ahead, head, start, principal, permit };
                return (self.admit.1)(admission);
            }
        };
        let admission = Admission { stream, read_ahead, head, transport, principal, permit };
        if let Err(admission) = (self.admit.0)(admission) {
            self.metrics.edge.refusals.count(Refusal::Lanes);
            refuse::politely(TcpStream::from_std(admission.stream)?, Refusal::Lanes).await;
        }
        Ok(())
    }
}

/// Asks the router. A response that begins a session goes to the connection's task instead of to hyper, which
/// waits for it until it is taken apart.
async fn answer(
    router: Router,
    request: Request<Incoming>,
    peer: SocketAddr,
    hand_over: mpsc::Sender<Handover>,
) -> Result<Response, Infallible> {
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(Peer(peer));
    let version = request.version();
    let mut response = router.oneshot(request).await?;
    if let Some(start) = Takeover::claim(&mut response) {
        #[expect(clippy::disallowed_methods, reason = "the Date header takes the system's own type")]
        let head = takeover::head(&response, version, SystemTime::now());
        // There is room: one request is served at a time, and none after this one.
        let _ = hand_over.try_send(Handover { head, start });
        return std::future::pending().await;
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::sync::Semaphore;
    use tokio::time::timeout;

    /// Serves one connection whose client sends `request` and then reads until the end or never; gives how long
    /// it took.
    async fn served_for(router: Router, request: &str, reads: bool) -> Duration {
        let deadlines = Deadlines {
            header: Duration::from_secs(60),
            lifetime: Duration::from_millis(200),
            last_answer: Duration::from_millis(100),
        };
        let connections = Connections::new(
            router,
            deadlines,
            Options::new(&crate::config::Session::default()),
            (Arc::new(|admission| Err(Box::new(admission))), Arc::new(|_| Ok(()))),
            Default::default(),
            Arc::new(Metrics::new("t")),
        );
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let mut client = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("connects");
        let (stream, peer) = listener.accept().await.expect("accepts");
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().expect("a permit");
        let begun = Instant::now();
        let served = connections.serve(stream, peer, Slot::new(permit, None));
        let talked = async {
            client.write_all(request.as_bytes()).await.expect("writes");
            if reads {
                client.read_to_end(&mut Vec::new()).await.expect("reads");
            }
        };
        let both = async { tokio::join!(served, talked) };
        timeout(Duration::from_secs(10), both).await.expect("in time");
        begun.elapsed()
    }

    #[tokio::test]
    async fn a_silent_connection_ends_with_its_lifetime() {
        let took = served_for(Router::new(), "", true).await;
        assert!((200..2_000).contains(&took.as_millis()), "{took:?}");
    }

    #[tokio::test]
    async fn an_answer_that_never_comes_is_given_up() {
        let router = Router::new().route("/", get(std::future::pending::<()>));
        let took = served_for(router, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", true).await;
        assert!((300..2_000).contains(&took.as_millis()), "{took:?}");
    }

    #[tokio::test]
    async fn an_answer_that_nobody_reads_is_given_up() {
        let router = Router::new().route("/", get(|| async { vec![b'x'; 64 << 20] }));
        let took = served_for(router, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", false).await;
        assert!((300..2_000).contains(&took.as_millis()), "{took:?}");
    }
}
