//! Proves that a subscription connection delivers: publishes to our own probe channel through another
//! connection to the same node, and looks whether it comes back.
//!
//! Invariants:
//! - A connection through which nothing has come since a probe was sent is dead when the probe's
//!   deadline has passed, whatever TCP says. Anything that comes counts as life, because a probe waits
//!   behind the backlog of a busy connection.
//! - Where a probe can't be published, a PING on the subscription connection stands in; whatever it is
//!   answered counts, since an unsolicited push may take the answer's place.
//! - Time in which this process itself was stopped counts against nobody.
//!
//! Not here: what follows from the verdict (`node`).

use super::channels::{Channel, ChannelNames};
use super::connection::Connector;
use super::readiness::{Readiness, Reason};
use super::slots::NodeAddr;
use super::topology::Topology;
use super::wire::Wire;
use crate::config::RedisMode;
use crate::metrics::Metrics;
use redis::aio::MultiplexedConnection;
use redis::{RedisError, RedisResult, ServerErrorKind, Value};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// How often and how long.
#[derive(Clone, Copy, Debug)]
pub struct ProbeTiming {
    /// Between two probes.
    pub interval: Duration,
    /// A probe after which nothing came for this long ends the connection. Shorter than twice the
    /// interval would end connections to nodes that merely paused.
    pub deadline: Duration,
    /// The publishing connection is opened anew after this, so that a name or proxy that leads to
    /// another server by now is noticed: what is published there doesn't come back.
    pub publisher_age: Duration,
}

impl Default for ProbeTiming {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(1),
            deadline: Duration::from_secs(2),
            publisher_age: Duration::from_secs(10),
        }
    }
}

/// Why a connection is given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Nothing came within the deadline.
    Silent,
    /// The server counts no subscriber of our probe channel: we are subscribed somewhere else.
    Elsewhere,
    /// The server is a replica, and its name leads to a primary by now.
    Demoted,
}

/// Looks after one subscription connection.
pub(super) struct Prober {
    pub(super) names: ChannelNames,
    pub(super) node: NodeAddr,
    pub(super) timing: ProbeTiming,
    pub(super) connector: Arc<Connector>,
    pub(super) topology: Arc<Topology>,
    pub(super) readiness: Arc<Readiness>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) wire: Arc<Wire>,
    /// The subscription connection, for PING.
    pub(super) subscription: MultiplexedConnection,
    /// The probe channel while it is subscribed.
    pub(super) channel: watch::Receiver<Option<Channel>>,
}

/// What is remembered between probes.
#[derive(Default)]
struct State {
    publisher: Option<(MultiplexedConnection, Instant)>,
    number: u64,
    /// When the first question was asked after which nothing came.
    asked: Option<Instant>,
    /// Probes in a row that the server gave to nobody.
    n_unheard: u32,
    /// Attempts in a row to publish that failed.
    n_failed: u32,
    /// Probes in a row in whose place a PING was sent.
    n_pings: u32,
    /// The ACL forbids publishing.
    denied: bool,
    is_replica: bool,
}

/// What the server said to a probe.
struct Published {
    n_receivers: i64,
    /// Whether it is a replica, if that is known.
    is_replica: Option<bool>,
    /// Its words if it loads its data.
    loading: Option<RedisError>,
}

impl Prober {
    /// Runs until there is a verdict.
    pub(super) async fn run(self) -> Verdict {
        // Judging more often than asking notices a passed deadline without rounding it up.
        let beat = self.timing.interval / 4;
        let mut beats = interval(beat);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut state = State::default();
        let mut pings = JoinSet::new();
        let (mut last_beat, mut ask_at) = (Instant::now(), Instant::now());
        loop {
            beats.tick().await;
            let now = Instant::now();
            let stopped = now - last_beat > self.timing.interval;
            last_beat = now;
            if state.asked.is_some_and(|asked| stopped || self.wire.heard_at() >= asked) {
                state.asked = None;
                // Where probes stay impossible, an answer to PING has to do.
                if self.wire.is_proven() || state.n_pings >= 2 {
                    self.readiness.clear(Reason::ProbeSilent, &self.node.to_string());
                }
            }
            if state.asked.is_some_and(|asked| now - asked >= self.timing.deadline) {
                return Verdict::Silent;
            }
            if now < ask_at {
                continue;
            }
            ask_at = now + self.timing.interval;
            state.asked.get_or_insert(now);
            match self.probe(&mut state).await {
                Ok(Some(verdict)) => return verdict,
                Ok(None) => state.n_pings = 0,
                Err(()) => {
                    state.n_pings += 1;
                    while pings.try_join_next().is_some() {}
                    // One at a time: a silent node is not asked again and again.
                    if pings.is_empty() {
                        pings.spawn(ping(self.subscription.clone(), Arc::clone(&self.wire)));
                    }
                }
            }
            // What publishing took is not time in which this process was stopped.
            last_beat = Instant::now();
        }
    }

