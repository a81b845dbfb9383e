use super::*;
use crate::clock::Now;
use crate::config::Jwt;
use crate::edge::auth::{Keys, Verifier};
use crate::metrics::Metrics;
use crate::session::{AuthFailure, Authenticator};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, SubjectPublicKeyInfoDer};
use serde_json::{Value, json};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

const QUICK: Pace = Pace {
    refresh: Duration::from_secs(60),
    at_least: Duration::from_millis(20),
    retry: Duration::from_millis(5),
};

fn testdata(name: &str) -> Vec<u8> {
    let path = format!("{}/src/edge/auth/testdata/{name}.pem", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(path).expect("readable")
}

fn private(name: &str) -> (EncodingKey, Algorithm) {
    let pem = testdata(&format!("{name}.private"));
    let (key, algorithm) = match name {
        "rsa" => (EncodingKey::from_rsa_pem(&pem), Algorithm::RS256),
        "p256" => (EncodingKey::from_ec_pem(&pem), Algorithm::ES256),
        "p384" => (EncodingKey::from_ec_pem(&pem), Algorithm::ES384),
        _ => (EncodingKey::from_ed_pem(&pem), Algorithm::EdDSA),
    };
    (key.expect("a key"), algorithm)
}

fn jwk(name: &str) -> Value {
    let mut jwk = if name == "ed25519" {
        let der = SubjectPublicKeyInfoDer::from_pem_slice(&testdata(name)).expect("a public key");
        json!({ "kty": "OKP", "crv": "Ed25519", "x": URL_SAFE_NO_PAD.encode(&der[der.len() - 32..]) })
    } else {
        let (key, algorithm) = private(name);
        let jwk = Jwk::from_encoding_key(&key, algorithm).expect("a public part");
        serde_json::to_value(jwk).expect("JSON")
    };
    jwk["kid"] = json!(name);
    jwk["use"] = json!("sig");
    jwk
}

fn token(name: &str) -> String {
    let (key, algorithm) = private(name);
    let header = Header { kid: Some(name.to_owned()), ..Header::new(algorithm) };
    let claims = json!({ "sub": name, "iss": "finvibe-user", "exp": Now::read().unix_secs() + 60 });
    jsonwebtoken::encode(&header, &claims, &key).expect("signs")
}

/// A server that answers every connection with `answer`, and counts them.
#[derive(Clone)]
struct Provider {
    answer: Arc<Mutex<String>>,
    n_asked: Arc<AtomicUsize>,
    port: u16,
}

impl Provider {
    async fn start(tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let provider = Self { answer: Arc::default(), n_asked: Arc::default(), port };
        let served = provider.clone();
        tokio_util::task::TaskTracker::new().spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                served.n_asked.fetch_add(1, Ordering::Relaxed);
                match &tls {
                    None => served.reply(stream).await,
                    Some(tls) => match tls.accept(stream).await {
                        Ok(stream) => served.reply(stream).await,
                        Err(_) => continue,
                    },
                }
            }
        });
        provider
    }

    async fn reply(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin) {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            if stream.read_buf(&mut request).await.expect("reads") == 0 {
                return;
            }
        }
        let text = String::from_utf8(request).expect("text");
        assert!(text.starts_with("GET /keys?x=1 HTTP/1.1\r\n"), "{text}");
        assert!(text.contains(&format!(":{}\r\n", self.port)), "{text}");
        let answer = self.answer.lock().expect("not poisoned").clone();
        let _ = stream.write_all(answer.as_bytes()).await;
        let _ = stream.shutdown().await;
    }

    fn say(&self, answer: &str) {
        *self.answer.lock().expect("not poisoned") = answer.to_owned();
    }

    fn publish(&self, keys: &[Value]) {
        let body = json!({ "keys": keys }).to_string();
        self.say(&format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()));
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}/keys?x=1#f", self.port)
    }

    fn n_asked(&self) -> usize {
        self.n_asked.load(Ordering::Relaxed)
    }
}

