//! Durations, sizes and counts, each within bounds.

use std::time::Duration;

use toml::Value;

use super::{Kind, Raw};

/// A duration within bounds, written with its unit.
pub struct Span {
    /// The shortest that works.
    pub min: Duration,
    /// The longest that makes sense.
    pub max: Duration,
}

impl Kind<Duration> for Span {
    fn read(&self, raw: &Raw) -> Result<Duration, String> {
        let text = match raw {
            Raw::Text(text) | Raw::Toml(Value::String(text)) => text.as_str(),
            Raw::Toml(_) => "",
        };
        // humantime takes a bare "0"; a duration without a unit is refused here, whatever its value.
        let read = text.ends_with(|c: char| c.is_ascii_alphabetic()).then(|| humantime::parse_duration(text));
        let Some(Ok(span)) = read else {
            return Err("must be a duration in quotes with its unit, such as \"45s\" or \"500ms\"".into());
        };
        if (self.min..=self.max).contains(&span) {
            return Ok(span);
        }
        let [min, max] = [self.min, self.max].map(humantime::format_duration);
        Err(format!("must be from \"{min}\" to \"{max}\""))
    }

    fn show(&self, value: &Duration) -> Option<Value> {
        Some(Value::String(humantime::format_duration(*value).to_string()))
    }
}

/// A whole number within bounds.
pub struct Count {
    /// The least that works.
    pub min: u32,
    /// The most that makes sense.
    pub max: u32,
}

impl Kind<u32> for Count {
    fn read(&self, raw: &Raw) -> Result<u32, String> {
        let read = match raw {
            Raw::Text(text) => text.parse().ok(),
            Raw::Toml(Value::Integer(number)) => u32::try_from(*number).ok(),
            Raw::Toml(_) => None,
        };
        read.filter(|number| (self.min..=self.max).contains(number))
            .ok_or_else(|| format!("must be a whole number from {} to {}", self.min, self.max))
    }

    fn show(&self, value: &u32) -> Option<Value> {
        Some(Value::Integer(i64::from(*value)))
    }
}

impl Kind<usize> for Count {
    fn read(&self, raw: &Raw) -> Result<usize, String> {
        let number: u32 = self.read(raw)?;
        usize::try_from(number).map_err(|_| "does not fit this machine".into())
    }

    fn show(&self, value: &usize) -> Option<Value> {
        i64::try_from(*value).ok().map(Value::Integer)
    }
}

/// A number of bytes within bounds, written as a number or with a binary unit.
pub struct Size {
    /// The least that works, in bytes.
    pub min: usize,
    /// The most that makes sense, in bytes.
    pub max: usize,
}

/// Units of sizes, the largest first. No decimal ones: "KB" is read both ways.
const UNITS: [(&str, usize); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

impl Kind<usize> for Size {
    fn read(&self, raw: &Raw) -> Result<usize, String> {
        let read = match raw {
            Raw::Text(text) => text.parse().ok().or_else(|| with_unit(text)),
            Raw::Toml(Value::String(text)) => with_unit(text),
            Raw::Toml(Value::Integer(bytes)) => usize::try_from(*bytes).ok(),
            Raw::Toml(_) => None,
        };
        let Some(bytes) = read else {
            return Err("must be a size such as \"64 KiB\" or a number of bytes".into());
        };
        if (self.min..=self.max).contains(&bytes) {
            return Ok(bytes);
        }
        Err(format!("must be from \"{}\" to \"{}\"", written(self.min), written(self.max)))
    }

    fn show(&self, value: &usize) -> Option<Value> {
        Some(Value::String(written(*value)))
    }
}

fn with_unit(text: &str) -> Option<usize> {
    let (unit, scale) = UNITS.iter().find(|(unit, _)| text.ends_with(unit))?;
    let number: usize = text.strip_suffix(unit)?.trim_end().parse().ok()?;
    number.checked_mul(*scale)
}

fn written(bytes: usize) -> String {
    let exact = UNITS.iter().find(|(_, scale)| bytes >= *scale && bytes.is_multiple_of(*scale));
    let (unit, scale) = exact.unwrap_or(&("B", 1));
    format!("{} {unit}", bytes / scale)
}
