//! TLS for clients that speak none: a local port whose connections are passed on within TLS.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// What a client trusts: one CA, and which protocols it offers.
pub fn connector(root: &Path, protocols: &[&[u8]]) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(root).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = builder.unwrap().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    TlsConnector::from(Arc::new(config))
}

/// Opens one TLS connection to a server called localhost.
///
/// # Errors
/// The server is gone or not who it should be.
pub async fn open(to: SocketAddr, connector: &TlsConnector) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(to).await?;
    stream.set_nodelay(true)?;
    connector.connect(ServerName::try_from("localhost").unwrap(), stream).await
}

/// A local port that leads to a TLS server; it closes with its owner.
pub struct Tunnel {
    /// Where to connect.
    pub address: SocketAddr,
    task: JoinHandle<()>,
}

impl Tunnel {
    /// To a server whose certificate comes from the CA in `root`; speaks HTTP/1.1.
    pub async fn to(server: SocketAddr, root: &Path) -> Self {
        let connector = connector(root, &[b"http/1.1"]);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let connector = connector.clone();
                tokio::spawn(async move {
                    let _ = client.set_nodelay(true);
                    if let Ok(mut server) = open(server, &connector).await {
                        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                    }
                });
            }
        });
        Self { address, task }
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.task.abort();
    }
}
