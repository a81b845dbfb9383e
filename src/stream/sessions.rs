//! All sessions of streams on this replica: how they begin, are counted, drained and ended.
//!
//! Invariant: every session is a tracked task that ends on the token.
//!
//! Not here: the life of one (`stream::session`), permissions and limits (`edge`).

use super::hub::Hub;
use super::output::Wire;
use super::session::Session;
use super::{Page, SourceUnavailable, StreamId, StreamSource};
use crate::clock::Now;
use crate::config;
use crate::config::live::LiveLimits;
use crate::config::streams::UnknownStream;
use crate::entry::EntryId;
use crate::protocol::close::CloseReason;
use crate::session::Principal;
use crate::session::standing::Timers;
use bytes::Bytes;
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Entries of one page of history. Tokens are small; a page of larger ones is followed by smaller pages.
pub(super) const PAGE_ENTRIES: usize = 128;

/// Pages read at the same time for all sessions. Each holds its entries until they are written, and more would only
/// wait for one of the few connections to Redis, which they may not for long.
const MAX_PAGE_READS: usize = 16;

/// How long a request waits for its turn to read when many come at once, as after a restart.
const OPEN_PATIENCE: Duration = Duration::from_secs(10);

/// How often a drain looks whether all are gone.
const DRAIN_LOOK: Duration = Duration::from_millis(20);

/// Where a session begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum From {
    /// After an entry, or at the start.
    After(EntryId),
    /// With what is written from now on.
    Now,
}

/// A session that may begin.
pub struct Opening {
    pub(super) id: StreamId,
    pub(super) at: EntryId,
    pub(super) newest: EntryId,
    pub(super) exists: bool,
    /// The client doesn't know where that is.
    pub(super) from_now: bool,
    /// What was read already.
    pub(super) page: Option<Page>,
}

/// What a request for a stream is answered with.
pub enum Opened {
    /// A session.
    Begin(Box<Opening>),
    /// The client has seen the end.
    Finished,
    /// There is no such stream, and nobody waits for it to come.
    Unknown,
}

/// A connection that the edge has judged, socket and all.
pub struct Admission {
    /// The connection, in non-blocking mode.
    pub stream: std::net::TcpStream,
    /// What was read from it beyond the request.
    pub read_ahead: Bytes,
    /// The head of the HTTP response, still to be written.
    pub head: Vec<u8>,
    /// What to begin with.
    pub start: Start,
    /// Who the request proved to come from, if it did.
    pub principal: Option<Principal>,
    /// Held until the session ends; counts it against the limits.
    pub permit: Box<dyn Any + Send>,
}

/// How a session goes on after the head of its response.
pub struct Start {
    /// `None` for server-sent events without chunks.
    pub wire: Wire,
    /// A session, or the reason to close it at once, told where a browser can read it.
    pub opening: Result<Box<Opening>, CloseReason>,
}

/// A session as an operator sees it. Nothing personal but the user's id.
#[derive(Clone, Debug)]
pub struct SessionView {
    /// How many were opened before it.
    pub place: usize,
    /// Whether it is a WebSocket.
    pub is_ws: bool,
    /// Who it acts for; `None` is a guest.
    pub user_id: Option<Arc<str>>,
    /// What it watches; `None` if it is being closed at once.
    pub stream: Option<StreamId>,
}

/// What all sessions share.
pub(super) struct Shared {
    pub(super) hub: Arc<Hub>,
    pub(super) source: Arc<dyn StreamSource>,
    pub(super) timers: Timers,
    pub(super) producer_timeout: Duration,
    pub(super) abandon_timeout: Duration,
    pub(super) max_message_bytes: usize,
    pub(super) page_reads: Semaphore,
    pub(super) open: Mutex<BTreeMap<usize, SessionView>>,
    pub(super) drain: watch::Sender<Option<Arc<Drain>>>,
    pub(super) end: CancellationToken,
}

impl Shared {
    fn open(&self) -> MutexGuard<'_, BTreeMap<usize, SessionView>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Turns to connect again, one after the other.
pub(super) struct Drain {
    began: Duration,
    spacing: Duration,
    taken: AtomicUsize,
}

impl Drain {
    /// When the next session's turn is, on the monotonic clock.
    pub(super) fn turn(&self) -> Duration {
        self.began + self.spacing * u32::try_from(self.taken.fetch_add(1, Relaxed)).unwrap_or(u32::MAX)
    }
}

/// The handle to all sessions of streams.
pub struct Sessions {
    shared: Arc<Shared>,
    opened: AtomicUsize,
    tasks: TaskTracker,
    unknown: UnknownStream,
}

impl Sessions {
    /// No session yet. They end when `end` is cancelled.
    pub fn new(
        hub: Arc<Hub>,
        source: Arc<dyn StreamSource>,
        config: &config::Config,
        limits: Arc<LiveLimits>,
        end: CancellationToken,
    ) -> Arc<Self> {
        let shared = Shared {
            hub,
            source,
            // Who comes without a token has been let in without one.
            timers: Timers { auth_timeout: None, ..Timers::new(config, limits) },
            producer_timeout: config.streams.producer_timeout,
            abandon_timeout: config.streams.abandon_timeout,
            max_message_bytes: config.session.max_message_bytes,
            page_reads: Semaphore::new(MAX_PAGE_READS),
            open: Mutex::default(),
            drain: watch::Sender::new(None),
            end,
        };
        Arc::new(Self {
            shared: Arc::new(shared),
            opened: AtomicUsize::new(0),
            tasks: TaskTracker::new(),
            unknown: config.streams.unknown,
        })
    }

