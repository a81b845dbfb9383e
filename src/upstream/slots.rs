//! Hash slots, and which node owns which.
//!
//! A server without a cluster is a table of one: the same node owns every slot, so that nothing else
//! has to tell the modes apart.
//!
//! Not here: finding out who owns a slot (`topology`).

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// Slots of a cluster.
pub const SLOTS: u16 = 16_384;

/// The address of one Redis node, `host:port`. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct NodeAddr(Arc<str>);

impl NodeAddr {
    /// Reads `host:port`; an IPv6 host may stand in brackets or bare.
    pub fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        let port: u16 = port.parse().ok()?;
        (!host.is_empty() && port != 0).then(|| Self(format!("{host}:{port}").into()))
    }

    /// Reads an address as a cluster node tells it. Without a host it means the node `from` that told
    /// it (`cluster-preferred-endpoint-type unknown-endpoint`).
    pub fn parse_told_by(text: &str, from: &Self) -> Option<Self> {
        match text.strip_prefix(':').or_else(|| text.strip_prefix("?:")) {
            Some(port) => Self::parse(&format!("{}:{port}", from.host())),
            None => Self::parse(text),
        }
    }

    /// The host, without brackets.
    pub fn host(&self) -> &str {
        self.split().0
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.split().1.parse().expect("checked when it was read")
    }

    fn split(&self) -> (&str, &str) {
        self.0.rsplit_once(':').expect("checked when it was read")
    }
}

impl fmt::Display for NodeAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The hash slot of a key or shard channel: of what stands between its first `{` and the next `}` if
/// that isn't empty, otherwise of the whole name.
pub fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|&b| b == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|&b| b == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    crc16(tag.unwrap_or(key)) % SLOTS
}

/// CRC-16/XMODEM, as Redis Cluster uses it.
fn crc16(bytes: &[u8]) -> u16 {
    const TABLE: [u16; 256] = {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let mut crc = (byte as u16) << 8;
            let mut bit = 0;
            while bit < 8 {
                crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
                bit += 1;
            }
            table[byte] = crc;
            byte += 1;
        }
        table
    };
    bytes.iter().fold(0, |crc, &b| (crc << 8) ^ TABLE[usize::from((crc >> 8) as u8 ^ b)])
}

/// Who owns each slot, as far as is known. A value: a newer view is another table.
#[derive(Clone, PartialEq, Debug)]
pub struct SlotTable {
    nodes: Vec<NodeAddr>,
    /// Index into `nodes`, or `UNOWNED`.
    owners: Box<[u16]>,
    /// Nodes that most others have given up.
    failed: Vec<NodeAddr>,
}

const UNOWNED: u16 = u16::MAX;

impl SlotTable {
    /// Nothing is known.
    pub fn empty() -> Self {
        Self { nodes: Vec::new(), owners: vec![UNOWNED; usize::from(SLOTS)].into(), failed: Vec::new() }
    }

    /// One node owns everything.
    pub fn single(node: NodeAddr) -> Self {
        Self { nodes: vec![node], owners: vec![0; usize::from(SLOTS)].into(), failed: Vec::new() }
    }

    /// The owner of a slot.
    pub fn owner(&self, slot: u16) -> Option<&NodeAddr> {
        self.nodes.get(usize::from(*self.owners.get(usize::from(slot))?))
    }

    /// The owner of a key's or channel's slot.
    pub fn owner_of(&self, key: &[u8]) -> Option<&NodeAddr> {
        self.owner(slot(key))
    }

    /// Gives a slot to a node.
    pub fn set(&mut self, slot: u16, node: &NodeAddr) {
        let index = self.nodes.iter().position(|n| n == node).unwrap_or_else(|| {
            self.nodes.push(node.clone());
            self.nodes.len() - 1
        });
        self.owners[usize::from(slot)] = index as u16;
    }

    /// Every node that owns a slot, in the order of their addresses.
    pub fn primaries(&self) -> Vec<NodeAddr> {
        let mut owning = vec![false; self.nodes.len()];
        for &owner in self.owners.iter().filter(|&&owner| owner != UNOWNED) {
            owning[usize::from(owner)] = true;
        }
        let nodes = self.nodes.iter().zip(owning).filter(|(_, owns)| *owns);
        nodes.map(|(node, _)| node.clone()).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Most nodes of the cluster have given this one up.
    pub fn set_failed(&mut self, node: &NodeAddr) {
        self.failed.push(node.clone());
        self.failed.sort_unstable();
    }

    /// Whether most nodes of the cluster have given this one up.
    pub fn is_failed(&self, node: &NodeAddr) -> bool {
        self.failed.contains(node)
    }

    /// How many slots nobody owns.
    pub fn n_unowned(&self) -> usize {
        self.owners.iter().filter(|&&owner| owner == UNOWNED).count()
    }

    /// Whether both tables say the same.
    pub fn agrees_with(&self, other: &Self) -> bool {
        self.failed == other.failed && (0..SLOTS).all(|slot| self.owner(slot) == other.owner(slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values from `CLUSTER KEYSLOT`.
    #[test]
    fn slots_agree_with_redis() {
        for (key, expected) in [
            ("market:price-updated", 1726),
            ("market:price-updated:{0}", 13907),
            ("market:price-updated:{1}", 9842),
            ("market:price-updated:{2}", 5649),
            ("market:price-updated:{3}", 1584),
            ("market:current-price:{stock:101}", 12774),
            ("market:current-price:{stock:102}", 389),
            ("market:current-watcher:{stock:201}", 10422),
            ("123456789", 12739),
            ("", 0),
        ] {
            assert_eq!(slot(key.as_bytes()), expected, "{key}");
        }
    }

    #[test]
    fn only_the_first_closed_and_filled_tag_counts() {
        assert_eq!(slot(b"a{b}c{d}"), slot(b"b"));
        assert_eq!(slot(b"{{b}}"), slot(b"{b"));
        assert_ne!(slot(b"a{}{b}"), slot(b"b"));
        assert_ne!(slot(b"a{b"), slot(b"b"));
    }

    #[test]
    fn addresses_keep_ipv6_hosts_whole() {
        let parse = |text| NodeAddr::parse(text).map(|a| (a.host().to_owned(), a.port()));
        assert_eq!(parse("[::1]:6379"), Some(("::1".into(), 6379)));
        assert_eq!(parse("::1:6379"), Some(("::1".into(), 6379)));
        assert_eq!(parse("redis.example:1"), Some(("redis.example".into(), 1)));
        for bad in ["", "host", "host:", ":1", "host:0", "host:65536", "host:x"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        let from = NodeAddr::parse("10.0.0.1:1").expect("valid");
        assert_eq!(NodeAddr::parse_told_by(":2", &from), NodeAddr::parse("10.0.0.1:2"));
        assert_eq!(NodeAddr::parse_told_by("10.0.0.9:2", &from), NodeAddr::parse("10.0.0.9:2"));
    }

    #[test]
    fn a_node_that_lost_its_last_slot_is_no_primary() {
        let [a, b] = ["a:1", "b:1"].map(|n| NodeAddr::parse(n).expect("valid"));
        let mut table = SlotTable::empty();
        assert_eq!(table.owner(7), None);
        table.set(7, &a);
        assert_eq!(table.primaries(), [a]);
        table.set(7, &b);
        assert_eq!(table.primaries(), [b]);
        assert_eq!(table.n_unowned(), usize::from(SLOTS) - 1);
        assert_eq!(table.owner(SLOTS), None);
    }
}
