//! Configuration as an operator meets it: every mistake at once, and where each value came from.

use std::path::Path;

use super::cli::tickbridge;

/// A mistake: the line of a file or the variable that makes it, and what the complaint must contain.
struct Mistake {
    kind: &'static str,
    file: &'static str,
    variable: (&'static str, &'static str),
    complaint: &'static [&'static str],
}

const NO_VARIABLE: (&str, &str) = ("TICKBRIDGE_AUTH__ANONYMOUS", "true");

const fn in_file(kind: &'static str, file: &'static str, complaint: &'static [&'static str]) -> Mistake {
    Mistake { kind, file, variable: NO_VARIABLE, complaint }
}

const fn in_variable(
    kind: &'static str,
    name: &'static str,
    value: &'static str,
    complaint: &'static [&'static str],
) -> Mistake {
    Mistake { kind, file: "", variable: (name, value), complaint }
}

const MISTAKES: &[Mistake] = &[
    in_file("unknown key", "session.max_topic = 1", &["session.max_topic ", "session.max_topics?"]),
    in_file("unknown section", "sesion.max_topics = 1", &["sesion", "not known"]),
    in_file("bare duration", "auth.timeout = 30", &["auth.timeout = 30 ", "with its unit"]),
    in_file("duration out of bounds", "auth.jwt.leeway = '2h'", &["auth.jwt.leeway = \"2h\"", "to \"1h\""]),
    in_file("zero as default", "session.max_missed_pongs = 0", &["max_missed_pongs = 0 ", "from 1"]),
    in_file(
        "number in quotes",
        "limits.max_sessions = '9'",
        &["limits.max_sessions = \"9\"", "whole number"],
    ),
    in_file("negative number", "drain.reconnect_rate = -1", &["drain.reconnect_rate = -1", "whole number"]),
    in_file("decimal size", "session.max_message_bytes = '64 KB'", &["max_message_bytes = \"64 KB\"", "KiB"]),
    in_file("unknown word", "log.format = 'xml'", &["log.format = \"xml\"", "\"text\", \"json\""]),
    in_file("flag as text", "watchers.enabled = 'yes'", &["watchers.enabled = \"yes\"", "true or false"]),
    in_file(
        "address without port",
        "listen.public = '0.0.0.0'",
        &["listen.public = \"0.0.0.0\"", "with a port"],
    ),
    in_file(
        "origin with path",
        "listen.allowed_origins = ['https://a.example/x']",
        &["allowed_origins", "no path"],
    ),
    in_file("network", "limits.trusted_proxies = ['10.0.0.0/99']", &["trusted_proxies", "10.0.0.0/8"]),
    in_file("key set URL", "auth.jwt.jwks_url = 'ftp://a/k'", &["jwks_url = \"ftp://a/k\"", "http or https"]),
    in_file(
        "endless secret",
        "auth.jwt.secret_file = '/dev/zero'",
        &["secret_file = \"/dev/zero\"", "readable file: it is longer than"],
    ),
    in_file("log filter", "log.filter = 'a=loud'", &["log.filter = \"a=loud\"", "filter"]),
    in_file("two times", "drain.notice = '30s'", &["drain.notice = \"30s\"", "shorter than drain.deadline"]),
    in_file("needless key", "redis.tls_ca = 'ca.pem'", &["redis.tls_ca = \"ca.pem\"", "redis.tls = true"]),
    in_variable("unknown variable", "TICKBRIDGE_SESSIONS", "1", &["TICKBRIDGE_SESSIONS", "not known"]),
    in_variable("list", "TICKBRIDGE_REDIS__NODES", "a", &["redis.nodes = \"a\"", "host:port"]),
    in_variable(
        "text for a number",
        "TICKBRIDGE_LANES__THREADS",
        "two",
        &["lanes.threads = \"two\"", "number"],
    ),
    in_variable(
        "unit in an older name",
        "WS_PONG_TIMEOUT_MS",
        "45s",
        &["WS_PONG_TIMEOUT_MS", "milliseconds"],
    ),
    in_variable("port", "LISTENER_PORT", "99999", &["listen.public = \"99999\"", "LISTENER_PORT", "port"]),
    in_variable("word in an older name", "WS_PRICE_TOPIC_MODE", "stream", &["channel.kind", "\"sharded\""]),
    in_variable("partitions", "WS_PRICE_TOPIC_PARTITION_COUNT", "0", &["redis.channel.partitions", "from 1"]),
];

