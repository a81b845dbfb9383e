//! Reads a Pub/Sub payload or a price key into a quote.
//!
//! Invariants:
//! - The source's digits are kept: no number is read as a float.
//! - What a quote holds is valid JSON on one line, whatever white space the source wrote.
//! - A field that is not what the contract says is left out; only what can't be told to an instrument
//!   is refused as a whole, by a closed set of reasons.
//! - Of a name that comes twice the last counts, as with the JSON readers that publishers use.
//!
//! Not here: counting (`sink`), which of two quotes is newer (`quote`).

use crate::instrument::InstrumentId;
use crate::quote::{Field, Origin, Quote, Version};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::error::Category;
use serde_json::value::RawValue;
use std::ops::Range;
use std::{fmt, str};

/// Why a payload or price key can't be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unusable {
    /// Longer than `ingest.max_payload_bytes`.
    #[error("longer than ingest.max_payload_bytes")]
    TooLarge,
    /// Not UTF-8.
    #[error("not UTF-8")]
    NotUtf8,
    /// Not JSON, or only the beginning of it.
    #[error("not JSON")]
    NotJson,
    /// JSON, but not an object.
    #[error("not a JSON object")]
    NotAnObject,
    /// No `stockId`.
    #[error("no stockId")]
    NoInstrument,
    /// A `stockId` that is no 64-bit integer.
    #[error("stockId is not a 64-bit integer")]
    BadInstrument,
    /// A price key with the `stockId` of another instrument.
    #[error("stockId is not the one that the key names")]
    WrongInstrument,
}

impl Unusable {
    /// Every reason.
    pub const ALL: [Self; 7] = [
        Self::TooLarge,
        Self::NotUtf8,
        Self::NotJson,
        Self::NotAnObject,
        Self::NoInstrument,
        Self::BadInstrument,
        Self::WrongInstrument,
    ];

    /// Its value as a metric label.
    pub const fn label(self) -> &'static str {
        match self {
            Self::TooLarge => "too_large",
            Self::NotUtf8 => "not_utf8",
            Self::NotJson => "not_json",
            Self::NotAnObject => "not_an_object",
            Self::NoInstrument => "no_instrument",
            Self::BadInstrument => "bad_instrument",
            Self::WrongInstrument => "wrong_instrument",
        }
    }
}

/// Reads a Pub/Sub payload of at most `max_bytes`, received at `arrived_us`.
///
/// # Errors
/// The payload can't be told to an instrument.
pub fn live(payload: Vec<u8>, max_bytes: usize, arrived_us: i64) -> Result<Quote, Unusable> {
    let (text, fields) = read(payload, max_bytes, "close")?;
    let id = fields.instrument.ok_or(Unusable::NoInstrument)??;
    let mut quote = fields.into_quote(id, Origin::Live, text);
    quote.arrived_us = arrived_us;
    Ok(quote)
}

/// Reads what the price key of `id` held, of at most `max_bytes`, by a read sent at `read_us`.
/// `updated_at` is what stands in the updated-at key, by the same clock as a payload's `publishedAt`.
///
/// # Errors
/// The value is no price of `id`.
pub fn stored(
    id: InstrumentId,
    value: Vec<u8>,
    updated_at: Option<i64>,
    max_bytes: usize,
    read_us: i64,
) -> Result<Quote, Unusable> {
    let (text, fields) = read(value, max_bytes, "price")?;
    // The key names the instrument; a value without one is no contradiction.
    if fields.instrument.transpose()?.is_some_and(|inside| inside != id) {
        return Err(Unusable::WrongInstrument);
    }
    let mut quote = fields.into_quote(id, Origin::Stored, text);
    quote.published_at = quote.published_at.or(updated_at);
    quote.arrived_us = read_us;
    Ok(quote)
}

/// What was found in the text, by position.
#[derive(Default)]
struct Fields {
    instrument: Option<Result<InstrumentId, Unusable>>,
    version: Version,
    published_at: Option<i64>,
    spans: [Option<Range<usize>>; Field::ALL.len()],
    /// An array that the source wrote with white space, without it.
    compact_at: Option<String>,
}

impl Fields {
    fn into_quote(self, id: InstrumentId, origin: Origin, mut text: String) -> Quote {
        let compact_at = self.compact_at.map(|at| {
            let start = text.len();
            text.push_str(&at);
            start..text.len()
        });
        let mut quote = Quote::new(id, self.version, origin, text.into_boxed_str());
        quote.published_at = self.published_at;
        for (field, span) in Field::ALL.into_iter().zip(self.spans) {
            if let Some(span) = span {
                quote.set(field, span);
            }
        }
        if let Some(span) = compact_at {
            quote.set(Field::At, span);
        }
        quote
    }
}

