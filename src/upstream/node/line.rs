//! One connection to one node, from its opening to its end: asks for channels and follows what is said
//! about them.

use super::refusal;
use super::{Changes, Orders, Shared};
use crate::clock::Now;
use crate::upstream::backoff::Backoff;
use crate::upstream::channels::Channel;
use crate::upstream::connection::redirect;
use crate::upstream::coverage::Incarnation;
use crate::upstream::probe::{Prober, Verdict};
use crate::upstream::readiness::Reason;
use crate::upstream::slots::NodeAddr;
use crate::upstream::wire::Wire;
use redis::aio::MultiplexedConnection;
use redis::{RedisError, RedisResult, Value};
use std::collections::{BTreeSet, HashMap};
use std::mem;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// Channels per write. Bounds a write and the memory of its answers.
const PER_WRITE: usize = 256;

/// After a redirect the channel is asked for at its old node again only if it still belongs there then.
const REDIRECT_PAUSE: Duration = Duration::from_millis(50);

/// An acknowledgement that is this late was lost, or its answer was taken for another's.
const ASK_DEADLINE: Duration = Duration::from_secs(2);

/// Pauses after refusals, cut at what fits the reason.
const REFUSAL_PAUSES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));

/// How a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// The other side, or the network.
    Disconnected,
    /// We gave it up.
    Dead(Verdict),
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// To be asked for at this time.
    Due(Instant),
    /// Asked for.
    Asked(Instant),
    Live,
}

/// Answers to one write of subscriptions.
struct Answers {
    channels: Vec<Channel>,
    result: RedisResult<Vec<RedisResult<Value>>>,
}

/// A connection and the channels on it.
pub(super) struct Line {
    addr: NodeAddr,
    subject: String,
    incarnation: Incarnation,
    wire: Arc<Wire>,
    connection: MultiplexedConnection,
    shared: Arc<Shared>,
    orders: Arc<Orders>,
    channels: HashMap<Channel, State>,
    probe: Option<Channel>,
    /// Our probe channel while it is live.
    live_probe: watch::Sender<Option<Channel>>,
    asks: JoinSet<Answers>,
    refused: HashMap<Channel, Reason>,
    refusals: Backoff,
    refused_until: Instant,
    /// That the probe channel alone is refused has been logged.
    told_of_probe: bool,
}

impl Line {
    pub(super) fn new(
        addr: NodeAddr,
        incarnation: Incarnation,
        wire: Arc<Wire>,
        connection: MultiplexedConnection,
        shared: Arc<Shared>,
        orders: Arc<Orders>,
        wanted: BTreeSet<Channel>,
    ) -> Self {
        let now = Instant::now();
        Self {
            subject: addr.to_string(),
            addr,
            incarnation,
            wire,
            connection,
            shared,
            orders,
            channels: wanted.into_iter().map(|channel| (channel, State::Due(now))).collect(),
            probe: None,
            live_probe: watch::Sender::new(None),
            asks: JoinSet::new(),
            refused: HashMap::new(),
            refusals: REFUSAL_PAUSES,
            refused_until: now,
            told_of_probe: false,
        }
    }

    /// Serves until the connection ends.
    pub(super) async fn serve(&mut self) -> End {
        let shared = Arc::clone(&self.shared);
        let prober = Prober {
            names: shared.feed.names().clone(),
            node: self.addr.clone(),
            timing: shared.probes,
            connector: Arc::clone(&shared.connector),
            topology: Arc::clone(&shared.topology),
            readiness: Arc::clone(&shared.readiness),
            metrics: Arc::clone(&shared.metrics),
            wire: Arc::clone(&self.wire),
            subscription: self.connection.clone(),
            channel: self.live_probe.subscribe(),
        };
        let mut verdict = std::pin::pin!(prober.run());
        let (wire, orders) = (Arc::clone(&self.wire), Arc::clone(&self.orders));
        loop {
            self.take_orders();
            self.take_words();
            if wire.is_down() {
                return End::Disconnected;
            }
            let next = self.ask_due();
            tokio::select! {
                () = wire.spoke() => {}
                () = orders.given.notified() => {}
                Some(answers) = self.asks.join_next() => {
                    if let Ok(answers) = answers {
                        self.answered(answers);
                    }
                }
                verdict = &mut verdict => return End::Dead(verdict),
                () = sleep_until(next) => {}
            }
        }
    }

    /// Loses every channel of the connection.
    pub(super) fn give_up(&mut self) {
        let channels: Vec<_> = self.channels.keys().copied().collect();
        self.shared.coverage.lost(self.incarnation, &channels, Now::read());
        self.live_probe.send_replace(None);
        for reason in Reason::ALL.into_iter().filter(|reason| self.refused.values().any(|r| r == reason)) {
            self.shared.readiness.clear(reason, &self.subject);
        }
    }

    /// The channels that the next connection is to have. The probe channel is given anew.
    pub(super) fn into_wanted(self) -> BTreeSet<Channel> {
        self.channels.into_keys().filter(|channel| !matches!(channel, Channel::Probe(_))).collect()
    }

    fn take_orders(&mut self) {
        let (changes, probe) = {
            let Changes { channels, probe } = &mut *self.orders.changes();
            (mem::take(channels), *probe)
        };
        let now = Instant::now();
        let mut given_up = Vec::new();
        for (channel, wanted) in changes {
            if wanted {
                self.channels.insert(channel, State::Due(now));
            } else if self.channels.remove(&channel).is_some() {
                given_up.push(channel);
            }
        }
        if probe != self.probe {
            if let Some(old) = self.probe.take() {
                self.channels.remove(&old);
                given_up.push(old);
                self.live_probe.send_replace(None);
            }
            self.probe = probe;
            self.channels.extend(probe.map(|probe| (probe, State::Due(now))));
        }
        for channel in &given_up {
            self.accepted(*channel);
        }
        for chunk in given_up.chunks(PER_WRITE) {
            // Whether it worked shows in nothing: what still comes is judged as any quote.
            self.send(self.shared.feed.names().unsubscribe(), chunk, Vec::new());
        }
    }

