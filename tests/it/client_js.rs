//! The client library's own tests, which run in Node: against a fake gateway, in React, and on what is published.

use std::process::Command;

/// The whole suite takes a quarter of a minute on an idle machine.
const DEADLINE_SECONDS: &str = "300";

#[test]
fn the_client_library_keeps_its_promises() {
    let root = env!("CARGO_MANIFEST_DIR");
    let mut node = Command::new("timeout");
    node.args([DEADLINE_SECONDS, "node", "--experimental-websocket", "--no-warnings", "--test", "tests/js/"]);
    let run = node.current_dir(root).output().unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{}\n{said}\n{}", run.status, String::from_utf8_lossy(&run.stderr));
    // A runner that found no tests succeeds too.
    let passed = said.lines().find_map(|line| line.strip_prefix("# pass ")?.parse::<u32>().ok());
    assert!(passed.is_some_and(|n| n >= 40), "{said}");
}
