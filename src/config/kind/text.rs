//! Text, lists of it, secrets and socket addresses.

use std::net::SocketAddr;

use toml::Value;

use super::super::Secret;
use super::{Kind, Raw};

/// Judges a text: the rule that it breaks, if any.
pub type Check = fn(&str) -> Result<(), String>;

/// Text that passes a check.
pub struct Text(pub Check);

impl Kind<String> for Text {
    fn read(&self, raw: &Raw) -> Result<String, String> {
        let text = written(raw)?;
        (self.0)(text)?;
        Ok(text.into())
    }

    fn show(&self, value: &String) -> Option<Value> {
        Some(Value::String(value.clone()))
    }
}

/// A list of texts that each pass a check. In the environment they are separated by commas.
pub struct List(pub Check);

impl Kind<Vec<String>> for List {
    fn read(&self, raw: &Raw) -> Result<Vec<String>, String> {
        let items: Vec<&str> = match raw {
            Raw::Text(text) => text.split(',').map(str::trim).filter(|item| !item.is_empty()).collect(),
            Raw::Toml(Value::Array(items)) => {
                let items: Option<Vec<_>> = items.iter().map(Value::as_str).collect();
                items.ok_or("must be a list of texts, each in quotes")?
            }
            Raw::Toml(_) => return Err("must be a list such as [\"…\", \"…\"]".into()),
        };
        for item in &items {
            (self.0)(item).map_err(|rule| format!("each entry {rule}"))?;
        }
        Ok(items.into_iter().map(String::from).collect())
    }

    fn show(&self, value: &Vec<String>) -> Option<Value> {
        Some(Value::Array(value.iter().cloned().map(Value::String).collect()))
    }
}

/// What stands in the place of a secret wherever configuration is shown.
pub const REDACTED: &str = "[redacted]";

/// A secret. Shown redacted only.
pub struct SecretText;

impl Kind<Option<Secret>> for SecretText {
    const SECRET: bool = true;

    fn read(&self, raw: &Raw) -> Result<Option<Secret>, String> {
        let text = written(raw)?;
        if text.is_empty() {
            return Err("must not be empty".into());
        }
        // Printed configuration is a template for files; its placeholder must not become a password.
        if text == REDACTED {
            return Err("must be the secret itself, not the placeholder that print-config shows".into());
        }
        Ok(Some(Secret::new(text.into())))
    }

    fn show(&self, value: &Option<Secret>) -> Option<Value> {
        value.as_ref().map(|_| Value::String(REDACTED.into()))
    }
}

/// An IP address with a port.
pub struct Address;

impl Kind<SocketAddr> for Address {
    fn read(&self, raw: &Raw) -> Result<SocketAddr, String> {
        let rule = "must be an IP address with a port, such as \"0.0.0.0:8080\"";
        written(raw).ok().and_then(|text| text.parse().ok()).ok_or_else(|| rule.into())
    }

    fn show(&self, value: &SocketAddr) -> Option<Value> {
        Some(Value::String(value.to_string()))
    }
}

fn written(raw: &Raw) -> Result<&str, String> {
    match raw {
        Raw::Text(text) | Raw::Toml(Value::String(text)) => Ok(text),
        Raw::Toml(_) => Err("must be text in quotes".into()),
    }
}
