//! What is wrong with a configuration: key, value, source and rule.
//!
//! Invariant: no secret is ever part of a problem, nor is the value of a key that is not known, which
//! may be a secret under a misspelt name.

use std::fmt;

use super::keys::Key;
use super::kind::Raw;
use super::kind::text::REDACTED;
use super::raw::Origin;

/// One broken rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// The key, or what stands where a key is expected.
    pub key: String,
    /// The value as written, if it may be shown.
    pub value: Option<String>,
    /// Where the value came from.
    pub origin: Origin,
    /// The rule, as the end of the sentence "`key` …".
    pub rule: String,
}

impl Problem {
    /// A value that breaks a rule of its key.
    pub fn with_value(key: &Key, raw: &Raw, origin: &Origin, rule: String) -> Self {
        let value = if key.secret { REDACTED.into() } else { without_credentials(&written(raw)) };
        Self { key: key.name.into(), value: Some(value), origin: origin.clone(), rule }
    }

    /// Something whose value must not be shown, or that has none.
    pub fn without_value(key: &str, origin: &Origin, rule: String) -> Self {
        Self { key: key.into(), value: None, origin: origin.clone(), rule }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A name that nobody knows may hold anything, and a problem is one line of a log.
        write!(f, "{}", self.key.escape_debug())?;
        if let Some(value) = &self.value {
            write!(f, " = {value}")?;
        }
        write!(f, " ({}): {}", self.origin, self.rule)
    }
}

/// Everything that is wrong; never empty.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.0.len();
        write!(f, "the configuration has {n} {}:", if n == 1 { "problem" } else { "problems" })?;
        self.0.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

impl std::error::Error for Problems {}

/// Longest value that is repeated in a problem; a whole certificate pasted in the wrong place helps nobody.
const MAX_SHOWN: usize = 120;

fn written(raw: &Raw) -> String {
    let text = match raw {
        Raw::Text(text) => format!("{text:?}"),
        Raw::Toml(value) => value.to_string(),
    };
    match text.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Replaces what stands before an `@`: people write `redis://:password@host` where a node belongs.
fn without_credentials(text: &str) -> String {
    let Some((_, rest)) = text.rsplit_once('@') else { return text.into() };
    format!("\"{REDACTED}@{rest}")
}
