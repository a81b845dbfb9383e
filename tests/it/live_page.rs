//! The live page and its client library in real Chromium, against real gateways behind real Caddy and Nginx.
//!
//! Whatever befalls them, each scenario ends on current prices, with one session per browser and nothing on the
//! console.

pub mod looks;
pub mod stage;
pub mod streams;

use stage::{SOON, Stage, log_has};

use super::support::publisher::Statement;
use super::support::token::{expiring, token};
use super::support::wait::let_pass;
use std::time::{Duration, Instant};

#[tokio::test]
async fn a_gateway_that_is_killed_is_found_again() {
    let mut stage = Stage::set(1, |builder| builder).await;
    for transport in ["ws", "sse", "auto"] {
        let page = stage.open(&format!("transport={transport}")).await;
        stage.is_live(&page).await;
        stage.shows_current(&page).await;
        stage.gateways[0].process().kill9();
        page.wait_until("document.body.dataset.state === 'stale'", SOON).await;
        stage.gateways[0].restart().await;
        stage.ends_well(&page).await;
        let used = page.eval("document.body.dataset.transport").await;
        // Where the gateway answers again between the two, `auto` finds only WebSocket dead.
        assert!(used == transport || transport == "auto", "{used}");
        page.call("Page.close", serde_json::json!({})).await;
        stage.n_sessions(0.0).await;
    }
}

/// R48. What Nginx itself answers while no gateway does is a 503 with `Retry-After`; the bare 502 is another proxy's.
#[tokio::test]
async fn an_error_page_is_not_the_end_but_a_204_is() {
    let mut stage = Stage::set(1, |builder| builder).await;
    let page = stage.open("transport=sse").await;
    stage.is_live(&page).await;

    stage.gateways[0].process().kill9();
    page.wait_until(&log_has(r"http 503\. Again in \d\.\d s, as told"), SOON).await;
    stage.gateways[0].restart().await;
    stage.ends_well(&page).await;

    stage.answer_sse("error_page 418 /; return 502;").await;
    page.eval("tickbridge.client.setTransport('sse')").await;
    page.wait_until(&log_has(r"http 502\. Again in \d\.\d s"), SOON).await;
    let_pass(Duration::from_secs(5)).await;
    assert_eq!(page.eval("document.body.dataset.state").await, "stale");
    stage.answer_sse("").await;
    stage.ends_well(&page).await;

    stage.answer_sse("return 429;").await;
    page.eval("tickbridge.client.setTransport('sse')").await;
    page.wait_until(&log_has(r"http 429\. Again in [5-9]\.\d s, as told"), SOON).await;
    stage.answer_sse("").await;
    stage.ends_well(&page).await;

    stage.answer_sse("return 204;").await;
    page.eval("tickbridge.client.setTransport('sse')").await;
    page.wait_until("document.body.dataset.state === 'closed'", SOON).await;
    assert_eq!(page.eval("tickbridge.client.state.reason").await, "stopped");
    stage.answer_sse("").await;
    let_pass(Duration::from_secs(3)).await;
    assert_eq!(page.eval("document.body.dataset.state").await, "closed");
    stage.n_sessions(0.0).await;
    stage.is_quiet(&page).await;
}

#[tokio::test]
async fn a_refused_token_asks_for_another_and_does_not_loop() {
    let mut stage = Stage::set(1, |builder| builder.set("auth.anonymous", "false")).await;
    for transport in ["ws", "sse"] {
        let expired = expiring("7", -60);
        let page = stage.open(&format!("transport={transport}#token={expired}")).await;
        page.wait_until("!document.getElementById('signin').hidden", SOON).await;
        assert_eq!(page.eval("document.body.dataset.state").await, "closed");
        assert_eq!(page.eval("location.hash").await, "", "the token stays in the address");
        let route = [("route", transport)];
        let asked = stage.gateways[0].metrics().await.sum("http_requests_total", &route);
        let_pass(Duration::from_secs(3)).await;
        let later = stage.gateways[0].metrics().await.sum("http_requests_total", &route);
        assert_eq!(asked, later, "it tries again without a new token");

        let good = token("7");
        let submit = format!(
            "document.forms.signin.elements.token.value = '{good}'; document.forms.signin.requestSubmit()"
        );
        page.eval(&submit).await;
        stage.ends_well(&page).await;
        page.call("Page.close", serde_json::json!({})).await;
        stage.n_sessions(0.0).await;
    }
}

