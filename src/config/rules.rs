//! Rules between keys.
//!
//! A rule is judged only where none of its keys has a problem already; otherwise it would blame a value
//! that nobody wrote.
//!
//! Not here: the bounds of a single key (`config::keys`).

use super::{Config, RedisMode};

/// A rule that more than one key has a part in.
pub struct Rule {
    /// The keys that it looks at; the first is the one to blame.
    pub keys: &'static [&'static str],
    /// What is wrong, as the end of the sentence "`key` …".
    pub judge: fn(&Config) -> Option<String>,
}

fn unless(holds: bool, rule: impl Into<String>) -> Option<String> {
    (!holds).then(|| rule.into())
}

/// Rules that every configuration keeps.
pub const RULES: &[Rule] = &[
    Rule {
        keys: &["session.heartbeat_interval", "session.pong_timeout"],
        judge: |config| {
            let holds = config.session.heartbeat_interval < config.session.pong_timeout;
            unless(holds, "must be shorter than session.pong_timeout, or every session misses every pong")
        },
    },
    Rule {
        keys: &["drain.notice", "drain.deadline"],
        judge: |config| {
            let holds = config.drain.notice < config.drain.deadline;
            unless(holds, "must be shorter than drain.deadline, which leaves the rest for closing sessions")
        },
    },
    Rule {
        keys: &["watchers.renew_interval", "watchers.ttl"],
        judge: |config| {
            let holds = config.watchers.renew_interval < config.watchers.ttl;
            unless(holds, "must be shorter than watchers.ttl, or watched instruments expire between renewals")
        },
    },
    Rule {
        keys: &["streams.producer_timeout", "streams.abandon_timeout"],
        judge: |config| {
            let holds = config.streams.producer_timeout < config.streams.abandon_timeout;
            unless(holds, "must be shorter than streams.abandon_timeout, or nobody is told before the end")
        },
    },
    Rule {
        keys: &["catch_up.gather", "catch_up.deadline"],
        judge: |config| {
            unless(
                config.catch_up.gather < config.catch_up.deadline,
                "must be shorter than catch_up.deadline",
            )
        },
    },
    Rule {
        keys: &["listen.admin", "listen.public"],
        judge: |config| {
            let [admin, public] = [config.listen.admin, config.listen.public];
            let apart = admin != public || admin.port() == 0;
            unless(apart, "must differ from listen.public, since proxies must never reach it")
        },
    },
    Rule {
        keys: &["redis.nodes", "redis.mode"],
        judge: |config| {
            let needless = config.redis.mode == RedisMode::Embedded;
            unless(needless || !config.redis.nodes.is_empty(), "must name at least one host:port")
        },
    },
    Rule {
        keys: &["redis.database", "redis.mode"],
        judge: |config| {
            let holds = config.redis.mode != RedisMode::Cluster || config.redis.database == 0;
            unless(holds, "must be 0 with redis.mode = \"cluster\", which has no other database")
        },
    },
    Rule {
        keys: &["redis.password_file", "redis.password"],
        judge: |config| {
            let both = config.redis.password_file.is_some() && config.redis.password.is_some();
            unless(!both, "must not be set together with redis.password; keep one of them")
        },
    },
    Rule {
        keys: &["redis.tls_ca", "redis.tls"],
        judge: |config| {
            let holds = config.redis.tls_ca.is_none() || config.redis.tls;
            unless(holds, "has no effect without redis.tls = true; set that, or remove it")
        },
    },
    Rule {
        keys: &["auth.jwt.secret_file", "auth.jwt.secret"],
        judge: |config| {
            let both = config.auth.jwt.secret_file.is_some() && config.auth.jwt.secret.is_some();
            unless(!both, "must not be set together with auth.jwt.secret; keep one of them")
        },
    },
    Rule {
        keys: &["auth.jwt.streams_claim", "auth.anonymous"],
        judge: |config| {
            let both = config.auth.jwt.streams_claim.is_some() && config.auth.anonymous;
            unless(!both, "limits nobody with auth.anonymous = true, which shows everything to everybody")
        },
    },
    Rule {
        keys: &["auth.jwt.topics_claim", "auth.anonymous"],
        judge: |config| {
            let both = config.auth.jwt.topics_claim.is_some() && config.auth.anonymous;
            unless(!both, "limits nobody with auth.anonymous = true, which shows everything to everybody")
        },
    },
];

