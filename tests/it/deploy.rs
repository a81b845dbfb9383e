//! What is shipped for operators, checked against what the gateway is: metric names, configuration keys, the
//! arithmetic between time-outs, sizes for 10,000 sessions, secrets.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_yaml_ng::Value as Yaml;
use tickbridge::config::Config;

use super::cli::tickbridge;
use super::proxies::stand::shipped;
use super::support::gateway::Gateway;

/// Sessions that the shipped files are sized for, in each proxy.
const TARGET_SESSIONS: u64 = 10_000;

/// Time that an orchestrator gives beyond what we need, so that a busy machine is not a kill.
const MARGIN: Duration = Duration::from_secs(5);

fn yaml(text: &str) -> Yaml {
    let mut value: Yaml = serde_yaml_ng::from_str(text).unwrap();
    // What is merged may itself merge something.
    for _ in 0..2 {
        value.apply_merge().unwrap();
    }
    value
}

fn compose() -> Yaml {
    yaml(&shipped("docker-compose.yml"))
}

/// The text after `prefix` up to a blank or a semicolon, in the first line that begins so.
fn word_after<'a>(text: &'a str, prefix: &str) -> &'a str {
    let line = text.lines().map(str::trim).find_map(|line| line.strip_prefix(prefix));
    let rest = line.unwrap_or_else(|| panic!("no line begins with {prefix:?}")).trim_start();
    rest.split([' ', ';']).next().unwrap()
}

fn duration(text: &str) -> Duration {
    humantime::parse_duration(text).unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// Metrics and the values that each query compares their labels with.
fn selectors(query: &str) -> Vec<(String, Vec<(String, String)>)> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let starts = query.match_indices("tickbridge_").map(|(at, _)| at);
    let own = starts.filter(|&at| !query[..at].ends_with(is_name));
    own.map(|at| {
        let end = query[at..].find(|c| !is_name(c)).map_or(query.len(), |n| at + n);
        let labels =
            query[end..].strip_prefix('{').and_then(|rest| rest.split_once('}')).map_or("", |(l, _)| l);
        let matchers = labels.split(',').filter_map(|matcher| {
            let (label, value) = matcher.split_once('=').or_else(|| matcher.split_once("!~"))?;
            let label = label.trim_end_matches('!').trim();
            Some((label, value.trim_start_matches(['~', '=']).trim_matches('"')))
        });
        let values = matchers.flat_map(|(label, values)| {
            let values = values.split('|').filter(|value| !value.starts_with('$'));
            values.map(move |value| (label.to_owned(), value.to_owned()))
        });
        (query[at..end].to_owned(), values.collect())
    })
    .collect()
}

#[test]
fn selectors_are_taken_apart() {
    let found =
        selectors(r#"sum(rate(tickbridge_a_total{x!~"b|c",instance=~"$instance"}[1m])) / tickbridge_d"#);
    let label = |value: &str| ("x".to_owned(), value.to_owned());
    assert_eq!(
        found,
        [
            ("tickbridge_a_total".to_owned(), vec![label("b"), label("c")]),
            ("tickbridge_d".to_owned(), vec![])
        ]
    );
}

/// A query about a metric that doesn't exist is an empty panel or an alert that never fires.
#[tokio::test]
async fn every_query_is_about_metrics_and_labels_that_the_gateway_renders() {
    let gateway = Gateway::builder().set("redis.mode", "'embedded'").start().await;
    let metrics = gateway.metrics().await;
    let names: BTreeSet<&str> = metrics.names().into_iter().collect();

    let dashboard: serde_json::Value =
        serde_json::from_str(&shipped("deploy/grafana/dashboards/tickbridge.json")).unwrap();
    let mut queries: Vec<String> = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap_or(&Vec::new()) {
            queries.push(target["expr"].as_str().unwrap().to_owned());
        }
    }
    queries.extend(rules().into_iter().map(|(_, query)| query));
    let hpa = yaml(&shipped("deploy/kubernetes/hpa.yaml"));
    queries.push(hpa["spec"]["metrics"][0]["pods"]["metric"]["name"].as_str().unwrap().to_owned());
    let variable = &dashboard["templating"]["list"][0]["query"]["query"];
    queries.push(variable.as_str().unwrap().to_owned());

    assert!(queries.len() > 50, "{}", queries.len());
    for query in &queries {
        for (name, labels) in selectors(query) {
            assert!(names.contains(name.as_str()), "no metric {name}, asked for in {query}");
            for (label, value) in labels {
                let series = format!("{label}=\"{value}\"");
                let exists =
                    metrics.text.lines().any(|line| line.starts_with(&name) && line.contains(&series));
                assert!(exists, "no series of {name} has {series}, asked for in {query}");
            }
        }
    }
}

