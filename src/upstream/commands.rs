//! Sends commands to the nodes that own their slots, one pipeline per node, and judges each answer by
//! itself.
//!
//! Invariants:
//! - Nothing takes longer than the command timeout, whatever the nodes do.
//! - Nodes are independent: a dead one costs its own commands and nobody else's.
//! - An answer reaches the command that it belongs to, or nobody: see `pools`.
//! - Redirects are followed per command, never for a whole pipeline.
//!
//! Commands may be sent twice when a connection breaks under them, so they must be ones that may.
//!
//! Not here: what is read or written (`snapshot`, `watchers`, `publish`), who owns a slot (`topology`),
//! subscriptions, which never share a connection with commands.

pub mod failure;
mod pools;

use super::connection::{Connector, redirect};
use super::slots::NodeAddr;
use super::topology::Topology;
use crate::config;
use crate::metrics::Metrics;
use failure::{Class, Failure, Kind};
use futures_util::future::join_all;
use pools::{Lease, Pools};
use redis::{Cmd, Pipeline, RedisError, RedisResult, ServerErrorKind, Value};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout_at};

/// Times that a command is sent: once, after a redirect, after another, and once more. A slot that moves
/// under two redirects is a cluster in change; its commands fail and their callers try again.
const MAX_ROUNDS: u32 = 4;

/// First pause before a command that was refused for the moment is sent again; doubles. A failover takes
/// longer than any command may, so there is no use in waiting long.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// Commands per pipeline. Bounds the memory of one call's answers; more in one gains nothing.
const MAX_PIPELINE: usize = 2_000;

/// A command and the slot that decides where it goes.
#[derive(Clone, Debug)]
pub struct Routed {
    /// The slot of its keys or shard channel.
    pub slot: u16,
    /// The command.
    pub command: Cmd,
}

/// What a command was answered.
pub type Answer = Result<Value, Failure>;

/// The way to every node for commands.
pub struct Commands {
    pools: Pools,
    topology: Arc<Topology>,
    timeout: Duration,
    metrics: Arc<Metrics>,
}

/// A command on its way.
struct Pending {
    /// Its place among the commands of the call.
    at: usize,
    /// Where ASK pointed.
    ask: Option<NodeAddr>,
}

/// What one node did with one command.
enum Outcome {
    Final(Answer),
    /// To be sent again at once, to the slot's owner or to where ASK pointed.
    Redirected {
        ask: Option<NodeAddr>,
        failure: Failure,
    },
    /// To be sent again after a pause.
    Refused(Failure),
}

impl Outcome {
    fn answer(self) -> Answer {
        match self {
            Self::Final(answer) => answer,
            Self::Redirected { failure, .. } | Self::Refused(failure) => Err(failure),
        }
    }
}

impl Commands {
    /// Routes by `topology`, connects by `connector`.
    pub fn new(
        connector: Arc<Connector>,
        topology: Arc<Topology>,
        config: &config::Redis,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { pools: Pools::new(connector, config), topology, timeout: config.command_timeout, metrics }
    }

    /// Who owns which slot.
    pub fn topology(&self) -> &Arc<Topology> {
        &self.topology
    }

    /// Runs `commands`, in their order as far as they go to the same node. Gives the answers in the
    /// order of the commands, within the command timeout.
    ///
    /// # Cancel safety
    /// Commands may have been executed; the connections in use are closed.
    pub async fn run(&self, commands: &[Routed]) -> Vec<Answer> {
        let deadline = Instant::now() + self.timeout;
        let mut answers: Vec<Option<Answer>> = commands.iter().map(|_| None).collect();
        let mut pending: Vec<_> = (0..commands.len()).map(|at| Pending { at, ask: None }).collect();
        let mut pause = FIRST_PAUSE;
        for round in 1..=MAX_ROUNDS {
            let mut again = Vec::new();
            let mut wait = false;
            for (at, outcome) in self.round(commands, pending, deadline).await {
                match &outcome {
                    Outcome::Final(_) => {}
                    Outcome::Redirected { ask, .. } => again.push(Pending { at, ask: ask.clone() }),
                    Outcome::Refused(_) => {
                        again.push(Pending { at, ask: None });
                        wait = true;
                    }
                }
                answers[at] = Some(outcome.answer());
            }
            let resume = if wait { Instant::now() + pause } else { Instant::now() };
            if again.is_empty() || round == MAX_ROUNDS || resume >= deadline {
                break;
            }
            if wait {
                pause *= 2;
                sleep_until(resume).await;
            }
            pending = again;
        }
        let answers: Vec<Answer> =
            answers.into_iter().map(|a| a.expect("every command had a round")).collect();
        self.count(&answers);
        answers
    }

    /// Runs `commands` on one node, without following redirects.
    pub async fn run_on(&self, node: &NodeAddr, commands: Vec<Cmd>) -> Vec<Answer> {
        let deadline = Instant::now() + self.timeout;
        let n = commands.len();
        let commands: Vec<_> = commands.into_iter().map(|command| Routed { slot: 0, command }).collect();
        let pending = (0..n).map(|at| Pending { at, ask: None }).collect();
        let outcomes = self.on_node(node.clone(), &commands, pending, deadline).await;
        let answers: Vec<Answer> = outcomes.into_iter().map(|(_, outcome)| outcome.answer()).collect();
        self.count(&answers);
        answers
    }

