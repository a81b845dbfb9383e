//! The loop of one delivery thread and the tasks around it.

use super::Command;
use super::books::PublishedBooks;
use super::delivery::{Admitted, Delivery, Shared};
use super::reader::{self, Lane};
use crate::clock::Now;
use crate::fanout::LaneId;
use crate::fanout::inbox::{Batch, Inbox};
use crate::protocol::close::CloseReason;
use crate::session::{Admission, Transport};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::LocalSet;
use tokio_util::sync::CancellationToken;

/// Sessions flushed before the inbox is looked into again. Fewer would look in vain, more would write
/// quotes that newer ones in the inbox have replaced.
const CHUNK: usize = 128;

/// Everything that a lane's thread starts with.
pub(super) struct Thread {
    pub(super) lane: LaneId,
    pub(super) shared: Arc<Shared>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) commands: mpsc::Receiver<Command>,
    pub(super) books: Arc<PublishedBooks>,
    pub(super) load: Arc<AtomicU64>,
    pub(super) alive_ms: Arc<AtomicU64>,
    pub(super) stop: CancellationToken,
    pub(super) failed: CancellationToken,
}

impl Thread {
    pub(super) fn run(mut self) {
        // Cancelled by whatever ends the loop but a stop.
        let failure = self.failed.clone().drop_guard();
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                tracing::error!(%error, lane = self.lane, "a lane could not build its runtime");
                return;
            }
        };
        let local = LocalSet::new();
        let lane = Rc::new(RefCell::new(Delivery::new(self.lane, Arc::clone(&self.shared), Now::read())));
        local.block_on(&runtime, self.turn(&lane));
        let keys = lane.borrow().keys();
        for key in keys {
            lane.borrow_mut().close(key, CloseReason::ServiceRestart, Now::read());
        }
        self.books.publish(&lane.borrow_mut().books());
        drop(failure.disarm());
    }

    async fn turn(&mut self, lane: &Lane) {
        let mut batch = Batch::default();
        loop {
            let next_release = lane.borrow().next_release();
            let command = tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                () = until(next_release), if next_release.is_some() => {
                    lane.borrow_mut().release_due(Now::read());
                    None
                }
                command = self.commands.recv() => match command {
                    Some(command) => Some(command),
                    None => return,
                },
                () = self.inbox.filled() => None,
            };
            if let Some(command) = command {
                self.obey(lane, command);
            } else if !self.shared.flush_interval.is_zero() {
                tokio::time::sleep(self.shared.flush_interval).await;
            }
            self.pass(lane, &mut batch).await;
        }
    }

    /// Takes in what has come and writes until nothing is due.
    async fn pass(&mut self, lane: &Lane, batch: &mut Batch) {
        loop {
            self.inbox.take(batch);
            if !batch.is_empty() {
                let now = Now::read();
                lane.borrow_mut().take_in(batch, now);
                // A pass may go on for long under load; the turns of paced subscriptions come all the same.
                lane.borrow_mut().release_due(now);
            }
            if !lane.borrow().has_ready() || self.stop.is_cancelled() {
                return;
            }
            let lost = lane.borrow_mut().flush_some(CHUNK, Now::read);
            for key in lost {
                lane.borrow_mut().close(key, CloseReason::Gone, Now::read());
            }
            // Sessions' readers get their turn, and so does who waits in the mailbox.
            tokio::task::yield_now().await;
            for _ in 0..CHUNK {
                let Ok(command) = self.commands.try_recv() else { break };
                self.obey(lane, command);
            }
        }
    }

    fn obey(&self, lane: &Lane, command: Command) {
        let now = Now::read();
        match command {
            Command::Admit(admission) => self.admit(lane, *admission),
            Command::Sweep { slice, n_slices, tick } => {
                self.alive_ms.store(now.mono.as_millis() as u64, Relaxed);
                let mut lane = lane.borrow_mut();
                for (key, reason) in lane.sweep(slice, n_slices, tick, now) {
                    lane.close(key, reason, now);
                }
                self.books.publish(&lane.books());
            }
            Command::List { from, n, answer } => {
                // Whoever asked may have left.
                let _ = answer.send(lane.borrow().list(from, n));
            }
            Command::Drain { first, spacing } => lane.borrow_mut().begin_drain(first, spacing, now),
        }
    }

    fn admit(&self, lane: &Lane, admission: Admission) {
        let load = Loaded(Arc::clone(&self.load));
        let Admission { stream, read_ahead, head, transport, principal, permit } = admission;
        let stream = match TcpStream::from_std(stream) {
            Ok(stream) => Rc::new(stream),
            Err(error) => return tracing::debug!(%error, "a connection could not be registered"),
        };
        let ws = matches!(transport, Transport::Ws);
        // A copy of its own size: what was read ahead may be an empty view of the 8 KiB that HTTP reads into,
        // and tungstenite would keep those for as long as the session lives.
        let read_ahead = read_ahead.to_vec();
        let admitted = Admitted { principal, permit };
        let key = lane.borrow_mut().admit(Rc::clone(&stream), &head, transport, admitted, Now::read());
        let (lane, max) = (Rc::clone(lane), self.shared.max_message_bytes);
        // Two tasks, because one would be as large as the larger of both.
        if ws {
            tokio::task::spawn_local(reader::read_ws(lane, key, stream, read_ahead, max, load));
        } else {
            tokio::task::spawn_local(reader::read_sse(lane, key, stream, load));
        }
    }
}

async fn until(moment: Option<Duration>) {
    let wait = moment.map(|at| at.saturating_sub(Now::read().mono));
    tokio::time::sleep(wait.unwrap_or_default()).await;
}

/// Counts a connection as the lane's load as long as it is held.
pub(super) struct Loaded(Arc<AtomicU64>);

impl Drop for Loaded {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