/// Names and expressions of all alerts.
fn rules() -> Vec<(String, String)> {
    let file = yaml(&shipped("deploy/prometheus/rules/tickbridge.yml"));
    let groups = file["groups"].as_sequence().unwrap().iter();
    let rules = groups.flat_map(|group| group["rules"].as_sequence().unwrap());
    let text = |rule: &Yaml, key| rule[key].as_str().unwrap().to_owned();
    rules.map(|rule| (text(rule, "alert"), text(rule, "expr"))).collect()
}

#[test]
fn every_alert_has_a_runbook_and_a_case_in_which_it_fires() {
    let (runbooks, cases) =
        (shipped("docs/runbooks.md"), yaml(&shipped("deploy/prometheus/tests/tickbridge.yml")));
    let cases = cases["tests"].as_sequence().unwrap().iter();
    let checks = cases.flat_map(|case| case["alert_rule_test"].as_sequence().unwrap());
    let firing: BTreeSet<&str> = checks
        .filter(|check| !check["exp_alerts"].as_sequence().unwrap().is_empty())
        .map(|check| check["alertname"].as_str().unwrap())
        .collect();
    for (alert, _) in rules() {
        assert!(runbooks.contains(&format!("\n## {alert}\n")), "docs/runbooks.md says nothing about {alert}");
        assert!(firing.contains(alert.as_str()), "no case in which {alert} fires");
    }
}

#[test]
fn alerts_fire_as_their_cases_say() {
    for args in [
        ["check", "rules", "deploy/prometheus/rules/tickbridge.yml"],
        ["test", "rules", "deploy/prometheus/tests/tickbridge.yml"],
    ] {
        let mut command = Command::new("promtool");
        let ran = command.args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output();
        let ran = ran.expect("promtool is installed; see tests/setup.sh");
        let said = [ran.stdout, ran.stderr].concat();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&said));
    }
}

/// What stops the process must wait longer than the drain takes.
#[test]
fn every_grace_time_fits_the_drain() {
    let drain = Config::default().drain;
    let needed = drain.notice + drain.deadline + MARGIN;
    let compose = duration(compose()["services"]["listener"]["stop_grace_period"].as_str().unwrap());
    assert!(compose >= needed, "docker-compose.yml: {compose:?} < {needed:?}");
    let unit = duration(word_after(&shipped("deploy/systemd/tickbridge.service"), "TimeoutStopSec="));
    assert!(unit >= needed, "systemd: {unit:?} < {needed:?}");
    let pod = yaml(&shipped("deploy/kubernetes/deployment.yaml"));
    let pod = &pod["spec"]["template"]["spec"];
    let before = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"].as_u64().unwrap();
    let grace = Duration::from_secs(pod["terminationGracePeriodSeconds"].as_u64().unwrap());
    assert!(grace >= needed + Duration::from_secs(before), "Kubernetes: {grace:?} < {before}s + {needed:?}");
    assert_eq!(word_after(&shipped("Dockerfile"), "STOPSIGNAL"), "SIGTERM");
}

#[test]
fn the_proxies_wait_longer_than_three_heartbeats() {
    let heartbeat = Config::default().session.heartbeat_interval;
    let nginx = shipped("nginx.conf");
    for directive in ["proxy_read_timeout", "proxy_send_timeout"] {
        let idle = duration(word_after(&nginx, directive));
        assert!(idle >= 3 * heartbeat, "{directive} {idle:?} with a heartbeat of {heartbeat:?}");
    }
    // A reload cuts sessions after the same time in both.
    let caddy = shipped("Caddyfile");
    assert_eq!(word_after(&nginx, "worker_shutdown_timeout"), word_after(&caddy, "stream_close_delay"));
}

