//! Writes streams into Redis as a producer does.

use crate::support::redis::{RedisServer, connect};
use redis::aio::MultiplexedConnection;

pub fn key(id: &str) -> String {
    format!("stream:{{{id}}}")
}

/// A connection and the stream that is written over it.
pub struct Producer {
    connection: MultiplexedConnection,
    key: String,
}

impl Producer {
    pub async fn new(server: &RedisServer, id: &str) -> Self {
        Self::at(server.port(), id).await
    }

    pub async fn at(port: u16, id: &str) -> Self {
        Self { connection: connect(port).await.unwrap(), key: key(id) }
    }

    /// Adds one entry and gives its id.
    pub async fn add(&mut self, fields: &[(&str, &[u8])]) -> String {
        let mut add = redis::cmd("XADD");
        add.arg(&self.key).arg("*");
        for (name, value) in fields {
            add.arg(name).arg(*value);
        }
        add.query_async(&mut self.connection).await.unwrap()
    }

    /// Adds tokens with these numbers as texts, in one round trip, and gives their ids.
    pub async fn tokens(&mut self, numbers: std::ops::Range<usize>) -> Vec<String> {
        let mut pipeline = redis::pipe();
        for n in numbers {
            pipeline.cmd("XADD").arg(&self.key).arg("*").arg("event").arg("token").arg("data").arg(n);
        }
        pipeline.query_async(&mut self.connection).await.unwrap()
    }

    /// Ends the stream.
    pub async fn end(&mut self) -> String {
        self.add(&[("end", b"done")]).await
    }

    /// Waits until a replica has what was added.
    pub async fn replicated(&mut self) {
        let wait = redis::cmd("WAIT").arg(1).arg(0).to_owned();
        let _: u64 = wait.query_async(&mut self.connection).await.unwrap();
    }

    /// Keeps the newest `n` entries.
    pub async fn trim(&mut self, n: usize) {
        let trim = redis::cmd("XTRIM").arg(&self.key).arg("MAXLEN").arg("=").arg(n).to_owned();
        let _: u64 = trim.query_async(&mut self.connection).await.unwrap();
    }
}

/// The texts of tokens with these numbers.
pub fn texts(numbers: std::ops::Range<usize>) -> Vec<String> {
    numbers.map(|n| n.to_string()).collect()
}
