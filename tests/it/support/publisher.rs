//! Publishes the way the existing publisher does: price key, updated-at key, then the message.

use super::cluster::RedisCluster;
use super::redis::{RedisServer, connect};
use redis::RedisResult;
use redis::aio::MultiplexedConnection;
use std::collections::HashMap;
use tickbridge::instrument::InstrumentId;

/// Base name of the channels.
pub const CHANNEL: &str = "market:price-updated";

/// Time to live that the publisher gives to its keys, in seconds.
const KEY_TTL: &str = "300";

/// One statement of the publisher, numbers as the text that stands in its JSON.
#[derive(Clone, Debug)]
pub struct Statement {
    /// The instrument.
    pub id: i64,
    /// JSON of `close` in the message and `price` in the key.
    pub price: String,
    /// The source's time; absent from the message where `None`.
    pub ts: Option<i64>,
    /// Further fields of both, as JSON members without the comma, such as `"volume":12`.
    pub more: String,
}

impl Statement {
    /// Price and time, with a volume of 12.
    pub fn new(id: i64, price: &str, ts: i64) -> Self {
        Self { id, price: price.to_owned(), ts: Some(ts), more: r#""volume":12"#.to_owned() }
    }

    /// The message on the channel.
    pub fn message(&self) -> String {
        let ts = self.ts.map(|ts| format!(r#""ts":{ts},"#)).unwrap_or_default();
        format!(r#"{{"stockId":{},{ts}"close":{}{}}}"#, self.id, self.price, self.tail())
    }

    /// The value of the price key. The existing publisher doesn't write `ts` into it.
    pub fn stored(&self) -> String {
        format!(r#"{{"stockId":{},"price":{}{}}}"#, self.id, self.price, self.tail())
    }

    fn tail(&self) -> String {
        if self.more.is_empty() { String::new() } else { format!(",{}", self.more) }
    }
}

/// Name of the price key.
pub fn price_key(id: i64) -> String {
    format!("market:current-price:{{stock:{id}}}")
}

/// Name of the key with the time of the price key.
pub fn updated_at_key(id: i64) -> String {
    format!("market:current-price-updated-at:{{stock:{id}}}")
}

/// Name of the watcher set.
pub fn watcher_key(id: i64) -> String {
    format!("market:current-watcher:{{stock:{id}}}")
}

/// Hash slot of a name, hash tag respected.
pub fn slot(name: &str) -> u16 {
    let tagged = name.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let hashed = tagged.filter(|tag| !tag.is_empty()).unwrap_or(name);
    let crc = hashed.bytes().fold(0u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    });
    crc % 16_384
}

/// A publisher with connections of its own, which it opens anew after a failure.
#[derive(Clone)]
pub struct Publisher {
    seeds: Vec<u16>,
    cluster: bool,
    partitions: u32,
    /// Port of the owner of each slot that was used, in a cluster.
    owners: HashMap<u16, u16>,
    connections: HashMap<u16, MultiplexedConnection>,
}

impl Publisher {
    /// Publishes to a standalone server.
    pub fn standalone(server: &RedisServer, partitions: u32) -> Self {
        Self::new(vec![server.port()], false, partitions)
    }

    /// Publishes to a cluster with sharded Pub/Sub.
    pub fn sharded(cluster: &RedisCluster, partitions: u32) -> Self {
        Self::new(cluster.ports(), true, partitions)
    }

    fn new(seeds: Vec<u16>, cluster: bool, partitions: u32) -> Self {
        Self { seeds, cluster, partitions, owners: HashMap::new(), connections: HashMap::new() }
    }

    /// The channel on which an instrument's messages go out.
    pub fn channel(&self, id: i64) -> String {
        match (self.partitions, InstrumentId::new(id).partition(self.partitions.max(1))) {
            (0 | 1, _) => CHANNEL.to_owned(),
            (_, p) if self.cluster => format!("{CHANNEL}:{{{p}}}"),
            (_, p) => format!("{CHANNEL}:{p}"),
        }
    }

    /// Stores, then announces.
    pub async fn publish(&mut self, statement: &Statement) {
        self.store(statement).await;
        self.announce(statement).await;
    }

    /// Writes the two keys.
    pub async fn store(&mut self, statement: &Statement) {
        let (id, value) = (statement.id, statement.stored());
        let updated_at = statement.ts.unwrap_or_default().to_string();
        self.must(&price_key(id), &["SET", &price_key(id), &value, "EX", KEY_TTL]).await;
        self.must(&price_key(id), &["SET", &updated_at_key(id), &updated_at, "EX", KEY_TTL]).await;
    }

    /// Publishes the message and says to how many connections it went.
    pub async fn announce(&mut self, statement: &Statement) -> i64 {
        let channel = self.channel(statement.id);
        self.announce_raw(&channel, statement.message().as_bytes()).await
    }

    /// Publishes any bytes on any channel.
    pub async fn announce_raw(&mut self, channel: &str, payload: &[u8]) -> i64 {
        self.try_announce_raw(channel, payload).await.unwrap_or_else(|e| panic!("publish to {channel}: {e}"))
    }

    /// [`Publisher::announce_raw`] while a fault may be on.
    ///
    /// # Errors
    /// What the server answers, or why it can't be asked.
    pub async fn try_announce_raw(&mut self, channel: &str, payload: &[u8]) -> RedisResult<i64> {
        let verb: &[u8] = if self.cluster { b"SPUBLISH" } else { b"PUBLISH" };
        self.run(channel, &[verb, channel.as_bytes(), payload]).await
    }

    /// [`Publisher::publish`] while a fault may be on.
    ///
    /// # Errors
    /// What the server answers, or why it can't be asked.
    pub async fn try_publish(&mut self, statement: &Statement) -> RedisResult<i64> {
        let (key, value) = (price_key(statement.id), statement.stored());
        let _: String =
            self.run(&key, &[b"SET", key.as_bytes(), value.as_bytes(), b"EX", KEY_TTL.as_bytes()]).await?;
        self.try_announce_raw(&self.channel(statement.id), statement.message().as_bytes()).await
    }

    async fn must(&mut self, name: &str, args: &[&str]) {
        let args_bytes: Vec<&[u8]> = args.iter().map(|arg| arg.as_bytes()).collect();
        let _: redis::Value =
            self.run(name, &args_bytes).await.unwrap_or_else(|e| panic!("{} {name}: {e}", args[0]));
    }

    /// Runs a command on the owner of `name`. A lost connection or another owner is followed, so often
    /// as it takes to find out that all old connections are gone and where the slot is.
    async fn run<T: redis::FromRedisValue>(&mut self, name: &str, args: &[&[u8]]) -> RedisResult<T> {
        let mut command = redis::cmd(std::str::from_utf8(args[0]).unwrap());
        for arg in &args[1..] {
            command.arg(*arg);
        }
        let slot = slot(name);
        let mut attempts_left = 2 + self.seeds.len();
        loop {
            let port = *self.owners.get(&slot).unwrap_or(&self.seeds[0]);
            let outcome = match self.connection(port).await {
                Ok(mut connection) => command.query_async(&mut connection).await,
                Err(error) => Err(error),
            };
            let Err(error) = outcome else { return outcome };
            attempts_left -= 1;
            if let Some((address, _)) = error.redirect_node() {
                let port = address.rsplit(':').next().and_then(|port| port.parse().ok());
                self.owners.insert(slot, port.expect("a redirection names a port"));
            } else if error.is_connection_dropped() {
                self.connections.clear();
                self.owners.remove(&slot);
                self.seeds.rotate_left(1);
            } else {
                return Err(error);
            }
            if attempts_left == 0 {
                return Err(error);
            }
        }
    }

    async fn connection(&mut self, port: u16) -> RedisResult<MultiplexedConnection> {
        if let Some(connection) = self.connections.get(&port) {
            return Ok(connection.clone());
        }
        let connection = connect(port).await?;
        self.connections.insert(port, connection.clone());
        Ok(connection)
    }
}
