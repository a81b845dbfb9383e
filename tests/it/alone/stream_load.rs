//! A thousand answers at the same time, of 50 tokens, one every 30 ms, through Redis over both transports: every token
//! once, in order, whatever happens in the middle. Counts are exact; times are printed, and bounded only so loosely
//! that a busy machine keeps them.

use crate::streams::builder;
use crate::streams::client::{BOTH, Client, Transport};
use crate::streams::producer::{key, texts};
use crate::support::gateway::Gateway;
use crate::support::redis::{RedisServer, connect};
use crate::support::wait::in_time;
use rand::Rng;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const STREAMS: usize = 1_000;
const TOKENS: usize = 50;
const PACE: Duration = Duration::from_millis(30);

/// Producers, each with a connection of its own.
const PRODUCERS: usize = 8;

/// Longest that a whole run may take on a machine that does something else besides.
const PATIENCE: Duration = Duration::from_secs(90);

/// What one client saw.
struct Seen {
    texts: Vec<String>,
    handshakes: Vec<Duration>,
    completed: Instant,
}

fn id(n: usize) -> String {
    format!("load-{n}")
}

/// Reads stream `n` to its end; cut off after `cut` tokens and whenever the connection breaks, it resumes at the next
/// of `replicas`.
async fn read(replicas: Arc<Vec<SocketAddr>>, n: usize, transport: Transport, cut: Option<usize>) -> Seen {
    let mut seen = Seen { texts: Vec::new(), handshakes: Vec::new(), completed: Instant::now() };
    let mut at = n;
    let mut client = Client::resume(replicas[at % replicas.len()], transport, &id(n), None).await;
    seen.handshakes.push(client.handshake);
    let mut cut = cut;
    loop {
        let item = client.next().await;
        if item.is("entry") {
            seen.texts.push(item.json()["data"].as_str().unwrap().to_owned());
        } else if item.is("end") {
            seen.completed = Instant::now();
            return seen;
        } else {
            assert!(item.is("status"), "{item:?}");
        }
        if cut.is_some_and(|cut| seen.texts.len() == cut) {
            cut = None;
            at += 1;
            let to = replicas[at % replicas.len()];
            let cursor = client.cursor.clone();
            drop(client);
            client = Client::resume(to, transport, &id(n), cursor.as_deref()).await;
            seen.handshakes.push(client.handshake);
        }
    }
}

/// Writes the streams of one producer, a token of each per turn. Gives when it began.
async fn write(port: u16, streams: Vec<usize>, late: Duration) -> Instant {
    let mut connection = connect(port).await.unwrap();
    tokio::time::sleep(late).await;
    let began = Instant::now();
    let mut turns = tokio::time::interval(PACE);
    for token in 0..=TOKENS {
        turns.tick().await;
        let mut pipeline = redis::pipe();
        for &n in &streams {
            let add = pipeline.cmd("XADD").arg(key(&id(n))).arg("*");
            let add = if token < TOKENS { add.arg("data").arg(token) } else { add.arg("end").arg("done") };
            add.ignore();
        }
        pipeline.query_async::<()>(&mut connection).await.unwrap();
    }
    began
}

fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort();
    times[(times.len() * percent / 100).min(times.len() - 1)]
}

/// Runs all streams over `replicas`, half of them over each transport, and prints what it took.
async fn run(what: &str, redis: &RedisServer, gateways: &mut [Gateway], cut: bool) {
    let replicas: Arc<Vec<SocketAddr>> = Arc::new(gateways.iter().map(|gateway| gateway.public).collect());
    let mut reading = JoinSet::new();
    for n in 0..STREAMS {
        let cut = cut.then(|| rand::rng().random_range(1..TOKENS));
        let replicas = Arc::clone(&replicas);
        reading.spawn(async move { (n, read(replicas, n, BOTH[n % 2], cut).await) });
    }
    for gateway in gateways.iter() {
        let n = if gateways.len() == 1 { STREAMS } else { STREAMS / gateways.len() };
        let all = |sessions: f64| sessions >= n as f64;
        gateway.metric_fits("all watch", "stream_sessions", &[], PATIENCE, all).await;
    }
    let cpu_before: Duration = gateways.iter_mut().map(|gateway| gateway.process().cpu_time()).sum();
    let writing: Vec<_> = (0..PRODUCERS)
        .map(|p| {
            let streams = (0..STREAMS).filter(|n| n % PRODUCERS == p).collect();
            tokio::spawn(write(redis.port(), streams, PACE * p as u32 / PRODUCERS as u32))
        })
        .collect();
    let mut began = Vec::new();
    for producer in writing {
        began.push(producer.await.unwrap());
    }
    let (mut handshakes, mut completions) = (Vec::new(), [Vec::new(), Vec::new()]);
    in_time(what, PATIENCE, async {
        while let Some(read) = reading.join_next().await {
            let (n, seen) = read.unwrap();
            assert_eq!(seen.texts, texts(0..TOKENS), "stream {n}");
            completions[n % 2].push(seen.completed - began[n % PRODUCERS]);
            handshakes.extend(seen.handshakes);
        }
    })
    .await;
    let cpu: Duration =
        gateways.iter_mut().map(|gateway| gateway.process().cpu_time()).sum::<Duration>() - cpu_before;
    let per_token = cpu.as_secs_f64() * 1e6 / (STREAMS * (TOKENS + 1)) as f64;
    for (transport, mut times) in BOTH.into_iter().zip(completions) {
        assert_eq!(times.len(), STREAMS / 2, "every stream was completed");
        let (p50, p95) = (percentile(&mut times, 50), percentile(&mut times, 95));
        println!(
            "{what}, {transport:?}: {} of {} complete, p50 {p50:.3?}, p95 {p95:.3?}",
            times.len(),
            STREAMS / 2
        );
    }
    println!(
        "{what}: handshake p95 {:.2?}, {per_token:.1} µs CPU per token",
        percentile(&mut handshakes, 95)
    );
    for gateway in gateways.iter() {
        let metrics = gateway.metrics().await;
        assert_eq!(metrics.sum("stream_gaps_total", &[]), 0.0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_streams_lose_and_double_nothing() {
    let redis = RedisServer::start().await;
    let mut gateways = [builder().redis(&redis).start().await];
    run("1,000 streams", &redis, &mut gateways, false).await;
    let delivered = gateways[0].metrics().await.sum("stream_entries_delivered_total", &[]);
    assert_eq!(delivered, (STREAMS * (TOKENS + 1)) as f64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_streams_cut_once_and_resumed_elsewhere_lose_and_double_nothing() {
    let redis = RedisServer::start().await;
    let mut gateways = [builder().redis(&redis).start().await, builder().redis(&redis).start().await];
    run("1,000 streams, each cut once", &redis, &mut gateways, true).await;
}
