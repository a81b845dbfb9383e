//! The three designs of the study: a bounded queue and a task per subscriber, filled in three ways.

use crate::{BUFFER, EVENTS, Tally, ns_since};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinHandle;

/// Bytes of an event, about as many as the gateway's.
const SIZE: usize = 340;
/// One per core.
const WORKERS: usize = 2;

struct Event {
    at: Instant,
    left: AtomicUsize,
    settled: Arc<Notify>,
    _body: [u8; SIZE],
}

impl Event {
    fn new(n: usize, settled: &Arc<Notify>) -> Arc<Self> {
        let (left, settled) = (AtomicUsize::new(n), Arc::clone(settled));
        Arc::new(Self { at: Instant::now(), left, settled, _body: [0; SIZE] })
    }

    fn settle(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.settled.notify_one();
        }
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .build()
        .expect("threads can be started")
}

/// The queues, and what each of their readers will have seen.
type Subscribers = (Vec<Sender<Arc<Event>>>, Vec<JoinHandle<Vec<u64>>>);

fn subscribers(n: usize) -> Subscribers {
    (0..n)
        .map(|_| {
            let (sender, receiver) = channel(BUFFER);
            (sender, tokio::spawn(receive(receiver)))
        })
        .unzip()
}

async fn receive(mut events: Receiver<Arc<Event>>) -> Vec<u64> {
    let mut latencies = Vec::with_capacity(EVENTS);
    while let Some(event) = events.recv().await {
        latencies.push(ns_since(event.at));
        event.settle();
    }
    latencies
}

async fn gather(tasks: Vec<JoinHandle<Vec<u64>>>, began: Instant, dropped: u64) -> Tally {
    let mut latencies_ns = Vec::new();
    let mut all = Vec::new();
    for task in tasks {
        all.push(task.await.expect("a subscriber doesn't panic"));
    }
    let seconds = began.elapsed().as_secs_f64();
    all.iter().for_each(|one| latencies_ns.extend_from_slice(one));
    Tally { latencies_ns, dropped, conflated: 0, seconds }
}

/// The publisher offers to one subscriber after the other; a full buffer loses the event.
pub fn serial(n: usize, paced: bool) -> Tally {
    runtime().block_on(async move {
        tokio::spawn(async move {
            let (senders, tasks) = subscribers(n);
            let settled = Arc::new(Notify::new());
            let mut dropped = 0;
            let began = Instant::now();
            for _ in 0..EVENTS {
                let event = Event::new(n, &settled);
                for sender in &senders {
                    if sender.try_send(Arc::clone(&event)).is_err() {
                        dropped += 1;
                        event.settle();
                    }
                }
                if paced {
                    settled.notified().await;
                }
            }
            drop(senders);
            gather(tasks, began, dropped).await
        })
        .await
        .expect("the publisher doesn't panic")
    })
}

/// Each delivery is a task of its own that waits for room.
pub fn task_per_delivery(n: usize, paced: bool) -> Tally {
    runtime().block_on(async move {
        tokio::spawn(async move {
            let (senders, tasks) = subscribers(n);
            let settled = Arc::new(Notify::new());
            let began = Instant::now();
            for _ in 0..EVENTS {
                let event = Event::new(n, &settled);
                for sender in &senders {
                    let (sender, event) = (sender.clone(), Arc::clone(&event));
                    tokio::spawn(async move { sender.send(event).await });
                }
                if paced {
                    settled.notified().await;
                }
            }
            drop(senders);
            gather(tasks, began, 0).await
        })
        .await
        .expect("the publisher doesn't panic")
    })
}

/// A worker per core takes events from a bounded queue and waits for room at its subscribers.
pub fn worker_pool(n: usize, paced: bool) -> Tally {
    runtime().block_on(async move {
        tokio::spawn(async move {
            let (senders, tasks) = subscribers(n);
            let settled = Arc::new(Notify::new());
            let workers: Vec<Sender<Arc<Event>>> = senders
                .chunks(n.div_ceil(WORKERS))
                .map(|mine| {
                    let mine = mine.to_vec();
                    let (jobs, mut queue) = channel::<Arc<Event>>(BUFFER);
                    tokio::spawn(async move {
                        while let Some(event) = queue.recv().await {
                            for sender in &mine {
                                let _ = sender.send(Arc::clone(&event)).await;
                            }
                        }
                    });
                    jobs
                })
                .collect();
            drop(senders);
            let began = Instant::now();
            for _ in 0..EVENTS {
                let event = Event::new(n, &settled);
                for worker in &workers {
                    let _ = worker.send(Arc::clone(&event)).await;
                }
                if paced {
                    settled.notified().await;
                }
            }
            drop(workers);
            gather(tasks, began, 0).await
        })
        .await
        .expect("the publisher doesn't panic")
    })
}
