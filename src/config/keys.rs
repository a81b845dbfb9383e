//! Every key, with the place of its value, its kind and its bounds.
//!
//! Invariants:
//! - A key is named after the fields that hold it; each field of `Config` has exactly one key. A test
//!   compares the two.
//! - Bounds keep out what cannot work (a heartbeat each microsecond) and what is surely a slip (a
//!   time-out of a month), not what is merely unusual.
//!
//! Not here: rules between keys (`config::rules`), what the defaults are and why (`config`).

use std::time::Duration;

use super::kind::number::{Count, Size, Span};
use super::kind::text::{Address, List, SecretText, Text};
use super::kind::{Choice, Flag, Kind, Maybe, Raw};
use super::log::LogFormat;
use super::streams::UnknownStream;
use super::{ChannelKind, ChannelLayout, Config, RedisMode, check};

/// One key.
pub struct Key {
    /// Its name, such as `session.max_topics`.
    pub name: &'static str,
    /// Whether its value must never be shown.
    pub secret: bool,
    /// Reads a value into its place, or returns the rule that the value breaks.
    pub read: fn(&mut Config, &Raw) -> Result<(), String>,
    /// The value as a file would have it; `None` if it is absent.
    pub show: fn(&Config) -> Option<toml::Value>,
    /// Whether two configurations agree on it.
    pub same: fn(&Config, &Config) -> bool,
    /// Takes its value over from another configuration.
    pub copy: fn(&mut Config, &Config),
}

impl Key {
    /// The key with this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.name == name)
    }

    /// The keys on which two configurations differ.
    pub fn changed(a: &Config, b: &Config) -> Vec<&'static Self> {
        KEYS.iter().filter(|key| !(key.same)(a, b)).collect()
    }

    /// The environment variable that sets it.
    pub fn variable(&self) -> String {
        format!("{PREFIX}{}", self.name.replace('.', "__").to_uppercase())
    }
}

/// What the environment variables that name keys begin with.
pub const PREFIX: &str = "TICKBRIDGE_";

macro_rules! keys {
    ($($first:ident$(.$rest:ident)+: $kind:expr;)*) => {
        /// All keys, in the order in which they are shown.
        pub const KEYS: &[Key] = &[$(Key {
            name: concat!(stringify!($first)$(, ".", stringify!($rest))+),
            secret: conceals(|config| &config.$first$(.$rest)+, &$kind),
            read: |config, raw| {
                config.$first$(.$rest)+ = $kind.read(raw)?;
                Ok(())
            },
            show: |config| $kind.show(&config.$first$(.$rest)+),
            same: |a, b| a.$first$(.$rest)+ == b.$first$(.$rest)+,
            copy: |to, from| to.$first$(.$rest)+.clone_from(&from.$first$(.$rest)+),
        }),*];
    };
}

