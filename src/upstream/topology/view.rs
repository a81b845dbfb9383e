//! What one node says of the cluster (`CLUSTER NODES`), and one table from what several say.
//!
//! Per slot the claim with the highest configuration epoch wins, so that an old owner that is cut off
//! from the others, and still believes in itself, is overruled. A node that the others don't know is
//! not believed at all: it belongs to some other cluster.
//!
//! Not here: asking (`poll`).

use crate::upstream::slots::{NodeAddr, SLOTS, SlotTable};
use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;

/// What one node says.
#[derive(Clone, Debug)]
pub(super) struct View {
    myself: String,
    members: Vec<Member>,
}

#[derive(Clone, Debug)]
struct Member {
    id: String,
    addr: NodeAddr,
    /// The same node by its other name.
    alias: Option<NodeAddr>,
    failed: bool,
    epoch: u64,
    /// Empty for replicas.
    slots: Vec<RangeInclusive<u16>>,
}

/// What several nodes say together.
#[derive(Debug)]
pub(super) struct Merged {
    pub(super) table: SlotTable,
    /// Every node, replicas included.
    pub(super) nodes: Vec<NodeAddr>,
    /// Other names of nodes.
    pub(super) aliases: HashMap<NodeAddr, NodeAddr>,
}

impl View {
    /// Reads the answer of `from`. `by_name` prefers an announced host name to the IP address, which
    /// certificates rarely name.
    pub(super) fn parse(text: &str, from: &NodeAddr, by_name: bool) -> Option<Self> {
        let mut myself = None;
        let mut members = Vec::new();
        for line in text.lines().filter(|line| !line.is_empty()) {
            let fields: Vec<_> = line.split(' ').collect();
            let [id, addr, flags, _, _, _, epoch, _, slots @ ..] = &fields[..] else { return None };
            let flag = |name| flags.split(',').any(|flag| flag == name);
            if flag("myself") {
                myself = Some((*id).to_owned());
            }
            if flag("noaddr") || flag("handshake") {
                continue;
            }
            let (addr, alias) = addresses(addr, from, flag("myself"), by_name)?;
            let slots = if flag("master") { slots } else { &[] };
            members.push(Member {
                id: (*id).to_owned(),
                addr,
                alias,
                failed: flag("fail"),
                epoch: epoch.parse().ok()?,
                slots: slots.iter().filter_map(|text| range(text)).collect(),
            });
        }
        Some(Self { myself: myself?, members })
    }

    fn knows(&self, id: &str) -> bool {
        self.members.iter().any(|member| member.id == id)
    }
}

/// `ip:port@bus-port[,hostname[,…]]`
fn addresses(
    text: &str,
    from: &NodeAddr,
    is_myself: bool,
    by_name: bool,
) -> Option<(NodeAddr, Option<NodeAddr>)> {
    let (addr, rest) = text.split_once('@').unwrap_or((text, ""));
    // A node that has met nobody yet doesn't know its own address.
    let by_ip = if is_myself { NodeAddr::parse_told_by(addr, from) } else { NodeAddr::parse(addr) }?;
    let name = rest.split(',').nth(1).filter(|name| !name.is_empty() && !name.contains('='));
    let named = name.and_then(|name| NodeAddr::parse(&format!("{name}:{}", by_ip.port())));
    Some(match named {
        Some(named) if by_name => (named, Some(by_ip)),
        named => (by_ip, named),
    })
}

/// `5`, `5-10`; what is being moved (`[5->-id]`) still belongs to the one who says so.
fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last && last < SLOTS).then_some(first..=last)
}

