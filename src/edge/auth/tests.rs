use super::*;
use crate::config::Secret;
use crate::session::permission::{Grant, MAX_PATTERNS, Permissions};
use jsonwebtoken::{EncodingKey, crypto};
use serde_json::{Value, json};

const SECRET: &[u8] = b"a secret of at least thirty-two bytes";
const NOW: Now = Now { mono: std::time::Duration::ZERO, unix_us: 1_700_000_000_000_000 };
const NOW_SECS: i64 = NOW.unix_secs();

fn testdata(name: &str) -> String {
    format!("{}/src/edge/auth/testdata/{name}.pem", env!("CARGO_MANIFEST_DIR"))
}

fn private(name: &str) -> EncodingKey {
    let pem = std::fs::read(testdata(&format!("{name}.private"))).expect("readable");
    let key = match name {
        "rsa" => EncodingKey::from_rsa_pem(&pem),
        "ed25519" => EncodingKey::from_ed_pem(&pem),
        _ => EncodingKey::from_ec_pem(&pem),
    };
    key.expect("a key")
}

fn with_secret() -> Jwt {
    Jwt { secret: Some(Secret::new(String::from_utf8(SECRET.into()).expect("text"))), ..Jwt::default() }
}

fn verifier(jwt: &Jwt) -> Verifier {
    Verifier::new(jwt, Arc::new(Metrics::new("t"))).expect("usable keys")
}

fn good_claims() -> Value {
    json!({ "sub": "42", "iss": "finvibe-user", "exp": NOW_SECS + 60, "iat": NOW_SECS, "role": ["x"] })
}

/// Encodes header and claims as they stand, signed with whatever algorithm the key is given.
fn token(header: &Value, claims: &str, key: &EncodingKey, algorithm: Algorithm) -> String {
    let encode = |text: &str| URL_SAFE_NO_PAD.encode(text);
    let message = format!("{}.{}", encode(&header.to_string()), encode(claims));
    let signature = crypto::sign(message.as_bytes(), key, algorithm).expect("signs");
    format!("{message}.{signature}")
}

fn signed(claims: &Value) -> String {
    token(
        &json!({ "alg": "HS256" }),
        &claims.to_string(),
        &EncodingKey::from_secret(SECRET),
        Algorithm::HS256,
    )
}

fn result(jwt: &Jwt, token: &str) -> Result<String, AuthFailure> {
    verifier(jwt).verify(token, NOW).map(|principal| principal.user_id.to_string())
}

#[test]
fn a_good_token_proves_its_subject_until_its_expiry_and_the_leeway() {
    let principal = verifier(&with_secret()).verify(&signed(&good_claims()), NOW);
    assert_eq!(
        principal,
        Ok(Principal {
            user_id: "42".into(),
            expires_at: Some(NOW_SECS + 60 + 30),
            permissions: Permissions::default()
        })
    );
}

#[test]
fn a_secret_allows_the_three_hmac_algorithms() {
    let key = EncodingKey::from_secret(SECRET);
    for (name, algorithm) in
        [("HS256", Algorithm::HS256), ("HS384", Algorithm::HS384), ("HS512", Algorithm::HS512)]
    {
        let header = json!({ "alg": name, "typ": "JWT", "kid": "whatever" });
        let token = token(&header, &good_claims().to_string(), &key, algorithm);
        assert_eq!(result(&with_secret(), &token).as_deref(), Ok("42"), "{name}");
    }
}

