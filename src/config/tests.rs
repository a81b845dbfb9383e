use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use super::keys::{KEYS, Key};
use super::load::{Loaded, Purpose, load};
use super::print;
use super::problem::Problems;
use super::raw::{Origin, Sources};
use super::{ChannelKind, Config, RedisMode};

const DEFAULT_TOML: &str = include_str!("../../config/default.toml");

/// Sources in the order of their precedence.
#[derive(Default)]
struct Given {
    sources: Sources,
    files: Vec<tempfile::NamedTempFile>,
}

impl Given {
    fn file(mut self, text: &str) -> Self {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        self.sources.files.push(file.path().into());
        self.files.push(file);
        self
    }

    fn variable(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.sources.variables.push((name.into(), value.into()));
        self
    }

    fn load(&self) -> Result<Loaded, Problems> {
        load(&self.sources, Purpose::Look)
    }

    fn config(&self) -> Config {
        self.load().expect("no problem").config
    }

    /// The problems, one text each.
    fn problems(&self) -> Vec<String> {
        self.load().expect_err("problems").0.iter().map(ToString::to_string).collect()
    }
}

fn origin(loaded: &Loaded, key: &str) -> Origin {
    loaded.origin(Key::find(key).expect("the key exists")).clone()
}

#[test]
fn the_default_file_lists_every_key_with_a_comment_and_its_default() {
    assert_eq!(Given::default().file(DEFAULT_TOML).config(), Config::default());
    let mut section = "";
    let mut listed = Vec::new();
    let mut comment = false;
    for line in DEFAULT_TOML.lines() {
        let setting = line
            .trim_start_matches("# ")
            .split_once(" = ")
            .filter(|(name, _)| name.chars().all(|c| c.is_ascii_lowercase() || c == '_'));
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']');
        } else if let Some((name, _)) = setting {
            assert!(comment, "{section}.{name} has no comment");
            listed.push(format!("{section}.{name}"));
        }
        comment = line.starts_with('#') && setting.is_none();
    }
    let keys: Vec<_> = KEYS.iter().map(|key| key.name).collect();
    assert_eq!(listed, keys);
}

#[test]
fn the_examples_in_the_default_file_are_accepted() {
    let uncommented: Vec<_> = DEFAULT_TOML
        .lines()
        .filter_map(|line| {
            line.strip_prefix("# ")
                .filter(|rest| rest.split_once(" = ").is_some_and(|(name, _)| !name.contains(' ')))
                .or(Some(line))
        })
        // These three are alternatives to, or need, something else in the file.
        .filter(|line| !["secret_file", "password_file", "tls_ca"].iter().any(|name| line.starts_with(name)))
        .collect();
    let config = Given::default().file(&uncommented.join("\n")).config();
    assert_eq!(config.lanes.threads, Some(2));
    assert_eq!(config.auth.cookie.as_deref(), Some("token"));
}

#[test]
fn later_sources_win_and_each_value_knows_where_it_came_from() {
    let given = Given::default()
        .file("[session]\nmax_topics = 1\nmax_missed_pongs = 1\nmax_inbound_per_second = 1")
        .file("[session]\nmax_topics = 2\nmax_missed_pongs = 2")
        .variable("WS_MAX_MISSED_PONGS", "3")
        .variable("TICKBRIDGE_SESSION__MAX_TOPICS", "4");
    let loaded = given.load().expect("no problem");
    let session = &loaded.config.session;
    assert_eq!((session.max_topics, session.max_missed_pongs, session.max_inbound_per_second), (4, 3, 1));
    let first = given.sources.files.first().cloned().expect("a file");
    assert_eq!(
        origin(&loaded, "session.max_topics"),
        Origin::Variable("TICKBRIDGE_SESSION__MAX_TOPICS".into())
    );
    assert_eq!(origin(&loaded, "session.max_missed_pongs"), Origin::Variable("WS_MAX_MISSED_PONGS".into()));
    assert_eq!(origin(&loaded, "session.max_inbound_per_second"), Origin::File(first));
    assert_eq!(origin(&loaded, "session.pong_timeout"), Origin::Default);
}

