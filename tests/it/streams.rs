//! Lossless streams from Redis to both transports: each entry once, in order, or a message that says what is not.

pub mod client;
pub mod producer;

mod failover;
mod faults;
mod feed;
mod http;
mod slow;

use super::support::gateway::{Gateway, GatewayBuilder};
use super::support::redis::RedisServer;
use client::{BOTH, Client, Item, Transport};
use producer::{Producer, texts};
use serde_json::json;
use std::time::Duration;

/// A gateway that needs no tokens. Our clients answer pings only while they are read, which a busy machine may not come
/// to for a while; and what Redis is slow to answer is not what these tests are about.
pub fn builder() -> GatewayBuilder {
    Gateway::builder()
        .set("auth.anonymous", "true")
        .set("session.pong_timeout", "'5m'")
        .set("redis.command_timeout", "'10s'")
}

async fn world() -> (RedisServer, Gateway) {
    let redis = RedisServer::start().await;
    let gateway = builder().redis(&redis).start().await;
    (redis, gateway)
}

/// What ends a session whose stream has ended.
async fn closed_normally(client: &mut Client) {
    if client.transport == Transport::Ws {
        assert_eq!(client.next().await, Item::Closed(1000, "normal".into()));
    }
    assert_eq!(client.next().await, Item::End);
}

#[tokio::test]
async fn a_session_begins_where_it_asks_and_gets_each_entry_once() {
    let (redis, gateway) = world().await;
    for transport in BOTH {
        let id = format!("{transport:?}");
        let mut producer = Producer::new(&redis, &id).await;
        let ids = producer.tokens(0..300).await;
        let mut whole = Client::resume(gateway.public, transport, &id, None).await;
        let mut rest = Client::resume(gateway.public, transport, &id, Some(&ids[99])).await;
        let mut live =
            Client::open(gateway.public, transport, &format!("id={id}&from=$"), &[]).await.unwrap();
        assert_eq!(live.next_of("begin").await["id"], json!(ids[299]), "{transport:?}");
        assert_eq!(whole.texts(300).await, texts(0..300), "{transport:?}");
        assert_eq!(rest.texts(200).await, texts(100..300), "{transport:?}");
        producer.tokens(300..310).await;
        for client in [&mut whole, &mut rest, &mut live] {
            assert_eq!(client.texts(10).await, texts(300..310), "{transport:?}");
            assert_eq!(client.next_within(Duration::from_millis(100)).await, None, "{transport:?}");
        }
    }
}

/// The client learns where it stands before anything comes: otherwise a cut would leave it without a place to resume at.
#[tokio::test]
async fn who_begins_now_and_is_cut_before_the_first_entry_misses_nothing() {
    let (redis, gateway) = world().await;
    for transport in BOTH {
        for n_before in [0, 3] {
            let id = format!("{transport:?}-{n_before}");
            let mut producer = Producer::new(&redis, &id).await;
            if n_before > 0 {
                producer.tokens(0..n_before).await;
            }
            let query = format!("id={id}&from=$");
            let mut cut = Client::open(gateway.public, transport, &query, &[]).await.unwrap();
            cut.next_of("begin").await;
            let cursor = cut.cursor.clone().expect("a place");
            drop(cut);
            producer.tokens(n_before..8).await;
            let mut resumed = Client::resume(gateway.public, transport, &id, Some(&cursor)).await;
            assert_eq!(resumed.texts(8 - n_before).await, texts(n_before..8), "{transport:?}");
        }
    }
}

#[tokio::test]
async fn what_a_producer_writes_is_passed_through_byte_by_byte() {
    let (redis, gateway) = world().await;
    let mut producer = Producer::new(&redis, "a").await;
    let awkward = " \"quoted\" \r\n\u{0}é\u{2028}</script>\\";
    producer.add(&[("event", b"delta"), ("data", awkward.as_bytes()), ("other", b"x")]).await;
    producer.add(&[("data", b"\xff\x00")]).await;
    producer.add(&[("other", b"x")]).await;
    let last = producer.add(&[("end", b"error"), ("data", b"why")]).await;
    for transport in BOTH {
        let mut client = Client::resume(gateway.public, transport, "a", None).await;
        let first = client.next_of("entry").await;
        assert_eq!((&first["event"], &first["data"]), (&json!("delta"), &json!(awkward)));
        assert_eq!(client.next_of("entry").await["data64"], json!("/wA="));
        assert_eq!(client.next_of("entry").await.as_object().unwrap().len(), 2, "a type and an id");
        let end = client.next_of("end").await;
        assert_eq!(end, json!({ "type": "end", "id": last, "status": "error", "data": "why" }));
        closed_normally(&mut client).await;
    }
}

