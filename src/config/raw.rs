//! Configuration as it is written: where it is looked for, and the settings found there.
//!
//! Invariants:
//! - Settings come out in the order of their precedence, the last one wins.
//! - A key or a `TICKBRIDGE_` variable that is not known is a problem, never ignored.
//! - An empty variable counts as absent: compose files pass `${NAME:-}` for what is not set.
//!
//! Not here: what a value means (`config::kind`), names of the deployment before this one
//! (`config::legacy`).

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::keys::{KEYS, Key, PREFIX};
use super::kind::Raw;
use super::problem::Problem;

/// Where a value came from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// Built in.
    Default,
    /// What a command sets by itself, such as `demo`.
    Preset(&'static str),
    /// A file.
    File(PathBuf),
    /// An environment variable, or two that belong together.
    Variable(String),
    /// An argument of the command line.
    Argument(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Preset(command) => write!(f, "set by {command}"),
            Self::File(path) => write!(f, "file {}", path.display().to_string().escape_debug()),
            Self::Variable(name) => write!(f, "environment {}", name.escape_debug()),
            Self::Argument(name) => write!(f, "argument {name}"),
        }
    }
}

/// One value for one key.
pub struct Setting {
    /// The key.
    pub key: &'static Key,
    /// The value as written.
    pub raw: Raw,
    /// Where it is written.
    pub origin: Origin,
}

/// Everything that a configuration is made from, lowest precedence first.
#[derive(Clone, Default)]
pub struct Sources {
    /// Values that a command prefers to the built-in ones, with the command's name.
    pub presets: Vec<(&'static str, &'static str, &'static str)>,
    /// Files, in the order given.
    pub files: Vec<PathBuf>,
    /// The environment.
    pub variables: Vec<(OsString, OsString)>,
    /// Key, value and name of what was given on the command line.
    pub arguments: Vec<(&'static str, String, &'static str)>,
}

impl Sources {
    /// The given files and the environment of this process.
    pub fn of_process(files: Vec<PathBuf>) -> Self {
        #[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
        let variables = std::env::vars_os().collect();
        Self { files, variables, ..Self::default() }
    }
}

/// Reads the settings of a file.
pub fn file(path: &Path, problems: &mut Vec<Problem>) -> Vec<Setting> {
    let origin = Origin::File(path.into());
    let text = match super::file::read_text(path) {
        Ok(text) => text,
        Err(error) => {
            problems.push(Problem::without_value("--config", &origin, format!("must be readable: {error}")));
            return Vec::new();
        }
    };
    let table: Table = match text.parse() {
        Ok(table) => table,
        Err(error) => {
            // The error's own text quotes the line, and with it perhaps a secret.
            let error: toml::de::Error = error;
            let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
            let rule = format!("must be TOML: line {line}: {}", error.message());
            problems.push(Problem::without_value("--config", &origin, rule));
            return Vec::new();
        }
    };
    let mut settings = Vec::new();
    collect("", table, &origin, &mut settings, problems);
    settings
}

fn collect(
    section: &str,
    table: Table,
    origin: &Origin,
    settings: &mut Vec<Setting>,
    problems: &mut Vec<Problem>,
) {
    for (name, value) in table {
        let name = if section.is_empty() { name } else { format!("{section}.{name}") };
        if let Some(key) = Key::find(&name) {
            settings.push(Setting { key, raw: Raw::Toml(value), origin: origin.clone() });
            continue;
        }
        let is_section =
            KEYS.iter().any(|key| key.name.strip_prefix(&name).is_some_and(|rest| rest.starts_with('.')));
        match value {
            Value::Table(inner) if is_section => collect(&name, inner, origin, settings, problems),
            _ if is_section => {
                problems.push(Problem::without_value(&name, origin, "must be a table".into()));
            }
            _ => problems.push(Problem::without_value(
                &name,
                origin,
                unknown(&name, KEYS.iter().map(|key| key.name.into())),
            )),
        }
    }
}

/// Reads the settings of the variables with our prefix.
pub fn prefixed(variables: &[(OsString, OsString)], problems: &mut Vec<Problem>) -> Vec<Setting> {
    let mut settings = Vec::new();
    for (name, value) in variables {
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { continue };
        let origin = Origin::Variable(name.into());
        let Some(key) = KEYS.iter().find(|key| key.variable() == name) else {
            let rule = unknown(name, KEYS.iter().map(Key::variable));
            problems.push(Problem::without_value(name, &origin, rule));
            continue;
        };
        match value.to_str() {
            Some("") => {}
            Some(text) => settings.push(Setting { key, raw: Raw::Text(text.into()), origin }),
            None => problems.push(Problem::without_value(key.name, &origin, "must be UTF-8".into())),
        }
    }
    settings
}

/// How alike two names must be for one to be offered in place of the other; a slip or two in a name
/// score above it.
const LIKENESS: f64 = 0.75;

fn unknown(name: &str, known: impl Iterator<Item = String>) -> String {
    // The prefix is always right and would make any two variables alike.
    let likeness = |known: &str| {
        let [name, known] = [name, known].map(|name| name.strip_prefix(PREFIX).unwrap_or(name));
        strsim::normalized_damerau_levenshtein(name, known)
    };
    let nearest = known
        .map(|known| (likeness(&known), known))
        .filter(|(likeness, _)| *likeness > LIKENESS)
        .max_by(|(a, _), (b, _)| a.total_cmp(b));
    match nearest {
        Some((_, known)) => format!("is not known; did you mean {known}?"),
        None => "is not known; remove it".into(),
    }
}
