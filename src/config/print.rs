//! Shows a configuration: as TOML with the source of each value, and as one line for the log.
//!
//! Invariants:
//! - Secrets are redacted.
//! - The TOML can be used as a file: all but the secrets is read again as the same values.

use std::fmt::Write;

use super::keys::KEYS;
use super::load::Loaded;

/// The effective configuration as TOML.
pub fn as_toml(loaded: &Loaded) -> String {
    let mut text = String::new();
    let mut section = "";
    for key in KEYS {
        let (table, name) = key.name.rsplit_once('.').unwrap_or(("", key.name));
        if table != section {
            let gap = if section.is_empty() { "" } else { "\n" };
            let _ = writeln!(text, "{gap}[{table}]");
            section = table;
        }
        let origin = loaded.origin(key);
        let _ = match (key.show)(&loaded.config) {
            // A comment, since the placeholder is refused as a value.
            Some(value) if key.secret => writeln!(text, "# {name} = {value} # {origin}"),
            Some(value) => writeln!(text, "{name} = {value} # {origin}"),
            None => writeln!(text, "# {name} is not set # {origin}"),
        };
    }
    for note in &loaded.notes {
        let _ = writeln!(text, "\n# {note}");
    }
    text
}

/// The effective configuration in one line.
pub fn as_line(loaded: &Loaded) -> String {
    let shown = KEYS.iter().filter_map(|key| {
        let value = (key.show)(&loaded.config)?;
        Some(format!("{}={value}", key.name))
    });
    shown.collect::<Vec<_>>().join(" ")
}
