//! Reads what clients send, one task per session, and flushes a session whose socket was full.
//!
//! Invariants:
//! - tungstenite judges every frame; what it answers by itself (pongs, the close) goes out through the
//!   session's outbox, in one order with everything else.
//! - A client that doesn't read its answers isn't read from either.
//! - The task ends with its session, and a session never outlives its task.
//!
//! Not here: what messages mean (`lane::delivery`).

use super::delivery::{Delivery, Key};
use crate::clock::Now;
use crate::protocol::close::CloseReason;
use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig, WebSocketContext};
use tokio_tungstenite::tungstenite::{Error, Message, error::ProtocolError};

/// A lane's state, shared among the tasks of its thread.
pub type Lane = Rc<RefCell<Delivery<Rc<TcpStream>>>>;

/// tungstenite allocates this per session at once. Messages of clients are small; larger ones make it
/// read more often. Its default of 128 KiB made idle sessions 100 times as large.
const READ_BUFFER: usize = 512;

/// Messages handled before other sessions get their turn.
const MESSAGES_PER_TURN: usize = 16;

/// How long a closed connection may take to say that it has seen the close. Closing a socket that holds
/// unread bytes resets it, and the reset would destroy the close frame on its way.
const LINGER: Duration = Duration::from_secs(2);

/// What an SSE client may send after its request before it is taken for something else.
const SSE_INBOUND_BYTES: usize = 16 * 1024;

/// Reads a WebSocket session to its end.
pub async fn read_ws(
    lane: Lane,
    key: Key,
    stream: Rc<TcpStream>,
    read_ahead: Vec<u8>,
    max_message_bytes: usize,
) {
    let _end = EndsSession { lane: &lane, key };
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER)
        .write_buffer_size(0)
        .max_write_buffer_size(READ_BUFFER)
        .max_message_size(Some(max_message_bytes))
        .max_frame_size(Some(max_message_bytes));
    let mut has_ahead = !read_ahead.is_empty();
    let mut context = WebSocketContext::from_partially_read(read_ahead, Role::Server, Some(config));
    loop {
        if !std::mem::take(&mut has_ahead) && ready(&lane, key, &stream).await.is_none() {
            break;
        }
        match read_turn(&lane, key, &stream, &mut context) {
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
    drop(context);
    linger(&stream).await;
}

/// Waits until an SSE session ends; its client has nothing to say.
pub async fn read_sse(lane: Lane, key: Key, stream: Rc<TcpStream>) {
    let _end = EndsSession { lane: &lane, key };
    let mut n_read = 0;
    while ready(&lane, key, &stream).await.is_some() {
        let mut buffer = [0; 512];
        let reason = match stream.try_read(&mut buffer) {
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
    linger(&stream).await;
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

/// Waits until there is something to read, and meanwhile flushes the session whenever its full socket
/// takes more. `None` once the session has ended.
async fn ready(lane: &Lane, key: Key, stream: &TcpStream) -> Option<()> {
    poll_fn(|cx| {
        let mut lane = lane.borrow_mut();
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
        let full = lane.session_mut(key).is_none_or(|session| session.outbox.is_full());
        if !full && stream.poll_read_ready(cx).is_ready() { Poll::Ready(Some(())) } else { Poll::Pending }
    })
    .await
}

enum Turn {
    /// Everything that had come is handled.
    Idle,
    /// More may have come.
    More,
    /// The session ends.
    Over(CloseReason),
}

fn read_turn(lane: &Lane, key: Key, stream: &TcpStream, context: &mut WebSocketContext) -> Turn {
    let mut lane = lane.borrow_mut();
    let mut turn = Turn::More;
    for _ in 0..MESSAGES_PER_TURN {
        let mut socket = Socket { stream, heard: false, answers: Vec::new() };
        let read = context.read(&mut socket);
        if matches!(read, Ok(Message::Close(_))) {
            // Writes the answering close into `answers`.
            let _ = context.flush(&mut socket);
        }
        let Some(session) = lane.session_mut(key) else { return Turn::Over(CloseReason::Gone) };
        if socket.heard {
            session.standing.heard();
        }
        session.outbox.push_control(&socket.answers);
        let over = match read {
            Ok(Message::Text(text)) => lane.on_message(key, &text, Now::read()),
            Ok(Message::Binary(bytes)) => match std::str::from_utf8(&bytes) {
                Ok(text) => lane.on_message(key, text, Now::read()),
                Err(_) => Some(CloseReason::InvalidText),
            },
            Ok(Message::Close(_)) => Some(CloseReason::Normal),
            Ok(_) => None,
            Err(Error::Io(e)) if e.kind() == io::ErrorKind::WouldBlock => {
                turn = Turn::Idle;
                break;
            }
            Err(error) => Some(end_of(&error)),
        };
        if let Some(reason) = over {
            return Turn::Over(reason);
        }
        if lane.session_mut(key).is_some_and(|session| session.outbox.is_full()) {
            break;
        }
    }
    // What the client asked for goes out without waiting for the lane's next pass.
    match lane.flush(key, Now::read()) {
        Ok(()) => turn,
        Err(_) => Turn::Over(CloseReason::Gone),
    }
}

fn end_of(error: &Error) -> CloseReason {
    match error {
        Error::Capacity(_) => CloseReason::MessageTooBig,
        Error::Utf8(_) => CloseReason::InvalidText,
        Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => CloseReason::Gone,
        Error::Protocol(_) => CloseReason::ProtocolError,
        Error::ConnectionClosed | Error::AlreadyClosed => CloseReason::Normal,
        _ => CloseReason::Gone,
    }
}

async fn linger(stream: &TcpStream) {
    let seen = async { while stream.readable().await.is_ok() && discard(stream) {} };
    let _ = timeout(LINGER, seen).await;
}

/// Reads what has come. Gives whether more may come.
fn discard(stream: &TcpStream) -> bool {
    // Not in the async block: a buffer there would be a part of every session's task.
    let mut buffer = [0; 512];
    match stream.try_read(&mut buffer) {
        Ok(n) => n > 0,
        Err(e) => e.kind() == io::ErrorKind::WouldBlock,
    }
}

/// The connection as tungstenite sees it.
struct Socket<'a> {
    stream: &'a TcpStream,
    heard: bool,
    answers: Vec<u8>,
}

impl Read for Socket<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.stream.try_read(buffer)?;
        self.heard |= n > 0;
        Ok(n)
    }
}

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.answers.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
