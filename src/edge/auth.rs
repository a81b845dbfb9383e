//! Judges tokens: JSON Web Tokens signed with a shared secret or with one of the configured key pairs.
//!
//! Invariants:
//! - The algorithm is decided by the key, never by the token: a key is only ever tried with the
//!   algorithms of its own kind, so an HS token never meets a public key and `none` meets nothing.
//! - Each token has one fixed result, whatever else is wrong with it. The order is: shape, algorithm, key,
//!   signature, then the claims; nothing that isn't signed is looked at beyond what finds the key.
//!
//! Not here: where a request carries its token (`edge::credentials`).

pub mod keys;

mod claims;
mod fetched;
mod jwks;

use crate::clock::Now;
use crate::config::Jwt;
use crate::metrics::Metrics;
use crate::session::{AuthFailure, Authenticator, Principal};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use claims::Rules;
use fetched::Fetched;
use jsonwebtoken::Algorithm;
use jwks::{KeySet, Pace};
use keys::{Key, KeyError};
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::sync::{Arc, PoisonError, RwLock};

/// Longest token. Real ones have a few hundred characters, some identity providers' a few thousand.
pub const MAX_TOKEN_BYTES: usize = 8 * 1024;

/// Verifies tokens by the configured keys and rules.
pub struct Verifier {
    configured: RwLock<Keys>,
    /// Keys from the network come and go; whoever judges a token takes what there is.
    fetched: RwLock<Fetched>,
    key_set: Option<KeySet>,
    rules: Rules,
    metrics: Arc<Metrics>,
}

/// The keys of the configuration, loaded. Cheap to clone.
#[derive(Clone)]
pub struct Keys(Arc<[Key]>);

impl Keys {
    /// Loads the secret and the public keys.
    ///
    /// # Errors
    /// Each key that can't be used.
    pub fn load(jwt: &Jwt) -> Result<Self, Vec<KeyError>> {
        let secret = jwt.secret.iter().map(Key::from_secret);
        let all = secret.chain(jwt.public_keys.iter().map(|path| Key::from_pem_file(path)));
        let (mut keys, mut errors) = (Vec::new(), Vec::new());
        for key in all {
            match key {
                Ok(key) => keys.push(key),
                Err(error) => errors.push(error),
            }
        }
        if errors.is_empty() { Ok(Self(keys.into())) } else { Err(errors) }
    }
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    /// Extensions that must be understood; we know none.
    crit: Option<IgnoredAny>,
}

impl Verifier {
    /// Loads the configured keys.
    ///
    /// # Errors
    /// The first key that can't be used.
    pub fn new(jwt: &Jwt, metrics: Arc<Metrics>) -> Result<Self, KeyError> {
        let configured = Keys::load(jwt).map_err(|mut errors| errors.swap_remove(0))?;
        let key_set = jwt.jwks_url.iter().map(|url| KeySet::new(url, Pace::USUAL).ok_or(KeyError::Url));
        let key_set = key_set.collect::<Result<Vec<_>, _>>()?.pop();
        let (configured, fetched) = (RwLock::new(configured), RwLock::default());
        Ok(Self { configured, fetched, key_set, rules: Rules::new(jwt), metrics })
    }

    /// Judges by other keys from now on, and fetches the key set as soon as its pace allows. Sessions whose token
    /// was judged before are left alone until it expires.
    pub fn replace(&self, keys: Keys) {
        *self.configured.write().unwrap_or_else(PoisonError::into_inner) = keys;
        if let Some(key_set) = &self.key_set {
            key_set.want();
        }
    }

    /// Keeps the keys of the configured key set fresh, until dropped.
    ///
    /// # Cancel safety
    /// A fetch under way is given up; the keys stay as they are.
    pub async fn keep_keys(&self) {
        let Some(key_set) = &self.key_set else { return std::future::pending().await };
        key_set
            .keep_fetching(|fetched| match fetched {
                Ok(set) => {
                    let keys = self.fetched().followed_by(&set, Now::read().mono);
                    self.metrics.edge.keys_fetched(keys.n_keys());
                    *self.fetched.write().unwrap_or_else(PoisonError::into_inner) = keys;
                }
                Err(error) => {
                    self.metrics.edge.keys_not_fetched();
                    tracing::warn!(%error, "can't fetch the key set of auth.jwt.jwks_url");
                }
            })
            .await
    }

    /// Why no token can be judged at the moment, if so.
    pub fn lack(&self) -> Option<&'static str> {
        let lacking = self.key_set.is_some() && self.configured().0.is_empty() && self.fetched().is_empty();
        lacking.then_some("no key could be fetched from auth.jwt.jwks_url")
    }

    fn configured(&self) -> Keys {
        self.configured.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn fetched(&self) -> Fetched {
        self.fetched.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn judge(&self, token: &str, now: Now) -> Result<Principal, AuthFailure> {
        let (message, signature) = split(token).ok_or(AuthFailure::Malformed)?;
        let (header, payload) = message.split_once('.').ok_or(AuthFailure::Malformed)?;
        let header: Header = decode_json(header)?;
        if header.crit.is_some() {
            return Err(AuthFailure::Malformed);
        }
        let algorithm: Algorithm = header.alg.parse().map_err(|_| AuthFailure::Algorithm)?;
        let (configured, fetched) = (self.configured(), self.fetched());
        let all = configured.0.iter().chain(fetched.keys());
        let mut allowing = all.filter(|key| key.allows(algorithm)).peekable();
        if allowing.peek().is_none() {
            return Err(self.without_key(&fetched, AuthFailure::Algorithm));
        }
        let mut meant = allowing.filter(|key| key.is_meant_by(header.kid.as_deref())).peekable();
        if meant.peek().is_none() {
            return Err(self.without_key(&fetched, AuthFailure::UnknownKey));
        }
        if !meant.any(|key| key.verifies(message, signature, algorithm)) {
            return Err(AuthFailure::Signature);
        }
        self.rules.judge(decode_json(payload)?, now)
    }

    /// The failure of a token that no key may judge. Another key may be on its way.
    fn without_key(&self, fetched: &Fetched, failure: AuthFailure) -> AuthFailure {
        match &self.key_set {
            Some(_) if fetched.is_empty() => AuthFailure::UnknownKey,
            Some(key_set) => {
                key_set.want();
                failure
            }
            None => failure,
        }
    }
}

impl Authenticator for Verifier {
    fn verify(&self, token: &str, now: Now) -> Result<Principal, AuthFailure> {
        self.judge(token, now).inspect_err(|&failure| self.metrics.edge.auth_failed(failure))
    }
}

/// The signed part and the signature of three segments of base64url, the last of which may be empty.
fn split(token: &str) -> Option<(&str, &str)> {
    let base64url = |segment: &str| segment.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    let mut segments = token.split('.');
    let (header, payload, signature) = (segments.next()?, segments.next()?, segments.next()?);
    let shaped = token.len() <= MAX_TOKEN_BYTES
        && segments.next().is_none()
        && !header.is_empty()
        && !payload.is_empty()
        && [header, payload, signature].into_iter().all(base64url);
    shaped.then(|| (&token[..header.len() + 1 + payload.len()], signature))
}

fn decode_json<T: for<'de> Deserialize<'de>>(segment: &str) -> Result<T, AuthFailure> {
    let bytes = URL_SAFE_NO_PAD.decode(segment).map_err(|_| AuthFailure::Malformed)?;
    serde_json::from_slice(&bytes).map_err(|_| AuthFailure::Malformed)
}

#[cfg(test)]
mod tests;
