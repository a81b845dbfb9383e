//! How to connect to a node: credentials, TLS, socket options, deadlines.
//!
//! Invariants:
//! - The password file and the CA are read again for every connection, so that both may change while
//!   the process runs.
//! - Every connection attempt and every command has a deadline.
//! - Nothing secret is logged; errors name files and nodes, never their contents.
//!
//! Not here: pools and redirects (`commands`), subscriptions (`subscriber`).

use super::slots::NodeAddr;
use crate::config;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::{TcpSettings, socket2};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo,
    ProtocolVersion, PushInfo, RedisError, RedisResult, TlsCertificates,
};
use std::time::Duration;

/// Silence after which the kernel probes an idle connection, and the pause between two probes. Our own
/// probes are faster; this is for idle command connections behind a NAT.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Unacknowledged bytes end a connection after this, instead of after the kernel's many minutes.
const USER_TIMEOUT: Duration = Duration::from_secs(10);

/// Connects to nodes as the configuration says. Cheap to clone behind an `Arc`.
#[derive(Debug)]
pub struct Connector {
    config: config::Redis,
}

impl Connector {
    /// A connector for the servers of `config`.
    pub fn new(config: &config::Redis) -> Self {
        // Without a provider the first TLS connection panics. A second install fails, which means
        // that there is one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Self { config: config.clone() }
    }

    /// What `redis` and `deadpool-redis` need to connect to `node`. Valid for one connection or a few:
    /// it holds the password as it is now.
    ///
    /// # Errors
    /// The password file or the CA can't be read or is malformed.
    pub fn info(&self, node: &NodeAddr, protocol: ProtocolVersion) -> RedisResult<ConnectionInfo> {
        let (host, port) = (node.host().to_owned(), node.port());
        let addr = if self.config.tls {
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(host, port)
        };
        let info = addr.into_connection_info()?;
        let mut settings = info
            .redis_settings()
            .clone()
            .set_protocol(protocol)
            .set_db(i64::from(self.config.database))
            .set_lib_name(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
        if let Some(username) = &self.config.username {
            settings = settings.set_username(username);
        }
        if let Some(password) = self.password()? {
            settings = settings.set_password(password);
        }
        let keepalive = socket2::TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
        let tcp =
            TcpSettings::default().set_nodelay(true).set_keepalive(keepalive).set_user_timeout(USER_TIMEOUT);
        let info = info.set_redis_settings(settings).set_tcp_settings(tcp);
        match self.ca()? {
            Some(root_cert) if self.config.tls => {
                let certificates = TlsCertificates { client_tls: None, root_cert: Some(root_cert) };
                Ok(Client::build_with_tls(info, certificates)?.get_connection_info().clone())
            }
            _ => Ok(info),
        }
    }

    /// The CA's certificates, if another than the system's is configured.
    ///
    /// # Errors
    /// The file can't be read.
    pub(super) fn ca(&self) -> RedisResult<Option<Vec<u8>>> {
        self.config.tls_ca.as_ref().map(|path| read(path, "the CA of redis.tls_ca")).transpose()
    }

    /// What is configured.
    pub(super) const fn config(&self) -> &config::Redis {
        &self.config
    }

    /// The deadlines of a command connection.
    pub fn options(&self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.config.connect_timeout))
            .set_response_timeout(Some(self.config.command_timeout))
    }

    /// Opens a connection for commands.
    ///
    /// # Errors
    /// As [`Connector::info`], and whatever connecting and authenticating brings.
    pub async fn open(&self, node: &NodeAddr) -> RedisResult<MultiplexedConnection> {
        self.open_with(node, ProtocolVersion::RESP2, &self.options()).await
    }

    /// Opens a connection for subscriptions. `push` is called by the connection's own task for every
    /// push, in their order, and must neither wait nor queue without a bound.
    ///
    /// # Errors
    /// As [`Connector::open`].
    pub async fn open_subscription(
        &self,
        node: &NodeAddr,
        push: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> RedisResult<MultiplexedConnection> {
        let push = move |info| {
            push(info);
            Ok::<(), redis::aio::SendError>(())
        };
        self.open_with(node, ProtocolVersion::RESP3, &self.options().set_push_sender(push)).await
    }

    async fn open_with(
        &self,
        node: &NodeAddr,
        protocol: ProtocolVersion,
        options: &AsyncConnectionConfig,
    ) -> RedisResult<MultiplexedConnection> {
        let client = Client::open(self.info(node, protocol)?)?;
        client.get_multiplexed_async_connection_with_config(options).await
    }

    /// The password as it is now.
    ///
    /// # Errors
    /// The password file can't be read or isn't UTF-8.
    pub(super) fn password(&self) -> RedisResult<Option<String>> {
        let Some(path) = &self.config.password_file else {
            return Ok(self.config.password.as_ref().map(|secret| secret.expose().to_owned()));
        };
        let bytes = read(path, "the password of redis.password_file")?;
        let text = String::from_utf8(bytes).map_err(|_| {
            RedisError::from((ErrorKind::InvalidClientConfig, "the password file is not UTF-8"))
        })?;
        Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()))
    }
}

