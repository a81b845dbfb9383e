//! Reads what clients send, one task per session, and flushes a session whose socket was full.
//!
//! Invariants:
//! - A client that doesn't read its answers isn't read from either.
//! - The task ends with its session, and a session never outlives its task.
//!
//! Not here: frames (`lane::frames`), what messages mean (`lane::delivery`).

use super::delivery::{Delivery, Key};
use super::frames::{Frames, Turn};
use super::run::Loaded;
use crate::clock::Now;
use crate::protocol::close::CloseReason;
use crate::session::linger::{linger, read_some};
use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, Read};
use std::rc::Rc;
use std::task::{Context, Poll};
use tokio::net::TcpStream;

/// A lane's state, shared among the tasks of its thread.
pub type Lane = Rc<RefCell<Delivery<Rc<TcpStream>>>>;

/// What an SSE client may send after its request before it is taken for something else.
const SSE_INBOUND_BYTES: usize = 16 * 1024;

/// Reads a WebSocket session to its end.
pub(super) async fn read_ws(
    lane: Lane,
    key: Key,
    stream: Rc<TcpStream>,
    read_ahead: Vec<u8>,
    max_message_bytes: usize,
    _load: Loaded,
) {
    let _end = EndsSession { lane: &lane, key };
    let mut has_ahead = !read_ahead.is_empty();
    let mut frames = Frames::new(read_ahead, max_message_bytes);
    loop {
        if ready(&lane, key, &stream, std::mem::take(&mut has_ahead)).await.is_none() {
            break;
        }
        let turn = frames.turn(&mut lane.borrow_mut(), key, Incoming(&stream), Now::read());
        match turn {
            Turn::Idle => {}
            Turn::More => {
                has_ahead = true;
                tokio::task::yield_now().await;
            }
            Turn::Over(reason) => {
                lane.borrow_mut().close(key, reason, Now::read());
                break;
            }
        }
    }
    drop(frames);
    // On the heap, as its timer would be a third of every session's task.
    Box::pin(linger(&stream)).await;
}

/// Waits until an SSE session ends; its client has nothing to say.
pub(super) async fn read_sse(lane: Lane, key: Key, stream: Rc<TcpStream>, _load: Loaded) {
    let _end = EndsSession { lane: &lane, key };
    let mut n_read = 0;
    while ready(&lane, key, &stream, false).await.is_some() {
        let reason = match read_some(&stream) {
            Ok(0) => CloseReason::Normal,
            Ok(n) if n_read + n <= SSE_INBOUND_BYTES => {
                n_read += n;
                continue;
            }
            Ok(_) => CloseReason::ProtocolError,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
            Err(_) => CloseReason::Gone,
        };
        lane.borrow_mut().close(key, reason, Now::read());
        break;
    }
    Box::pin(linger(&stream)).await;
}

/// Ends the session if its task ends without having done so, which only a panic does.
struct EndsSession<'a> {
    lane: &'a Lane,
    key: Key,
}

impl Drop for EndsSession<'_> {
    fn drop(&mut self) {
        if let Ok(mut lane) = self.lane.try_borrow_mut() {
            lane.close(self.key, CloseReason::Internal, Now::read());
        }
    }
}

/// Waits until there is something to read, room for an answer and nothing pending that comes first; meanwhile
/// flushes the session whenever its full socket takes more. `has_ahead` says that something was read that isn't
/// handled yet. `None` once the session has ended.
async fn ready(lane: &Lane, key: Key, stream: &TcpStream, has_ahead: bool) -> Option<()> {
    poll_fn(|cx| {
        let mut lane = lane.borrow_mut();
        settle(&mut lane, key, cx);
        let Some(session) = lane.session_mut(key) else { return Poll::Ready(None) };
        session.waker = Some(cx.waker().clone());
        if session.blocked && stream.poll_write_ready(cx).is_ready() {
            if lane.flush(key, Now::read()).is_err() {
                lane.close(key, CloseReason::Gone, Now::read());
                return Poll::Ready(None);
            }
            // The flush may have filled the socket again; only a new poll asks to be told when it empties.
            if lane.session_mut(key).is_some_and(|session| session.blocked)
                && stream.poll_write_ready(cx).is_ready()
            {
                cx.waker().wake_by_ref();
            }
        }
        let busy = lane.session_mut(key).is_none_or(|s| s.outbox.is_full() || s.pending.is_some());
        let due = !busy && (has_ahead || stream.poll_read_ready(cx).is_ready());
        if due { Poll::Ready(Some(())) } else { Poll::Pending }
    })
    .await
}

/// Answers the session's `auth` if the verdict on it has come.
fn settle(lane: &mut Delivery<Rc<TcpStream>>, key: Key, cx: &mut Context<'_>) {
    let Poll::Ready(over) = lane.poll_pending(key, cx, Now::read()) else { return };
    let over = over.or_else(|| lane.flush(key, Now::read()).is_err().then_some(CloseReason::Gone));
    if let Some(reason) = over {
        lane.close(key, reason, Now::read());
    }
}

/// What has come over a connection, without waiting.
struct Incoming<'a>(&'a TcpStream);

impl Read for Incoming<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(buffer)
    }
}