/// What a gateway needs besides: a way to tell who is there.
pub const TO_SERVE: Rule = Rule {
    keys: &[
        "auth.anonymous",
        "auth.jwt.secret",
        "auth.jwt.secret_file",
        "auth.jwt.public_keys",
        "auth.jwt.jwks_url",
    ],
    judge: |config| {
        let jwt = &config.auth.jwt;
        let has_key = jwt.secret.is_some()
            || jwt.secret_file.is_some()
            || !jwt.public_keys.is_empty()
            || jwt.jwks_url.is_some();
        unless(
            config.auth.anonymous || has_key,
            "lets nobody in, for there is no key to judge tokens by; set auth.jwt.secret, .secret_file, \
             .public_keys or .jwks_url",
        )
    },
};

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Config, RULES, RedisMode, TO_SERVE};
    use crate::config::Secret;
    use crate::config::keys::Key;

    /// The keys blamed in a configuration that differs from the default one.
    fn blamed(change: fn(&mut Config)) -> Vec<&'static str> {
        let mut config = Config::default();
        change(&mut config);
        RULES.iter().filter(|rule| (rule.judge)(&config).is_some()).map(|rule| rule.keys[0]).collect()
    }

    #[test]
    fn rules_look_at_existing_keys_and_the_defaults_keep_them() {
        for rule in RULES.iter().chain([&TO_SERVE]) {
            assert!(rule.keys.iter().all(|key| Key::find(key).is_some()), "{:?}", rule.keys);
        }
        assert!(blamed(|_| ()).is_empty());
    }

    #[test]
    fn of_two_times_the_one_that_must_be_shorter_is_blamed() {
        let blame = blamed(|config| config.session.heartbeat_interval = config.session.pong_timeout);
        assert_eq!(blame, ["session.heartbeat_interval"]);
        assert_eq!(blamed(|config| config.drain.notice = config.drain.deadline), ["drain.notice"]);
        assert_eq!(
            blamed(|config| config.watchers.ttl = Duration::from_secs(1)),
            ["watchers.renew_interval"]
        );
        assert_eq!(blamed(|config| config.catch_up.gather = config.catch_up.deadline), ["catch_up.gather"]);
    }

    #[test]
    fn listeners_differ_unless_the_system_chooses_their_ports() {
        assert_eq!(blamed(|config| config.listen.admin = config.listen.public), ["listen.admin"]);
        let blame = blamed(|config| {
            config.listen.admin.set_port(0);
            config.listen.public.set_port(0);
        });
        assert!(blame.is_empty(), "{blame:?}");
    }

    #[test]
    fn what_redis_cannot_do_is_refused() {
        assert_eq!(blamed(|config| config.redis.nodes.clear()), ["redis.nodes"]);
        let blame = blamed(|config| {
            config.redis.mode = RedisMode::Embedded;
            config.redis.nodes.clear();
        });
        assert!(blame.is_empty(), "{blame:?}");
        let blame = blamed(|config| {
            config.redis.mode = RedisMode::Cluster;
            config.redis.database = 1;
        });
        assert_eq!(blame, ["redis.database"]);
        assert_eq!(blamed(|config| config.redis.tls_ca = Some("ca.pem".into())), ["redis.tls_ca"]);
    }

    #[test]
    fn a_secret_has_one_source() {
        let blame = blamed(|config| {
            config.redis.password = Some(Secret::new("p".into()));
            config.redis.password_file = Some("p".into());
            config.auth.jwt.secret = Some(Secret::new("s".into()));
            config.auth.jwt.secret_file = Some("s".into());
        });
        assert_eq!(blame, ["redis.password_file", "auth.jwt.secret_file"]);
    }

    #[test]
    fn permissions_make_no_sense_where_nobody_needs_a_token() {
        let blame = blamed(|config| {
            config.auth.jwt.topics_claim = Some("topics".into());
            config.auth.anonymous = true;
        });
        assert_eq!(blame, ["auth.jwt.topics_claim"]);
        assert!(blamed(|config| config.auth.jwt.topics_claim = Some("topics".into())).is_empty());
    }

    #[test]
    fn serving_takes_a_key_or_anonymous_sessions() {
        let serves = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            (TO_SERVE.judge)(&config).is_none()
        };
        assert!(!serves(|_| ()));
        assert!(serves(|config| config.auth.anonymous = true));
        assert!(serves(|config| config.auth.jwt.secret = Some(Secret::new("s".into()))));
        assert!(serves(|config| config.auth.jwt.public_keys = vec!["key.pem".into()]));
        assert!(serves(|config| config.auth.jwt.jwks_url = Some("https://a.example/k".into())));
    }
}
