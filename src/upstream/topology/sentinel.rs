//! Asks the sentinels who the primary is.
//!
//! A sentinel's word alone isn't enough: the node that it names must call itself a primary, which the
//! crate checks.
//!
//! Sentinels are asked without credentials; where that is refused, with those of the servers.

use crate::upstream::connection::Connector;
use crate::upstream::slots::NodeAddr;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{ErrorKind, ProtocolVersion, RedisError, RedisResult, TlsCertificates, TlsMode};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// For all sentinels together, and the check of the primary. Above the crate's own limits per step.
const DEADLINE: Duration = Duration::from_secs(3);

/// The sentinels that watch the primary.
pub(super) struct Sentinels {
    connector: Arc<Connector>,
    client: Option<SentinelClient>,
    with_credentials: bool,
}

impl Sentinels {
    pub(super) const fn new(connector: Arc<Connector>) -> Self {
        Self { connector, client: None, with_credentials: false }
    }

    /// The primary's address.
    pub(super) async fn ask(&mut self) -> RedisResult<NodeAddr> {
        // Built anew after every failure: the password may have changed.
        let mut client = match self.client.take() {
            Some(client) => client,
            None => self.build()?,
        };
        let found = timeout(DEADLINE, client.async_get_client())
            .await
            .unwrap_or_else(|_| Err(RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut))));
        match found {
            Ok(primary) => {
                self.client = Some(client);
                let addr = primary.get_connection_info().addr().to_string();
                NodeAddr::parse(&addr)
                    .ok_or_else(|| (ErrorKind::Parse, "the primary's address is malformed").into())
            }
            Err(error) => {
                if error.code() == Some("NOAUTH") {
                    self.with_credentials = true;
                }
                Err(error)
            }
        }
    }

    fn build(&self) -> RedisResult<SentinelClient> {
        let config = self.connector.config();
        let sentinels = config.nodes.iter().filter_map(|node| NodeAddr::parse(node));
        let addrs: RedisResult<Vec<_>> = sentinels
            .map(|node| Ok(self.connector.info(&node, ProtocolVersion::RESP2)?.addr().clone()))
            .collect();
        let password = self.connector.password()?;
        let primary = SentinelServerType::Master;
        let mut builder = SentinelClientBuilder::new(addrs?, &config.sentinel_primary, primary)?;
        if let Some(username) = &config.username {
            builder = builder.set_client_to_redis_username(username);
            if self.with_credentials {
                builder = builder.set_client_to_sentinel_username(username);
            }
        }
        if let Some(password) = &password {
            builder = builder.set_client_to_redis_password(password);
            if self.with_credentials {
                builder = builder.set_client_to_sentinel_password(password);
            }
        }
        if config.tls {
            builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
            if let Some(root_cert) = self.connector.ca()? {
                let certificates = TlsCertificates { client_tls: None, root_cert: Some(root_cert) };
                builder = builder.set_client_to_redis_certificates(certificates);
            }
        }
        builder.build()
    }
}
