//! The real binary as a child process, with the short timers that the field cases are written for.

use super::cluster::RedisCluster;
use super::http::{self, Answer};
use super::metrics::Metrics;
use super::ports;
use super::process::Process;
use super::redis::RedisServer;
use super::token::SECRET;
use super::wait::wait_for;
use rustix::process::Signal;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;
use tempfile::TempDir;

const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Of the log of a failed test, enough to see what went on and not more than a screen.
const LOG_LINES: usize = 60;
const LOG_COLUMNS: usize = 300;

const TEST_TIMERS: [(&str, &str); 12] = [
    ("auth.timeout", "'3s'"),
    ("auth.jwt.leeway", "'1s'"),
    ("session.heartbeat_interval", "'2s'"),
    ("session.pong_timeout", "'3s'"),
    ("session.max_missed_pongs", "2"),
    ("session.slow_consumer_grace", "'3s'"),
    ("drain.notice", "'100ms'"),
    ("drain.deadline", "'5s'"),
    ("redis.command_timeout", "'500ms'"),
    // A swarm on an idle machine connects faster than browsers ever do.
    ("limits.accepts_per_second", "100000"),
    ("lanes.threads", "2"),
    ("log.filter", "'info'"),
];

/// What a gateway is to be started with.
pub struct GatewayBuilder {
    settings: Vec<(String, String)>,
    environment: Vec<(String, String)>,
    descriptors: Option<u64>,
}

impl GatewayBuilder {
    /// Sets a configuration key to a TOML value; the last word counts.
    pub fn set(mut self, key: &str, toml: &str) -> Self {
        self.settings.retain(|(known, _)| known != key);
        self.settings.push((key.to_owned(), toml.to_owned()));
        self
    }

    /// Leaves a key to its default.
    pub fn unset(mut self, key: &str) -> Self {
        self.settings.retain(|(known, _)| known != key);
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Uses a standalone Redis.
    pub fn redis(self, server: &RedisServer) -> Self {
        self.redis_at(&[server.address()])
    }

    /// Uses a standalone Redis behind any address, such as a proxy's.
    pub fn redis_at(self, nodes: &[String]) -> Self {
        self.set("redis.mode", "'standalone'").set("redis.nodes", &format!("{nodes:?}"))
    }

    /// Uses a cluster with sharded Pub/Sub.
    pub fn cluster(self, cluster: &RedisCluster) -> Self {
        self.set("redis.mode", "'cluster'").set("redis.nodes", &format!("{:?}", cluster.addresses()))
    }

    /// Uses so many partitions of the channel.
    pub fn partitions(self, n: u32) -> Self {
        self.set("redis.channel.partitions", &n.to_string())
    }

    /// Lets the process have so many descriptors and not more.
    pub const fn descriptors(mut self, n: u64) -> Self {
        self.descriptors = Some(n);
        self
    }

    /// Starts it and waits until it is ready.
    pub async fn start(self) -> Gateway {
        let mut gateway = self.launch();
        gateway.ready().await;
        gateway
    }

    /// Starts it without waiting.
    pub fn launch(self) -> Gateway {
        let folder = tempfile::tempdir().unwrap();
        let local = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let (public, admin) = (local(ports::free()), local(ports::free()));
        let mut gateway = Gateway { process: None, public, admin, builder: self, folder };
        gateway.write_configuration();
        gateway.spawn();
        gateway
    }
}

/// A running gateway; it ends with its owner.
pub struct Gateway {
    process: Option<Process>,
    /// Where browsers connect.
    pub public: SocketAddr,
    /// Where operators connect.
    pub admin: SocketAddr,
    builder: GatewayBuilder,
    folder: TempDir,
}

impl Gateway {
    /// A gateway with test timers and the test secret.
    pub fn builder() -> GatewayBuilder {
        let settings = TEST_TIMERS.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
        let builder = GatewayBuilder { settings, environment: Vec::new(), descriptors: None };
        builder.set("auth.jwt.secret", &format!("'{SECRET}'"))
    }

    /// The usual one: test timers, one Redis, one channel.
    pub async fn start(server: &RedisServer) -> Self {
        Self::builder().redis(server).start().await
    }

    fn write_configuration(&self) {
        let mut toml = format!("listen.public = '{}'\nlisten.admin = '{}'\n", self.public, self.admin);
        for (key, value) in &self.builder.settings {
            toml += &format!("{key} = {value}\n");
        }
        std::fs::write(self.folder.path().join("gateway.toml"), toml).unwrap();
    }