#[tokio::test]
async fn a_session_outlives_its_token_if_there_is_a_fresh_one() {
    let mut stage = Stage::set(1, |builder| builder.set("auth.anonymous", "false")).await;
    let page = stage.open(&format!("transport=ws#token={}", expiring("7", 6))).await;
    stage.is_live(&page).await;
    page.eval(&format!("tickbridge.signIn('{}')", token("7"))).await;
    // The gateway's leeway is a second.
    let_pass(Duration::from_secs(9)).await;
    stage.ends_well(&page).await;
    let metrics = stage.gateways[0].metrics().await;
    assert_eq!(metrics.sum("sessions_opened_total", &[]), 1.0);

    page.call("Page.close", serde_json::json!({})).await;
    stage.n_sessions(0.0).await;

    for transport in ["ws", "sse"] {
        let page = stage.open(&format!("transport={transport}#token={}", expiring("8", 6))).await;
        stage.is_live(&page).await;
        stage.shows_current(&page).await;
        page.wait_until("!document.getElementById('signin').hidden", SOON).await;
        page.wait_until(&log_has("sign in"), SOON).await;
        page.eval(&format!("tickbridge.signIn('{}')", token("8"))).await;
        stage.ends_well(&page).await;
        page.call("Page.close", serde_json::json!({})).await;
        stage.n_sessions(0.0).await;
    }
}

/// R56.
#[tokio::test]
async fn a_network_that_swallows_everything_is_noticed_in_two_heartbeats() {
    let mut stage = Stage::set(1, |builder| builder).await;
    for transport in ["ws", "sse"] {
        let page = stage.open(&format!("transport={transport}")).await;
        stage.is_live(&page).await;
        stage.shows_current(&page).await;
        stage.network.black_hole();
        page.wait_until("document.body.dataset.state === 'stale'", Duration::from_secs(2 * 2 + 2)).await;
        page.wait_until("document.querySelectorAll('tr[data-stale=true]').length > 0", SOON).await;
        stage.network.restore();
        stage.ends_well(&page).await;
        page.call("Page.close", serde_json::json!({})).await;
        stage.n_sessions(0.0).await;
    }
}

#[tokio::test]
async fn a_page_that_slept_shows_current_prices_when_it_wakes() {
    let mut stage = Stage::set(1, |builder| builder).await;
    // A session of its own, since a shared one lives in a worker that doesn't sleep.
    let page = stage.open("transport=ws&shared=0").await;
    stage.is_live(&page).await;
    stage.shows_current(&page).await;
    page.frozen(true).await;
    // The network is gone while the lid is closed, and comes back before the page knows.
    stage.network.drop_connections();
    let_pass(Duration::from_secs(6)).await;
    page.frozen(false).await;
    stage.ends_well(&page).await;
}

/// A tab that is frozen alone, as browsers do to save energy, while the worker goes on: what it missed isn't
/// played back to it.
#[tokio::test]
async fn a_frozen_tab_is_given_the_newest_and_not_all_that_it_missed() {
    let mut stage = Stage::set(1, |builder| builder).await;
    let page = stage.open("transport=ws").await;
    stage.is_live(&page).await;
    let awake = stage.open("transport=ws").await;
    stage.is_live(&awake).await;
    stage.shows_current(&page).await;
    let count = "globalThis.n = 0;
        tickbridge.client.subscribe([...Array(60).keys()].map((i) => `${i + 11}`), () => n++); 0";
    for tab in [&page, &awake] {
        tab.eval(count).await;
    }
    for id in 11..=70 {
        stage.publisher.publish(&Statement::new(id, "8.5", 1_760_000_100_000)).await;
    }
    for tab in [&page, &awake] {
        tab.wait_until("n >= 60", SOON).await;
    }
    page.frozen(true).await;
    let before = awake.eval("n").await.as_u64().unwrap();
    for round in 1..=15 {
        for id in 11..=70 {
            let now = 1_760_000_100_000 + round as i64;
            stage.publisher.announce(&Statement::new(id, "8.5", now)).await;
        }
        // One of each instrument at a time, so that the gateway has nothing to conflate.
        awake.wait_until(&format!("n >= {}", before + 60 * round), SOON).await;
    }
    let asleep = page.eval("n").await.as_u64().unwrap();
    page.frozen(false).await;
    stage.shows_current(&page).await;
    let taken = page.eval("n").await.as_u64().unwrap() - asleep;
    assert!(taken < 400, "{taken} of more than 900");
    stage.ends_well(&page).await;
}