keys! {
    listen.public: Address;
    listen.admin: Address;
    listen.allowed_origins: List(check::origin);
    listen.header_timeout: span(10, MINUTE);
    listen.publish_key: SecretText;
    auth.anonymous: Flag;
    auth.timeout: span(10, HOUR);
    auth.cookie: Maybe(Text(check::cookie));
    auth.jwt.secret: SecretText;
    auth.jwt.secret_file: Maybe(Text(check::not_blank));
    auth.jwt.public_keys: List(check::not_blank);
    auth.jwt.jwks_url: Maybe(Text(check::key_set_url));
    auth.jwt.issuer: Text(check::not_blank);
    auth.jwt.audience: Maybe(Text(check::not_blank));
    auth.jwt.leeway: span(0, HOUR);
    auth.jwt.topics_claim: Maybe(Text(check::claim));
    auth.jwt.streams_claim: Maybe(Text(check::claim));
    session.heartbeat_interval: span(10, HOUR);
    session.pong_timeout: span(10, HOUR);
    session.max_missed_pongs: Count { min: 1, max: 1_000 };
    session.slow_consumer_grace: span(10, HOUR);
    session.flush_interval: span(0, 10 * SECOND);
    session.max_topics: Count { min: 1, max: 100_000 };
    session.max_message_bytes: Size { min: 256, max: 16 << 20 };
    session.max_inbound_per_second: Count { min: 1, max: 1_000_000 };
    session.send_buffer_bytes: Size { min: 4 << 10, max: 16 << 20 };
    limits.max_sessions: Count { min: 1, max: 10_000_000 };
    limits.max_sessions_per_ip: Count { min: 0, max: 10_000_000 };
    limits.max_sessions_per_user: Count { min: 0, max: 10_000_000 };
    limits.user_lease: span(500, HOUR);
    limits.accepts_per_second: Count { min: 1, max: 1_000_000 };
    limits.trusted_proxies: List(check::network);
    ingest.max_payload_bytes: Size { min: 64, max: 16 << 20 };
    ingest.max_instruments: Count { min: 1, max: 100_000_000 };
    redis.mode: Choice(&[
        ("standalone", RedisMode::Standalone),
        ("cluster", RedisMode::Cluster),
        ("sentinel", RedisMode::Sentinel),
        ("embedded", RedisMode::Embedded),
    ]);
    redis.nodes: List(check::node);
    redis.username: Maybe(Text(check::not_blank));
    redis.password: SecretText;
    redis.password_file: Maybe(Text(check::not_blank));
    redis.database: Count { min: 0, max: 65_535 };
    redis.tls: Flag;
    redis.tls_ca: Maybe(Text(check::not_blank));
    redis.sentinel_primary: Text(check::not_blank);
    redis.command_timeout: span(10, MINUTE);
    redis.connect_timeout: span(10, MINUTE);
    redis.pool_size: Count { min: 1, max: 1_000 };
    redis.channel.name: Text(check::channel);
    redis.channel.partitions: Count { min: 1, max: 16_384 };
    redis.channel.kind: Choice(&[
        ("auto", ChannelKind::Auto),
        ("sharded", ChannelKind::Sharded),
        ("classic", ChannelKind::Classic),
    ]);
    redis.channel.layout: Choice(&[
        ("partitioned", ChannelLayout::Partitioned),
        ("per-instrument", ChannelLayout::PerInstrument),
    ]);
    catch_up.deadline: span(10, MINUTE);
    catch_up.gather: span(0, SECOND);
    watchers.enabled: Flag;
    watchers.renew_interval: span(10, DAY);
    watchers.ttl: span(1_000, DAY);
    watchers.batch_interval: span(0, 10 * SECOND);
    streams.enabled: Flag;
    streams.prefix: Text(check::channel);
    streams.unknown: Choice(&[("wait", UnknownStream::Wait), ("not-found", UnknownStream::NotFound)]);
    streams.producer_timeout: span(10, HOUR);
    streams.abandon_timeout: span(10, DAY);
    streams.max_entries: Count { min: 16, max: 10_000_000 };
    streams.ttl: span(1_000, 30 * DAY);
    drain.notice: span(0, HOUR);
    drain.deadline: span(10, HOUR);
    drain.reconnect_rate: Count { min: 1, max: 10_000_000 };
    lanes.threads: Maybe(Count { min: 1, max: 64 });
    metrics.prefix: Text(check::metric_prefix);
    log.filter: Text(check::log_filter);
    log.format: Choice(&[("text", LogFormat::Text), ("json", LogFormat::Json)]);
    demo.page: Flag;
    demo.streams: Count { min: 0, max: 10_000 };
}

const SECOND: u64 = 1_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

const fn span(min_ms: u64, max_ms: u64) -> Span {
    Span { min: Duration::from_millis(min_ms), max: Duration::from_millis(max_ms) }
}

/// Whether a kind conceals its values; the place tells which of its implementations is meant.
const fn conceals<T, K: Kind<T>>(_place: fn(&Config) -> &T, _kind: &K) -> bool {
    K::SECRET
}

#[cfg(test)]
mod tests {
    use super::{Config, KEYS, Key};

    /// The dotted names of all fields, from the only description that the compiler makes of them.
    fn fields() -> Vec<String> {
        let mut path: Vec<String> = Vec::new();
        let mut names = Vec::new();
        for line in format!("{:#?}", Config::default()).lines().skip(1) {
            let line = line.trim();
            match line.split_once(": ") {
                Some((name, value)) if value.ends_with('{') => path.push(name.into()),
                Some((name, _)) if name.chars().all(|c| c.is_ascii_lowercase() || c == '_') => {
                    names.push([path.join("."), name.into()].join("."));
                }
                _ if line.starts_with('}') => drop(path.pop()),
                _ => {}
            }
        }
        names
    }

    #[test]
    fn each_field_of_the_configuration_has_exactly_one_key() {
        let mut keys: Vec<_> = KEYS.iter().map(|key| key.name.to_owned()).collect();
        let mut fields = fields();
        keys.sort();
        fields.sort();
        assert_eq!(keys, fields);
    }

    #[test]
    fn the_secrets_are_known_as_such() {
        let secrets: Vec<_> = KEYS.iter().filter(|key| key.secret).map(|key| key.name).collect();
        assert_eq!(secrets, ["listen.publish_key", "auth.jwt.secret", "redis.password"]);
    }

    #[test]
    fn changes_are_found_in_secrets_too() {
        let mut changed = Config::default();
        changed.redis.password = Some(crate::config::Secret::new("p".into()));
        changed.session.max_topics += 1;
        let names: Vec<_> = Key::changed(&Config::default(), &changed).iter().map(|key| key.name).collect();
        assert_eq!(names, ["session.max_topics", "redis.password"]);
    }

    #[test]
    fn a_variable_is_the_key_in_capitals() {
        let key = Key::find("auth.jwt.public_keys").expect("the key exists");
        assert_eq!(key.variable(), "TICKBRIDGE_AUTH__JWT__PUBLIC_KEYS");
    }
}
