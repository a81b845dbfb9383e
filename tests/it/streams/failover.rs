//! What a failover loses although clients have it: entries that never came to the replica that takes over.

use super::builder;
use super::client::{BOTH, Client, DUE};
use super::producer::{Producer, key, texts};
use crate::support::cluster::{NodeAt, RedisCluster};
use crate::support::gateway::Gateway;
use serde_json::json;

/// A stream of which the primary and two clients have 15 entries, and the replica, for good, 10.
struct Stage {
    cluster: RedisCluster,
    gateway: Gateway,
    /// A replica of the gateway where nobody has watched the stream yet.
    other: Gateway,
    primary: NodeAt,
    replica: NodeAt,
    id: String,
    clients: Vec<Client>,
    ids: Vec<String>,
}

impl Stage {
    async fn set() -> Self {
        let cluster = RedisCluster::start(3, 1).await;
        let gateway = builder().cluster(&cluster).start().await;
        let other = builder().cluster(&cluster).start().await;
        let id = (0..).map(|n| format!("s{n}")).find(|id| cluster.shard_of(&key(id)) == 0).unwrap();
        let (primary, replica) = (cluster.primary(0).await, cluster.replica(0).await);
        let mut producer = Producer::at(cluster.node(primary).port(), &id).await;
        let mut ids = producer.tokens(0..10).await;
        producer.replicated().await;
        let mut clients = Vec::new();
        for transport in BOTH {
            let mut client = Client::resume(gateway.public, transport, &id, None).await;
            assert_eq!(client.texts(10).await, texts(0..10));
            clients.push(client);
        }
        cluster.cut_off(replica, primary).await;
        ids.extend(producer.tokens(10..15).await);
        for client in &mut clients {
            assert_eq!(client.texts(5).await, texts(10..15));
        }
        Self { cluster, gateway, other, primary, replica, id, clients, ids }
    }

    /// Writes to the heir.
    async fn producer(&self) -> Producer {
        Producer::at(self.cluster.node(self.replica).port(), &self.id).await
    }

    /// Goes on writing, and looks what becomes of clients that stayed, that were away, and that had not more than
    /// the heir has.
    async fn goes_on(&mut self) {
        let mut producer = self.producer().await;
        producer.tokens(16..20).await;
        let (kept, through) = (&self.ids[9], &self.ids[14]);
        let told = json!({ "type": "lost", "id": kept, "after": kept, "through": through });
        for client in &mut self.clients {
            let mut lost = client.next_of("lost").await;
            assert_eq!(lost.as_object_mut().unwrap().remove("missing"), Some(json!(5)));
            assert_eq!(lost, told);
            assert_eq!(client.texts(5).await, texts(15..20));
        }
        for (to, transport) in
            [&self.gateway, &self.other].into_iter().flat_map(|gateway| BOTH.map(|t| (gateway.public, t)))
        {
            let mut away = Client::resume(to, transport, &self.id, Some(through)).await;
            assert_eq!(away.next_of("lost").await, told);
            assert_eq!(away.texts(5).await, texts(15..20));
            let mut behind = Client::resume(to, transport, &self.id, Some(kept)).await;
            assert_eq!(behind.texts(5).await, texts(15..20));
            self.clients.extend([away, behind]);
        }
        producer.tokens(20..22).await;
        producer.end().await;
        for client in &mut self.clients {
            assert_eq!(client.texts(2).await, texts(20..22));
            client.next_of("end").await;
        }
        let failover = [("reason", "failover")];
        self.gateway.metric_is("stream_gaps_total", &failover, DUE, 4.0).await;
    }
}

#[tokio::test]
async fn what_died_with_its_primary_is_told_to_whoever_has_it() {
    let mut stage = Stage::set().await;
    let former = stage.cluster.kill_primary(0).await;
    assert_eq!(stage.cluster.succeeded(0, former).await, stage.replica);
    stage.producer().await.tokens(15..16).await;
    stage.goes_on().await;
}

/// The former primary lives, keeps its connections, and sends whoever asks to the new one, which has new entries
/// behind the lost ones by then. The gateway sleeps meanwhile, for less than the pause after which it doubts anyway.
#[tokio::test]
async fn what_a_living_primary_had_to_give_up_is_told_too() {
    let mut stage = Stage::set().await;
    stage.gateway.process().freeze();
    stage.cluster.cmd::<String>(stage.replica, &["CLUSTER", "FAILOVER", "TAKEOVER"]).await;
    assert_eq!(stage.cluster.succeeded(0, stage.primary).await, stage.replica);
    stage.producer().await.tokens(15..16).await;
    stage.gateway.process().thaw();
    stage.goes_on().await;
}
