//! The publisher's digits, unchanged on every way to a client.

use super::support::http;
use super::support::publisher::Statement;
use super::support::token::token;
use super::support::world::{Client, Transport, World};

/// What a JSON library with default settings changes: last digits, trailing zeros, long integers.
const NUMBERS: [&str; 12] = [
    "117.63331139400017",
    "1.5777777777770001",
    "71000.10",
    "0.0",
    "1.0",
    "-0.0",
    "1e2",
    "1E+2",
    "1.5e-7",
    "9223372036854775807",
    "123456789012345678901234567890.123456789012345678901234567890",
    "0.1000000000000000055511151231257827",
];

const VOLUME: &str = "1234567890123456789";

fn statement(i: usize) -> Statement {
    let number = NUMBERS[i];
    let more = format!(r#""volume":{VOLUME},"open":{number},"value":{number},"prevDayChangePct":{number}"#);
    Statement { more, ..Statement::new(i as i64 + 1, number, 1_760_000_000_001) }
}

fn keeps_digits(way: &str, i: usize, event: &str) {
    let number = NUMBERS[i];
    for field in ["price", "open", "value", "prevDayChangePct"] {
        let exact = format!("\"{field}\":{number}");
        let end = event.find(&exact).map(|at| event.as_bytes()[at + exact.len()]);
        assert!(matches!(end, Some(b',' | b'}')), "{way}: {exact} in {event}");
    }
    assert!(event.contains(&format!("\"volume\":{VOLUME}")), "{way}: {event}");
}

#[tokio::test]
async fn r32_digits_arrive_as_they_were_written() {
    let topics: Vec<String> = (1..=NUMBERS.len()).map(|id| format!("quote:{id}")).collect();
    let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
    for transport in [Transport::Ws, Transport::Sse] {
        let mut world = World::start().await;
        let (mut client, _) = Client::subscribe(transport, &world.gateway, &topics).await;
        for i in 0..NUMBERS.len() {
            world.publisher.announce(&statement(i)).await;
            keeps_digits(&format!("{transport:?} live"), i, &client.next_event().await);
        }
        // From memory.
        let (mut late, _) = Client::subscribe(transport, &world.gateway, &[topics[2]]).await;
        keeps_digits(&format!("{transport:?} memory"), 2, &late.next_event().await);

        // From the keys, by a gateway that has heard nothing.
        for i in 0..NUMBERS.len() {
            world.publisher.store(&statement(i)).await;
        }
        world.gateway.restart().await;
        for (i, topic) in topics.iter().enumerate() {
            let (mut fresh, _) = Client::subscribe(transport, &world.gateway, &[topic]).await;
            keeps_digits(&format!("{transport:?} stored"), i, &fresh.next_event().await);
        }
    }
}

#[tokio::test]
async fn r32_prices_by_request_keep_their_digits() {
    let mut world = World::start().await;
    for i in 0..NUMBERS.len() {
        world.publisher.store(&statement(i)).await;
    }
    let bearer = format!("Bearer {}", token("7"));
    for i in 0..NUMBERS.len() {
        let path = format!("/market/prices?ids={}", i + 1);
        let answer = http::get(world.gateway.public, &path, &[("Authorization", &bearer)]).await;
        keeps_digits("prices", i, &answer.body);
    }
}