/// Reads a small local file. Blocking: it happens once per connection.
fn read(path: &str, what: &'static str) -> RedisResult<Vec<u8>> {
    config::file::read(path.as_ref()).map_err(|e| {
        RedisError::from((ErrorKind::InvalidClientConfig, "can't read", format!("{what}, {path}: {e}")))
    })
}

/// Where an error points: the slot and the node that answers for it (MOVED, ASK).
pub fn redirect(error: &RedisError, from: &NodeAddr) -> Option<(u16, NodeAddr)> {
    let (addr, slot) = error.redirect_node()?;
    Some((slot, NodeAddr::parse_told_by(addr, from)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Secret;
    use std::io::Write;

    fn node() -> NodeAddr {
        NodeAddr::parse("127.0.0.1:6379").expect("valid")
    }

    #[test]
    fn the_password_file_is_read_again_each_time() {
        let mut file = tempfile::NamedTempFile::new().expect("temporary file");
        writeln!(file, "first").expect("written");
        let path = file.path().to_str().expect("UTF-8 path").to_owned();
        let config = config::Redis { password_file: Some(path.clone()), ..Default::default() };
        let connector = Connector::new(&config);
        let password = |connector: &Connector| {
            let info = connector.info(&node(), ProtocolVersion::RESP3).expect("readable");
            info.redis_settings().password().map(str::to_owned)
        };
        assert_eq!(password(&connector).as_deref(), Some("first"));
        std::fs::write(&path, "second").expect("written");
        assert_eq!(password(&connector).as_deref(), Some("second"));
    }

    #[test]
    fn a_password_file_without_an_end_is_refused() {
        let config = config::Redis { password_file: Some("/dev/zero".into()), ..Default::default() };
        let error = Connector::new(&config).password().map(drop).expect_err("it has no end").to_string();
        assert!(error.contains("redis.password_file, /dev/zero: it is longer than"), "{error}");
    }

    #[test]
    fn secrets_stay_out_of_debug_output() {
        let config = config::Redis { password: Some(Secret::new("hunter2".into())), ..Default::default() };
        let connector = Connector::new(&config);
        let info = connector.info(&node(), ProtocolVersion::RESP2).expect("nothing to read");
        assert!(!format!("{connector:?} {info:?}").contains("hunter2"));
    }

    #[test]
    fn a_missing_ca_is_named() {
        let config =
            config::Redis { tls: true, tls_ca: Some("/nonexistent/ca.pem".into()), ..Default::default() };
        let error = Connector::new(&config).info(&node(), ProtocolVersion::RESP2).expect_err("no such file");
        assert!(error.to_string().contains("/nonexistent/ca.pem"), "{error}");
    }
}
