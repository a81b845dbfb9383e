//! The tradable thing that quotes are about, identified by a signed 64-bit integer.
//!
//! Not here: how an instrument is spelled in a topic (`topic`) or in a Redis name (`upstream`).

use std::fmt;

/// Longest accepted spelling of an id, leading zeros included. An `i64` needs at most 20 characters;
/// the slack tolerates zero-padded ids and still bounds what one topic can cost.
const MAX_SPELLING: usize = 40;

/// Identifies one instrument.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct InstrumentId(i64);

impl InstrumentId {
    /// Wraps a raw id.
    pub const fn new(id: i64) -> Self {
        Self(id)
    }

    /// The raw id.
    pub const fn get(self) -> i64 {
        self.0
    }

    /// Reads an id in ASCII decimal: an optional `-`, then digits, leading zeros accepted.
    ///
    /// `+5`, blanks, an empty string, digits of other scripts and overflow give `None`. `-0` is `0`.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix('-').unwrap_or(text);
        let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        if !plain || text.len() > MAX_SPELLING {
            return None;
        }
        text.parse().ok().map(Self)
    }

    /// The partition of this instrument among `n`: `floorMod(Long.hashCode(id), n)` in Java's terms,
    /// which is what the publisher computes.
    ///
    /// `n` must be at least 1.
    pub fn partition(self, n: u32) -> u32 {
        let folded = self.0 ^ ((self.0 as u64) >> 32) as i64;
        i64::from(folded as i32).rem_euclid(i64::from(n)) as u32
    }
}

impl fmt::Display for InstrumentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepted_spellings_have_one_canonical_form() {
        for (text, id) in [
            ("5", 5),
            ("005930", 5930),
            ("-5", -5),
            ("-005", -5),
            ("-0", 0),
            ("0", 0),
            ("9223372036854775807", i64::MAX),
            ("-9223372036854775808", i64::MIN),
            ("9007199254740993", 9_007_199_254_740_993),
        ] {
            assert_eq!(InstrumentId::parse(text), Some(InstrumentId(id)), "{text}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        let long = "0".repeat(41);
        for text in [
            "",
            "+5",
            " 5",
            "5 ",
            "-",
            "--5",
            "++5",
            "5.0",
            "1e3",
            "0x5",
            "5_000",
            "٥",
            "5:1",
            "9223372036854775808",
            "-9223372036854775809",
            "5\n",
            "5\0",
            &long,
        ] {
            assert_eq!(InstrumentId::parse(text), None, "{text:?}");
        }
    }

    /// Expected values computed with `Math.floorMod(Long.hashCode(id), n)` of a JDK.
    #[test]
    fn partition_agrees_with_java() {
        for (id, n, expected) in [
            (0, 64, 0),
            (1, 64, 1),
            (101, 4, 1),
            (-1, 64, 0),
            (-5, 64, 4),
            (5930, 64, 42),
            (i64::MAX, 64, 0),
            (i64::MAX, 7, 5),
            (i64::MIN, 7, 5),
            (9_007_199_254_740_993, 64, 1),
            (4_294_967_295, 5, 4),
        ] {
            assert_eq!(InstrumentId(id).partition(n), expected, "{id} mod {n}");
        }
    }
}
