//! The delivery threads: each owns its sessions outright, sockets included.
//!
//! Invariants:
//! - A session never changes its lane, and nothing outside touches it.
//! - The inbox is emptied before a flush pass and again between its parts, so that what is written is
//!   the newest and writes carry as many quotes as possible.
//!
//! Not here: accepting and authenticating connections (`edge`), which quote is newer (`fanout`).

pub mod books;
mod boundary;
pub mod delivery;
pub mod frames;
pub mod index;
pub mod outbox;
pub mod pace;
mod reader;
mod run;
pub mod session;

use crate::fanout::LaneId;
use crate::fanout::inbox::Inbox;
use crate::session::Admission;
use books::{Books, PublishedBooks};
use delivery::{SessionView, Shared};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Connections and commands that may wait for one lane. A lane takes them between two parts of a pass,
/// so a full mailbox means that it has stood still for seconds.
const MAILBOX: usize = 8_192;

enum Command {
    Admit(Box<Admission>),
    Sweep { slice: usize, n_slices: usize, tick: Duration },
    Drain { first: Duration, spacing: Duration },
    List { from: usize, n: usize, answer: oneshot::Sender<Page> },
}

/// Sessions of one lane, and the place to go on from.
type Page = (Vec<SessionView>, Option<usize>);

/// Where a listing of sessions goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ListFrom {
    /// The lane.
    pub lane: LaneId,
    /// The place in it.
    pub place: usize,
}

/// A lane answers between two parts of a pass.
const LIST_DEADLINE: Duration = Duration::from_secs(1);

struct Handle {
    mailbox: mpsc::Sender<Command>,
    inbox: Arc<Inbox>,
    books: Arc<PublishedBooks>,
    /// Connections handed over that have not ended.
    load: Arc<AtomicU64>,
    /// When the lane last did something, milliseconds on the monotonic clock.
    alive_ms: Arc<AtomicU64>,
}

/// The handle to all lanes.
pub struct Lanes {
    handles: Vec<Handle>,
    failed: CancellationToken,
}

/// The threads behind [`Lanes`], to be joined at the end.
pub struct LaneThreads(Vec<JoinHandle<()>>);

impl Lanes {
    /// Starts one thread per inbox. They end when `stop` is cancelled; sessions that live then are
    /// closed with the drain's reason.
    ///
    /// # Errors
    /// A thread could not be started.
    pub fn start(
        inboxes: Vec<Arc<Inbox>>,
        shared: &Arc<Shared>,
        stop: &CancellationToken,
    ) -> std::io::Result<(Self, LaneThreads)> {
        let failed = CancellationToken::new();
        let (mut handles, mut threads) = (Vec::new(), Vec::new());
        for (lane, inbox) in inboxes.into_iter().enumerate() {
            let (mailbox, commands) = mpsc::channel(MAILBOX);
            let handle = Handle {
                mailbox,
                inbox: Arc::clone(&inbox),
                books: Arc::default(),
                load: Arc::default(),
                alive_ms: Arc::default(),
            };
            let thread = run::Thread {
                lane,
                shared: Arc::clone(shared),
                inbox,
                commands,
                books: Arc::clone(&handle.books),
                load: Arc::clone(&handle.load),
                alive_ms: Arc::clone(&handle.alive_ms),
                stop: stop.clone(),
                failed: failed.clone(),
            };
            threads
                .push(std::thread::Builder::new().name(format!("lane-{lane}")).spawn(move || thread.run())?);
            handles.push(handle);
        }
        Ok((Self { handles, failed }, LaneThreads(threads)))
    }

    /// Hands a connection to the least loaded lane.
    ///
    /// # Errors
    /// Gives the admission back when that lane's mailbox is full or the lanes have stopped.
    pub fn admit(&self, admission: Admission) -> Result<(), Box<Admission>> {
        let handle =
            self.handles.iter().min_by_key(|h| h.load.load(Relaxed)).expect("there is at least one lane");
        match handle.mailbox.try_send(Command::Admit(Box::new(admission))) {
            Ok(()) => {
                handle.load.fetch_add(1, Relaxed);
                Ok(())
            }
            Err(mpsc::error::TrySendError::Full(Command::Admit(admission)))
            | Err(mpsc::error::TrySendError::Closed(Command::Admit(admission))) => Err(admission),
            Err(_) => unreachable!("an admission was sent, so an admission comes back"),
        }
    }

    /// Asks every lane to look at one slice of its sessions. A lane whose mailbox is full is busy enough.
    pub fn sweep(&self, slice: usize, n_slices: usize, tick: Duration) {
        for handle in &self.handles {
            let _ = handle.mailbox.try_send(Command::Sweep { slice, n_slices, tick });
        }
    }

    /// Tells all sessions to connect again, at most `rate` per second in all, or as many more as it
    /// takes to be through in `within`.
    pub async fn drain(&self, rate: u32, within: Duration) {
        let n_lanes = self.handles.len() as u32;
        let n_sessions = self.n_sessions().max(1) as u32;
        let spacing = Duration::from_secs(1) / rate.max(1);
        let spacing = spacing.min(within / n_sessions);
        for (lane, handle) in (0..).zip(&self.handles) {
            let command = Command::Drain { first: spacing * lane, spacing: spacing * n_lanes };
            let _ = handle.mailbox.send(command).await;
        }
    }

    /// Up to `n` sessions from `from` on, and where to go on. A lane that doesn't answer in time counts as
    /// empty.
    pub async fn list(&self, from: ListFrom, n: usize) -> (Vec<SessionView>, Option<ListFrom>) {
        let mut found = Vec::new();
        let mut place = from.place;
        for (lane, handle) in self.handles.iter().enumerate().skip(from.lane) {
            if found.len() >= n {
                return (found, Some(ListFrom { lane, place: 0 }));
            }
            let (answer, answered) = oneshot::channel();
            let command = Command::List { from: place, n: n - found.len(), answer };
            place = 0;
            if handle.mailbox.try_send(command).is_err() {
                continue;
            }
            if let Ok(Ok((mut views, next))) = timeout(LIST_DEADLINE, answered).await {
                found.append(&mut views);
                if let Some(place) = next {
                    return (found, Some(ListFrom { lane, place }));
                }
            }
        }
        (found, None)
    }

    /// How many lanes there are.
    pub const fn n_lanes(&self) -> usize {
        self.handles.len()
    }

    /// Connections handed over that have not ended.
    pub fn n_sessions(&self) -> u64 {
        self.handles.iter().map(|h| h.load.load(Relaxed)).sum()
    }

    /// The books of each lane, a fraction of a second old.
    pub fn books(&self) -> Vec<Books> {
        self.handles.iter().map(|h| h.books.read()).collect()
    }

    /// How long ago the slowest lane last turned, on the monotonic clock at `now`.
    pub fn longest_silence(&self, now: Duration) -> Duration {
        let turned = |h: &Handle| Duration::from_millis(h.alive_ms.load(Relaxed));
        self.handles.iter().map(|h| now.saturating_sub(turned(h))).max().unwrap_or_default()
    }

    /// Cancelled when a lane ended by a panic.
    pub fn failed(&self) -> &CancellationToken {
        &self.failed
    }

    /// Quotes waiting in the inboxes.
    pub fn n_waiting(&self) -> usize {
        self.handles.iter().map(|h| h.inbox.n_quotes()).sum()
    }
}

impl LaneThreads {
    /// Waits for the threads, which end soon after their stop was cancelled. Blocks.
    pub fn join(self) {
        for thread in self.0 {
            // A panic has been reported through `failed`.
            let _ = thread.join();
        }
    }
}
