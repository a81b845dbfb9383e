//! A real redis-server of one's own: free port, empty folder, nothing saved, gone with its owner.

use super::ports;
use super::process::Process;
use super::wait::wait_for;
use redis::{FromRedisValue, RedisError, RedisResult};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Longer than any command that a healthy local server needs, short enough to poll a frozen one.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(5);
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A redis-server process on a port of its own.
pub struct RedisServer {
    binary: PathBuf,
    process: Process,
    port: u16,
    conf: Vec<String>,
    folder: TempDir,
}

impl RedisServer {
    /// Starts a server with nothing special about it.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts a server with further settings, such as `["--requirepass", "x"]`.
    pub async fn start_with(conf: &[&str]) -> Self {
        Self::start_on(ports::free(), conf).await
    }

    /// Starts a server on a port that the caller has picked.
    pub async fn start_on(port: u16, conf: &[&str]) -> Self {
        // Redis 6 doesn't know it.
        Self::start_as(Path::new("redis-server"), port, &[conf, &["--enable-debug-command", "yes"]].concat())
            .await
    }

    /// [`RedisServer::start_on`] of another program.
    pub async fn start_as(binary: &Path, port: u16, conf: &[&str]) -> Self {
        let (binary, folder) = (binary.to_owned(), tempfile::tempdir().unwrap());
        let conf: Vec<String> = conf.iter().map(ToString::to_string).collect();
        let mut server = Self { process: spawn(&binary, port, &conf, &folder), binary, port, conf, folder };
        server.ready().await;
        server
    }

    /// The port.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// `host:port`, as `redis.nodes` takes it.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The process, for its memory and processor time.
    pub const fn process(&self) -> &Process {
        &self.process
    }

    /// Runs one command on a connection of its own and gives its answer.
    ///
    /// # Errors
    /// What the server answers, or why it can't be asked.
    pub async fn try_cmd<T: FromRedisValue>(&self, args: &[&str]) -> RedisResult<T> {
        query(self.port, args).await
    }

    /// [`RedisServer::try_cmd`] where no error is expected.
    pub async fn cmd<T: FromRedisValue>(&self, args: &[&str]) -> T {
        self.try_cmd(args).await.unwrap_or_else(|e| panic!("{args:?}: {e}"))
    }

    /// How many connections subscribe to `channel`.
    pub async fn n_subscribers(&self, channel: &str) -> u64 {
        self.cmd::<(String, u64)>(&["PUBSUB", "NUMSUB", channel]).await.1
    }

    /// Cuts every connection that has a subscription, and says how many those are.
    pub async fn client_kill_pubsub(&self) -> u64 {
        self.cmd(&["CLIENT", "KILL", "TYPE", "pubsub"]).await
    }

    /// Calls per command since the start (or `CONFIG RESETSTAT`), as `INFO commandstats` counts them.
    pub async fn n_calls(&self, command: &str) -> u64 {
        let info: String = self.cmd(&["INFO", "commandstats"]).await;
        let field = format!("cmdstat_{command}:calls=");
        let calls = info.lines().find_map(|line| line.strip_prefix(&field)?.split(',').next()?.parse().ok());
        calls.unwrap_or(0)
    }

    /// Ends it at once.
    pub fn kill9(&mut self) {
        self.process.kill9();
    }

    /// Stops it from answering; its sockets stay open.
    pub fn freeze(&self) {
        self.process.freeze();
    }

    /// Lets it answer again.
    pub fn thaw(&self) {
        self.process.thaw();
    }

    /// Starts it again on the same port and folder, after [`RedisServer::kill9`] or in place of a running one.
    pub async fn restart(&mut self) {
        self.launch();
        self.ready().await;
    }

    /// [`RedisServer::restart`] without waiting.
    pub fn launch(&mut self) {
        if self.process.is_running() {
            self.process.kill9();
        }
        self.process = spawn(&self.binary, self.port, &self.conf, &self.folder);
    }

    /// Waits until it answers.
    pub async fn ready(&mut self) {
        let (port, process) = (self.port, &mut self.process);
        wait_for("redis-server answers PING", START_TIMEOUT, || {
            assert!(process.is_running(), "redis-server ended; is port {port} taken?");
            async move { query::<String>(port, &["PING"]).await.ok() }
        })
        .await;
    }
}

fn spawn(binary: &Path, port: u16, conf: &[String], folder: &TempDir) -> Process {
    let mut command = Command::new(binary);
    command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--dir"]).arg(folder.path());
    command.args(["--save", "", "--appendonly", "no"]).args(conf);
    Process::spawn(command.stdout(Stdio::null()))
}

/// Runs one command on a fresh connection, within a time limit.
pub async fn query<T: FromRedisValue>(port: u16, args: &[&str]) -> RedisResult<T> {
    let mut connection = connect(port).await?;
    let mut command = redis::cmd(args[0]);
    command.arg(&args[1..]);
    command.query_async(&mut connection).await
}

/// Opens a connection for commands.
///
/// # Errors
/// Why it can't be had in time.
pub async fn connect(port: u16) -> RedisResult<redis::aio::MultiplexedConnection> {
    let limits = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(COMMAND_TIMEOUT))
        .set_response_timeout(Some(COMMAND_TIMEOUT));
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}"))?;
    // The crate's own limit doesn't cover the handshake commands of a server that accepts and is silent.
    tokio::time::timeout(COMMAND_TIMEOUT, client.get_multiplexed_async_connection_with_config(&limits))
        .await
        .map_err(|_| RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut)))?
}
