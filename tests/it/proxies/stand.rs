//! The real nginx and Caddy as processes, with the files that users get: addresses and folders are substituted,
//! and what an older Debian version doesn't know is taken out, each by name.

use std::fmt::Write;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use super::tls::{self, Tunnel};
use crate::support::http::{self, Answer};
use crate::support::ports;
use crate::support::process::Process;
use crate::support::wait::wait_for;

const START_TIMEOUT: Duration = Duration::from_secs(30);

/// A file of the project's root.
pub fn shipped(name: &str) -> String {
    let path = format!("{}/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// A text in which each replacement must find its place, so that a changed file is noticed.
pub struct Template(String);

impl Template {
    /// A shipped file.
    pub fn of(name: &str) -> Self {
        Self(shipped(name))
    }

    /// Replaces every occurrence, of which there must be one at least.
    pub fn put(mut self, from: &str, to: &str) -> Self {
        assert!(self.0.contains(from), "{from:?} stands no longer in the file");
        self.0 = self.0.replace(from, to);
        self
    }

    /// The text.
    pub fn text(self) -> String {
        self.0
    }
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// The balancer.
pub struct Nginx {
    process: Process,
    /// Where Caddy connects.
    pub address: SocketAddr,
    folder: TempDir,
}

impl Nginx {
    /// Starts it before these replicas. `change` may alter the text further.
    pub async fn start(replicas: &[SocketAddr], change: impl FnOnce(Template) -> Template) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (address, status) = (local(ports::free()), local(ports::free()));
        let mut servers = String::new();
        for replica in replicas {
            write!(servers, "server {replica} max_fails=1 fail_timeout=2s;").unwrap();
        }
        let place = |name: &str| folder.path().join(name).display().to_string();
        let template = Template::of("nginx.conf")
            .put("listen 8080 ", &format!("listen {address} "))
            .put("listen 127.0.0.1:8082", &format!("listen {status}"))
            // Needs nginx 1.27.3; the containers' test has it.
            .put("server listener:8080 resolve max_fails=1 fail_timeout=2s;", &servers)
            .put("/tmp/nginx", &place("nginx"))
            .put("access_log /dev/stdout", &format!("access_log {}", place("access.log")))
            .put("flush=1s", "flush=100ms");
        std::fs::write(folder.path().join("nginx.conf"), change(template).text()).unwrap();
        let mut command = Command::new("/usr/sbin/nginx");
        // A folder of the test's own is not open to the user that nginx would change to.
        let globals =
            if rustix::process::geteuid().is_root() { "daemon off; user root;" } else { "daemon off;" };
        command
            .args(["-g", globals, "-p"])
            .arg(folder.path())
            .arg("-c")
            .arg(folder.path().join("nginx.conf"));
        let log = File::create(folder.path().join("error.log")).unwrap();
        let process = Process::spawn(command.stdout(Stdio::null()).stderr(log));
        let mut nginx = Self { process, address, folder };
        wait_for("nginx answers", START_TIMEOUT, || {
            assert!(nginx.process.is_running(), "nginx ended: {}", nginx.errors());
            async move { http::try_request(status, "GET", "/healthz", &[], "").await.ok() }
        })
        .await;
        nginx
    }

    /// Reads its configuration again, as `nginx -s reload` does.
    pub fn reload(&self) {
        self.process.signal(Signal::HUP);
    }

    /// Process ids of the workers.
    pub fn workers(&self) -> Vec<u32> {
        self.process.children().unwrap()
    }

    /// The access log.
    pub fn access_log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("access.log")).unwrap()
    }

    /// What it wrote to standard error.
    pub fn errors(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("error.log")).unwrap()
    }
}

/// The edge, with certificates of its own CA.
pub struct Caddy {
    process: Process,
    /// Where browsers connect, with TLS.
    pub port: u16,
    folder: TempDir,
}

impl Caddy {
    /// Starts it before a balancer.
    pub async fn start(balancer: SocketAddr) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (port, plain, admin) = (ports::free(), ports::free(), ports::free());
        let mut template = Template::of("Caddyfile").put(
            "admin 127.0.0.1:2019",
            &format!("admin 127.0.0.1:{admin}\n\thttp_port {plain}\n\thttps_port {port}"),
        );
        if version() < (2, 7) {
            template = template.put("stream_close_delay 30s", "");
        }
        let file = folder.path().join("Caddyfile");
        std::fs::write(&file, template.text()).unwrap();
        let mut command = Command::new("caddy");
        command.args(["run", "--adapter", "caddyfile", "--config"]).arg(&file);
        command.env("SITE_ADDRESS", "localhost, 127.0.0.1").env("BALANCER", balancer.to_string());
        for name in ["HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"] {
            command.env(name, folder.path());
        }
        let log = File::create(folder.path().join("caddy.log")).unwrap();
        let process = Process::spawn(command.stdout(Stdio::null()).stderr(log));
        let mut caddy = Self { process, port, folder };
        wait_for("Caddy has a certificate", START_TIMEOUT, || {
            assert!(caddy.process.is_running(), "Caddy ended: {}", caddy.log());
            let root = caddy.root();
            async move {
                // The file is there before all of it is written.
                std::fs::read_to_string(&root).ok().filter(|pem| pem.contains("END CERTIFICATE"))?;
                let connector = tls::connector(&root, &[]);
                tls::open(local(port), &connector).await.ok()
            }
        })
        .await;
        caddy
    }

    /// The certificate of its CA.
    pub fn root(&self) -> PathBuf {
        self.folder.path().join("caddy/pki/authorities/local/root.crt")
    }

    /// Everything that it logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("caddy.log")).unwrap()
    }

    /// An address without TLS that leads to it, for the clients that know no TLS.
    pub async fn tunnel(&self) -> Tunnel {
        Tunnel::to(local(self.port), &self.root()).await
    }
}

/// Major and minor version of the installed Caddy.
pub fn version() -> (u32, u32) {
    let out = Command::new("caddy").arg("version").output().expect("caddy is installed; see tests/setup.sh");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let mut numbers = text.trim_start_matches('v').split(['.', ' ', '-']).map_while(|part| part.parse().ok());
    numbers.next().zip(numbers.next()).unwrap_or_else(|| panic!("caddy calls itself {text:?}"))
}

/// Asks through a proxy.
pub async fn get(to: SocketAddr, path: &str) -> Answer {
    http::get(to, path, &[]).await
}
