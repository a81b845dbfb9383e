//! Tokens, good ones and broken ones.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

/// The secret that test gateways are configured with.
pub const SECRET: &str = "a secret for tests, longer than thirty-two bytes";

/// The issuer that the configuration expects by default.
pub const ISSUER: &str = "finvibe-user";

/// Seconds since the Unix epoch.
pub fn unix_secs() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64
}

/// Claims of a good token for `user`, valid for an hour.
pub fn claims(user: &str) -> Value {
    json!({ "sub": user, "iss": ISSUER, "iat": unix_secs(), "exp": unix_secs() + 3_600 })
}

/// A good token for `user`.
pub fn token(user: &str) -> String {
    signed(&claims(user))
}

/// A token for `user` that expires in `secs` from now, before now where negative.
pub fn expiring(user: &str, secs: i64) -> String {
    let mut claims = claims(user);
    claims["exp"] = json!(unix_secs() + secs);
    signed(&claims)
}

/// Any claims, signed with HS256 and the right secret.
pub fn signed(claims: &Value) -> String {
    signed_with(Algorithm::HS256, SECRET, claims)
}

/// Any claims, algorithm and secret.
pub fn signed_with(algorithm: Algorithm, secret: &str, claims: &Value) -> String {
    let key = EncodingKey::from_secret(secret.as_bytes());
    jsonwebtoken::encode(&Header::new(algorithm), claims, &key).unwrap()
}

/// A token put together by hand: any header, any claims, any signature.
pub fn forged(header: &Value, claims: &Value, signature: &[u8]) -> String {
    let part = |json: &Value| URL_SAFE_NO_PAD.encode(json.to_string());
    format!("{}.{}.{}", part(header), part(claims), URL_SAFE_NO_PAD.encode(signature))
}
