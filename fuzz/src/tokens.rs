//! Tokens: nothing unsigned is believed, what is signed is believed exactly as far as its claims go, and no byte of
//! a good token can be changed.

use super::Choices;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, crypto};
use serde_json::Value;
use std::io::Write;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tickbridge::clock::Now;
use tickbridge::config::{Jwt, Secret};
use tickbridge::edge::auth::Verifier;
use tickbridge::metrics::Metrics;
use tickbridge::session::{AuthFailure, Authenticator, Principal};

const SECRET: &str = "a secret of at least thirty-two bytes";
const NOW: Now = Now { mono: Duration::ZERO, unix_us: 1_700_000_000_000_000 };
const LEEWAY_SECS: i64 = 30;
const AUDIENCE: &str = "prices";

/// Longest subject, which becomes part of names in Redis.
const LONGEST_SUBJECT: usize = 128;

/// Judges by a secret and by three public keys, whose private halves nobody here has.
fn verifier() -> &'static Verifier {
    static VERIFIER: OnceLock<Verifier> = OnceLock::new();
    VERIFIER.get_or_init(|| {
        let pems = [
            include_str!("../../src/edge/auth/testdata/rsa.pem"),
            include_str!("../../src/edge/auth/testdata/p256.pem"),
            include_str!("../../src/edge/auth/testdata/ed25519.pem"),
        ];
        let files = pems.map(|pem| {
            let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
            file.write_all(pem.as_bytes()).expect("room for a key");
            file
        });
        let jwt = Jwt {
            secret: Some(Secret::new(SECRET.into())),
            public_keys: files.iter().map(|file| file.path().display().to_string()).collect(),
            audience: Some(AUDIENCE.into()),
            leeway: Duration::from_secs(LEEWAY_SECS as u64),
            ..Jwt::default()
        };
        Verifier::new(&jwt, Arc::new(Metrics::new("t"))).expect("usable keys")
    })
}

/// See the module.
pub fn check(input: &[u8]) {
    let mut choices = Choices(input);
    match choices.byte() % 3 {
        0 => {
            let token = String::from_utf8_lossy(choices.0);
            let failure = verifier().verify(&token, NOW).expect_err("nobody signed it");
            assert_eq!(verifier().verify(&token, NOW), Err(failure), "one result each");
        }
        1 => {
            let mut parts = choices.0.splitn(2, |&byte| byte == 0);
            let (header, claims) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            signed(header, claims);
        }
        _ => changed(&mut choices),
    }
}

fn token(header: &[u8], claims: &[u8], algorithm: Algorithm) -> String {
    let message = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
    let key = EncodingKey::from_secret(SECRET.as_bytes());
    let signature = crypto::sign(message.as_bytes(), &key, algorithm).expect("signs");
    format!("{message}.{signature}")
}

fn signed(header: &[u8], claims: &[u8]) {
    let read: Value = serde_json::from_slice(header).unwrap_or_default();
    let algorithm = match read["alg"].as_str() {
        Some("HS384") => Algorithm::HS384,
        Some("HS512") => Algorithm::HS512,
        _ => Algorithm::HS256,
    };
    let token = token(header, claims, algorithm);
    let result = verifier().verify(&token, NOW);
    assert_eq!(verifier().verify(&token, NOW), result, "one result each");
    let claims: Value = serde_json::from_slice(claims).unwrap_or_default();
    match result {
        Ok(principal) => {
            assert!(matches!(read["alg"].as_str(), Some("HS256" | "HS384" | "HS512")), "{read}");
            assert!(read["crit"].is_null(), "{read}");
            judged(&claims, &principal);
        }
        // These need another key than the one that signed.
        Err(AuthFailure::UnknownKey) => panic!("keys without a name are tried for every token: {read}"),
        Err(AuthFailure::Signature) => {
            let is_hmac = matches!(read["alg"].as_str(), Some("HS256" | "HS384" | "HS512"));
            assert!(!is_hmac, "a good signature is refused: {read}");
        }
        Err(_) => {}
    }
}

/// What must be so of claims that are believed.
fn judged(claims: &Value, principal: &Principal) {
    let now = NOW.unix_secs() as f64;
    let leeway = LEEWAY_SECS as f64;
    let expires = claims["exp"].as_f64().expect("an expiry");
    assert!(expires + leeway > now, "{claims}");
    let until = principal.expires_at.expect("an expiry");
    // Later than any clock of 64 bits goes, it is the last moment of that clock.
    let meant = (expires + leeway).min(i64::MAX as f64);
    assert!((until as f64 - meant).abs() <= 1.0 + meant.abs() * 1e-9, "{until}: {claims}");
    for since in ["nbf", "iat"] {
        let since = claims[since].as_f64();
        assert!(since.is_none_or(|since| since - leeway < now + 1.0), "{claims}");
    }
    assert_eq!(claims["iss"], "finvibe-user");
    let audience = &claims["aud"];
    let all = audience.as_array().map(Vec::as_slice).unwrap_or(std::slice::from_ref(audience));
    assert!(all.iter().any(|one| one == AUDIENCE), "{claims}");
    let subject = match &claims["sub"] {
        Value::String(text) => text.clone(),
        number => number.to_string(),
    };
    assert_eq!(*principal.user_id, *subject);
    let usable =
        !subject.is_empty() && subject.len() <= LONGEST_SUBJECT && !subject.contains(char::is_control);
    assert!(usable, "{subject:?}");
}

/// A good token with one character changed, left out or put in.
fn changed(choices: &mut Choices<'_>) {
    const HEADER: &[u8] = br#"{"alg":"HS256"}"#;
    const CLAIMS: &[u8] = br#"{"sub":"42","iss":"finvibe-user","aud":"prices","exp":1700000060}"#;
    static GOOD: OnceLock<String> = OnceLock::new();
    let good = GOOD.get_or_init(|| {
        let good = token(HEADER, CLAIMS, Algorithm::HS256);
        assert!(verifier().verify(&good, NOW).is_ok());
        good
    });
    let mut other = good.clone().into_bytes();
    while !choices.is_empty() {
        let at = choices.number() as usize % other.len().max(1);
        match choices.byte() % 3 {
            0 => other.insert(at, choices.byte()),
            1 if other.len() > 1 => drop(other.remove(at)),
            _ => other[at] = choices.byte(),
        }
    }
    let other = String::from_utf8_lossy(&other);
    if other != good.as_str() {
        assert!(verifier().verify(&other, NOW).is_err(), "believed: {other}");
    }
}
