//! Logs: to standard error, as text or JSON, through a filter that can be replaced while running.
//!
//! Not here: metrics (`metrics`). `RUST_LOG` is not read; `log.filter` is the one place.

use std::io::IsTerminal;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

use crate::config::log::{Log, LogFormat};

/// Why logs cannot be set up or their filter not be replaced.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The filter cannot be read.
    #[error("the log filter {0:?} cannot be read")]
    Filter(String),
    /// Logs were set up before.
    #[error("logs are set up already")]
    Twice,
}

/// Replaces the filter of the running process.
#[derive(Clone, Debug)]
pub struct Filter(reload::Handle<EnvFilter, Registry>);

impl Filter {
    /// Replaces the filter.
    ///
    /// # Errors
    /// The text is no filter; the present one stays.
    pub fn replace(&self, text: &str) -> Result<(), Error> {
        let replaced = self.0.reload(parsed(text)?);
        replaced.map_err(|_| Error::Filter(text.into()))
    }
}

/// Sets up logs for the whole process.
///
/// # Errors
/// The filter cannot be read, or logs were set up before.
pub fn init(log: &Log) -> Result<Filter, Error> {
    let (filter, handle) = reload::Layer::new(parsed(&log.filter)?);
    let layer = fmt::layer().with_writer(std::io::stderr);
    let layer = match log.format {
        LogFormat::Text => layer.with_ansi(std::io::stderr().is_terminal()).boxed(),
        LogFormat::Json => layer.json().boxed(),
    };
    tracing_subscriber::registry().with(filter).with(layer).try_init().map_err(|_| Error::Twice)?;
    Ok(Filter(handle))
}

fn parsed(text: &str) -> Result<EnvFilter, Error> {
    EnvFilter::builder().parse(text).map_err(|_| Error::Filter(text.into()))
}