/// R34 in a browser: the row of the one id shows the prices of no other, also after a reconnection.
#[tokio::test]
async fn ids_that_a_double_would_round_stay_apart() {
    const NEIGHBOURS: [i64; 2] = [9_007_199_254_740_992, 9_007_199_254_740_993];
    let mut stage = Stage::set(1, |builder| builder).await;
    for transport in ["ws", "sse"] {
        let page = stage.open(&format!("transport={transport}")).await;
        stage.is_live(&page).await;
        let choose = format!(
            "document.getElementById('ids').value = '{}'; document.getElementById('pick').requestSubmit()",
            NEIGHBOURS[1]
        );
        page.eval(&choose).await;
        let rows = "[...document.querySelectorAll('#board th')].map((th) => th.textContent).join()";
        assert_eq!(page.eval(rows).await, NEIGHBOURS[1].to_string());
        for cut in [false, true] {
            if cut {
                stage.network.drop_connections();
                page.wait_until(&log_has("Lost: "), SOON).await;
            }
            stage.is_live(&page).await;
            for (id, whole) in NEIGHBOURS.into_iter().zip([1, 2]) {
                stage.n_published += 1;
                let price = format!("{whole}{:03}.5", stage.n_published);
                let now = 1_760_000_000_000 + stage.n_published;
                stage.publisher.publish(&Statement::new(id, &price, now)).await;
            }
            let shown = format!(
                "document.querySelector('#board [data-field=price]').textContent === '2{:03}.5'",
                stage.n_published
            );
            page.wait_until(&shown, SOON).await;
            let told = "JSON.stringify([...document.querySelectorAll('#board [data-topic]')].map((td) => td.dataset.topic))";
            let told: Vec<String> = serde_json::from_str(page.eval(told).await.as_str().unwrap()).unwrap();
            assert!(told.iter().all(|topic| *topic == format!("quote:{}", NEIGHBOURS[1])), "{told:?}");
        }
        page.call("Page.close", serde_json::json!({})).await;
        stage.n_sessions(0.0).await;
    }
}

#[tokio::test]
async fn a_drained_gateway_hands_its_session_over_as_it_said() {
    let mut stage = Stage::set(2, |builder| builder).await;
    for transport in ["ws", "sse"] {
        let page = stage.open(&format!("transport={transport}")).await;
        stage.is_live(&page).await;
        stage.shows_current(&page).await;
        stage.n_sessions(1.0).await;
        let first = usize::from(stage.gateways[0].metrics().await.sum("sessions", &[]) < 0.5);
        assert!(stage.gateways[first].stop(SOON).await.success());
        page.wait_until(&log_has("as told"), SOON).await;
        stage.ends_well(&page).await;
        stage.gateways[first].restart().await;
        page.call("Page.close", serde_json::json!({})).await;
        stage.n_sessions(0.0).await;
    }
}

