//! Configuration: a good one is printed as a file that says the same, a bad one is told line by line, and secrets
//! are in neither.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use tickbridge::config::Config;
use tickbridge::config::load::{Loaded, Purpose, load};
use tickbridge::config::print;
use tickbridge::config::raw::Sources;

const SECRET_NAME: &str = "TICKBRIDGE_REDIS__PASSWORD";
const SECRET: &str = "hush-hush-4711";

/// A file and, after zero bytes, variables as `NAME=value`.
pub fn check(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    // The value of this key names a file that is read, which may be any on this machine.
    if text.to_ascii_lowercase().contains("secret_file") || text.contains("\\u") || text.contains(SECRET) {
        return;
    }
    let mut parts = input.split(|&byte| byte == 0);
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), parts.next().unwrap_or_default()).expect("room for a file");
    let mut variables = vec![(SECRET_NAME.into(), SECRET.into())];
    for part in parts {
        let mut halves = part.splitn(2, |&byte| byte == b'=');
        let mut half = || OsString::from_vec(halves.next().unwrap_or_default().into());
        variables.push((half(), half()));
    }
    let sources = Sources { files: vec![file.path().into()], variables, ..Sources::default() };
    for purpose in [Purpose::Look, Purpose::Serve] {
        match load(&sources, purpose) {
            Ok(loaded) => printed(&loaded, file.path()),
            Err(problems) => {
                assert!(!problems.0.is_empty());
                for problem in &problems.0 {
                    let line = problem.to_string();
                    assert!(!line.contains(char::is_control), "more than a line: {line:?}");
                    assert!(!line.contains(SECRET), "{line:?}");
                }
            }
        }
    }
}

fn printed(loaded: &Loaded, path: &Path) {
    let (toml, line) = (print::as_toml(loaded), print::as_line(loaded));
    assert!(!line.contains(['\n', '\r']), "{line:?}");
    assert!(
        ![&toml, &line].iter().any(|text| text.contains(SECRET)) && !format!("{loaded:?}").contains(SECRET)
    );
    std::fs::write(path, &toml).expect("room for a file");
    let again = load(&Sources { files: vec![path.into()], ..Sources::default() }, Purpose::Look);
    let again = again.unwrap_or_else(|problems| panic!("{problems}\n{toml}"));
    assert_eq!(without_secrets(&again.config), without_secrets(&loaded.config), "{toml}");
}

fn without_secrets(config: &Config) -> Config {
    let mut config = config.clone();
    config.auth.jwt.secret = None;
    config.redis.password = None;
    config.listen.publish_key = None;
    config
}
