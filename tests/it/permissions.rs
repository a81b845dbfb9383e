//! What a token lets its bearer see: at every door, through tickets, and again with each fresh token.

use super::support::gateway::Gateway;
use super::support::http;
use super::support::sse::Sse;
use super::support::token::{claims, signed};
use super::support::world::{Client, Transport, World};
use super::support::ws::Ws;
use serde_json::{Value, json};
use std::time::Duration;

/// A token of user 7 that carries `topics`.
fn allowing(topics: Value) -> String {
    let mut claims = claims("7");
    claims["topics"] = topics;
    signed(&claims)
}

async fn limited_world() -> World {
    World::start_with(|builder| builder.set("auth.jwt.topics_claim", "'topics'")).await
}

async fn get(gateway: &Gateway, path: &str, token: &str) -> http::Answer {
    let bearer = format!("Bearer {token}");
    http::get(gateway.public, path, &[("Authorization", &bearer)]).await
}

#[tokio::test]
async fn a_topic_that_the_token_does_not_allow_is_rejected_and_not_delivered() {
    let mut world = limited_world().await;
    let token = allowing(json!([101, "200..299"]));
    for (n, transport) in [(1, Transport::Ws), (2, Transport::Sse)] {
        let topics = ["quote:101", "quote:102", "quote:250", "bogus"];
        let (mut client, acknowledgement) =
            Client::subscribe_as(transport, &world.gateway, &token, &topics).await;
        assert!(
            acknowledgement.contains(concat!(
                r#""subscribed":["quote:101","quote:250"],"already_subscribed":[],"#,
                r#""rejected":["bogus","quote:102"],"rejected_reasons":["invalid_topic","forbidden"]"#
            )),
            "{transport:?}: {acknowledgement}"
        );
        for id in [102, 250, 101] {
            world.announce(id, "71000.10", n).await;
        }
        let mut seen = Vec::new();
        while !seen.contains(&101) || !seen.contains(&250) {
            let event: Value = serde_json::from_str(&client.next_event().await).unwrap();
            seen.push(event["data"]["stockId"].as_i64().unwrap());
        }
        assert!(!seen.contains(&102), "{transport:?}: {seen:?}");
    }
}

#[tokio::test]
async fn who_may_see_nothing_of_it_gets_neither_a_stream_nor_prices() {
    let mut world = limited_world().await;
    world.store(101, "1.5", 1).await;
    world.store(102, "2.5", 1).await;
    let token = allowing(json!(["101"]));
    for path in ["/market/sse?topics=quote:102,quote:103", "/market/prices?ids=102,103"] {
        let answer = get(&world.gateway, path, &token).await;
        assert_eq!((answer.head.status, &answer.json()["code"]), (403, &json!("UNAUTHORIZED")), "{path}");
    }
    let prices = get(&world.gateway, "/market/prices?ids=101,102", &token).await.json();
    assert!(!prices["101"].is_null() && prices["102"].is_null(), "{prices}");

    // A token without the claim shows nothing, one with a claim that can't be read is none.
    let without = signed(&claims("7"));
    assert_eq!(get(&world.gateway, "/market/prices?ids=101", &without).await.head.status, 403);
    let (_, acknowledgement) =
        Client::subscribe_as(Transport::Ws, &world.gateway, &without, &["quote:101"]).await;
    assert!(acknowledgement.contains(r#""subscribed":[]"#), "{acknowledgement}");
    let unreadable = allowing(json!(["1-5"]));
    assert_eq!(get(&world.gateway, "/market/prices?ids=101", &unreadable).await.head.status, 401);
    let metrics = world.gateway.metrics().await;
    assert!((metrics.sum("auth_failures_total", &[("reason", "permissions")]) - 1.0).abs() < 0.5);
    assert!((metrics.sum("refusals_total", &[("reason", "forbidden")]) - 3.0).abs() < 0.5);
}

#[tokio::test]
async fn a_ticket_carries_what_its_token_allowed() {
    let world = limited_world().await;
    let ticket = async || {
        let bearer = format!("Bearer {}", allowing(json!(["101"])));
        let auth = [("Authorization", bearer.as_str())];
        let answer = http::request(world.gateway.public, "POST", "/market/ticket", &auth, "").await;
        answer.json()["ticket"].as_str().expect("a ticket").to_owned()
    };
    let path = format!("/market/ws?ticket={}", ticket().await);
    let mut ws = Ws::connect(world.gateway.public, &path, &[]).await.expect("the ticket is good");
    let acknowledgement = ws.subscribe(&["quote:101", "quote:102"]).await;
    let rejected = r#""subscribed":["quote:101"],"already_subscribed":[],"rejected":["quote:102"]"#;
    assert!(acknowledgement.contains(rejected), "{acknowledgement}");
    let path = format!("/market/sse?topics=quote:101,quote:102&ticket={}", ticket().await);
    let mut sse = Sse::connect(world.gateway.public, &path, &[]).await.expect("the ticket is good");
    let acknowledgement = sse.acknowledgement().await;
    assert!(acknowledgement.contains(rejected), "{acknowledgement}");
    let path = format!("/market/sse?topics=quote:102&ticket={}", ticket().await);
    let refused = Sse::connect(world.gateway.public, &path, &[]).await.err().expect("no stream");
    assert_eq!(refused.head.status, 403);
}

#[tokio::test]
async fn a_fresh_token_ends_what_it_does_not_allow_and_says_so() {
    let mut world = limited_world().await;
    let mut ws = Ws::open(&world.gateway).await;
    ws.auth(&allowing(json!(["100..199"]))).await;
    ws.subscribe(&["quote:101", "quote:102", "quote:103"]).await;
    ws.auth(&allowing(json!(["102", "500"]))).await;
    let revoked = ws.next_json().await;
    assert_eq!(revoked["type"], "revoked", "{revoked}");
    assert_eq!(revoked["topics"], json!(["quote:101", "quote:103"]));
    world.gateway.metric_is("subscriptions", &[], Duration::from_secs(3), 1.0).await;
    for id in [101, 103, 102] {
        world.announce(id, "71000.10", 1).await;
    }
    assert!(ws.next_event().await.contains(r#""topic":"quote:102""#));
    let acknowledgement = ws.subscribe(&["quote:101", "quote:102", "quote:500"]).await;
    assert!(
        acknowledgement.contains(concat!(
            r#""subscribed":["quote:102","quote:500"],"already_subscribed":["quote:102"],"#,
            r#""rejected":["quote:101"],"rejected_reasons":["forbidden"]"#
        )),
        "{acknowledgement}"
    );
    // One that allows all there is ends nothing and says nothing.
    ws.auth(&allowing(json!(["*"]))).await;
    assert!(ws.subscribe(&["quote:101"]).await.contains(r#""subscribed":["quote:101"]"#));
}
