//! One connection from its accept to its end, or until it becomes a session.
//!
//! Invariants:
//! - A connection that isn't a session ends within `LIFETIME` and `LAST_ANSWER`, whatever its peer does.
//! - Whoever becomes a session leaves this task, and nothing of it stays behind.
//!
//! Not here: which requests become sessions (`edge::ws`, `edge::sse`).

use super::refuse;
use super::socket::Options;
use super::takeover::{self, Start, Takeover};
use crate::metrics::Metrics;
use crate::metrics::edge::Refusal;
use crate::session::Admission;
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

/// A connection is asked to close after this, between two requests. Proxies open a new one without anybody
/// noticing, and one that hangs in the middle of something is found.
const LIFETIME: Duration = Duration::from_secs(120);

/// Time for the answer that was under way when the connection was asked to close.
const LAST_ANSWER: Duration = Duration::from_secs(10);

/// Takes an admitted connection to a lane, or gives it back.
pub type Admit = Arc<dyn Fn(Admission) -> Result<(), Box<Admission>> + Send + Sync>;

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
    options: Options,
    admit: Admit,
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
        header_timeout: Duration,
        options: Options,
        admit: Admit,
        (draining, stopped): (CancellationToken, CancellationToken),
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(header_timeout).max_buf_size(MAX_HEAD_BYTES);
        Arc::new(Self { router, http, options, admit, draining, stopped, metrics })
    }

    /// Speaks HTTP with the peer until either has enough or the connection becomes a session.
    pub async fn serve(self: Arc<Self>, stream: TcpStream, peer: SocketAddr, slot: Slot) {
        let (hand_over, mut handed) = mpsc::channel::<Handover>(1);
        let service = hyper::service::service_fn(|request: Request<Incoming>| {
            answer(self.router.clone(), request, peer, hand_over.clone())
        });
        let mut connection = self.http.serve_connection(TokioIo::new(stream), service);
        let mut deadline = Instant::now() + LIFETIME;
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
            deadline = Instant::now() + LAST_ANSWER;
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
        let Handover { head, start: Start { transport, principal, permit } } = handover;
        let stream = stream.into_std()?;
        let admission = Admission { stream, read_ahead, head, transport, principal, permit };
        if let Err(admission) = (self.admit)(admission) {
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
