//! The path of a price from Redis to a browser: real servers, with a faulty network at its end.

use crate::proxies::stand::{Caddy, Nginx};
use crate::support::browser::{Browser, Page};
use crate::support::chaos::ChaosProxy;
use crate::support::gateway::{Gateway, GatewayBuilder};
use crate::support::http;
use crate::support::metrics::Metrics;
use crate::support::publisher::{Publisher, Statement};
use crate::support::redis::RedisServer;
use crate::support::wait::{let_pass, wait_for};
use std::time::{Duration, Instant};
use tempfile::NamedTempFile;

/// Long enough for a browser on a busy machine; what has a bound of its own names it.
pub const SOON: Duration = Duration::from_secs(60);

/// The path of a price from Redis to a browser, with a faulty network at its end.
pub struct Stage {
    pub gateways: Vec<Gateway>,
    nginx: Nginx,
    pub network: ChaosProxy,
    pub publisher: Publisher,
    pub browser: Browser,
    pub n_published: i64,
    /// Directives for the location of SSE, which Nginx includes.
    sse: NamedTempFile,
    _caddy: Caddy,
    pub redis: RedisServer,
}

impl Stage {
    pub async fn set(n_gateways: usize, configure: fn(GatewayBuilder) -> GatewayBuilder) -> Self {
        let redis = RedisServer::start().await;
        let mut gateways = Vec::new();
        for _ in 0..n_gateways {
            let builder = Gateway::builder().redis(&redis).set("demo.page", "true");
            let builder = builder.set("auth.anonymous", "true").set("listen.allowed_origins", "['*']");
            gateways.push(configure(builder).start().await);
        }
        let sse = NamedTempFile::new().unwrap();
        let addresses: Vec<_> = gateways.iter().map(|gateway| gateway.public).collect();
        let include = format!("location = /market/sse {{ include {};", sse.path().display());
        let nginx = Nginx::start(&addresses, |conf| conf.put("location = /market/sse {", &include)).await;
        let caddy = Caddy::start(nginx.address).await;
        let network = ChaosProxy::start(&format!("127.0.0.1:{}", caddy.port)).await;
        let publisher = Publisher::standalone(&redis, 1);
        let browser = Browser::start_with(&["--ignore-certificate-errors"]).await;
        Self { gateways, nginx, network, publisher, browser, n_published: 0, sse, _caddy: caddy, redis }
    }

    /// Opens the page with the test timers' heartbeat.
    pub async fn open(&self, query: &str) -> Page {
        let url = format!("https://localhost:{}/?ids=1,2,3&heartbeat=2000&{query}", self.network.port());
        self.browser.open(&url).await
    }

    /// Lets Nginx answer SSE requests with `directives`, or forward them again if there are none.
    pub async fn answer_sse(&self, directives: &str) {
        std::fs::write(self.sse.path(), directives).unwrap();
        self.nginx.reload();
        // Only a gateway finds fault with the topic. Old workers take requests for a moment longer.
        wait_for("nginx does as it is told", SOON, || async {
            for _ in 0..5 {
                let at = self.nginx.address;
                let answer = http::try_request(at, "GET", "/market/sse?topics=x", &[], "").await.ok()?;
                if (answer.head.status == 400) != directives.is_empty() {
                    return None;
                }
            }
            Some(())
        })
        .await;
    }

    /// Waits until the page is live, and says what it shows if it doesn't get so far.
    pub async fn is_live(&self, page: &Page) {
        let began = Instant::now();
        while page.eval("document.body?.dataset.state ?? ''").await != "live" {
            if began.elapsed() > SOON {
                let shown = page.eval("location.href + document.body.innerText.slice(0, 2000)").await;
                panic!("not live within {SOON:?}: {shown}; {:?}", page.errors());
            }
            let_pass(Duration::from_millis(50)).await;
        }
    }

    /// Publishes a price that was never there before, and waits until the page shows its digits as current.
    pub async fn shows_current(&mut self, page: &Page) {
        self.n_published += 1;
        let price = format!("71{:03}.10", self.n_published);
        let now = 1_760_000_000_000 + self.n_published;
        self.publisher.publish(&Statement::new(2, &price, now)).await;
        let cell = r#"document.querySelector('[data-topic="quote:2"][data-field="price"]')"#;
        let current =
            format!("{cell}.textContent === '{price}' && {cell}.closest('tr').dataset.stale === 'false'");
        page.wait_until(&current, SOON).await;
    }

    /// Waits until all gateways together have so many sessions.
    pub async fn n_sessions(&self, n: f64) {
        wait_for(&format!("{n} sessions in all"), SOON, || async {
            let mut sum = 0.0;
            for gateway in &self.gateways {
                // One that is down has none.
                if let Ok(answer) = http::try_request(gateway.admin, "GET", "/metrics", &[], "").await {
                    sum += Metrics::parse(&answer.body).sum("sessions", &[]);
                }
            }
            ((sum - n).abs() < 0.5).then_some(())
        })
        .await;
    }

    /// Neither the page nor the worker behind it complained about anything. That a connection failed is said by the
    /// browser itself, whatever a page does.
    pub async fn is_quiet(&self, page: &Page) {
        let mut errors = page.errors();
        errors.retain(|error| !error.contains(r#""source":"network""#));
        errors.extend(self.browser.worker_errors().await);
        assert!(errors.is_empty(), "{errors:?}");
    }

    /// Everything is well in the end.
    pub async fn ends_well(&mut self, page: &Page) {
        self.is_live(page).await;
        self.shows_current(page).await;
        self.n_sessions(1.0).await;
        self.is_quiet(page).await;
    }
}

/// Whether the page's log matches.
pub fn log_has(pattern: &str) -> String {
    format!("/{pattern}/.test(document.getElementById('log').textContent)")
}
