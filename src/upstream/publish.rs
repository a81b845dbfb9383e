//! Our own publisher: stores a quote's keys, then announces it.
//!
//! Invariants:
//! - A quote is announced only after its keys are known to be stored, so that a catch-up is never older
//!   than what was announced. With a channel per instrument a function does both in one step.
//! - Quotes of one instrument are stored and announced in their order, as long as batches are handed in
//!   one after the other and each batch goes through its steps in order.
//! - A node that fails costs its own quotes only.
//!
//! Everything that goes well takes the links, which cost little; what fails there is left to the caller
//! or to [`Publisher::repair`], which follows redirects quote by quote.
//!
//! Not here: pacing and making quotes (`cli::feed`), HTTP.

pub mod batch;
mod dial;
mod encode;
mod link;
mod links;
mod resp;
pub mod statement;
pub mod text;

use super::commands::failure::{Class, Failure, Kind};
use super::commands::{Answer, Commands, Routed};
use super::connection::Connector;
use super::payload;
use super::slots::NodeAddr;
use crate::clock::Now;
use crate::config;
use crate::instrument::InstrumentId;
use crate::publish::{Published, QuotePublisher};
use batch::{Batch, Entry, Outcome};
use encode::{Encoder, Tag, Words};
use futures_util::future::join_all;
use link::{Answers, Refusal};
use links::Links;
use redis::{Cmd, Value};
use std::collections::{HashMap, HashSet};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::oneshot;

/// Buffers are made somewhat larger than the last ones, so that a few more digits don't make one grow.
const PART_ROUNDING: usize = 16 * 1024;

/// Publishes batches of quotes.
pub struct Publisher {
    commands: Arc<Commands>,
    encoder: Encoder,
    links: Links,
    max_payload_bytes: usize,
    /// What the part of a node took the last time.
    part_bytes: AtomicUsize,
    announces: bool,
}

/// A batch between its steps.
pub struct InFlight {
    batch: Batch,
    sent: Vec<Sent>,
    outcome: Outcome,
}

/// A part of a batch that went to one node.
struct Sent {
    node: NodeAddr,
    /// Places in the batch.
    items: Vec<usize>,
    answers_per_item: u32,
    answers: Result<oneshot::Receiver<Answers>, Failure>,
}

/// A part of a batch that is to go to one node.
struct Part {
    node: NodeAddr,
    items: Vec<usize>,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Store,
    Announce,
}

impl Publisher {
    /// Publishes as `config` says. What fails on a link goes through `commands`, whose topology is used
    /// for both.
    pub fn new(
        commands: Arc<Commands>,
        connector: Arc<Connector>,
        config: &config::Redis,
        max_payload_bytes: usize,
    ) -> Self {
        let (encoder, links) = (Encoder::new(config), Links::new(connector, config));
        let part_bytes = AtomicUsize::new(0);
        Self { commands, encoder, links, max_payload_bytes, part_bytes, announces: true }
    }

    /// Stores keys and announces nothing, unless both are one step.
    pub const fn silent(mut self) -> Self {
        self.announces = false;
        self
    }

    /// Whether what is stored is still to be announced.
    const fn has_second_step(&self) -> bool {
        self.announces && !self.encoder.is_atomic()
    }

    /// First step: hands the keys of `batch` to the nodes' links. Waits for room in them only.
    pub async fn store(&self, batch: Batch) -> InFlight {
        let mut flight = InFlight { batch, sent: Vec::new(), outcome: Outcome::default() };
        let all = 0..flight.batch.len();
        self.send(Step::Store, all, &mut flight).await;
        flight
    }

    /// Second step: waits until the keys are stored and hands over the announcements of those that are.
    pub async fn announce(&self, mut flight: InFlight) -> InFlight {
        self.settle(&mut flight).await;
        if self.has_second_step() {
            let failed: HashSet<usize> = flight.outcome.failed.iter().map(|(at, _)| *at).collect();
            let stored = (0..flight.batch.len()).filter(|at| !failed.contains(at));
            self.send(Step::Announce, stored, &mut flight).await;
        }
        flight
    }

    /// Last step: waits until all is announced.
    pub async fn finish(&self, mut flight: InFlight) -> (Batch, Outcome) {
        self.settle(&mut flight).await;
        (flight.batch, flight.outcome)
    }

