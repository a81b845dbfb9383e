//! A client's frames, one session's: judged, answered, and their messages handed to the lane.
//!
//! Invariants:
//! - tungstenite judges every frame; what it answers by itself (pongs, the close) goes out through the
//!   session's outbox, in one order with everything else.
//! - What a client makes us hold is one message of `session.max_message_bytes`, however it is cut up; between two
//!   messages it is nothing.
//!
//! Not here: sockets and waiting (`lane::reader`), what messages mean (`lane::delivery`).

use super::boundary::Boundary;
use super::delivery::{Delivery, Key};
use super::session::Pipe;
use crate::clock::Now;
use crate::protocol::close::CloseReason;
use std::io::{self, Read, Write};
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig, WebSocketContext};
use tokio_tungstenite::tungstenite::{Error, Message, error::ProtocolError};

/// What tungstenite reads at once. Messages of clients are small; larger ones make it read more often.
const READ_BUFFER: usize = 512;

/// Messages handled before other sessions get their turn.
const MESSAGES_PER_TURN: usize = 16;

/// What a turn came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// Everything that had come is handled.
    Idle,
    /// More may have come.
    More,
    /// The session ends.
    Over(CloseReason),
}

/// See the module.
pub struct Frames {
    /// Only while a message is under way: with its buffer it would be a third of an idle session's memory.
    context: Option<Box<WebSocketContext>>,
    boundary: Boundary,
    max_message_bytes: usize,
}

impl Frames {
    /// Of a client whose connection was upgraded, and from which `read_ahead` was read already.
    pub fn new(read_ahead: Vec<u8>, max_message_bytes: usize) -> Self {
        let mut boundary = Boundary::default();
        boundary.advance(&read_ahead);
        let context =
            WebSocketContext::from_partially_read(read_ahead, Role::Server, Some(config(max_message_bytes)));
        Self { context: Some(Box::new(context)), boundary, max_message_bytes }
    }

    /// Handles what has come from the client of the session `key`, up to a few messages. `input` answers
    /// `WouldBlock` where there is no more yet.
    pub fn turn<P: Pipe>(
        &mut self,
        lane: &mut Delivery<P>,
        key: Key,
        mut input: impl Read,
        now: Now,
    ) -> Turn {
        let Self { context, boundary, max_message_bytes } = self;
        let frames = context.get_or_insert_with(|| {
            Box::new(WebSocketContext::new(Role::Server, Some(config(*max_message_bytes))))
        });
        let mut turn = Turn::More;
        for _ in 0..MESSAGES_PER_TURN {
            let mut socket = Socket { input: &mut input, boundary, heard: false, answers: Vec::new() };
            let read = frames.read(&mut socket);
            if matches!(read, Ok(Message::Close(_))) {
                // Writes the answering close into `answers`.
                let _ = frames.flush(&mut socket);
            }
            let Socket { heard, answers, .. } = socket;
            let Some(session) = lane.session_mut(key) else { return Turn::Over(CloseReason::Gone) };
            if heard {
                session.standing.heard();
            }
            session.outbox.push_control(&answers);
            let over = match read {
                Ok(Message::Text(text)) => lane.on_message(key, &text, now),
                Ok(Message::Binary(bytes)) => match std::str::from_utf8(&bytes) {
                    Ok(text) => lane.on_message(key, text, now),
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
            // What comes next is judged by what is decided first.
            if lane.session_mut(key).is_some_and(|s| s.outbox.is_full() || s.pending.is_some()) {
                break;
            }
        }
        if turn == Turn::Idle && boundary.is_between_messages() {
            *context = None;
        }
        // What the client asked for goes out without waiting for the lane's next pass.
        match lane.flush(key, now) {
            Ok(()) => turn,
            Err(_) => Turn::Over(CloseReason::Gone),
        }
    }
}

/// How tungstenite judges a client: messages up to so many bytes, and answers that are handed on at once.
pub fn config(max_message_bytes: usize) -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER)
        .write_buffer_size(0)
        .max_write_buffer_size(READ_BUFFER)
        .max_message_size(Some(max_message_bytes))
        .max_frame_size(Some(max_message_bytes))
}

/// Why a session ends whose frames tungstenite no longer reads.
pub fn end_of(error: &Error) -> CloseReason {
    match error {
        Error::Capacity(_) => CloseReason::MessageTooBig,
        Error::Utf8(_) => CloseReason::InvalidText,
        Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => CloseReason::Gone,
        Error::Protocol(_) => CloseReason::ProtocolError,
        Error::ConnectionClosed | Error::AlreadyClosed => CloseReason::Normal,
        _ => CloseReason::Gone,
    }
}

/// The connection as tungstenite sees it.
struct Socket<'a, R> {
    input: &'a mut R,
    boundary: &'a mut Boundary,
    heard: bool,
    answers: Vec<u8>,
}

impl<R: Read> Read for Socket<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.input.read(buffer)?;
        self.heard |= n > 0;
        self.boundary.advance(&buffer[..n]);
        Ok(n)
    }
}

impl<R> Write for Socket<'_, R> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.answers.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
