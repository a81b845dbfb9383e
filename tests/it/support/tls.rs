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
        let [cert, key, ca] = ["tls.pem", "tls.key", "ca.pem"].map(|name| path(&folder, name));
        let text = port.to_string();
        let mut settings = vec!["--tls-port", &text, "--tls-auth-clients", "no", "--tls-cert-file", &cert];
        settings.extend(["--tls-key-file", &key, "--tls-ca-cert-file", &ca]);
        settings.extend(conf);
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
