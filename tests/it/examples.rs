//! The examples in `docs/examples`, run as a reader would run them.

use crate::streams::builder;
use crate::support::browser::Browser;
use crate::support::chaos::ChaosProxy;
use crate::support::gateway::Gateway;
use crate::support::publisher::{Publisher, Statement};
use crate::support::redis::RedisServer;
use crate::support::token::token;
use crate::support::wait::in_time;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

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

/// The words are cut off in the middle by the network, and again by a reload of the page.
#[tokio::test]
async fn an_answer_is_written_by_one_example_and_shown_whole_by_the_other() {
    let redis = RedisServer::start().await;
    let site = Site::start("docs/examples/answer.html").await;
    let origin = format!("['http://{}']", site.address);
    let gateway = builder().redis(&redis).set("listen.allowed_origins", &origin).start().await;
    let proxy = ChaosProxy::start(&gateway.public.to_string()).await;
    let browser = Browser::start().await;
    let url = format!("http://{}/?gateway=http://{}&id=answer-1", site.address, proxy.address());
    let page = browser.open(&url).await;
    let words: Vec<String> = (0..200).map(|n| format!("w{n}")).collect();
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/examples/answer.sh");
    let mut producer = tokio::process::Command::new("timeout");
    producer.arg(PATIENCE.as_secs().to_string()).arg(script).arg("answer-1").args(&words);
    producer.env("REDIS_URL", format!("redis://{}", redis.address())).kill_on_drop(true);
    let mut producer = producer.spawn().unwrap();
    let shows = async |n: usize| {
        let shown = format!("document.getElementById('text').textContent.includes('w{n} ')");
        page.wait_until(&shown, PATIENCE).await;
    };
    shows(20).await;
    proxy.cut();
    page.wait_until("document.getElementById('state').textContent === 'lost'", PATIENCE).await;
    proxy.restore();
    shows(80).await;
    page.eval("location.reload()").await;
    shows(120).await;
    assert!(in_time("the producer is done", PATIENCE, producer.wait()).await.unwrap().success());
    page.wait_until("document.getElementById('state').textContent === 'ended: done'", PATIENCE).await;
    let text = page.eval("document.getElementById('text').textContent").await;
    assert_eq!(text.as_str().unwrap(), words.iter().map(|word| format!("{word} ")).collect::<String>());
    let opened = gateway.metrics().await.sum("stream_sessions_opened_total", &[]);
    assert!(opened >= 3.0, "{opened}: cut and reloaded");
}

/// A web server of one page.
struct Site {
    address: SocketAddr,
}

impl Site {
    async fn start(file: &str) -> Self {
        let page = std::fs::read_to_string(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            page.len()
        );
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).await;
                let _ = stream.write_all(format!("{head}{page}").as_bytes()).await;
            }
        });
        Self { address }
    }
}