    /// Looks what a session of `id` would begin with.
    ///
    /// # Errors
    /// The source can't be asked.
    pub async fn open(&self, id: StreamId, from: From) -> Result<Opened, SourceUnavailable> {
        let turn = timeout(OPEN_PATIENCE, self.shared.page_reads.acquire()).await;
        let _turn = turn.ok().and_then(Result::ok).ok_or(SourceUnavailable)?;
        let source = &self.shared.source;
        let from_now = from == From::Now;
        let (at, page) = match from {
            From::After(at) => (at, Some(source.page(&id, at, PAGE_ENTRIES).await?)),
            From::Now => (EntryId::START, None),
        };
        let info = match &page {
            Some(page) => page.info.clone(),
            None => source.info(&id).await?,
        };
        let Some(info) = info else {
            if self.unknown == UnknownStream::NotFound {
                return Ok(Opened::Unknown);
            }
            let newest = EntryId::START;
            let opening = Opening { id, at, newest, exists: false, from_now, page };
            return Ok(Opened::Begin(Box::new(opening)));
        };
        let at = if from_now { info.last_id } else { at };
        // What stands after an end is nobody's to see.
        let before = page.as_ref().and_then(|page| page.before.as_ref());
        let seen_end = before.is_some_and(|entry| entry.content.end.is_some());
        if seen_end || (info.ended && info.last_id <= at) {
            return Ok(Opened::Finished);
        }
        let opening = Opening { id, at, newest: info.last_id, exists: true, from_now, page };
        Ok(Opened::Begin(Box::new(opening)))
    }

    /// Begins a session. To be called within the runtime that it lives in.
    ///
    /// # Errors
    /// The connection can't be registered with the runtime.
    pub fn admit(&self, admission: Admission) -> std::io::Result<()> {
        let Admission { stream, read_ahead, head, start, principal, permit } = admission;
        let stream = TcpStream::from_std(stream)?;
        let shared = Arc::clone(&self.shared);
        let counted = Counted::new(
            &shared,
            SessionView {
                place: self.opened.fetch_add(1, Relaxed),
                is_ws: start.wire == Wire::Ws,
                user_id: principal.as_ref().map(|principal| Arc::clone(&principal.user_id)),
                stream: start.opening.as_ref().ok().map(|opening| opening.id.clone()),
            },
        );
        self.tasks.spawn(async move {
            let metrics = shared.hub.metrics();
            let _open = metrics.opened(start.wire == Wire::Ws);
            // Given back before the session stops being counted, so that whoever sees it gone finds its place free.
            let _held = (permit, counted);
            let session = Session::new(&shared, stream, start.wire, head, read_ahead, principal, Now::read());
            let reason = session.run(start.opening).await;
            metrics.closed(reason);
        });
        Ok(())
    }

    /// Sessions that have not ended.
    pub fn n_sessions(&self) -> usize {
        self.shared.open().len()
    }

    /// Up to `n` sessions from place `from` on, and the place to go on from if there are more.
    pub fn list(&self, from: usize, n: usize) -> (Vec<SessionView>, Option<usize>) {
        let open = self.shared.open();
        let mut views = open.range(from..).map(|(_, view)| view.clone());
        (views.by_ref().take(n).collect(), views.next().map(|view| view.place))
    }

    /// Tells all sessions to connect again, at most `rate` per second, or as many more as it takes to be through in
    /// `within`. Ends when they are gone.
    pub async fn drain(&self, rate: u32, within: Duration, now: Now) {
        let n = u32::try_from(self.n_sessions().max(1)).unwrap_or(u32::MAX);
        let spacing = (Duration::from_secs(1) / rate.max(1)).min(within / n);
        let drain = Drain { began: now.mono, spacing, taken: AtomicUsize::new(0) };
        self.shared.drain.send_replace(Some(Arc::new(drain)));
        while self.n_sessions() > 0 {
            sleep(DRAIN_LOOK).await;
        }
    }

    /// Waits until the tasks have ended, which they do on the token.
    pub async fn ended(&self, deadline: Instant) {
        self.tasks.close();
        let _ = timeout_at(deadline, self.tasks.wait()).await;
    }
}

/// Counts and lists a session as long as it is held, from before its task runs.
struct Counted {
    shared: Arc<Shared>,
    place: usize,
}

impl Counted {
    fn new(shared: &Arc<Shared>, view: SessionView) -> Self {
        let place = view.place;
        shared.open().insert(place, view);
        Self { shared: Arc::clone(shared), place }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.shared.open().remove(&self.place);
    }
}