    /// All steps, with a second try for what fails in a way that may pass.
    pub async fn publish_batch(&self, batch: Batch) -> (Batch, Outcome) {
        let flight = self.announce(self.store(batch).await).await;
        let (batch, mut outcome) = self.finish(flight).await;
        let failed: HashSet<usize> = outcome.failed.iter().map(|(at, _)| *at).collect();
        let newest: HashMap<InstrumentId, usize> =
            (0..batch.len()).map(|at| (batch.entry(at).id, at)).collect();
        let mut again = Vec::new();
        outcome.failed.retain(|(at, failure)| {
            // What a later quote of the batch has overtaken must not be written over it.
            let newest = newest[&batch.entry(*at).id];
            let repairable =
                failure.kind.class() != Class::Fatal && (newest == *at || failed.contains(&newest));
            if repairable {
                again.push(*at);
            }
            !repairable
        });
        again.sort_unstable();
        let repaired = self.repair(&batch, &again).await;
        outcome.failed.extend(repaired.failed);
        outcome.older.extend(repaired.older);
        (batch, outcome)
    }

    /// Stores and announces the given quotes of a batch once more, following redirects. To be used only
    /// when nothing newer of their instruments is on its way.
    pub async fn repair(&self, batch: &Batch, items: &[usize]) -> Outcome {
        let mut outcome = Outcome::default();
        let mut stored = items.to_vec();
        for step in [Step::Store, Step::Announce] {
            if stored.is_empty() || step == Step::Announce && !self.has_second_step() {
                break;
            }
            let commands: Vec<_> = stored.iter().flat_map(|&at| self.routed(step, batch, at)).collect();
            let per_item = commands.len() / stored.len();
            let mut answers = self.commands.run(commands).await.into_iter();
            stored.retain(|&at| {
                let answers: Vec<_> = answers.by_ref().take(per_item).collect();
                match self.judge(answers) {
                    Ok(true) => return true,
                    Ok(false) => outcome.older.push(at),
                    Err(failure) => outcome.failed.push((at, failure)),
                }
                false
            });
        }
        outcome
    }

    /// Whether a quote was taken, by all the answers to one of its steps.
    fn judge(&self, answers: Vec<Answer>) -> Result<bool, Failure> {
        let mut taken = true;
        for answer in answers {
            taken &= answer? != Value::Int(encode::REFUSED) || !self.encoder.is_atomic();
        }
        Ok(taken)
    }

    fn routed(&self, step: Step, batch: &Batch, at: usize) -> Vec<Routed> {
        let entry = batch.entry(at);
        let tag = Tag::of(entry.id);
        let mut commands: Vec<Cmd> = Vec::new();
        self.encode(step, &tag, entry, &mut commands);
        let slot = self.slot(step, &tag, entry);
        commands.into_iter().map(|command| Routed { slot, command }).collect()
    }

    fn encode(&self, step: Step, tag: &Tag, entry: Entry<'_>, out: &mut impl Words) {
        match step {
            Step::Store => self.encoder.store(tag, entry, out),
            Step::Announce => self.encoder.announce(entry, out),
        }
    }

    fn slot(&self, step: Step, tag: &Tag, entry: Entry<'_>) -> u16 {
        match step {
            Step::Store => tag.slot(),
            Step::Announce => self.encoder.channel_slot(entry.id),
        }
    }

    /// Hands the commands of one step to the links of their nodes.
    async fn send(&self, step: Step, items: impl Iterator<Item = usize>, flight: &mut InFlight) {
        let table = self.commands.topology().table();
        let mut parts: Vec<Part> = Vec::new();
        let mut tag = Tag::default();
        for at in items {
            let entry = flight.batch.entry(at);
            tag.set(entry.id);
            let Some(owner) = table.owner(self.slot(step, &tag, entry)) else {
                self.commands.topology().request_refresh();
                let text = "no node is known to own the slot".to_owned();
                flight.outcome.failed.push((at, Failure { kind: Kind::Unowned, node: None, text }));
                continue;
            };
            // There are a few nodes; comparing is cheaper than hashing.
            let part = match parts.iter_mut().position(|part| part.node == *owner) {
                Some(known) => &mut parts[known],
                None => {
                    // Growing step by step would copy what is there each time.
                    let bytes = Vec::with_capacity(self.part_bytes.load(Ordering::Relaxed));
                    parts.push(Part { node: owner.clone(), items: Vec::new(), bytes });
                    parts.last_mut().expect("just pushed")
                }
            };
            part.items.push(at);
            self.encode(step, &tag, entry, &mut part.bytes);
        }
        let largest = parts.iter().map(|part| part.bytes.len()).max().unwrap_or_default();
        self.part_bytes.store(largest.next_multiple_of(PART_ROUNDING), Ordering::Relaxed);
        let answers_per_item = if step == Step::Store { self.encoder.n_store_answers() } else { 1 };
        let numbers = step == Step::Store && self.encoder.is_atomic();
        flight.sent = join_all(parts.into_iter().map(async |part| {
            let n_answers = part.items.len() as u32 * answers_per_item;
            let answers = self.hand_over(&part.node, part.bytes, n_answers, numbers).await;
            Sent { node: part.node, items: part.items, answers_per_item, answers }
        }))
        .await;
    }

