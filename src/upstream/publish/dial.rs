//! Opens the publisher's connections: plain or TLS, authenticated, in the configured database.
//!
//! The redis crate keeps the sockets of its connections to itself, so a link needs its own. Addresses,
//! credentials and deadlines are those of `connection`.

use super::resp::{self, Answer};
use crate::config;
use crate::upstream::commands::failure::{Failure, Kind};
use crate::upstream::connection::Connector;
use crate::upstream::slots::NodeAddr;
use redis::{ProtocolVersion, RedisError};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// A connection of either kind.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Opens a connection to `node` within `redis.connect_timeout`.
///
/// # Errors
/// The node can't be reached, or refuses the user.
pub async fn dial(
    node: &NodeAddr,
    connector: &Connector,
    config: &config::Redis,
) -> Result<Box<dyn Stream>, Failure> {
    let dialled = timeout(config.connect_timeout, open(node, connector, config)).await;
    dialled.unwrap_or_else(|_| Err(Failure::new(Kind::Timeout, node, "connecting took too long")))
}

async fn open(
    node: &NodeAddr,
    connector: &Connector,
    config: &config::Redis,
) -> Result<Box<dyn Stream>, Failure> {
    let unreachable = |e: io::Error| Failure::new(Kind::Unreachable, node, e.to_string());
    let refused = |e: RedisError| Failure::new(Kind::of(&e), node, e.to_string());
    let info = connector.info(node, ProtocolVersion::RESP2).map_err(refused)?;
    let socket = TcpStream::connect((node.host(), node.port())).await.map_err(unreachable)?;
    socket.set_nodelay(true).map_err(unreachable)?;
    let mut stream: Box<dyn Stream> = if config.tls {
        Box::new(encrypt(socket, node, config).await.map_err(unreachable)?)
    } else {
        Box::new(socket)
    };
    let settings = info.redis_settings();
    let mut hello = Vec::new();
    let mut n_answers = 0;
    if let Some(password) = settings.password() {
        let parts = ["AUTH"].into_iter().chain(settings.username()).chain([password]).collect::<Vec<_>>();
        push(&mut hello, &parts);
        n_answers += 1;
    }
    if settings.db() != 0 {
        push(&mut hello, &["SELECT", &settings.db().to_string()]);
        n_answers += 1;
    }
    stream.write_all(&hello).await.map_err(unreachable)?;
    stream.flush().await.map_err(unreachable)?;
    expect_ok(&mut stream, n_answers, node).await?;
    Ok(stream)
}

fn push(out: &mut Vec<u8>, parts: &[&str]) {
    resp::command(out, parts.len() as u64);
    for part in parts {
        resp::arg(out, &[part.as_bytes()]);
    }
}

/// Reads the answers to the greeting. Nothing else can follow them: nothing else was asked.
async fn expect_ok(stream: &mut impl Stream, mut n_answers: u32, node: &NodeAddr) -> Result<(), Failure> {
    let unreachable = |e: io::Error| Failure::new(Kind::Unreachable, node, e.to_string());
    let mut buffer = Vec::new();
    let mut at = 0;
    while n_answers > 0 {
        match resp::answer(&buffer[at..]) {
            Ok(Some((Answer::Error(text), _))) => {
                let kind = Kind::of_code(text.split(' ').next().unwrap_or_default());
                return Err(Failure::new(kind, node, text));
            }
            Ok(Some((_, len))) => {
                at += len;
                n_answers -= 1;
            }
            Ok(None) => {
                if stream.read_buf(&mut buffer).await.map_err(unreachable)? == 0 {
                    return Err(unreachable(io::ErrorKind::UnexpectedEof.into()));
                }
            }
            Err(garbled) => return Err(Failure::new(Kind::Other, node, garbled.to_string())),
        }
    }
    Ok(())
}

async fn encrypt(
    socket: TcpStream,
    node: &NodeAddr,
    config: &config::Redis,
) -> io::Result<impl Stream + use<>> {
    let mut roots = RootCertStore::empty();
    match &config.tls_ca {
        Some(path) => {
            for certificate in CertificateDer::pem_file_iter(path).map_err(io::Error::other)? {
                roots.add(certificate.map_err(io::Error::other)?).map_err(io::Error::other)?;
            }
        }
        // Some of a system's certificates may be unreadable; those that are left decide.
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from(node.host().to_owned()).map_err(io::Error::other)?;
    TlsConnector::from(Arc::new(config)).connect(name, socket).await
}