    /// Publishes one probe. An error means that it wasn't sent, and that another sign of life is needed.
    async fn probe(&self, state: &mut State) -> Result<Option<Verdict>, ()> {
        let Some(channel) = *self.channel.borrow() else { return Err(()) };
        if state.denied {
            return Err(());
        }
        state.number += 1;
        if self.wire.probe_leaves(state.number) {
            self.metrics.upstream.probes_lost.increment(1);
        }
        match self.publish(state, channel).await {
            Ok(Published { n_receivers, is_replica, loading }) => {
                state.n_failed = 0;
                self.readiness.clear(Reason::ProbeFailing, &self.node.to_string());
                self.judge_loading(loading);
                state.n_unheard = if n_receivers == 0 { state.n_unheard + 1 } else { 0 };
                // Once may be a channel that is just moving; its unsubscription is on its way.
                if state.n_unheard >= 2 {
                    return Ok(Some(Verdict::Elsewhere));
                }
                Ok(self.judge_role(state, is_replica))
            }
            Err(error) => {
                self.wire.probe_failed();
                self.publishing_failed(state, &error);
                Err(())
            }
        }
    }

    async fn publish(&self, state: &mut State, channel: Channel) -> RedisResult<Published> {
        // A replica's name may lead to its successor at any moment.
        let age = if state.is_replica { Duration::ZERO } else { self.timing.publisher_age };
        let mut publisher = match state.publisher.take() {
            Some((publisher, opened)) if opened.elapsed() < age => (publisher, opened),
            _ => (self.connector.open(&self.node).await?, Instant::now()),
        };
        let mut pipe = redis::pipe();
        pipe.cmd(self.names.publish()).arg(self.names.name(channel)).arg(state.number);
        // Pub/Sub works while a server loads its data, and keys don't; nor does this.
        pipe.cmd("PING");
        if self.connector.config().mode != RedisMode::Cluster {
            pipe.cmd("ROLE");
        }
        let answers: Vec<RedisResult<Value>> = pipe.ignore_errors().query_async(&mut publisher.0).await?;
        let mut answers = answers.into_iter();
        let n_receivers = match answers.next() {
            Some(Ok(Value::Int(n))) => n,
            Some(Err(error)) => return Err(error),
            other => {
                return Err(RedisError::from((redis::ErrorKind::Parse, "odd answer", format!("{other:?}"))));
            }
        };
        let loading = answers.next().and_then(Result::err).filter(|e| e.code() == Some("LOADING"));
        let role = answers
            .next()
            .and_then(Result::ok)
            .and_then(|role| role.into_sequence().ok()?.into_iter().next());
        let is_replica = role.map(|role| role == Value::BulkString(b"slave".to_vec()));
        state.publisher = Some(publisher);
        Ok(Published { n_receivers, is_replica, loading })
    }

    fn judge_loading(&self, loading: Option<RedisError>) {
        let subject = self.node.to_string();
        match loading {
            Some(error) => {
                if self.readiness.set(Reason::Loading, &subject, error.to_string()) {
                    tracing::warn!(redis.node = subject, "the server loads its data; keys can't be read yet");
                }
            }
            None => {
                self.readiness.clear(Reason::Loading, &subject);
            }
        }
    }

    fn judge_role(&self, state: &mut State, is_replica: Option<bool>) -> Option<Verdict> {
        let subject = self.node.to_string();
        let was_replica = state.is_replica;
        match is_replica {
            Some(true) => {
                state.is_replica = true;
                self.topology.request_refresh();
                let detail = "the server is a replica".to_owned();
                if self.readiness.set(Reason::ReadOnly, &subject, detail) {
                    tracing::warn!(redis.node = subject, "the server is a replica; looking for its primary");
                }
                None
            }
            Some(false) if was_replica => Some(Verdict::Demoted),
            Some(false) => {
                self.readiness.clear(Reason::ReadOnly, &subject);
                None
            }
            None => None,
        }
    }

    fn publishing_failed(&self, state: &mut State, error: &RedisError) {
        let subject = self.node.to_string();
        if let Some((slot, owner)) = super::connection::redirect(error, &self.node) {
            // The probe channel's slot has moved; another one follows from the new table.
            return self.topology.moved(slot, &owner);
        }
        if error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoPerm) {
            state.denied = true;
            self.readiness.clear(Reason::ProbeFailing, &subject);
            return tracing::warn!(
                redis.node = subject,
                %error,
                "probes can't be published; a silent connection is noticed by PING only"
            );
        }
        state.n_failed += 1;
        // One failure may be a connection that the server had closed.
        if state.n_failed >= 2 && self.readiness.set(Reason::ProbeFailing, &subject, error.to_string()) {
            tracing::warn!(redis.node = subject, %error, "probes can't be published");
        }
    }
}

/// Any answer, even a refusal, came over the connection.
async fn ping(mut subscription: MultiplexedConnection, wire: Arc<Wire>) {
    let answer: RedisResult<Value> = redis::cmd("PING").query_async(&mut subscription).await;
    if answer.err().is_none_or(|error| !error.is_io_error()) {
        wire.heard();
    }
}
