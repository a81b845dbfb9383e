//! How the process logs.

/// `log.format`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For machines.
    Json,
}

/// `log.*`
#[derive(Clone, PartialEq, Debug)]
pub struct Log {
    /// A `tracing` filter, such as `info` or `tickbridge=debug`.
    pub filter: String,
    /// Text or JSON.
    pub format: LogFormat,
}

impl Default for Log {
    fn default() -> Self {
        Self { filter: "info".into(), format: LogFormat::Text }
    }
}