/// One table from several views, or `None` if none of them is to be believed.
pub(super) fn merge(views: &[View]) -> Option<Merged> {
    let believed: Vec<&View> = views
        .iter()
        .filter(|view| {
            let known_by = views.iter().filter(|other| other.knows(&view.myself)).count() - 1;
            known_by * 2 >= views.len() - 1
        })
        .collect();
    if believed.is_empty() {
        return None;
    }
    let mut claims = Vec::new();
    let mut aliases = HashMap::new();
    let mut nodes = HashSet::new();
    let mut n_failed: HashMap<&NodeAddr, usize> = HashMap::new();
    for view in &believed {
        for member in &view.members {
            nodes.insert(member.addr.clone());
            if let Some(alias) = &member.alias {
                aliases.insert(alias.clone(), member.addr.clone());
            }
            if member.failed {
                *n_failed.entry(&member.addr).or_default() += 1;
            }
            if !member.slots.is_empty() {
                claims.push((member.epoch, member.id == view.myself, &member.addr, &member.slots));
            }
        }
    }
    // Most views say the same, so that only a few claims are left. Of two with the same epoch the one
    // that a node makes for itself is applied last, and wins.
    claims.sort_by(|a, b| (a.0, a.1, a.2).cmp(&(b.0, b.1, b.2)));
    claims.dedup();
    let mut table = SlotTable::empty();
    for (_, _, addr, slots) in claims {
        for slot in slots.iter().cloned().flatten() {
            table.set(slot, addr);
        }
    }
    for (addr, n) in n_failed {
        if n * 2 > believed.len() {
            table.set_failed(addr);
        }
    }
    let mut nodes: Vec<_> = nodes.into_iter().collect();
    nodes.sort_unstable();
    Some(Merged { table, nodes, aliases })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(port: u16) -> NodeAddr {
        NodeAddr::parse(&format!("10.0.0.{port}:{port}")).expect("valid")
    }

    fn view(myself: u16, lines: &[(u16, &str, u64, &str)]) -> View {
        let lines: Vec<_> = lines
            .iter()
            .map(|(n, flags, epoch, slots)| {
                let me = if *n == myself { "myself," } else { "" };
                format!("id{n} 10.0.0.{n}:{n}@1{n} {me}{flags} - 0 0 {epoch} connected {slots}")
            })
            .collect();
        View::parse(&lines.join("\n"), &node(myself), false).expect("well formed")
    }

    #[test]
    fn a_real_answer_is_read() {
        let text = concat!(
            "07c3 10.0.0.4:4@14,host4 slave e7d1 0 1426238317239 4 connected\n",
            "67ed 10.0.0.2:2@12,host2,shard-id=1 master - 0 1426238316232 2 connected 5461-10922\n",
            "292f 10.0.0.3:3@13,,tls-port=0 master,fail? - 0 1426238318243 3 connected 10923-16383\n",
            "6ec2 :0@0 master,noaddr - 0 0 0 disconnected\n",
            "e7d1 :1@11 myself,master - 0 0 1 connected 0-5459 5460 [5461->-67ed]\n",
        );
        let merged = merge(&[View::parse(text, &node(1), false).expect("well formed")]).expect("believed");
        assert_eq!(merged.nodes, [1, 2, 3, 4].map(node));
        assert_eq!(merged.table.n_unowned(), 0);
        for (slot, owner) in [(0, 1), (5460, 1), (5461, 2), (10922, 2), (10923, 3), (16383, 3)] {
            assert_eq!(merged.table.owner(slot), Some(&node(owner)), "{slot}");
        }
        assert!(!merged.table.is_failed(&node(3)), "suspected is not failed");
        let named = View::parse(text, &node(1), true).expect("well formed");
        let merged = merge(&[named]).expect("believed");
        let host2 = NodeAddr::parse("host2:2").expect("valid");
        assert_eq!(merged.table.owner(10922), Some(&host2));
        assert_eq!(merged.aliases.get(&node(2)), Some(&host2));
    }

    #[test]
    fn the_highest_epoch_wins_whoever_claims_it() {
        let cut_off = view(1, &[(1, "master", 1, "0-16383"), (2, "slave", 1, ""), (3, "slave", 1, "")]);
        let others = |myself| {
            view(myself, &[(1, "master,fail", 1, ""), (2, "master", 7, "0-16383"), (3, "slave", 7, "")])
        };
        for views in [vec![cut_off.clone(), others(2), others(3)], vec![others(3), others(2), cut_off]] {
            let merged = merge(&views).expect("believed");
            assert_eq!(merged.table.primaries(), [node(2)]);
            assert!(merged.table.is_failed(&node(1)));
        }
    }

    #[test]
    fn a_node_of_another_cluster_is_not_believed() {
        let ours = |myself| view(myself, &[(1, "master", 1, "0-99"), (2, "master", 2, "100-16383")]);
        let foreign = view(9, &[(9, "master", 99, "0-16383")]);
        let merged = merge(&[foreign.clone(), ours(1), ours(2)]).expect("two agree");
        assert_eq!(merged.table.primaries(), [node(1), node(2)]);
        assert_eq!(merged.nodes, [node(1), node(2)]);
        assert!(merge(&[foreign, ours(1)]).is_none(), "one word against another");
    }

    #[test]
    fn garbage_is_no_view() {
        for text in ["", "x", "id 10.0.0.1:1@2 master - 0 0 1 connected 0-1", "id y myself - 0 0 1 connected"]
        {
            assert!(View::parse(text, &node(1), false).is_none(), "{text}");
        }
    }
}
