//! The JSON of a quote that we publish ourselves.
//!
//! One text serves as the payload and as the price key: it names the last price both `close`, as
//! payloads do, and `price`, as price keys do, and readers of either ignore what they don't know.
//! Numbers are written without floating point, so their digits are those of the source.

use crate::instrument::InstrumentId;
use crate::quote::Version;
use std::sync::Arc;

/// A decimal number with exact digits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decimal {
    /// `units` divided by ten to the power of `digits`, written with all `digits` (at most 18).
    Scaled {
        /// The number without its decimal point.
        units: i64,
        /// How many of its digits stand behind the point.
        digits: u8,
    },
    /// The source's own spelling, which must be a JSON number.
    Text(Arc<str>),
}

impl Decimal {
    /// Appends the number's spelling.
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Text(text) => out.extend_from_slice(text.as_bytes()),
            &Self::Scaled { units, digits } => {
                let scale = 10_u64.pow(u32::from(digits.min(18)));
                let magnitude = units.unsigned_abs();
                if units < 0 {
                    out.push(b'-');
                }
                push_digits(out, magnitude / scale, 1);
                if digits > 0 {
                    out.push(b'.');
                    push_digits(out, magnitude % scale, usize::from(digits.min(18)));
                }
            }
        }
    }
}

/// What a source says of an instrument at one step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Statement {
    /// The instrument.
    pub id: InstrumentId,
    /// Last price.
    pub price: Decimal,
    /// Change against the previous day's close, in percent.
    pub prev_day_change_pct: Option<Decimal>,
    /// Opening, highest and lowest price of the day.
    pub day: Option<Day>,
    /// Traded volume of the day.
    pub volume: Option<u64>,
}

/// The prices of a day so far.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Day {
    /// Opening price.
    pub open: Decimal,
    /// Highest price.
    pub high: Decimal,
    /// Lowest price.
    pub low: Decimal,
}

/// What is stamped on a statement when it is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// The source's time and the time of sending, milliseconds since the Unix epoch.
    pub ms: i64,
    /// Orders the statements of an instrument; absent where the store-and-publish function gives one.
    pub seq: Option<u64>,
}

impl Stamp {
    /// The version that it gives.
    pub const fn version(self) -> Version {
        Version { seq: self.seq, ts: Some(self.ms), of_write: false }
    }
}

impl Statement {
    /// Appends the statement as JSON.
    pub fn write_json(&self, stamp: Stamp, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"stockId\":");
        push_signed(out, self.id.get());
        out.extend_from_slice(b",\"publishedAt\":");
        push_signed(out, stamp.ms);
        for name in [b",\"close\":".as_slice(), b",\"price\":"] {
            push_decimal(out, name, &self.price);
        }
        if let Some(change) = &self.prev_day_change_pct {
            push_decimal(out, b",\"prevDayChangePct\":", change);
        }
        if let Some(day) = &self.day {
            push_decimal(out, b",\"open\":", &day.open);
            push_decimal(out, b",\"high\":", &day.high);
            push_decimal(out, b",\"low\":", &day.low);
        }
        if let Some(volume) = self.volume {
            out.extend_from_slice(b",\"volume\":");
            push_digits(out, volume, 1);
        }
        // Version last, where the store-and-publish function finds it without reading the rest.
        out.extend_from_slice(b",\"ts\":");
        push_signed(out, stamp.ms);
        if let Some(seq) = stamp.seq {
            out.extend_from_slice(b",\"seq\":");
            push_digits(out, seq, 1);
        }
        out.push(b'}');
    }
}

fn push_decimal(out: &mut Vec<u8>, name: &[u8], number: &Decimal) {
    out.extend_from_slice(name);
    number.write(out);
}

/// Appends a signed number in decimal.
pub(crate) fn push_signed(out: &mut Vec<u8>, number: i64) {
    if number < 0 {
        out.push(b'-');
    }
    push_digits(out, number.unsigned_abs(), 1);
}

/// Appends a number in decimal with at least `width` digits. `write!` costs several times as much, and
/// a statement has about ten numbers.
pub(crate) fn push_digits(out: &mut Vec<u8>, mut number: u64, width: usize) {
    const MAX_DIGITS: usize = 20;
    let mut digits = [b'0'; MAX_DIGITS];
    let mut at = MAX_DIGITS;
    while number > 0 {
        at -= 1;
        digits[at] += (number % 10) as u8;
        number /= 10;
    }
    out.extend_from_slice(&digits[at.min(MAX_DIGITS - width.min(MAX_DIGITS))..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelled(number: Decimal) -> String {
        let mut out = Vec::new();
        number.write(&mut out);
        String::from_utf8(out).expect("digits")
    }

    #[test]
    fn scaled_numbers_keep_all_their_digits() {
        for (units, digits, text) in [
            (7_100_010, 2, "71000.10"),
            (5, 2, "0.05"),
            (-5, 2, "-0.05"),
            (-12_345, 4, "-1.2345"),
            (0, 2, "0.00"),
            (0, 0, "0"),
            (i64::MIN, 0, "-9223372036854775808"),
            (i64::MAX, 18, "9.223372036854775807"),
        ] {
            assert_eq!(spelled(Decimal::Scaled { units, digits }), text);
        }
        assert_eq!(spelled(Decimal::Text("117.63331139400017".into())), "117.63331139400017");
    }

    #[test]
    fn a_statement_reads_as_payload_and_as_price_key() {
        let statement = Statement {
            id: InstrumentId::new(-7),
            price: Decimal::Text("1628.75".into()),
            prev_day_change_pct: Some(Decimal::Scaled { units: -92, digits: 2 }),
            day: Some(Day {
                open: Decimal::Scaled { units: 100, digits: 2 },
                high: Decimal::Scaled { units: 110, digits: 2 },
                low: Decimal::Scaled { units: 90, digits: 2 },
            }),
            volume: Some(12),
        };
        let mut out = Vec::new();
        statement.write_json(Stamp { ms: 1_700_000_000_123, seq: Some(9) }, &mut out);
        assert_eq!(
            String::from_utf8(out).expect("text"),
            concat!(
                r#"{"stockId":-7,"publishedAt":1700000000123,"close":1628.75,"#,
                r#""price":1628.75,"prevDayChangePct":-0.92,"open":1.00,"high":1.10,"low":0.90,"#,
                r#""volume":12,"ts":1700000000123,"seq":9}"#
            )
        );
    }
}