fn verifier(key_set: KeySet) -> (Verifier, Arc<Metrics>) {
    let metrics = Arc::new(Metrics::new("t"));
    let mut verifier = Verifier::new(&Jwt::default(), Arc::clone(&metrics)).expect("no keys to load");
    verifier.key_set = Some(key_set);
    (verifier, metrics)
}

/// Does `story` while the verifier fetches, from its first fetch on.
async fn while_fetching(verifier: &Verifier, what: &str, story: impl Future<Output = ()>) {
    let told = timeout(Duration::from_secs(10), async {
        tokio::select! {
            () = verifier.keep_keys() => {}
            () = story => {}
        }
    });
    told.await.unwrap_or_else(|_| panic!("not in time: {what}"));
}

async fn until(holds: impl Fn() -> bool) {
    while !holds() {
        sleep(Duration::from_millis(2)).await;
    }
}

/// Lets the verifier fetch until `holds`.
async fn fetch_until(verifier: &Verifier, what: &str, holds: impl Fn() -> bool) {
    while_fetching(verifier, what, until(holds)).await;
}

fn result(verifier: &Verifier, name: &str) -> Result<String, AuthFailure> {
    verifier.verify(&token(name), Now::read()).map(|principal| principal.user_id.to_string())
}

#[tokio::test]
async fn keys_of_every_kind_are_taken_from_the_set() {
    let provider = Provider::start(None).await;
    let names = ["rsa", "p256", "p384", "ed25519"];
    provider.publish(&names.map(jwk));
    let (verifier, metrics) = verifier(KeySet::new(&provider.url(), QUICK).expect("a URL"));
    assert!(verifier.lack().is_some());
    assert_eq!(result(&verifier, "rsa"), Err(AuthFailure::UnknownKey));
    fetch_until(&verifier, "keys", || verifier.lack().is_none()).await;
    for name in names {
        assert_eq!(result(&verifier, name).as_deref(), Ok(name));
    }
    let text = metrics.render();
    assert!(text.contains("t_auth_key_fetches_total{outcome=\"ok\"} 1"), "{text}");
    assert!(text.contains("t_auth_fetched_keys 4"), "{text}");
}

/// The refresh is a minute away; only the token that names the new key makes the set be asked for.
#[tokio::test]
async fn a_rotated_key_is_fetched_when_a_token_names_it_and_the_old_one_stays_good() {
    let provider = Provider::start(None).await;
    provider.publish(&[jwk("p256")]);
    let (verifier, _) = verifier(KeySet::new(&provider.url(), QUICK).expect("a URL"));
    fetch_until(&verifier, "the first set", || verifier.lack().is_none()).await;
    provider.publish(&[jwk("ed25519")]);
    assert_eq!(result(&verifier, "ed25519"), Err(AuthFailure::Algorithm));
    fetch_until(&verifier, "the new key", || result(&verifier, "ed25519").is_ok()).await;
    assert_eq!(result(&verifier, "p256").as_deref(), Ok("p256"));

    let mut header = Header::new(Algorithm::ES256);
    header.kid = Some("never published".into());
    let unknown = jsonwebtoken::encode(&header, &json!({}), &private("p256").0).expect("signs");
    assert_eq!(verifier.verify(&unknown, Now::read()), Err(AuthFailure::UnknownKey));
}

#[tokio::test]
async fn a_reload_asks_for_the_set_without_a_token_that_names_a_new_key() {
    let provider = Provider::start(None).await;
    provider.publish(&[jwk("p256")]);
    let (verifier, _) = verifier(KeySet::new(&provider.url(), QUICK).expect("a URL"));
    while_fetching(&verifier, "the set after a reload", async {
        until(|| verifier.lack().is_none()).await;
        provider.publish(&[jwk("ed25519")]);
        verifier.replace(Keys::load(&Jwt::default()).expect("no keys to load"));
        until(|| verifier.fetched().n_keys() == 2).await;
    })
    .await;
    assert_eq!(provider.n_asked(), 2);
}

