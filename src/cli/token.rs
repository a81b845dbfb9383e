//! `tickbridge token`: a token for development, signed with the configured secret.

use std::time::Duration;

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde::Serialize;

use super::{ConfigArgs, Failure};
use crate::clock::Now;
use crate::config::load::Purpose;
use crate::config::{Jwt, Secret};

/// Print a development token (HS256), signed with auth.jwt.secret.
///
/// Issuer and audience are the configured ones, so that a gateway with the same configuration accepts it.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Whose token it is: the claim "sub".
    #[arg(long)]
    sub: String,
    /// How long it is valid, such as 90s, 1h or 30days.
    #[arg(long, default_value = "1h", value_parser = humantime::parse_duration)]
    ttl: Duration,
    #[command(flatten)]
    config: ConfigArgs,
}

#[derive(Serialize)]
struct Claims<'a> {
    sub: &'a str,
    iss: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    aud: Option<&'a str>,
    iat: i64,
    exp: i64,
}

/// Runs the command.
///
/// # Errors
/// There is no secret, or the configuration has problems.
pub fn run(args: &Args) -> Result<(), Failure> {
    let loaded = args.config.load(Purpose::Look)?;
    let jwt = &loaded.config.auth.jwt;
    let Some(secret) = &jwt.secret else {
        let remedy = "there is no secret to sign with; set auth.jwt.secret, for example by the environment \
                      variable TICKBRIDGE_AUTH__JWT__SECRET";
        return Err(Failure::Misused(remedy.into()));
    };
    let token = signed(jwt, secret, &args.sub, args.ttl, Now::read())?;
    super::print(&format!("{token}\n"))
}

fn signed(jwt: &Jwt, secret: &Secret, sub: &str, ttl: Duration, now: Now) -> Result<String, Failure> {
    let iat = now.unix_secs();
    let exp = i64::try_from(ttl.as_secs()).ok().and_then(|ttl| iat.checked_add(ttl));
    let exp = exp.filter(|exp| *exp > iat).ok_or_else(|| {
        Failure::Misused("--ttl must be a second at least and within some billion years; try --ttl 1h".into())
    })?;
    let claims = Claims { sub, iss: &jwt.issuer, aud: jwt.audience.as_deref(), iat, exp };
    let key = EncodingKey::from_secret(secret.expose().as_bytes());
    jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &key).map_err(|error| {
        Failure::Failed(format!("the token cannot be signed ({error}); check auth.jwt.secret"))
    })
}