    async fn hand_over(
        &self,
        node: &NodeAddr,
        bytes: Vec<u8>,
        n_answers: u32,
        numbers: bool,
    ) -> Result<oneshot::Receiver<Answers>, Failure> {
        let link = self.links.get(node).await?;
        let sent = link.send(bytes, n_answers, numbers).await;
        sent.ok_or_else(|| Failure::new(Kind::Unreachable, node, "the connection ended"))
    }

    /// Waits for the answers to what was sent, and notes what failed.
    async fn settle(&self, flight: &mut InFlight) {
        for sent in std::mem::take(&mut flight.sent) {
            let answers = match sent.answers {
                Ok(answers) => answers.await.map_err(|_| {
                    Failure::new(Kind::Unreachable, &sent.node, "the connection ended before the answer")
                }),
                Err(failure) => Err(failure),
            };
            let outcome = &mut flight.outcome;
            match answers {
                Ok(answers) => {
                    let item = |at: u32| sent.items[(at / sent.answers_per_item) as usize];
                    for refusal in answers.errors {
                        let at = item(refusal.at);
                        // A quote whose two keys are refused failed once.
                        if outcome.failed.last().is_none_or(|(last, _)| *last != at) {
                            outcome.failed.push((at, self.refused(&sent.node, refusal)));
                        }
                    }
                    let numbers = answers.numbers.into_iter().flatten().zip(&sent.items);
                    outcome.older.extend(numbers.filter(|(n, _)| *n == encode::REFUSED).map(|(_, at)| *at));
                }
                Err(failure) => {
                    self.commands.topology().request_refresh();
                    outcome.failed.extend(sent.items.into_iter().map(|at| (at, failure.clone())));
                }
            }
        }
    }

    /// What an error answer on a link means; what it teaches about the topology is kept.
    fn refused(&self, node: &NodeAddr, refusal: Refusal) -> Failure {
        let topology = self.commands.topology();
        match refusal.kind {
            Kind::Redirected => {
                if let Some((slot, owner)) = moved(&refusal.text, node) {
                    topology.moved(slot, &owner);
                }
            }
            kind if kind.class() == Class::RefreshTopology => {
                // A name may stand for another server by now.
                self.links.forget(node);
                topology.request_refresh();
            }
            _ => {}
        }
        Failure::new(refusal.kind, node, refusal.text)
    }
}

/// Reads `MOVED <slot> <host:port>`.
fn moved(text: &str, from: &NodeAddr) -> Option<(u16, NodeAddr)> {
    let mut words = text.strip_prefix("MOVED ")?.split(' ');
    let slot = words.next()?.parse().ok()?;
    Some((slot, NodeAddr::parse_told_by(words.next()?, from)?))
}

impl QuotePublisher for Publisher {
    fn publish(&self, payloads: Vec<Vec<u8>>) -> Pin<Box<dyn Future<Output = Vec<Published>> + Send + '_>> {
        Box::pin(async move {
            let now = Now::read();
            let mut published = vec![Published::Done; payloads.len()];
            let mut batch = Batch::default();
            let mut places = Vec::new();
            for (at, mut text) in payloads.into_iter().enumerate() {
                match payload::live(text.clone(), self.max_payload_bytes, now.unix_us) {
                    Ok(quote) => {
                        text::complete(&mut text, &quote, now.unix_ms());
                        batch.push(quote.id, now.unix_ms(), quote.version, |out| out.append(&mut text));
                        places.push(at);
                    }
                    Err(reason) => published[at] = Published::Unusable(reason.label()),
                }
            }
            let (_, outcome) = self.publish_batch(batch).await;
            for at in outcome.older {
                published[places[at]] = Published::Older;
            }
            for (at, failure) in outcome.failed {
                published[places[at]] = Published::Failed { retry: failure.kind.class() != Class::Fatal };
            }
            published
        })
    }
}
