//! One session as its lane keeps it.

use super::index::TopicState;
use super::outbox::{Due, Outbox};
use super::pace::Pace;
use crate::protocol::cursor::Cursor;
use crate::protocol::event::EncodedQuote;
use crate::protocol::frame;
use crate::protocol::server;
use crate::quote::{Age, Version};
use crate::session::Principal;
use crate::session::standing::Standing;
use crate::session::user_places::Verdict;
use crate::topic::Topic;
use socket2::SockRef;
use std::any::Any;
use std::io;
use std::net::Shutdown;
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::oneshot;

/// The writing end of a connection. The second implementation is the simulation's.
pub trait Pipe {
    /// Writes what the kernel takes at once.
    ///
    /// # Errors
    /// `WouldBlock` when it takes nothing; anything else means that the connection is lost.
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Ends the connection: after what was written, or at once and with a reset, because what waits in
    /// it can't be delivered and would hold kernel memory for minutes.
    fn finish(&self, polite: bool);
}

impl Pipe for Rc<TcpStream> {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        TcpStream::try_write(self, bytes)
    }

    fn finish(&self, polite: bool) {
        let socket = SockRef::from(self.as_ref());
        // Either fails only on a connection that is gone already.
        let _ = if polite {
            socket.shutdown(Shutdown::Write)
        } else {
            socket.set_linger(Some(Duration::ZERO)).and_then(|()| socket.shutdown(Shutdown::Both))
        };
    }
}

/// A session's subscription to one topic.
#[derive(Clone, Copy, Debug)]
pub struct Sub {
    /// Place of the topic in the lane's index; [`VACANT`] for a place that is free.
    pub topic: u32,
    /// Place of this subscription among the topic's members.
    pub at: u32,
    /// Whether the session still waits for a first quote of the topic.
    pub awaits_first: bool,
    /// Whether the client has seen something of it elsewhere, perhaps more than this replica has. No longer than until
    /// it needs a quote, as none that comes later is older.
    pub resumed: bool,
}

/// See [`Sub::topic`].
pub const VACANT: u32 = u32::MAX;

/// How events are written for a session.
#[derive(Debug)]
pub enum Encoder {
    /// WebSocket frames.
    Ws,
    /// SSE events in HTTP chunks.
    Sse(Box<SseEncoder>),
}

/// What SSE needs beside the frame.
#[derive(Debug)]
pub struct SseEncoder {
    /// Whether each event is one HTTP/1.1 chunk.
    pub chunked: bool,
    /// What the client has seen; subscription `i` is of the `i`th of its instruments.
    pub cursor: Cursor,
}

/// The parts of a cursor that a gathered buffer changed, in its order, to be taken back if the part isn't begun.
pub type Undo = Vec<(u16, Option<Version>)>;

impl SseEncoder {
    /// Whether the client needs `quote`, given what it has seen, perhaps from a replica that was ahead.
    pub fn needs(&self, sub: u16, quote: &EncodedQuote, initial: bool) -> bool {
        let Some(seen) = self.cursor.seen(usize::from(sub)) else { return true };
        if quote.version == seen && seen != Version::default() {
            return !initial;
        }
        quote.version.age(seen) != Age::Older
    }

    /// Appends `text` as one chunk, or as it is.
    pub fn push_chunk(&self, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
        if !self.chunked {
            return write(out);
        }
        let at = frame::begin_chunk(out);
        write(out);
        frame::end_chunk(out, at);
    }

    fn push_quote(
        &mut self,
        sub: u16,
        quote: &EncodedQuote,
        initial: bool,
        undo: &mut Undo,
        out: &mut Vec<u8>,
    ) {
        undo.push((sub, self.cursor.replace(usize::from(sub), Some(quote.version))));
        self.push_chunk(out, |out| {
            out.extend_from_slice(b"id: ");
            self.cursor.push_id(out);
            out.push(b'\n');
            quote.push_sse_data(out, initial);
        });
    }
}

impl Encoder {
    /// Appends one part of a gathered buffer: status and quote of one subscription.
    pub fn push_due(&mut self, state: &TopicState, sub: u16, due: Due, undo: &mut Undo, out: &mut Vec<u8>) {
        let status = |encoder: &Self, out: &mut Vec<u8>| {
            let text = server::status(Topic::of(state.id), state.stale_since_ms);
            encoder.push_message(out, "status", &text);
        };
        let stale = state.stale_since_ms.is_some();
        if due.status && stale {
            status(self, out);
        }
        if let (true, Some(quote)) = (due.quote, &state.latest) {
            match self {
                Self::Ws => quote.push_ws(out, due.initial),
                Self::Sse(sse) => sse.push_quote(sub, quote, due.initial, undo, out),
            }
        }
        if due.status && !stale {
            status(self, out);
        }
    }

    /// Appends a message other than an event. SSE names it, so that `onmessage` sees quotes alone.
    pub fn push_message(&self, out: &mut Vec<u8>, name: &str, json: &str) {
        match self {
            Self::Ws => frame::push_text(out, json.as_bytes()),
            Self::Sse(sse) => sse.push_chunk(out, |out| frame::push_sse_event(out, name, json.as_bytes())),
        }
    }

    /// After a write of a gathered buffer, of whose quotes the first `n_begun` were begun.
    pub fn settle(&mut self, n_begun: usize, undo: &mut Undo) {
        if let Self::Sse(sse) = self {
            for (sub, seen) in undo.drain(..).skip(n_begun) {
                sse.cursor.replace(usize::from(sub), seen);
            }
        }
    }
}

/// See the module.
pub struct Session<P> {
    /// Tells this session from others that had its place before.
    pub generation: u32,
    /// The connection.
    pub pipe: P,
    /// How to write.
    pub encoder: Encoder,
    /// Timers and rights.
    pub standing: Standing,
    /// What waits to be written.
    pub outbox: Outbox,
    /// Subscriptions; a place stays the same as long as the subscription lives.
    pub subs: Vec<Sub>,
    /// The pace of each subscription; empty as long as none has a limit.
    pub paces: Vec<Pace>,
    /// The kernel takes no more; the reader flushes when it does.
    pub blocked: bool,
    /// On the list of sessions to flush.
    pub scheduled: bool,
    /// Wakes the task that reads.
    pub waker: Option<Waker>,
    /// Counts the session against the limits as long as it is held.
    pub permit: Box<dyn Any + Send>,
    /// A good token whose user's other sessions are being counted; nothing is read meanwhile.
    pub pending: Option<Box<Pending>>,
}

/// See [`Session::pending`].
#[derive(Debug)]
pub struct Pending {
    /// Whom the token proves.
    pub principal: Principal,
    /// Whether it may have one session more.
    pub verdict: oneshot::Receiver<Verdict>,
}

impl<P> Session<P> {
    /// Place of the transport in tables by transport.
    pub fn transport(&self) -> usize {
        usize::from(matches!(self.encoder, Encoder::Sse(_)))
    }

    /// The live subscriptions with their places.
    pub fn live_subs(&self) -> impl Iterator<Item = (u16, Sub)> + '_ {
        (0u16..).zip(&self.subs).filter(|(_, sub)| sub.topic != VACANT).map(|(at, sub)| (at, *sub))
    }

    /// The pace of a subscription, if any of the session has one.
    pub fn pace_mut(&mut self, sub: u16) -> Option<&mut Pace> {
        self.paces.get_mut(usize::from(sub)).filter(|pace| pace.is_limited())
    }

    /// Wakes the task that reads, to look at what has changed.
    pub fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}
