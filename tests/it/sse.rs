//! What only SSE has: headers, heartbeats as comments, ids, hostile parameters.

use super::support::gateway::Gateway;
use super::support::http;
use super::support::publisher::{Statement, price_key};
use super::support::sse::{Item, Sse};
use super::support::token::token;
use super::support::wait::{in_time, wait_for};
use super::support::world::World;
use super::support::ws::Ws;
use std::time::{Duration, Instant};

/// Reads until the acknowledgement and gives what came before it and with it.
async fn opening(sse: &mut Sse) -> Vec<Item> {
    let mut items = Vec::new();
    loop {
        let item = sse.next().await;
        let acknowledged = matches!(&item, Item::Event { name, .. } if name == "subscribe");
        items.push(item);
        if acknowledged {
            return items;
        }
    }
}

#[tokio::test]
async fn r44_a_stream_shows_itself_at_once_and_stays_warm() {
    let mut world = World::start().await;
    let asked = Instant::now();
    let mut sse = Sse::open(&world.gateway, &token("7"), "quote:101").await;
    assert!(sse.head.header("content-type").starts_with("text/event-stream"), "{:?}", sse.head);
    assert_eq!(sse.head.header("cache-control"), "no-cache, no-transform");
    assert_eq!(sse.head.header("x-accel-buffering"), "no");
    let items = opening(&mut sse).await;
    assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
    assert!(matches!(items[0], Item::Retry(ms) if (100..60_000).contains(&ms)), "{items:?}");
    let has_comment = items.iter().any(|item| matches!(item, Item::Comment(_)));
    let mut ws = Ws::open_as(&world.gateway, "7").await;
    ws.subscribe(&["quote:101"]).await;

    // Longer than any heartbeat: nothing but comments keeps the link warm, one per interval.
    let (mut n_comments, quiet_since) = (0, Instant::now());
    while let Some(item) = sse.next_within(Duration::from_secs(8).saturating_sub(quiet_since.elapsed())).await
    {
        assert!(matches!(item, Item::Comment(_)), "{item:?}");
        assert!(
            n_comments > 0 || has_comment || quiet_since.elapsed() < Duration::from_secs(1),
            "no comment at once"
        );
        n_comments += 1;
    }
    assert!((3..=5).contains(&n_comments), "{n_comments} comments in eight seconds");
    world.announce(101, "71000.10", 1).await;
    in_time("the quote after the silence", Duration::from_secs(1), async {
        sse.next_event().await;
        ws.next_event().await;
    })
    .await;
}

#[tokio::test]
async fn refusals_are_json_and_no_stream() {
    let world = World::start().await;
    let bearer = format!("Bearer {}", token("7"));
    let auth = [("Authorization", bearer.as_str())];
    for (path, status, code) in [
        ("/market/sse", 400, "BAD_REQUEST"),
        ("/market/sse?topics=", 400, "BAD_REQUEST"),
        ("/market/sse?topics=bogus,quote:%2B5", 400, "BAD_REQUEST"),
    ] {
        let refused = Sse::connect(world.gateway.public, path, &auth).await;
        let answer = refused.err().unwrap_or_else(|| panic!("{path} is a stream"));
        assert_eq!(
            (answer.head.status, &answer.json()["code"]),
            (status, &code.into()),
            "{path}: {answer:?}"
        );
    }
    let refused = Sse::connect(world.gateway.public, "/market/sse?topics=quote:1&ticket=unknown", &[]).await;
    assert_eq!(refused.err().expect("no stream").head.status, 401);
}