    /// Sends every pending command once.
    async fn round(
        &self,
        commands: &[Routed],
        pending: Vec<Pending>,
        deadline: Instant,
    ) -> Vec<(usize, Outcome)> {
        let table = self.topology.table();
        let mut outcomes = Vec::with_capacity(pending.len());
        let mut by_node: HashMap<NodeAddr, Vec<Pending>> = HashMap::new();
        for command in pending {
            let owner = command.ask.as_ref().or_else(|| table.owner(commands[command.at].slot));
            match owner.cloned() {
                Some(node) => by_node.entry(node).or_default().push(command),
                None => {
                    self.topology.request_refresh();
                    let text = "no node is known to own the slot".to_owned();
                    let failure = Failure { kind: Kind::Unowned, node: None, text };
                    outcomes.push((command.at, Outcome::Refused(failure)));
                }
            }
        }
        let nodes =
            by_node.into_iter().map(|(node, pending)| self.on_node(node, commands, pending, deadline));
        outcomes.extend(join_all(nodes).await.into_iter().flatten());
        outcomes
    }

    /// Decides what becomes of a command that `node` answered with an error.
    fn judge(&self, node: &NodeAddr, error: &RedisError) -> Outcome {
        let failure = Failure::new(Kind::of(error), node, error.to_string());
        if let Some((slot, target)) = redirect(error, node) {
            let moved = error.kind() == ServerErrorKind::Moved.into();
            if moved {
                self.metrics.commands.moved.increment(1);
                self.topology.moved(slot, &target);
            } else {
                self.metrics.commands.asked.increment(1);
            }
            return Outcome::Redirected { ask: (!moved).then_some(target), failure };
        }
        if failure.kind == Kind::ReadOnly {
            // A name may stand for another server by now, and every open connection for the old one.
            self.pools.forget(node);
        }
        match failure.kind.class() {
            Class::Retry => Outcome::Refused(failure),
            Class::RefreshTopology => {
                self.topology.request_refresh();
                Outcome::Refused(failure)
            }
            Class::Fatal => Outcome::Final(Err(failure)),
        }
    }

    /// Sends commands to one node, with one quiet retry where a used connection turned out broken.
    async fn on_node(
        &self,
        node: NodeAddr,
        commands: &[Routed],
        pending: Vec<Pending>,
        deadline: Instant,
    ) -> Vec<(usize, Outcome)> {
        let mut outcomes: Vec<(usize, Outcome)> = Vec::with_capacity(pending.len());
        let work = async {
            let mut lease = self.lease(&node).await?;
            for chunk in pending.chunks(MAX_PIPELINE) {
                let pipeline = pipeline(commands, chunk);
                self.metrics.commands.pipelines.increment(1);
                let mut sent = send(&pipeline, &mut lease).await;
                if lease.is_used() && sent.as_ref().is_err_and(RedisError::is_connection_dropped) {
                    self.metrics.commands.quiet_retries.increment(1);
                    self.pools.drop_idle(&node);
                    lease = self.lease(&node).await?;
                    sent = send(&pipeline, &mut lease).await;
                }
                let sent = sent.map_err(|e| Failure::new(Kind::of(&e), &node, e.to_string()))?;
                outcomes.extend(chunk.iter().zip(sent).map(|(command, answer)| {
                    let outcome = answer.map_or_else(|e| self.judge(&node, &e), |v| Outcome::Final(Ok(v)));
                    (command.at, outcome)
                }));
            }
            lease.give_back();
            Ok(())
        };
        let ended = timeout_at(deadline, work).await;
        let late = || Failure::new(Kind::Timeout, &node, "no answer in time");
        if let Err(failure) = ended.unwrap_or_else(|_| Err(late())) {
            if failure.kind.class() == Class::RefreshTopology {
                self.topology.request_refresh();
            }
            // Not sent again: a node that can't be reached takes longer to come back than a command may.
            let n_answered = outcomes.len();
            let rest = pending[n_answered..].iter();
            outcomes.extend(rest.map(|command| (command.at, Outcome::Final(Err(failure.clone())))));
        }
        outcomes
    }

    async fn lease(&self, node: &NodeAddr) -> Result<Lease, Failure> {
        self.pools.lease(node, || self.topology.all_primaries()).await
    }

    fn count(&self, answers: &[Answer]) {
        for failure in answers.iter().filter_map(|answer| answer.as_ref().err()) {
            self.metrics.commands.failure(failure.kind).increment(1);
        }
    }
}

async fn send(pipeline: &Pipeline, lease: &mut Lease) -> RedisResult<Vec<RedisResult<Value>>> {
    pipeline.query_async(lease.connection()).await
}

fn pipeline(commands: &[Routed], chunk: &[Pending]) -> Pipeline {
    let mut pipeline = Pipeline::with_capacity(chunk.len());
    pipeline.ignore_errors();
    for command in chunk {
        if command.ask.is_some() {
            pipeline.cmd("ASKING").ignore();
        }
        pipeline.add_command(commands[command.at].command.clone());
    }
    pipeline
}
