//! One table of what a session is promised, run over WebSocket and over SSE.

use super::support::publisher::{price_key, updated_at_key};
use super::support::world::{Client, Transport, World};

/// Published to see that nothing else is on its way: quotes of one channel keep their order.
const FENCE: &str = "quote:999";

/// One thing that happens, or must be seen.
enum Step {
    /// A price key and its updated-at key are written.
    Store(i64, &'static str, i64),
    /// A message is published.
    Say(&'static str),
    /// The client subscribes; the acknowledgement contains these texts.
    Subscribe(&'static [&'static str], &'static [&'static str]),
    /// The next event contains the first texts and none of the second.
    Event(&'static [&'static str], &'static [&'static str]),
    /// Nothing comes but the fence.
    Nothing,
}
use Step::{Event, Nothing, Say, Store, Subscribe};

/// Each case has instruments of its own, because the gateway remembers.
const CASES: &[(&str, &[Step])] = &[
    (
        "an acknowledgement lists every topic once, in its canonical form",
        &[Subscribe(
            &["quote:-4", "quote:1", "quote:0002", "bogus", "quote:2", "quote:+3"],
            &[
                r#""subscribed":["quote:-4","quote:1","quote:2","quote:999"]"#,
                r#""already_subscribed":[]"#,
                r#""rejected":["bogus","quote:+3"]"#,
            ],
        )],
    ),
    ("a topic without a price has no event", &[Subscribe(&["quote:10"], &[]), Nothing]),
    (
        "a stored price comes first and is marked",
        &[
            Store(
                20,
                r#"{"stockId":20,"price":71000.10,"volume":1234,"at":"2026-07-06T09:00:01"}"#,
                1_760_000_000_001,
            ),
            Subscribe(&["quote:20"], &[]),
            Event(
                &[
                    r#"{"type":"event","topic":"quote:20","ts":"#,
                    r#""data":{"stockId":20,"#,
                    r#""price":71000.10,"volume":1234,"at":"2026-07-06T09:00:01","initial":true}}"#,
                ],
                &[],
            ),
            Nothing,
        ],
    ),
    (
        "a live event has the fixed fields in their order",
        &[
            Subscribe(&["quote:30"], &[]),
            Say(
                r#"{"stockId":30,"ts":1760000000100,"publishedAt":1760000000110,"at":"2026-07-06T09:00:01","open":70500,"high":71100,"low":70400,"close":71000.10,"prevDayChangePct":1.2345,"volume":1234,"executionVolume":5,"value":87654321,"seq":42,"unknown":{"a":1}}"#,
            ),
            Event(
                &[
                    r#"{"type":"event","topic":"quote:30","ts":"#,
                    r#""data":{"stockId":30,"eventTs":1760000000100,"publishedAt":1760000000110,"arrivedAt":"#,
                    r#","price":71000.10,"prevDayChangePct":1.2345,"volume":1234,"open":70500,"high":71100,"low":70400,"value":87654321,"at":"2026-07-06T09:00:01","seq":42}}"#,
                ],
                &["initial", "unknown", "executionVolume"],
            ),
        ],
    ),
    (
        "a field that the source lacks is left out",
        &[
            Subscribe(&["quote:40"], &[]),
            Say(r#"{"stockId":40,"close":1.0}"#),
            Event(
                &[r#""data":{"stockId":40,"arrivedAt":"#, r#""price":1.0}}"#],
                &["eventTs", "publishedAt", "volume", "open", "null", "seq"],
            ),
        ],
    ),
    (
        "an older or repeated statement is not passed on",
        &[
            Subscribe(&["quote:50"], &[]),
            Say(r#"{"stockId":50,"ts":2000,"close":20}"#),
            Event(&[r#""price":20}}"#], &[]),
            Say(r#"{"stockId":50,"ts":1000,"close":10}"#),
            Nothing,
            Say(r#"{"stockId":50,"ts":2000,"close":20}"#),
            Nothing,
            Say(r#"{"stockId":50,"ts":2000,"close":21}"#),
            Event(&[r#""price":21}}"#], &[]),
        ],
    ),
    (
        "seq decides where both quotes carry one",
        &[
            Subscribe(&["quote:60"], &[]),
            Say(r#"{"stockId":60,"ts":2000,"seq":5,"close":1}"#),
            Event(&[r#""seq":5}}"#], &[]),
            Say(r#"{"stockId":60,"ts":1000,"seq":6,"close":2}"#),
            Event(&[r#""seq":6}}"#], &[]),
            Say(r#"{"stockId":60,"ts":9000,"seq":4,"close":3}"#),
            Nothing,
        ],
    ),
    (
        "a stored price older than the live one is not sent to who comes later",
        &[
            Store(70, r#"{"stockId":70,"price":10,"ts":1000}"#, 1000),
            Say(r#"{"stockId":70,"ts":2000,"close":20}"#),
            // The fence of the first subscription proves that the gateway has read the message.
            Subscribe(&[], &[]),
            Nothing,
            Subscribe(&["quote:70"], &[]),
            Event(&[r#""price":20,"initial":true}}"#], &[]),
            Nothing,
        ],
    ),
    (
        "ids above 2^53 and below zero are themselves",
        &[
            Subscribe(&["quote:9007199254740993", "quote:-80"], &[]),
            Say(r#"{"stockId":9007199254740992,"ts":1,"close":1}"#),
            Nothing,
            Say(r#"{"stockId":9007199254740993,"ts":1,"close":1}"#),
            Event(&[r#""topic":"quote:9007199254740993""#, r#""stockId":9007199254740993,"#], &[]),
            Say(r#"{"stockId":-80,"ts":1,"close":1}"#),
            Event(&[r#""topic":"quote:-80""#, r#""stockId":-80,"#], &[]),
        ],
    ),
    (
        "a date-time as an array passes through",
        &[
            Subscribe(&["quote:90"], &[]),
            Say(r#"{"stockId":90,"ts":1,"close":1,"at":[2026,7,6,9,0,1]}"#),
            Event(&[r#""at":[2026,7,6,9,0,1]"#], &[]),
        ],
    ),
    (
        "r45 line breaks in the source's texts stay inside their string",
        &[
            Subscribe(&["quote:100"], &[]),
            Say(r#"{"stockId":100,"ts":1,"close":1,"at":"a\n\nevent: x\r\ndata: {}\u0000"}"#),
            Event(&[r#""at":"a\n\nevent: x\r\ndata: {}\u0000""#], &[]),
            Say("{\"stockId\":100,\n\n\"ts\":2,\r\n\"close\"\n:\n2}"),
            Event(&[r#""price":2}}"#], &[]),
        ],
    ),
    (
        "what can't be used disturbs nothing",
        &[
            Subscribe(&["quote:110"], &[]),
            Say("foo"),
            Say(r#"{"stockId":"110","close":1}"#),
            Say(r#"{"stockId":110.5,"close":1}"#),
            Nothing,
            Say(r#"{"stockId":110,"ts":1,"close":1}"#),
            Event(&[r#""price":1}}"#], &[]),
        ],
    ),
];

#[tokio::test]
async fn contract_holds_over_websocket() {
    contract_holds(Transport::Ws).await;
}

#[tokio::test]
async fn contract_holds_over_sse() {
    contract_holds(Transport::Sse).await;
}

async fn contract_holds(transport: Transport) {
    let mut world = World::start().await;
    let mut n_fences = 0;
    for (name, steps) in CASES {
        println!("{transport:?}: {name}");
        let mut client = None;
        for step in *steps {
            let due = || panic!("{name}: subscribes first");
            match step {
                Store(id, json, updated_at) => store(&world, *id, json, *updated_at).await,
                Say(payload) => world.say(payload).await,
                Subscribe(topics, expected) => {
                    let topics = [topics, [FENCE].as_slice()].concat();
                    let (fresh, acknowledgement) =
                        Client::subscribe(transport, &world.gateway, &topics).await;
                    contains(name, &acknowledgement, expected, &[]);
                    client = Some(fresh);
                }
                Event(present, absent) => {
                    let event = next(client.as_mut().unwrap_or_else(due), n_fences).await;
                    contains(name, &event, present, absent);
                }
                Nothing => {
                    n_fences += 1;
                    world.announce(999, "1", n_fences).await;
                    let event = next(client.as_mut().unwrap_or_else(due), n_fences - 1).await;
                    contains(name, &event, &[FENCE, &fence(n_fences)], &[]);
                }
            }
        }
    }
}

fn fence(n: i64) -> String {
    format!(r#""eventTs":{n},"#)
}

/// The next event that isn't the last fence of before, of which a new session learns whenever its lane does.
async fn next(client: &mut Client, n_known: i64) -> String {
    loop {
        let event = client.next_event().await;
        if !(event.contains(FENCE) && event.contains(&fence(n_known))) {
            return event;
        }
    }
}

async fn store(world: &World, id: i64, json: &str, updated_at: i64) {
    let (key, at) = (price_key(id), updated_at.to_string());
    world.redis.cmd::<String>(&["SET", &key, json, "EX", "300"]).await;
    world.redis.cmd::<String>(&["SET", &updated_at_key(id), &at, "EX", "300"]).await;
}

/// Checks that `text` contains all of `present`, in that order, and none of `absent`.
fn contains(name: &str, text: &str, present: &[&str], absent: &[&str]) {
    let mut rest = text;
    for part in present {
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => panic!("{name}: no {part} (in this order) in {text}"),
        }
    }
    for part in absent {
        assert!(!text.contains(part), "{name}: {part} in {text}");
    }
}
