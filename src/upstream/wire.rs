//! What one subscription connection has said, from its push closure to the task that keeps it.
//!
//! Invariants:
//! - Nothing here grows with the number of messages: of acknowledgements the last word per channel is
//!   kept, and whether it was broken in between.
//! - Acknowledgements are taken from here and not from the answers of commands, whose order against
//!   pushes isn't kept, and which an unsolicited `sunsubscribe` shifts.

use super::channels::{Channel, ChannelNames};
use super::feed::Feed;
use super::sink::Sink;
use crate::metrics::Metrics;
use redis::{PushInfo, PushKind, Value};
use std::collections::HashMap;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The last word on one channel.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Word {
    /// An unsubscription came, maybe followed by a subscription.
    pub(super) broken: bool,
    /// The last word was a subscription.
    pub(super) live: bool,
}

/// The near end of one connection.
pub(super) struct Wire {
    feed: Arc<Feed>,
    sink: Arc<Sink>,
    metrics: Arc<Metrics>,
    words: Mutex<HashMap<Channel, Word>>,
    down: AtomicBool,
    spoke: Notify,
    probes: Mutex<Probes>,
    opened: Instant,
    /// When something came last, in microseconds since `opened`. Written for every message.
    heard_us: AtomicU64,
}

/// What became of probes.
#[derive(Default)]
struct Probes {
    /// The newest probe and when it was sent, until it comes back.
    out: Option<(u64, Instant)>,
    /// Whether one has come back at all.
    proven: bool,
}

impl Wire {
    pub(super) fn new(feed: Arc<Feed>, sink: Arc<Sink>, metrics: Arc<Metrics>) -> Self {
        Self {
            feed,
            sink,
            metrics,
            words: Mutex::default(),
            down: AtomicBool::new(false),
            spoke: Notify::new(),
            probes: Mutex::default(),
            opened: Instant::now(),
            heard_us: AtomicU64::new(0),
        }
    }

    /// Takes one push.
    pub(super) fn push(&self, info: PushInfo) {
        let PushInfo { kind, mut data } = info;
        match kind {
            PushKind::Disconnection => {
                self.down.store(true, Ordering::SeqCst);
                self.spoke.notify_one();
            }
            PushKind::Message | PushKind::SMessage => {
                self.heard();
                if let (Some(Value::BulkString(payload)), Some(Value::BulkString(name))) =
                    (data.pop(), data.pop())
                {
                    if self.names().is_probe(&name) {
                        self.probe_came(&name, &payload);
                    } else {
                        self.feed.spoke(&name);
                        self.sink.take(payload);
                    }
                }
            }
            PushKind::Subscribe | PushKind::SSubscribe => self.word(&data, true),
            PushKind::Unsubscribe | PushKind::SUnsubscribe => self.word(&data, false),
            _ => self.heard(),
        }
    }

    fn names(&self) -> &ChannelNames {
        self.feed.names()
    }

    fn word(&self, data: &[Value], live: bool) {
        self.heard();
        let Some(Value::BulkString(name)) = data.first() else { return };
        let Some(channel) = std::str::from_utf8(name).ok().and_then(|name| self.names().parse(name)) else {
            return;
        };
        let mut words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        let word = words.entry(channel).or_default();
        word.live = live;
        word.broken |= !live;
        drop(words);
        self.spoke.notify_one();
    }

