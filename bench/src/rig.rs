//! Everything that a scenario needs running: servers, proxies, and the publisher's connection to them.

use crate::client::dialect::Dialect;
use crate::process;
use crate::publisher::Feed;
use crate::scenario::{Scenario, Via};
use crate::server::gateway::Gateway;
use crate::server::redis::Redis;
use crate::server::{Running, peers};
use anyhow::Result;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

/// The running programs of one run. Dropping it ends them.
pub struct Rig {
    // Fields are dropped in this order: proxies, gateways, then what they depend on.
    proxies: Vec<Running>,
    /// The gateways, where the scenario is about them.
    pub gateways: Vec<Gateway>,
    peer: Option<Running>,
    redis: Option<Redis>,
    /// Where sessions connect.
    pub entrances: Vec<SocketAddr>,
    /// Where publications go.
    pub feed: Feed,
}

impl Rig {
    /// Starts what the scenario asks for; seeding is the caller's business.
    ///
    /// # Errors
    /// When a program doesn't come up.
    pub fn start(scenario: &Scenario, binary: &Path, dir: &Path) -> Result<Self> {
        match scenario.dialect {
            Dialect::GatewayWs | Dialect::GatewaySse => Self::with_gateways(scenario, binary, dir),
            Dialect::NchanWs | Dialect::NchanSse => {
                let (peer, addr) = peers::nchan(dir)?;
                Ok(Self::with_peer(peer, addr, Feed::Nchan(addr)))
            }
            Dialect::NatsWs => {
                let (peer, ws, plain) = peers::nats(dir)?;
                Ok(Self::with_peer(peer, ws, Feed::Nats(plain)))
            }
        }
    }

    fn with_peer(peer: Running, entrance: SocketAddr, feed: Feed) -> Self {
        let (proxies, gateways) = (Vec::new(), Vec::new());
        Self { proxies, gateways, peer: Some(peer), redis: None, entrances: vec![entrance], feed }
    }

    fn with_gateways(scenario: &Scenario, binary: &Path, dir: &Path) -> Result<Self> {
        let redis = if scenario.cluster { Redis::cluster(dir)? } else { Redis::standalone(dir)? };
        let gateways = (0..scenario.gateways)
            .map(|_| Gateway::start(binary, &redis, &scenario.settings, dir))
            .collect::<Result<Vec<_>>>()?;
        let mut entrances: Vec<_> = gateways.iter().map(|g| g.public).collect();
        let mut proxies = Vec::new();
        if scenario.via != Via::Direct {
            let (nginx, addr) = peers::nginx_proxy(&entrances, dir)?;
            proxies.push(nginx);
            entrances = vec![addr];
        }
        if scenario.via == Via::CaddyNginx {
            let (caddy, addr) = peers::caddy_proxy(entrances[0], dir)?;
            proxies.push(caddy);
            entrances = vec![addr];
        }
        let feed = Feed::Redis(redis.feed());
        Ok(Self { proxies, gateways, peer: None, redis: Some(redis), entrances, feed })
    }

    fn processes(&self) -> impl Iterator<Item = &Running> {
        let redis = self.redis.iter().flat_map(|r| &r.processes);
        self.proxies.iter().chain(self.gateways.iter().map(|g| &g.process)).chain(&self.peer).chain(redis)
    }

    /// The server under test, or its first process.
    pub fn subjects(&self) -> Vec<&Running> {
        self.gateways.iter().map(|g| &g.process).chain(&self.peer).collect()
    }

    /// Resident memory of the server under test with its workers, in KiB.
    pub fn rss_kib(&self) -> u64 {
        let pids = self.subjects().into_iter().flat_map(|p| process::with_children(p.pid()));
        pids.map(process::rss_kib).sum()
    }

    /// CPU nanoseconds by role.
    pub fn cpu_ns(&self) -> BTreeMap<String, u64> {
        let mut sums = BTreeMap::new();
        for running in self.processes() {
            let ns: u64 = process::with_children(running.pid()).into_iter().map(process::cpu_ns).sum();
            *sums.entry(running.role.to_owned()).or_default() += ns;
        }
        sums
    }

    /// The delivery counters of all gateways, summed.
    ///
    /// # Errors
    /// When a gateway doesn't answer.
    pub fn accounting(&self) -> Result<BTreeMap<String, f64>> {
        let mut sums = BTreeMap::new();
        for gateway in &self.gateways {
            for (name, value) in gateway.accounting()? {
                *sums.entry(name).or_default() += value;
            }
        }
        Ok(sums)
    }
}
