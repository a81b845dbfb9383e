//! The programs under test and beside it, each started on a free port of the loopback and ended by its pid.
//!
//! Not here: how they are configured (`server::gateway`, `server::redis`, `server::peers`).

pub mod gateway;
pub mod peers;
pub mod redis;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A program of this run.
pub struct Running {
    /// Its role in the results.
    pub role: &'static str,
    child: Child,
    log: PathBuf,
}

impl Running {
    /// Starts a program, its output going to a file in `dir`.
    ///
    /// # Errors
    /// When the program can't be started.
    pub fn start(role: &'static str, command: &mut Command, dir: &Path) -> Result<Self> {
        let log = dir.join(format!("{role}-{}.log", free_port()?));
        let out = File::create(&log).with_context(|| format!("create {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stderr(out.try_clone()?)
            .stdout(out)
            .spawn()
            .with_context(|| format!("start {role} ({})", command.get_program().to_string_lossy()))?;
        Ok(Self { role, child, log })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        let _ = kill(Pid::from_raw(self.pid() as i32), signal);
    }

    /// Waits until `ready` says so.
    ///
    /// # Errors
    /// After ten seconds, or when the program ends; with the end of its output.
    pub fn wait_until(&mut self, mut ready: impl FnMut() -> bool) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !ready() {
            let ended = self.child.try_wait()?;
            if ended.is_some() || Instant::now() > deadline {
                let text = std::fs::read_to_string(&self.log).unwrap_or_default();
                let tail: Vec<_> = text.lines().rev().take(8).collect();
                let tail: Vec<_> = tail.into_iter().rev().collect();
                bail!("{} isn't ready ({ended:?}): {}", self.role, tail.join(" | "));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.signal(Signal::SIGCONT);
        self.signal(Signal::SIGTERM);
        let deadline = Instant::now() + Duration::from_secs(3);
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A port of the loopback that nobody listens on.
///
/// # Errors
/// When there is none.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// An address on the loopback with a free port.
///
/// # Errors
/// When there is none.
pub fn free_addr() -> Result<SocketAddr> {
    Ok(SocketAddr::from(([127, 0, 0, 1], free_port()?)))
}

/// Whether somebody accepts connections there.
pub fn accepts(addr: SocketAddr) -> bool {
    TcpStream::connect_timeout(&addr, Duration::from_millis(200)).is_ok()
}

/// The status and body of a plain GET.
///
/// # Errors
/// When the connection fails or stays silent for five seconds.
pub fn http_get(addr: SocketAddr, path: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&addr, Duration::from_secs(1))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: bench\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let status = text.split(' ').nth(1).and_then(|s| s.parse().ok()).context("no status line")?;
    let body = text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default();
    Ok((status, body))
}
