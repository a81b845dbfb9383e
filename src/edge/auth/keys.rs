//! The keys that tokens are verified with, each with the algorithms of its own kind.

use crate::config::{Secret, file};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};

/// Algorithms of a shared secret.
const HMAC: &[Algorithm] = &[Algorithm::HS256, Algorithm::HS384, Algorithm::HS512];

/// Algorithms of an RSA key.
const RSA: &[Algorithm] = &[Algorithm::RS256, Algorithm::RS384, Algorithm::RS512];

/// The algorithm of an Ed25519 key.
const EDDSA: &[Algorithm] = &[Algorithm::EdDSA];

/// Shortest RSA modulus in a fetched set, in bytes: 2,048 bits, the least that RFC 7518 allows.
const MIN_RSA_MODULUS: usize = 256;

/// Length of an uncompressed point on the curve P-256; a key on another curve has another.
const P256_POINT: usize = 65;

/// The same on P-384.
const P384_POINT: usize = 97;

/// Length of an Ed25519 key.
const ED25519_KEY: usize = 32;

/// Why a configured key can't be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The secret is empty; anybody could sign with it.
    #[error("the shared secret is empty")]
    EmptySecret,
    /// The file can't be read.
    #[error("can't read the public key {path}")]
    Unreadable {
        /// As configured.
        path: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// The key set's URL can't be used.
    #[error("the key set's URL is neither https nor http")]
    Url,
    /// The file holds no key of a kind that we know.
    #[error("{path} holds no public key (PEM) for RS256/384/512, ES256/384 or EdDSA")]
    Unusable {
        /// As configured.
        path: String,
    },
}

/// One key.
pub struct Key {
    /// The `kid` of tokens signed with it; a key without one is tried for every token of its kind.
    id: Option<String>,
    algorithms: &'static [Algorithm],
    decoding: DecodingKey,
}

impl Key {
    /// The key of a shared secret.
    ///
    /// # Errors
    /// An empty secret.
    pub fn from_secret(secret: &Secret) -> Result<Self, KeyError> {
        match secret.expose().as_bytes() {
            [] => Err(KeyError::EmptySecret),
            bytes => Ok(Self { id: None, algorithms: HMAC, decoding: DecodingKey::from_secret(bytes) }),
        }
    }

    /// The public key in a PEM file.
    ///
    /// # Errors
    /// A file that can't be read, or that holds something else.
    pub fn from_pem_file(path: &str) -> Result<Self, KeyError> {
        let pem = file::read(path.as_ref())
            .map_err(|source| KeyError::Unreadable { path: path.to_owned(), source })?;
        Self::from_pem(&pem).ok_or_else(|| KeyError::Unusable { path: path.to_owned() })
    }

    fn from_pem(pem: &[u8]) -> Option<Self> {
        // A private key parses as a key too, but has no business on a verifying host.
        if pem.windows(11).any(|w| w == b"PRIVATE KEY") {
            return None;
        }
        let (algorithms, decoding) = if let Ok(key) = DecodingKey::from_rsa_pem(pem) {
            (RSA, key)
        } else if let Ok(key) = DecodingKey::from_ec_pem(pem) {
            (curve(key.as_bytes())?, key)
        } else {
            let key = DecodingKey::from_ed_pem(pem).ok()?;
            ((key.as_bytes().len() == ED25519_KEY).then_some(EDDSA)?, key)
        };
        Some(Self { id: None, algorithms, decoding })
    }

    /// The key of a JSON Web Key, if it is a public one for signatures. A symmetric key is none: whoever could
    /// read the set could sign.
    pub fn from_jwk(value: &serde_json::Value) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(value.clone()).ok()?;
        let mut algorithms = match &jwk.algorithm {
            AlgorithmParameters::RSA(rsa) => {
                let modulus = URL_SAFE_NO_PAD.decode(&rsa.n).ok()?;
                (modulus.len() >= MIN_RSA_MODULUS).then_some(RSA)?
            }
            AlgorithmParameters::EllipticCurve(_) => curve(DecodingKey::from_jwk(&jwk).ok()?.as_bytes())?,
            AlgorithmParameters::OctetKeyPair(pair) => {
                let length = URL_SAFE_NO_PAD.decode(&pair.x).ok()?.len();
                (pair.curve == EllipticCurve::Ed25519 && length == ED25519_KEY).then_some(EDDSA)?
            }
            AlgorithmParameters::OctetKey(_) => return None,
        };
        if jwk.common.public_key_use.as_ref().is_some_and(|usage| *usage != PublicKeyUse::Signature) {
            return None;
        }
        if let Some(alg) = value.get("alg") {
            let only =
                algorithms.iter().find(|own| alg.as_str().and_then(|a| a.parse().ok()) == Some(**own))?;
            algorithms = std::slice::from_ref(only);
        }
        let decoding = DecodingKey::from_jwk(&jwk).ok()?;
        Some(Self { id: jwk.common.key_id, algorithms, decoding })
    }

    /// Whether the key is of the algorithm's kind.
    pub fn allows(&self, algorithm: Algorithm) -> bool {
        self.algorithms.contains(&algorithm)
    }

    /// Whether a token with this `kid` may be signed with the key.
    pub fn is_meant_by(&self, kid: Option<&str>) -> bool {
        match (&self.id, kid) {
            (Some(id), Some(kid)) => id == kid,
            _ => true,
        }
    }

    /// Whether the signature fits.
    pub fn verifies(&self, message: &str, signature: &str, algorithm: Algorithm) -> bool {
        self.allows(algorithm)
            && jsonwebtoken::crypto::verify(signature, message.as_bytes(), &self.decoding, algorithm)
                .unwrap_or(false)
    }
}

/// The one algorithm of a point's curve.
fn curve(point: &[u8]) -> Option<&'static [Algorithm]> {
    match point.len() {
        P256_POINT => Some(&[Algorithm::ES256]),
        P384_POINT => Some(&[Algorithm::ES384]),
        _ => None,
    }
}
