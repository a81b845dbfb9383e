//! The client's address: the peer's own, or what trusted proxies say about it.
//!
//! `X-Forwarded-For` grows to the right, one address per proxy, and anybody may have begun it. So it is read
//! from the right, as long as the address before was one of a trusted proxy.

use axum::http::HeaderMap;
use ipnet::IpNet;
use std::net::{IpAddr, SocketAddr};

/// Proxies between a client and us at most; bounds what a long header can cost.
const MAX_HOPS: usize = 16;

/// The proxies whose word is taken.
#[derive(Clone, Debug, Default)]
pub struct TrustedProxies(Vec<IpNet>);

impl TrustedProxies {
    /// Reads networks (`10.0.0.0/8`) and single addresses.
    ///
    /// # Errors
    /// The text that is neither.
    pub fn parse(networks: &[String]) -> Result<Self, String> {
        let parse = |text: &String| {
            let net = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
            net.map_err(|_| text.clone())
        };
        networks.iter().map(parse).collect::<Result<_, _>>().map(Self)
    }

    fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|net| net.contains(&address))
    }

    /// The address of the client behind the connection from `peer`.
    pub fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let mut address = peer.to_canonical();
        let lines: Vec<_> = headers.get_all("x-forwarded-for").iter().collect();
        let hops = lines.iter().rev().flat_map(|line| line.as_bytes().rsplit(|b| *b == b','));
        for hop in hops.take(MAX_HOPS) {
            if !self.contains(address) {
                break;
            }
            match std::str::from_utf8(hop).ok().and_then(|text| parse_hop(text.trim())) {
                Some(before) => address = before,
                // What stands further left was written by somebody unknown.
                None => break,
            }
        }
        address
    }
}

/// Some proxies add a port, and IPv6 addresses may stand in brackets.
fn parse_hop(text: &str) -> Option<IpAddr> {
    let bare = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    let address = text.parse().ok().or_else(|| text.parse().ok().map(|a: SocketAddr| a.ip())).or_else(bare);
    address.map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(trusted: &[&str], peer: &str, forwarded: &[&str]) -> String {
        let trusted: Vec<_> = trusted.iter().map(|&t| t.to_owned()).collect();
        let proxies = TrustedProxies::parse(&trusted).expect("networks");
        let mut headers = HeaderMap::new();
        for line in forwarded {
            headers.append("x-forwarded-for", line.parse().expect("a header value"));
        }
        proxies.client(peer.parse().expect("an address"), &headers).to_string()
    }

    #[test]
    fn only_trusted_proxies_are_believed() {
        let net = &["10.0.0.0/8", "fd00::/8"][..];
        for (trusted, peer, forwarded, expected) in [
            (&[][..], "10.0.0.1", &["1.2.3.4"][..], "10.0.0.1"),
            (net, "9.9.9.9", &["1.2.3.4"], "9.9.9.9"),
            (net, "10.0.0.1", &[], "10.0.0.1"),
            (net, "10.0.0.1", &["1.2.3.4"], "1.2.3.4"),
            (net, "::ffff:10.0.0.1", &["1.2.3.4"], "1.2.3.4"),
            // The left part is the client's own invention.
            (net, "10.0.0.1", &["7.7.7.7, 1.2.3.4"], "1.2.3.4"),
            (net, "10.0.0.1", &["7.7.7.7, 1.2.3.4, 10.0.0.2"], "1.2.3.4"),
            (net, "10.0.0.1", &["7.7.7.7", "1.2.3.4", "10.0.0.2"], "1.2.3.4"),
            (net, "10.0.0.1", &["7.7.7.7, garbage, 10.0.0.2"], "10.0.0.2"),
            (net, "10.0.0.1", &["1.2.3.4:5678"], "1.2.3.4"),
            (net, "10.0.0.1", &["[2001:db8::1]:443"], "2001:db8::1"),
            (net, "10.0.0.1", &["[2001:db8::1]"], "2001:db8::1"),
            (net, "fd00::1", &["2001:db8::1"], "2001:db8::1"),
            (net, "10.0.0.1", &[""], "10.0.0.1"),
            (net, "10.0.0.1", &["unknown"], "10.0.0.1"),
            (&["10.0.0.1"], "10.0.0.1", &["10.0.0.2"], "10.0.0.2"),
        ] {
            assert_eq!(client(trusted, peer, forwarded), expected, "{peer} {forwarded:?}");
        }
    }

    #[test]
    fn an_endless_header_costs_a_bounded_walk() {
        let endless = vec!["10.0.0.9"; 10_000].join(",");
        assert_eq!(client(&["10.0.0.0/8"], "10.0.0.1", &[&endless]), "10.0.0.9");
    }

    #[test]
    fn a_network_that_is_none_is_named() {
        assert_eq!(TrustedProxies::parse(&["10.0.0.0/33".into()]).err().as_deref(), Some("10.0.0.0/33"));
    }
}
