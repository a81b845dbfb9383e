//! What a signed token must say to be good.

use crate::clock::Now;
use crate::config::Jwt;
use crate::session::permission::{Grant, Pattern, Permissions};
use crate::session::{AuthFailure, Principal};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::sync::Arc;

/// Longest subject. It becomes part of watcher members, so its size is multiplied by the instruments that a
/// user watches.
const MAX_SUBJECT_BYTES: usize = 128;

/// The claims that are judged; the rest is ignored.
#[derive(Deserialize)]
pub struct Claims {
    exp: Option<Value>,
    nbf: Option<Value>,
    iat: Option<Value>,
    iss: Option<Value>,
    aud: Option<Value>,
    sub: Option<Value>,
    /// Among them those whose names are configured.
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// What is demanded of the claims.
pub struct Rules {
    issuer: String,
    audience: Option<String>,
    leeway_secs: i64,
    topics_claim: Option<String>,
    streams_claim: Option<String>,
}

impl Rules {
    /// The configured rules.
    pub fn new(jwt: &Jwt) -> Self {
        Self {
            issuer: jwt.issuer.clone(),
            audience: jwt.audience.clone(),
            leeway_secs: i64::try_from(jwt.leeway.as_secs()).unwrap_or(i64::MAX),
            topics_claim: jwt.topics_claim.clone(),
            streams_claim: jwt.streams_claim.clone(),
        }
    }

    /// Judges the claims of a token whose signature fits.
    ///
    /// # Errors
    /// The first rule that they break, in the order of the code.
    pub fn judge(&self, claims: Claims, now: Now) -> Result<Principal, AuthFailure> {
        let now = now.unix_secs();
        let expires_at = claims.exp.as_ref().and_then(numeric_date).ok_or(AuthFailure::Expired)?;
        let expires_at = expires_at.saturating_add(self.leeway_secs);
        if expires_at <= now {
            return Err(AuthFailure::Expired);
        }
        for since in [&claims.nbf, &claims.iat].into_iter().flatten() {
            let since = numeric_date(since).ok_or(AuthFailure::NotYetValid)?;
            if since.saturating_sub(self.leeway_secs) > now {
                return Err(AuthFailure::NotYetValid);
            }
        }
        if claims.iss.as_ref().and_then(Value::as_str) != Some(&self.issuer) {
            return Err(AuthFailure::Issuer);
        }
        if let Some(audience) = &self.audience {
            let named = match &claims.aud {
                Some(Value::Array(all)) => all.iter().any(|one| one.as_str() == Some(audience)),
                one => one.as_ref().and_then(Value::as_str) == Some(audience),
            };
            if !named {
                return Err(AuthFailure::Audience);
            }
        }
        let user_id = claims.sub.and_then(subject).ok_or(AuthFailure::Subject)?;
        let permissions = self.permissions(&claims.others).ok_or(AuthFailure::Permissions)?;
        Ok(Principal { user_id, expires_at: Some(expires_at), permissions })
    }

    fn permissions(&self, claims: &Map<String, Value>) -> Option<Permissions> {
        Some(Permissions {
            topics: granted(self.topics_claim.as_deref(), claims)?,
            streams: granted(self.streams_claim.as_deref(), claims)?,
        })
    }
}

/// What the claim `name` grants, or everything where none is configured. A token that lacks the claim is granted
/// nothing: whoever forgets it must not see more than who has it. `None` if it can't be read.
fn granted<P: Pattern>(name: Option<&str>, claims: &Map<String, Value>) -> Option<Grant<P>> {
    let Some(name) = name else { return Some(Grant::All) };
    match claims.get(name) {
        None => Some(Grant::none()),
        Some(Value::Array(patterns)) => {
            Grant::read(patterns.iter().map(pattern).collect::<Option<Vec<_>>>()?)
        }
        Some(one) => Grant::read([pattern(one)?]),
    }
}

/// Ids may stand as JSON numbers too.
fn pattern(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => Some(text.into()),
        Value::Number(number) if number.is_i64() => Some(number.to_string().into()),
        _ => None,
    }
}

/// Seconds since the Unix epoch; a fraction is allowed and cut off.
fn numeric_date(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| value.as_f64().map(|secs| secs.floor() as i64))
}

fn subject(value: Value) -> Option<Arc<str>> {
    let text = match value {
        Value::String(text) => text,
        Value::Number(number) if number.is_i64() || number.is_u64() => number.to_string(),
        _ => return None,
    };
    let usable = !text.is_empty() && text.len() <= MAX_SUBJECT_BYTES && !text.contains(char::is_control);
    usable.then(|| text.into())
}
