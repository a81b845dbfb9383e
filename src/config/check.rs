//! Whether a single text is well-formed: origins, nodes, networks, URLs, names.
//!
//! Each check returns the rule that the text breaks, as the end of the sentence "`key` …".

use std::net::IpAddr;

use url::{Host, Url};

/// A browser origin: `scheme://host[:port]`, the host possibly `*.domain`; or `*` for any.
pub fn origin(text: &str) -> Result<(), String> {
    const RULE: &str = "must be an origin such as \"https://example.com\" or \"https://*.example.com\", \
                        as browsers send it: no path, no default port, small letters; or \"*\" for any";
    if text == "*" {
        return Ok(());
    }
    let (scheme, rest) = text.split_once("://").ok_or(RULE)?;
    let host = rest.strip_prefix("*.").unwrap_or(rest);
    if rest != host && !host.contains('.') {
        return Err("must not allow a whole top-level domain".into());
    }
    // A browser sends the ASCII serialisation, so whatever a parser would rewrite can never match.
    let plain = format!("{scheme}://{host}");
    let parsed = Url::parse(&plain).map_err(|_| RULE)?.origin();
    if parsed.ascii_serialization() == plain && !host.contains('*') { Ok(()) } else { Err(RULE.into()) }
}

/// `host:port`, the host a name or an address.
pub fn node(text: &str) -> Result<(), String> {
    let parsed = text.rsplit_once(':').and_then(|(host, port)| {
        let port = port.parse::<u16>().ok().filter(|port| *port != 0)?;
        Host::parse(host).ok().map(|_| port)
    });
    parsed.map(|_| ()).ok_or_else(|| "must be host:port, such as \"redis-1:6379\"".into())
}

/// A network in CIDR notation, or a single address.
pub fn network(text: &str) -> Result<(), String> {
    let (address, length) =
        text.split_once('/').map_or((text, None), |(address, length)| (address, Some(length)));
    let fits = address.parse().is_ok_and(|address| {
        let widest = match address {
            IpAddr::V4(_) => 32,
            IpAddr::V6(_) => 128,
        };
        length.is_none_or(|length| length.parse::<u8>().is_ok_and(|length| length <= widest))
    });
    if fits { Ok(()) } else { Err("must be a network such as \"10.0.0.0/8\", or an address".into()) }
}

/// The name of a claim that carries permissions.
pub fn claim(text: &str) -> Result<(), String> {
    not_blank(text)?;
    let taken = ["exp", "nbf", "iat", "iss", "aud", "sub"].contains(&text);
    if taken { Err("must not be a claim that means something else".into()) } else { Ok(()) }
}

/// The URL of a key set.
pub fn key_set_url(text: &str) -> Result<(), String> {
    match Url::parse(text) {
        Ok(url) if !matches!(url.scheme(), "http" | "https") || !url.has_host() => {
            Err("must be an http or https URL".into())
        }
        Ok(url) if !url.username().is_empty() || url.password().is_some() => {
            Err("must not carry credentials".into())
        }
        Ok(_) => Ok(()),
        Err(_) => Err("must be a URL such as \"https://auth.example.com/jwks.json\"".into()),
    }
}

/// Text that says something.
pub fn not_blank(text: &str) -> Result<(), String> {
    if text.trim().is_empty() { Err("must not be empty".into()) } else { Ok(()) }
}

/// The name of a channel, which braces would move to another slot than its partitions expect.
pub fn channel(text: &str) -> Result<(), String> {
    not_blank(text)?;
    if text.contains(|c: char| c.is_whitespace() || c == '{' || c == '}') {
        return Err("must not contain blanks or braces".into());
    }
    Ok(())
}

/// The name of a cookie.
pub fn cookie(text: &str) -> Result<(), String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    if !text.is_empty() && text.chars().all(fits) {
        return Ok(());
    }
    Err("must be a cookie name: letters, digits and - _ . only".into())
}

/// The prefix of metric names.
pub fn metric_prefix(text: &str) -> Result<(), String> {
    let starts = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if starts && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return Ok(());
    }
    Err("must be letters, digits and underscores, and not start with a digit".into())
}

/// A filter of log lines.
pub fn log_filter(text: &str) -> Result<(), String> {
    not_blank(text)?;
    let parsed = tracing_subscriber::EnvFilter::builder().parse(text);
    parsed.map(|_| ()).map_err(|_| "must be a filter such as \"info\" or \"info,tickbridge=debug\"".into())
}

#[cfg(test)]
mod tests {
    use super::{channel, cookie, key_set_url, log_filter, metric_prefix, network, node, origin};

    type Check = fn(&str) -> Result<(), String>;

    fn judge(check: Check, accepted: &[&str], refused: &[&str]) {
        for text in accepted {
            assert_eq!(check(text), Ok(()), "{text:?}");
        }
        for text in refused {
            assert!(check(text).is_err(), "{text:?} is accepted");
        }
    }

    #[test]
    fn origins_are_what_browsers_send_or_a_pattern_of_it() {
        judge(
            origin,
            &[
                "*",
                "https://example.com",
                "http://localhost:3000",
                "https://*.example.com",
                "http://[::1]:3000",
            ],
            &[
                "",
                "example.com",
                "https://",
                "https://example.com/",
                "https://example.com/app",
                "https://Example.com",
                "https://example.com:443",
                "https://*.com",
                "https://*",
                "https://a.*.com",
                "null",
                "https://user@example.com",
            ],
        );
    }

    #[test]
    fn nodes_have_a_host_and_a_port() {
        judge(
            node,
            &["127.0.0.1:6379", "redis-1:6379", "[::1]:7000", "redis.internal.example.com:1"],
            &[
                "",
                "redis",
                "redis:",
                ":6379",
                "redis:0",
                "redis:65536",
                "redis://h:6379",
                "::1:7000",
                "a b:1",
            ],
        );
    }

    #[test]
    fn networks_are_in_cidr_notation_or_single_addresses() {
        judge(
            network,
            &["10.0.0.0/8", "127.0.0.1", "::1", "127.0.0.1/32", "fd00::/8", "0.0.0.0/0"],
            &["", "10.0.0", "10.0.0.0/33", "10.0.0/8", "fd00::/129", "proxy/8", "10.0.0.0/-1"],
        );
    }

    #[test]
    fn names_urls_and_filters_are_checked() {
        judge(
            key_set_url,
            &["https://a.example/jwks.json", "http://a:8080/k"],
            &["", "a", "file:///k", "https://u:p@a/"],
        );
        judge(channel, &["market:price-updated"], &["", " ", "a b", "market:{1}"]);
        judge(cookie, &["session", "__Host-token"], &["", "a b", "a=b", "a;b"]);
        judge(metric_prefix, &["tickbridge", "_a1"], &["", "1a", "tick-bridge", "a:b"]);
        judge(log_filter, &["info", "info,tickbridge=debug", "off"], &["", "tickbridge=loud", "=="]);
    }
}