fn read(bytes: Vec<u8>, max_bytes: usize, price: &'static str) -> Result<(String, Fields), Unusable> {
    if bytes.len() > max_bytes {
        return Err(Unusable::TooLarge);
    }
    let text = String::from_utf8(bytes).map_err(|_| Unusable::NotUtf8)?;
    let mut json = serde_json::Deserializer::from_str(&text);
    let reader = Reader { text: &text, price };
    let fields = json.deserialize_map(reader).and_then(|fields| json.end().map(|()| fields));
    let fields = fields.map_err(|error| match error.classify() {
        Category::Data => Unusable::NotAnObject,
        Category::Syntax | Category::Eof | Category::Io => Unusable::NotJson,
    })?;
    Ok((text, fields))
}

/// A name that means something in a payload or price key.
enum Name {
    Instrument,
    Ts,
    PublishedAt,
    Seq,
    Pass(Field),
    Other,
}

impl Name {
    fn of(name: &str, price: &str) -> Self {
        match name {
            "stockId" => Self::Instrument,
            "ts" => Self::Ts,
            "publishedAt" => Self::PublishedAt,
            "seq" => Self::Seq,
            "at" => Self::Pass(Field::At),
            "prevDayChangePct" => Self::Pass(Field::PrevDayChangePct),
            "volume" => Self::Pass(Field::Volume),
            "open" => Self::Pass(Field::Open),
            "high" => Self::Pass(Field::High),
            "low" => Self::Pass(Field::Low),
            "value" => Self::Pass(Field::Value),
            name if name == price => Self::Pass(Field::Price),
            _ => Self::Other,
        }
    }
}

struct Reader<'a> {
    text: &'a str,
    /// The name under which the price stands.
    price: &'static str,
}

impl<'a> Visitor<'a> for Reader<'a> {
    type Value = Fields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<Fields, A::Error> {
        let mut fields = Fields::default();
        while let Some(name) = map.next_key_seed(NameSeed { price: self.price })? {
            if let Name::Other = name {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let raw = map.next_value::<&RawValue>()?.get();
            match name {
                Name::Instrument => fields.instrument = instrument(raw),
                Name::Ts => fields.version.ts = raw.parse().ok(),
                Name::PublishedAt => fields.published_at = raw.parse().ok(),
                Name::Seq => fields.version.seq = raw.parse().ok(),
                Name::Pass(Field::At) => {
                    let shown = date_time(raw);
                    fields.spans[Field::At as usize] = matches!(shown, At::AsWritten).then(|| self.span(raw));
                    fields.compact_at = if let At::Compacted(text) = shown { Some(text) } else { None };
                }
                Name::Pass(field) => {
                    fields.spans[field as usize] = is_number(raw).then(|| self.span(raw));
                }
                Name::Other => {}
            }
        }
        Ok(fields)
    }
}

impl Reader<'_> {
    /// Where `raw`, a part of the text, stands in it.
    fn span(&self, raw: &str) -> Range<usize> {
        let start = raw.as_ptr() as usize - self.text.as_ptr() as usize;
        start..start + raw.len()
    }
}

struct NameSeed {
    price: &'static str,
}

impl<'de> serde::de::DeserializeSeed<'de> for NameSeed {
    type Value = Name;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Name, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for NameSeed {
    type Value = Name;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Name, E> {
        Ok(Name::of(name, self.price))
    }
}

fn instrument(raw: &str) -> Option<Result<InstrumentId, Unusable>> {
    // JSON forbids `+5` and `05`, so that what parses is written as an integer.
    (raw != "null").then(|| raw.parse().map(InstrumentId::new).map_err(|_| Unusable::BadInstrument))
}

/// Whether valid JSON is a number, which its first character tells.
fn is_number(raw: &str) -> bool {
    raw.starts_with(|c: char| c == '-' || c.is_ascii_digit())
}

enum At {
    AsWritten,
    Compacted(String),
    Unfit,
}

/// A date-time is a string, which can't hold a raw line break in JSON, or an array of numbers.
fn date_time(raw: &str) -> At {
    if raw.starts_with('"') {
        return At::AsWritten;
    }
    let Ok(Array(parts)) = serde_json::from_str(raw) else { return At::Unfit };
    let compact = format!("[{}]", parts.join(","));
    match parts.iter().all(|part| is_number(part)) {
        true if compact == raw => At::AsWritten,
        true => At::Compacted(compact),
        false => At::Unfit,
    }
}

struct Array<'a>(Vec<&'a str>);

impl<'de: 'a, 'a> Deserialize<'de> for Array<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let parts = Vec::<&'a RawValue>::deserialize(deserializer)?;
        Ok(Self(parts.into_iter().map(RawValue::get).collect()))
    }
}

#[cfg(test)]
mod tests;
