//! One immutable price statement, and which of two statements is the newer one.
//!
//! A quote keeps the source's own text for every number, so that `71000.10` stays `71000.10` and a
//! 19-digit volume keeps all its digits. Nothing in tickbridge calculates with prices.
//!
//! Not here: reading a payload (`upstream::payload`), writing an event (`protocol::event`).

use crate::instrument::InstrumentId;
use std::ops::Range;

/// When a quote was made, as far as its source says. Decides which of two quotes is newer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Version {
    /// Per-instrument sequence number given by the store-and-publish function.
    pub seq: Option<u64>,
    /// The source's time in milliseconds since the Unix epoch.
    pub ts: Option<i64>,
    /// `ts` is the time at which the price key was written, because the key has no time of the source.
    /// The two are not one measure: a price is written after it was made.
    pub of_write: bool,
}

/// How one version relates to another of the same instrument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Age {
    /// Certainly later.
    Newer,
    /// The two cannot be told apart by their versions.
    Same,
    /// Certainly earlier.
    Older,
}

impl Version {
    /// Compares with the version `than`: by `seq` where both carry one, otherwise by `ts` where both
    /// carry one of the same kind; otherwise they are the same and the order of arrival decides.
    pub fn age(self, than: Self) -> Age {
        let ordering = match (self.seq, than.seq, self.ts, than.ts) {
            (Some(a), Some(b), _, _) => a.cmp(&b),
            (_, _, Some(a), Some(b)) if self.of_write == than.of_write => a.cmp(&b),
            _ => return Age::Same,
        };
        match ordering {
            std::cmp::Ordering::Greater => Age::Newer,
            std::cmp::Ordering::Equal => Age::Same,
            std::cmp::Ordering::Less => Age::Older,
        }
    }
}

/// What the version gate says of a quote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// To be delivered.
    Newer,
    /// Says what is known already.
    Duplicate,
    /// Overtaken; delivering it would turn a price back.
    Older,
}

/// Where a quote came from, which decides ties.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// From the live stream.
    Live,
    /// Read from the instrument's price key.
    Stored,
}

/// A source field that is passed through with the source's own spelling.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Field {
    /// Last price (`close` in a payload, `price` in a price key).
    Price,
    /// Change against the previous day's close, in percent.
    PrevDayChangePct,
    /// Traded volume of the day.
    Volume,
    /// Opening price of the day.
    Open,
    /// Highest price of the day.
    High,
    /// Lowest price of the day.
    Low,
    /// Traded value of the day.
    Value,
    /// The source's local date-time: a JSON string or an array of numbers.
    At,
}

impl Field {
    /// Every field, in the order in which an event lists them.
    pub const ALL: [Field; 8] = [
        Field::Price,
        Field::PrevDayChangePct,
        Field::Volume,
        Field::Open,
        Field::High,
        Field::Low,
        Field::Value,
        Field::At,
    ];
}

/// One statement about an instrument's price.
#[derive(Clone, Debug)]
pub struct Quote {
    /// The instrument.
    pub id: InstrumentId,
    /// Orders the quotes of one instrument.
    pub version: Version,
    /// When the publisher sent it, milliseconds since the Unix epoch.
    pub published_at: Option<i64>,
    /// When this process received it, microseconds since the Unix epoch; for a stored quote, when
    /// the read was sent, because everything that was published later may be missing from it.
    pub arrived_us: i64,
    /// Live stream or stored key.
    pub origin: Origin,
    text: Box<str>,
    spans: [Option<(u32, u32)>; Field::ALL.len()],
}

impl Quote {
    /// A quote without fields, whose fields will be ranges of `text`, the source's JSON.
    ///
    /// `text` must be shorter than 4 GiB; `ingest.max_payload_bytes` keeps it far below.
    pub fn new(id: InstrumentId, version: Version, origin: Origin, text: Box<str>) -> Self {
        Self { id, version, published_at: None, arrived_us: 0, origin, text, spans: Default::default() }
    }

    /// Says which part of the text is `field`. A range outside of the text is ignored.
    pub fn set(&mut self, field: Field, range: Range<usize>) {
        if self.text.get(range.clone()).is_some() {
            self.spans[field as usize] = Some((range.start as u32, range.end as u32));
        }
    }

    /// The source's JSON text of `field`, or `None` where the source lacks it.
    pub fn field(&self, field: Field) -> Option<&str> {
        let (start, end) = self.spans[field as usize]?;
        self.text.get(start as usize..end as usize)
    }