    /// Changes settings in its file and asks it to read them; waits until it has taken them over or refused them.
    pub async fn reload(&mut self, settings: &[(&str, &str)]) {
        for (key, value) in settings {
            self.builder.settings.retain(|(known, _)| known != key);
            self.builder.settings.push(((*key).to_owned(), (*value).to_owned()));
        }
        self.write_configuration();
        let before = self.metrics().await.sum("config_reloads_total", &[]);
        self.process().signal(Signal::HUP);
        let within = Duration::from_secs(10);
        self.metric_is("config_reloads_total", &[], within, before + 1.0).await;
    }

    fn spawn(&mut self) {
        let binary = env!("CARGO_BIN_EXE_tickbridge");
        let mut command = match self.builder.descriptors {
            Some(n) => {
                let mut command = Command::new("prlimit");
                command.arg(format!("--nofile={n}:{n}")).arg(binary);
                command
            }
            None => Command::new(binary),
        };
        command.arg("serve").arg("--config").arg(self.folder.path().join("gateway.toml"));
        // The log is appended, so that the story of a restarted gateway stays in one piece.
        let log = File::options().create(true).append(true).open(self.log_path()).unwrap();
        command.stdout(Stdio::from(log.try_clone().unwrap())).stderr(Stdio::from(log));
        command.env_clear().env("PATH", std::env::var("PATH").unwrap()).env("RUST_BACKTRACE", "1");
        command.envs(self.builder.environment.iter().map(|(name, value)| (name, value)));
        self.process = Some(Process::spawn(&mut command));
    }

    fn log_path(&self) -> std::path::PathBuf {
        self.folder.path().join("gateway.log")
    }

    /// Everything that it logged.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.log_path()).unwrap()).into_owned()
    }

    /// The process.
    pub fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("spawned by launch")
    }

    /// Connections to its public listener for which it has a descriptor, also ended ones.
    pub fn n_connections(&mut self) -> usize {
        let public = Some(self.public);
        let is_ours = |socket: &socket2::Socket| socket.local_addr().is_ok_and(|at| at.as_socket() == public);
        // The listener is one of them.
        self.process().sockets().iter().filter(|socket| is_ours(socket)).count() - 1
    }

    /// Waits until `/readyz` says 200.
    pub async fn ready(&mut self) {
        let admin = self.admin;
        let started = wait_for("the gateway is ready or has ended", START_TIMEOUT, || {
            let ended = !self.process().is_running();
            async move {
                let answer = http::try_request(admin, "GET", "/readyz", &[], "").await;
                let ready = answer.is_ok_and(|answer| answer.head.status == 200);
                (ready || ended).then_some(ready)
            }
        })
        .await;
        assert!(started, "the gateway ended before it was ready");
    }

    /// What `/readyz` says.
    pub async fn readiness(&self) -> Answer {
        http::get(self.admin, "/readyz", &[]).await
    }

    /// A scrape of `/metrics`.
    pub async fn metrics(&self) -> Metrics {
        Metrics::parse(&http::get(self.admin, "/metrics", &[]).await.body)
    }

    /// Waits until a metric has a value.
    pub async fn metric_is(&self, name: &str, labels: &[(&str, &str)], within: Duration, value: f64) {
        let what = format!("{name} {labels:?} is {value}");
        self.metric_fits(&what, name, labels, within, |v| (v - value).abs() < 1e-9).await;
    }

    /// Waits until a metric's value fits.
    pub async fn metric_fits(
        &self,
        what: &str,
        name: &str,
        labels: &[(&str, &str)],
        within: Duration,
        fits: impl Fn(f64) -> bool,
    ) {
        wait_for(what, within, || async {
            let value = self.metrics().await.sum(name, labels);
            fits(value).then_some(())
        })
        .await;
    }

    /// Asks it to end and gives its exit status.
    pub async fn stop(&mut self, within: Duration) -> ExitStatus {
        self.process().stop();
        self.process().ended(within).await
    }

    /// Ends it at once and starts it again on the same ports.
    pub async fn restart(&mut self) {
        self.process().kill9();
        self.start_again().await;
    }

    /// Starts it on the same ports after it has ended.
    pub async fn start_again(&mut self) {
        self.spawn();
        self.ready().await;
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(LOG_LINES)..].iter();
            // The line with the whole configuration would hide the others.
            let tail: Vec<String> = tail.map(|line| line.chars().take(LOG_COLUMNS).collect()).collect();
            eprintln!("the gateway on {} logged at last:\n{}", self.public, tail.join("\n"));
        }
    }
}
