//! What takes another configuration while the gateway runs.
//!
//! Invariant: a configuration is taken over whole or not at all; everything that can fail is done before anything
//! changes.
//!
//! Not here: when it is read again and what is logged (`cli::reload`).

use crate::config::Config;
use crate::config::live::LiveLimits;
use crate::edge::auth::{Keys, Verifier};
use crate::edge::origin::{LiveOrigins, Origins};
use crate::metrics::Metrics;
use std::error::Error;
use std::sync::Arc;

/// The parts that can change.
#[derive(Clone)]
pub struct Live {
    pub(super) limits: Arc<LiveLimits>,
    pub(super) origins: Arc<LiveOrigins>,
    pub(super) verifier: Arc<Verifier>,
    pub(super) metrics: Arc<Metrics>,
}

/// A configuration whose files have been read.
pub struct Prepared {
    config: Config,
    origins: Origins,
    keys: Keys,
}

impl Prepared {
    /// Reads what `config` names.
    ///
    /// # Errors
    /// Everything that can't be used.
    pub fn new(config: Config) -> Result<Self, Vec<String>> {
        let origins = Origins::parse(&config.listen.allowed_origins);
        match (origins, Keys::load(&config.auth.jwt)) {
            (Ok(origins), Ok(keys)) => Ok(Self { config, origins, keys }),
            (origins, keys) => {
                let origins = origins.err().map(|error| format!("listen.allowed_origins: {error}"));
                let keys = keys.err().unwrap_or_default();
                let keys = keys.iter().map(|error| {
                    let why = error.source().map_or_else(String::new, |why| format!(": {why}"));
                    format!("auth.jwt: {error}{why}")
                });
                Err(origins.into_iter().chain(keys).collect())
            }
        }
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }
}

impl Live {
    /// Takes the changes over.
    pub fn apply(&self, prepared: Prepared) {
        let Prepared { config, origins, keys } = prepared;
        self.limits.set(&config);
        self.origins.replace(origins);
        self.verifier.replace(keys);
        self.metrics.process.reloads.increment(1);
    }

    /// Counts a configuration that had problems.
    pub fn refused(&self) {
        self.metrics.process.refused_reloads.increment(1);
    }
}