#[tokio::test]
async fn the_first_event_names_the_rejected_topics() {
    let world = World::start().await;
    let mut sse = Sse::open(&world.gateway, &token("7"), "quote:1,bogus,quote:01").await;
    let acknowledgement = sse.acknowledgement().await;
    assert!(acknowledgement.contains(r#""subscribed":["quote:1"]"#), "{acknowledgement}");
    assert!(acknowledgement.contains(r#""rejected":["bogus"]"#), "{acknowledgement}");
}

#[tokio::test]
async fn r45_line_breaks_in_parameters_make_no_fields() {
    let world = World::start().await;
    let bearer = format!("Bearer {}", token("7"));
    let auth = [("Authorization", bearer.as_str())];
    let forged = ["%0A", "%0D", "%0D%0A", "%00", "%0A%0A"]
        .map(|line| format!("{line}data:%20%7B%22x%22:1%7D{line}{line}"));
    for forged in &forged {
        for path in [
            format!("/market/sse?topics=quote:101{forged}"),
            format!("/market/sse?topics=quote:101,{forged}"),
            format!("/market/sse?topics=quote:101,quote:102{forged}"),
            format!("/market/sse?topics=quote:101&last_event_id={forged}"),
            format!("/market/sse?topics=quote:101&{forged}=1"),
            format!("/market/sse?topics=quote:101&ticket={forged}"),
            format!("/market/prices?ids=101{forged}"),
            format!("/market/prices?ids={forged}"),
        ] {
            // The client refuses fields that it doesn't know, so that a forged line fails the test.
            match Sse::connect(world.gateway.public, &path, &auth).await {
                Ok(mut sse) if path.contains("/sse") => {
                    for item in opening(&mut sse).await {
                        let Item::Event { name, data, .. } = item else { continue };
                        assert_eq!(name, "subscribe", "{path}: {data}");
                        let json: serde_json::Value = serde_json::from_str(&data).unwrap();
                        assert_eq!(json["type"], "subscribe", "{path}: {data}");
                    }
                }
                Ok(_) => {}
                Err(answer) => assert!((400..500).contains(&answer.head.status), "{path}: {answer:?}"),
            }
        }
    }
    let id = "Last-Event-ID";
    let headers = [auth[0], (id, "1\tdata: x")];
    let mut sse = Sse::connect(world.gateway.public, "/market/sse?topics=quote:101", &headers).await.unwrap();
    sse.acknowledgement().await;
    drop(sse);
    let within = Duration::from_secs(5);
    world.gateway.metric_is("sessions", &[], within, 0.0).await;
    let log = world.gateway.log();
    assert!(!log.contains("panicked") && !log.lines().any(|line| line.starts_with("data:")), "{log}");
}

/// Everything that comes before the first heartbeat after the opening.
async fn resumed(gateway: &Gateway, last_id: &str) -> (Vec<String>, String) {
    let mut sse = Sse::resume(gateway, &token("7"), "quote:101,quote:102", Some(last_id)).await;
    sse.acknowledgement().await;
    let (mut events, mut comments) = (Vec::new(), 0);
    // The second comment is due a heartbeat after the opening, long after every snapshot.
    while comments < 2 {
        match sse.next().await {
            Item::Event { data, .. } => events.push(data),
            Item::Comment(_) => comments += 1,
            other => panic!("{other:?}"),
        }
    }
    (events, sse.last_id.unwrap_or_else(|| last_id.to_owned()))
}

#[tokio::test]
async fn r47_a_stream_goes_on_at_any_replica_without_repeating_or_skipping() {
    let mut world = World::start().await;
    let mut other = Gateway::start(&world.redis).await;
    let mut sse = Sse::open(&world.gateway, &token("7"), "quote:101,quote:102").await;
    sse.acknowledgement().await;
    for (id, price) in [(101, "10"), (102, "5")] {
        world.publisher.publish(&Statement::new(id, price, 1000)).await;
        // The key may be read as it is written, and come first; it has no version.
        let live = format!(r#""stockId":{id},"eventTs":1000,"#);
        while !sse.next_event().await.contains(&live) {}
    }
    let id = sse.last_id.clone().expect("events have ids");
    drop(sse);
    world.publisher.publish(&Statement::new(101, "20", 2000)).await;
    other
        .metric_fits(
            "the other replica has heard it",
            "upstream_messages_total",
            &[],
            Duration::from_secs(2),
            |n| n >= 3.0,
        )
        .await;

    let (events, id) = resumed(&other, &id).await;
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(events[0].contains(r#""price":20,"#) && events[0].contains("quote:101"), "{events:?}");
    let (events, id) = resumed(&other, &id).await;
    assert_eq!(events, Vec::<String>::new());
    let (events, _) = resumed(&world.gateway, &id).await;
    assert_eq!(events, Vec::<String>::new());

    // A replica that has heard nothing reads the versions from the keys, where they are.
    for (key, value) in [
        (price_key(101), r#"{"stockId":101,"price":30,"ts":3000}"#),
        (price_key(102), r#"{"stockId":102,"price":5,"ts":1000}"#),
    ] {
        world.redis.cmd::<String>(&["SET", &key, value]).await;
    }
    other.restart().await;
    let (events, id) = resumed(&other, &id).await;
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(events[0].contains(r#""price":30,"#), "{events:?}");
    let (events, _) = resumed(&other, &id).await;
    assert_eq!(events, Vec::<String>::new());
}

#[tokio::test]
async fn an_id_that_says_nothing_means_a_full_snapshot() {
    let mut world = World::start().await;
    for id in [101, 102] {
        world.store(id, "71000.10", 1000).await;
    }
    for last_id in ["x", "w", "AQIDBA", "%%%", &"A".repeat(5000)] {
        let (events, _) = resumed(&world.gateway, last_id).await;
        assert_eq!(events.len(), 2, "{last_id}: {events:?}");
    }
    let bearer = format!("Bearer {}", token("7"));
    let path = "/market/sse?topics=quote:101&last_event_id=x";
    let mut sse = Sse::connect(world.gateway.public, path, &[("Authorization", &bearer)]).await.unwrap();
    assert!(sse.next_event().await.contains("71000.10"));
}

#[tokio::test]
async fn a_ticket_opens_one_stream_once() {
    let world = World::start().await;
    let bearer = format!("Bearer {}", token("7"));
    let ticket = async || {
        let auth = [("Authorization", bearer.as_str())];
        let answer = http::request(world.gateway.public, "POST", "/market/ticket", &auth, "").await;
        assert_eq!(answer.head.status, 200, "{answer:?}");
        answer.json()["ticket"].as_str().expect("a ticket").to_owned()
    };
    let path = format!("/market/sse?topics=quote:1&ticket={}", ticket().await);
    let mut sse = Sse::connect(world.gateway.public, &path, &[]).await.expect("the first use");
    sse.acknowledgement().await;
    let again = Sse::connect(world.gateway.public, &path, &[]).await;
    assert_eq!(again.err().expect("the second use is refused").head.status, 401);

    let path = format!("/market/ws?ticket={}", ticket().await);
    let mut ws = Ws::connect(world.gateway.public, &path, &[]).await.expect("the first use");
    assert!(ws.subscribe(&["quote:1"]).await.contains(r#""subscribed":["quote:1"]"#));
    let without = http::request(world.gateway.public, "POST", "/market/ticket", &[], "").await;
    assert_eq!(without.head.status, 401);
    wait_for("used tickets are gone from Redis", Duration::from_secs(2), || async {
        let keys: Vec<String> = world.redis.cmd(&["KEYS", "tickbridge:ticket:*"]).await;
        keys.is_empty().then_some(())
    })
    .await;
}
