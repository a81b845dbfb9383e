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

use crate::clock::Now;
use crate::config::Jwt;
use crate::metrics::Metrics;
use crate::session::{AuthFailure, Authenticator, Principal};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use claims::Rules;
use jsonwebtoken::Algorithm;
use keys::{Key, KeyError};
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::sync::Arc;

/// Longest token. Real ones have a few hundred characters, some identity providers' a few thousand.
pub const MAX_TOKEN_BYTES: usize = 8 * 1024;

/// Verifies tokens by the configured keys and rules.
pub struct Verifier {
    keys: Vec<Key>,
    rules: Rules,
    metrics: Arc<Metrics>,
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
        let secret = jwt.secret.iter().map(Key::from_secret);
        let public = jwt.public_keys.iter().map(|path| Key::from_pem_file(path));
        let keys = secret.chain(public).collect::<Result<_, _>>()?;
        Ok(Self { keys, rules: Rules::new(jwt), metrics })
    }

    fn judge(&self, token: &str, now: Now) -> Result<Principal, AuthFailure> {
        let (message, signature) = split(token).ok_or(AuthFailure::Malformed)?;
        let (header, payload) = message.split_once('.').ok_or(AuthFailure::Malformed)?;
        let header: Header = decode_json(header)?;
        if header.crit.is_some() {
            return Err(AuthFailure::Malformed);
        }
        let algorithm: Algorithm = header.alg.parse().map_err(|_| AuthFailure::Algorithm)?;
        let mut fitting = self.keys.iter().filter(|key| key.allows(algorithm)).peekable();
        fitting.peek().ok_or(AuthFailure::Algorithm)?;
        let mut fitting = fitting.filter(|key| key.is_meant_by(header.kid.as_deref())).peekable();
        fitting.peek().ok_or(AuthFailure::UnknownKey)?;
        if !fitting.any(|key| key.verifies(message, signature, algorithm)) {
            return Err(AuthFailure::Signature);
        }
        self.rules.judge(decode_json(payload)?, now)
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
