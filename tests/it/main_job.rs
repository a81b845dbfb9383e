//! The main job from end to end: real prices, a real cluster, the real binary twice, a real browser.

use super::support::browser::Browser;
use super::support::cluster::RedisCluster;
use super::support::gateway::Gateway;
use super::support::process::Process;
use super::support::wait::wait_for;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The file's rows go out within seconds, and are still watched as they move.
const RATE: &str = "1500";

const FEED_TIMEOUT: Duration = Duration::from_secs(60);
const SHOWN_WITHIN: Duration = Duration::from_secs(10);

fn real_prices() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/eustockmarkets.csv")
}

/// The prices in the last row of the file, as they are written there.
fn last_prices() -> Vec<String> {
    let text = std::fs::read_to_string(real_prices()).unwrap();
    let last = text.lines().last().expect("the file has rows");
    last.split(',').skip(1).map(str::to_owned).collect()
}

/// An expression that is true when the page shows `prices` for the instruments 1, 2, ….
fn shows(prices: &[String]) -> String {
    let shown = |(i, price): (usize, &String)| {
        let cell = format!(r#"[data-topic="quote:{}"][data-field="price"]"#, i + 1);
        format!("document.querySelector('{cell}')?.textContent === '{price}'")
    };
    prices.iter().enumerate().map(shown).collect::<Vec<_>>().join(" && ")
}

#[tokio::test]
async fn a_browser_shows_the_last_real_prices_over_both_transports() {
    let prices = last_prices();
    assert_eq!(prices, ["5473.72", "7676.3", "3995.0", "5455.0"], "DAX, SMI, CAC and FTSE at their last day");
    let cluster = RedisCluster::start(3, 0).await;
    let gateway = Gateway::builder()
        .cluster(&cluster)
        .partitions(4)
        .set("demo.page", "true")
        .set("auth.anonymous", "true")
        .set("listen.allowed_origins", "['*']")
        .start()
        .await;
    let browser = Browser::start().await;
    let url = |transport: &str| format!("http://{}/?ids=1,2,3,4&transport={transport}", gateway.public);
    let over_ws = browser.open(&url("ws")).await;
    let over_sse = browser.open(&url("sse")).await;
    for page in [&over_ws, &over_sse] {
        page.wait_until("document.body.dataset.state === 'live'", SHOWN_WITHIN).await;
    }

    let folder = tempfile::tempdir().unwrap();
    let log_path = folder.path().join("feed.log");
    let log = File::create(&log_path).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tickbridge"));
    command.arg("feed").arg("--replay").arg(real_prices()).args([
        "--cluster",
        "--partitions",
        "4",
        "--rate",
        RATE,
    ]);
    for address in cluster.addresses() {
        command.args(["--redis", &format!("redis://{address}")]);
    }
    command.env_clear();
    let mut feed = Process::spawn(command.stdout(log.try_clone().unwrap()).stderr(log));

    // Prices are seen to move before they come to rest.
    wait_for("a price on the page while the feed runs", SHOWN_WITHIN, || async {
        let price = over_ws.eval(
            r#"document.querySelector('[data-topic="quote:1"][data-field="price"]')?.textContent ?? """#,
        );
        price.await.as_str().and_then(|text| text.parse::<f64>().ok())
    })
    .await;
    let status = feed.ended(FEED_TIMEOUT).await;
    let report = std::fs::read_to_string(&log_path).unwrap();
    assert_eq!(status.code(), Some(0), "{report}");
    for (page, transport) in [(&over_ws, "ws"), (&over_sse, "sse")] {
        page.wait_until(&shows(&prices), SHOWN_WITHIN).await;
        assert_eq!(page.eval("document.body.dataset.transport").await, transport);
        assert_eq!(page.errors(), Vec::<String>::new(), "{transport}");
    }

    // Who comes later is shown the same, from the keys that the feed has left.
    for transport in ["ws", "sse"] {
        let late = browser.open(&url(transport)).await;
        late.wait_until(&shows(&prices), SHOWN_WITHIN).await;
        assert_eq!(late.errors(), Vec::<String>::new(), "{transport}");
    }
    let metrics = gateway.metrics().await;
    assert!(metrics.sum("sessions", &[("transport", "ws")]) >= 1.0);
    assert!(metrics.sum("sessions", &[("transport", "sse")]) >= 1.0);
    assert!(metrics.sum("deliveries_imbalance", &[]).abs() < 0.5);
}
