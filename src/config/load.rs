//! Makes a configuration from its sources, or says everything that is wrong with them.
//!
//! Order of precedence: built-in values, presets of the command, files in the order given, older
//! environment variables, variables with our prefix, arguments.
//!
//! Not here: reading single values (`config::kind`), finding them (`config::raw`, `config::legacy`).

use std::collections::BTreeMap;

use super::file;
use super::keys::Key;
use super::kind::Raw;
use super::legacy::Legacy;
use super::problem::{Problem, Problems};
use super::raw::{self, Origin, Setting, Sources};
use super::rules::{RULES, Rule, TO_SERVE};
use super::{Config, Secret};

/// What a configuration is wanted for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// To serve browsers, which takes a way to judge their tokens.
    Serve,
    /// Anything else.
    Look,
}

/// A configuration without problems.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// Remarks that are no problems.
    pub notes: Vec<String>,
    origins: BTreeMap<&'static str, Origin>,
}

impl Loaded {
    /// Where the value of a key came from.
    pub fn origin(&self, key: &Key) -> &Origin {
        self.origins.get(key.name).unwrap_or(&Origin::Default)
    }
}

/// Reads all sources.
///
/// # Errors
/// Everything that is wrong, in the order of the sources, rules between keys last.
pub fn load(sources: &Sources, purpose: Purpose) -> Result<Loaded, Problems> {
    let mut build = Build::default();
    for &(command, key, value) in &sources.presets {
        build.set(&written(key, value, Origin::Preset(command)));
    }
    for path in &sources.files {
        let settings = raw::file(path, &mut build.problems);
        settings.iter().for_each(|setting| build.set(setting));
    }
    let mut notes = Vec::new();
    let legacy = Legacy::new(&sources.variables, &mut build.problems);
    let settings = legacy.read(build.config.listen.public, &mut notes);
    settings.iter().for_each(|setting| build.set(setting));
    let settings = raw::prefixed(&sources.variables, &mut build.problems);
    settings.iter().for_each(|setting| build.set(setting));
    for (key, value, name) in &sources.arguments {
        build.set(&written(key, value, Origin::Argument(name)));
    }
    RULES.iter().for_each(|rule| build.judge(rule));
    if purpose == Purpose::Serve {
        build.judge(&TO_SERVE);
    }
    build.read_secret_file();
    let Build { config, origins, problems, .. } = build;
    if problems.is_empty() { Ok(Loaded { config, notes, origins }) } else { Err(Problems(problems)) }
}

fn written(key: &str, value: &str, origin: Origin) -> Setting {
    let key = Key::find(key).expect("commands set existing keys; a test runs each of them");
    Setting { key, raw: Raw::Text(value.into()), origin }
}

#[derive(Default)]
struct Build {
    config: Config,
    origins: BTreeMap<&'static str, Origin>,
    problems: Vec<Problem>,
}

impl Build {
    fn set(&mut self, setting: &Setting) {
        let Setting { key, raw, origin } = setting;
        match (key.read)(&mut self.config, raw) {
            Ok(()) => {
                self.origins.insert(key.name, origin.clone());
            }
            Err(rule) => self.problems.push(Problem::with_value(key, raw, origin, rule)),
        }
    }

    fn judge(&mut self, rule: &Rule) {
        if self.problems.iter().any(|problem| rule.keys.contains(&problem.key.as_str())) {
            return;
        }
        let Some(broken) = (rule.judge)(&self.config) else { return };
        let key = rule.keys.first().and_then(|key| Key::find(key)).expect("a rule blames an existing key");
        let value = (key.show)(&self.config).map(|value| value.to_string());
        let origin = self.origins.get(key.name).cloned().unwrap_or(Origin::Default);
        self.problems.push(Problem { key: key.name.into(), value, origin, rule: broken });
    }

    fn read_secret_file(&mut self) {
        let jwt = &mut self.config.auth.jwt;
        let Some(path) = jwt.secret_file.clone().filter(|_| jwt.secret.is_none()) else { return };
        let rule = match file::read_text(path.as_ref()) {
            Ok(text) if text.trim().is_empty() => "must name a file that is not empty".into(),
            Ok(text) => {
                let origin = self.origins.get("auth.jwt.secret_file").cloned().unwrap_or(Origin::Default);
                self.origins.insert("auth.jwt.secret", origin);
                jwt.secret = Some(Secret::new(text.trim_end_matches(['\r', '\n']).into()));
                return;
            }
            Err(error) => format!("must name a readable file: {error}"),
        };
        let key = Key::find("auth.jwt.secret_file").expect("the key is in the table");
        let origin = self.origins.get(key.name).cloned().unwrap_or(Origin::Default);
        self.problems.push(Problem::with_value(key, &Raw::Text(path), &origin, rule));
    }
}