    /// Whether this quote may follow `shown`, the newest one known of its instrument.
    ///
    /// Versions decide. Where they don't, a live quote follows in order of arrival, unless it is the
    /// same statement again (both the base channel and a partition may carry it); a stored one
    /// follows only if it was read after `shown` arrived and says something else.
    pub fn judge(&self, shown: &Self) -> Verdict {
        match self.version.age(shown.version) {
            Age::Newer => return Verdict::Newer,
            Age::Older => return Verdict::Older,
            Age::Same => {}
        }
        let (mine, shows) = (self.version, shown.version);
        let same_kind = mine.of_write == shows.of_write;
        let same_seq = mine.seq.is_some() && shows.seq.is_some();
        let comparable = same_seq || same_kind && mine.ts.is_some() && shows.ts.is_some();
        // The publisher writes the key first and publishes then, both by one clock.
        let published = self.published_at.zip(shown.published_at);
        if !same_kind && published.is_some_and(|(mine, shows)| mine < shows) {
            return Verdict::Older;
        }
        let follows = match self.origin {
            Origin::Live => !same_seq && (!comparable || !self.same_content(shown)),
            Origin::Stored => !comparable && self.arrived_us > shown.arrived_us && !self.same_content(shown),
        };
        if follows { Verdict::Newer } else { Verdict::Duplicate }
    }

    /// Whether both say the same in every field that a client gets to see.
    pub fn same_content(&self, other: &Self) -> bool {
        Field::ALL.iter().all(|&f| self.field(f) == other.field(f))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v(seq: Option<u64>, ts: Option<i64>) -> Version {
        Version { seq, ts, of_write: false }
    }

    #[test]
    fn seq_decides_where_both_carry_one() {
        assert_eq!(v(Some(2), Some(1)).age(v(Some(1), Some(9))), Age::Newer);
        assert_eq!(v(Some(1), Some(9)).age(v(Some(2), Some(1))), Age::Older);
        assert_eq!(v(Some(1), Some(9)).age(v(Some(1), Some(1))), Age::Same);
    }

    #[test]
    fn ts_decides_where_a_seq_is_missing() {
        assert_eq!(v(None, Some(2)).age(v(Some(7), Some(1))), Age::Newer);
        assert_eq!(v(Some(7), Some(1)).age(v(None, Some(2))), Age::Older);
    }

    fn quote(ts: Option<i64>, price: &str, origin: Origin, arrived_us: i64) -> Quote {
        let mut quote = Quote::new(InstrumentId::new(1), v(None, ts), origin, price.into());
        quote.set(Field::Price, 0..price.len());
        quote.arrived_us = arrived_us;
        quote
    }

    #[test]
    fn two_trades_in_one_millisecond_keep_their_order() {
        let first = quote(Some(1), "10", Origin::Live, 1);
        assert_eq!(quote(Some(1), "11", Origin::Live, 2).judge(&first), Verdict::Newer);
        assert_eq!(quote(Some(1), "10", Origin::Live, 2).judge(&first), Verdict::Duplicate);
    }

    #[test]
    fn a_stored_quote_never_replaces_one_of_the_same_time() {
        let live = quote(Some(1), "10", Origin::Live, 1);
        assert_eq!(quote(Some(1), "9", Origin::Stored, 2).judge(&live), Verdict::Duplicate);
    }

    #[test]
    fn an_unversioned_stored_quote_counts_only_if_read_later() {
        let live = quote(None, "10", Origin::Live, 5);
        assert_eq!(quote(None, "9", Origin::Stored, 4).judge(&live), Verdict::Duplicate);
        assert_eq!(quote(None, "9", Origin::Stored, 6).judge(&live), Verdict::Newer);
    }

    #[test]
    fn a_key_written_after_its_price_was_made_does_not_hold_the_next_one_up() {
        // Made at 300 and written at 500; the next one is made at 450 and published at 650.
        let mut stored = quote(Some(500), "10", Origin::Stored, 1);
        stored.version.of_write = true;
        stored.published_at = Some(500);
        let mut next = quote(Some(450), "11", Origin::Live, 2);
        next.published_at = Some(650);
        assert_eq!(next.judge(&stored), Verdict::Newer);
        assert_eq!(stored.judge(&next), Verdict::Older);
        let mut late = quote(Some(300), "9", Origin::Live, 2);
        late.published_at = Some(400);
        assert_eq!(late.judge(&stored), Verdict::Older);
        // Without publishedAt the order of arrival is all there is.
        next.published_at = None;
        assert_eq!(next.judge(&stored), Verdict::Newer);
        assert_eq!(stored.judge(&next), Verdict::Duplicate, "it was read before the quote arrived");
    }

    #[test]
    fn without_a_common_measure_arrival_decides() {
        assert_eq!(v(None, None).age(v(Some(7), Some(1))), Age::Same);
        assert_eq!(v(Some(7), None).age(v(None, Some(1))), Age::Same);
    }
}
