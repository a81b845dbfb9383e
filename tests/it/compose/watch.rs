//! What Prometheus sees of the running stack: every replica, rules without errors, an answer for every panel.

use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::stack::Stack;
use crate::proxies::stand::shipped;
use crate::support::http;
use crate::support::wait::wait_for;

/// Starting a container takes long on a busy machine, and each replica must have been scraped.
const SLOW: Duration = Duration::from_secs(180);

/// What an API of Prometheus says, once it says anything.
async fn ask(stack: &Stack, path: &str) -> Option<Value> {
    let answer = http::try_request(stack.prometheus(), "GET", path, &[], "").await.ok()?;
    serde_json::from_str::<Value>(&answer.body).ok()
}

async fn query(stack: &Stack, expression: &str) -> Option<Value> {
    let expression = utf8_percent_encode(expression, NON_ALPHANUMERIC);
    ask(stack, &format!("/api/v1/query?query={expression}")).await
}

/// Starts Prometheus beside three replicas and looks what it sees.
pub async fn is_watched(stack: &Stack) {
    stack.scale(3).await;
    stack.compose(&["--profile", "monitoring", "up", "-d", "--no-build", "--no-deps", "prometheus"]).await;
    wait_for("three targets are up, each by itself", SLOW, || async {
        let answer = query(stack, r#"up{job="tickbridge"}"#).await?;
        let targets = answer["data"]["result"].as_array()?.clone();
        let up = targets.iter().filter(|target| target["value"][1] == "1").count();
        let mut instances: Vec<_> =
            targets.iter().map(|target| target["metric"]["instance"].to_string()).collect();
        instances.sort();
        instances.dedup();
        (up == 3 && instances.len() == 3).then_some(())
    })
    .await;
    let rules = ask(stack, "/api/v1/rules").await.unwrap();
    let rules = rules["data"]["groups"][0]["rules"].as_array().unwrap().clone();
    assert!(rules.len() > 10 && rules.iter().all(|rule| rule["health"] != "err"), "{rules:?}");
    let paging =
        rules.iter().filter(|rule| rule["state"] == "firing" && rule["labels"]["severity"] == "page");
    let paging: Vec<_> = paging.map(|rule| rule["name"].to_string()).collect();
    assert!(paging.is_empty(), "{paging:?} are firing on a healthy stack");
    every_panel_has_an_answer(stack).await;
}

/// As Grafana asks, with all replicas chosen. A panel that shows trouble only is empty here.
async fn every_panel_has_an_answer(stack: &Stack) {
    let dashboard: Value =
        serde_json::from_str(&shipped("deploy/grafana/dashboards/tickbridge.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let mut n = 0;
    for target in targets {
        let expression = target["expr"].as_str().unwrap().replace("$instance", ".*");
        wait_for(&format!("an answer to {expression}"), SLOW, || async {
            let answer = query(stack, &expression).await?;
            assert_eq!(answer["status"], "success", "{expression}: {answer}");
            // A rate needs two scrapes.
            let is_empty = answer["data"]["result"].as_array()?.is_empty();
            (!is_empty || expression.ends_with("> 0")).then_some(())
        })
        .await;
        n += 1;
    }
    assert!(n > 30, "{n} queries");
    eprintln!("  {n} queries of the dashboard answered");
}