#[tokio::test]
async fn the_end_closes_the_session_and_who_has_seen_it_gets_no_other() {
    let (redis, gateway) = world().await;
    for transport in BOTH {
        let id = format!("{transport:?}");
        let mut producer = Producer::new(&redis, &id).await;
        producer.tokens(0..3).await;
        let mut live = Client::resume(gateway.public, transport, &id, None).await;
        assert_eq!(live.texts(3).await, texts(0..3));
        let end = producer.end().await;
        // Nothing may follow an end, even if somebody writes it.
        producer.tokens(3..5).await;
        assert_eq!(live.next_of("end").await["status"], json!("done"));
        closed_normally(&mut live).await;

        let mut late = Client::resume(gateway.public, transport, &id, None).await;
        assert_eq!(late.texts(3).await, texts(0..3));
        late.next_of("end").await;
        closed_normally(&mut late).await;

        match transport {
            Transport::Sse => {
                let query = format!("id={id}");
                let again = Client::open(gateway.public, transport, &query, &[("Last-Event-ID", &end)]).await;
                assert_eq!(again.err(), Some(204));
            }
            Transport::Ws => {
                let mut again = Client::resume(gateway.public, transport, &id, Some(&end)).await;
                closed_normally(&mut again).await;
            }
        }
    }
    gateway.metric_is("streams_watched", &[], client::DUE, 0.0).await;
}

#[tokio::test]
async fn what_was_trimmed_is_told() {
    let (redis, gateway) = world().await;
    let mut producer = Producer::new(&redis, "a").await;
    let ids = producer.tokens(0..100).await;
    producer.trim(40).await;
    for transport in BOTH {
        let mut whole = Client::resume(gateway.public, transport, "a", None).await;
        let told =
            json!({ "type": "gap", "reason": "trimmed", "after": "0-0", "before": ids[60], "missing": 60 });
        assert_eq!(whole.next_of("gap").await, told);
        assert_eq!(whole.texts(40).await, texts(60..100));

        let mut resumed = Client::resume(gateway.public, transport, "a", Some(&ids[9])).await;
        let told = json!({ "type": "gap", "reason": "trimmed", "after": ids[9], "before": ids[60] });
        assert_eq!(resumed.next_of("gap").await, told);
        assert_eq!(resumed.texts(40).await, texts(60..100));

        let mut whole = Client::resume(gateway.public, transport, "a", Some(&ids[60])).await;
        assert_eq!(whole.texts(39).await, texts(61..100), "what is there is no gap");
    }
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.sum("stream_gaps_total", &[("reason", "trimmed")]), 4.0);
    assert_eq!(metrics.sum("stream_entries_lost_total", &[("reason", "trimmed")]), 120.0);
    producer.trim(0).await;
    let mut emptied = Client::resume(gateway.public, Transport::Sse, "a", Some(&ids[70])).await;
    let told = json!({ "type": "gap", "reason": "trimmed", "after": ids[70], "id": ids[99] });
    assert_eq!(emptied.next_of("gap").await, told);
    producer.tokens(100..101).await;
    assert_eq!(emptied.texts(1).await, texts(100..101));
}

/// The reader is told by how many entries come at once that it may have missed some.
#[tokio::test]
async fn what_is_trimmed_between_two_reads_is_told_too() {
    let (redis, gateway) = world().await;
    for transport in BOTH {
        let id = format!("{transport:?}");
        let mut producer = Producer::new(&redis, &id).await;
        producer.tokens(0..10).await;
        let mut client = Client::resume(gateway.public, transport, &id, None).await;
        assert_eq!(client.texts(10).await, texts(0..10));
        // The reader's first read asks for proof anyway; from here on only the number of entries does.
        producer.tokens(10..11).await;
        assert_eq!(client.texts(1).await, texts(10..11));
        // In one transaction, so that no read comes between.
        let key = producer::key(&id);
        let mut burst = redis::pipe();
        burst.atomic();
        for n in 11..200 {
            burst.cmd("XADD").arg(&key).arg("MAXLEN").arg("=").arg(16).arg("*").arg("data").arg(n).ignore();
        }
        let mut connection = crate::support::redis::connect(redis.port()).await.unwrap();
        burst.query_async::<()>(&mut connection).await.unwrap();
        assert_eq!(client.next_of("gap").await["missing"], json!(173), "{transport:?}");
        assert_eq!(client.texts(16).await, texts(184..200), "{transport:?}");
    }
}

