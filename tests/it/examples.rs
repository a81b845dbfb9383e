//! The examples in `docs/examples`, run as a reader would run them.

use crate::support::gateway::Gateway;
use crate::support::publisher::{Publisher, Statement};
use crate::support::redis::RedisServer;
use crate::support::token::token;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

/// A Java virtual machine that compiles first takes its time on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A price whose last digit a float would lose.
const PRICE: &str = "71000.10";

struct Stage {
    gateway: Gateway,
    _redis: RedisServer,
}

impl Stage {
    async fn set(anonymous: bool) -> Self {
        let redis = RedisServer::start().await;
        let gateway =
            Gateway::builder().redis(&redis).set("auth.anonymous", &anonymous.to_string()).start().await;
        let mut publisher = Publisher::standalone(&redis, 1);
        publisher.publish(&Statement::new(101, PRICE, 1_760_000_000_001)).await;
        Self { gateway, _redis: redis }
    }

    fn url(&self) -> String {
        format!("http://{}", self.gateway.public)
    }

    /// Runs an example; its process must not keep the gateway from serving it.
    async fn run(&self, program: &str, example: &str, arguments: &[&str], token: Option<&str>) -> Output {
        let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/examples").join(example);
        let mut command = Command::new("timeout");
        command.arg(PATIENCE.as_secs().to_string()).arg(program).arg(file).args(arguments);
        command.env_remove("TOKEN").envs(token.map(|token| ("TOKEN", token)));
        tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test]
async fn curl_shows_prices_the_stream_and_a_ticket() {
    let stage = Stage::set(false).await;
    let good = token("7");
    let run = stage.run("bash", "curl.sh", &[&stage.url(), "101", "2"], Some(&good)).await;
    let said = text(&run.stdout);
    assert!(run.status.success(), "{said}{}", text(&run.stderr));
    assert!(said.contains(r#"{"101":{"stockId":101"#), "{said}");
    assert!(said.contains("event: subscribe") && said.contains("\ndata: {\"type\":\"event\""), "{said}");
    assert_eq!(said.matches(PRICE).count(), 2, "{said}");
    assert!(said.contains(r#"{"ticket":""#), "{said}");
    assert!(!said.contains(&good) && !text(&run.stderr).contains(&good), "the token is shown");
}

#[tokio::test]
async fn python_reads_exact_prices_and_says_why_it_stops() {
    let stage = Stage::set(false).await;
    let arguments = ["--gateway", &stage.url(), "--count", "1", "101"].map(String::from);
    let arguments = arguments.each_ref().map(String::as_str);
    let run = stage.run("python3", "quotes.py", &arguments, Some(&token("7"))).await;
    assert!(run.status.success(), "{}", text(&run.stderr));
    assert_eq!(text(&run.stdout), format!("quote:101 {PRICE}\n"));

    let run = stage.run("python3", "quotes.py", &arguments, None).await;
    assert_eq!((run.status.code(), text(&run.stderr).trim()), (Some(1), "a token is required"));
}

#[tokio::test]
async fn java_reads_exact_prices_as_guest_and_signed_in() {
    if Command::new("java").arg("-version").output().is_err() {
        eprintln!("NOT RUN: the example in Java, because there is no `java`");
        return;
    }
    let arguments = ["1", "101"];
    for (anonymous, token) in [(true, None), (false, Some(token("7")))] {
        let stage = Stage::set(anonymous).await;
        let url = stage.url();
        let arguments = [&[url.as_str()][..], &arguments].concat();
        let run = stage.run("java", "Quotes.java", &arguments, token.as_deref()).await;
        assert!(run.status.success(), "{}", text(&run.stderr));
        assert_eq!(text(&run.stdout), format!("quote:101 {PRICE}\n"));
    }
}
