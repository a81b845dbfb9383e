//! Which web pages may talk to the gateway.
//!
//! An origin is compared as a whole, never by part of its text. A request without `Origin` doesn't come from
//! another site's page, and passes.

use std::fmt;
use std::sync::{PoisonError, RwLock};

/// The allowed origins.
#[derive(Clone, Debug, Default)]
pub struct Origins(Vec<Rule>);

/// The origins that are allowed at the moment.
#[derive(Debug)]
pub struct LiveOrigins(RwLock<Origins>);

impl LiveOrigins {
    /// Allows `origins`.
    pub fn new(origins: Origins) -> Self {
        Self(RwLock::new(origins))
    }

    /// Allows others from now on.
    pub fn replace(&self, origins: Origins) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = origins;
    }

    /// As [`Origins::judge`].
    pub fn judge(&self, origin: &[u8]) -> Option<Allowed> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).judge(origin)
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Rule {
    Any,
    Exact(Origin),
    /// Any host below the given one.
    Below(Origin),
}

/// `scheme://host[:port]`, in lower case, without the scheme's own port.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Origin {
    scheme: String,
    host: String,
    port: Option<u16>,
}

/// How an origin came to be allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allowed {
    /// By a rule that names it.
    Named,
    /// By `*` only: the page may talk to us, but cookies don't count.
    Anyone,
}

/// A rule that can't be read.
#[derive(PartialEq, Eq, Debug)]
pub struct BadRule(pub String);

impl fmt::Display for BadRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is neither `scheme://host[:port]` nor `scheme://*.host[:port]` nor `*`", self.0)
    }
}

impl Origins {
    /// Reads the rules.
    ///
    /// # Errors
    /// The first rule that can't be read.
    pub fn parse(rules: &[String]) -> Result<Self, BadRule> {
        let parse = |text: &String| Rule::parse(text).ok_or_else(|| BadRule(text.clone()));
        rules.iter().map(parse).collect::<Result<_, _>>().map(Self)
    }

    /// Whether, and how, the value of an `Origin` header is allowed.
    pub fn judge(&self, origin: &[u8]) -> Option<Allowed> {
        let origin = std::str::from_utf8(origin).ok().and_then(Origin::parse);
        let named = origin.is_some_and(|origin| self.0.iter().any(|rule| rule.names(&origin)));
        match named {
            true => Some(Allowed::Named),
            false => self.0.contains(&Rule::Any).then_some(Allowed::Anyone),
        }
    }
}

impl Rule {
    fn parse(text: &str) -> Option<Self> {
        if text == "*" {
            return Some(Self::Any);
        }
        match text.split_once("://*.") {
            Some((scheme, rest)) => Origin::parse(&format!("{scheme}://{rest}")).map(Self::Below),
            None => Origin::parse(text).map(Self::Exact),
        }
    }

    fn names(&self, origin: &Origin) -> bool {
        match self {
            Self::Any => false,
            Self::Exact(allowed) => allowed == origin,
            Self::Below(parent) => {
                let same = parent.scheme == origin.scheme && parent.port == origin.port;
                let below = origin.host.strip_suffix(&parent.host).and_then(|h| h.strip_suffix('.'));
                same && below.is_some_and(|labels| !labels.is_empty())
            }
        }
    }
}

impl Origin {
    fn parse(text: &str) -> Option<Self> {
        let (scheme, authority) = text.split_once("://")?;
        let scheme = scheme.to_ascii_lowercase();
        if scheme.is_empty() || !scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b)) {
            return None;
        }
        let port_at = authority.rfind(':').filter(|&at| !authority[at..].contains(']'));
        let (host, port) = match port_at {
            Some(at) => (&authority[..at], Some(parse_port(&authority[at + 1..])?)),
            None => (authority, None),
        };
        let host = host.to_ascii_lowercase();
        let (name, allowed): (&str, &[u8]) = match host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
            Some(v6) => (v6, b":."),
            None => (&host, b"-._"),
        };
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || allowed.contains(&b)) {
            return None;
        }
        let own_port = match scheme.as_str() {
            "http" => Some(80),
            "https" => Some(443),
            _ => None,
        };
        Some(Self { scheme, host, port: port.filter(|port| Some(*port) != own_port) })
    }
}

/// Digits only: the standard parser takes a sign too.
fn parse_port(text: &str) -> Option<u16> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(rules: &[&str], origin: &str) -> Option<Allowed> {
        let rules: Vec<_> = rules.iter().map(|&r| r.to_owned()).collect();
        Origins::parse(&rules).expect("rules").judge(origin.as_bytes())
    }

    #[test]
    fn an_exact_rule_allows_that_origin_and_no_other() {
        let rules = &["https://app.example.com"];
        for origin in ["https://app.example.com", "https://app.example.com:443", "https://APP.example.com"] {
            assert_eq!(judge(rules, origin), Some(Allowed::Named), "{origin}");
        }
        for origin in [
            "https://app.example.com.evil.test",
            "https://evilapp.example.com",
            "http://app.example.com",
            "https://app.example.com:8443",
            "https://app.example.com@evil.test",
            "https://app.example.com/",
            "https://app.example.com.",
            "https://app.example.com:",
            "https://app.example.com:+443",
            "app.example.com",
            "null",
            "",
        ] {
            assert_eq!(judge(rules, origin), None, "{origin}");
        }
    }

    #[test]
    fn a_wildcard_allows_hosts_below_and_not_the_host_itself() {
        let rules = &["https://*.example.com"];
        for origin in ["https://a.example.com", "https://a.b.example.com"] {
            assert_eq!(judge(rules, origin), Some(Allowed::Named), "{origin}");
        }
        for origin in [
            "https://example.com",
            "https://.example.com",
            "https://evilexample.com",
            "http://a.example.com",
            "https://a.example.com:8443",
            "https://evil.test/.example.com",
            "https://evil.test#.example.com",
            "https://u@a.example.com",
            "https://a.example.com.evil.test",
        ] {
            assert_eq!(judge(rules, origin), None, "{origin}");
        }
    }

    #[test]
    fn a_star_is_told_apart_from_a_name() {
        assert_eq!(judge(&["*", "http://[::1]:3000"], "https://x.test"), Some(Allowed::Anyone));
        assert_eq!(judge(&["*", "http://[::1]:3000"], "null"), Some(Allowed::Anyone));
        assert_eq!(judge(&["*", "http://[::1]:3000"], "http://[::1]:3000"), Some(Allowed::Named));
        assert_eq!(judge(&[], "https://x.test"), None);
    }

    #[test]
    fn rules_that_say_nothing_are_refused() {
        for rule in
            ["", "example.com", "https://", "https://*", "https://*.", "https://a.*.com", "https://a/b"]
        {
            assert_eq!(Origins::parse(&[rule.into()]).err(), Some(BadRule(rule.into())), "{rule}");
        }
    }
}
