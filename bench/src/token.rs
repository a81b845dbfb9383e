//! HS256 tokens, as the gateway expects them.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac};
use sha2::Sha256;

/// Signs tokens for the benchmark's sessions.
pub struct Signer {
    secret: String,
    expires_at: u64,
}

impl Signer {
    /// Tokens that live for an hour.
    pub fn new(secret: &str) -> Self {
        Self { secret: secret.into(), expires_at: crate::clock::now_us() / 1_000_000 + 3_600 }
    }

    /// A token for the user `sub`.
    pub fn token(&self, sub: usize) -> String {
        let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256","typ":"JWT"}"#);
        let claims = format!(
            r#"{{"sub":"{sub}","iss":"finvibe-user","iat":{},"exp":{}}}"#,
            self.expires_at - 3_600,
            self.expires_at
        );
        let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(claims));
        let mut mac =
            Hmac::<Sha256>::new_from_slice(self.secret.as_bytes()).expect("HMAC takes keys of any length");
        mac.update(signed.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()))
    }
}