#[test]
fn arguments_beat_the_environment_and_presets_do_not() {
    let mut given = Given::default()
        .variable("TICKBRIDGE_LOG__FILTER", "warn")
        .variable("TICKBRIDGE_REDIS__MODE", "cluster");
    given.sources.presets = vec![("demo", "log.filter", "debug"), ("demo", "log.format", "json")];
    given.sources.arguments = vec![("redis.mode", "embedded".into(), "--demo")];
    let loaded = given.load().expect("no problem");
    assert_eq!(loaded.config.log.filter, "warn");
    assert_eq!(loaded.config.redis.mode, RedisMode::Embedded);
    assert_eq!(origin(&loaded, "log.format"), Origin::Preset("demo"));
    assert_eq!(origin(&loaded, "redis.mode"), Origin::Argument("--demo"));
}

#[test]
fn every_key_can_be_set_by_its_variable() {
    for key in KEYS.iter().filter(|key| !key.secret) {
        let Some(value) = (key.show)(&Config::default()) else { continue };
        let text = match value {
            toml::Value::String(text) => text,
            toml::Value::Array(items) => {
                items.iter().filter_map(|item| item.as_str()).collect::<Vec<_>>().join(",")
            }
            other => other.to_string(),
        };
        if text.is_empty() {
            continue;
        }
        let loaded = Given::default().variable(&key.variable(), &text).load().expect(key.name);
        assert_eq!(loaded.origin(key), &Origin::Variable(key.variable()));
        assert_eq!(loaded.config, Config::default(), "{}", key.name);
    }
}

#[test]
fn every_problem_is_reported_at_once_with_key_value_source_and_rule() {
    let problems = Given::default()
        .file("typo = 1\n[session]\npong_timeout = 45\nmax_topics = \"many\"\nmax_topic = 3\n[listen]\nadmin = \"here\"")
        .variable("WS_HEARTBEAT_INTERVAL_MS", "20s")
        .variable("TICKBRIDGE_REDIS__MODE", "clustered")
        .variable("TICKBRIDGE_SESSION__MAX_TOPIC", "3")
        .variable("TICKBRIDGE_DRAIN__NOTICE", "40s")
        .problems();
    let expected: [&[&str]; 9] = [
        &["admin", "\"here\"", "file ", "IP address"],
        &["max_topics", "\"many\"", "whole number from 1"],
        &["session.max_topic ", "did you mean session.max_topics?"],
        &["pong_timeout = 45 ", "with its unit"],
        &["typo", "is not known"],
        &["heartbeat_interval", "\"20s\"", "environment WS_HEARTBEAT_INTERVAL_MS", "milliseconds"],
        &["redis.mode", "\"clustered\"", "environment TICKBRIDGE_REDIS__MODE", "\"standalone\", \"cluster\""],
        &["TICKBRIDGE_SESSION__MAX_TOPIC", "did you mean TICKBRIDGE_SESSION__MAX_TOPICS?"],
        &["drain.notice", "\"40s\"", "environment TICKBRIDGE_DRAIN__NOTICE", "shorter than drain.deadline"],
    ];
    for parts in expected {
        let found = problems.iter().any(|problem| parts.iter().all(|part| problem.contains(part)));
        assert!(found, "{parts:?} is missing in {problems:#?}");
    }
    assert_eq!(problems.len(), expected.len(), "{problems:#?}");
}

#[test]
fn a_rule_between_keys_does_not_blame_what_nobody_wrote() {
    let problems =
        Given::default().file("[session]\npong_timeout = '10s'\nheartbeat_interval = '5 apples'").problems();
    assert_eq!(problems.len(), 1, "{problems:#?}");
    assert!(problems.concat().contains("heartbeat_interval = \"5 apples\""), "{problems:#?}");
}

