//! What is asserted of every input that a stranger may send: one function per kind of input.
//!
//! libFuzzer calls them (`fuzz_targets/`), and so does `tests/it/fuzz.rs`, which includes this file: there is one
//! body for both. What they call is the public interface of the library, as the product uses it.

pub mod client_frames;
pub mod client_messages;
pub mod configuration;
pub mod cursors;
pub mod payloads;
pub mod tokens;
pub mod topics;

/// Takes numbers off the front of an input, so that it can steer what is built from it. An input that is used
/// up gives zeros.
pub struct Choices<'a>(pub &'a [u8]);

impl<'a> Choices<'a> {
    /// One byte.
    pub fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// Any number of 64 bits.
    pub fn number(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// Up to `most` bytes.
    pub fn bytes(&mut self, most: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(usize::from(self.byte()).min(most).min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Whether nothing is left.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Asserts that a message is JSON on one line.
pub fn assert_one_line_of_json(text: &[u8]) {
    let text = std::str::from_utf8(text).expect("a message is UTF-8");
    assert!(!text.contains(['\n', '\r']), "a message spans lines: {text:?}");
    let parsed: Result<&serde_json::value::RawValue, _> = serde_json::from_str(text);
    assert!(parsed.is_ok(), "a message is no JSON: {text:?}");
}
