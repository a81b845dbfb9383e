//! Packets that are lost on the way, by rules of the kernel's filter. Needs root and `iptables`.

use std::process::Command;

/// Packets are lost until this is dropped.
pub struct DroppedPackets {
    rules: Vec<Vec<String>>,
}

impl DroppedPackets {
    /// Loses what comes from or goes to a port. `None` where rules can't be made.
    pub fn of_port(port: u16) -> Option<Self> {
        let rule = |side: &str| words(&format!("-p tcp {side} {port}"));
        Self::by(vec![rule("--sport"), rule("--dport")])
    }

    /// Loses what comes from or goes to a local address.
    pub fn of_address(address: &str) -> Option<Self> {
        Self::by(vec![words(&format!("-s {address}")), words(&format!("-d {address}"))])
    }

    fn by(rules: Vec<Vec<String>>) -> Option<Self> {
        let dropped = Self { rules };
        dropped.rules.iter().all(|rule| iptables("-I", rule)).then_some(dropped)
    }
}

impl Drop for DroppedPackets {
    fn drop(&mut self) {
        for rule in &self.rules {
            iptables("-D", rule);
        }
    }
}

fn iptables(action: &str, rule: &[String]) -> bool {
    let mut command = Command::new("iptables");
    command.args(["-w", action, "INPUT"]).args(rule).args(["-j", "DROP"]);
    command.output().is_ok_and(|output| output.status.success())
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// The port of `host:port`.
pub fn port_of(address: &str) -> u16 {
    address.rsplit(':').next().unwrap().parse().unwrap()
}