#[tokio::test]
async fn an_unknown_stream_is_waited_for_or_refused_as_configured() {
    let redis = RedisServer::start().await;
    let waits = builder().redis(&redis).set("streams.producer_timeout", "'2s'").start().await;
    let refuses = builder().redis(&redis).set("streams.unknown", "'not-found'").start().await;
    for transport in BOTH {
        let id = format!("{transport:?}");
        let mut early = Client::resume(waits.public, transport, &id, None).await;
        let mut producer = Producer::new(&redis, &id).await;
        producer.tokens(0..3).await;
        assert_eq!(early.texts(3).await, texts(0..3));

        let mut never = Client::resume(waits.public, transport, "never", None).await;
        match transport {
            Transport::Sse => {
                let told = json!({ "type": "close", "code": 4404, "reason": "unknown_stream" });
                assert_eq!(never.next_of("close").await, told);
                let refused = Client::open(refuses.public, transport, "id=never", &[]).await;
                assert_eq!(refused.err(), Some(404));
            }
            Transport::Ws => {
                assert_eq!(never.next().await, Item::Closed(4404, "unknown_stream".into()));
                let mut refused = Client::resume(refuses.public, transport, "never", None).await;
                assert_eq!(refused.next().await, Item::Closed(4404, "unknown_stream".into()));
            }
        }
        assert_eq!(never.next().await, Item::End);
        let mut known = Client::resume(refuses.public, transport, &id, None).await;
        assert_eq!(known.texts(3).await, texts(0..3));
    }
}

#[tokio::test]
async fn a_silent_producer_is_told_and_an_absent_one_given_up() {
    let redis = RedisServer::start().await;
    let gateway = builder()
        .redis(&redis)
        .set("streams.producer_timeout", "'400ms'")
        .set("streams.abandon_timeout", "'3s'")
        .start()
        .await;
    for transport in BOTH {
        let id = format!("{transport:?}");
        let mut producer = Producer::new(&redis, &id).await;
        producer.tokens(0..1).await;
        let mut client = Client::resume(gateway.public, transport, &id, None).await;
        assert_eq!(client.texts(1).await, texts(0..1));
        let stalled = client.next_of("status").await;
        assert_eq!((&stalled["state"], &stalled["reason"]), (&json!("stalled"), &json!("producer")));
        producer.tokens(1..2).await;
        assert_eq!(client.next_of("status").await, json!({ "type": "status", "state": "live" }));
        assert_eq!(client.texts(1).await, texts(1..2));
        assert_eq!(client.next_of("status").await["state"], json!("stalled"));
        match transport {
            Transport::Sse => assert_eq!(client.next_of("close").await["reason"], json!("producer_timeout")),
            Transport::Ws => {
                assert_eq!(client.next().await, Item::Closed(4408, "producer_timeout".into()));
            }
        }
        assert_eq!(client.next().await, Item::End);
    }
}

/// However many watch, and however many streams there are: one connection reads for all.
#[tokio::test]
async fn all_sessions_of_a_replica_share_one_reader() {
    let (redis, gateway) = world().await;
    let mut producers = Vec::new();
    let mut clients = Vec::new();
    for n in 0..10 {
        let id = format!("s{n}");
        producers.push(Producer::new(&redis, &id).await);
        for transport in BOTH.repeat(3) {
            clients.push(Client::resume(gateway.public, transport, &id, None).await);
        }
    }
    gateway.metric_is("streams_watched", &[], client::DUE, 10.0).await;
    for producer in &mut producers {
        producer.tokens(0..20).await;
        producer.end().await;
    }
    for client in &mut clients {
        assert_eq!(client.texts(20).await, texts(0..20));
        client.next_of("end").await;
    }
    let info: String = redis.cmd(&["INFO", "clients"]).await;
    let connected = info.lines().find_map(|line| line.strip_prefix("connected_clients:")).unwrap();
    // Ours, and of the gateway the reader, the pool of four, the subscriber and the poller of the topology.
    assert!(connected.trim().parse::<usize>().unwrap() <= 11 + 7, "{info}");
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.sum("stream_entries_read_total", &[]), 210.0, "each entry is read once");
    assert_eq!(metrics.sum("stream_entries_delivered_total", &[]), 60.0 * 21.0);
}