#[test]
fn a_file_that_cannot_be_read_or_parsed_is_a_problem_beside_the_others() {
    let mut given = Given::default().file("[redis]\npassword = \"hush\" oops").variable("TICKBRIDGE_X", "1");
    given.sources.files.push(PathBuf::from("/nonexistent/tickbridge.toml"));
    let problems = given.problems();
    assert_eq!(problems.len(), 3, "{problems:#?}");
    assert!(problems.iter().any(|problem| problem.contains("must be TOML: line 2")), "{problems:#?}");
    assert!(problems.iter().any(|problem| problem.contains("must be readable")), "{problems:#?}");
    assert!(!problems.concat().contains("hush"));
}

#[test]
fn sections_and_values_are_not_mixed_up() {
    let problems = Given::default().file("redis = \"a:1\"\n[session.max_topics]\nn = 1").problems();
    assert!(
        problems.iter().any(|problem| problem.starts_with("redis ") && problem.contains("must be a table"))
    );
    assert!(problems.iter().any(|problem| problem.starts_with("session.max_topics = ")), "{problems:#?}");
}

#[test]
fn secrets_are_in_no_problem_and_in_no_print() {
    let problems = Given::default()
        .file("[auth.jwt]\nsecret = [\"hush-1\"]\nsecert = \"hush-2\"\n[redis]\nnodes = [\"redis://:hush-3@host:1\"]\npassword = 4711")
        .variable("TICKBRIDGE_REDIS__PASWORD", "hush-5")
        .problems()
        .join("\n");
    assert!(problems.contains("[redacted]@host"), "{problems}");
    assert!(!problems.contains("hush") && !problems.contains("4711"), "{problems}");

    let loaded = Given::default()
        .file("[redis]\npassword = \"hush-6\"")
        .variable("JWT_SECRET", "hush-7")
        .load()
        .expect("no problem");
    let shown = format!("{}{}{loaded:?}", print::as_toml(&loaded), print::as_line(&loaded));
    assert!(shown.contains("# secret = \"[redacted]\" # environment JWT_SECRET"), "{shown}");
    assert!(!shown.contains("hush"), "{shown}");
}

#[test]
fn what_is_printed_is_a_file_with_the_same_configuration() {
    let given = Given::default()
        .file("[listen]\nallowed_origins = [\"https://a.example\"]\n[lanes]\nthreads = 3\n[auth]\ncookie = \"t\"")
        .variable("WS_PONG_TIMEOUT_MS", "90500")
        .variable("WS_SESSION_QUEUE_CAPACITY", "100");
    let loaded = given.load().expect("no problem");
    let printed = print::as_toml(&loaded);
    assert_eq!(Given::default().file(&printed).config(), loaded.config, "{printed}");
    assert!(
        printed.contains("pong_timeout = \"1m 30s 500ms\" # environment WS_PONG_TIMEOUT_MS"),
        "{printed}"
    );
    assert!(printed.contains("# audience is not set # default"), "{printed}");
    assert!(printed.contains("# WS_SESSION_QUEUE_CAPACITY has no effect"), "{printed}");
}

