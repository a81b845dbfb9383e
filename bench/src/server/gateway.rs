//! The gateway: as built by `cargo build --release`, with its defaults but for what a benchmark must set.

use super::redis::Redis;
use super::{Running, free_addr, http_get};
use anyhow::Result;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

/// The secret that tokens are signed with.
pub const SECRET: &str = "bench-secret-bench-secret-bench-secret-bench-secret-bench-secret";

/// A running gateway.
pub struct Gateway {
    /// The process.
    pub process: Running,
    /// Where browsers go.
    pub public: SocketAddr,
    /// Where operators go.
    pub admin: SocketAddr,
}

impl Gateway {
    /// Starts the binary and waits until it is ready.
    ///
    /// The limit on accepts per second is lifted, because 10,000 sessions come from one machine at
    /// once; nothing else differs from the defaults, except for `settings`.
    ///
    /// # Errors
    /// When it doesn't become ready.
    pub fn start(binary: &Path, redis: &Redis, settings: &[(String, String)], dir: &Path) -> Result<Self> {
        let (public, admin) = (free_addr()?, free_addr()?);
        let mut command = Command::new(binary);
        command
            .arg("serve")
            .env("TICKBRIDGE_LISTEN__PUBLIC", public.to_string())
            .env("TICKBRIDGE_LISTEN__ADMIN", admin.to_string())
            .env("TICKBRIDGE_LIMITS__ACCEPTS_PER_SECOND", "100000")
            .env("TICKBRIDGE_LOG__FILTER", "warn")
            .env("JWT_SECRET", SECRET);
        if redis.nodes.len() > 1 {
            let nodes: Vec<_> = redis.nodes.iter().map(|(addr, _)| addr.to_string()).collect();
            command
                .env("TICKBRIDGE_REDIS__MODE", "cluster")
                .env("REDIS_CLUSTER_NODES", nodes.join(","))
                .env("WS_PRICE_TOPIC_PARTITION_COUNT", redis.partitions.to_string());
        } else {
            let addr = redis.nodes[0].0;
            command.env("REDIS_HOST", addr.ip().to_string()).env("REDIS_PORT", addr.port().to_string());
        }
        command.envs(settings.iter().map(|(k, v)| (k, v)));
        let mut process = Running::start("gateway", &mut command, dir)?;
        process.wait_until(|| http_get(admin, "/readyz").is_ok_and(|(status, _)| status == 200))?;
        Ok(Self { process, public, admin })
    }

    /// The delivery counters, summed over lanes; `dropped` over its reasons as well.
    ///
    /// # Errors
    /// When the page can't be had.
    pub fn accounting(&self) -> Result<BTreeMap<String, f64>> {
        let (_, text) = http_get(self.admin, "/metrics")?;
        Ok(accounting(&text))
    }
}

fn accounting(text: &str) -> BTreeMap<String, f64> {
    let mut sums = BTreeMap::new();
    for line in text.lines() {
        let Some(rest) = line.strip_prefix("tickbridge_deliveries_") else { continue };
        let name = rest.split(['{', ' ']).next().unwrap_or_default().trim_end_matches("_total");
        let value = rest.rsplit(' ').next().and_then(|v| v.parse::<f64>().ok()).unwrap_or(0.0);
        *sums.entry(name.to_owned()).or_default() += value;
    }
    sums
}

#[cfg(test)]
mod tests {
    #[test]
    fn counters_are_summed_over_labels() {
        let text = "# HELP tickbridge_deliveries_offered_total x\ntickbridge_deliveries_offered_total 7\n\
                    tickbridge_deliveries_dropped_total{reason=\"a\"} 1\n\
                    tickbridge_deliveries_dropped_total{reason=\"b\"} 2\ntickbridge_deliveries_pending 4\n";
        let sums = super::accounting(text);
        assert_eq!((sums["offered"], sums["dropped"], sums["pending"]), (7.0, 3.0, 4.0));
    }
}
