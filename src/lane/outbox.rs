//! A session's pending data: a dirty bit per subscription, the order in which they became dirty, and
//! the bytes that must go out first.
//!
//! Invariants:
//! - A quote that wasn't begun exists only as a bit: a newer one replaces it by doing nothing, and it
//!   keeps its place and its age.
//! - The memory is bounded by the subscriptions, one torn frame and [`CONTROL_BOUND`].
//! - Bytes of a frame that was begun always go out before anything else.
//!
//! Not here: encoding, sockets (`lane::flush`), who is subscribed (`lane::index`).

/// Control bytes (acknowledgements, answers) beyond which a session is no longer read from. The largest
/// acknowledgement, of a request as large as a message may be, still fits on top.
pub const CONTROL_BOUND: usize = 32 * 1024;

/// What is to be said of one subscription.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Due {
    /// The newest quote.
    pub quote: bool,
    /// The quote is a snapshot.
    pub initial: bool,
    /// Whether the stream is whole.
    pub status: bool,
}

#[derive(Clone, Copy, Default, Debug)]
struct Slot {
    due: Due,
    /// A quote waits for its turn under a rate limit; it isn't due yet.
    held: bool,
    since_ms: u32,
}

/// One subscription's place in a gathered buffer.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    /// The subscription.
    pub sub: u16,
    /// Whether its bytes hold a quote, not only a status.
    pub quote: bool,
    /// Whether that is a snapshot, whose age says nothing about delivery.
    pub initial: bool,
    /// Where its bytes end.
    pub end: usize,
}

/// What a write achieved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Written {
    /// Marks whose bytes are all out.
    pub n_done: usize,
    /// Marks whose bytes are out or were begun.
    pub n_begun: usize,
    /// A frame begun by an earlier write is out now.
    pub torn_done: bool,
    /// Nothing is left to write.
    pub empty: bool,
}

/// See the module.
#[derive(Default, Debug)]
pub struct Outbox {
    /// The rest of a torn frame, then control messages.
    pending: Vec<u8>,
    /// How much of `pending` is the rest of a torn quote. Nothing may be put before it.
    torn: usize,
    /// Since when the oldest part of `pending` has been waiting: a torn quote since it became due.
    pending_since_ms: Option<u32>,
    slots: Vec<Slot>,
    queue: Vec<u16>,
    n_held: u32,
}

impl Outbox {
    /// Makes room for the subscription `sub`, with nothing due.
    pub fn open(&mut self, sub: u16) {
        let n = usize::from(sub) + 1;
        if self.slots.len() < n {
            self.slots.resize(n, Slot::default());
        }
        self.slots[usize::from(sub)] = Slot::default();
    }

    /// Gives back the room that was left for more subscriptions.
    pub fn shrink(&mut self) {
        self.slots.shrink_to_fit();
    }

    /// A newer quote is there. Gives whether it replaced one that wasn't sent.
    pub fn mark_quote(&mut self, sub: u16, initial: bool, now_ms: u32) -> bool {
        let slot = &mut self.slots[usize::from(sub)];
        let conflated = slot.due.quote;
        // A live quote that replaces an unsent snapshot is no snapshot.
        slot.due.initial = initial && (!conflated || slot.due.initial);
        slot.due.quote = true;
        if !conflated {
            self.enqueue(sub, now_ms);
        }
        conflated
    }

    /// A newer quote is there whose turn hasn't come. Gives whether it replaced one that wasn't sent.
    pub fn hold_quote(&mut self, sub: u16) -> bool {
        let slot = &mut self.slots[usize::from(sub)];
        let conflated = slot.held || slot.due.quote;
        slot.held = !slot.due.quote;
        self.n_held += u32::from(!conflated);
        conflated
    }

    /// The turn of a held quote has come. Gives whether there was one.
    pub fn release(&mut self, sub: u16, now_ms: u32) -> bool {
        let held = std::mem::take(&mut self.slots[usize::from(sub)].held);
        if held {
            self.n_held -= 1;
            self.mark_quote(sub, false, now_ms);
        }
        held
    }

    /// Whether a quote waits for its turn.
    pub fn is_held(&self, sub: u16) -> bool {
        self.slots[usize::from(sub)].held
    }

    /// The stream of the subscription's instrument broke or is live again.
    pub fn mark_status(&mut self, sub: u16, now_ms: u32) {
        if !self.slots[usize::from(sub)].due.status {
            self.slots[usize::from(sub)].due.status = true;
            self.enqueue(sub, now_ms);
        }
    }

    fn enqueue(&mut self, sub: u16, now_ms: u32) {
        let slot = &mut self.slots[usize::from(sub)];
        // Called with exactly one kind just set: if the other is due too, the place is taken already.
        if !(slot.due.quote && slot.due.status) {
            slot.since_ms = now_ms;
            self.queue.push(sub);
        }
    }