#[test]
fn the_proxies_have_room_for_ten_thousand_sessions() {
    let nginx = shipped("nginx.conf");
    let number = |directive| word_after(&nginx, directive).parse::<u64>().unwrap();
    // Nothing spreads connections over workers, so one must be enough.
    assert!(number("worker_connections") >= 2 * TARGET_SESSIONS);
    assert!(number("worker_rlimit_nofile") >= number("worker_connections"));
    let compose = compose();
    for service in ["caddy", "nginx", "listener"] {
        let service = &compose["services"][service];
        let descriptors = interpolated(service["ulimits"]["nofile"]["hard"].as_str().unwrap());
        assert!(descriptors.parse::<u64>().unwrap() >= number("worker_rlimit_nofile"));
    }
    for service in ["caddy", "nginx"] {
        let ports = &compose["services"][service]["sysctls"]["net.ipv4.ip_local_port_range"];
        let range: Vec<u64> = ports.as_str().unwrap().split(' ').map(|port| port.parse().unwrap()).collect();
        assert!(range[1] - range[0] >= 2 * TARGET_SESSIONS, "{service}");
    }
    let unit: u64 =
        word_after(&shipped("deploy/systemd/tickbridge.service"), "LimitNOFILE=").parse().unwrap();
    assert!(unit > Config::default().limits.max_sessions as u64);
}

#[test]
fn no_secret_stands_in_a_shipped_file_and_none_has_a_default() {
    let compose = compose();
    let mut remedies = 0;
    for (name, service) in compose["services"].as_mapping().unwrap() {
        let Some(environment) = service["environment"].as_mapping() else { continue };
        for (key, value) in environment {
            let (key, value) = (key.as_str().unwrap(), value.as_str().unwrap_or_default());
            if ["SECRET", "PASSWORD", "AUTH"].iter().any(|word| key.contains(word)) && !key.starts_with("GF_")
            {
                assert!(value.starts_with("${") && value.contains(":?"), "{name:?}: {key} is {value}");
                remedies += usize::from(value.contains("openssl rand"));
            }
        }
    }
    assert!(remedies >= 2, "whoever starts without a secret learns how to make one");
    for file in ["secret.yaml", "secrets.yaml"] {
        assert!(!Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/kubernetes").join(file).exists());
    }
}

#[test]
fn containers_cannot_write_or_gain_rights_and_only_caddy_is_public() {
    let compose = compose();
    for (name, service) in compose["services"].as_mapping().unwrap() {
        let name = name.as_str().unwrap();
        assert_eq!(service["read_only"], Yaml::Bool(true), "{name}");
        assert_eq!(service["cap_drop"][0], "ALL", "{name}");
        assert_eq!(service["security_opt"][0], "no-new-privileges:true", "{name}");
        assert!(
            service["restart"].is_string() && service["mem_limit"].is_string() || name == "redis-init",
            "{name}"
        );
        let ports = service["ports"].as_sequence().cloned().unwrap_or_default();
        let public = ports.iter().any(|port| !port.as_str().unwrap().starts_with("127.0.0.1:"));
        assert_eq!(public, name == "caddy", "{name} publishes {ports:?}");
    }
    // Redis being away must not replace replicas.
    assert!(shipped("Dockerfile").contains("/livez") && !shipped("Dockerfile").contains("/readyz"));
    assert!(compose["services"]["listener"]["healthcheck"].is_null());
}

/// What a variable becomes where nobody sets it; required ones get something.
fn interpolated(text: &str) -> String {
    let Some((before, rest)) = text.split_once("${") else { return text.to_owned() };
    let (inner, after) = rest.split_once('}').unwrap();
    let value = match inner.split_once(":-") {
        Some((_, default)) => default,
        None => "0123456789abcdef0123456789abcdef",
    };
    format!("{before}{value}{}", interpolated(after))
}

#[test]
fn the_gateway_accepts_each_shipped_configuration() {
    let compose = compose();
    for service in ["listener", "publisher", "migrate"] {
        let environment = compose["services"][service]["environment"].as_mapping().unwrap();
        let text = |value: &Yaml| match value {
            Yaml::String(text) => interpolated(text),
            other => serde_yaml_ng::to_string(other).unwrap().trim().to_owned(),
        };
        let mut variables: Vec<_> =
            environment.iter().map(|(key, value)| (key.as_str().unwrap(), text(value))).collect();
        if service != "listener" {
            variables.push(("TICKBRIDGE_AUTH__ANONYMOUS", "true".into()));
        }
        let variables: Vec<_> = variables.iter().map(|(key, value)| (*key, value.as_str())).collect();
        let ran = tickbridge(&["check-config"], &variables);
        assert_eq!(ran.code, 0, "{service}: {}", ran.err);
    }
    let folder = tempfile::tempdir().unwrap();
    let as_files = yaml(&shipped("deploy/compose.secrets.yml"));
    for (key, value) in as_files["services"]["listener"]["environment"].as_mapping().unwrap() {
        let (key, value) = (key.as_str().unwrap(), value.as_str().unwrap());
        assert!(
            value.is_empty() || key.ends_with("_FILE") && value.starts_with("/run/secrets/"),
            "{key}: {value}"
        );
    }
    let file = folder.path().join("tickbridge.toml");
    let map = yaml(&shipped("deploy/kubernetes/configmap.yaml"));
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "0123456789abcdef0123456789abcdef").unwrap();
    let secret = secret.display().to_string();
    let toml = map["data"]["tickbridge.toml"].as_str().unwrap();
    std::fs::write(&file, toml).unwrap();
    let file = file.display().to_string();
    let variables = [
        ("TICKBRIDGE_AUTH__JWT__SECRET_FILE", secret.as_str()),
        ("TICKBRIDGE_REDIS__PASSWORD_FILE", secret.as_str()),
    ];
    let ran = tickbridge(&["check-config", "--config", &file], &variables);
    assert_eq!(ran.code, 0, "configmap.yaml: {}", ran.err);
    // The unit sets the same two.
    let unit = shipped("deploy/systemd/tickbridge.service");
    for (name, _) in variables {
        assert!(unit.contains(&format!("Environment={name}=%d/")), "{name}");
    }
}