/// Each forgery that trusting the token's own header would let pass.
#[test]
fn the_algorithm_is_never_taken_from_the_token() {
    let key = EncodingKey::from_secret(SECRET);
    let claims = good_claims().to_string();
    let good = signed(&good_claims());
    let (message, signature) = good.rsplit_once('.').expect("segments");
    let forged = |alg: &str, key: &EncodingKey| token(&json!({ "alg": alg }), &claims, key, Algorithm::HS256);
    let unsigned = |alg: &str| {
        let token = forged(alg, &key);
        token[..=token.rfind('.').expect("segments")].to_owned()
    };
    let public_pem = std::fs::read(testdata("rsa")).expect("readable");
    for (what, token, failure) in [
        ("none", unsigned("none"), AuthFailure::Algorithm),
        ("None", unsigned("None"), AuthFailure::Algorithm),
        ("nOnE", unsigned("nOnE"), AuthFailure::Algorithm),
        ("none with a signature", forged("none", &key), AuthFailure::Algorithm),
        ("hs256", forged("hs256", &key), AuthFailure::Algorithm),
        ("RS256 over an HMAC", forged("RS256", &key), AuthFailure::Algorithm),
        ("PS256 over an HMAC", forged("PS256", &key), AuthFailure::Algorithm),
        ("no signature", unsigned("HS256"), AuthFailure::Signature),
        ("another algorithm's signature", forged("HS512", &key), AuthFailure::Signature),
        ("the empty key", forged("HS256", &EncodingKey::from_secret(b"")), AuthFailure::Signature),
        ("another key", forged("HS256", &EncodingKey::from_secret(&public_pem)), AuthFailure::Signature),
        ("a signature cut", good[..good.len() - 1].into(), AuthFailure::Signature),
        ("a signature too long", format!("{good}AAAA"), AuthFailure::Signature),
        ("two segments", message.into(), AuthFailure::Malformed),
        ("a fourth segment", format!("{good}.{signature}"), AuthFailure::Malformed),
        ("an empty fourth segment", format!("{good}."), AuthFailure::Malformed),
        ("a blank before", format!(" {good}"), AuthFailure::Malformed),
        ("a blank behind", format!("{good} "), AuthFailure::Malformed),
        ("a line break", format!("{good}\n"), AuthFailure::Malformed),
        ("padding", format!("{good}="), AuthFailure::Malformed),
        ("nothing", String::new(), AuthFailure::Malformed),
        ("two dots", "..".into(), AuthFailure::Malformed),
        ("not base64url JSON", "AAAA.AAAA.AAAA".into(), AuthFailure::Malformed),
        ("too long", format!("{good}{}", "A".repeat(MAX_TOKEN_BYTES)), AuthFailure::Malformed),
    ] {
        assert_eq!(result(&with_secret(), &token), Err(failure), "{what}");
    }
    assert_eq!(result(&with_secret(), &good).as_deref(), Ok("42"));
}

#[test]
fn headers_that_cannot_be_understood_are_malformed() {
    let key = EncodingKey::from_secret(SECRET);
    for header in [
        json!({}),
        json!({ "alg": 7 }),
        json!({ "alg": null }),
        json!({ "alg": "HS256", "kid": 7 }),
        json!({ "alg": "HS256", "crit": ["b64"], "b64": false }),
        json!(["HS256"]),
    ] {
        let token = token(&header, &good_claims().to_string(), &key, Algorithm::HS256);
        assert_eq!(result(&with_secret(), &token), Err(AuthFailure::Malformed), "{header}");
    }
}

#[test]
fn a_public_key_allows_the_algorithms_of_its_own_kind() {
    for (name, alg, algorithm) in [
        ("rsa", "RS256", Algorithm::RS256),
        ("rsa", "RS384", Algorithm::RS384),
        ("rsa", "RS512", Algorithm::RS512),
        ("p256", "ES256", Algorithm::ES256),
        ("p384", "ES384", Algorithm::ES384),
        ("ed25519", "EdDSA", Algorithm::EdDSA),
    ] {
        let token = token(&json!({ "alg": alg }), &good_claims().to_string(), &private(name), algorithm);
        for configured in ["rsa", "p256", "p384", "ed25519"] {
            let jwt = Jwt { public_keys: vec![testdata(configured)], ..Jwt::default() };
            let expected = if configured == name { Ok("42".into()) } else { Err(AuthFailure::Algorithm) };
            assert_eq!(result(&jwt, &token), expected, "{alg} with {configured}");
        }
        let public_keys = ["rsa", "p256", "p384", "ed25519"].map(testdata).into();
        assert_eq!(
            result(&Jwt { public_keys, ..with_secret() }, &token).as_deref(),
            Ok("42"),
            "{alg} with all"
        );
    }
}

