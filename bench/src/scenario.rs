//! The scenarios: what is measured, with which load, over which path.

use crate::client::dialect::Dialect;
use crate::interest::Interest;
use crate::schedule::Arrival;
use serde::{Deserialize, Serialize};

/// What stands between the load generator and the gateway.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Via {
    /// Nothing.
    Direct,
    /// nginx.
    Nginx,
    /// Caddy, then nginx.
    CaddyNginx,
}

/// What is done to the system while it is measured.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Disturbance {
    /// Stop the server under test for so many milliseconds in the middle of the window.
    pub stall_ms: u64,
    /// Share of the sessions that stop reading before the window.
    pub slow: f64,
    /// Topics left and joined again per second.
    pub churn: f64,
    /// All sessions drop and come back at once in the middle of the window.
    pub storm: bool,
}

/// One scenario.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Scenario {
    /// What it is called in results.
    pub name: String,
    /// Server and transport.
    pub dialect: Dialect,
    /// The way to the gateway.
    pub via: Via,
    /// Whether Redis is a cluster of three.
    pub cluster: bool,
    /// Gateways; sessions are spread over them.
    pub gateways: usize,
    /// Sessions.
    pub sessions: usize,
    /// Topics per session.
    pub topics: usize,
    /// Instruments.
    pub instruments: usize,
    /// Who watches what.
    pub interest: Interest,
    /// Deliveries per second owed; 0 measures an idle server.
    pub rate: f64,
    /// How publications are spread over time.
    pub arrival: Arrival,
    /// Seconds before the window.
    pub warm_s: f64,
    /// Seconds of the window.
    pub window_s: f64,
    /// Connections of the publisher.
    pub publishers: usize,
    /// Sessions connecting at the same time.
    pub in_flight: usize,
    /// What is done meanwhile.
    pub disturbance: Disturbance,
    /// Settings of the gateway that differ from the defaults.
    pub settings: Vec<(String, String)>,
}

impl Scenario {
    /// The common shape: the gateway's WebSocket, directly, one Redis, 20 of 1,000 instruments each.
    pub fn new(name: &str, sessions: usize, rate: f64, arrival: Arrival) -> Self {
        Self {
            name: name.into(),
            dialect: Dialect::GatewayWs,
            via: Via::Direct,
            cluster: false,
            gateways: 1,
            sessions,
            topics: 20,
            instruments: 1_000,
            interest: Interest::Uniform,
            rate,
            arrival,
            warm_s: 2.0,
            window_s: 5.0,
            publishers: 4,
            in_flight: 256,
            disturbance: Disturbance::default(),
            settings: Vec::new(),
        }
    }

    fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

const RATES: [(f64, &str); 4] = [(50e3, "50k"), (100e3, "100k"), (200e3, "200k"), (1e6, "1m")];

/// Every scenario, in the order in which the report shows them.
pub fn all() -> Vec<Scenario> {
    let mut all = vec![Scenario::new("idle-ws", 10_000, 0.0, Arrival::Uniform)];
    all.push(
        Scenario::new("idle-sse", 10_000, 0.0, Arrival::Uniform).with(|s| s.dialect = Dialect::GatewaySse),
    );
    for sessions in [5_000, 10_000] {
        for arrival in [Arrival::Uniform, Arrival::Burst] {
            for (rate, text) in RATES {
                let shape = if arrival == Arrival::Uniform { "uniform" } else { "burst" };
                let name = format!("ws-{}k-{shape}-{text}", sessions / 1_000);
                all.push(Scenario::new(&name, sessions, rate, arrival));
            }
        }
    }
    for (rate, text) in RATES {
        all.push(
            Scenario::new(&format!("sse-10k-uniform-{text}"), 10_000, rate, Arrival::Uniform)
                .with(|s| s.dialect = Dialect::GatewaySse),
        );
    }
    all.extend(special());
    all.extend(peers());
    all
}

fn special() -> Vec<Scenario> {
    let base = |name: &str, rate: f64| Scenario::new(name, 10_000, rate, Arrival::Uniform);
    let mut all = vec![
        base("hot-churn-100k", 100e3).with(|s| {
            s.interest = Interest::Hot { share: 0.4 };
            s.disturbance.churn = 500.0;
        }),
        base("slow-readers-50k", 50e3).with(|s| {
            s.disturbance.slow = 0.2;
            s.window_s = 20.0;
        }),
        base("storm-50k", 50e3).with(|s| {
            s.disturbance.storm = true;
            s.in_flight = 10_000;
            s.window_s = 15.0;
        }),
        base("stall-50k", 50e3).with(|s| s.disturbance.stall_ms = 1_000),
        base("nginx-ws-50k", 50e3).with(|s| {
            s.via = Via::Nginx;
            s.sessions = 5_000;
        }),
        base("caddy-nginx-ws-50k", 50e3).with(|s| {
            s.via = Via::CaddyNginx;
            s.sessions = 5_000;
        }),
    ];
    for gateways in 1..=3 {
        all.push(base(&format!("cluster-{gateways}-100k"), 100e3).with(|s| {
            s.cluster = true;
            s.gateways = gateways;
        }));
    }
    for (dialect, text) in [(Dialect::GatewayWs, "ws"), (Dialect::GatewaySse, "sse")] {
        all.push(base(&format!("handshake-{text}-32"), 0.0).with(|s| {
            s.dialect = dialect;
            s.sessions = 5_000;
            s.in_flight = 32;
        }));
    }
    all
}

fn peers() -> Vec<Scenario> {
    let mut all = Vec::new();
    let list = [
        (Dialect::NchanWs, "nchan-ws", &[10e3, 20e3, 30e3, 50e3][..], 8),
        (Dialect::NchanSse, "nchan-sse", &[10e3, 20e3, 30e3][..], 8),
        (Dialect::NatsWs, "nats-ws", &[50e3, 100e3, 200e3, 400e3][..], 4),
    ];
    for (dialect, text, rates, publishers) in list {
        for rate in rates {
            let name = format!("{text}-10k-uniform-{}k", rate / 1e3);
            all.push(Scenario::new(&name, 10_000, *rate, Arrival::Uniform).with(|s| {
                s.dialect = dialect;
                s.publishers = publishers;
            }));
        }
    }
    all
}

/// The few that tell a change for the better from one for the worse within minutes.
pub fn quick() -> Vec<Scenario> {
    let names =
        ["idle-ws", "ws-10k-uniform-50k", "ws-10k-uniform-200k", "ws-10k-burst-1m", "sse-10k-uniform-50k"];
    all().into_iter().filter(|s| names.contains(&s.name.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_the_quick_ones_exist() {
        let mut names: Vec<_> = all().into_iter().map(|s| s.name).collect();
        let n = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), n);
        assert_eq!(quick().len(), 5);
    }
}
