//! What a browser asks for: `quote:<instrumentId>`.
//!
//! Not here: the Redis channel that carries the topic's quotes (`upstream`).

use crate::instrument::InstrumentId;
use std::fmt;

const PREFIX: &str = "quote:";

/// A subscribable name. One kind exists: the quotes of one instrument.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Topic(InstrumentId);

impl Topic {
    /// The topic of an instrument's quotes.
    pub const fn of(id: InstrumentId) -> Self {
        Self(id)
    }

    /// Reads `quote:<id>`; the id's spelling is normalised, so `quote:005` is `quote:5`.
    pub fn parse(text: &str) -> Option<Self> {
        InstrumentId::parse(text.strip_prefix(PREFIX)?).map(Self)
    }

    /// The instrument whose quotes the topic carries.
    pub const fn instrument(self) -> InstrumentId {
        self.0
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spelling_is_normalised() {
        assert_eq!(Topic::parse("quote:005930").map(|t| t.to_string()).as_deref(), Some("quote:5930"));
        assert_eq!(Topic::parse("quote:-0").map(|t| t.to_string()).as_deref(), Some("quote:0"));
    }

    #[test]
    fn other_names_are_refused() {
        for text in ["", "quote", "quote:", "QUOTE:5", "quote: 5", "quote:5 ", "quote:5:1", "quotes:5", "5"] {
            assert_eq!(Topic::parse(text), None, "{text:?}");
        }
    }
}
