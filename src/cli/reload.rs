//! Reads the configuration again when asked, and applies what can change while the gateway runs.
//!
//! Invariants:
//! - A configuration with problems changes nothing, and each of its problems is logged.
//! - What changed and cannot be applied is named in the log, once per reload, and holds from the next start.

use crate::app::live::{Live, Prepared};
use crate::config::Config;
use crate::config::keys::Key;
use crate::config::load::{Purpose, load};
use crate::config::raw::Sources;
use crate::shutdown::Requests;
use crate::telemetry::Filter;

/// The keys that can change while running. What the files of keys hold is read again too, also where their names
/// stay the same.
pub const LIVE: [&str; 11] = [
    "listen.allowed_origins",
    "auth.jwt.secret",
    "auth.jwt.secret_file",
    "auth.jwt.public_keys",
    "session.max_topics",
    "session.max_inbound_per_second",
    "limits.max_sessions",
    "limits.max_sessions_per_ip",
    "limits.max_sessions_per_user",
    "limits.accepts_per_second",
    "log.filter",
];

/// What a reload works on.
pub struct Reload {
    sources: Sources,
    running: Config,
    filter: Filter,
    live: Live,
}

impl Reload {
    /// Reads `sources` again; `running` is what the gateway was started with.
    pub fn new(sources: Sources, running: Config, filter: Filter, live: Live) -> Self {
        Self { sources, running, filter, live }
    }

    /// Reloads whenever asked, for ever.
    pub async fn follow(mut self, requests: Requests) {
        loop {
            requests.reloading().await;
            if let Err(problems) = self.once() {
                self.live.refused();
                for problem in &problems {
                    tracing::error!(%problem, "the new configuration has a problem");
                }
                tracing::error!(
                    config.problems = problems.len(),
                    "the configuration was not reloaded; the one before stays"
                );
            }
        }
    }

    fn once(&mut self) -> Result<(), Vec<String>> {
        let loaded = load(&self.sources, Purpose::Serve)
            .map_err(|problems| problems.0.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        let prepared = Prepared::new(loaded.config)?;
        self.filter.replace(&prepared.config().log.filter).map_err(|error| vec![error.to_string()])?;
        let changed = Key::changed(&self.running, prepared.config());
        let (live, others): (Vec<_>, Vec<_>) =
            changed.iter().map(|key| key.name).partition(|name| LIVE.contains(name));
        // The others stay as they were started, and differ again next time.
        for key in changed.iter().filter(|key| LIVE.contains(&key.name)) {
            (key.copy)(&mut self.running, prepared.config());
        }
        self.live.apply(prepared);
        tracing::info!(config.applied = ?live, "the configuration was reloaded");
        if !others.is_empty() {
            tracing::warn!(config.pending = ?others, "these keys change with the next start only");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Key, LIVE};

    #[test]
    fn what_can_change_are_keys() {
        assert!(LIVE.iter().all(|name| Key::find(name).is_some()));
    }
}
