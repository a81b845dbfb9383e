//! Our own publisher against real servers: `feed`, `migrate`, and what `POST /publish` uses.

use super::cli::{Ran, tickbridge};
use super::redis_commands::Client;
use super::support::cluster::RedisCluster;
use super::support::publisher::{CHANNEL, price_key, slot, updated_at_key};
use super::support::redis::{RedisServer, connect, query};
use super::support::tls::{TlsServer, certificates, path};
use super::support::wait::{in_time, wait_for};
use futures_util::StreamExt;
use serde_json::Value as Json;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tickbridge::config::{self, ChannelLayout, RedisMode};
use tickbridge::publish::{Published, QuotePublisher};
use tickbridge::upstream::connection::Connector;
use tickbridge::upstream::publish::Publisher;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/eustockmarkets.csv");
const N_ROWS: u64 = 1860;

/// Runs the binary beside the test.
pub async fn run(args: &[&str]) -> Ran {
    let args: Vec<_> = args.iter().map(ToString::to_string).collect();
    let run = move || tickbridge(&args.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
    in_time("the command ends", Duration::from_secs(60), tokio::task::spawn_blocking(run)).await.unwrap()
}

fn urls(cluster: &RedisCluster) -> Vec<String> {
    cluster.addresses().iter().map(|address| format!("redis://{address}")).collect()
}

/// The fields of a JSON object as written.
fn fields(json: &str) -> BTreeMap<String, Box<RawValue>> {
    serde_json::from_str(json).unwrap_or_else(|e| panic!("{json}: {e}"))
}

fn field(json: &str, name: &str) -> String {
    fields(json).get(name).unwrap_or_else(|| panic!("no {name} in {json}")).get().to_owned()
}

async fn get(cluster: &RedisCluster, key: &str) -> String {
    cluster.cmd(cluster.owner(slot(key)).await, &["GET", key]).await
}

/// The last row of the file, as it stands there.
fn last_prices() -> Vec<String> {
    let file = std::fs::read_to_string(FILE).unwrap();
    file.lines().last().unwrap().split(',').skip(1).map(str::to_owned).collect()
}

#[tokio::test]
async fn a_replay_ends_with_the_last_prices_of_the_file_on_every_primary() {
    let cluster = RedisCluster::start(3, 0).await;
    let urls = urls(&cluster);
    let mut args =
        vec!["feed", "--cluster", "--partitions", "4", "--rate", "max", "--replay", FILE, "--redis"];
    args.extend(urls.iter().map(String::as_str));
    let ran = run(&args).await;
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{}", ran.out);
    assert!(ran.out.contains(&format!("published {} quotes", N_ROWS * 4)), "{}", ran.out);
    assert!(ran.out.contains("\n0 failed"), "{}", ran.out);
    for (id, price) in (1..).zip(last_prices()) {
        let stored = get(&cluster, &price_key(id)).await;
        assert_eq!(field(&stored, "price"), price);
        assert_eq!(get(&cluster, &updated_at_key(id)).await, field(&stored, "ts"));
        let owner = cluster.owner(slot(&price_key(id))).await;
        let ttl: i64 = cluster.cmd(owner, &["TTL", &price_key(id)]).await;
        assert!((290..=300).contains(&ttl), "{ttl}");
    }
    let mut n_announced = 0;
    for at in 0..3 {
        n_announced += cluster.node(at).n_calls("spublish").await;
    }
    assert_eq!(n_announced, N_ROWS * 4);
}

#[tokio::test]
async fn keys_alone_are_stored_without_an_announcement() {
    let server = RedisServer::start().await;
    let url = format!("redis://{}", server.address());
    let args =
        ["feed", "--keys-only", "--instruments", "3", "--rate", "300", "--duration", "1s", "--redis", &url];
    let ran = run(&args).await;
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{}", ran.out);
    let n_keys: u64 = server.cmd(&["EXISTS", &price_key(1), &updated_at_key(2), &price_key(3)]).await;
    assert_eq!((n_keys, server.n_calls("publish").await), (3, 0));
}

/// A catch-up must never be older than what was announced.
#[tokio::test]
async fn the_key_is_never_older_than_the_announcement() {
    let server = RedisServer::start().await;
    let client = redis::Client::open(format!("redis://{}", server.address())).unwrap();
    let mut subscription = client.get_async_pubsub().await.unwrap();
    subscription.subscribe(CHANNEL).await.unwrap();
    let mut keys = connect(server.port()).await.unwrap();
    let url = format!("redis://{}", server.address());
    let feed = tokio::spawn(async move {
        run(&["feed", "--instruments", "3", "--rate", "3000", "--duration", "1s", "--redis", &url]).await
    });
    let mut messages = subscription.on_message();
    let mut last = BTreeMap::new();
    let mut n_seen = 0;
    while n_seen < 2_000 {
        let message = in_time("a message", Duration::from_secs(10), messages.next()).await.unwrap();
        let message: String = message.get_payload().unwrap();
        let number = |text: &str, name| field(text, name).parse::<u64>().unwrap();
        let (id, seq) = (number(&message, "stockId"), number(&message, "seq"));
        assert!(last.insert(id, seq).is_none_or(|before| before < seq), "in order");
        let stored: String =
            redis::cmd("GET").arg(price_key(id as i64)).query_async(&mut keys).await.unwrap();
        assert!(number(&stored, "seq") >= seq, "{stored} is older than {message}");
        n_seen += 1;
    }
    assert_eq!(feed.await.unwrap().code, 0);
}

/// The rest of the file meets a shard without a primary; the last prices are published when it has one.
#[tokio::test]
async fn a_feed_goes_through_a_failover_and_ends_with_the_last_prices() {
    let mut cluster = RedisCluster::start(3, 3).await;
    let urls = urls(&cluster);
    let feed = tokio::spawn(async move {
        let mut args = vec!["feed", "--cluster", "--rate", "4000", "--replay", FILE, "--redis"];
        args.extend(urls.iter().map(String::as_str));
        run(&args).await
    });
    let key = price_key(1);
    let owner = cluster.owner(slot(&key)).await;
    wait_for("the feed has begun", Duration::from_secs(20), || async {
        cluster.cmd::<Option<String>>(owner, &["GET", &key]).await
    })
    .await;
    let mut shard = 0;
    while cluster.primary(shard).await != owner {
        shard += 1;
    }
    cluster.kill_primary(shard).await;
    let ran = feed.await.unwrap();
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{}", ran.out);
    assert!(!ran.out.contains(" 0 of them repaired"), "{}", ran.out);
    for (id, price) in (1..).zip(last_prices()) {
        assert_eq!(field(&get(&cluster, &price_key(id)).await, "price"), price, "{id}\n{}", ran.out);
    }
}

#[tokio::test]
async fn a_feed_goes_through_tls_as_an_acl_user_into_a_numbered_database() {
    let server = TlsServer::start(&[]).await;
    server.plain().cmd::<()>(&["ACL", "SETUSER", "svc", "on", ">p@ss", "~*", "&*", "+@all"]).await;
    let (ca, url) = (server.ca(), format!("rediss://svc:p%40ss@{}/3", server.tls_address()));
    let args =
        ["feed", "--instruments", "5", "--rate", "max", "--duration", "200ms", "--redis", &url, "--tls-ca"];
    let ran = run(&[&args[..], &[&ca]].concat()).await;
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{}", ran.out);
    let keyspace: String = server.plain().cmd(&["INFO", "keyspace"]).await;
    assert!(keyspace.contains("db3:keys=10,") && !keyspace.contains("db0"), "{keyspace}");

    let stranger = certificates();
    let refused = run(&[&args[..], &[&path(&stranger, "ca.pem")]].concat()).await;
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("certificate") && !refused.err.contains("p@ss"), "{}", refused.err);
}

