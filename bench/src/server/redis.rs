//! Redis servers without persistence, alone or as a cluster of three primaries.

use super::{Running, accepts, free_port};
use crate::publisher::RedisFeed;
use anyhow::{Context, Result};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::RangeInclusive;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Partitions of the channel in a cluster, as the deployment that is replaced has them.
const PARTITIONS: u32 = 64;

/// Running Redis servers.
pub struct Redis {
    /// The processes.
    pub processes: Vec<Running>,
    /// Their addresses and slots.
    pub nodes: Vec<(SocketAddr, RangeInclusive<u16>)>,
    /// Partitions of the channel.
    pub partitions: u32,
}

impl Redis {
    /// Starts one server.
    ///
    /// # Errors
    /// When it doesn't come up.
    pub fn standalone(dir: &Path) -> Result<Self> {
        let (process, addr) = server(dir, false)?;
        Ok(Self { processes: vec![process], nodes: vec![(addr, 0..=16_383)], partitions: 1 })
    }

    /// Starts three primaries and joins them.
    ///
    /// # Errors
    /// When the cluster doesn't form within ten seconds.
    pub fn cluster(dir: &Path) -> Result<Self> {
        let mut processes = Vec::new();
        let mut nodes = Vec::new();
        for slots in [0..=5_460, 5_461..=10_922, 10_923..=16_383] {
            let (process, addr) = server(dir, true)?;
            let (from, to) = (slots.start().to_string(), slots.end().to_string());
            ask(addr, &["CLUSTER", "ADDSLOTSRANGE", &from, &to])?;
            processes.push(process);
            nodes.push((addr, slots));
        }
        for (i, (addr, _)) in nodes.iter().enumerate() {
            ask(*addr, &["CLUSTER", "SET-CONFIG-EPOCH", &(i + 1).to_string()])?;
        }
        for (addr, _) in &nodes[1..] {
            ask(nodes[0].0, &["CLUSTER", "MEET", "127.0.0.1", &addr.port().to_string()])?;
        }
        let deadline = Instant::now() + Duration::from_secs(10);
        for (addr, _) in &nodes {
            while !ask(*addr, &["CLUSTER", "INFO"])?.contains("cluster_state:ok") {
                anyhow::ensure!(Instant::now() < deadline, "the cluster doesn't form");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(Self { processes, nodes, partitions: PARTITIONS })
    }

    /// What a publisher must know.
    pub fn feed(&self) -> RedisFeed {
        let sharded = self.nodes.len() > 1;
        RedisFeed { nodes: self.nodes.clone(), partitions: self.partitions, sharded }
    }
}

fn server(dir: &Path, cluster: bool) -> Result<(Running, SocketAddr)> {
    // The cluster bus takes the port 10,000 above, so that high ports won't do.
    let port = if cluster {
        (0..100).map(|_| fastrand::u16(20_000..30_000)).find(|&p| free(p) && free(p + 10_000))
    } else {
        Some(free_port()?)
    };
    let port = port.context("find a free port for a cluster node")?;
    let addr = SocketAddr::from(([127, 0, 0, 1], port));
    let home = dir.join(format!("redis-{port}"));
    std::fs::create_dir_all(&home)?;
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    command.args(["--cluster-enabled", if cluster { "yes" } else { "no" }]).arg("--dir").arg(&home);
    let mut process = Running::start("redis", &mut command, dir)?;
    process.wait_until(|| accepts(addr))?;
    Ok((process, addr))
}

fn free(port: u16) -> bool {
    std::net::TcpListener::bind(("127.0.0.1", port)).is_ok()
}

fn ask(addr: SocketAddr, parts: &[&str]) -> Result<String> {
    let mut stream = TcpStream::connect(addr)?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    let mut out = Vec::new();
    let parts: Vec<_> = parts.iter().map(|p| p.as_bytes()).collect();
    crate::publisher::wire::push_command(&mut out, &parts);
    stream.write_all(&out)?;
    let mut buf = [0; 16 * 1024];
    let n = stream.read(&mut buf)?;
    let answer = String::from_utf8_lossy(&buf[..n]).into_owned();
    anyhow::ensure!(
        !answer.starts_with('-'),
        "redis refuses {:?}: {answer}",
        String::from_utf8_lossy(parts[0])
    );
    Ok(answer)
}
