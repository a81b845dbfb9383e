//! The kinds of values that keys have: how each is read from TOML or from text, and shown again.
//!
//! Invariants:
//! - TOML is typed: a number in quotes is no number, and a bare number is no duration. Text, which is
//!   all that the environment has, is read by the same rules otherwise.
//! - What `show` prints, `read` accepts and reads as the same value; secrets are the exception.
//!
//! Not here: which key has which kind and bounds (`config::keys`).

pub mod number;
pub mod text;

#[cfg(test)]
mod tests;

use toml::Value;

/// A value as it was written.
#[derive(Clone, PartialEq, Debug)]
pub enum Raw {
    /// Text, from the environment or the command line.
    Text(String),
    /// A value of a file.
    Toml(Value),
}

/// How values of one kind are read and shown.
pub trait Kind<T> {
    /// Whether values of this kind must never be shown.
    const SECRET: bool = false;

    /// Reads a value.
    ///
    /// # Errors
    /// The rule that `raw` breaks, as the end of the sentence "`key` …".
    fn read(&self, raw: &Raw) -> Result<T, String>;

    /// The value as a file would have it, or `None` if it is absent.
    fn show(&self, value: &T) -> Option<Value>;
}

/// `true` or `false`.
pub struct Flag;

impl Kind<bool> for Flag {
    fn read(&self, raw: &Raw) -> Result<bool, String> {
        let read = match raw {
            Raw::Toml(Value::Boolean(flag)) => Some(*flag),
            Raw::Text(text) => text.parse().ok(),
            Raw::Toml(_) => None,
        };
        read.ok_or_else(|| "must be true or false".into())
    }

    fn show(&self, value: &bool) -> Option<Value> {
        Some(Value::Boolean(*value))
    }
}

/// A value that may be absent.
pub struct Maybe<K>(pub K);

impl<T, K: Kind<T>> Kind<Option<T>> for Maybe<K> {
    const SECRET: bool = K::SECRET;

    fn read(&self, raw: &Raw) -> Result<Option<T>, String> {
        self.0.read(raw).map(Some)
    }

    fn show(&self, value: &Option<T>) -> Option<Value> {
        value.as_ref().and_then(|value| self.0.show(value))
    }
}

/// One of a few words.
pub struct Choice<T: 'static>(pub &'static [(&'static str, T)]);

impl<T: Copy + PartialEq> Kind<T> for Choice<T> {
    fn read(&self, raw: &Raw) -> Result<T, String> {
        let word = match raw {
            Raw::Text(text) | Raw::Toml(Value::String(text)) => text.as_str(),
            Raw::Toml(_) => "",
        };
        let found = self.0.iter().find(|(name, _)| *name == word).map(|&(_, value)| value);
        found.ok_or_else(|| {
            let names: Vec<_> = self.0.iter().map(|(name, _)| format!("\"{name}\"")).collect();
            format!("must be one of {}", names.join(", "))
        })
    }

    fn show(&self, value: &T) -> Option<Value> {
        let (name, _) = self.0.iter().find(|(_, known)| known == value)?;
        Some(Value::String((*name).into()))
    }
}