/// The text of a public key is known to everybody; as an HMAC secret it must prove nothing.
#[test]
fn a_public_key_is_never_taken_for_a_secret() {
    let pem = std::fs::read(testdata("rsa")).expect("readable");
    let forged = token(
        &json!({ "alg": "HS256" }),
        &good_claims().to_string(),
        &EncodingKey::from_secret(&pem),
        Algorithm::HS256,
    );
    let public_keys = vec![testdata("rsa")];
    let jwt = Jwt { public_keys: public_keys.clone(), ..Jwt::default() };
    assert_eq!(result(&jwt, &forged), Err(AuthFailure::Algorithm));
    assert_eq!(result(&Jwt { public_keys, ..with_secret() }, &forged), Err(AuthFailure::Signature));
}

#[test]
fn keys_that_cannot_be_used_are_named() {
    let empty = Jwt { secret: Some(Secret::new(String::new())), ..Jwt::default() };
    let metrics = || Arc::new(Metrics::new("t"));
    assert!(matches!(Verifier::new(&empty, metrics()), Err(KeyError::EmptySecret)));
    for unusable in ["p521", "ed448", "rsa.private", "p256.private", "ed25519.private"] {
        let jwt = Jwt { public_keys: vec![testdata(unusable)], ..Jwt::default() };
        let refused = Verifier::new(&jwt, metrics()).err().expect(unusable);
        assert!(matches!(&refused, KeyError::Unusable { path } if path.contains(unusable)), "{refused}");
    }
    let jwt = Jwt { public_keys: vec![testdata("none")], ..Jwt::default() };
    assert!(matches!(Verifier::new(&jwt, metrics()), Err(KeyError::Unreadable { .. })));
}

#[test]
fn without_any_key_no_algorithm_is_allowed() {
    assert_eq!(result(&Jwt::default(), &signed(&good_claims())), Err(AuthFailure::Algorithm));
}

#[test]
fn each_claim_has_its_own_failure() {
    let jwt = Jwt { audience: Some("prices".into()), ..with_secret() };
    let past = NOW_SECS - 31;
    for (claim, value, expected) in [
        ("exp", json!(NOW_SECS - 29), Ok("42")),
        ("exp", json!(NOW_SECS as f64 - 28.5), Ok("42")),
        ("exp", json!(u64::MAX), Ok("42")),
        ("exp", json!(NOW_SECS - 30), Err(AuthFailure::Expired)),
        ("exp", json!(past), Err(AuthFailure::Expired)),
        ("exp", json!(0), Err(AuthFailure::Expired)),
        ("exp", json!(i64::MIN), Err(AuthFailure::Expired)),
        ("exp", json!("1900000000"), Err(AuthFailure::Expired)),
        ("exp", Value::Null, Err(AuthFailure::Expired)),
        ("nbf", json!(NOW_SECS + 30), Ok("42")),
        ("nbf", json!(NOW_SECS + 31), Err(AuthFailure::NotYetValid)),
        ("nbf", json!("soon"), Err(AuthFailure::NotYetValid)),
        ("iat", json!(NOW_SECS + 31), Err(AuthFailure::NotYetValid)),
        ("iat", Value::Null, Ok("42")),
        ("iss", json!("somebody"), Err(AuthFailure::Issuer)),
        ("iss", json!(["finvibe-user"]), Err(AuthFailure::Issuer)),
        ("iss", Value::Null, Err(AuthFailure::Issuer)),
        ("aud", json!("prices"), Ok("42")),
        ("aud", json!(["other", "prices"]), Ok("42")),
        ("aud", json!(["other"]), Err(AuthFailure::Audience)),
        ("aud", json!("price"), Err(AuthFailure::Audience)),
        ("aud", Value::Null, Err(AuthFailure::Audience)),
        ("sub", json!(7), Ok("7")),
        ("sub", json!(u64::MAX), Ok("18446744073709551615")),
        ("sub", json!("a".repeat(128)), Ok(&*"a".repeat(128))),
        ("sub", json!("a".repeat(129)), Err(AuthFailure::Subject)),
        ("sub", json!(""), Err(AuthFailure::Subject)),
        ("sub", json!("4\n2"), Err(AuthFailure::Subject)),
        ("sub", json!("4\u{0}2"), Err(AuthFailure::Subject)),
        ("sub", json!("4\u{85}2"), Err(AuthFailure::Subject)),
        ("sub", json!(1.5), Err(AuthFailure::Subject)),
        ("sub", json!(true), Err(AuthFailure::Subject)),
        ("sub", json!(["42"]), Err(AuthFailure::Subject)),
        ("sub", Value::Null, Err(AuthFailure::Subject)),
    ] {
        let mut claims = good_claims();
        claims["aud"] = json!("prices");
        claims[claim] = value.clone();
        if value.is_null() {
            claims.as_object_mut().expect("an object").remove(claim);
        }
        let expected = expected.map(str::to_owned);
        assert_eq!(result(&jwt, &signed(&claims)), expected, "{claim}: {value}");
    }
}

