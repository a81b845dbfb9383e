//! Reads the configuration again when asked, and applies what can change while the gateway runs.
//!
//! Invariants:
//! - A configuration with problems changes nothing.
//! - What changed and cannot be applied is named in the log, once per reload, and holds from the next start.

use crate::config::Config;
use crate::config::keys::Key;
use crate::config::load::{Purpose, load};
use crate::config::raw::Sources;
use crate::shutdown::Requests;
use crate::telemetry::Filter;

/// The keys that can change while running.
const LIVE: [&str; 1] = ["log.filter"];

/// What a reload works on.
pub struct Reload {
    sources: Sources,
    running: Config,
    filter: Filter,
}

impl Reload {
    /// Reads `sources` again; `running` is what the gateway was started with.
    pub fn new(sources: Sources, running: Config, filter: Filter) -> Self {
        Self { sources, running, filter }
    }

    /// Reloads whenever asked, for ever.
    pub async fn follow(mut self, requests: Requests) {
        loop {
            requests.reloading().await;
            self.once();
        }
    }

    fn once(&mut self) {
        let loaded = match load(&self.sources, Purpose::Serve) {
            Ok(loaded) => loaded,
            Err(problems) => return tracing::error!(%problems, "the configuration was not reloaded"),
        };
        let changed = Key::changed(&self.running, &loaded.config);
        let (live, others): (Vec<_>, Vec<_>) =
            changed.iter().map(|key| key.name).partition(|name| LIVE.contains(name));
        if let Err(error) = self.filter.replace(&loaded.config.log.filter) {
            return tracing::error!(%error, "the configuration was not reloaded");
        }
        self.running.log.filter.clone_from(&loaded.config.log.filter);
        tracing::info!(config.applied = ?live, "the configuration was reloaded");
        if !others.is_empty() {
            tracing::warn!(config.pending = ?others, "these keys change with the next start only");
        }
    }
}