/// R65, the part of the page: one stream per browser.
#[tokio::test]
async fn eight_tabs_share_one_session_and_change_its_transport_together() {
    let mut stage = Stage::set(1, |builder| builder).await;
    let mut tabs = Vec::new();
    for _ in 0..8 {
        tabs.push(stage.open("").await);
    }
    for tab in &tabs {
        stage.is_live(tab).await;
        stage.shows_current(tab).await;
    }
    stage.n_sessions(1.0).await;

    for transport in ["sse", "ws"] {
        let radio = format!("document.querySelector('input[name=transport][value={transport}]').click()");
        tabs[3].eval(&radio).await;
        for tab in &tabs {
            let changed = format!(
                "document.body.dataset.transport === '{transport}' && document.body.dataset.state === 'live'"
            );
            tab.wait_until(&changed, SOON).await;
        }
        stage.n_sessions(1.0).await;
    }
    // The tab that opened the session goes; the others keep it.
    tabs.remove(0).call("Page.close", serde_json::json!({})).await;
    for tab in &tabs {
        stage.shows_current(tab).await;
        stage.is_quiet(tab).await;
    }
    stage.n_sessions(1.0).await;
    let metrics = stage.gateways[0].metrics().await;
    assert_eq!(metrics.sum("sessions_opened_total", &[]), 3.0, "one, and one per change of transport");
    for tab in tabs.drain(..) {
        tab.call("Page.close", serde_json::json!({})).await;
    }
    stage.n_sessions(0.0).await;
}

#[tokio::test]
async fn the_store_of_the_existing_front_end_works_as_it_is() {
    let mut stage = Stage::set(1, |builder| builder).await;
    let page = stage.open("").await;
    stage.shows_current(&page).await;
    let good = format!("'{}'", token("7"));
    for credentials in ["undefined", &good] {
        let url = format!("wss://localhost:{}/market/ws", stage.network.port());
        let script = format!(
            "{}; globalThis.store = createPriceStore('{url}', {credentials}, ['quote:2', 'quote:3']); 0",
            include_str!("../js/support/store.js")
        );
        page.eval(&script).await;
        page.wait_until("store.status === 'live' && 'quote:2' in store.prices", SOON).await;
        stage.publisher.publish(&Statement::new(3, "42.5", 1_760_000_001_000)).await;
        let filed = "JSON.stringify(store.prices['quote:3']) === '{\"price\":42.5,\"at\":1760000001000,\"volume\":12}'";
        page.wait_until(filed, SOON).await;
        // Answered heartbeats keep the session beyond the pong timeout.
        page.wait_until("store.pings >= 4", SOON).await;
        assert_eq!(page.eval("store.status").await, "live");
        assert_eq!(page.eval("store.acknowledged.join()").await, "quote:2,quote:3");
        assert_eq!(page.eval("store.errors.length").await, 0);
        stage.publisher.publish(&Statement::new(3, "42.4", 1_760_000_000_999)).await;
    }
}

#[tokio::test]
async fn the_page_can_be_slowed_down_and_used_by_keyboard() {
    let mut stage = Stage::set(1, |builder| builder).await;
    let page = stage.open("transport=ws").await;
    stage.is_live(&page).await;
    stage.shows_current(&page).await;
    // From the transport's radio one tab leads to the pace's, and an arrow changes it.
    page.eval("document.querySelector('input[name=transport]:checked').focus()").await;
    for (key, code) in [("Tab", 9), ("ArrowRight", 39), ("ArrowRight", 39)] {
        for kind in ["rawKeyDown", "keyUp"] {
            let event =
                serde_json::json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code });
            page.call("Input.dispatchKeyEvent", event).await;
        }
    }
    page.wait_until("document.querySelector('input[name=rate]:checked').value === '0.2'", SOON).await;
    page.wait_until(&log_has("At most 0.2 quotes a second"), SOON).await;
    // The gateway hears of the pace a little after the page shows it. From then on quotes that come while the
    // topic waits for its turn replace each other.
    let began = Instant::now();
    while stage.gateways[0].metrics().await.sum("deliveries_conflated_total", &[]) < 5.0 {
        assert!(began.elapsed() < SOON, "quotes are not conflated");
        stage.n_published += 1;
        let now = 1_760_000_000_000 + stage.n_published;
        stage.publisher.publish(&Statement::new(2, "5.5", now)).await;
    }
}
