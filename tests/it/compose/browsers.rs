//! Browsers before the composed edge: many tabs of one, and many event streams on one HTTP/2 connection.

use std::time::{Duration, Instant};

use serde_json::json;

use super::stack::Stack;
use crate::proxies::h2;
use crate::support::browser::Browser;
use crate::support::token::token;
use crate::support::wait::{in_time, wait_for};

/// Longer than anything here takes, so that what hangs is told from what is slow.
const BOUND: Duration = Duration::from_secs(60);

/// A tab, from its opening until it shows prices.
const TAB: Duration = Duration::from_secs(2);

/// From a publication until everybody has it.
const ARRIVAL: Duration = Duration::from_secs(1);

const LIVE: &str = "document.body.dataset.state === 'live'";

/// With HTTP/1.1 the seventh tab would hang: browsers open six connections per host.
pub async fn open_many_tabs(stack: &Stack) {
    stack.publish(1..=3, "7.25").await;
    let browser = Browser::start_with(&["--ignore-certificate-errors"]).await;
    let url = |query: &str| {
        format!("https://localhost:{}/?{query}&shared=0&ids=1,2,3#token={}", stack.edge().port(), token("t"))
    };
    let prices = "[1, 2, 3].every((id) => \
        document.querySelector(`[data-topic=\"quote:${id}\"][data-field=price]`)?.textContent === '7.25')";
    let mut tabs = Vec::new();
    let mut slowest = Duration::ZERO;
    for n in 1..=8 {
        let opened = Instant::now();
        let tab = browser.open(&url("transport=sse")).await;
        tab.wait_until_loaded(&format!("{LIVE} && {prices}"), BOUND).await;
        let took = opened.elapsed();
        // The first one warms the browser up as well.
        assert!(n == 1 || took < stack.bound(TAB), "tab {n} showed its prices after {took:?}");
        slowest = slowest.max(took);
        tabs.push(tab);
    }
    eprintln!("  eight tabs stream, the slowest to load took {slowest:?}");
    let streams = stack.each("sessions", &[("transport", "sse")]).await.unwrap();
    assert!(streams.iter().sum::<f64>() >= 8.0, "one stream per tab: {streams:?}");
    let protocol = tabs[7].eval("performance.getEntriesByType('navigation')[0].nextHopProtocol").await;
    assert_eq!(protocol, json!("h2"));
    let tab = browser.open(&url("transport=ws")).await;
    let is_ws = "document.body.dataset.transport === 'ws'";
    tab.wait_until_loaded(&format!("{LIVE} && {prices} && {is_ws}"), BOUND).await;
    drop((tab, tabs, browser));
    wait_for("the tabs' sessions are gone", BOUND, || async {
        (stack.each("sessions", &[]).await?.iter().sum::<f64>() < 0.5).then_some(())
    })
    .await;
}

/// 120 streams on one connection, one of them never read: its window fills up, and the others must not notice.
pub async fn share_a_connection(stack: &Stack) {
    let connection = h2::Connection::open(stack.edge(), &stack.root().await).await;
    let jwt = token("h");
    let unread = connection.sse("/api/market/sse?topics=quote:901,quote:902", &jwt).await;
    let mut streams = Vec::new();
    for _ in 0..119 {
        let mut stream = connection.sse("/api/market/sse?topics=quote:902", &jwt).await;
        stream.until("event: subscribe").await;
        streams.push(stream);
    }
    // Several times what the unread stream's window and the proxies' buffers hold, on a topic of its own.
    stack.flood(901, 2_000).await;
    for price in ["2.5", "3.5", "4.5"] {
        let published = Instant::now();
        stack.publish(902..=902, price).await;
        let asked = Instant::now();
        for stream in &mut streams {
            in_time("a quote", BOUND, stream.until(&format!(r#""price":{price}"#))).await;
        }
        let after = asked.elapsed();
        assert!(
            after < stack.bound(ARRIVAL),
            "{after:?} after a publication that took {:?}",
            asked - published
        );
    }
    drop(unread);
}