    /// Words since the last call.
    pub(super) fn take_words(&self) -> HashMap<Channel, Word> {
        mem::take(&mut *self.words.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether the connection has ended.
    pub(super) fn is_down(&self) -> bool {
        self.down.load(Ordering::SeqCst)
    }

    /// Waits until there are words, or the end.
    ///
    /// # Cancel safety
    /// What is said while nobody waits is kept for the next call.
    pub(super) async fn spoke(&self) {
        self.spoke.notified().await;
    }

    /// Anything came: the other end lives.
    pub(super) fn heard(&self) {
        self.heard_us.store(self.opened.elapsed().as_micros() as u64, Ordering::Relaxed);
    }

    /// When something came last.
    pub(super) fn heard_at(&self) -> Instant {
        self.opened + Duration::from_micros(self.heard_us.load(Ordering::Relaxed))
    }

    /// A probe is about to be published. Gives whether the one before it was lost.
    pub(super) fn probe_leaves(&self, number: u64) -> bool {
        self.probes().out.replace((number, Instant::now())).is_some()
    }

    /// The probe wasn't published after all.
    pub(super) fn probe_failed(&self) {
        self.probes().out = None;
    }

    /// Whether a probe has come through this connection.
    pub(super) fn is_proven(&self) -> bool {
        self.probes().proven
    }

    fn probe_came(&self, name: &[u8], payload: &[u8]) {
        let ours = std::str::from_utf8(name).is_ok_and(|name| self.names().parse(name).is_some());
        let number = std::str::from_utf8(payload).ok().and_then(|text| text.parse::<u64>().ok());
        let mut probes = self.probes();
        if let Some((_, sent)) = probes.out.filter(|(newest, _)| ours && Some(*newest) == number) {
            probes.out = None;
            probes.proven = true;
            self.metrics.upstream.probe_seconds.record(sent.elapsed().as_secs_f64());
        }
    }

    fn probes(&self) -> MutexGuard<'_, Probes> {
        self.probes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use crate::fanout::Fanout;

    fn wire() -> (Wire, Arc<Metrics>) {
        let config = config::Redis { mode: config::RedisMode::Cluster, ..Default::default() };
        let feed = Arc::new(Feed::new(&config, "r1"));
        let fanout = Arc::new(Fanout::new(Vec::new(), Arc::clone(&feed) as _, 64));
        let metrics = Arc::new(Metrics::new("t"));
        let sink = Arc::new(Sink::new(fanout, Arc::clone(&metrics), 100));
        (Wire::new(feed, sink, Arc::clone(&metrics)), metrics)
    }

    fn push(wire: &Wire, kind: PushKind, data: &[&str]) {
        let data = data.iter().map(|text| Value::BulkString(text.as_bytes().to_vec())).collect();
        wire.push(PushInfo { kind, data });
    }

    #[test]
    fn of_words_the_last_is_kept_and_whether_it_broke() {
        let (wire, _) = wire();
        push(&wire, PushKind::SSubscribe, &["market:price-updated"]);
        push(&wire, PushKind::SUnsubscribe, &["market:price-updated"]);
        push(&wire, PushKind::SSubscribe, &["market:price-updated"]);
        push(&wire, PushKind::SSubscribe, &["somebody:else"]);
        let word = Word { broken: true, live: true };
        assert_eq!(wire.take_words(), HashMap::from([(Channel::Base, word)]));
        assert!(wire.take_words().is_empty() && !wire.is_down());
        push(&wire, PushKind::Disconnection, &[]);
        assert!(wire.is_down());
    }

    #[test]
    fn only_our_newest_probe_proves_anything_and_no_probe_is_a_payload() {
        let (wire, metrics) = wire();
        assert!(!wire.probe_leaves(1));
        assert!(wire.probe_leaves(2), "the first is lost");
        let ours = "market:price-updated:probe:{0}:r1";
        for (name, payload) in [(ours, "1"), ("market:price-updated:probe:{0}:r2", "2"), (ours, "x")] {
            push(&wire, PushKind::SMessage, &[name, payload]);
            assert!(!wire.is_proven(), "{name} {payload}");
        }
        push(&wire, PushKind::SMessage, &[ours, "2"]);
        assert!(wire.is_proven() && !wire.probe_leaves(3));
        assert!(metrics.render().contains("t_upstream_messages_total 0\n"));
        push(&wire, PushKind::SMessage, &["market:price-updated", r#"{"stockId":1}"#]);
        assert!(metrics.render().contains("t_upstream_quotes_accepted_total 1\n"));
    }
}
