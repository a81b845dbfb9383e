//! The admin listener: health, metrics, and that the public one has none of it.

use super::streams::client::{BOTH, Client};
use super::support::gateway::Gateway;
use super::support::http;
use super::support::sse::Sse;
use super::support::token::token;
use super::support::wait::wait_for;
use super::support::world::World;
use super::support::ws::Ws;
use serde_json::json;
use std::collections::HashMap;
use std::time::Duration;

#[tokio::test]
async fn readiness_follows_redis_and_liveness_does_not() {
    let mut world = World::start().await;
    world.redis.kill9();
    let within = Duration::from_secs(5);
    let unready = wait_for("not ready without Redis", within, || async {
        Some(world.gateway.readiness().await).filter(|answer| answer.head.status == 503)
    })
    .await;
    assert!(unready.body.contains("channels_not_subscribed"), "the reasons are named: {}", unready.body);
    assert_eq!(http::get(world.gateway.admin, "/livez", &[]).await.head.status, 200);
    world.redis.restart().await;
    wait_for("ready again", within, || async {
        (world.gateway.readiness().await.head.status == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn operators_paths_are_on_the_admin_listener_alone() {
    let world = World::start().await;
    for path in
        ["/livez", "/readyz", "/metrics", "/debug/sessions", "/actuator/health", "/actuator/prometheus"]
    {
        let admin = http::get(world.gateway.admin, path, &[]).await;
        assert_eq!(admin.head.status, 200, "{path}: {admin:?}");
        let public = http::get(world.gateway.public, path, &[]).await;
        assert_eq!(public.head.status, 404, "{path} on the public listener: {public:?}");
    }
    let health = http::get(world.gateway.admin, "/actuator/health", &[]).await;
    assert_eq!(health.json()["status"], "UP", "{health:?}");
}

/// Quantiles of single processes can't be added over replicas; buckets can.
#[tokio::test]
async fn r67_latencies_are_histograms_with_buckets_and_counters_never_fall() {
    let mut world = World::start().await;
    let mut ws = Ws::open_as(&world.gateway, "7").await;
    ws.subscribe(&["quote:101"]).await;
    let mut sse = Sse::open(&world.gateway, &token("8"), "quote:101").await;
    let mut earlier: HashMap<String, f64> = HashMap::new();
    for n in 1..=20 {
        world.say(&format!(r#"{{"stockId":101,"ts":{n},"publishedAt":{},"close":1.0}}"#, now_ms())).await;
        ws.next_event().await;
        sse.next_event().await;
        let text = world.gateway.metrics().await.text;
        let kinds: HashMap<&str, &str> =
            text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
        for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let value: f64 = value.parse().unwrap();
            let name = series.split('{').next().unwrap();
            let only_grows =
                name.ends_with("_total") || name.ends_with("_bucket") || name.ends_with("_count");
            if only_grows {
                let before = earlier.insert(series.to_owned(), value);
                assert!(before.is_none_or(|before| before <= value), "{series} fell to {value}");
            }
            if name.ends_with("_seconds") {
                assert_eq!(kinds.get(name), Some(&"gauge"), "{name} has no buckets");
            }
        }
    }
    let text = world.gateway.metrics().await.text;
    let histograms: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" histogram")).collect();
    assert!(histograms.len() >= 2, "{histograms:?}");
    assert!(!text.lines().any(|line| line.starts_with("# TYPE") && line.ends_with("summary")));
    for name in histograms {
        let bounds: Vec<f64> = text
            .lines()
            .filter(|line| line.starts_with(&format!("{name}_bucket{{")))
            .filter_map(|line| line.split("le=\"").nth(1)?.split('"').next()?.parse().ok())
            .filter(|bound: &f64| bound.is_finite())
            .collect();
        // A histogram without a value yet shows no series.
        let largest = bounds.iter().copied().fold(0.0, f64::max);
        assert!(
            bounds.is_empty() || largest >= 30.0,
            "{name} ends at {largest} s, below the longest timeout"
        );
    }
    for stage in ["published_to_arrived", "arrived_to_emitted", "emitted_to_written"] {
        let (what, stage, within) = (stage, [("stage", stage)], Duration::from_secs(2));
        world.gateway.metric_fits(what, "stage_seconds_count", &stage, within, |n| n >= 20.0).await;
    }
}

#[tokio::test]
async fn stamps_that_cannot_be_true_are_counted_and_not_clipped() {
    let mut world = World::start().await;
    let mut ws = Ws::open_as(&world.gateway, "7").await;
    ws.subscribe(&["quote:101"]).await;
    let hour = 3_600_000;
    for (n, published_at) in [(1, now_ms() + hour), (2, 1), (3, now_ms())] {
        world.say(&format!(r#"{{"stockId":101,"ts":{n},"publishedAt":{published_at},"close":1.0}}"#)).await;
        ws.next_event().await;
    }
    let metrics = world.gateway.metrics().await;
    let stage = ("stage", "published_to_arrived");
    for kind in ["negative", "absurd"] {
        let counted = metrics.sum("stage_anomalies_total", &[stage, ("kind", kind)]);
        assert!((counted - 1.0).abs() < 0.5, "{kind}: {counted}");
    }
    assert!((metrics.sum("stage_seconds_count", &[stage]) - 1.0).abs() < 0.5);
}

#[tokio::test]
async fn every_series_is_there_from_the_start_and_accounts_balance() {
    let mut world = World::start().await;
    let fresh = world.gateway.metrics().await;
    let mut ws = Ws::open_as(&world.gateway, "7").await;
    ws.subscribe(&["quote:101"]).await;
    for n in 1..=200 {
        world.announce(101, "71000.10", n).await;
    }
    let within = Duration::from_secs(3);
    world.gateway.metric_is("deliveries_offered_total", &[], within, 200.0).await;
    world.gateway.metric_is("deliveries_pending", &[], within, 0.0).await;
    let busy = world.gateway.metrics().await;
    let sum = |name| busy.sum(name, &[]);
    let accounted = sum("deliveries_delivered_total")
        + sum("deliveries_conflated_total")
        + sum("deliveries_dropped_total");
    assert!((accounted - 200.0).abs() < 0.5, "{accounted} of 200 accounted for");
    let known = fresh.names();
    // A histogram shows its series with its first value.
    let late: Vec<&str> =
        busy.names().into_iter().filter(|name| !known.contains(name) && !name.contains("_seconds")).collect();
    assert!(late.is_empty(), "not registered at the start: {late:?}");
}

#[tokio::test]
async fn sessions_are_listed_page_by_page_with_nothing_personal_but_the_user() {
    let world = World::start().await;
    let mut sessions = Vec::new();
    for user in ["5", "6", "7", "8"] {
        let mut ws = Ws::open_as(&world.gateway, user).await;
        ws.subscribe(&["quote:101", "quote:102"]).await;
        sessions.push(ws);
    }
    let _stream = Sse::open(&world.gateway, &token("9"), "quote:101").await;
    world.gateway.metric_is("sessions", &[], Duration::from_secs(5), 5.0).await;
    let (mut users, mut ids, mut from) = (Vec::new(), Vec::new(), String::new());
    loop {
        let page =
            http::get(world.gateway.admin, &format!("/debug/sessions?limit=2{from}"), &[]).await.json();
        let listed = page["sessions"].as_array().unwrap();
        assert!(listed.len() <= 2, "{page}");
        for session in listed {
            let mut fields: Vec<&String> = session.as_object().unwrap().keys().collect();
            fields.sort();
            assert_eq!(
                fields,
                ["backlog_age_ms", "blocked", "id", "pending", "subscriptions", "transport", "user_id"]
            );
            let is_stream = session["user_id"] == "9";
            assert_eq!(session["transport"], if is_stream { "sse" } else { "ws" });
            assert_eq!(session["subscriptions"], if is_stream { 1 } else { 2 });
            users.push(session["user_id"].as_str().unwrap().to_owned());
            ids.push(session["id"].as_str().unwrap().to_owned());
        }
        match page["next"].as_str() {
            Some(next) => from = format!("&from={next}"),
            None => break,
        }
    }
    users.sort();
    ids.sort();
    ids.dedup();
    assert_eq!((users, ids.len()), (["5", "6", "7", "8", "9"].map(String::from).to_vec(), 5));
}

#[tokio::test]
async fn sessions_of_streams_are_listed_behind_the_others_as_long_as_they_live() {
    // The clients of streams answer pings only while they are read.
    let world = World::start_with(|gateway| gateway.set("session.pong_timeout", "'5m'")).await;
    let mut ws = Ws::open_as(&world.gateway, "1").await;
    ws.subscribe(&["quote:101"]).await;
    let mut clients = Vec::new();
    for (n, transport) in (2..7).zip(BOTH.iter().cycle()) {
        let bearer = format!("Bearer {}", token(&n.to_string()));
        let query = format!("id=answer-{n}");
        let headers = [("Authorization", bearer.as_str())];
        clients.push(Client::open(world.gateway.public, *transport, &query, &headers).await.unwrap());
    }
    let pages = async |limit: usize| {
        let (mut listed, mut from) = (Vec::new(), String::new());
        loop {
            let path = format!("/debug/sessions?limit={limit}{from}");
            let page = http::get(world.gateway.admin, &path, &[]).await.json();
            let sessions = page["sessions"].as_array().unwrap();
            assert!(sessions.len() <= limit, "{page}");
            listed.extend(sessions.clone());
            match page["next"].as_str() {
                Some(next) => from = format!("&from={next}"),
                None => return listed,
            }
        }
    };
    for limit in 1..8 {
        let listed = pages(limit).await;
        let users: Vec<_> = listed.iter().map(|session| session["user_id"].as_str().unwrap()).collect();
        assert_eq!(users, ["1", "2", "3", "4", "5", "6"], "{limit} at a time");
    }
    let listed = pages(100).await;
    let fifth = json!({ "id": listed[4]["id"], "transport": "ws", "user_id": "5", "stream": "answer-5" });
    assert_eq!(listed[4], fifth);
    drop(clients.remove(3));
    wait_for("it is not listed any more", Duration::from_secs(5), || async {
        (!pages(2).await.contains(&fifth)).then_some(())
    })
    .await;
    assert_eq!(pages(2).await.len(), 5);
}

#[tokio::test]
async fn the_demo_gateway_needs_no_redis_and_no_token() {
    let gateway =
        Gateway::builder().set("redis.mode", "'embedded'").set("auth.anonymous", "true").start().await;
    let mut ws = Ws::open(&gateway).await;
    assert!(ws.subscribe(&["quote:1"]).await.contains(r#""subscribed":["quote:1"]"#));
}

fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    since.as_millis() as i64
}