    /// Forgets the subscription. Gives whether a quote was due that nobody will get.
    pub fn close(&mut self, sub: u16) -> bool {
        let Slot { due, held, .. } = std::mem::take(&mut self.slots[usize::from(sub)]);
        if due.quote || due.status {
            self.queue.retain(|&s| s != sub);
        }
        self.n_held -= u32::from(held);
        due.quote || held
    }

    /// Adds bytes that go out before any quote that wasn't begun.
    pub fn push_control(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    /// The buffer to append control messages to.
    pub fn control(&mut self) -> &mut Vec<u8> {
        &mut self.pending
    }

    /// Whether so much waits that no more should be read from the client.
    pub fn is_full(&self) -> bool {
        self.pending.len() > CONTROL_BOUND
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.queue.is_empty()
    }

    /// Quotes that are due or held, the torn one included.
    pub fn n_quotes(&self) -> usize {
        let due = self.queue.iter().filter(|&&sub| self.slots[usize::from(sub)].due.quote).count();
        due + self.n_held as usize + usize::from(self.torn > 0)
    }

    /// How long the oldest unsent part has been waiting, in milliseconds.
    ///
    /// The sweep judges slow consumers by this age. Length can't tell busy from stuck: conflation caps
    /// it at the number of subscriptions, however long the browser stops reading.
    pub fn age_ms(&self, now_ms: u32) -> u32 {
        let front = self.queue.first().map(|&sub| self.slots[usize::from(sub)].since_ms);
        [front, self.pending_since_ms]
            .into_iter()
            .flatten()
            .map(|since| now_ms.wrapping_sub(since))
            .max()
            .unwrap_or(0)
    }

    /// The only due subscription, if there is just one and nothing else waits: its frame may be written
    /// from where it is.
    pub fn single(&self) -> Option<(u16, Due)> {
        match self.queue[..] {
            [sub] if self.pending.is_empty() => Some((sub, self.slots[usize::from(sub)].due)),
            _ => None,
        }
    }

    /// Appends what is due to `out`, in order and up to about `limit` bytes, and notes in `marks` where
    /// each subscription's part ends. `encode` appends one part.
    pub fn gather(
        &self,
        limit: usize,
        out: &mut Vec<u8>,
        marks: &mut Vec<Mark>,
        mut encode: impl FnMut(u16, Due, &mut Vec<u8>),
    ) {
        out.extend_from_slice(&self.pending);
        for &sub in &self.queue {
            if out.len() >= limit {
                break;
            }
            let due = self.slots[usize::from(sub)].due;
            encode(sub, due, out);
            marks.push(Mark { sub, quote: due.quote, initial: due.initial, end: out.len() });
        }
    }

    /// Takes back what the first `n` bytes of a gathered buffer settled. Of a frame that was begun the
    /// rest is kept; what was not begun stays due.
    pub fn written(&mut self, n: usize, gathered: &[u8], marks: &[Mark], now_ms: u32) -> Written {
        let had_torn = self.torn > 0;
        let from_pending = n.min(self.pending.len());
        let n_pending = self.pending.len();
        self.torn = self.torn.saturating_sub(from_pending);
        let torn_done = had_torn && self.torn == 0;
        self.pending.drain(..from_pending);
        if self.pending.is_empty() {
            // What is torn from here on waits for itself. A client that reads all the time may find a torn frame
            // at the end of each write.
            self.pending_since_ms = None;
        }

        let n_done = marks.iter().take_while(|mark| mark.end <= n).count();
        let settled_at = n_done.checked_sub(1).map_or(n_pending, |last| marks[last].end);
        let mut n_begun = n_done;
        if let Some(mark) = marks.get(n_done).filter(|_| n > settled_at) {
            self.pending.extend_from_slice(&gathered[n..mark.end]);
            self.torn = if mark.quote { self.pending.len() } else { 0 };
            self.pending_since_ms = Some(self.slots[usize::from(mark.sub)].since_ms);
            n_begun += 1;
        }
        for mark in &marks[..n_begun] {
            self.slots[usize::from(mark.sub)].due = Due::default();
        }
        self.queue.drain(..n_begun);
        if !self.pending.is_empty() {
            self.pending_since_ms.get_or_insert(now_ms);
        } else {
            self.pending_since_ms = None;
            if self.pending.capacity() > 256 {
                // A session that was behind once must not keep the memory for ever.
                self.pending = Vec::new();
            }
        }
        Written { n_done, n_begun, torn_done, empty: self.is_empty() }
    }
}

#[cfg(test)]
mod tests;
