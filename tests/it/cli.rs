//! The command line as a script or a container meets it: output, errors and exit codes.

use std::net::SocketAddr;
use std::process::{Command, Output};

use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const COMMANDS: [&str; 8] =
    ["serve", "demo", "feed", "migrate", "check-config", "print-config", "token", "health"];

/// What a command printed and how it ended.
pub struct Ran {
    /// Its exit code.
    pub code: i32,
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        Self { code: output.status.code().expect("it was not killed"), out, err }
    }
}

/// Runs the binary with nothing in its environment but `variables`.
pub fn tickbridge(args: &[&str], variables: &[(&str, &str)]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tickbridge"));
    command.args(args).env_clear().envs(variables.iter().copied());
    command.output().unwrap().into()
}

#[test]
fn each_command_describes_itself_and_its_options() {
    let all = tickbridge(&["--help"], &[]);
    assert_eq!((all.code, all.err.as_str()), (0, ""));
    for command in COMMANDS {
        assert!(all.out.contains(&format!("\n  {command} ")), "{command} is not in:\n{}", all.out);
        let help = tickbridge(&[command, "--help"], &[]);
        assert_eq!((help.code, help.err.as_str()), (0, ""), "{command}");
        assert!(help.out.contains(&format!("Usage: tickbridge {command}")), "{}", help.out);
        // An option without a word about it is a line that ends with its name.
        let lines: Vec<_> = help.out.lines().map(str::trim).collect();
        for (n, line) in lines.iter().enumerate().filter(|(_, line)| line.starts_with('-')) {
            let next = lines.get(n + 1).copied().unwrap_or_default();
            let is_described = line.contains("  ") || next.starts_with(|c: char| c.is_uppercase());
            assert!(is_described, "{command}: {line} is not described");
        }
    }
}

#[test]
fn bad_usage_ends_with_64_and_a_complaint_on_standard_error() {
    let cases: [&[&str]; 10] = [
        &[],
        &["bogus"],
        &["--bogus"],
        &["check-config", "--bogus"],
        &["token"],
        &["token", "--sub", "42", "--ttl", "soon"],
        &["health", "--url", "not a url"],
        &["feed", "--words", "3"],
        &["feed", "--streams", "3"],
        &["feed", "--tokens", "--rate", "5"],
    ];
    for args in cases {
        let ran = tickbridge(args, &[]);
        assert_eq!(ran.code, 64, "{args:?}: {}", ran.err);
        assert!(ran.out.is_empty() && !ran.err.is_empty(), "{args:?}");
    }
}

#[test]
fn the_version_is_printed() {
    let ran = tickbridge(&["--version"], &[]);
    assert_eq!((ran.code, ran.out.trim()), (0, concat!("tickbridge ", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn a_token_verifies_with_the_configured_secret_issuer_and_audience() {
    let variables =
        [("JWT_SECRET", "hush"), ("JWT_ISSUER", "me"), ("TICKBRIDGE_AUTH__JWT__AUDIENCE", "market")];
    let ran = tickbridge(&["token", "--sub", "42", "--ttl", "90s"], &variables);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let mut rules = Validation::new(Algorithm::HS256);
    rules.set_issuer(&["me"]);
    rules.set_audience(&["market"]);
    rules.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
    let key = DecodingKey::from_secret(b"hush");
    let claims = jsonwebtoken::decode::<serde_json::Value>(ran.out.trim(), &key, &rules).unwrap().claims;
    assert_eq!(claims["sub"], "42");
    let lifetime = claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap();
    assert_eq!(lifetime, 90);
    let other = DecodingKey::from_secret(b"hash");
    assert!(jsonwebtoken::decode::<serde_json::Value>(ran.out.trim(), &other, &rules).is_err());
}

#[test]
fn no_token_is_made_without_a_secret_or_without_a_lifetime() {
    let without = tickbridge(&["token", "--sub", "42"], &[]);
    assert_eq!((without.code, without.out.as_str()), (64, ""));
    assert!(without.err.contains("set auth.jwt.secret"), "{}", without.err);
    let instant = tickbridge(&["token", "--sub", "42", "--ttl", "0s"], &[("JWT_SECRET", "hush")]);
    assert_eq!(instant.code, 64);
    assert!(instant.err.contains("--ttl") && !instant.err.contains("hush"), "{}", instant.err);
}

/// Answers one request with `answer`; the request is given back.
async fn answering(answer: &'static str) -> (SocketAddr, tokio::task::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let served = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(stream.read_u8().await.unwrap());
        }
        stream.write_all(answer.as_bytes()).await.unwrap();
        String::from_utf8(request).unwrap()
    });
    (address, served)
}

async fn health(args: Vec<String>, variables: Vec<(&'static str, String)>) -> Ran {
    let ran = tokio::task::spawn_blocking(move || {
        let args: Vec<_> = std::iter::once("health").chain(args.iter().map(String::as_str)).collect();
        let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
        tickbridge(&args, &variables)
    });
    ran.await.unwrap()
}

#[tokio::test]
async fn health_asks_the_configured_admin_listener() {
    let (address, served) = answering("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
    let ran = health(vec![], vec![("TICKBRIDGE_LISTEN__ADMIN", format!("0.0.0.0:{}", address.port()))]).await;
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    assert!(served.await.unwrap().starts_with("GET /readyz HTTP/1.1\r\nHost: 127.0.0.1:"));
}

#[tokio::test]
async fn health_fails_with_the_reason_that_the_gateway_gives() {
    let (address, _) = answering("HTTP/1.1 503 Service Unavailable\r\n\r\n{\"redis\":\"lost\"}").await;
    let ran = health(vec!["--url".into(), format!("http://{address}/readyz")], vec![]).await;
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("503") && ran.err.contains("{\"redis\":\"lost\"}"), "{}", ran.err);
}

#[tokio::test]
async fn health_does_not_wait_for_ever() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let ran = health(vec!["--timeout".into(), "50ms".into(), "--url".into(), url], vec![]).await;
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("does not answer within 50ms"), "{}", ran.err);
}

#[tokio::test]
async fn health_over_anything_but_http_is_bad_usage() {
    let (address, _) = answering("220 mail ready\r\n").await;
    let ran = health(vec!["--url".into(), format!("http://{address}/")], vec![]).await;
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("does not speak HTTP"), "{}", ran.err);
    let tls = health(vec!["--url".into(), "https://127.0.0.1:1/".into()], vec![]).await;
    assert_eq!(tls.code, 64);
}
