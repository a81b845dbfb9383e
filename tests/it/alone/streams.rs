//! Answers that are written while a primary is killed. Counts are exact; times are printed, and bounded only so loosely
//! that a busy machine keeps them.

use crate::streams::builder;
use crate::streams::client::{BOTH, Client, Transport};
use crate::streams::producer::{key, texts};
use crate::support::cluster::RedisCluster;
use crate::support::redis::connect;
use crate::support::wait::in_time;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const TOKENS: usize = 50;
const PACE: Duration = Duration::from_millis(30);

/// Longest that a whole run may take on a machine that does something else besides.
const PATIENCE: Duration = Duration::from_secs(90);

/// What one client saw.
#[derive(Default)]
struct Seen {
    texts: Vec<String>,
    ids: Vec<String>,
    handshake: Duration,
    lost: Vec<serde_json::Value>,
}

fn id(n: usize) -> String {
    format!("load-{n}")
}

/// Reads stream `n` to its end.
async fn read(gateway: SocketAddr, n: usize, transport: Transport) -> Seen {
    let mut client = Client::resume(gateway, transport, &id(n), None).await;
    let mut seen = Seen { handshake: client.handshake, ..Seen::default() };
    loop {
        let item = client.next().await;
        if item.is("entry") {
            let entry = item.json();
            seen.texts.push(entry["data"].as_str().unwrap().to_owned());
            seen.ids.push(entry["id"].as_str().unwrap().to_owned());
        } else if item.is("end") {
            return seen;
        } else if item.is("lost") {
            seen.lost.push(item.json());
        } else {
            assert!(item.is("status"), "{item:?}");
        }
    }
}

/// Writes one stream into a cluster as a careful producer does: a token is written again until it is acknowledged, so
/// that it may be there twice, but none is missing. Gives the ids that were acknowledged.
async fn write_through_a_failover(ports: Vec<u16>, n: usize) -> Vec<String> {
    let mut acknowledged = Vec::new();
    let mut turns = tokio::time::interval(PACE * 2);
    let mut connection = None;
    let (mut token, mut at) = (0, 0);
    while token <= TOKENS {
        turns.tick().await;
        if connection.is_none() {
            at += 1;
            connection = connect(ports[at % ports.len()]).await.ok();
        }
        let Some(open) = &mut connection else { continue };
        let mut add = redis::cmd("XADD");
        add.arg(key(&id(n))).arg("*");
        match token {
            TOKENS => add.arg("end").arg("done"),
            token => add.arg("data").arg(token),
        };
        match add.query_async::<String>(open).await {
            Ok(id) => {
                acknowledged.push(id);
                token += 1;
            }
            // Another node owns the slot, or this one is down.
            Err(_) => connection = None,
        }
    }
    acknowledged
}

/// What Redis has of a stream at the end is what its client got, once and in order; whatever else the client got was
/// told to be lost. (What Redis lost before anybody had read it leaves no trace; only a producer can notice.)
async fn assert_explained(cluster: &RedisCluster, n: usize, seen: &Seen) -> usize {
    let slot: u16 = cluster.cmd(cluster.primary(1).await, &["CLUSTER", "KEYSLOT", &key(&id(n))]).await;
    let owner = cluster.owner(slot).await;
    let kept: Vec<(String, Vec<String>)> = cluster.cmd(owner, &["XRANGE", &key(&id(n)), "-", "+"]).await;
    let mut kept: Vec<String> = kept.into_iter().map(|(id, _)| id).collect();
    kept.pop().expect("the end is there");
    let got: Vec<&String> = seen.ids.iter().filter(|id| kept.contains(id)).collect();
    assert_eq!(got, kept.iter().collect::<Vec<_>>(), "stream {n}");
    let n_lost = seen.ids.len() - kept.len();
    assert!(n_lost == 0 || !seen.lost.is_empty(), "stream {n}: {n_lost} were lost and not told");
    n_lost
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_primary_costs_nothing_that_is_not_told() {
    const N: usize = 120;
    let mut cluster = RedisCluster::start(3, 3).await;
    let gateway = builder().cluster(&cluster).start().await;
    let (to, mut reading) = (gateway.public, JoinSet::new());
    for n in 0..N {
        reading.spawn(async move { (n, read(to, n, BOTH[n % 2]).await) });
    }
    gateway.metric_is("stream_sessions", &[], PATIENCE, N as f64).await;
    let writing: Vec<_> =
        (0..N).map(|n| tokio::spawn(write_through_a_failover(cluster.ports(), n))).collect();
    let delivered = "stream_entries_delivered_total";
    let half = (N * TOKENS / 3) as f64;
    gateway.metric_fits("a third is delivered", delivered, &[], PATIENCE, |n| n >= half).await;
    let killed = Instant::now();
    let former = cluster.kill_primary(0).await;
    cluster.succeeded(0, former).await;
    println!("a replica took over after {:.1?}", killed.elapsed());
    for producer in writing {
        in_time("all is written", PATIENCE, producer).await.unwrap();
    }
    let (mut n_exact, mut n_told, mut n_lost, mut n_doubled) = (0, 0, 0, 0);
    let mut slowest = Duration::ZERO;
    in_time("all is read", PATIENCE, async {
        while let Some(read) = reading.join_next().await {
            let (n, seen) = read.unwrap();
            n_lost += assert_explained(&cluster, n, &seen).await;
            n_told += seen.lost.len();
            slowest = slowest.max(seen.handshake);
            n_doubled += seen.texts.len().saturating_sub(TOKENS);
            n_exact += usize::from(seen.texts == texts(0..TOKENS));
        }
    })
    .await;
    println!(
        "a primary killed: {n_exact} of {N} streams exact, {n_lost} tokens lost and {n_told} losses told, {n_doubled} tokens written twice"
    );
    // Streams of the other shards can't have noticed.
    assert!(n_exact >= N / 2, "{n_exact}");
}