#[tokio::test]
async fn a_reload_does_not_wait_for_the_pause_after_failures() {
    let provider = Provider::start(None).await;
    provider.say("nonsense");
    let pace = Pace { retry: QUICK.refresh, ..QUICK };
    let (verifier, metrics) = verifier(KeySet::new(&provider.url(), pace).expect("a URL"));
    while_fetching(&verifier, "the set after a reload", async {
        until(|| metrics.render().contains("t_auth_key_fetches_total{outcome=\"failed\"} 1")).await;
        provider.publish(&[jwk("p256")]);
        verifier.replace(Keys::load(&Jwt::default()).expect("no keys to load"));
        until(|| verifier.lack().is_none()).await;
    })
    .await;
}

#[tokio::test]
async fn a_flood_of_unknown_keys_asks_at_a_bounded_rate() {
    let provider = Provider::start(None).await;
    provider.publish(&[jwk("p256")]);
    let (verifier, _) = verifier(KeySet::new(&provider.url(), QUICK).expect("a URL"));
    fetch_until(&verifier, "the set", || verifier.lack().is_none()).await;
    let (before, begun) = (provider.n_asked(), tokio::time::Instant::now());
    let unknown = token("ed25519");
    fetch_until(&verifier, "some fetches", || {
        assert!(verifier.verify(&unknown, Now::read()).is_err());
        provider.n_asked() >= before + 5
    })
    .await;
    // The first of them begins at once, since this is a new run.
    assert!(begun.elapsed() >= QUICK.at_least * 4, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn useless_answers_are_counted_and_leave_the_keys_alone() {
    let provider = Provider::start(None).await;
    provider.publish(&[jwk("p256")]);
    let (verifier, metrics) = verifier(KeySet::new(&provider.url(), QUICK).expect("a URL"));
    fetch_until(&verifier, "the set", || verifier.lack().is_none()).await;
    let huge = format!("HTTP/1.1 200 OK\r\n\r\n{{\"keys\":[{}]}}", " ".repeat(MAX_BODY));
    for (n, answer) in [
        "HTTP/1.1 500 Oh\r\ncontent-length: 11\r\n\r\n{\"keys\":[]}",
        "HTTP/1.1 302 Found\r\nlocation: /\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nnull",
        "HTTP/1.1 200 OK\r\ncontent-length: 40\r\n\r\n{\"keys\":[]}",
        "nonsense",
        "",
        &huge,
    ]
    .into_iter()
    .enumerate()
    {
        provider.say(answer);
        let failed = format!("t_auth_key_fetches_total{{outcome=\"failed\"}} {}", n + 1);
        fetch_until(&verifier, answer.get(..40).unwrap_or(answer), || metrics.render().contains(&failed))
            .await;
        assert_eq!(result(&verifier, "p256").as_deref(), Ok("p256"));
    }
}

#[tokio::test]
async fn a_set_is_fetched_over_tls_from_a_server_that_is_trusted_and_no_other() {
    let certificate = CertificateDer::from_pem_slice(&testdata("tls.certificate")).expect("a certificate");
    let key = PrivateKeyDer::from_pem_slice(&testdata("tls.private")).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .expect("a pair");
    let provider = Provider::start(Some(TlsAcceptor::from(Arc::new(server)))).await;
    provider.publish(&[jwk("p256")]);
    let url = format!("https://localhost:{}/keys?x=1", provider.port);

    let stranger = KeySet::new(&url, QUICK).expect("a URL");
    assert!(stranger.fetch().await.is_err());
    let mut roots = RootCertStore::empty();
    roots.add(certificate).expect("a root");
    let trusting = KeySet { tls: Some(connector(roots)), ..KeySet::new(&url, QUICK).expect("a URL") };
    assert_eq!(trusting.fetch().await.expect("keys").len(), 1);
}

#[test]
fn other_urls_are_refused() {
    for url in ["", "keys", "/keys", "ftp://x/keys", "file:///keys", "https://"] {
        assert!(KeySet::new(url, QUICK).is_none(), "{url}");
    }
}