#[test]
fn signed_nonsense_is_malformed() {
    let key = EncodingKey::from_secret(SECRET);
    for claims in ["", "null", "[]", "7", "{\"sub\":1,\"sub\":2}", "{\"exp\":"] {
        let token = token(&json!({ "alg": "HS256" }), claims, &key, Algorithm::HS256);
        assert_eq!(result(&with_secret(), &token), Err(AuthFailure::Malformed), "{claims:?}");
    }
}

#[test]
fn each_failure_is_counted_under_its_reason() {
    let metrics = Arc::new(Metrics::new("t"));
    let verifier = Verifier::new(&with_secret(), Arc::clone(&metrics)).expect("usable keys");
    assert!(verifier.verify("nonsense", NOW).is_err());
    assert!(verifier.verify(&signed(&good_claims()), NOW).is_ok());
    let text = metrics.render();
    assert!(text.contains("t_auth_failures_total{reason=\"malformed\"} 1"), "{text}");
    let n_counted =
        text.lines().filter(|l| l.starts_with("t_auth_failures_total{") && l.ends_with(" 1")).count();
    assert_eq!(n_counted, 1);
}

#[test]
fn the_configured_claim_decides_what_may_be_seen() {
    let limited = Jwt { topics_claim: Some("topics".into()), ..with_secret() };
    let judged = |jwt: &Jwt, claim: Option<Value>| {
        let mut claims = good_claims();
        if let Some(claim) = claim {
            claims["topics"] = claim;
        }
        verifier(jwt).verify(&signed(&claims), NOW).map(|principal| principal.permissions)
    };
    let only = |patterns: &[&str]| Permissions {
        topics: Grant::read(patterns).expect("readable"),
        ..Permissions::default()
    };
    assert_eq!(judged(&limited, Some(json!(["5", "7..9", -3]))), Ok(only(&["5", "7..9", "-3"])));
    assert_eq!(judged(&limited, Some(json!("*"))), Ok(only(&["*"])));
    assert_eq!(judged(&limited, Some(json!(5))), Ok(only(&["5"])));
    assert_eq!(judged(&limited, Some(json!([]))), Ok(only(&[])));
    // Whoever forgets the claim must not see more than who has it.
    assert_eq!(judged(&limited, None), Ok(only(&[])));
    assert_eq!(judged(&with_secret(), Some(json!({ "not": "ours" }))), Ok(Permissions::default()));
    let too_many: Vec<_> = (0..=MAX_PATTERNS).collect();
    for bad in [json!(null), json!({}), json!([["5"]]), json!(["5", null]), json!(["quote:5"]), json!([1.5])]
    {
        assert_eq!(judged(&limited, Some(bad.clone())), Err(AuthFailure::Permissions), "{bad}");
    }
    assert_eq!(judged(&limited, Some(json!(too_many))), Err(AuthFailure::Permissions));
}
