//! A Redis behind TLS, with a CA of its own.

use super::ports;
use super::redis::RedisServer;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// A CA and a certificate of `127.0.0.1` that it signed, made by `openssl`.
pub fn certificates() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let openssl = |args: &str| {
        let mut command = Command::new("openssl");
        command.args(args.split(' ')).current_dir(folder.path()).stderr(Stdio::null());
        assert!(command.status().expect("openssl; see tests/setup.sh").success(), "openssl {args}");
    };
    std::fs::write(folder.path().join("ext"), "subjectAltName=IP:127.0.0.1").unwrap();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(&format!("req -x509 {key} -keyout ca.key -out ca.pem -subj /CN=ca -days 2"));
    openssl(&format!("req {key} -keyout tls.key -out tls.csr -subj /CN=redis"));
    openssl(
        "x509 -req -in tls.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out tls.pem -days 2 -extfile ext",
    );
    folder
}

/// The path of a file in a folder.
pub fn path(folder: &TempDir, name: &str) -> String {
    folder.path().join(name).to_str().unwrap().to_owned()
}

/// Settings of a server that also listens behind TLS.
pub fn tls_settings(certificates: &TempDir, port: u16) -> Vec<String> {
    let files = [("cert", "tls.pem"), ("key", "tls.key"), ("ca-cert", "ca.pem")];
    let files = files.map(|(what, name)| [format!("--tls-{what}-file"), path(certificates, name)]);
    let ports = [["--tls-port".into(), port.to_string()], ["--tls-auth-clients".into(), "no".into()]];
    ports.into_iter().chain(files).flatten().collect()
}

/// A server that also listens behind TLS.
pub struct TlsServer {
    server: RedisServer,
    folder: TempDir,
    port: u16,
}

impl TlsServer {
    /// Starts a server with further settings.
    pub async fn start(conf: &[&str]) -> Self {
        let (folder, port) = (certificates(), ports::free());
        let settings = tls_settings(&folder, port);
        let settings: Vec<&str> = settings.iter().map(String::as_str).chain(conf.iter().copied()).collect();
        let server = RedisServer::start_with(&settings).await;
        Self { server, folder, port }
    }

    /// The same server without TLS.
    pub const fn plain(&self) -> &RedisServer {
        &self.server
    }

    /// `host:port` behind TLS.
    pub fn tls_address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The path of its CA.
    pub fn ca(&self) -> String {
        path(&self.folder, "ca.pem")
    }
}
