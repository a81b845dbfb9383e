//! The environment variables of the service that tickbridge replaces, accepted as they are.
//!
//! Invariants:
//! - A variable with our prefix beats its older name.
//! - Each name is either read into a key or reported as having no effect; none is silently ignored.
//!
//! Not here: bounds and meaning of the values, which are those of the keys.

use std::ffi::OsString;
use std::net::SocketAddr;

use super::keys::Key;
use super::kind::Raw;
use super::problem::Problem;
use super::raw::{Origin, Setting};

/// How an older variable is written.
#[derive(Clone, Copy)]
enum Form {
    /// As the key itself.
    Same,
    /// Whole milliseconds.
    Millis,
    /// A word in any case.
    Word,
}

const NAMES: [(&str, &str, Form); 14] = [
    ("REDIS_PASSWORD", "redis.password", Form::Same),
    ("JWT_SECRET", "auth.jwt.secret", Form::Same),
    ("JWT_ISSUER", "auth.jwt.issuer", Form::Same),
    ("WS_ALLOWED_ORIGINS", "listen.allowed_origins", Form::Same),
    ("WS_AUTH_TIMEOUT_MS", "auth.timeout", Form::Millis),
    ("WS_HEARTBEAT_INTERVAL_MS", "session.heartbeat_interval", Form::Millis),
    ("WS_PONG_TIMEOUT_MS", "session.pong_timeout", Form::Millis),
    ("WS_MAX_MISSED_PONGS", "session.max_missed_pongs", Form::Same),
    ("WS_RENEW_INTERVAL_MS", "watchers.renew_interval", Form::Millis),
    ("WS_SLOW_CONSUMER_GRACE_MS", "session.slow_consumer_grace", Form::Millis),
    ("WS_SEND_BUFFER_SIZE_BYTES", "session.send_buffer_bytes", Form::Same),
    ("WS_PRICE_TOPIC", "redis.channel.name", Form::Same),
    ("WS_PRICE_TOPIC_PARTITION_COUNT", "redis.channel.partitions", Form::Same),
    ("WS_PRICE_TOPIC_MODE", "redis.channel.kind", Form::Word),
];

/// Names of the list of cluster nodes. Both may be set as long as they agree.
const CLUSTER_NODES: [&str; 2] = ["REDIS_CLUSTER_NODES", "SPRING_DATA_REDIS_CLUSTER_NODES"];

/// Reads the older variables.
pub struct Legacy<'a> {
    variables: &'a [(OsString, OsString)],
    problems: &'a mut Vec<Problem>,
    settings: Vec<Setting>,
}

impl<'a> Legacy<'a> {
    /// A reader of these variables.
    pub fn new(variables: &'a [(OsString, OsString)], problems: &'a mut Vec<Problem>) -> Self {
        Self { variables, problems, settings: Vec::new() }
    }

    /// All settings found. `public` is the public listener so far, whose address stays when only a port
    /// is given. Remarks about variables without effect go to `notes`.
    pub fn read(mut self, public: SocketAddr, notes: &mut Vec<String>) -> Vec<Setting> {
        self.listener(public);
        self.nodes();
        for (name, key, form) in NAMES {
            self.named(name, key, form);
        }
        if let Some(text) = self.get("WS_SESSION_QUEUE_CAPACITY") {
            if text.parse::<u64>().is_err() {
                let name = "WS_SESSION_QUEUE_CAPACITY";
                self.refuse(name, name, &text, "must be a whole number");
            }
            notes.push(
                "WS_SESSION_QUEUE_CAPACITY has no effect: what is pending for a session is at most one quote \
                 per subscription, so session.max_topics bounds it"
                    .into(),
            );
        }
        self.settings
    }

    fn listener(&mut self, mut public: SocketAddr) {
        let Some(text) = self.get("LISTENER_PORT") else { return };
        let Ok(port) = text.parse() else {
            return self.refuse("LISTENER_PORT", "listen.public", &text, "must be a port from 0 to 65535");
        };
        public.set_port(port);
        self.set("listen.public", public.to_string(), "LISTENER_PORT");
    }

    fn nodes(&mut self) {
        let [ours, spring] = CLUSTER_NODES.map(|name| self.get(name));
        if let (Some(ours), Some(spring)) = (&ours, &spring)
            && ours != spring
        {
            let rule = format!("must agree with {}, or be left out", CLUSTER_NODES[0]);
            self.refuse(CLUSTER_NODES[1], "redis.nodes", spring, &rule);
        }
        let cluster =
            ours.map(|nodes| (nodes, CLUSTER_NODES[0])).or(spring.map(|nodes| (nodes, CLUSTER_NODES[1])));
        if let Some((nodes, name)) = cluster {
            self.set("redis.nodes", nodes, name);
            self.set("redis.mode", "cluster".into(), name);
            return;
        }
        let [host, port] = ["REDIS_HOST", "REDIS_PORT"].map(|name| self.get(name));
        let name = match (&host, &port) {
            (None, None) => return,
            (Some(_), None) => "REDIS_HOST",
            (None, Some(_)) => "REDIS_PORT",
            (Some(_), Some(_)) => "REDIS_HOST and REDIS_PORT",
        };
        let port = port.unwrap_or_else(|| "6379".into());
        if !port.parse::<u16>().is_ok_and(|port| port != 0) {
            // Kubernetes sets REDIS_PORT to a URL for a service called redis.
            let rule = "must be a port from 1 to 65535; set enableServiceLinks: false if Kubernetes wrote it";
            return self.refuse("REDIS_PORT", "redis.nodes", &port, rule);
        }
        let host = host.unwrap_or_else(|| "127.0.0.1".into());
        let host = if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host };
        self.set("redis.nodes", format!("{host}:{port}"), name);
    }

    fn named(&mut self, name: &'static str, key: &str, form: Form) {
        let Some(text) = self.get(name) else { return };
        match form {
            Form::Same => self.set(key, text, name),
            Form::Word => self.set(key, text.to_ascii_lowercase(), name),
            Form::Millis if text.parse::<u64>().is_ok() => self.set(key, format!("{text}ms"), name),
            Form::Millis => self.refuse(name, key, &text, "must be a whole number of milliseconds"),
        }
    }

    /// The value of a variable; an empty one counts as absent.
    fn get(&mut self, name: &str) -> Option<String> {
        let (_, value) = self.variables.iter().find(|(known, _)| known == name)?;
        let Some(text) = value.to_str() else {
            let origin = Origin::Variable(name.into());
            self.problems.push(Problem::without_value(name, &origin, "must be UTF-8".into()));
            return None;
        };
        (!text.is_empty()).then(|| text.into())
    }

    fn set(&mut self, key: &str, text: String, name: &str) {
        let key =
            Key::find(key).expect("older names stand for existing keys; a test goes through all of them");
        self.settings.push(Setting { key, raw: Raw::Text(text), origin: Origin::Variable(name.into()) });
    }

    fn refuse(&mut self, name: &str, key: &str, text: &str, rule: &str) {
        let (key, origin) = (key.into(), Origin::Variable(name.into()));
        self.problems.push(Problem { key, value: Some(format!("{text:?}")), origin, rule: rule.into() });
    }
}