#[test]
fn names_of_the_earlier_deployment_are_accepted() {
    let config = Given::default()
        .variable("LISTENER_PORT", "9000")
        .variable("REDIS_HOST", "ignored-beside-cluster-nodes")
        .variable("REDIS_CLUSTER_NODES", "a:1,b:2")
        .variable("SPRING_DATA_REDIS_CLUSTER_NODES", "a:1,b:2")
        .variable("REDIS_PASSWORD", "p")
        .variable("JWT_SECRET", "s")
        .variable("JWT_ISSUER", "issuer")
        .variable("WS_ALLOWED_ORIGINS", "https://a.example, https://*.b.example")
        .variable("WS_AUTH_TIMEOUT_MS", "1000")
        .variable("WS_HEARTBEAT_INTERVAL_MS", "2000")
        .variable("WS_PONG_TIMEOUT_MS", "3000")
        .variable("WS_MAX_MISSED_PONGS", "5")
        .variable("WS_RENEW_INTERVAL_MS", "6000")
        .variable("WS_SLOW_CONSUMER_GRACE_MS", "7000")
        .variable("WS_SEND_BUFFER_SIZE_BYTES", "8192")
        .variable("WS_PRICE_TOPIC", "prices")
        .variable("WS_PRICE_TOPIC_PARTITION_COUNT", "64")
        .variable("WS_PRICE_TOPIC_MODE", "SHARDED")
        .config();
    let mut expected = Config::default();
    expected.listen.public.set_port(9_000);
    expected.listen.allowed_origins = vec!["https://a.example".into(), "https://*.b.example".into()];
    expected.redis.mode = RedisMode::Cluster;
    expected.redis.nodes = vec!["a:1".into(), "b:2".into()];
    expected.redis.password = Some(super::Secret::new("p".into()));
    expected.redis.channel.name = "prices".into();
    expected.redis.channel.partitions = 64;
    expected.redis.channel.kind = ChannelKind::Sharded;
    expected.auth.jwt.secret = Some(super::Secret::new("s".into()));
    expected.auth.jwt.issuer = "issuer".into();
    expected.auth.timeout = std::time::Duration::from_secs(1);
    expected.session.heartbeat_interval = std::time::Duration::from_secs(2);
    expected.session.pong_timeout = std::time::Duration::from_secs(3);
    expected.session.max_missed_pongs = 5;
    expected.watchers.renew_interval = std::time::Duration::from_secs(6);
    expected.session.slow_consumer_grace = std::time::Duration::from_secs(7);
    expected.session.send_buffer_bytes = 8_192;
    assert_eq!(config, expected);
}

#[test]
fn a_host_and_a_port_make_a_node() {
    let node = |variables: &[(&str, &str)]| {
        let given =
            variables.iter().fold(Given::default(), |given, (name, value)| given.variable(name, *value));
        given.config().redis.nodes.concat()
    };
    assert_eq!(node(&[("REDIS_HOST", "redis")]), "redis:6379");
    assert_eq!(node(&[("REDIS_PORT", "7000")]), "127.0.0.1:7000");
    assert_eq!(node(&[("REDIS_HOST", "::1"), ("REDIS_PORT", "7000")]), "[::1]:7000");
    assert_eq!(node(&[("REDIS_HOST", "redis"), ("TICKBRIDGE_REDIS__NODES", "b:2")]), "b:2");
    let link = Given::default().variable("REDIS_PORT", "tcp://10.0.0.1:6379").problems().concat();
    assert!(link.contains("enableServiceLinks"), "{link}");
}

#[test]
fn cluster_nodes_under_two_names_must_agree() {
    let given = Given::default()
        .variable("REDIS_CLUSTER_NODES", "a:1")
        .variable("SPRING_DATA_REDIS_CLUSTER_NODES", "b:2");
    assert!(given.problems().concat().contains("must agree with REDIS_CLUSTER_NODES"));
}

#[test]
fn empty_variables_count_as_absent_and_broken_ones_do_not() {
    use std::os::unix::ffi::OsStringExt;
    let given = Given::default()
        .variable("JWT_SECRET", "")
        .variable("TICKBRIDGE_REDIS__NODES", "")
        .variable("REDIS_HOST", "");
    assert_eq!(given.config(), Config::default());
    let broken = OsString::from_vec(vec![b'a', 0xff]);
    let problems = Given::default()
        .variable("JWT_SECRET", broken.clone())
        .variable("TICKBRIDGE_REDIS__PASSWORD", broken)
        .problems();
    assert_eq!(problems.len(), 2, "{problems:#?}");
}

#[test]
fn a_secret_can_come_from_a_file() {
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), "hush\n").unwrap();
    let path = secret.path().to_str().expect("a UTF-8 path");
    let given = Given::default().variable("TICKBRIDGE_AUTH__JWT__SECRET_FILE", path);
    assert_eq!(given.config().auth.jwt.secret.expect("a secret").expose(), "hush");
    let both = given.variable("JWT_SECRET", "s").problems().concat();
    assert!(both.contains("together with auth.jwt.secret"), "{both}");
    std::fs::write(secret.path(), "\n").unwrap();
    let empty = Given::default().variable("TICKBRIDGE_AUTH__JWT__SECRET_FILE", path).problems().concat();
    assert!(empty.contains("not empty"), "{empty}");
}