fn written(folder: &Path, text: &str) -> String {
    let path = folder.join("tickbridge.toml");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn assert_complains(mistake: &Mistake, err: &str) {
    let found = err.lines().any(|line| mistake.complaint.iter().all(|part| line.contains(part)));
    assert!(found, "{}: {:?} is in no line of:\n{err}", mistake.kind, mistake.complaint);
}

#[test]
fn each_kind_of_mistake_is_refused_with_key_value_and_rule() {
    let folder = tempfile::tempdir().unwrap();
    for mistake in MISTAKES {
        let file = written(folder.path(), mistake.file);
        let ran = tickbridge(&["check-config", "--config", &file], &[NO_VARIABLE, mistake.variable]);
        assert_eq!((ran.code, ran.out.as_str()), (64, ""), "{}: {}", mistake.kind, ran.err);
        assert!(ran.err.contains("has 1 problem:"), "{}: {}", mistake.kind, ran.err);
        assert_complains(mistake, &ran.err);
    }
}

#[test]
fn all_mistakes_are_reported_at_once_by_every_command_that_needs_the_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let lines: Vec<_> = MISTAKES.iter().map(|mistake| mistake.file).collect();
    let file = written(folder.path(), &lines.join("\n"));
    let variables: Vec<_> = MISTAKES.iter().map(|mistake| mistake.variable).collect();
    for command in
        [&["check-config"][..], &["print-config"], &["serve"], &["token", "--sub", "42"], &["health"]]
    {
        let ran = tickbridge(&[command, &["--config", &file]].concat(), &variables);
        assert_eq!((ran.code, ran.out.as_str()), (64, ""), "{command:?}: {}", ran.err);
        assert!(ran.err.contains(&format!("has {} problems:", MISTAKES.len())), "{command:?}: {}", ran.err);
        MISTAKES.iter().for_each(|mistake| assert_complains(mistake, &ran.err));
    }
}

#[test]
fn a_good_configuration_is_ok() {
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/config/default.toml");
    let ran = tickbridge(&["check-config", "--config", default], &[("JWT_SECRET", "hush")]);
    assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (0, "ok\n", ""));
}

#[test]
fn printed_configuration_names_sources_and_no_secret() {
    let folder = tempfile::tempdir().unwrap();
    let file = written(folder.path(), "redis.password = 'hush-1'\nsession.max_topics = 7");
    let variables = [("JWT_SECRET", "hush-2"), ("REDIS_HOST", "redis"), ("TICKBRIDGE_LOG__FORMAT", "json")];
    let ran = tickbridge(&["print-config", "--config", &file], &variables);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    for line in [
        format!("max_topics = 7 # file {file}"),
        "nodes = [\"redis:6379\"] # environment REDIS_HOST".into(),
        "format = \"json\" # environment TICKBRIDGE_LOG__FORMAT".into(),
        "# secret = \"[redacted]\" # environment JWT_SECRET".into(),
        format!("# password = \"[redacted]\" # file {file}"),
        "pong_timeout = \"45s\" # default".into(),
    ] {
        assert!(ran.out.lines().any(|printed| printed == line), "{line} is not in:\n{}", ran.out);
    }
    assert!(!ran.out.contains("hush"), "{}", ran.out);
    let again = written(folder.path(), &ran.out);
    assert_eq!(tickbridge(&["print-config", "--config", &again], &[]).code, 0);
}

#[test]
fn a_secret_in_the_wrong_place_is_not_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let file = written(
        folder.path(),
        "auth.jwt.secert = 'hush'\nauth.jwt.secret = ['hush']\nredis.nodes = ['redis://:hush@a:1']",
    );
    let ran = tickbridge(&["check-config", "--config", &file], &[("TICKBRIDGE_REDIS__PASWORD", "hush")]);
    assert_eq!(ran.code, 64);
    assert!(ran.err.contains("has 4 problems:") || ran.err.contains("has 5 problems:"), "{}", ran.err);
    assert!(!ran.err.contains("hush"), "{}", ran.err);
    let broken = written(folder.path(), "auth.jwt.secret = 'hush");
    let ran = tickbridge(&["check-config", "--config", &broken], &[]);
    assert_eq!(ran.code, 64);
    assert!(ran.err.contains("line 1") && !ran.err.contains("hush"), "{}", ran.err);
}