/// An unknown setting is ignored by systemd, and with it the protection that it was meant to be.
#[test]
fn systemd_knows_every_line_of_the_unit() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        eprintln!("NOT CHECKED: the systemd unit; systemd-analyze is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tickbridge.service");
    // The program must be there.
    let unit = shipped("deploy/systemd/tickbridge.service");
    let unit = unit.replace("/usr/local/bin/tickbridge", env!("CARGO_BIN_EXE_tickbridge"));
    std::fs::write(&file, unit).unwrap();
    let mut verify = Command::new("systemd-analyze");
    let ran = verify.args(["verify", "--man=no", "--recursive-errors=no"]).arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    let about: Vec<_> = said.lines().filter(|line| line.contains("tickbridge.service")).collect();
    assert!(about.is_empty(), "{about:?}");
    if !ran.status.success() {
        eprintln!("NOT CHECKED: the systemd unit; systemd-analyze can't run here: {said}");
    }
}

#[test]
fn kubernetes_manifests_validate_strictly() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let validator = root.join("target/kubernetes-validate/bin/kubernetes-validate");
    if !validator.exists() {
        eprintln!("NOT CHECKED: Kubernetes manifests; run tests/deploy/setup.sh");
        return;
    }
    let manifests =
        std::fs::read_dir(root.join("deploy/kubernetes")).unwrap().map(|entry| entry.unwrap().path());
    let manifests: Vec<_> = manifests.filter(|path| !path.ends_with("kustomization.yaml")).collect();
    let listed = shipped("deploy/kubernetes/kustomization.yaml");
    for manifest in &manifests {
        let name = manifest.file_name().unwrap().to_str().unwrap();
        assert!(listed.contains(&format!("  - {name}\n")), "{name} is not in kustomization.yaml");
    }
    let ran = Command::new(validator).arg("--strict").args(&manifests).output().unwrap();
    let said = [ran.stdout, ran.stderr].concat();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&said));
}
