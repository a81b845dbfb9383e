//! The composed stack under verbs: scale, restart, kill, reload, ask. A Compose project of its own, on ports of its
//! own, removed with its owner.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use tempfile::TempDir;
use tickbridge::instrument::InstrumentId;

use crate::proxies::tls::{self, Tunnel};
use crate::support::metrics::Metrics;
use crate::support::token::SECRET;
use crate::support::wait::wait_for;
use crate::support::{ports, wait};

/// Starting and stopping containers takes long on a busy machine; nothing here hangs longer.
const SLOW: Duration = Duration::from_secs(180);

/// As in docker-compose.yml.
const PARTITIONS: u32 = 64;

/// In what a replica says that doesn't answer.
const UNREADY: &str = "\"unready\"";

/// A listener's container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Its id.
    pub id: String,
    /// Its address in the network that nginx sees.
    pub address: String,
}

/// The running stack.
pub struct Stack {
    project: String,
    http: u16,
    https: u16,
    prometheus: u16,
    folder: TempDir,
}

impl Stack {
    /// A stack of which nothing runs yet.
    pub fn new() -> Self {
        let project = format!("tickbridge-test-{}", std::process::id());
        let (http, https, prometheus) = (ports::free(), ports::free(), ports::free());
        Self { project, http, https, prometheus, folder: tempfile::tempdir().unwrap() }
    }

    /// The Compose project.
    pub fn project(&self) -> &str {
        &self.project
    }

    /// `promised`; more in `make test`, whose machine may be a slow or a busy one. What this is used for tells what hangs
    /// from what doesn't, there too.
    pub fn bound(&self, promised: Duration) -> Duration {
        if std::env::var_os("COMPOSE_PATIENT").is_some() { promised * 8 } else { promised }
    }

    fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(args).current_dir(env!("CARGO_MANIFEST_DIR"));
        command.env("COMPOSE_PROJECT_NAME", &self.project).env("VERSION", "test");
        command.env("JWT_SECRET", SECRET).env("REDIS_PASSWORD", "a password for tests");
        command.env("SITE_ADDRESS", "localhost, 127.0.0.1").env("DEMO_PAGE", "true");
        command.env("ALLOWED_ORIGINS", format!("https://localhost:{}", self.https));
        command.env("HTTP_PORT", format!("127.0.0.1:{}", self.http));
        command.env("HTTPS_PORT", format!("127.0.0.1:{}", self.https));
        command.env("PROMETHEUS_PORT", self.prometheus.to_string());
        // Neither another run nor what is left of a killed one takes the same networks.
        let n = std::process::id() % 100 * 2;
        let (front, back) = (format!("172.31.{n}"), format!("172.31.{}", n + 1));
        command.env("FRONT_SUBNET", format!("{front}.0/24")).env("BACK_SUBNET", format!("{back}.0/24"));
        command.env("BACK_RANGE", format!("{back}.128/25"));
        for node in 1..=3 {
            command.env(format!("REDIS_ADDRESS_{node}"), format!("{back}.1{node}"));
        }
        // An engine can't give more than it has itself.
        let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap_or(65_536);
        command.env("DESCRIPTORS", most.min(65_536).to_string()).env("MAX_SESSIONS", "10000");
        command.stdin(Stdio::null());
        command
    }

    /// Runs a program and gives what it printed.
    pub async fn run(&self, program: &str, args: &[&str]) -> String {
        self.feed(program, args, "").await
    }

    /// [`Stack::run`] with a standard input.
    pub async fn feed(&self, program: &str, args: &[&str], input: &str) -> String {
        use tokio::io::AsyncWriteExt;
        let mut command = tokio::process::Command::from(self.command(program, args));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{program}: {e}"));
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).await.unwrap();
        drop(stdin);
        let ran =
            wait::in_time(&format!("{program} {args:?}"), SLOW, child.wait_with_output()).await.unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{program} {args:?}: {said}");
        String::from_utf8(ran.stdout).unwrap()
    }

    /// `docker compose …`
    pub async fn compose(&self, args: &[&str]) -> String {
        self.run("docker", &[&["compose"], args].concat()).await
    }

    /// Starts these services and nothing that they depend on.
    pub async fn up(&self, services: &[&str]) {
        self.compose(&[&["up", "-d", "--no-build", "--no-deps"], services].concat()).await;
    }

    /// Runs so many listeners, present ones kept.
    pub async fn scale(&self, n: usize) {
        let scale = format!("listener={n}");
        self.compose(&[
            "up",
            "-d",
            "--no-build",
            "--no-deps",
            "--no-recreate",
            "--scale",
            &scale,
            "listener",
        ])
        .await;
        self.ready(n).await;
    }

    /// Waits until so many listeners are ready and no other is there.
    pub async fn ready(&self, n: usize) {
        wait_for(&format!("{n} listeners are ready"), SLOW, || async {
            let replicas = self.replicas().await;
            for replica in &replicas {
                if self.ask(replica, "readyz").await.contains(UNREADY) || replica.address.is_empty() {
                    return None;
                }
            }
            (replicas.len() == n).then_some(())
        })
        .await;
    }

    /// The running listeners.
    pub async fn replicas(&self) -> Vec<Replica> {
        let ids = self.compose(&["ps", "-q", "--status", "running", "listener"]).await;
        let mut replicas = Vec::new();
        let network = format!("{}_front", self.project);
        let format = format!("{{{{(index .NetworkSettings.Networks \"{network}\").IPAddress}}}}");
        for id in ids.split_whitespace() {
            let address = self.run("docker", &["inspect", "-f", &format, id]).await.trim().to_owned();
            replicas.push(Replica { id: id.to_owned(), address });
        }
        replicas
    }

    /// What a replica's admin page says; an unready mark where it says nothing.
    pub async fn ask(&self, replica: &Replica, page: &str) -> String {
        let url = format!("http://{}:8081/{page}", replica.address);
        let script = format!("curl -s -m 2 {url} || echo '{UNREADY}'");
        self.compose(&["exec", "-T", "nginx", "sh", "-c", &script]).await
    }

    /// A metric of each replica; `None` if one of them doesn't answer.
    pub async fn each(&self, name: &str, labels: &[(&str, &str)]) -> Option<Vec<f64>> {
        let mut values = Vec::new();
        for replica in self.replicas().await {
            let text = self.ask(&replica, "metrics").await;
            values.push((!text.contains(UNREADY)).then(|| Metrics::parse(&text).sum(name, labels))?);
        }
        Some(values)
    }

    /// When a service's first container was started, and its process id on this machine.
    pub async fn started(&self, service: &str) -> (String, u32) {
        let id = self.compose(&["ps", "-q", service]).await;
        let told =
            self.run("docker", &["inspect", "-f", "{{.State.StartedAt}} {{.State.Pid}}", id.trim()]).await;
        let (at, pid) = told.trim().split_once(' ').unwrap();
        (at.to_owned(), pid.parse().unwrap())
    }

    /// Publishes a price of each instrument, as the existing publisher does: key, then message.
    pub async fn publish(&self, ids: std::ops::RangeInclusive<i64>, price: &str) {
        // Whole seconds would be older than what the demo's publisher has stored within the same second.
        let ts = unix_ms();
        let mut script = String::new();
        for id in ids {
            let key = format!("market:current-price:{{stock:{id}}}");
            let channel = format!("market:price-updated:{{{}}}", InstrumentId::new(id).partition(PARTITIONS));
            script += &format!("SET {key} '{{\"stockId\":{id},\"price\":{price},\"ts\":{ts}}}' EX 300\n");
            script += &format!("SPUBLISH {channel} '{{\"stockId\":{id},\"close\":{price},\"ts\":{ts}}}'\n");
        }
        self.tell_redis(&script).await;
    }

    /// Announces `n` large quotes of an instrument, one right after the other.
    pub async fn flood(&self, id: i64, n: u128) {
        let channel = format!("market:price-updated:{{{}}}", InstrumentId::new(id).partition(PARTITIONS));
        let (ts, open) = (unix_ms(), "1".repeat(800));
        let quotes = (0..n).map(|i| {
            let ts = ts + i;
            format!("SPUBLISH {channel} '{{\"stockId\":{id},\"close\":1.5,\"open\":{open},\"ts\":{ts}}}'\n")
        });
        self.tell_redis(&quotes.collect::<String>()).await;
    }

    async fn tell_redis(&self, script: &str) {
        self.feed("docker", &["compose", "exec", "-T", "redis-2", "redis-cli", "-c"], script).await;
    }

    /// Keeps what the containers have logged so far, since they and it go with their owner.
    pub fn logs(&self, step: &str) {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("target/compose-{step}.log"));
        let mut logs = self.command("docker", &["compose", "--profile", "*", "logs", "--no-color", "-t"]);
        if let Ok(to) = std::fs::File::create(&file) {
            let _ = logs.stdout(to).status();
            eprintln!("  what the containers logged is in {}", file.display());
        }
    }

    /// Where browsers connect.
    pub fn edge(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.https))
    }

    /// Where Prometheus answers.
    pub fn prometheus(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.prometheus))
    }

    /// The certificate of Caddy's CA, fetched on the way.
    pub async fn root(&self) -> PathBuf {
        let file = self.folder.path().join("root.crt");
        wait_for("Caddy has a certificate", SLOW, || async {
            let certificate = "caddy:/data/caddy/pki/authorities/local/root.crt";
            let mut copy =
                self.command("docker", &["compose", "cp", certificate, &file.display().to_string()]);
            let copied = copy.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success();
            let connector = copied.then(|| tls::connector(&file, &[]))?;
            tls::open(self.edge(), &connector).await.ok()
        })
        .await;
        file
    }

    /// An address without TLS that leads through Caddy.
    pub async fn tunnel(&self) -> Tunnel {
        Tunnel::to(self.edge(), &self.root().await).await
    }
}

fn unix_ms() -> u128 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis()
}

impl Drop for Stack {
    fn drop(&mut self) {
        let mut down = self
            .command("docker", &["compose", "--profile", "*", "down", "-v", "-t", "1", "--remove-orphans"]);
        let _ = down.stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}