#[tokio::test]
async fn a_feed_that_reaches_nobody_says_so() {
    let mut server = RedisServer::start().await;
    let url = format!("redis://{}", server.address());
    server.kill9();
    let ran =
        run(&["feed", "--instruments", "2", "--rate", "10", "--duration", "300ms", "--redis", &url]).await;
    assert_eq!(ran.code, 1, "{}", ran.out);
    assert!(ran.err.contains("the last quotes of 2 instruments could not be published"), "{}", ran.err);
}

const FUNCTION: &str = "tickbridge_publish_1";

/// What a server answers to one call of the function.
async fn call(server: &RedisServer, id: i64, ts: &str, seq: &str, json: &str) -> u64 {
    let (price, updated) = (price_key(id), updated_at_key(id));
    let args = ["PUBLISH", "c", "1700000000000", "300", ts, seq, json];
    let mut command = vec!["FCALL", FUNCTION, "2", &price, &updated];
    command.extend(args);
    server.cmd(&command).await
}

#[tokio::test]
async fn the_function_numbers_quotes_and_refuses_older_ones() {
    let server = RedisServer::start().await;
    let url = format!("redis://{}", server.address());
    assert_eq!(run(&["migrate", "--redis", &url]).await.code, 0);
    let stored = async || server.cmd::<String>(&["GET", &price_key(1)]).await;

    let first = call(&server, 1, "10", "", r#"{"stockId":1,"price":1.50,"ts":10} "#).await;
    assert!(first > 1_700_000_000_000_000, "microseconds of the server's clock, not {first}");
    assert_eq!(stored().await, format!(r#"{{"stockId":1,"price":1.50,"ts":10,"seq":{first}}}"#));
    assert_eq!(server.cmd::<String>(&["GET", &updated_at_key(1)]).await, "1700000000000");
    assert_eq!(call(&server, 1, "9", "", r#"{"price":9,"ts":9}"#).await, 0, "older by ts");
    let second = call(&server, 1, "10", "", r#"{"price":2.50,"ts":10}"#).await;
    assert!(second > first, "a second trade of the same millisecond");
    assert_eq!(call(&server, 1, "99", "5", r#"{"price":3,"ts":99,"seq":5}"#).await, 0, "older by seq");
    assert_eq!(field(&stored().await, "price"), "2.50");

    // Expired keys don't make numbers begin anew.
    server.cmd::<()>(&["DEL", &price_key(1)]).await;
    assert!(call(&server, 1, "", "", r#"{"price":1}"#).await > second);
    // A number above the clock, as after a clock was set back, is counted up from.
    let ahead: u64 = 9_000_000_000_000_000;
    assert_eq!(call(&server, 1, "", &ahead.to_string(), &format!(r#"{{"seq":{ahead}}}"#)).await, ahead);
    assert_eq!(call(&server, 1, "", "", r#"{"price":1}"#).await, ahead + 1);
    // What others stored, in whatever order or shape.
    for (value, older) in [
        (r#"{"ts":50,"seq":9000000000000005,"price":1}"#, true),
        (r#"{ "price":1, "ts":50 }"#, true),
        (r#"{"a":{"ts":99,"seq":1}}"#, false),
        ("no JSON", false),
        (r#"{"ts":"99"}"#, false),
    ] {
        server.cmd::<()>(&["SET", &price_key(1), value]).await;
        let answer = call(&server, 1, "49", "", r#"{"price":1,"ts":49}"#).await;
        assert_eq!(answer == 0, older, "{value}");
    }
    server.cmd::<()>(&["DEL", &price_key(1)]).await;
    server.cmd::<()>(&["HSET", &price_key(1), "a", "1"]).await;
    assert_ne!(call(&server, 1, "1", "", "{}").await, 0, "a key of another type is replaced");
}

#[tokio::test]
async fn migrations_are_applied_once_on_every_primary() {
    let cluster = RedisCluster::start(3, 0).await;
    let urls = urls(&cluster);
    let mut args = vec!["migrate", "--cluster", "--redis"];
    args.extend(urls.iter().map(String::as_str));
    let first = run(&args).await;
    assert_eq!((first.code, first.err.as_str()), (0, ""));
    assert_eq!(first.out.matches(": applied 0001_publish\n").count(), 3, "{}", first.out);
    let state = async || {
        let mut all = Vec::new();
        for at in 0..3 {
            let keys: Vec<String> = cluster.cmd(at, &["KEYS", "tickbridge:schema*"]).await;
            assert_eq!(keys.len(), 1, "one record per primary");
            let record: BTreeMap<String, String> = cluster.cmd(at, &["HGETALL", &keys[0]]).await;
            all.push((keys, record));
        }
        all
    };
    let before = state().await;
    assert!(before.iter().any(|(keys, _)| keys[0] == "tickbridge:schema"));
    let second = run(&args).await;
    assert_eq!(second.out.matches(": up to date\n").count(), 3, "{}", second.out);
    assert_eq!(state().await, before);

    // A primary that lost its functions gets them again.
    cluster.cmd::<()>(1, &["FUNCTION", "FLUSH"]).await;
    let third = run(&args).await;
    assert_eq!(third.out.matches(": applied 0001_publish\n").count(), 1, "{}", third.out);

    // What a newer program left is no business of this one.
    cluster.cmd::<()>(0, &["HSET", &before[0].0[0], "0099_future", "x"]).await;
    let refused = run(&args).await;
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("0099_future") && refused.err.contains("newer"), "{}", refused.err);
}

#[tokio::test]
async fn a_channel_per_instrument_needs_the_function_and_gets_numbers_from_it() {
    let cluster = RedisCluster::start(3, 0).await;
    let urls = urls(&cluster);
    let with = async |args: &[&str]| {
        let mut args = [args, &["--redis"]].concat();
        args.extend(urls.iter().map(String::as_str));
        run(&args).await
    };
    let feed = [
        "feed",
        "--cluster",
        "--per-instrument",
        "--instruments",
        "50",
        "--rate",
        "500",
        "--duration",
        "500ms",
    ];
    let refused = with(&feed).await;
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("tickbridge migrate"), "{}", refused.err);
    assert_eq!(with(&["migrate", "--cluster"]).await.code, 0);
    let ran = with(&feed).await;
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{}", ran.out);
    for id in 1..=50 {
        let stored = get(&cluster, &price_key(id)).await;
        assert!(stored.contains(r#","seq":"#), "{stored}");
    }
}

fn publisher(client: &Client, layout: ChannelLayout, mode: RedisMode) -> Publisher {
    let channel = config::Channel { layout, ..Default::default() };
    let config = config::Redis { mode, channel, ..Default::default() };
    Publisher::new(Arc::clone(&client.commands), Arc::new(Connector::new(&config)), &config, 1_000)
}

#[tokio::test]
async fn payloads_are_published_with_their_digits_and_judged_one_by_one() {
    let cluster = RedisCluster::start(3, 0).await;
    // A client that knows one node only, so that most go by way of a redirect.
    let client = Client::of(&cluster.node(0).address());
    let publisher = publisher(&client, ChannelLayout::Partitioned, RedisMode::Cluster);
    let payload =
        |id: i64| format!(r#"{{"stockId":{id},"ts":5,"close":71000.10,"volume":9223372036854775807}}"#);
    let bad = ["", r#"{"close":1}"#, &format!(r#"{{"stockId":1,"x":"{}"}}"#, "x".repeat(2_000))];
    let mut payloads: Vec<_> = [101, 102, 201].map(payload).to_vec();
    payloads.extend(bad.map(str::to_owned));
    let payloads: Vec<_> = payloads.into_iter().map(String::into_bytes).collect();
    for _ in 0..2 {
        let published = publisher.publish(payloads.clone()).await;
        let unusable = ["not_json", "no_instrument", "too_large"].map(Published::Unusable);
        assert_eq!(published[..3], [Published::Done; 3]);
        assert_eq!(published[3..], unusable);
    }
    for id in [101, 102, 201] {
        let stored = get(&cluster, &price_key(id)).await;
        assert_eq!(
            (field(&stored, "price"), field(&stored, "volume")),
            ("71000.10".into(), "9223372036854775807".into())
        );
    }
}

#[tokio::test]
async fn what_could_not_be_stored_is_not_announced() {
    let cluster = RedisCluster::start_with(3, 0, &["--cluster-require-full-coverage", "no"]).await;
    let client = Client::of(&cluster.node(0).address());
    let publisher = publisher(&client, ChannelLayout::Partitioned, RedisMode::Cluster);
    // The keys of 101 lie on another primary than the channel.
    let (keys, channel) = (cluster.owner(slot(&price_key(101))).await, cluster.owner(slot(CHANNEL)).await);
    assert_ne!(keys, channel);
    let payload = |ts: i64| format!(r#"{{"stockId":101,"ts":{ts},"close":1}}"#).into_bytes();
    assert_eq!(publisher.publish(vec![payload(1)]).await, [Published::Done]);
    let n_announced = async || cluster.node(channel).n_calls("spublish").await;
    let before = n_announced().await;
    cluster.freeze(keys);
    let published = in_time("an answer", Duration::from_secs(3), publisher.publish(vec![payload(2)])).await;
    assert_eq!(published, [Published::Failed { retry: true }]);
    assert_eq!(n_announced().await, before);
    cluster.thaw(keys);
    assert_eq!(publisher.publish(vec![payload(3)]).await, [Published::Done]);
    assert_eq!(n_announced().await, before + 1);
}

#[tokio::test]
async fn an_older_payload_is_refused_where_the_function_judges() {
    let server = RedisServer::start().await;
    let client = Client::of(&server.address());
    let publisher = publisher(&client, ChannelLayout::PerInstrument, RedisMode::Standalone);
    let payload = |ts: i64| format!(r#"{{"stockId":1,"ts":{ts},"close":1}}"#).into_bytes();
    assert_eq!(publisher.publish(vec![payload(2)]).await, [Published::Failed { retry: false }]);
    assert_eq!(run(&["migrate", "--redis", &format!("redis://{}", server.address())]).await.code, 0);
    let published = publisher.publish(vec![payload(2), payload(1), payload(3)]).await;
    assert_eq!(published, [Published::Done, Published::Older, Published::Done]);
    let stored: Json =
        serde_json::from_str(&query::<String>(server.port(), &["GET", &price_key(1)]).await.unwrap())
            .unwrap();
    assert_eq!(stored["ts"], 3);
}
