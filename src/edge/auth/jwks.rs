//! Fetches a JSON Web Key Set, again and again, in the background.
//!
//! Invariants:
//! - Nobody waits for a fetch: a token with an unknown key is refused, and its client comes back.
//! - Whatever tokens say, the set is asked for at a bounded rate.
//! - Each fetch has a deadline and reads a bounded body.

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode, header};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use serde::Deserialize;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use url::{Position, Url};

/// Time for one fetch, from the name to the last byte.
const DEADLINE: Duration = Duration::from_secs(10);

/// Longest key set in bytes. A key has about 500.
const MAX_BODY: usize = 256 * 1024;

/// How often the set is fetched.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Between two fetches when nothing is missing.
    refresh: Duration,
    /// Between two fetches at least, however many unknown keys tokens name.
    at_least: Duration,
    /// After the first failure; doubled by each further one up to `refresh`. Whoever wants the set then waits for
    /// `at_least` and no longer.
    retry: Duration,
}

impl Pace {
    /// A rotated key is known after five minutes at the latest, or ten seconds after its first token.
    pub const USUAL: Self = Self {
        refresh: Duration::from_secs(300),
        at_least: Duration::from_secs(10),
        retry: Duration::from_secs(1),
    };
}

/// Where a key set comes from.
pub struct KeySet {
    url: Url,
    tls: Option<TlsConnector>,
    pace: Pace,
    wanted: Notify,
}

#[derive(Deserialize)]
struct Answer {
    keys: Vec<serde_json::Value>,
}

impl KeySet {
    /// The key set at `url`, `https` or `http`; `None` if it is something else.
    pub fn new(url: &str, pace: Pace) -> Option<Self> {
        let url = Url::parse(url).ok().filter(Url::has_host)?;
        let tls = match url.scheme() {
            "https" => Some(connector(system_roots())),
            "http" => {
                tracing::warn!("auth.jwt.jwks_url is not https: whoever is on the way can make tokens");
                None
            }
            _ => return None,
        };
        Some(Self { url, tls, pace, wanted: Notify::new() })
    }

    /// A token names a key that isn't known, or an operator asks: the set is fetched as soon as its pace allows.
    pub fn want(&self) {
        self.wanted.notify_one();
    }

    /// Fetches for ever; `done` learns each outcome.
    pub async fn keep_fetching(&self, done: impl Fn(io::Result<Vec<serde_json::Value>>)) {
        let mut pause = self.pace.retry;
        loop {
            let fetched = timeout(DEADLINE, self.fetch()).await;
            let fetched = fetched.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
            let longest = if fetched.is_ok() {
                pause = self.pace.retry;
                self.pace.refresh
            } else {
                let longest = pause;
                pause = (pause * 2).min(self.pace.refresh);
                longest
            };
            done(fetched);
            let shortest = self.pace.at_least.min(longest);
            sleep(shortest).await;
            // Elapsed or wanted: it is time either way.
            let _ = timeout(longest - shortest, self.wanted.notified()).await;
        }
    }

    async fn fetch(&self) -> io::Result<Vec<serde_json::Value>> {
        let host = self.url.host_str().ok_or(io::ErrorKind::InvalidInput)?;
        let port = self.url.port_or_known_default().ok_or(io::ErrorKind::InvalidInput)?;
        let stream = TcpStream::connect((host.trim_matches(['[', ']']), port)).await?;
        match &self.tls {
            None => self.ask(stream).await,
            Some(tls) => {
                let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned());
                self.ask(tls.connect(name.map_err(io::Error::other)?, stream).await?).await
            }
        }
    }

    async fn ask(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin,
    ) -> io::Result<Vec<serde_json::Value>> {
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        let request = Request::get(&self.url[Position::BeforePath..Position::AfterQuery])
            .header(header::HOST, &self.url[Position::BeforeHost..Position::AfterPort])
            .header(header::ACCEPT, "application/json")
            .header(header::CONNECTION, "close")
            .body(Body::empty())
            .map_err(io::Error::other)?;
        let answer = async {
            let response = sender.send_request(request).await.map_err(io::Error::other)?;
            if response.status() != StatusCode::OK {
                return Err(io::Error::other(format!("the answer's status is {}", response.status())));
            }
            let body = to_bytes(Body::new(response.into_body()), MAX_BODY).await.map_err(io::Error::other)?;
            serde_json::from_slice::<Answer>(&body).map(|answer| answer.keys).map_err(io::Error::other)
        };
        // The connection moves the answer's bytes. What becomes of it shows in the answer.
        let moving = async {
            let _ = connection.await;
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            answer = answer => answer,
            never = moving => match never {},
        }
    }
}

fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    // Some of a system's certificates may be unreadable; those that are left decide.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

fn connector(roots: RootCertStore) -> TlsConnector {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider knows the protocol versions that the crate was built with")
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

#[cfg(test)]
mod tests;
