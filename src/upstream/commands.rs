//! Sends commands to the nodes that own their slots, one pipeline per node, and judges each answer by
//! itself.
//!
//! Invariants:
//! - Nothing takes longer than the command timeout, whatever the nodes do.
//! - Nodes are independent: a dead one costs its own commands and nobody else's.
//! - An answer reaches the command that it belongs to, or nobody: see `pools`.
//! - Redirects are followed per command, never for a whole pipeline.
//!
//! Commands may be sent twice when a connection breaks under them, so they must be ones that may; those that may
//! not go through `run_once`.
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

/// Whether commands are sent again where it isn't known what became of them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeat {
    /// Once more, over a new connection.
    Quietly,
    /// Never.
    Never,
}

/// A command on its way.
struct Pending {
    /// Its place among the commands of the call.
    at: usize,
    routed: Routed,
    /// Where ASK pointed.
    ask: Option<NodeAddr>,
}

/// A command that was handed to a pipeline, where it stays: only those that are sent again are copied.
struct Sent {
    at: usize,
    slot: u16,
}

/// What one node did with one command.
enum Outcome {
    Final(Answer),
    /// To be sent again at once, to the slot's owner or to where ASK pointed.
    Redirected(Pending, Failure),
    /// To be sent again after a pause.
    Refused(Pending, Failure),
}

/// What an error answer calls for.
enum Judgement {
    Final,
    Redirected { ask: Option<NodeAddr> },
    Refused,
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
    pub async fn run(&self, commands: Vec<Routed>) -> Vec<Answer> {
        self.run_rounds(commands, Repeat::Quietly).await
    }

    /// As [`Commands::run`], but sends a command again only if it was certainly not executed. An idle connection is
    /// asked first whether it is still there.
    pub async fn run_once(&self, commands: Vec<Routed>) -> Vec<Answer> {
        self.run_rounds(commands, Repeat::Never).await
    }

