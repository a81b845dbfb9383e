//! The rules of the house, as far as they can be read off the files.

use super::support::gateway::Gateway;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A longer file is more than one thing.
const MOST_LINES: usize = 450;

/// A world and everything that may happen in it; parts of it would need each other.
const STILL_LONGER: [&str; 1] = ["tests/it/simulation.rs"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All files below `folder` with one of `endings`, by their path from the root.
fn files(folder: &str, endings: &[&str]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
            let path = entry.unwrap().path();
            if path.is_dir() {
                if !path.ends_with("node_modules") && !path.ends_with("target") {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|e| endings.contains(&e.to_string_lossy().as_ref())) {
                let name = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
                found.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(!found.is_empty(), "no {endings:?} in {folder}");
    found.sort();
    found
}

/// Fails with every line of `broken`, not only with the first.
fn none(what: &str, broken: &[String]) {
    assert!(broken.is_empty(), "{what}:\n  {}", broken.join("\n  "));
}

/// Whether a file of `src/` belongs to a module or its children.
fn belongs(file: &str, module: &str) -> bool {
    file.strip_prefix("src/")
        .and_then(|file| file.strip_prefix(module))
        .is_some_and(|rest| rest.starts_with(['.', '/']))
}

/// The part of a file that is built into the product.
fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]").next().unwrap()
}

#[test]
fn imports_point_at_the_core() {
    const CORE: [&str; 11] = [
        "instrument",
        "quote",
        "topic",
        "protocol",
        "clock",
        "fanout",
        "lane",
        "session",
        "catch_up",
        "entry",
        "stream",
    ];
    let mut broken = Vec::new();
    for (file, text) in files("src", &["rs"]) {
        let product = without_tests(&text);
        let is = |module| belongs(&file, module);
        let mut refuse = |condition: bool, names: &[&str]| {
            for name in names.iter().filter(|name| condition && product.contains(**name)) {
                broken.push(format!("{file} names {name}"));
            }
        };
        refuse(is("upstream"), &["crate::edge", "crate::app", "axum::", "hyper::"]);
        refuse(is("edge"), &["crate::upstream", "crate::app", "redis::", "deadpool"]);
        let core = CORE.iter().any(|module| is(module));
        refuse(core, &["crate::edge", "crate::upstream", "crate::app", "crate::cli"]);
        refuse(!is("upstream"), &["use redis::", "deadpool_redis::", " redis::Client"]);
        refuse(!is("edge"), &["axum::", "hyper::", "hyper_util::"]);
        refuse(!is("config"), &["env::var(", "env::var_os(", "env::vars"]);
    }
    none("imports against the direction", &broken);
}

#[test]
fn files_are_short_and_say_what_they_are_for() {
    let mut broken = Vec::new();
    for (file, text) in ["src", "tests"].into_iter().flat_map(|folder| files(folder, &["rs"])) {
        let n_lines = without_tests(&text).lines().count();
        if n_lines > MOST_LINES && !STILL_LONGER.contains(&file.as_str()) {
            broken.push(format!("{file} has {n_lines} lines"));
        }
        // A file of unit tests belongs to the file beside it, which says so.
        if !text.starts_with("//!") && !file.ends_with("/tests.rs") {
            broken.push(format!("{file} doesn't begin with what it is for"));
        }
        if file.ends_with("mod.rs") {
            broken.push(format!("{file} is a mod.rs"));
        }
    }
    none("files", &broken);
}

#[test]
fn notes_say_what_kind_of_debt_they_are() {
    let kinds = ["cleanup", "correctness", "hardening", "coverage"].map(|kind| format!("TODO({kind}): "));
    // Put together here, so that this file doesn't accuse itself.
    let (note, worse) = (["TO", "DO"].concat(), ["FIX", "ME"].concat());
    let mut broken = Vec::new();
    let own = "tests/it/tidy.rs";
    for (file, text) in
        ["src", "tests"].into_iter().flat_map(|folder| files(folder, &["rs", "sh", "js", "html"]))
    {
        for (n, line) in text.lines().enumerate().filter(|_| file != own) {
            let bare = line.contains(&note) && !kinds.iter().any(|kind| line.contains(kind));
            if bare || line.contains(&worse) {
                broken.push(format!("{file}:{}: {}", n + 1, line.trim()));
            }
        }
    }
    none("bare notes", &broken);
}

#[test]
fn every_key_stands_in_the_default_file() {
    let text = fs::read_to_string(root().join("config/default.toml")).unwrap();
    let mut broken = Vec::new();
    for key in tickbridge::config::keys::KEYS {
        let (section, name) = key.name.rsplit_once('.').unwrap();
        let of_section = text
            .split(&format!("[{section}]\n"))
            .nth(1)
            .map(|rest| rest.lines().take_while(|line| !line.starts_with('[')).collect::<Vec<_>>());
        let is_key =
            |line: &&str| line.trim_start_matches("# ").split('=').next().is_some_and(|n| n.trim() == name);
        if !of_section.unwrap_or_default().iter().any(is_key) {
            broken.push(key.name.to_owned());
        }
    }
    none("keys that config/default.toml doesn't know", &broken);
}

#[tokio::test]
async fn every_metric_stands_in_the_operations_handbook_and_no_other() {
    let gateway =
        Gateway::builder().set("redis.mode", "'embedded'").set("auth.anonymous", "true").start().await;
    let text = gateway.metrics().await.text;
    let name = |line: &str| Some(line.strip_prefix("# TYPE ")?.split(' ').next()?.to_owned());
    let names: BTreeSet<String> = text.lines().filter_map(name).collect();
    let handbook = fs::read_to_string(root().join("docs/operations.md")).unwrap();
    // A row of the table begins with the name in code quotes.
    let row = |line: &str| Some(line.strip_prefix("| `tickbridge_")?.split(['`', '{']).next()?.to_owned());
    let described: Vec<String> =
        handbook.lines().filter_map(row).map(|name| format!("tickbridge_{name}")).collect();
    assert!(names.len() > 10, "{names:?}");
    let missing: Vec<String> = names.iter().filter(|name| !described.contains(name)).cloned().collect();
    none("metrics that docs/operations.md doesn't describe", &missing);
    let gone: Vec<String> = described.iter().filter(|name| !names.contains(*name)).cloned().collect();
    none("metrics that docs/operations.md describes and nobody registers", &gone);
}
