//! The process as its supervisor meets it: start, signals, reload, end.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use super::cli::tickbridge;
use super::support::gateway::{Gateway, GatewayBuilder};
use super::support::process::Process;
use super::support::token::SECRET;
use super::support::wait::{wait_for, wait_until};
use super::support::{http, ports};

/// Longer than anything here takes on a busy machine, shorter than a hanging test.
const SOON: Duration = Duration::from_secs(10);

fn embedded() -> GatewayBuilder {
    Gateway::builder().set("redis.mode", "'embedded'").set("auth.anonymous", "true")
}

#[test]
fn serving_is_refused_without_a_key_and_says_what_to_set() {
    let ran = tickbridge(&["serve"], &[]);
    assert_eq!((ran.code, ran.out.as_str()), (64, ""));
    assert!(ran.err.contains("auth.jwt.secret") && ran.err.contains("auth.anonymous"), "{}", ran.err);
}

#[test]
fn a_taken_address_is_a_failed_start_that_names_the_key() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let public = taken.local_addr().unwrap().to_string();
    let variables = [
        ("TICKBRIDGE_LISTEN__PUBLIC", public.as_str()),
        ("TICKBRIDGE_LISTEN__ADMIN", "127.0.0.1:0"),
        ("TICKBRIDGE_REDIS__MODE", "embedded"),
        ("JWT_SECRET", SECRET),
    ];
    let ran = tickbridge(&["serve"], &variables);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(ran.err.contains("listen.public") && ran.err.contains(&public), "{}", ran.err);
}

#[tokio::test]
async fn each_signal_to_end_is_a_clean_stop() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut gateway = embedded().start().await;
        gateway.process().signal(signal);
        let status = gateway.process().ended(SOON).await;
        assert_eq!(status.code(), Some(0), "{signal:?}: {}", gateway.log());
    }
}

#[tokio::test]
async fn the_second_signal_stops_at_once() {
    let mut gateway = embedded().set("drain.notice", "'50s'").set("drain.deadline", "'60s'").start().await;
    gateway.process().stop();
    wait_for("the gateway is not ready", SOON, || async {
        (gateway.readiness().await.head.status == 503).then_some(())
    })
    .await;
    assert!(gateway.process().is_running());
    gateway.process().stop();
    gateway.process().ended(SOON).await;
}

#[tokio::test]
async fn the_effective_configuration_is_logged_once_and_redacted() {
    let mut gateway = embedded().set("session.max_topics", "77").start().await;
    gateway.stop(SOON).await;
    let log = gateway.log();
    assert_eq!(log.matches("session.max_topics=77").count(), 1, "{log}");
    assert!(log.contains("[redacted]") && !log.contains(SECRET), "{log}");
    assert!(log.contains(&gateway.public.to_string()) && log.contains(&gateway.admin.to_string()), "{log}");
}

#[tokio::test]
async fn logs_are_json_lines_where_asked() {
    let mut gateway = embedded().set("log.format", "'json'").start().await;
    gateway.stop(SOON).await;
    for line in gateway.log().lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        assert!(line["level"].is_string() && line["timestamp"].is_string(), "{line}");
    }
}

#[tokio::test]
async fn a_reload_applies_the_log_filter_and_names_what_waits_for_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let [config, log] = ["tickbridge.toml", "log"].map(|name| folder.path().join(name));
    let write = |text: &str| std::fs::write(&config, text).unwrap();
    write("[log]\nfilter = 'info'");
    let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free()));
    let mut command = Command::new(env!("CARGO_BIN_EXE_tickbridge"));
    command.args(["serve", "--config"]).arg(&config).env_clear();
    command.envs([("JWT_SECRET", SECRET), ("TICKBRIDGE_REDIS__MODE", "embedded"), ("LISTENER_PORT", "0")]);
    command.env("TICKBRIDGE_LISTEN__ADMIN", admin.to_string());
    command.stdout(Stdio::null()).stderr(std::fs::File::create(&log).unwrap());
    let mut gateway = Process::spawn(&mut command);
    let logged = |text: &str| std::fs::read_to_string(&log).unwrap().contains(text);
    wait_for("the gateway is ready", SOON, || async {
        let answer = http::try_request(admin, "GET", "/readyz", &[], "").await;
        answer.is_ok_and(|answer| answer.head.status == 200).then_some(())
    })
    .await;

    write("[log]\nfilter = 'loud=loud'");
    gateway.signal(Signal::HUP);
    wait_until("the bad file is refused", SOON, || logged("log.filter = \"loud=loud\"")).await;

    write("[session]\nheartbeat_interval = '3s'\n[log]\nfilter = 'warn'");
    gateway.signal(Signal::HUP);
    wait_until("what has to wait is named", SOON, || logged("session.heartbeat_interval\"]")).await;
    // Only warnings from here on, so that the end is not announced.
    gateway.stop();
    assert_eq!(gateway.ended(SOON).await.code(), Some(0));
    assert!(!logged("asked to end"));
}

#[tokio::test]
async fn the_demo_shows_prices_that_move_and_ends_cleanly() {
    let [public, admin] = [0, 0].map(|_| SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free())));
    let mut command = Command::new(env!("CARGO_BIN_EXE_tickbridge"));
    command.args(["demo", "--instruments", "3", "--rate", "300"]).env_clear();
    command.env("TICKBRIDGE_LISTEN__PUBLIC", public.to_string());
    command.env("TICKBRIDGE_LISTEN__ADMIN", admin.to_string());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut demo = Process::spawn(&mut command);
    let prices = || async {
        let answer = http::try_request(public, "GET", "/market/prices?ids=1,2,3", &[], "").await.ok()?;
        let n = answer.body.matches("\"price\"").count();
        (answer.head.status == 200 && n == 3).then_some(answer.body)
    };
    let first = wait_for("all prices", SOON, prices).await;
    wait_for("other prices", SOON, || async { prices().await.filter(|body| *body != first) }).await;
    let page = http::get(public, "/", &[]).await;
    assert!(page.head.status == 200 && page.head.header("content-type").starts_with("text/html"));
    demo.stop();
    assert_eq!(demo.ended(SOON).await.code(), Some(0));
}