    async fn run_rounds(&self, commands: Vec<Routed>, repeat: Repeat) -> Vec<Answer> {
        let deadline = Instant::now() + self.timeout;
        let mut answers: Vec<Option<Answer>> = commands.iter().map(|_| None).collect();
        let pending = |(at, routed)| Pending { at, routed, ask: None };
        let mut pending: Vec<_> = commands.into_iter().enumerate().map(pending).collect();
        let mut pause = FIRST_PAUSE;
        for round in 1..=MAX_ROUNDS {
            let mut again = Vec::new();
            let mut wait = false;
            for (at, outcome) in self.round(pending, deadline, repeat).await {
                answers[at] = Some(match outcome {
                    Outcome::Final(answer) => answer,
                    Outcome::Redirected(pending, failure) => {
                        again.push(pending);
                        Err(failure)
                    }
                    Outcome::Refused(pending, failure) => {
                        again.push(pending);
                        wait = true;
                        Err(failure)
                    }
                });
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
        let pending = |(at, command)| Pending { at, routed: Routed { slot: 0, command }, ask: None };
        let pending = commands.into_iter().enumerate().map(pending).collect();
        let outcomes = self.on_node(node.clone(), pending, deadline, Repeat::Quietly).await;
        let answer = |outcome| match outcome {
            Outcome::Final(answer) => answer,
            Outcome::Redirected(_, failure) | Outcome::Refused(_, failure) => Err(failure),
        };
        let answers: Vec<Answer> = outcomes.into_iter().map(|(_, outcome)| answer(outcome)).collect();
        self.count(&answers);
        answers
    }

    /// Sends every pending command once.
    async fn round(&self, pending: Vec<Pending>, deadline: Instant, repeat: Repeat) -> Vec<(usize, Outcome)> {
        let table = self.topology.table();
        let mut outcomes = Vec::with_capacity(pending.len());
        let mut by_node: HashMap<NodeAddr, Vec<Pending>> = HashMap::new();
        for command in pending {
            let owner = command.ask.as_ref().or_else(|| table.owner(command.routed.slot));
            // There are a few nodes and many commands.
            match owner.and_then(|node| by_node.get_mut(node)) {
                Some(same) => same.push(command),
                None => match owner.cloned() {
                    Some(node) => {
                        by_node.insert(node, vec![command]);
                    }
                    None => {
                        self.topology.request_refresh();
                        let text = "no node is known to own the slot".to_owned();
                        let failure = Failure { kind: Kind::Unowned, node: None, text };
                        outcomes.push((command.at, Outcome::Refused(command, failure)));
                    }
                },
            }
        }
        let nodes = by_node.into_iter().map(|(node, pending)| self.on_node(node, pending, deadline, repeat));
        outcomes.extend(join_all(nodes).await.into_iter().flatten());
        outcomes
    }

    /// Decides what becomes of a command that `node` answered with an error.
    fn judge(&self, node: &NodeAddr, error: &RedisError, failure: &Failure) -> Judgement {
        if let Some((slot, target)) = redirect(error, node) {
            let moved = error.kind() == ServerErrorKind::Moved.into();
            if moved {
                self.metrics.commands.moved.increment(1);
                self.topology.moved(slot, &target);
            } else {
                self.metrics.commands.asked.increment(1);
            }
            return Judgement::Redirected { ask: (!moved).then_some(target) };
        }
        if failure.kind == Kind::ReadOnly {
            // A name may stand for another server by now, and every open connection for the old one.
            self.pools.forget(node);
        }
        match failure.kind.class() {
            Class::Retry => Judgement::Refused,
            Class::RefreshTopology => {
                self.topology.request_refresh();
                Judgement::Refused
            }
            Class::Fatal => Judgement::Final,
        }
    }

    /// What becomes of a command, by its answer. `command` is what was sent.
    fn outcome(&self, node: &NodeAddr, sent: &Sent, command: &Cmd, answer: RedisResult<Value>) -> Outcome {
        let error = match answer {
            Ok(value) => return Outcome::Final(Ok(value)),
            Err(error) => error,
        };
        let failure = Failure::new(Kind::of(&error), node, error.to_string());
        if failure.kind == Kind::Other && failure.text.contains("no such key") {
            // `XINFO` says with an error what other commands say with nothing.
            return Outcome::Final(Ok(Value::Nil));
        }
        let again = |ask| {
            let routed = Routed { slot: sent.slot, command: command.clone() };
            Pending { at: sent.at, routed, ask }
        };
        match self.judge(node, &error, &failure) {
            Judgement::Final => Outcome::Final(Err(failure)),
            Judgement::Redirected { ask } => Outcome::Redirected(again(ask), failure),
            Judgement::Refused => Outcome::Refused(again(None), failure),
        }
    }

    /// Sends commands to one node, with one quiet retry where a used connection turned out broken.
    async fn on_node(
        &self,
        node: NodeAddr,
        pending: Vec<Pending>,
        deadline: Instant,
        repeat: Repeat,
    ) -> Vec<(usize, Outcome)> {
        let places: Vec<usize> = pending.iter().map(|command| command.at).collect();
        let mut outcomes: Vec<(usize, Outcome)> = Vec::with_capacity(places.len());
        let work =
            async {
                let mut lease = self.lease(&node).await?;
                if repeat == Repeat::Never && lease.is_used() {
                    let asked: RedisResult<Value> = redis::cmd("PING").query_async(lease.connection()).await;
                    if asked.is_err() {
                        self.pools.drop_idle(&node);
                        lease = self.lease(&node).await?;
                    }
                }
                let mut pending = pending.into_iter();
                while pending.len() > 0 {
                    let (pipeline, sent) = pipeline(pending.by_ref().take(MAX_PIPELINE));
                    self.metrics.commands.pipelines.increment(1);
                    let mut answers = send(&pipeline, &mut lease).await;
                    let quietly = repeat == Repeat::Quietly && lease.is_used();
                    if quietly && answers.as_ref().is_err_and(RedisError::is_connection_dropped) {
                        self.metrics.commands.quiet_retries.increment(1);
                        self.pools.drop_idle(&node);
                        lease = self.lease(&node).await?;
                        answers = send(&pipeline, &mut lease).await;
                    }
                    let answers = answers.map_err(|e| Failure::new(Kind::of(&e), &node, e.to_string()))?;
                    let commands = pipeline.cmd_iter().filter(|command| !is_asking(command));
                    outcomes.extend(sent.iter().zip(commands).zip(answers).map(
                        |((sent, command), answer)| (sent.at, self.outcome(&node, sent, command, answer)),
                    ));
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
            let rest = places[n_answered..].iter();
            outcomes.extend(rest.map(|&at| (at, Outcome::Final(Err(failure.clone())))));
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

const ASKING: &str = "ASKING";

fn is_asking(command: &Cmd) -> bool {
    matches!(command.args_iter().next(), Some(redis::Arg::Simple(name)) if name == ASKING.as_bytes())
}

fn pipeline(commands: impl ExactSizeIterator<Item = Pending>) -> (Pipeline, Vec<Sent>) {
    let mut pipeline = Pipeline::with_capacity(commands.len());
    pipeline.ignore_errors();
    let sent = commands.map(|Pending { at, routed, ask }| {
        if ask.is_some() {
            pipeline.cmd(ASKING).ignore();
        }
        pipeline.add_command(routed.command);
        Sent { at, slot: routed.slot }
    });
    let sent = sent.collect();
    (pipeline, sent)
}
