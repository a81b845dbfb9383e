//! Many clients that come back as a good client does: with jitter, or when they are told to.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::Rng;
use serde_json::Value;
use tokio::task::{JoinError, JoinHandle};

use crate::support::token::token;
use crate::support::ws::{Heard, Ws};

/// Longest first pause after a lost session.
const JITTER: Duration = Duration::from_secs(1);

/// What a client shows, by topic.
type Board = Arc<Mutex<HashMap<String, String>>>;

/// The clients; they leave with their owner.
pub struct Crowd {
    boards: Vec<Board>,
    refused: Arc<AtomicUsize>,
    slow: Arc<AtomicUsize>,
    lost: Arc<AtomicUsize>,
    tasks: Vec<JoinHandle<()>>,
}

impl Crowd {
    /// `n` clients that watch `topics` at `edge`.
    pub fn gather(n: usize, edge: SocketAddr, topics: &[String]) -> Self {
        let [refused, slow, lost]: [Arc<AtomicUsize>; 3] = Default::default();
        let mut crowd = Self { boards: Vec::new(), refused, slow, lost, tasks: Vec::new() };
        for i in 0..n {
            let board = Board::default();
            crowd.boards.push(Arc::clone(&board));
            let topics = topics.to_vec();
            let (refused, slow) = (Arc::clone(&crowd.refused), Arc::clone(&crowd.slow));
            let lost = Arc::clone(&crowd.lost);
            crowd.tasks.push(tokio::spawn(async move {
                loop {
                    // A handshake that breaks ends in a panic, which is this client's failed attempt and no more.
                    match tokio::spawn(Ws::connect(edge, "/api/market/ws", &[])).await {
                        Ok(Ok(ws)) => {
                            follow(ws, i, &topics, &board).await;
                            lost.fetch_add(1, Ordering::Relaxed);
                        }
                        Ok(Err(_)) => {
                            refused.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(panic) => {
                            let failed = if says(panic, "not within") { &slow } else { &refused };
                            failed.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    let pause = rand::rng().random_range(Duration::ZERO..JITTER);
                    tokio::time::sleep(pause).await;
                }
            }));
        }
        crowd
    }

    /// Handshakes that were refused or broke.
    pub fn refused(&self) -> usize {
        self.refused.load(Ordering::Relaxed)
    }

    /// Handshakes without an answer in five seconds, which a machine that is busy with other work explains.
    pub fn slow(&self) -> usize {
        self.slow.load(Ordering::Relaxed)
    }

    /// Sessions that were lost.
    pub fn lost(&self) -> usize {
        self.lost.load(Ordering::Relaxed)
    }

    /// How many show `price` for each of `topics`.
    pub fn n_showing(&self, topics: &[String], price: &str) -> usize {
        let shows = |board: &&Board| {
            let board = board.lock().unwrap();
            topics.iter().all(|topic| board.get(topic).is_some_and(|shown| shown == price))
        };
        self.boards.iter().filter(shows).count()
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

fn says(panic: JoinError, word: &str) -> bool {
    panic
        .try_into_panic()
        .is_ok_and(|said| said.downcast_ref::<String>().is_some_and(|said| said.contains(word)))
}

async fn follow(mut ws: Ws, i: usize, topics: &[String], board: &Board) {
    ws.send(serde_json::json!({ "type": "auth", "token": token(&format!("u{i}")) }).to_string());
    ws.send(serde_json::json!({ "type": "subscribe", "request_id": "r", "topics": topics }).to_string());
    loop {
        for heard in ws.all_within(Duration::from_millis(50)).await {
            match heard {
                Heard::Text(text) if text.contains(r#""type":"event""#) => {
                    let event: Value = serde_json::from_str(&text).unwrap();
                    let topic = event["topic"].as_str().unwrap().to_owned();
                    board.lock().unwrap().insert(topic, event["data"]["price"].to_string());
                }
                Heard::Text(_) => {}
                Heard::Close(..) | Heard::Gone => return,
            }
        }
    }
}