    fn take_words(&mut self) {
        let now = Instant::now();
        let (mut lost, mut gained) = (Vec::new(), Vec::new());
        for (channel, word) in self.wire.take_words() {
            let Some(state) = self.channels.get_mut(&channel) else { continue };
            let was_live = matches!(state, State::Live);
            if word.broken && was_live {
                lost.push(channel);
                *state = State::Due(now);
            }
            if word.live {
                *state = State::Live;
                gained.push(channel);
            }
        }
        if !lost.is_empty() {
            tracing::info!(
                redis.node = self.subject,
                channels.n = lost.len(),
                "the server took channels away"
            );
            self.shared.coverage.lost(self.incarnation, &lost, Now::read());
            self.shared.topology.request_refresh();
        }
        for channel in lost.iter().filter(|channel| Some(**channel) == self.probe) {
            self.live_probe.send_if_modified(|live| live.take() == Some(*channel));
        }
        if !gained.is_empty() {
            self.refusals.reset();
            for &channel in &gained {
                self.accepted(channel);
            }
            if let Some(probe) = self.probe.filter(|probe| gained.contains(probe)) {
                self.live_probe.send_replace(Some(probe));
            }
            self.shared.coverage.gained(&self.addr, self.incarnation, &gained);
        }
    }

    /// Asks for what is due, and gives when something will be.
    fn ask_due(&mut self) -> Instant {
        let now = Instant::now();
        let mut due = Vec::new();
        let mut next = now + ASK_DEADLINE;
        for (&channel, state) in &mut self.channels {
            match state {
                State::Due(at) if *at <= now => due.push(channel),
                State::Asked(at) if *at + ASK_DEADLINE <= now => due.push(channel),
                State::Due(at) => next = next.min(*at),
                State::Asked(at) => next = next.min(*at + ASK_DEADLINE),
                State::Live => {}
            }
            if due.last() == Some(&channel) {
                *state = State::Asked(now);
            }
        }
        for chunk in due.chunks(PER_WRITE) {
            self.send(self.shared.feed.names().subscribe(), chunk, chunk.to_vec());
        }
        next
    }

    /// Sends one command per channel. `asked` are those whose refusal matters.
    fn send(&mut self, command: &str, channels: &[Channel], asked: Vec<Channel>) {
        let mut pipe = redis::pipe();
        for &channel in channels {
            pipe.cmd(command).arg(self.shared.feed.names().name(channel));
        }
        pipe.ignore_errors();
        let mut connection = self.connection.clone();
        self.asks.spawn(async move {
            let result = pipe.query_async(&mut connection).await;
            Answers { channels: asked, result }
        });
    }

    fn answered(&mut self, Answers { channels, result }: Answers) {
        let Ok(results) = result else {
            // A lost connection says so itself, and a late answer may still come.
            return;
        };
        let mut refused = Vec::new();
        for (channel, error) in channels.into_iter().zip(results).filter_map(|(c, r)| Some((c, r.err()?))) {
            if let Some((slot, owner)) = redirect(&error, &self.addr) {
                self.shared.topology.moved(slot, &owner);
                self.put_off(channel, Instant::now() + REDIRECT_PAUSE);
            } else {
                refused.push((channel, error));
            }
        }
        self.refused(refused);
    }

    fn refused(&mut self, refused: Vec<(Channel, RedisError)>) {
        let Some((_, first)) = refused.first() else { return };
        let now = Instant::now();
        if self.refused_until <= now {
            let reason = refusal::of_subscribing(first);
            self.refused_until = now + self.refusals.pause().min(refusal::longest_pause(reason));
            let only_probe = refused.iter().all(|(channel, _)| Some(*channel) == self.probe);
            // Our own channel may stay refused for ever; once per connection is enough to be told.
            if !only_probe || !mem::replace(&mut self.told_of_probe, true) {
                tracing::warn!(
                    redis.node = self.subject,
                    channels.n = refused.len(),
                    only_probe,
                    error = %first,
                    reason = reason.label(),
                    "channels were refused"
                );
            }
        }
        for (channel, error) in refused {
            // A refusal may belong to a neighbour; what is acknowledged is not refused. Without our own
            // probe channel all quotes still come.
            if self.put_off(channel, self.refused_until) && Some(channel) != self.probe {
                let reason = refusal::of_subscribing(&error);
                if let Some(before) = self.refused.insert(channel, reason).filter(|before| *before != reason)
                {
                    self.clear_unless_held(before);
                }
                let detail = format!("{}: {error}", self.shared.feed.names().name(channel));
                self.shared.readiness.set(reason, &self.subject, detail);
            }
        }
    }

    /// Asks again at `at`, unless the channel has been acknowledged or is not wanted any more.
    fn put_off(&mut self, channel: Channel, at: Instant) -> bool {
        let state = self.channels.get_mut(&channel).filter(|state| matches!(state, State::Asked(_)));
        state.is_some_and(|state| {
            *state = State::Due(at);
            true
        })
    }

    /// The channel is refused no more, or not wanted any more.
    fn accepted(&mut self, channel: Channel) {
        if let Some(reason) = self.refused.remove(&channel) {
            self.clear_unless_held(reason);
        }
    }

    fn clear_unless_held(&self, reason: Reason) {
        if !self.refused.values().any(|held| *held == reason) {
            self.shared.readiness.clear(reason, &self.subject);
        }
    }
}
