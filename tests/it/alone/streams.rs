//! Answers that are written while a primary is killed. Counts are exact; times are printed, and bounded only so loosely
//! that a busy machine keeps them.

use crate::streams::builder;
use crate::streams::client::{BOTH, Client, Transport};
use crate::streams::producer::{key, texts};
use crate::support::cluster::RedisCluster;
use crate::support::redis::connect;
use crate::support::wait::in_time;
use redis::{RedisResult, Value};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

const SHARDS: usize = 3;
const STREAMS: usize = 1_000;
const TOKENS: usize = 50;
const PACE: Duration = Duration::from_millis(30);

/// Longest that a whole run may take on a machine that does something else besides.
const PATIENCE: Duration = Duration::from_secs(90);

/// What one client saw.
#[derive(Default)]
struct Seen {
    texts: Vec<String>,
    ids: Vec<String>,
    lost: Vec<serde_json::Value>,
}

fn id(n: usize) -> String {
    format!("load-{n}")
}

/// Reads stream `n` to its end.
async fn read(gateway: SocketAddr, n: usize, transport: Transport) -> Seen {
    let mut client = Client::resume(gateway, transport, &id(n), None).await;
    let mut seen = Seen::default();
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

/// Writes streams of one shard as a careful producer does: a token is written again until it is acknowledged, so that it
/// may be there twice, but none is missing.
async fn write_through_a_failover(ports: Vec<u16>, streams: Vec<usize>) {
    let mut turns = tokio::time::interval(PACE);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut connection, mut at) = (None, 0);
    for token in 0..=TOKENS {
        let mut unwritten = streams.clone();
        while !unwritten.is_empty() {
            turns.tick().await;
            if connection.is_none() {
                at += 1;
                connection = connect(ports[at % ports.len()]).await.ok();
            }
            let Some(open) = &mut connection else { continue };
            let mut pipeline = redis::pipe();
            pipeline.ignore_errors();
            for &n in &unwritten {
                let add = pipeline.cmd("XADD").arg(key(&id(n))).arg("*");
                if token < TOKENS {
                    add.arg("data").arg(token)
                } else {
                    add.arg("end").arg("done")
                };
            }
            let answers = pipeline.query_async::<Vec<RedisResult<Value>>>(open).await.unwrap_or_default();
            let mut written = answers.iter().map(RedisResult::is_ok);
            unwritten.retain(|_| !written.next().unwrap_or(false));
            // Another node owns the slots, or this one is down.
            connection = connection.filter(|_| unwritten.is_empty());
        }
    }
}

/// The ids that Redis has of each stream of `shard`, without the end's.
async fn kept(cluster: &RedisCluster, shard: usize, streams: &[usize]) -> Vec<Vec<String>> {
    let owner = cluster.primary(shard).await;
    let mut connection = connect(cluster.node(owner).port()).await.unwrap();
    let mut kept = Vec::new();
    for &n in streams {
        let range = redis::cmd("XRANGE").arg(key(&id(n))).arg("-").arg("+").to_owned();
        let entries: Vec<(String, Vec<String>)> = range.query_async(&mut connection).await.unwrap();
        let mut ids: Vec<String> = entries.into_iter().map(|(id, _)| id).collect();
        ids.pop().expect("the end is there");
        kept.push(ids);
    }
    kept
}

/// What Redis has of a stream at the end is what its client got, once and in order; whatever else the client got was
/// told to be lost. (What Redis lost before anybody had read it leaves no trace; only a producer can notice.)
fn assert_explained(n: usize, kept: &[String], seen: &Seen) -> usize {
    let got: Vec<&String> = seen.ids.iter().filter(|id| kept.contains(id)).collect();
    assert_eq!(got, kept.iter().collect::<Vec<_>>(), "stream {n}");
    let n_lost = seen.ids.len() - kept.len();
    assert!(n_lost == 0 || !seen.lost.is_empty(), "stream {n}: {n_lost} were lost and not told");
    n_lost
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_primary_costs_a_thousand_streams_nothing_that_is_not_told() {
    let mut cluster = RedisCluster::start(SHARDS, SHARDS).await;
    let gateway = builder().cluster(&cluster).start().await;
    let (to, mut reading) = (gateway.public, JoinSet::new());
    for n in 0..STREAMS {
        reading.spawn(async move { (n, read(to, n, BOTH[n % 2]).await) });
    }
    gateway.metric_is("stream_sessions", &[], PATIENCE, STREAMS as f64).await;
    let mut shards = vec![Vec::new(); SHARDS];
    for n in 0..STREAMS {
        shards[cluster.shard_of(&key(&id(n)))].push(n);
    }
    let of_each = |streams: &Vec<usize>| streams.chunks(STREAMS / 8).map(<[usize]>::to_vec).collect();
    let groups: Vec<Vec<usize>> = shards.iter().flat_map(|streams| -> Vec<_> { of_each(streams) }).collect();
    let began = Instant::now();
    let writing: Vec<_> = groups
        .into_iter()
        .map(|streams| tokio::spawn(write_through_a_failover(cluster.ports(), streams)))
        .collect();
    let delivered = "stream_entries_delivered_total";
    let third = (STREAMS * TOKENS / 3) as f64;
    gateway.metric_fits("a third is delivered", delivered, &[], PATIENCE, |n| n >= third).await;
    let killed = Instant::now();
    let former = cluster.kill_primary(0).await;
    cluster.succeeded(0, former).await;
    println!("killed after {:.1?}, a replica took over after {:.1?}", killed - began, killed.elapsed());
    for producer in writing {
        in_time("all is written", PATIENCE, producer).await.unwrap();
    }
    let mut seen: Vec<Option<Seen>> = (0..STREAMS).map(|_| None).collect();
    in_time("all is read", PATIENCE, async {
        while let Some(read) = reading.join_next().await {
            let (n, read) = read.unwrap();
            seen[n] = Some(read);
        }
    })
    .await;
    println!("all was written and read after {:.1?}", began.elapsed());
    let (mut n_exact, mut n_told, mut n_lost, mut n_doubled) = (0, 0, 0, 0);
    for (shard, streams) in shards.iter().enumerate() {
        for (&n, kept) in streams.iter().zip(kept(&cluster, shard, streams).await) {
            let seen = seen[n].take().expect("it was read to its end");
            n_lost += assert_explained(n, &kept, &seen);
            n_told += seen.lost.len();
            n_doubled += seen.texts.len().saturating_sub(TOKENS);
            let exact = seen.texts == texts(0..TOKENS);
            assert!(
                shard == 0 || exact && seen.lost.is_empty(),
                "stream {n} is none of the killed primary's"
            );
            n_exact += usize::from(exact);
        }
    }
    println!(
        "a primary killed: {n_exact} of {STREAMS} streams exact, {n_lost} tokens lost and {n_told} losses told, {n_doubled} tokens written twice"
    );
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.sum("stream_gaps_total", &[("reason", "trimmed")]), 0.0);
    assert_eq!(metrics.sum("stream_gaps_total", &[("reason", "failover")]), n_told as f64);
}
