//! What the client of a session sends: frames that keep a WebSocket alive or end it, and nothing over SSE.
//!
//! Invariant: tungstenite judges every frame; what it answers goes into the session's buffer.

use crate::lane::frames;
use crate::protocol::close::CloseReason;
use std::io::{self, Read, Write};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketContext};
use tokio_tungstenite::tungstenite::{Error, Message};

/// Frames handled before the session writes again.
const FRAMES_PER_TURN: usize = 16;

/// What an SSE client may send after its request before it is taken for something else.
const SSE_INBOUND_BYTES: usize = 16 * 1024;

/// The reading half of a session.
pub(super) enum Inbound {
    /// Frames.
    Ws {
        context: Box<WebSocketContext>,
        /// Frames came with the request; the socket won't say that there is something to read.
        has_ahead: bool,
    },
    /// Bytes that mean nothing.
    Sse { n_read: usize },
}

/// What was heard.
#[derive(Default)]
pub(super) struct Heard {
    /// Whether there was anything: the client lives.
    pub(super) anything: bool,
    /// Messages, whatever they say.
    pub(super) n_messages: usize,
    /// Whether the client closed its WebSocket and the answer was written.
    pub(super) closed: bool,
    /// Whether the session ends by it.
    pub(super) end: Option<CloseReason>,
}

impl Inbound {
    pub(super) fn new(is_ws: bool, read_ahead: Vec<u8>, max_message_bytes: usize) -> Self {
        if !is_ws {
            return Self::Sse { n_read: read_ahead.len() };
        }
        let has_ahead = !read_ahead.is_empty();
        let context = WebSocketContext::from_partially_read(
            read_ahead,
            Role::Server,
            Some(frames::config(max_message_bytes)),
        );
        Self::Ws { context: Box::new(context), has_ahead }
    }

    /// Whether frames wait that the socket doesn't know of.
    pub(super) fn has_ahead(&self) -> bool {
        matches!(self, Self::Ws { has_ahead: true, .. })
    }

    /// Reads what has come; what has to be answered is put behind `out`.
    pub(super) fn read(&mut self, stream: &TcpStream, out: &mut Vec<u8>) -> Heard {
        match self {
            Self::Ws { context, has_ahead } => {
                let (heard, more) = read_ws(context, stream, out);
                *has_ahead = more;
                heard
            }
            Self::Sse { n_read } => read_sse(n_read, stream),
        }
    }
}

fn read_sse(n_read: &mut usize, stream: &TcpStream) -> Heard {
    let mut buffer = [0; 512];
    let end = match stream.try_read(&mut buffer) {
        Ok(0) => Some(CloseReason::Normal),
        Ok(n) => {
            *n_read += n;
            (*n_read > SSE_INBOUND_BYTES).then_some(CloseReason::ProtocolError)
        }
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => None,
        Err(_) => Some(CloseReason::Gone),
    };
    Heard { anything: true, end, ..Heard::default() }
}

fn read_ws(context: &mut WebSocketContext, stream: &TcpStream, out: &mut Vec<u8>) -> (Heard, bool) {
    let mut heard = Heard::default();
    for _ in 0..FRAMES_PER_TURN {
        let mut socket = Socket { stream, heard: false, answers: Vec::new() };
        let read = context.read(&mut socket);
        if matches!(read, Ok(Message::Close(_))) {
            // Writes the answering close.
            let _ = context.flush(&mut socket);
        }
        heard.anything |= socket.heard;
        out.extend_from_slice(&socket.answers);
        match read {
            Ok(Message::Text(_) | Message::Binary(_)) => heard.n_messages += 1,
            Ok(Message::Close(_)) => (heard.closed, heard.end) = (true, Some(CloseReason::Normal)),
            Ok(_) => {}
            Err(Error::Io(e)) if e.kind() == io::ErrorKind::WouldBlock => return (heard, false),
            Err(error) => heard.end = Some(frames::end_of(&error)),
        }
        if heard.end.is_some() {
            return (heard, false);
        }
    }
    (heard, true)
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
