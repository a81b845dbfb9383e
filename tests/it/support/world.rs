//! The usual surroundings of a test: one Redis, one gateway, one publisher, either transport.

use super::gateway::{Gateway, GatewayBuilder};
use super::publisher::{CHANNEL, Publisher, Statement};
use super::redis::RedisServer;
use super::sse::{Item, Sse};
use super::token::token;
use super::ws::{Heard, Ws};
use std::time::Duration;

/// One of each.
pub struct World {
    /// The gateway. It comes first, because it ends first.
    pub gateway: Gateway,
    /// The server behind it.
    pub redis: RedisServer,
    /// Who fills it.
    pub publisher: Publisher,
}

impl World {
    /// With test timers and nothing else set.
    pub async fn start() -> Self {
        Self::start_with(|builder| builder).await
    }

    /// With what `configure` sets.
    pub async fn start_with(configure: impl FnOnce(GatewayBuilder) -> GatewayBuilder) -> Self {
        let redis = RedisServer::start().await;
        let gateway = configure(Gateway::builder().redis(&redis)).start().await;
        let publisher = Publisher::standalone(&redis, 1);
        Self { redis, gateway, publisher }
    }

    /// Announces a price without storing it.
    pub async fn announce(&mut self, id: i64, price: &str, ts: i64) {
        self.publisher.announce(&Statement::new(id, price, ts)).await;
    }

    /// Stores a price without announcing it.
    pub async fn store(&mut self, id: i64, price: &str, ts: i64) {
        self.publisher.store(&Statement::new(id, price, ts)).await;
    }

    /// Publishes any text on the base channel.
    pub async fn say(&mut self, payload: &str) {
        self.publisher.announce_raw(CHANNEL, payload.as_bytes()).await;
    }
}

/// How a client is connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// WebSocket.
    Ws,
    /// Server-sent events.
    Sse,
}

/// A session over either transport.
pub enum Client {
    /// WebSocket.
    Ws(Ws),
    /// Server-sent events.
    Sse(Sse),
}

impl Client {
    /// Subscribes as a user of its own and gives the acknowledgement, too.
    pub async fn subscribe(transport: Transport, gateway: &Gateway, topics: &[&str]) -> (Self, String) {
        Self::subscribe_as(transport, gateway, &token("7"), topics).await
    }

    /// [`Client::subscribe`] with any token that is good.
    pub async fn subscribe_as(
        transport: Transport,
        gateway: &Gateway,
        token: &str,
        topics: &[&str],
    ) -> (Self, String) {
        match transport {
            Transport::Ws => {
                let mut ws = Ws::open(gateway).await;
                ws.auth(token).await;
                let acknowledgement = ws.subscribe(topics).await;
                (Self::Ws(ws), acknowledgement)
            }
            Transport::Sse => {
                // A plus sign in a query is a blank.
                let topics = topics.join(",").replace('+', "%2B");
                let mut sse = Sse::open(gateway, token, &topics).await;
                let acknowledgement = sse.acknowledgement().await;
                (Self::Sse(sse), acknowledgement)
            }
        }
    }

    /// JSON text of the next quote event.
    pub async fn next_event(&mut self) -> String {
        match self {
            Self::Ws(ws) => ws.next_event().await,
            Self::Sse(sse) => sse.next_event().await,
        }
    }

    /// JSON text of the next status.
    pub async fn next_status(&mut self) -> String {
        match self {
            Self::Ws(ws) => ws.next_of("status").await,
            Self::Sse(sse) => sse.next_named("status").await,
        }
    }

    /// JSON texts of all quote events that come within `time`.
    pub async fn events_within(&mut self, time: Duration) -> Vec<String> {
        let is_event = |text: &String| text.starts_with(r#"{"type":"event""#);
        match self {
            Self::Ws(ws) => {
                let heard = ws.all_within(time).await.into_iter();
                heard
                    .filter_map(|h| if let Heard::Text(t) = h { Some(t) } else { None })
                    .filter(is_event)
                    .collect()
            }
            Self::Sse(sse) => {
                let end = tokio::time::Instant::now() + time;
                let mut events = Vec::new();
                while let Some(item) =
                    sse.next_within(end.saturating_duration_since(tokio::time::Instant::now())).await
                {
                    match item {
                        Item::Event { data, .. } if is_event(&data) => events.push(data),
                        Item::End => break,
                        _ => {}
                    }
                }
                events
            }
        }
    }
}
