//! An in-process bus and store with the interface of Redis, for the demo and for tests.
//!
//! A published payload takes the way that it takes through Redis: its key is stored, then it is read as
//! a live payload and offered. The stream is always whole.
//!
//! Not here: expiry of keys. Who runs without Redis publishes for as long as the process lives.

use super::payload;
use super::publish::text::complete;
use crate::catch_up::{SnapshotSource, Stored, StoredQuotes};
use crate::clock::Now;
use crate::config::Ingest;
use crate::fanout::{Fanout, Offered, QuoteFeed};
use crate::instrument::InstrumentId;
use crate::publish::{Published, QuotePublisher};
use std::collections::HashMap;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The price keys.
pub struct Embedded {
    prices: Mutex<HashMap<InstrumentId, Vec<u8>>>,
    limits: Ingest,
}

impl Embedded {
    /// An empty store that holds what `limits` allow.
    pub fn new(limits: &Ingest) -> Self {
        Self { prices: Mutex::default(), limits: limits.clone() }
    }

    /// Stores what `payload` says and offers it to `fanout`, as a publisher and Redis would.
    ///
    /// # Errors
    /// The payload is no quote, or there is no room for another instrument.
    pub fn publish(
        &self,
        fanout: &Fanout,
        mut payload: Vec<u8>,
        now: Now,
    ) -> Result<Offered, payload::Unusable> {
        let quote = payload::live(payload.clone(), self.limits.max_payload_bytes, now.unix_us)?;
        complete(&mut payload, &quote, now.unix_ms());
        let id = quote.id;
        let live = payload::live(payload.clone(), usize::MAX, now.unix_us)?;
        {
            let mut prices = self.prices();
            if prices.len() >= self.limits.max_instruments && !prices.contains_key(&id) {
                return Ok(Offered::TableFull);
            }
            prices.insert(id, payload);
        }
        Ok(fanout.offer(live, now))
    }

    fn prices(&self) -> MutexGuard<'_, HashMap<InstrumentId, Vec<u8>>> {
        self.prices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stored(&self, id: InstrumentId, now: Now) -> Stored {
        let Some(value) = self.prices().get(&id).cloned() else { return Stored::Absent };
        match payload::stored(id, value, None, usize::MAX, now.unix_us) {
            Ok(quote) => Stored::Quote(Box::new(quote)),
            Err(_) => Stored::Unusable,
        }
    }
}

impl QuoteFeed for Embedded {
    fn is_live(&self, _: InstrumentId) -> bool {
        true
    }

    fn wanted(&self, _: InstrumentId) {}

    fn unwanted(&self, _: InstrumentId) {}
}

impl SnapshotSource for Embedded {
    fn read(&self, ids: Vec<InstrumentId>) -> Pin<Box<dyn Future<Output = StoredQuotes> + Send + '_>> {
        let now = Now::read();
        Box::pin(ready(ids.into_iter().map(|id| (id, self.stored(id, now))).collect()))
    }
}

/// Publishes into an embedded bus.
pub struct EmbeddedPublisher {
    bus: Arc<Embedded>,
    fanout: Arc<Fanout>,
}

impl EmbeddedPublisher {
    /// Stores in `bus`, offers to `fanout`.
    pub fn new(bus: Arc<Embedded>, fanout: Arc<Fanout>) -> Self {
        Self { bus, fanout }
    }

    /// Publishes one payload.
    pub fn publish_one(&self, payload: Vec<u8>, now: Now) -> Published {
        match self.bus.publish(&self.fanout, payload, now) {
            Ok(Offered::Accepted | Offered::Duplicate) => Published::Done,
            Ok(Offered::Older) => Published::Older,
            Ok(Offered::TableFull) => Published::Failed { retry: false },
            Err(reason) => Published::Unusable(reason.label()),
        }
    }
}

impl QuotePublisher for EmbeddedPublisher {
    fn publish(&self, payloads: Vec<Vec<u8>>) -> Pin<Box<dyn Future<Output = Vec<Published>> + Send + '_>> {
        let now = Now::read();
        Box::pin(ready(payloads.into_iter().map(|payload| self.publish_one(payload, now)).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catch_up::CatchUp;
    use crate::fanout::inbox::{Batch, Inbox};
    use crate::quote::Field;

    struct Fixture {
        bus: Arc<Embedded>,
        inbox: Arc<Inbox>,
        fanout: Arc<Fanout>,
        publisher: EmbeddedPublisher,
    }

    fn fixture(max_instruments: usize) -> Fixture {
        let bus = Arc::new(Embedded::new(&Ingest { max_instruments, ..Default::default() }));
        let inbox = Arc::new(Inbox::default());
        let feed: Arc<dyn QuoteFeed> = Arc::clone(&bus) as _;
        let fanout = Arc::new(Fanout::new(vec![Arc::clone(&inbox)], feed, 1_000));
        let publisher = EmbeddedPublisher::new(Arc::clone(&bus), Arc::clone(&fanout));
        Fixture { bus, inbox, fanout, publisher }
    }

    fn payload(id: i64, price: &str) -> Vec<u8> {
        format!(r#"{{"stockId":{id},"close":{price}}}"#).into_bytes()
    }

    const NOW: Now = Now { mono: std::time::Duration::from_secs(1), unix_us: 1_700_000_000_000_000 };

    #[tokio::test]
    async fn a_payload_is_stored_and_offered_with_its_digits() {
        let f = fixture(10);
        let id = InstrumentId::new(5930);
        assert!(f.fanout.join(0, id, NOW).latest.is_none());
        assert_eq!(f.publisher.publish_one(payload(5930, "71000.10"), NOW), Published::Done);
        let mut batch = Batch::default();
        f.inbox.take(&mut batch);
        assert!(batch.quotes.contains_key(&id));
        match f.bus.read(vec![id, InstrumentId::new(1)]).await.as_slice() {
            [(_, Stored::Quote(quote)), (_, Stored::Absent)] => {
                assert_eq!(quote.field(Field::Price), Some("71000.10"));
                assert_eq!(quote.published_at, Some(1_700_000_000_000));
            }
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn what_was_published_before_a_session_came_is_its_snapshot() {
        let f = fixture(10);
        f.publisher.publish(vec![payload(1, "10"), payload(2, "20"), payload(1, "11")]).await;
        let catch_up = CatchUp::new(Arc::clone(&f.fanout), f.bus, std::time::Duration::ZERO);
        let current = catch_up.current(&[InstrumentId::new(1), InstrumentId::new(3)]).await;
        assert_eq!(current.iter().map(|quote| quote.id.get()).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn what_is_no_quote_or_too_much_is_refused() {
        let f = fixture(1);
        assert_eq!(f.publisher.publish_one(b"{}".to_vec(), NOW), Published::Unusable("no_instrument"));
        assert_eq!(f.publisher.publish_one(payload(1, "10"), NOW), Published::Done);
        assert_eq!(f.publisher.publish_one(payload(2, "10"), NOW), Published::Failed { retry: false });
        let large = payload(1, &"1".repeat(20_000));
        assert_eq!(f.publisher.publish_one(large, NOW), Published::Unusable("too_large"));
    }
}
